/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/task_row.h"

#include <string.h>

static int read_status(const struct sql_value *v, enum task_status *ret)
{
    return task_status_parse(v->s, ret) ? 0 : ERR_CORRUPT;
}

int task_from_row(const struct sql_value *row, struct task *ret)
{
    struct task t = {
        .id = row[0].i,
        .biz_uuid = row[2].s,
        .service_name = row[3].s,
        .handler = row[4].s,
        .execute_time = row[5].i,
        .payload = row[6].s,
        .max_retry = (int32_t)row[7].i,
        .created_at = row[8].i,
        .shard = (int32_t)row[9].i,
        .lane = (int32_t)row[10].i,
        .priority = (int32_t)row[11].i,
        .attempt = (int32_t)row[12].i,
        .policy = row[13].s,
        .timeout_ms = (int32_t)row[14].i,
        .claimed_by = row[15].s,
        .claimed_at = sql_wall(&row[16]),
        .snooze_count = (int32_t)row[17].i,
        .next_attempt_time = sql_wall(&row[19]),
        .retry_count = (int32_t)row[20].i,
        .updated_at = row[21].i,
        .deadline_at = sql_wall(&row[22]),
        .failed_at = sql_wall(&row[23]),
        .last_error = row[24].s,
        .last_http_status = (int32_t)row[25].i,
        .finished_at = sql_wall(&row[26]),
    };

    if (row[1].s.len != TRACE_ID_LEN || read_status(&row[18], &t.status))
        return ERR_CORRUPT;
    memcpy(t.trace_id, row[1].s.p, TRACE_ID_LEN);
    *ret = t;
    return 0;
}

int task_read(const struct sql_value *row, struct task **ret)
{
    struct task view;
    struct task *copy;
    int rc = task_from_row(row, &view);

    if (rc)
        return rc;
    copy = task_dup(&view);
    if (!copy)
        return ERR_NOMEM;
    *ret = copy;
    return 0;
}

int task_keep_row(void *ctx, const struct sql_value *row)
{
    struct task **ret = ctx;
    struct task *t;
    int rc = task_read(row, &t);

    if (rc)
        return rc;
    task_free(*ret);
    *ret = t;
    return 0;
}

int task_find(struct sql *db, struct str biz_uuid, int64_t id, struct task **ret, struct err *err)
{
    static const char by_id[] = SELECT_ANYWHERE("id = ?");
    static const char by_key[] = SELECT_ANYWHERE("biz_uuid = ?");
    struct sql_value key = id ? sql_int(id) : sql_text(biz_uuid);

    task_free(*ret);
    *ret = NULL;
    return sql_run(
        db,
        &(struct sql_query){
            .text = id ? by_id : by_key, SQL_PARAMS(key, key), .on_row = task_keep_row, .ctx = ret},
        err);
}
