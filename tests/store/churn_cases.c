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

#include "tests/store/rig.h"

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
    atomic_uint n_busy; /* calls of the churners' that were run again */
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

/* For as long as anything may take: with no wait for a key, it takes luck to find ten of them free,
 * and how often one has to look says nothing. */
static bool again(struct churn *c, int rc, mono_ms until)
{
    if ((rc != ERR_BUSY && rc != ERR_EXISTS && rc != ERR_TIMEOUT) || clock_mono() >= until)
        return false;
    if (rc == ERR_TIMEOUT)
        nap(); /* some databases do not wait for another transaction's key */
    (void)atomic_fetch_add(&c->n_busy, 1);
    return true;
}

#define TRY(c, err, expr)                                                                          \
    ({                                                                                             \
        int rc_;                                                                                   \
        mono_ms until_ = clock_mono() + DEADLINE_MS;                                               \
        do {                                                                                       \
            rc_ = (expr);                                                                          \
        } while (again((c), rc_, until_));                                                         \
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

/* Everybody has had a turn, too: a file's lock goes to whoever asks first. */
static bool is_enough(struct churn *c)
{
    return atomic_load(&c->created) >= LIVES && atomic_load(&c->succeeded) &&
           atomic_load(&c->cancelled);
}

static void *run_submitter(void *arg)
{
    struct churner *me = arg;
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (!is_enough(me->c) && clock_mono() < until) {
        if (submit_some(me))
            continue;
        purge_some(me);
        nap();
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

static struct churn *churn_new(struct world *w)
{
    struct churn *c = world_keep(w, calloc(1, sizeof(*c)));

    assert_non_null(c);
    c->w = w;
    c->base = world_now(w) - 1000;
    c->next_id = 1000000000;
    atomic_init(&c->living, SUBMITTERS);
    for (size_t i = 0; i < KEYS; i++)
        (void)snprintf(c->keys[i], sizeof(c->keys[i]), "k%02zu", i);
    return c;
}

enum { CHURNERS = SUBMITTERS + 2 };

static void start_all(struct churn *c, struct churner churners[CHURNERS])
{
    void *(*const runs[CHURNERS])(void *) = {run_submitter, run_submitter, run_worker,
                                             run_canceller};

    for (size_t i = 0; i < CHURNERS; i++) {
        churners[i] = (struct churner){.c = c, .conn = world_connect(c->w), .rng = {i + 1}};
        assert_int_equal(pthread_create(&churners[i].thread, NULL, runs[i], &churners[i]), 0);
    }
}

static void join_all(struct churn *c, struct churner churners[CHURNERS])
{
    for (size_t i = 0; i < CHURNERS; i++)
        assert_int_equal(pthread_join(churners[i].thread, NULL), 0);
    if (c->first_rc)
        fail_msg("%s: %s", err_name(c->first_rc), c->err.text);
}

static void test_keys_under_three_connections(struct world *w)
{
    struct churn *c = churn_new(w);
    struct churner churners[CHURNERS];
    int64_t in_both = 0;

    start_all(c, churners);
    while (!atomic_load(&c->over)) {
        in_both += sql_value(w, BOTH_TABLES);
        nap();
    }
    join_all(c, churners);
    assert_int_equal(in_both, 0);
    judge(w, c);
}

/* ---- The same, with a store's eight threads among them ------------------------------------- */

enum { STREAMS = 16 };

/* What one stream of operations does next: submit a few, claim what was new, end what was won. */
struct stream {
    struct churn *c;
    struct rng *rng;
    struct claim_item claims[BATCH];
    struct finish_item ends[BATCH];
    bool idle;
};

static void post(struct stream *s, struct job *j, void (*on_back)(struct job *j))
{
    j->ctx = s;
    j->on_back = on_back;
    s->idle = false;
    rig_post(j->rig, j);
}

/* No error reaches who asked, whatever was met on the way. */
static bool came_well(struct job *j)
{
    struct stream *s = j->ctx;

    s->idle = true;
    return check(s->c, j->op.rc, &j->op.err);
}

static void on_ended(struct job *j)
{
    struct stream *s = j->ctx;

    if (!came_well(j))
        return;
    for (size_t i = 0; i < j->finish.n; i++) {
        if (s->ends[i].result != FINISH_DONE)
            (void)check(s->c, ERR_CONFLICT, &(struct err){"a claimed task was lost"});
        else if (s->ends[i].kind == FINISH_SUCCESS)
            (void)atomic_fetch_add(&s->c->succeeded, 1);
    }
}

static void on_claimed(struct job *j)
{
    struct stream *s = j->ctx;
    struct job *end;
    size_t n = 0;

    if (!came_well(j))
        return;
    for (size_t i = 0; i < j->claim.n; i++) {
        struct finish_item *f = &s->ends[n];

        if (s->claims[i].result != CLAIM_WON)
            continue;
        (void)world_keep_task(s->c->w, s->claims[i].task);
        *f = finish_of(s->c->w, s->claims[i].id, 1,
                       rng_below(s->rng, 2) ? FINISH_SUCCESS : FINISH_PUT_BACK);
        if (f->kind == FINISH_PUT_BACK)
            f->next_attempt_time = s->c->base;
        n++;
    }
    if (!n)
        return;
    end = rig_job(j->rig, STORE_FINISH);
    end->finish.items = s->ends;
    end->finish.n = n;
    post(s, end, on_ended);
}

static void on_submitted(struct job *j)
{
    struct stream *s = j->ctx;
    struct job *next;
    size_t n = 0;

    if (!came_well(j))
        return;
    for (size_t i = 0; i < j->submit.n; i++) {
        if (j->items[i].result == SUBMIT_CREATED)
            s->claims[n++] = claim_of(j->tasks[i].id, 0);
    }
    (void)atomic_fetch_add(&s->c->created, (int64_t)n);
    if (!n)
        return;
    next = rig_job(j->rig, STORE_CLAIM);
    next->claim.items = s->claims;
    next->claim.n = n;
    next->claim.claimed_by = STR("node-b/1");
    next->claim.margin_ms = MARGIN_MS;
    post(s, next, on_claimed);
}

static void on_cancelled(struct job *j)
{
    struct stream *s = j->ctx;

    if (j->op.rc == ERR_TIMEOUT) { /* others have the key, and nothing was done (storeop.h) */
        s->idle = true;
        (void)atomic_fetch_add(&s->c->n_busy, 1);
        return;
    }
    if (came_well(j) && j->cancel.result == CANCEL_DONE)
        (void)atomic_fetch_add(&s->c->cancelled, 1);
}

static void turn(struct rig *r, struct stream *s)
{
    struct job *j;
    size_t from = rng_below(s->rng, KEYS - BATCH + 1);

    if (rng_below(s->rng, 3) == 0) {
        j = rig_job(r, STORE_CANCEL);
        j->cancel.biz_uuid = str_from(s->c->keys[from]);
        post(s, j, on_cancelled);
        return;
    }
    j = rig_submit_job(r, BATCH);
    for (size_t i = 0; i < BATCH; i++)
        j->tasks[i].biz_uuid = str_from(s->c->keys[from + BATCH - 1 - i]);
    post(s, j, on_submitted);
}

/* Few rows in a transaction, so that many run at once. */
static struct rig *eight_writers(struct world *w)
{
    struct store_config cfg = rig_config(w);

    cfg.connections = 8;
    cfg.batch_rows = BATCH;
    return rig_start(w, cfg, true);
}

static void test_eight_writers(struct world *w)
{
    struct rig *r = eight_writers(w);
    struct churn *c = churn_new(w);
    struct churner churners[CHURNERS];
    struct stream streams[STREAMS] = {0};
    bool counts = (w->backend->has & NEEDS_SERVER) != 0;
    int64_t before = counts ? w->backend->ask_server(w->backend, w->backend->n_deadlocks) : 0;
    struct rng rng = {8};
    struct store_stats stats;

    for (size_t i = 0; i < STREAMS; i++)
        streams[i] = (struct stream){.c = c, .rng = &rng, .idle = true};
    start_all(c, churners);
    while (!atomic_load(&c->over)) {
        for (size_t i = 0; i < STREAMS; i++) {
            if (streams[i].idle)
                turn(r, &streams[i]);
        }
        rig_deliver(r, 1);
    }
    rig_wait(r);
    join_all(c, churners);
    judge(w, c);
    assert_int_equal(sql_value(w, BOTH_TABLES), 0);
    store_stats(r->store, &stats);
    if (counts)
        before = w->backend->ask_server(w->backend, w->backend->n_deadlocks) - before;
    print_message("# %s: %" PRId64 " deadlocks in the server; %" PRIu64
                  " transactions run again inside the store, %u by the other connections; none "
                  "reached who asked\n",
                  w->backend->name, before, stats.retries, atomic_load(&c->n_busy));
}

static const struct test_case cases[] = {
    {"churn: keys under three connections", test_keys_under_three_connections,
     NEEDS_THREADS | NEEDS_SQL},
    {"churn: eight writers and no deadlock surfaces", test_eight_writers,
     NEEDS_THREADS | NEEDS_SQL},
};

const struct case_list churn_cases = CASE_LIST(cases);
