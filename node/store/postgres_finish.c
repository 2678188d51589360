/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of attempts and cancels, set-wise. Successes are one statement: DELETE … RETURNING into
 * INSERT. The others are locked in id order first, then judged, and written together. In a batch of
 * both all are locked first, since locks that are taken in another order are deadlocks. What a
 * statement did not answer goes row by row. */
#include "node/store/postgres.h"

#include <stdlib.h>

#include "node/store/judge.h"
#include "node/store/rowops.h"
#include "node/store/setops.h"
#include "node/store/task_row.h"

struct ends {
    struct finish_item **items; /* by id */
    struct task *live;          /* of each: what the lock found; id 0 = no such row */
    bool *done;
    size_t n;
};

/* The position of an id among the items, or n. */
static size_t end_at(const struct ends *e, int64_t id)
{
    size_t low = 0;
    size_t high = e->n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (e->items[mid]->id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < e->n && e->items[low]->id == id ? low : e->n;
}

static int on_done(void *ctx, const struct sql_value *row)
{
    struct ends *e = ctx;
    size_t at = end_at(e, row[0].i);

    if (at == e->n)
        return ERR_CORRUPT;
    e->done[at] = true;
    return 0;
}

/* ---- Successes ---------------------------------------------------------------------------- */

static int finish_successes(struct sql *db, struct ends *e, struct err *err)
{
    /* clang-format off */
    static const char text[] =
        "WITH d AS (DELETE FROM job_delay_task WHERE " PG_BY_ID " AND "
        "attempt = " PG_OF_ID("$2") " AND "
        "(CASE status WHEN 'SENDING' THEN 2 WHEN 'SENT' THEN 4 ELSE 0 END & "
        PG_OF_ID("$3") ") <> 0 AND (" PG_OF_ID("$4") " = 0 OR deadline_at <= {now}) "
        "RETURNING *, nullif(" PG_OF_ID("$5") ", 0) AS f_http) "
        INSERT_HISTORY("'SUCCESS'", "retry_count", "failed_at", "NULL", "f_http", "{now}", "d")
        " RETURNING id";
    /* clang-format on */
    struct pg_array a[5] = {0};
    int rc = 0;

    _Static_assert(1 << TASK_SENDING == 2 && 1 << TASK_SENT == 4, "the statement says so");
    for (size_t i = 0; i < 5; i++)
        pg_array_start(&a[i], PG_INT8);
    for (size_t i = 0; i < e->n; i++) {
        const struct finish_item *f = e->items[i];

        if (f->kind != FINISH_SUCCESS)
            continue;
        pg_array_add(&a[0], f->id);
        pg_array_add(&a[1], f->attempt);
        pg_array_add(&a[2], f->from);
        pg_array_add(&a[3], f->past_deadline);
        pg_array_add(&a[4], f->http_status);
    }
    if (a[0].n)
        rc = pg_run(db,
                    &(struct pg_query){
                        .text = text, .arrays = a, .n_arrays = 5, .on_row = on_done, .ctx = e},
                    err);
    pg_arrays_fini(a, 5);
    return rc;
}

/* ---- The others --------------------------------------------------------------------------- */

static int on_locked(void *ctx, const struct sql_value *row)
{
    struct ends *e = ctx;
    size_t at = end_at(e, row[0].i);
    struct task *t = at < e->n ? &e->live[at] : NULL;

    return t ? task_from_brief(row, t) : ERR_CORRUPT;
}

static int lock_rows(struct sql *db, struct ends *e, struct err *err)
{
    static const char text[] = "SELECT " BRIEF_COLUMNS " "
                               "FROM job_delay_task WHERE id = ANY (?) ORDER BY id FOR UPDATE";
    struct pg_array ids = {0};
    int rc;

    pg_array_start(&ids, PG_INT8);
    for (size_t i = 0; i < e->n; i++)
        pg_array_add(&ids, e->items[i]->id);
    rc = pg_run(db,
                &(struct pg_query){
                    .text = text, .arrays = &ids, .n_arrays = 1, .on_row = on_locked, .ctx = e},
                err);
    pg_array_fini(&ids);
    return rc;
}

enum {
    W_ID,
    W_STATUS,
    W_NEXT,
    W_DEADLINE,
    W_RETRY,
    W_LANE,
    W_KEEPS,
    W_FAILED,
    W_ERROR,
    W_HTTP,
    W_SNOOZE,
    W_N
};
enum { A_ID, A_ATTEMPT, A_STARTED, A_HTTP, A_OUTCOME, A_ERROR, A_NODE, A_N };

static void fill_write(struct pg_array *w, const struct finish_item *f,
                       const struct finish_write *write)
{
    pg_array_add(&w[W_ID], f->id);
    pg_array_text(&w[W_STATUS], str_from(task_status_name(write->status)));
    pg_array_time(&w[W_NEXT], write->next_attempt_time);
    pg_array_time(&w[W_DEADLINE], write->deadline_at);
    pg_array_add(&w[W_RETRY], write->retry_count);
    pg_array_add(&w[W_LANE], write->lane);
    pg_array_add(&w[W_KEEPS], write->keeps_claim);
    pg_array_add(&w[W_FAILED], write->failed);
    pg_array_text(&w[W_ERROR], f->error.len ? f->error : (struct str){0});
    pg_array_add(&w[W_HTTP], f->http_status);
    pg_array_add(&w[W_SNOOZE], f->snoozed);
}

static void fill_attempt(struct pg_array *a, const struct finish_item *f, wall_ms started)
{
    pg_array_add(&a[A_ID], f->id);
    pg_array_add(&a[A_ATTEMPT], f->attempt);
    pg_array_time(&a[A_STARTED], started);
    pg_array_add(&a[A_HTTP], f->http_status);
    pg_array_text(&a[A_OUTCOME], str_from(f->outcome));
    pg_array_text(&a[A_ERROR], f->error);
    pg_array_text(&a[A_NODE], f->node);
}

static int run_arrays(struct sql *db, const char *text, struct pg_array *a, size_t n,
                      struct err *err)
{
    if (!a[0].n)
        return 0;
    return pg_run(db, &(struct pg_query){.text = text, .arrays = a, .n_arrays = n}, err);
}

/* Likewise, with the time of the writes behind the arrays. */
static int run_timed(struct sql *db, const char *text, struct pg_array *a, size_t n, wall_ms now,
                     struct err *err)
{
    const struct sql_value at = sql_time(now);

    if (!a[0].n)
        return 0;
    return pg_run(db,
                  &(struct pg_query){
                      .text = text, .arrays = a, .n_arrays = n, .scalars = &at, .n_scalars = 1},
                  err);
}

struct writes {
    struct pg_array w[W_N];
    struct pg_array a[A_N];
    struct pg_array alerts[2];
};

static void writes_start(struct writes *s)
{
    static const enum pg_array_type w_types[W_N] = {
        PG_INT8, PG_TEXT, PG_TIMESTAMPTZ, PG_TIMESTAMPTZ, PG_INT8, PG_INT8,
        PG_INT8, PG_INT8, PG_TEXT,        PG_INT8,        PG_INT8,
    };
    static const enum pg_array_type a_types[A_N] = {PG_INT8, PG_INT8, PG_TIMESTAMPTZ, PG_INT8,
                                                    PG_TEXT, PG_TEXT, PG_TEXT};

    for (int i = 0; i < W_N; i++)
        pg_array_start(&s->w[i], w_types[i]);
    for (int i = 0; i < A_N; i++)
        pg_array_start(&s->a[i], a_types[i]);
    for (int i = 0; i < 2; i++)
        pg_array_start(&s->alerts[i], PG_INT8);
}

static int writes_run(struct sql *db, struct writes *s, wall_ms now, struct err *err)
{
    static const char update[] =
        "UPDATE job_delay_task SET status = b, next_attempt_time = c, deadline_at = d, "
        "retry_count = CASE WHEN e < 0 THEN retry_count ELSE e END, "
        "lane = CASE WHEN f < 0 THEN lane ELSE f END, "
        "claimed_by = CASE g WHEN 1 THEN claimed_by END, "
        "claimed_at = CASE g WHEN 1 THEN claimed_at END, "
        "failed_at = CASE h WHEN 1 THEN at END, "
        "last_error = coalesce(i, last_error), "
        "last_http_status = coalesce(nullif(j, 0), last_http_status), "
        "snooze_count = snooze_count + k, updated_at = at "
        "FROM unnest(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) AS w(a, b, c, d, e, f, g, h, i, j, k), "
        "(SELECT ?::timestamptz) AS now(at) WHERE id = a AND " PG_BY_ID;
    static const char attempts[] =
        "INSERT INTO job_attempt (task_id, attempt, started_at, ended_at, http_status, outcome, "
        "error, node) SELECT a, b, c, at, nullif(d, 0), e, f, g "
        "FROM unnest(?, ?, ?, ?, ?, ?, ?) AS t(a, b, c, d, e, f, g), "
        "(SELECT ?::timestamptz) AS now(at)";
    static const char alerts[] = "INSERT INTO job_alert (task_id, attempt, next_try) "
                                 "SELECT a, b, at FROM unnest(?, ?) AS t(a, b), "
                                 "(SELECT ?::timestamptz) AS now(at)";
    int rc = run_timed(db, update, s->w, W_N, now, err);

    if (!rc)
        rc = run_timed(db, attempts, s->a, A_N, now, err);
    return rc ? rc : run_timed(db, alerts, s->alerts, 2, now, err);
}

static int finish_others(struct sql *db, struct ends *e, struct err *err)
{
    struct writes s = {0};
    wall_ms now;
    int rc = sql_now(db, &now, err);

    writes_start(&s);
    for (size_t i = 0; !rc && i < e->n; i++) {
        const struct finish_item *f = e->items[i];
        struct finish_write write;

        if (f->kind == FINISH_SUCCESS || !e->live[i].id || !judge_can_finish(f, &e->live[i], now))
            continue;
        e->done[i] = true;
        judge_finish_write(f, &write);
        fill_write(s.w, f, &write);
        if (write.adds_attempt)
            fill_attempt(s.a, f, e->live[i].claimed_at);
        if (write.adds_alert) {
            pg_array_add(&s.alerts[0], f->id);
            pg_array_add(&s.alerts[1], f->attempt);
        }
    }
    if (!rc)
        rc = writes_run(db, &s, now, err);
    pg_arrays_fini(s.w, W_N);
    pg_arrays_fini(s.a, A_N);
    pg_arrays_fini(s.alerts, 2);
    return rc;
}

static size_t n_successes(struct finish_item *const *items, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += items[i]->kind == FINISH_SUCCESS;
    return count;
}

int pg_finish(struct sql *db, struct finish_item **items, size_t n, struct err *err)
{
    struct ends e = {.items = items,
                     .live = calloc(n, sizeof(struct task)),
                     .done = calloc(n, sizeof(bool)),
                     .n = n};
    bool mixed = n_successes(items, n) < n; /* else one statement does it */
    int rc = 0;

    if (!e.live || !e.done)
        rc = err_set(err, ERR_NOMEM, "no memory for a batch");
    else if (mixed)
        rc = db->d->begin(db, err);
    if (!rc && mixed)
        rc = lock_rows(db, &e, err);
    if (!rc)
        rc = finish_successes(db, &e, err);
    if (!rc && mixed)
        rc = finish_others(db, &e, err);
    for (size_t i = 0; !rc && i < n; i++) {
        if (e.done[i])
            items[i]->result = FINISH_DONE;
        else
            rc = row_finish_miss(db, items[i], err);
    }
    rc = sql_end(db, rc, err);
    free(e.live);
    free(e.done);
    return rc;
}

/* ---- Cancels ------------------------------------------------------------------------------ */

/* Locks the live rows and keeps them. In id order, as all that locks several rows does. */
static int lock_live(struct sql *db, struct cancel_set *c, struct err *err)
{
    static const char text[] = "SELECT " LIVE_COLUMNS " FROM job_delay_task "
                               "WHERE biz_uuid = ANY (?) ORDER BY id FOR UPDATE";
    struct pg_array keys = {0};
    int rc;

    pg_array_start(&keys, PG_TEXT);
    for (size_t i = 0; i < c->n; i++)
        pg_array_text(&keys, c->items[i]->biz_uuid);
    rc = pg_run(
        db,
        &(struct pg_query){
            .text = text, .arrays = &keys, .n_arrays = 1, .on_row = cancel_set_on_live, .ctx = c},
        err);
    pg_array_fini(&keys);
    return rc;
}

static int write_cancels(struct sql *db, struct cancel_set *c, struct pg_array *ids,
                         struct err *err)
{
    static const char insert[] = INSERT_HISTORY(
        "'CANCELLED'", "retry_count", "failed_at", "last_error", "last_http_status", "{now}",
        "job_delay_task WHERE id = ANY (?)") " RETURNING biz_uuid, updated_at, finished_at";
    int rc = pg_run(db,
                    &(struct pg_query){.text = insert,
                                       .arrays = ids,
                                       .n_arrays = 1,
                                       .on_row = cancel_set_on_cancelled,
                                       .ctx = c},
                    err);

    if (!rc)
        rc = run_arrays(db, "DELETE FROM job_delay_task WHERE id = ANY (?)", ids, 1, err);
    return rc ? rc : run_arrays(db, "DELETE FROM job_alert WHERE task_id = ANY (?)", ids, 1, err);
}

static int cancel_set(struct sql *db, struct cancel_set *c, struct err *err)
{
    struct pg_array ids = {0};
    int rc = lock_live(db, c, err);

    pg_array_start(&ids, PG_INT8);
    for (size_t i = 0; !rc && i < c->n; i++) {
        struct cancel_op *op = c->items[i];

        if (!op->task) {
            rc = row_cancel_one(db, op, err);
            continue;
        }
        op->result = judge_cancel(op->task);
        if (op->result == CANCEL_DONE)
            pg_array_add(&ids, op->task->id);
    }
    if (!rc && ids.n)
        rc = write_cancels(db, c, &ids, err);
    pg_array_fini(&ids);
    return rc;
}

int pg_cancel(struct sql *db, struct cancel_op **items, size_t n, struct err *err)
{
    struct cancel_set c = {items, n};
    int rc = cancel_set_begin(&c, db, err);

    if (!rc)
        rc = cancel_set(db, &c, err);
    return cancel_set_end(&c, db, rc, err);
}
