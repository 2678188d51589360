/* SPDX-License-Identifier: Apache-2.0 */
/* Submission, set-wise, in one of two ways (decision 0015).
 *
 * Bare: a larger batch supposes that all of its keys are free, in history too, and that job_service
 * names its services. One round trip inserts, has the server check the rest, and commits. What is
 * not so fails the whole, and then it and the batches after it go guarded.
 *
 * Guarded: ON CONFLICT goes around taken keys, and what history and job_service say comes back
 * before the commit. */
#include "node/store/postgres.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "node/store/postgres_conn.h"
#include "node/store/task_row.h"

#define BARE_MIN 8       /* rows; the others are not in a hurry */
#define GUARDED_FIRST 64 /* batches that go guarded after one that failed, at least */
#define GUARDED_MAX 4096

enum {
    S_ID,
    S_TRACE,
    S_SERVICE,
    S_HANDLER,
    S_SHARD,
    S_LANE,
    S_PRIORITY,
    S_TIME,
    S_NEXT,
    S_RETRY,
    S_POLICY,
    S_TIMEOUT,
    S_PAYLOAD,
    S_CREATED,
    S_KEY,
    S_N
};

/* What is checked follows the keys. */
enum { S_NAMES = S_N, S_LANES, S_SHARDS, S_ALL };

static void fill_submit(struct pg_array *a, const struct submit_run *run)
{
    static const enum pg_array_type types[S_N] = {
        [S_ID] = PG_INT8,       [S_TRACE] = PG_TEXT,          [S_SERVICE] = PG_TEXT,
        [S_HANDLER] = PG_TEXT,  [S_SHARD] = PG_INT8,          [S_LANE] = PG_INT8,
        [S_PRIORITY] = PG_INT8, [S_TIME] = PG_TIMESTAMPTZ,    [S_NEXT] = PG_TIMESTAMPTZ,
        [S_RETRY] = PG_INT8,    [S_POLICY] = PG_TEXT,         [S_TIMEOUT] = PG_INT8,
        [S_PAYLOAD] = PG_TEXT,  [S_CREATED] = PG_TIMESTAMPTZ, [S_KEY] = PG_TEXT,
    };

    for (int i = 0; i < S_N; i++)
        pg_array_start(&a[i], types[i]);
    for (size_t i = 0; i < run->n_open; i++) {
        const struct task *t = run->slots[run->open[i]].item->task;

        pg_array_add(&a[S_ID], t->id);
        pg_array_text(&a[S_TRACE], str_from(t->trace_id));
        pg_array_text(&a[S_SERVICE], t->service_name);
        pg_array_text(&a[S_HANDLER], t->handler);
        pg_array_add(&a[S_SHARD], t->shard);
        pg_array_add(&a[S_LANE], t->lane);
        pg_array_add(&a[S_PRIORITY], t->priority);
        pg_array_time(&a[S_TIME], t->execute_time);
        pg_array_time(&a[S_NEXT], t->next_attempt_time);
        pg_array_add(&a[S_RETRY], t->max_retry);
        pg_array_text(&a[S_POLICY], t->policy);
        pg_array_add(&a[S_TIMEOUT], t->timeout_ms);
        pg_array_text(&a[S_PAYLOAD], t->payload);
        pg_array_time(&a[S_CREATED], t->created_at);
        pg_array_text(&a[S_KEY], t->biz_uuid);
    }
}

static void fill_services(struct pg_array *a, const struct submit_run *run)
{
    pg_array_start(&a[S_NAMES], PG_TEXT);
    pg_array_start(&a[S_LANES], PG_INT8);
    pg_array_start(&a[S_SHARDS], PG_INT8);
    for (size_t i = 0; i < run->n_services; i++) {
        pg_array_text(&a[S_NAMES], run->services[i].name);
        pg_array_add(&a[S_LANES], run->services[i].lanes);
        pg_array_add(&a[S_SHARDS], run->services[i].shards);
    }
}

struct inserted {
    struct submit_run *run;
    size_t at; /* in open: rows come back in the order in which they went in */
};

static int on_inserted(void *ctx, const struct sql_value *row)
{
    struct inserted *in = ctx;

    for (; in->at < in->run->n_open; in->at++) {
        struct submit_slot *slot = &in->run->slots[in->run->open[in->at]];

        if (slot->item->task->id == row[0].i) {
            slot->inserted = true;
            in->at++;
            return 0;
        }
    }
    return ERR_CORRUPT;
}

static struct sql_value number_text(char dst[24], int64_t v)
{
    (void)snprintf(dst, 24, "%" PRId64, v);
    return sql_textz(dst);
}

/* The patience is set once, before the first row and after the table's lock, for which the wait may
 * be longer. */
#define INSERT                                                                                     \
    "INSERT INTO job_delay_task (id, trace_id, service_name, handler, shard, lane, priority, "     \
    "execute_time, next_attempt_time, max_retry, policy, timeout_ms, payload_json, created_at, "   \
    "biz_uuid, status, updated_at) "                                                               \
    "SELECT a, b, c, d, e, f, g, h, i, j, k, nullif(l, 0), m, n, o, 'PENDING', n "                 \
    "FROM unnest(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "                                    \
    "AS t(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o) "                                           \
    "WHERE (SELECT set_config('lock_timeout', ?, true)) IS NOT NULL "

/* One round trip, the commit included; of several rows there is no second round. ERR_EXISTS:
 * nothing was stored, and the guarded way tells why. */
static int insert_bare(struct sql *db, struct submit_run *run, bool first, struct err *err)
{
    /* Both statements fail, where they do, by a value that is none: the server's log shows its
     * text. The first one looks for what somebody's triggers left out or changed. */
    static const char insert[] =
        "WITH i AS (" INSERT "RETURNING id) SELECT set_config('lock_timeout', CASE "
        "WHEN array_agg(id) = $1 THEN ? "
        "ELSE 'jobflow: a trigger changed rows; the batch runs again' END, true) FROM i";
    /* Like each statement it sees what was committed before it began: also what the first waited
     * for. */
    static const char check[] =
        "SELECT set_config('lock_timeout', CASE "
        "WHEN EXISTS (SELECT FROM job_delay_task_history WHERE biz_uuid = ANY (?)) "
        "OR EXISTS (SELECT FROM unnest(?, ?, ?) AS u(name, lanes, shards) WHERE NOT EXISTS "
        "(SELECT FROM job_service AS s WHERE s.name = u.name AND s.lanes & u.lanes = u.lanes "
        "AND s.shards_seen >= u.shards)) "
        "THEN 'jobflow: a key was used before, or a service, lane or shard is new; "
        "the batch runs again' ELSE current_setting('lock_timeout') END, true)";
    struct pg_array a[S_ALL] = {0};
    char ms[2][24];
    const struct sql_value waits[] = {
        number_text(ms[0], pg_key_ms(conn_of(db), run->patience_ms)),
        number_text(ms[1], pg_lock_ms(conn_of(db))), /* the rest of the transaction */
    };
    const struct pg_query q[] = {
        {.text = insert, .arrays = a, .n_arrays = S_N, .scalars = waits, .n_scalars = 2},
        {.text = check, .arrays = &a[S_KEY], .n_arrays = S_ALL - S_KEY},
    };
    int rc;

    assert(first);
    fill_submit(a, run);
    fill_services(a, run);
    rc = pg_run_and_commit(db, q, 2, err);
    if (rc == ERR_INVALID)
        rc = ERR_EXISTS;
    for (size_t i = 0; !rc && i < run->n_open; i++)
        run->slots[run->open[i]].inserted = true;
    for (size_t i = 0; !rc && i < run->n_services; i++)
        run->services[i].known = true;
    pg_arrays_fini(a, S_ALL);
    return rc;
}

static int insert_guarded(struct sql *db, struct submit_run *run, bool first, struct err *err)
{
    static const char insert[] = INSERT "{or nothing biz_uuid} RETURNING id";
    static const char history[] =
        "SELECT " HISTORY_COLUMNS " FROM job_delay_task_history WHERE biz_uuid = ANY (?)";
    static const char services[] =
        "SELECT name, lanes, shards_seen FROM job_service WHERE name = ANY (?)";
    struct pg_array a[S_ALL] = {0};
    /* The rest of the transaction waits for what others hold as any other does. */
    static const char as_ever[] = "SELECT set_config('lock_timeout', ?, true)";
    struct inserted in = {.run = run};
    char ms[2][24];
    const struct sql_value patience = number_text(ms[0], pg_key_ms(conn_of(db), run->patience_ms));
    const struct sql_value session = number_text(ms[1], pg_lock_ms(conn_of(db)));
    const struct pg_query q[] = {
        {.text = insert,
         .arrays = a,
         .n_arrays = S_N,
         .scalars = &patience,
         .n_scalars = 1,
         .on_row = on_inserted,
         .ctx = &in},
        {.text = as_ever, .scalars = &session, .n_scalars = 1},
        {.text = history,
         .arrays = &a[S_KEY],
         .n_arrays = 1,
         .on_row = submit_on_history,
         .ctx = run},
        {.text = services,
         .arrays = &a[S_NAMES],
         .n_arrays = 1,
         .on_row = submit_on_service,
         .ctx = run},
    };
    int rc;

    for (size_t i = 0; i < run->n_open; i++)
        run->slots[run->open[i]].inserted = false;
    fill_submit(a, run);
    fill_services(a, run);
    rc = pg_run_all(db, q, first ? 4 : 3, err);
    pg_arrays_fini(a, S_ALL);
    return rc;
}

static int find_set(struct sql *db, struct submit_run *run, struct err *err)
{
    static const char live[] =
        "SELECT " LIVE_COLUMNS " FROM job_delay_task WHERE biz_uuid = ANY (?)";
    struct pg_array keys = {0};
    int rc;

    pg_array_start(&keys, PG_TEXT);
    for (size_t i = 0; i < run->n_open; i++)
        pg_array_text(&keys, run->slots[run->open[i]].item->task->biz_uuid);
    rc = pg_run(
        db,
        &(struct pg_query){
            .text = live, .arrays = &keys, .n_arrays = 1, .on_row = submit_on_live, .ctx = run},
        err);
    pg_array_fini(&keys);
    return rc;
}

/* The more often, the longer: each try that fails leaves a line in the server's log. */
static void go_guarded(struct driver_conn *c)
{
    c->n_guarded = c->guard > GUARDED_FIRST ? c->guard : GUARDED_FIRST;
    c->guard = c->n_guarded < GUARDED_MAX ? c->n_guarded * 2 : GUARDED_MAX;
}

int pg_submit(struct sql *db, struct submit_item **items, size_t n, struct err *err)
{
    static const struct submit_ops bare = {.insert = insert_bare, .find = find_set};
    static const struct submit_ops guarded = {.insert = insert_guarded, .find = find_set};
    struct driver_conn *c = conn_of(db);
    int rc;

    if (n < BARE_MIN)
        return submit_batch(db, &guarded, items, n, err);
    if (c->n_guarded) {
        c->n_guarded--;
        return submit_batch(db, &guarded, items, n, err);
    }
    rc = submit_batch(db, &bare, items, n, err);
    if (rc == ERR_EXISTS) {
        go_guarded(c);
        return submit_batch(db, &guarded, items, n, err);
    }
    if (!rc && c->guard > GUARDED_FIRST)
        c->guard--;
    return rc;
}
