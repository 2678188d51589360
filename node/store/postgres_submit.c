/* SPDX-License-Identifier: Apache-2.0 */
/* Submission, set-wise. */
#include "node/store/postgres.h"

#include <inttypes.h>
#include <stdio.h>

#include "node/store/postgres_conn.h"
#include "node/store/task_row.h"

enum {
    S_ID,
    S_TRACE,
    S_KEY,
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
    S_N
};

static void fill_submit(struct pg_array *a, const struct submit_run *run)
{
    static const enum pg_array_type types[S_N] = {
        [S_ID] = PG_INT8,          [S_TRACE] = PG_TEXT,    [S_KEY] = PG_TEXT,
        [S_SERVICE] = PG_TEXT,     [S_HANDLER] = PG_TEXT,  [S_SHARD] = PG_INT8,
        [S_LANE] = PG_INT8,        [S_PRIORITY] = PG_INT8, [S_TIME] = PG_TIMESTAMPTZ,
        [S_NEXT] = PG_TIMESTAMPTZ, [S_RETRY] = PG_INT8,    [S_POLICY] = PG_TEXT,
        [S_TIMEOUT] = PG_INT8,     [S_PAYLOAD] = PG_TEXT,  [S_CREATED] = PG_TIMESTAMPTZ,
    };

    for (int i = 0; i < S_N; i++)
        pg_array_start(&a[i], types[i]);
    for (size_t i = 0; i < run->n_open; i++) {
        const struct task *t = run->slots[run->open[i]].item->task;

        pg_array_add(&a[S_ID], t->id);
        pg_array_text(&a[S_TRACE], str_from(t->trace_id));
        pg_array_text(&a[S_KEY], t->biz_uuid);
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

static int insert_and_look(struct sql *db, struct submit_run *run, bool first, struct err *err)
{
    static const char insert[] =
        "INSERT INTO job_delay_task (id, trace_id, biz_uuid, service_name, handler, shard, lane, "
        "priority, execute_time, next_attempt_time, max_retry, policy, timeout_ms, "
        "payload_json, created_at, status, updated_at) "
        "SELECT a, b, c, d, e, f, g, h, i, j, k, l, nullif(m, 0), n, o, 'PENDING', o "
        "FROM unnest(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "AS t(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o) "
        /* Once, before the first row and after the table's lock, for which the wait may be longer.
         */
        "WHERE (SELECT set_config('lock_timeout', ?, true)) IS NOT NULL "
        "{or nothing biz_uuid} RETURNING id";
    static const char history[] =
        "SELECT " HISTORY_COLUMNS " FROM job_delay_task_history WHERE biz_uuid = ANY (?)";
    static const char services[] =
        "SELECT name, lanes, shards_seen FROM job_service WHERE name = ANY (?)";
    struct pg_array a[S_N] = {0};
    struct pg_array names = {0};
    struct inserted in = {.run = run};
    /* The rest of the transaction waits for what others hold as any other does. */
    static const char as_ever[] = "SELECT set_config('lock_timeout', ?, true)";
    char ms[2][24];
    const struct sql_value patience = number_text(ms[0], pg_key_ms(conn_of(db), run->patience_ms));
    const struct sql_value session = number_text(ms[1], pg_lock_ms(conn_of(db)));
    /* Each statement sees what was committed before it began: the second what the first waited for.
     */
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
         .arrays = &names,
         .n_arrays = 1,
         .on_row = submit_on_service,
         .ctx = run},
    };
    int rc;

    for (size_t i = 0; i < run->n_open; i++)
        run->slots[run->open[i]].inserted = false;
    fill_submit(a, run);
    pg_array_start(&names, PG_TEXT);
    for (size_t i = 0; i < run->n_services; i++)
        pg_array_text(&names, run->services[i].name);
    rc = pg_run_all(db, q, first ? 4 : 3, err);
    pg_array_fini(&names);
    pg_arrays_fini(a, S_N);
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

const struct submit_ops pg_submit_ops = {.insert = insert_and_look, .find = find_set};
