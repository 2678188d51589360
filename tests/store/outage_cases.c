/* SPDX-License-Identifier: Apache-2.0 */
/* The server goes away and comes back. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/rig.h"

static void reconnect(struct world *w)
{
    w->conn = world_connect(w);
}

static void test_a_lost_connection_is_unavailable(struct world *w)
{
    struct task t = draft(w, "k");
    struct submit_item item = {.task = &t};
    struct submit_item *list[] = {&item};
    struct call_clock clock = {.call = {.op = {.kind = STORE_CALL}, .what = CALL_CLOCK}};
    struct err err = {0};

    w->backend->disconnect(w->backend, w->url);
    assert_int_equal(w->d->submit(w->conn, list, 1, &err), ERR_UNAVAILABLE);
    assert_true(err.text[0] != '\0');
    assert_int_equal(w->d->call(w->conn, &clock.call, &err), ERR_UNAVAILABLE);
    reconnect(w);
    assert_int_equal(w->d->submit(w->conn, list, 1, &err), 0);
    assert_int_equal(item.result, SUBMIT_CREATED);
}

static void test_a_stopped_server_is_unavailable(struct world *w)
{
    const struct driver_options opt = {.statement_timeout_ms = 1000, .named_statements = true};
    struct driver_conn *conn = NULL;
    struct claim_item item = claim_of(put_key(w, "k"), 0);
    struct claim_item *list[] = {&item};
    char *warning = NULL;
    struct err err = {0};
    int opened;
    int claimed;

    w->backend->stop(w->backend, false);
    claimed = w->d->claim(w->conn, list, 1, STR(NODE), MARGIN_MS, &err);
    opened = w->d->open(w->url, &opt, &conn, &warning, &err);
    free(warning);
    w->backend->start(w->backend);
    assert_int_equal(claimed, ERR_UNAVAILABLE);
    assert_int_equal(opened, ERR_UNAVAILABLE);
    assert_true(err.text[0] != '\0');
    reconnect(w);
    assert_int_equal(w->d->claim(w->conn, list, 1, STR(NODE), MARGIN_MS, &err), 0);
    assert_int_equal(item.result, CLAIM_WON);
    (void)world_keep_task(w, item.task);
}

static void test_people_are_told_at_once(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct job *call = rig_job(r, STORE_CALL);
    struct job *cancel_job = rig_job(r, STORE_CANCEL);
    struct job *submit_job = rig_submit_job(r, 1);
    int rcs[3];

    call->get.call.what = CALL_CLOCK;
    cancel_job->cancel.biz_uuid = STR("k");
    submit_job->tasks[0].biz_uuid = STR("k");
    w->backend->stop(w->backend, true);
    rig_wait_down(r);
    rcs[0] = rig_try(r, submit_job);
    rcs[1] = rig_try(r, cancel_job);
    rcs[2] = rig_try(r, call);
    w->backend->start(w->backend);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(rcs[i], ERR_UNAVAILABLE);
    rig_wait_up(r);
    rig_wait(r);
    assert_true(atomic_load(&r->n_up) >= 2);
    assert_true(atomic_load(&r->n_down) >= 1);
    assert_true(r->down_text[0] != '\0');
    rig_post(r, submit_job);
    rig_wait(r);
    assert_int_equal(submit_job->op.rc, 0);
    reconnect(w);
    assert_non_null(look(w, "k"));
}

static void test_claims_and_ends_wait_for_the_server(struct world *w)
{
    enum { N = 50 };
    struct rig *r = rig_start(w, rig_config(w), true);
    struct job *jobs[2 * N];
    struct task like = draft(w, "like");
    int64_t ids[2 * N];

    put_many(w, "k", 2 * N, &like, ids);
    for (size_t i = N; i < 2 * N; i++)
        (void)claim_won(w, ids[i], 0);
    for (size_t i = 0; i < 2 * N; i++)
        jobs[i] =
            i < N ? rig_claim_job(r, ids[i], 0) : rig_finish_job(r, ids[i], 1, FINISH_SUCCESS);
    w->backend->stop(w->backend, true);
    for (size_t i = 0; i < 2 * N; i++)
        rig_post(r, jobs[i]);
    rig_wait_down(r);
    w->backend->start(w->backend);
    rig_wait(r);
    for (size_t i = 0; i < 2 * N; i++) {
        assert_int_equal(jobs[i]->op.rc, 0);
        if (i < N)
            assert_int_equal(jobs[i]->claim_item.result, CLAIM_WON);
        else
            assert_int_equal(jobs[i]->finish_item.result, FINISH_DONE);
    }
    reconnect(w);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task WHERE status = 'SENDING' "
                                  "AND attempt = 1"),
                     N);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task_history"), N);
}

static void test_waiting_has_an_end(struct world *w)
{
    struct store_config cfg = rig_config(w);
    struct rig *r;
    struct job *j;
    mono_ms until;

    cfg.give_up_ms = 300;
    r = rig_start(w, cfg, true);
    j = rig_claim_job(r, 1, 0);
    w->backend->stop(w->backend, true);
    rig_post(r, j);
    until = clock_mono() + DEADLINE_MS;
    while (!j->back && clock_mono() < until)
        rig_deliver(r, 10);
    w->backend->start(w->backend);
    assert_true(j->back);
    assert_int_equal(j->op.rc, ERR_UNAVAILABLE);
    rig_wait_up(r);
}

static void test_stop_without_a_server(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct job *j = rig_claim_job(r, 1, 0);
    bool back;

    w->backend->stop(w->backend, true);
    rig_post(r, j);
    rig_wait_down(r);
    rig_stop(r);
    back = j->back;
    w->backend->start(w->backend);
    assert_true(back);
    assert_true(j->op.rc == ERR_SHUTDOWN || j->op.rc == ERR_UNAVAILABLE);
}

static void test_the_store_starts_before_the_server(struct world *w)
{
    struct rig *r;
    bool up;

    w->backend->stop(w->backend, false);
    r = rig_start(w, rig_config(w), false);
    while (!atomic_load(&r->n_down))
        nap();
    up = store_is_up(r->store);
    w->backend->start(w->backend);
    assert_false(up);
    rig_wait_up(r);
    assert_false(store_is_fatal(r->store));
    assert_int_equal(atomic_load(&r->n_down), 1);
    assert_int_equal(atomic_load(&r->n_up), 1);
}

/* ---- In the middle of traffic -------------------------------------------------------------- */

enum { STREAMS = 40, STEP = 400 };

struct traffic {
    struct rig *r;
    struct job *streams[STREAMS];
    size_t n_keys;
    size_t n_accepted; /* submissions */
    size_t n_repeated; /* submissions sent again after a refusal or an unknown end */
    size_t n_lost;     /* claims and ends that came back without an answer */
    size_t n_ended;    /* ends of attempts that were acknowledged */
};

static void on_ended(struct job *j)
{
    struct traffic *t = j->ctx;

    t->n_lost += j->op.rc != 0;
    t->n_ended += !j->op.rc && j->finish_item.result == FINISH_DONE;
}

static void on_claimed(struct job *j)
{
    struct traffic *t = j->ctx;
    struct job *end;

    t->n_lost += j->op.rc != 0;
    if (j->op.rc || j->claim_item.result != CLAIM_WON)
        return;
    end = rig_job(t->r, STORE_FINISH);
    end->finish_item = (struct finish_item){.id = j->claim_item.id,
                                            .attempt = 1,
                                            .kind = FINISH_SUCCESS,
                                            .from = TASK_IN_FLIGHT,
                                            .next_attempt_time = WALL_NONE,
                                            .outcome = "success"};
    end->finish.items = &end->finish_item;
    end->finish.n = 1;
    end->ctx = t;
    end->on_back = on_ended;
    rig_post(t->r, end);
}

static void accepted(struct traffic *t, const struct submit_item *item)
{
    struct job *claim;

    t->n_accepted++;
    assert_true(item->result == SUBMIT_CREATED || item->result == SUBMIT_DUPLICATE);
    claim = rig_claim_job(t->r,
                          item->result == SUBMIT_CREATED ? item->task->id : item->existing->id, 0);
    claim->ctx = t;
    claim->on_back = on_claimed;
    rig_post(t->r, claim);
}

/* One turn of a client: a new key after an answer, else the same one again. */
static void turn(struct traffic *t, struct job *j, bool new_keys)
{
    if (j->answered && !new_keys)
        return;
    if (j->answered)
        j->tasks[0].biz_uuid = world_text(t->r->w, "k%05zu", t->n_keys++);
    j->tasks[0].id = 0;
    j->answered = false;
    t->n_repeated += rig_try(t->r, j) != 0;
}

static void run_until(struct traffic *t, size_t n_accepted)
{
    mono_ms until = clock_mono() + 2 * (mono_ms)DEADLINE_MS;
    size_t n_busy;

    do {
        bool new_keys = t->n_accepted < n_accepted;

        if (clock_mono() >= until)
            fail_msg("%zu of %zu accepted, %zu repeated, %zu operations out, the store is %s",
                     t->n_accepted, n_accepted, t->n_repeated, t->r->n_out,
                     store_is_up(t->r->store) ? "up" : "down");
        rig_deliver(t->r, 1);
        n_busy = new_keys;
        for (size_t i = 0; i < STREAMS; i++) {
            struct job *j = t->streams[i];

            if (j->back)
                turn(t, j, new_keys);
            n_busy += !j->answered;
        }
    } while (n_busy);
}

static void on_submitted(struct job *j)
{
    struct traffic *t = j->ctx;

    j->answered = j->op.rc == 0;
    if (j->answered)
        accepted(t, &j->items[0]);
    else
        t->n_repeated++;
}

static void start_traffic(struct traffic *t)
{
    for (size_t i = 0; i < STREAMS; i++) {
        struct job *j = rig_submit_job(t->r, 1);

        j->ctx = t;
        j->on_back = on_submitted;
        j->back = j->answered = true;
        t->streams[i] = j;
    }
}

/* Stops the server while operations are on their way. */
static void interrupt(struct traffic *t, bool crash)
{
    for (size_t i = 0; i < STREAMS; i++) {
        if (t->streams[i]->back)
            turn(t, t->streams[i], true);
    }
    t->r->w->backend->stop(t->r->w->backend, crash);
    t->r->w->backend->start(t->r->w->backend);
}

static void test_restarts_in_the_middle_of_traffic(struct world *w)
{
    struct traffic t = {.r = rig_start(w, rig_config(w), true)};
    struct store_stats stats;

    start_traffic(&t);
    run_until(&t, STEP);
    interrupt(&t, true);
    run_until(&t, 2 * STEP);
    interrupt(&t, false);
    run_until(&t, 3 * STEP);
    rig_wait(t.r);
    store_stats(t.r->store, &stats);
    assert_true(stats.reconnects >= 1);
    reconnect(w);
    assert_int_equal(t.n_accepted, t.n_keys);
    assert_int_equal(t.n_lost, 0);
    assert_int_equal(t.n_ended, t.n_accepted);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 0);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task_history WHERE status = "
                                  "'SUCCESS' AND attempt = 1"),
                     t.n_keys);
    assert_int_equal(sql_value(w, "SELECT count(DISTINCT biz_uuid) FROM job_delay_task_history"),
                     t.n_keys);
}

/* Fail-over may leave us on a server that only reads: on connections that are open, and on new
 * ones. */
static void test_a_read_only_server(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct job *claim = rig_claim_job(r, put_key(w, "k"), 0);
    struct task t = draft(w, "other");
    struct submit_item item = {.task = &t};
    struct submit_item *list[] = {&item};
    mono_ms until = clock_mono() + DEADLINE_MS;
    struct err err = {0};
    int rc;
    bool early;

    w->backend->set_read_only(w->backend, w->url, true);
    do { /* sessions learn it when they next look */
        rc = w->d->submit(w->conn, list, 1, &err);
        task_free(item.existing);
        item.existing = NULL;
    } while (!rc && clock_mono() < until);
    rig_post(r, claim);
    for (int i = 0; i < 100; i++)
        rig_deliver(r, 1);
    early = claim->back;
    w->backend->set_read_only(w->backend, w->url, false);
    assert_int_equal(rc, ERR_UNAVAILABLE);
    assert_false(early);
    rig_wait(r);
    assert_int_equal(claim->op.rc, 0);
    assert_int_equal(claim->claim_item.result, CLAIM_WON);
}

static const struct test_case cases[] = {
    {"outage: a lost connection", test_a_lost_connection_is_unavailable, NEEDS_SERVER},
    {"outage: a stopped server", test_a_stopped_server_is_unavailable, NEEDS_SERVER},
    {"outage: people are told at once", test_people_are_told_at_once, NEEDS_SERVER},
    {"outage: claims and ends wait", test_claims_and_ends_wait_for_the_server, NEEDS_SERVER},
    {"outage: waiting has an end", test_waiting_has_an_end, NEEDS_SERVER},
    {"outage: stop without a server", test_stop_without_a_server, NEEDS_SERVER},
    {"outage: the store starts before the server", test_the_store_starts_before_the_server,
     NEEDS_SERVER},
    {"outage: restarts in the middle of traffic", test_restarts_in_the_middle_of_traffic,
     NEEDS_SERVER},
    {"outage: a read-only server", test_a_read_only_server, NEEDS_SERVER},
};

const struct case_list outage_cases = CASE_LIST(cases);
