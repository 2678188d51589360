/* SPDX-License-Identifier: Apache-2.0 */
/* The statements of node/store/rowops.c with the settings of node/store/sqlite.c: row by row, since
 * a statement costs no round trip, and one commit a batch. */
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/limit.h"

enum statement {
    BEGIN,
    COMMIT,
    INSERT,
    HISTORY,
    SERVICES,
    CLAIM,
    LIVE,
    MOVE,
    DELETE,
    TAKE_IDS,
    N_STATEMENTS
};

static const char *const statements[N_STATEMENTS] = {
    [BEGIN] = "BEGIN IMMEDIATE",
    [COMMIT] = "COMMIT",
    [INSERT] = "INSERT INTO job_delay_task (id, trace_id, biz_uuid, service_name, handler, shard, "
               "lane, priority, status, execute_time, next_attempt_time, max_retry, policy, "
               "timeout_ms, payload_json, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, 0, "
               "?6, ?7, 'PENDING', ?8, ?8, ?9, NULL, NULL, ?10, ?11, ?11) "
               "ON CONFLICT (biz_uuid) DO NOTHING",
    [HISTORY] =
        "SELECT " LIMIT_COLUMNS ", finished_at FROM job_delay_task_history WHERE biz_uuid = ?1",
    [SERVICES] =
        "SELECT name, lanes, shards_seen FROM job_service WHERE name = '" LIMIT_SERVICE "'",
    [CLAIM] = "UPDATE job_delay_task SET status = 'SENDING', attempt = attempt + 1, claimed_by = "
              "'" LIMIT_NODE "', claimed_at = ?2, deadline_at = ?3 + coalesce(timeout_ms, ?4), "
              "updated_at = ?2 WHERE id = ?1 AND attempt = 0 AND status IN ('PENDING', 'RETRYING') "
              "AND next_attempt_time <= ?2 RETURNING " LIMIT_COLUMNS ", NULL",
    [LIVE] = "SELECT id, status, attempt, deadline_at, claimed_at FROM job_delay_task "
             "WHERE id = ?1",
    [MOVE] =
        "INSERT INTO job_delay_task_history (id, " LIMIT_FIXED ", status, retry_count, failed_at, "
        "last_error, last_http_status, updated_at, finished_at) SELECT id, " LIMIT_FIXED
        ", 'SUCCESS', retry_count, failed_at, NULL, 200, ?2, ?2 FROM job_delay_task "
        "WHERE id = ?1",
    [DELETE] = "DELETE FROM job_delay_task WHERE id = ?1",
    [TAKE_IDS] = "UPDATE job_id_block SET next_id = next_id + ?1 RETURNING next_id - ?1",
};

struct limit_session {
    sqlite3 *db;
    sqlite3_stmt *stmt[N_STATEMENTS];
};

static _Noreturn void fail(struct limit_session *s)
{
    limit_die("SQLite", sqlite3_errmsg(s->db));
}

static void bind_int(struct limit_session *s, enum statement which, int at, int64_t v)
{
    if (sqlite3_bind_int64(s->stmt[which], at, v))
        fail(s);
}

static void bind_text(struct limit_session *s, enum statement which, int at, const char *z)
{
    if (sqlite3_bind_text(s->stmt[which], at, z, -1, SQLITE_STATIC))
        fail(s);
}

/* Runs it to its end; returns the first column of its last row, or 0. */
static int64_t run(struct limit_session *s, enum statement which)
{
    int64_t found = 0;
    int rc;

    while ((rc = sqlite3_step(s->stmt[which])) == SQLITE_ROW)
        found = sqlite3_column_int64(s->stmt[which], 0);
    if (rc != SQLITE_DONE)
        fail(s);
    (void)sqlite3_reset(s->stmt[which]); /* its result repeats the step's */
    return found;
}

static void run_one(struct limit_session *s, enum statement which)
{
    (void)run(s, which);
    if (sqlite3_changes(s->db) != 1)
        limit_die("SQLite", "a statement did not touch its row");
}

static void insert(struct limit_session *s, const struct limit_row *rows, size_t n, wall_ms due)
{
    wall_ms now = clock_wall();

    (void)run(s, BEGIN);
    for (size_t i = 0; i < n; i++) {
        bind_int(s, INSERT, 1, rows[i].id);
        bind_text(s, INSERT, 2, rows[i].trace_id);
        bind_text(s, INSERT, 3, rows[i].key);
        bind_text(s, INSERT, 4, LIMIT_SERVICE);
        bind_text(s, INSERT, 5, LIMIT_HANDLER);
        bind_int(s, INSERT, 6, LIMIT_LANE);
        bind_int(s, INSERT, 7, LIMIT_PRIORITY);
        bind_int(s, INSERT, 8, due);
        bind_int(s, INSERT, 9, LIMIT_RETRIES);
        bind_text(s, INSERT, 10, rows[i].payload);
        bind_int(s, INSERT, 11, now);
        run_one(s, INSERT);
    }
    for (size_t i = 0; i < n; i++) {
        bind_text(s, HISTORY, 1, rows[i].key);
        (void)run(s, HISTORY);
    }
    (void)run(s, SERVICES);
    (void)run(s, COMMIT);
}

static void claim(struct limit_session *s, int64_t first_id, size_t n)
{
    wall_ms now = clock_wall();

    (void)run(s, BEGIN);
    for (size_t i = 0; i < n; i++) {
        bind_int(s, CLAIM, 1, first_id + (int64_t)i);
        bind_int(s, CLAIM, 2, now);
        bind_int(s, CLAIM, 3, now + LIMIT_MARGIN_MS);
        bind_int(s, CLAIM, 4, LIMIT_TIMEOUT_MS);
        run_one(s, CLAIM);
    }
    (void)run(s, COMMIT);
}

static void finish(struct limit_session *s, int64_t first_id, size_t n)
{
    wall_ms now = clock_wall();

    (void)run(s, BEGIN);
    for (size_t i = 0; i < n; i++) {
        int64_t id = first_id + (int64_t)i;

        bind_int(s, LIVE, 1, id);
        if (run(s, LIVE) != id)
            limit_die("SQLite", "a row is gone");
        bind_int(s, MOVE, 1, id);
        bind_int(s, MOVE, 2, now);
        run_one(s, MOVE);
        bind_int(s, DELETE, 1, id);
        run_one(s, DELETE);
    }
    (void)run(s, COMMIT);
}

static int64_t take_ids(struct limit_session *s, int64_t n)
{
    bind_int(s, TAKE_IDS, 1, n);
    return run(s, TAKE_IDS);
}

static struct limit_session *open_session(const char *url)
{
    static const char settings[] =
        "PRAGMA journal_mode = WAL;PRAGMA synchronous = FULL;PRAGMA cache_size = -1024;"
        "PRAGMA temp_store = MEMORY;PRAGMA wal_autocheckpoint = 2000;"
        "INSERT INTO job_service (name, lanes, created_at, updated_at) "
        "VALUES ('" LIMIT_SERVICE "', 16, 0, 0) ON CONFLICT DO NOTHING";
    struct limit_session *s = calloc(1, sizeof(*s));

    if (!s)
        limit_die("SQLite", "no memory");
    if (sqlite3_open_v2(url + strlen("sqlite:"), &s->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) ||
        sqlite3_busy_timeout(s->db, 60000) || sqlite3_exec(s->db, settings, NULL, NULL, NULL))
        fail(s);
    for (int i = 0; i < N_STATEMENTS; i++) {
        if (sqlite3_prepare_v3(s->db, statements[i], -1, SQLITE_PREPARE_PERSISTENT, &s->stmt[i],
                               NULL))
            fail(s);
    }
    return s;
}

static void close_session(struct limit_session *s)
{
    for (int i = 0; i < N_STATEMENTS; i++)
        (void)sqlite3_finalize(s->stmt[i]);
    (void)sqlite3_close(s->db);
    free(s);
}

static void flush(struct limit_session *s)
{
    (void)s; /* each call is committed when it returns */
}

const struct limit_store limit_sqlite = {
    .scheme = "sqlite:",
    .open = open_session,
    .close = close_session,
    .take_ids = take_ids,
    .insert = insert,
    .claim = claim,
    .finish = finish,
    .flush = flush,
};
