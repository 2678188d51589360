/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that are born, end and are forgotten under three connections at once: a key never stands in
 * both tables, and no acknowledged task is ever lost. Threads only note what they saw. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

#define MAX_BUSY 1000
#define BOTH_TABLES                                                                                \
    "SELECT count(*) FROM job_delay_task AS l JOIN job_delay_task_history AS h "                   \
    "ON l.biz_uuid = h.biz_uuid OR l.id = h.id"

enum { KEYS = 30, BATCH = 10, LIVES = 400, SUBMITTERS = 2 };

struct churn {
    struct world *w;
    char keys[KEYS][8];
    atomic_bool over;   /* the submitters have ended */
    atomic_uint living; /* submitters */
    _Atomic int64_t created;
    _Atomic int64_t succeeded;
    _Atomic int64_t cancelled;
    _Atomic int64_t deleted;
    _Atomic int64_t next_id;
    _Atomic int first_rc;
    struct err err;
    wall_ms base;
};

struct churner {
    pthread_t thread;
    struct churn *c;
    struct driver_conn *conn;
    struct rng rng;
};

static bool check(struct churn *c, int rc, const struct err *err)
{
    int none = 0;

    if (rc && atomic_compare_exchange_strong(&c->first_rc, &none, rc))
        c->err = *err;
    return rc == 0;
}

#define TRY(c, err, expr)                                                                          \
    ({                                                                                             \
        int rc_;                                                                                   \
        int left_ = MAX_BUSY;                                                                      \
        do {                                                                                       \
            rc_ = (expr);                                                                          \
        } while (rc_ == ERR_BUSY && left_--);                                                      \
        check((c), rc_, (err));                                                                    \
    })

/* Returns how many were new. */
static size_t submit_some(struct churner *me)
{
    struct churn *c = me->c;
    size_t from = rng_below(&me->rng, KEYS - BATCH + 1);
    struct task tasks[BATCH];
    struct submit_item items[BATCH];
    struct submit_item *list[BATCH];
    struct err err = {0};
    size_t created = 0;

    for (size_t i = 0; i < BATCH; i++) {
        struct task *t = &tasks[i];

        *t = task_empty();
        t->id = atomic_fetch_add(&c->next_id, 1);
        trace_id_make(t->id, rng_next(&me->rng), t->trace_id);
        t->biz_uuid = str_from(c->keys[from + i]);
        t->service_name = STR("svc");
        t->handler = STR("h");
        t->created_at = t->updated_at = c->base;
        t->execute_time = t->next_attempt_time = c->base;
        t->lane = 4;
        items[i] = (struct submit_item){.task = t};
        items[i].on_conflict = rng_below(&me->rng, 4) ? ON_CONFLICT_RETURN : ON_CONFLICT_REPLACE;
        list[i] = &items[i];
    }
    if (!TRY(c, &err, c->w->d->submit(me->conn, list, BATCH, &err)))
        return 0;
    for (size_t i = 0; i < BATCH; i++) {
        created += items[i].result == SUBMIT_CREATED;
        task_free(items[i].existing);
    }
    (void)atomic_fetch_add(&c->created, (int64_t)created);
    return created;
}

/* Forgets what has ended, so that keys live again. */
static void purge_some(struct churner *me)
{
    struct call_purge c = {.call = {.op = {.kind = STORE_CALL}, .what = CALL_PURGE},
                           .history_before = me->c->base + 3600000,
                           .failed_before = 0,
                           .limit = KEYS};
    struct err err = {0};

    if (TRY(me->c, &err, me->c->w->d->call(me->conn, &c.call, &err)))
        (void)atomic_fetch_add(&me->c->deleted, c.n_deleted);
}

static void *run_submitter(void *arg)
{
    struct churner *me = arg;
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (atomic_load(&me->c->created) < LIVES && clock_mono() < until) {
        if (submit_some(me))
            continue;
        purge_some(me);
        nap(); /* a file's lock goes to whoever asks first */
    }
    if (atomic_fetch_sub(&me->c->living, 1) == 1)
        atomic_store(&me->c->over, true);
    return NULL;
}

static int compare_ids(const void *a, const void *b)
{
    const struct scan_row *x = a;
    const struct scan_row *y = b;

    return x->id > y->id ? 1 : x->id < y->id ? -1 : 0;
}

static void finish_won(struct churner *me, const struct claim_item *claims, size_t n)
{
    struct finish_item ends[BATCH];
    struct finish_item *list[BATCH];
    struct err err = {0};
    size_t won = 0;

    for (size_t i = 0; i < n; i++) {
        if (!claims[i].task)
            continue;
        ends[won] = (struct finish_item){.id = claims[i].id,
                                         .attempt = claims[i].attempt + 1,
                                         .kind = FINISH_SUCCESS,
                                         .from = TASK_IN_FLIGHT,
                                         .next_attempt_time = WALL_NONE,
                                         .outcome = "success"};
        if (rng_below(&me->rng, 3) == 0) {
            ends[won].kind = FINISH_PUT_BACK;
            ends[won].next_attempt_time = me->c->base;
            ends[won].priority = TASK_PRIORITY_DEFAULT;
        }
        list[won] = &ends[won];
        won++;
        task_free(claims[i].task);
    }
    if (!won || !TRY(me->c, &err, me->c->w->d->finish(me->conn, list, won, &err)))
        return;
    for (size_t i = 0; i < won; i++) {
        if (ends[i].kind == FINISH_SUCCESS && ends[i].result == FINISH_DONE)
            (void)atomic_fetch_add(&me->c->succeeded, 1);
        else if (ends[i].result != FINISH_DONE)
            (void)check(me->c, ERR_CONFLICT, &(struct err){"a claimed task was lost"});
    }
}

static void work_some(struct churner *me)
{
    struct scan_key key = {.service_name = STR("svc"),
                           .lane = 4,
                           .from_time = WALL_NONE,
                           .to_time = me->c->base,
                           .limit = BATCH};
    struct scan_op op = {.keys = &key, .n_keys = 1, .claimed_by = STR(NODE)};
    struct claim_item claims[BATCH];
    struct claim_item *list[BATCH];
    struct err err = {0};
    size_t n;

    if (!TRY(me->c, &err, me->c->w->d->scan(me->conn, &op, &err)))
        return;
    n = op.n_rows;
    if (n > 1)
        qsort(op.rows, n, sizeof(*op.rows), compare_ids);
    for (size_t i = 0; i < n; i++) {
        claims[i] = claim_of(op.rows[i].id, op.rows[i].attempt);
        list[i] = &claims[i];
    }
    free(op.rows);
    if (n && TRY(me->c, &err, me->c->w->d->claim(me->conn, list, n, STR(NODE), MARGIN_MS, &err)))
        finish_won(me, claims, n);
}

static void *run_worker(void *arg)
{
    struct churner *me = arg;

    while (!atomic_load(&me->c->over))
        work_some(me);
    return NULL;
}

static void cancel_some(struct churner *me)
{
    size_t from = rng_below(&me->rng, KEYS - 3);
    struct cancel_op ops[3];
    struct cancel_op *list[3];
    struct err err = {0};

    for (size_t i = 0; i < 3; i++) {
        ops[i] = (struct cancel_op){.biz_uuid = str_from(me->c->keys[from + i])};
        list[i] = &ops[i];
    }
    if (!TRY(me->c, &err, me->c->w->d->cancel(me->conn, list, 3, &err)))
        return;
    for (size_t i = 0; i < 3; i++) {
        if (ops[i].result == CANCEL_DONE)
            (void)atomic_fetch_add(&me->c->cancelled, 1);
        task_free(ops[i].task);
    }
}

static void *run_canceller(void *arg)
{
    struct churner *me = arg;

    for (unsigned turn = 0; !atomic_load(&me->c->over); turn++) {
        cancel_some(me);
        if (turn % 5 == 0)
            purge_some(me);
    }
    return NULL;
}

static void judge(struct world *w, const struct churn *c)
{
    int64_t live = sql_value(w, "SELECT count(*) FROM job_delay_task");
    int64_t history = sql_value(w, "SELECT count(*) FROM job_delay_task_history");

    assert_int_equal(sql_value(w, BOTH_TABLES), 0);
    assert_int_equal(c->created, live + history + c->deleted);
    assert_int_equal(c->created, live + c->succeeded + c->cancelled);
    assert_true(c->created >= LIVES); /* keys did live again */
    assert_true(c->succeeded > 0 && c->cancelled > 0);
}

static void test_keys_under_three_connections(struct world *w)
{
    enum { N = SUBMITTERS + 2 };
    struct churn *c = world_keep(w, calloc(1, sizeof(*c)));
    struct churner churners[N];
    void *(*const runs[N])(void *) = {run_submitter, run_submitter, run_worker, run_canceller};
    int64_t in_both = 0;

    assert_non_null(c);
    c->w = w;
    c->base = world_now(w) - 1000;
    c->next_id = 1000000000;
    atomic_init(&c->living, SUBMITTERS);
    for (size_t i = 0; i < KEYS; i++)
        (void)snprintf(c->keys[i], sizeof(c->keys[i]), "k%02zu", i);
    for (size_t i = 0; i < N; i++) {
        churners[i] = (struct churner){.c = c, .conn = world_connect(w), .rng = {i + 1}};
        assert_int_equal(pthread_create(&churners[i].thread, NULL, runs[i], &churners[i]), 0);
    }
    while (!atomic_load(&c->over)) {
        in_both += sql_value(w, BOTH_TABLES);
        nap();
    }
    for (size_t i = 0; i < N; i++)
        assert_int_equal(pthread_join(churners[i].thread, NULL), 0);
    if (c->first_rc)
        fail_msg("%s: %s", err_name(c->first_rc), c->err.text);
    assert_int_equal(in_both, 0);
    judge(w, c);
}

static const struct test_case cases[] = {
    {"churn: keys under three connections", test_keys_under_three_connections,
     NEEDS_THREADS | NEEDS_SQL},
};

const struct case_list churn_cases = CASE_LIST(cases);
