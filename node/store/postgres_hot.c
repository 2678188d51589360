/* SPDX-License-Identifier: Apache-2.0 */
/* Submission, claim and scan, set-wise: one statement handles a whole batch, given as arrays. */
#include "node/store/postgres.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "node/store/judge.h"
#include "node/store/postgres_conn.h"
#include "node/store/rowops.h"
#include "node/store/setops.h"
#include "node/store/task_row.h"

/* ---- Submission --------------------------------------------------------------------------- */

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

/* ---- Claim -------------------------------------------------------------------------------- */

static int on_claimed(void *ctx, const struct sql_value *row)
{
    const struct claim_set *c = ctx;
    struct claim_item *item = claim_set_find(c, row[0].i);

    if (!item)
        return ERR_CORRUPT;
    item->result = CLAIM_WON;
    return task_read(row, &item->task);
}

static int claim_set(struct sql *db, struct claim_set *c, struct str claimed_by, int64_t margin_ms,
                     struct err *err)
{
    /* clang-format off */
    static const char text[] =
        "WITH k(at, who) AS MATERIALIZED (SELECT {now}, $5::text) "
        "UPDATE job_delay_task SET status = 'SENDING', attempt = attempt + 1, claimed_by = "
        "CASE " PG_OF_ID("$4") " WHEN 0 THEN who ELSE who || '/' || " PG_OF_ID("$4") " END, "
        "claimed_at = at, updated_at = at, deadline_at = "
        "at + (coalesce(timeout_ms, " PG_OF_ID("$3") ") + $6::bigint) * interval '1 millisecond' "
        "FROM k WHERE " PG_BY_ID " AND attempt = " PG_OF_ID("$2") " AND "
        "status IN ('PENDING', 'RETRYING') AND coalesce(next_attempt_time, 'infinity') <= at "
        "RETURNING " LIVE_COLUMNS;
    /* clang-format on */
    const struct sql_value scalars[] = {sql_text(claimed_by), sql_int(margin_ms)};
    struct pg_array a[4] = {0};
    int rc;

    for (size_t i = 0; i < 4; i++)
        pg_array_start(&a[i], PG_INT8);
    for (size_t i = 0; i < c->n; i++) {
        pg_array_add(&a[0], c->items[i]->id);
        pg_array_add(&a[1], c->items[i]->attempt);
        pg_array_add(&a[2], c->items[i]->timeout_ms);
        pg_array_add(&a[3], c->items[i]->lease);
    }
    rc = pg_run(db,
                &(struct pg_query){.text = text,
                                   .arrays = a,
                                   .n_arrays = 4,
                                   .scalars = scalars,
                                   .n_scalars = 2,
                                   .on_row = on_claimed,
                                   .ctx = c},
                err);
    pg_arrays_fini(a, 4);
    return rc;
}

/* Without locks: the update has waited for whoever held the rows, and a lock that is taken after
 * those of later rows could be a deadlock. */
static int judge_misses(struct sql *db, struct claim_set *c, struct err *err)
{
    static const char text[] = "SELECT " LIVE_COLUMNS " FROM job_delay_task WHERE id = ANY (?)";
    struct pg_array ids = {0};
    size_t n = 0;
    int rc = 0;

    pg_array_start(&ids, PG_INT8);
    for (size_t i = 0; i < c->n; i++) {
        if (c->items[i]->task)
            continue;
        judge_claim_miss(c->items[i], NULL, c->claimed_by); /* unless a row says otherwise */
        pg_array_add(&ids, c->items[i]->id);
        n++;
    }
    if (n)
        rc = pg_run(
            db,
            &(struct pg_query){
                .text = text, .arrays = &ids, .n_arrays = 1, .on_row = claim_set_on_live, .ctx = c},
            err);
    pg_array_fini(&ids);
    return rc;
}

int pg_claim(struct sql *db, struct claim_item **items, size_t n, struct str claimed_by,
             int64_t margin_ms, struct err *err)
{
    struct claim_set c = {items, n, claimed_by};
    int rc;

    for (size_t i = 0; i < n; i++)
        items[i]->task = NULL;
    rc = claim_set(db, &c, claimed_by, margin_ms, err); /* a transaction of its own */
    if (!rc)
        rc = judge_misses(db, &c, err);
    rc = sql_end(db, rc, err);
    if (rc)
        claim_set_drop(&c);
    return rc;
}

/* ---- Scan --------------------------------------------------------------------------------- */

enum { K_SERVICE, K_SHARD, K_LANE, K_FROM, K_FROM_ID, K_TO, K_LIMIT, K_N };

static void fill_scan(struct pg_array *a, const struct scan_op *op)
{
    for (int i = 0; i < K_N; i++)
        pg_array_start(&a[i], i == K_SERVICE             ? PG_TEXT
                              : i == K_FROM || i == K_TO ? PG_TIMESTAMPTZ
                                                         : PG_INT8);
    for (size_t i = 0; i < op->n_keys; i++) {
        const struct scan_key *k = &op->keys[i];

        pg_array_text(&a[K_SERVICE], k->service_name);
        pg_array_add(&a[K_SHARD], k->shard);
        pg_array_add(&a[K_LANE], k->lane);
        /* Before all that there is; WALL_NONE would be NULL. */
        pg_array_time(&a[K_FROM], k->from_time == WALL_NONE ? WALL_NONE + 1 : k->from_time);
        pg_array_add(&a[K_FROM_ID], k->from_id);
        pg_array_time(&a[K_TO], k->to_time);
        pg_array_add(&a[K_LIMIT], k->limit);
    }
}

/* The nested loop gives the keys' rows in the order of the arrays, which the caller relies on. */
static int on_scan_row(void *ctx, const struct sql_value *row)
{
    struct scan_rows *s = ctx;
    uint32_t key = (uint32_t)(row[0].i - 1);

    if (key < s->key || key >= s->op->n_keys)
        return ERR_CORRUPT;
    s->key = key;
    return scan_add(s, row + 1);
}

int pg_scan(struct sql *db, struct scan_op *op, struct err *err)
{
    static const char text[] =
        "SELECT k.ord, " SCAN_COLUMNS " FROM unnest(?, ?, ?, ?, ?, ?, ?) WITH ORDINALITY "
        "AS k(service, shard_no, lane_no, from_time, from_id, to_time, lim, ord) "
        "CROSS JOIN LATERAL (SELECT " SCAN_COLUMNS " FROM job_delay_task "
        "WHERE service_name = k.service AND shard = k.shard_no AND lane = k.lane_no AND "
        "next_attempt_time >= k.from_time AND (next_attempt_time, id) > (k.from_time, k.from_id) "
        "AND next_attempt_time <= k.to_time AND " SCAN_STATUSES
        " ORDER BY next_attempt_time, id LIMIT k.lim) AS t";
    struct scan_rows s = {.op = op};
    struct pg_array a[K_N] = {0};
    int rc;

    fill_scan(a, op);
    rc = pg_run(db,
                &(struct pg_query){
                    .text = text, .arrays = a, .n_arrays = K_N, .on_row = on_scan_row, .ctx = &s},
                err);
    pg_arrays_fini(a, K_N);
    if (rc) {
        buf_fini(&s.rows);
        return rc;
    }
    op->rows = (struct scan_row *)s.rows.data; /* the buffer's memory is malloc's */
    op->n_rows = s.rows.len / sizeof(struct scan_row);
    return 0;
}
