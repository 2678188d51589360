/* SPDX-License-Identifier: Apache-2.0 */
/* What a database can do at best: the same rows through the statements of node/store, set-wise, by
 * the bare client library and with no HTTP. A store is a table of functions; each aborts the
 * program on any error, and when a statement did not touch all of its rows: a figure with lost rows
 * would mean nothing. */
#ifndef JF_BENCH_LIMIT_H
#define JF_BENCH_LIMIT_H

#include <stddef.h>

#include "common/clock.h"
#include "common/ids.h"

#define LIMIT_BATCH_MAX 2000
#define LIMIT_SERVICE "bench-push" /* as jfbench names it */
#define LIMIT_HANDLER "run"
#define LIMIT_NODE "limit"
#define LIMIT_LANE 4
#define LIMIT_PRIORITY 5
#define LIMIT_RETRIES 10
#define LIMIT_TIMEOUT_MS 60000
#define LIMIT_MARGIN_MS 60000

/* The columns that are copied to history as they stand, and all that a claim reads. */
#define LIMIT_FIXED                                                                                \
    "trace_id, biz_uuid, service_name, handler, execute_time, payload_json, max_retry, "           \
    "created_at, shard, lane, priority, attempt, policy, timeout_ms, claimed_by, claimed_at, "     \
    "snooze_count"
#define LIMIT_COLUMNS                                                                              \
    "id, " LIMIT_FIXED ", status, next_attempt_time, retry_count, updated_at, deadline_at, "       \
    "failed_at, last_error, last_http_status"

struct limit_row {
    int64_t id;
    char trace_id[TRACE_ID_LEN + 1];
    char key[48];
    char payload[128]; /* about 100 bytes, as in an order's time-out */
};

struct limit_session; /* each store's own */

struct limit_store {
    const char *scheme; /* with the colon */
    struct limit_session *(*open)(const char *url);
    void (*close)(struct limit_session *s);
    /* Takes n ids that nobody else uses, and returns the first. */
    int64_t (*take_ids)(struct limit_session *s, int64_t n);
    /* Each is one transaction over up to LIMIT_BATCH_MAX rows. It may return before it is done, but
     * what is asked later on the same session sees it; the rows are not used any more. */
    void (*insert)(struct limit_session *s, const struct limit_row *rows, size_t n, wall_ms due);
    void (*claim)(struct limit_session *s, int64_t first_id, size_t n);
    void (*finish)(struct limit_session *s, int64_t first_id, size_t n);
    void (*flush)(struct limit_session *s); /* waits until all is committed */
};

extern const struct limit_store limit_mysql;
extern const struct limit_store limit_postgres;
extern const struct limit_store limit_sqlite;

_Noreturn void limit_die(const char *what, const char *why);

#endif
