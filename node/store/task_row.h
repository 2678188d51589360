/* SPDX-License-Identifier: Apache-2.0 */
/* Task rows as statements read them, and the statements that move one row to history. */
#ifndef JF_STORE_TASK_ROW_H
#define JF_STORE_TASK_ROW_H

#include "node/store/sql.h"
#include "proto/task.h"

/* What both tables hold and no write of this program changes after the insert, but the id. */
#define TASK_FIXED                                                                                 \
    "trace_id, biz_uuid, service_name, handler, execute_time, payload_json, max_retry, "           \
    "created_at, shard, lane, priority, attempt, policy, timeout_ms, claimed_by, claimed_at, "     \
    "snooze_count"
#define TASK_COLUMNS                                                                               \
    "id, " TASK_FIXED ", status, next_attempt_time, retry_count, updated_at, deadline_at, "        \
    "failed_at, last_error, last_http_status"

#define LIVE_COLUMNS TASK_COLUMNS ", NULL"
#define HISTORY_COLUMNS TASK_COLUMNS ", finished_at"

/* One row by a condition on columns that both tables have, wherever it stands. Twice the
 * condition's parameters. */
#define SELECT_ANYWHERE(where)                                                                     \
    "SELECT " LIVE_COLUMNS " FROM job_delay_task WHERE " where                                     \
    " UNION ALL SELECT " HISTORY_COLUMNS " FROM job_delay_task_history WHERE " where

/* Copies the live rows that `from_where` names into history, with these expressions as their new
 * values; what is not given is NULL. */
#define INSERT_HISTORY(status, retry, failed, error, http, finished, from_where)                   \
    "INSERT INTO job_delay_task_history (id, " TASK_FIXED ", status, retry_count, failed_at, "     \
    "last_error, last_http_status, updated_at, finished_at) SELECT id, " TASK_FIXED ", " status    \
    ", " retry ", " failed ", " error ", " http ", {now}, " finished " FROM " from_where

/* Fills *ret with views into the row of TASK_COLUMNS and finished_at. Errors: ERR_CORRUPT. */
MUST_CHECK int task_from_row(const struct sql_value *row, struct task *ret);

/* The same as a copy (task_free). Errors: ERR_NOMEM too. */
MUST_CHECK int task_read(const struct sql_value *row, struct task **ret);

/* A sql_row_fn that keeps the row: ctx is a struct task **, whose former value it frees. */
int task_keep_row(void *ctx, const struct sql_value *row);

/* Reads one task by key, or by id when id is not 0. Sets *ret, or leaves NULL there when there is
 * none. *ret is NULL or owned before; the former value is freed. */
MUST_CHECK int task_find(struct sql *db, struct str biz_uuid, int64_t id, struct task **ret,
                         struct err *err);

#endif
