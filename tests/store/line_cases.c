/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for keys that others' transactions have, and who stands in line for it: there is always
 * a thread for the rest of the work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "node/store/worker.h"
#include "tests/store/rig.h"
#include "tests/store/world.h"

enum { N_HELD = 30, N_CLAIMS = 20, N_THREADS = 4 };

/* A transaction that has the keys held0000, held0001, …, whose tasks are not there yet. */
static void *hold_new_keys(struct world *w, int n)
{
    const char *fmt = w->backend->has & NEEDS_POSTGRES
                          ? "%sSELECT jobflow_submit('held%04d', 'svc', 'h')"
                          : "%sCALL jobflow_submit('held%04d', 'svc', 'h', '1', NULL, NULL, NULL, "
                            "NULL, NULL, NULL, @t, @d)";
    struct str text = STR("");

    for (int i = 0; i < n; i++)
        text = world_text(w, fmt, i ? world_text(w, STR_FMT ";", STR_ARG(text)).p : "", i);
    return w->backend->hold(w->url, text.p);
}

static struct job *submit_held(struct rig *r, int i)
{
    struct job *j = rig_submit_job(r, 1);

    j->tasks[0].biz_uuid = world_text(r->w, "held%04d", i);
    rig_post(r, j);
    return j;
}

/* What the threads do about keys. */
struct sample {
    uint32_t n_waiting;
    uint32_t n_in_line;
    bool submits_wait; /* in the queue */
};

static struct sample look_at(struct store *s)
{
    struct sample now;

    pthread_mutex_lock(&s->lock);
    now = (struct sample){s->n_waiting, s->n_in_line, s->queue.lanes[LANE_SUBMIT].n_ops > 0};
    pthread_mutex_unlock(&s->lock);
    return now;
}

/* What was seen while submissions of held keys came one by one, and claims one after the other. */
struct course {
    struct job *held[N_HELD];
    int n_held;
    struct job *claims[N_CLAIMS];
    int n_claims;
    uint32_t most;      /* threads that waited or stood in line, at one time */
    unsigned went_past; /* claims that came back while others waited and stood in line */
};

static void run_course(struct rig *r, const int64_t *ids, struct course *c)
{
    mono_ms until = clock_mono() + DEADLINE_MS;
    struct job *last = NULL;

    while (clock_mono() < until && (c->n_held < N_HELD || c->n_claims < N_CLAIMS || !last->back)) {
        struct sample now = look_at(r->store);

        c->most = now.n_waiting + now.n_in_line > c->most ? now.n_waiting + now.n_in_line : c->most;
        if (c->n_held < N_HELD && !now.submits_wait) {
            c->held[c->n_held] = submit_held(r, c->n_held);
            c->n_held++;
        }
        if (c->most >= N_THREADS - 1 && c->n_claims < N_CLAIMS && (!last || last->back)) {
            c->went_past += last && now.n_waiting + now.n_in_line == N_THREADS - 1;
            last = rig_claim_job(r, ids[c->n_claims], 0);
            c->claims[c->n_claims++] = last;
            rig_post(r, last);
        }
        rig_deliver(r, 1);
    }
}

static void test_the_last_thread_works(struct world *w)
{
    struct store_config cfg = rig_config(w);
    struct task like = draft(w, "like");
    struct course c = {.n_held = 0};
    int64_t ids[N_CLAIMS];
    struct rig *r;
    void *holder;

    cfg.connections = N_THREADS;
    put_many(w, "free", N_CLAIMS, &like, ids);
    r = rig_start(w, cfg, true);
    holder = hold_new_keys(w, N_HELD);
    run_course(r, ids, &c);
    w->backend->release(holder, false);
    rig_wait(r);
    assert_int_equal(c.most, N_THREADS - 1);
    assert_true(c.went_past > 0);
    assert_int_equal(c.n_claims, N_CLAIMS);
    for (int i = 0; i < N_CLAIMS; i++)
        assert_int_equal(c.claims[i]->claim_item.result, CLAIM_WON);
    for (int i = 0; i < c.n_held; i++)
        assert_int_equal(c.held[i]->op.rc, 0);
}

/* It answers soon; but not so soon that a lock of a moment's has no chance to go. */
static void test_one_connection(struct world *w)
{
    struct store_config cfg = rig_config(w);
    struct job *claim;
    struct job *held;
    struct rig *r;
    uint32_t most = 0;
    mono_ms began;
    void *holder;
    int64_t id = put_key(w, "free");

    cfg.connections = 1;
    r = rig_start(w, cfg, true);
    holder = hold_new_keys(w, 1);
    began = clock_mono();
    held = submit_held(r, 0);
    while (!held->back && clock_mono() < began + DEADLINE_MS) {
        struct sample now = look_at(r->store);

        most = now.n_waiting + now.n_in_line > most ? now.n_waiting + now.n_in_line : most;
        rig_deliver(r, 1);
    }
    began = clock_mono() - began;
    claim = rig_claim_job(r, id, 0);
    rig_post(r, claim);
    rig_wait(r);
    w->backend->release(holder, false);
    assert_int_equal(most, 0);
    assert_int_equal(held->op.rc, 0);
    assert_int_equal(held->items[0].result, SUBMIT_BUSY);
    assert_true(began >= KEY_PATIENCE_MANY_MS);
    assert_int_equal(claim->claim_item.result, CLAIM_WON);
}

/* As of somebody who makes an index: no key is anybody's, and the wait is that for any lock. */
static void test_a_held_table_is_no_key(struct world *w)
{
    static const char *const tables[] = {"job_delay_task", "job_delay_task_history"};
    const struct driver_options options = {.statement_timeout_ms = 300, .named_statements = true};
    struct cancel_op op = {.op.kind = STORE_CANCEL, .biz_uuid = STR("k")};
    struct cancel_op *list[] = {&op};
    struct err err = {0};

    (void)put_key(w, "k");
    w->conn = world_connect_to(w, w->url, &options, NULL);
    w->d->set_key_patience(w->conn, 1);
    for (size_t i = 0; i < 2; i++) {
        struct str text = world_text(w, "LOCK TABLE %s IN SHARE MODE", tables[i]);
        void *holder = w->backend->hold(w->url, text.p);
        int rc = w->d->cancel(w->conn, list, 1, &err);

        w->backend->release(holder, false);
        assert_int_equal(rc, ERR_BUSY);
        assert_true(w->d->met_lock(w->conn));
    }
    assert_int_equal(w->d->cancel(w->conn, list, 1, &err), 0);
    (void)world_keep_task(w, op.task);
    assert_int_equal(op.result, CANCEL_DONE);
}

static const struct test_case cases[] = {
    {"sqlsubmit: the last thread works", test_the_last_thread_works, NEEDS_POSTGRES},
    {"sqlsubmit: the last thread works", test_the_last_thread_works, NEEDS_MYSQL},
    {"sqlsubmit: one connection", test_one_connection, NEEDS_POSTGRES},
    {"sqlsubmit: one connection", test_one_connection, NEEDS_MYSQL},
    {"sqlsubmit: a held table is no key", test_a_held_table_is_no_key, NEEDS_POSTGRES},
};

const struct case_list line_cases = CASE_LIST(cases);
