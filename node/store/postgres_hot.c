/* SPDX-License-Identifier: Apache-2.0 */
/* Claim and scan, set-wise: one statement handles a whole batch, given as arrays. */
#include "node/store/postgres.h"

#include "node/store/judge.h"
#include "node/store/postgres_conn.h"
#include "node/store/rowops.h"
#include "node/store/setops.h"
#include "node/store/task_row.h"

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
