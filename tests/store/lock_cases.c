/* SPDX-License-Identifier: Apache-2.0 */
/* Locks that others hold: the wait ends, the work is done again, and once. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/store/actors.h"
#include "tests/store/rig.h"

/* ---- Longer than a statement may wait ------------------------------------------------------ */

enum { EACH = 5, TIMEOUT_SHORT_MS = 200, RETRIES = 6 };

/* Some operations of each kind that writes. */
struct errands {
    int64_t ids[3 * EACH]; /* to be claimed, ended, cancelled */
    struct job *submits[EACH];
    struct job *claims[EACH];
    struct job *ends[EACH];
    struct job *cancels[EACH];
};

static struct rig *impatient(struct world *w)
{
    struct store_config cfg = rig_config(w);

    cfg.driver.statement_timeout_ms = TIMEOUT_SHORT_MS;
    cfg.connections = 4;
    return rig_start(w, cfg, true);
}

static void errands_make(struct world *w, struct rig *r, struct errands *e)
{
    struct task like = draft(w, "like");

    put_many(w, "k", 3 * EACH, &like, e->ids);
    for (size_t i = 0; i < EACH; i++) {
        e->submits[i] = rig_submit_job(r, 1);
        e->submits[i]->tasks[0].biz_uuid = world_text(w, "new%zu", i);
        e->claims[i] = rig_claim_job(r, e->ids[i], 0);
        (void)claim_won(w, e->ids[EACH + i], 0);
        e->ends[i] = rig_finish_job(r, e->ids[EACH + i], 1, FINISH_RETRY);
        e->cancels[i] = rig_job(r, STORE_CANCEL);
        e->cancels[i]->cancel.biz_uuid = world_text(w, "k%04zu", 2 * EACH + i);
    }
}

static void errands_post(struct rig *r, const struct errands *e)
{
    for (size_t i = 0; i < EACH; i++) {
        rig_post(r, e->submits[i]);
        rig_post(r, e->claims[i]);
        rig_post(r, e->ends[i]);
        rig_post(r, e->cancels[i]);
    }
}

/* Until transactions have given up their wait so many times. */
static bool wait_for_retries(struct rig *r, uint64_t n)
{
    mono_ms until = clock_mono() + DEADLINE_MS;
    struct store_stats stats;

    do {
        rig_deliver(r, 10);
        store_stats(r->store, &stats);
    } while (stats.retries < n && clock_mono() < until);
    return stats.retries >= n;
}

static void errands_judge(struct world *w, const struct errands *e)
{
    for (size_t i = 0; i < EACH; i++) {
        struct call_get c = look_attempts(w, e->ids[EACH + i]);

        assert_int_equal(e->submits[i]->op.rc, 0);
        assert_int_equal(e->submits[i]->items[0].result, SUBMIT_CREATED);
        assert_int_equal(e->claims[i]->op.rc, 0);
        assert_int_equal(e->claims[i]->claim_item.result, CLAIM_WON);
        assert_same_task(look_id(w, e->ids[i]), e->claims[i]->claim_item.task);
        assert_int_equal(e->claims[i]->claim_item.task->attempt, 1);
        assert_int_equal(e->ends[i]->op.rc, 0);
        assert_int_equal(e->ends[i]->finish_item.result, FINISH_DONE);
        assert_int_equal(c.task->status, TASK_RETRYING);
        assert_int_equal(c.n_attempts, 1);
        assert_int_equal(e->cancels[i]->op.rc, 0);
        assert_int_equal(e->cancels[i]->cancel.result, CANCEL_DONE);
    }
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 3 * EACH);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task_history"), EACH);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_attempt"), EACH);
}

static void test_a_lock_on_all(struct world *w)
{
    struct rig *r = impatient(w);
    struct errands e;
    bool retried;
    void *held;

    errands_make(w, r, &e);
    held = w->backend->hold(w->url, w->backend->lock_tasks);
    errands_post(r, &e);
    retried = wait_for_retries(r, RETRIES);
    w->backend->release(held, false);
    assert_true(retried);
    rig_wait(r);
    errands_judge(w, &e);
    assert_int_equal(atomic_load(&r->n_down), 0);
}

static bool wait_for_answer(struct rig *r, const struct job *j)
{
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (!j->back && clock_mono() < until)
        rig_deliver(r, 10);
    return j->back;
}

/* Of each kind one row; its batch waits. But people are told, and ask again. */
static void test_a_lock_on_rows(struct world *w)
{
    struct rig *r = impatient(w);
    struct errands e;
    bool retried;
    bool told;
    void *held;

    errands_make(w, r, &e);
    held = w->backend->hold(w->url, "UPDATE job_delay_task SET updated_at = updated_at "
                                    "WHERE biz_uuid IN ('k0000', 'k0005', 'k0010')");
    errands_post(r, &e);
    told = wait_for_answer(r, e.cancels[0]);
    retried = wait_for_retries(r, RETRIES);
    w->backend->release(held, false);
    assert_true(told && retried);
    assert_int_equal(e.cancels[0]->op.rc, ERR_TIMEOUT);
    rig_post(r, e.cancels[0]);
    rig_wait(r);
    errands_judge(w, &e);
    assert_int_equal(atomic_load(&r->n_down), 0);
}

/* The time of a statement that waits for a lock is over, again and again: the database is well. */
static void test_a_call_that_gives_up(struct world *w)
{
    struct store_config cfg = rig_config(w);
    struct rig *r;
    struct job *j;
    void *held;

    cfg.driver.statement_timeout_ms = TIMEOUT_SHORT_MS;
    cfg.give_up_ms = 3 * TIMEOUT_SHORT_MS;
    r = rig_start(w, cfg, true);
    (void)put_key(w, "k");
    j = rig_job(r, STORE_CALL);
    j->pause.call.what = CALL_SERVICE_PAUSE;
    j->pause.name = STR("svc");
    j->pause.paused = true;
    held = w->backend->hold(w->url, "SELECT * FROM job_service WHERE name = 'svc' FOR UPDATE");
    rig_post(r, j);
    (void)wait_for_answer(r, j);
    w->backend->release(held, false);
    rig_wait(r);
    assert_int_equal(j->op.rc, ERR_UNAVAILABLE);
    assert_int_equal(atomic_load(&r->n_down), 0);
    assert_true(store_is_up(r->store));
}

/* ---- Shorter than that --------------------------------------------------------------------- */

struct waiter {
    struct claim_item item;
    struct scan_op scan;
    struct scan_key key;
    atomic_bool began;
    atomic_bool done;
};

/* Reads what is due and claims it, as a node does: from read to write there is no BUSY. */
static void *run_waiter(void *arg)
{
    struct actor *a = arg;
    struct waiter *waiter = a->ctx;
    struct claim_item *list[] = {&waiter->item};
    int rc = a->w->d->scan(a->conn, &waiter->scan, &a->err);

    if (!rc && waiter->scan.n_rows == 1) {
        waiter->item = claim_of(waiter->scan.rows[0].id, 0);
        atomic_store(&waiter->began, true);
        rc = a->w->d->claim(a->conn, list, 1, STR("node-b/1"), MARGIN_MS, &a->err);
    }
    (void)actor_expect(a, rc, 0);
    atomic_store(&waiter->done, true);
    return NULL;
}

static void test_a_writer_waits_for_its_turn(struct world *w)
{
    struct waiter waiter = {.key = {.service_name = STR("svc"),
                                    .lane = task_lane(TASK_PRIORITY_DEFAULT, false),
                                    .from_time = WALL_NONE,
                                    .limit = 10}};
    struct actor a;
    void *held;
    bool early;

    (void)put_key(w, "k");
    waiter.key.to_time = world_now(w);
    waiter.scan = (struct scan_op){.keys = &waiter.key, .n_keys = 1, .claimed_by = STR(NODE)};
    /* Readers of SQLite go on; the others' lock would stop them too. */
    held = w->backend->hold(w->url, "UPDATE job_delay_task SET updated_at = updated_at");
    actor_start(w, &a, 0, run_waiter, &waiter);
    while (!atomic_load(&waiter.began) && !atomic_load(&waiter.done))
        nap();
    for (int i = 0; i < 100 && !atomic_load(&waiter.done); i++)
        nap(); /* so that it gets as far as it can */
    early = atomic_load(&waiter.done);
    w->backend->release(held, false);
    actors_join(&a, 1);
    assert_false(early);
    free(waiter.scan.rows);
    (void)world_keep_task(w, waiter.item.task);
    assert_int_equal(waiter.item.result, CLAIM_WON);
}

/* ---- A deadlock ---------------------------------------------------------------------------- */

enum { PAIR = 2, HEAVY = 40, COLLISIONS = 10 };

static bool wait_until_one_waits(struct world *w)
{
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (w->backend->ask_server(w->backend, w->backend->n_waiting) == 0) {
        if (clock_mono() >= until)
            return false;
        nap();
    }
    return true;
}

/* Somebody else's transaction takes two rows in the other order, and has done more work, so that
 * the server ends ours. False when it ended the other one: PostgreSQL ends the one that looks up
 * first, a second after it began to wait. */
static bool collide(struct world *w, struct rig *r, unsigned round)
{
    static const char update[] =
        "UPDATE job_delay_task SET snooze_count = snooze_count + 1 WHERE id";
    struct task like = draft(w, "like");
    struct finish_item *items = world_keep(w, calloc(PAIR, sizeof(*items)));
    struct job *j = rig_job(r, STORE_FINISH);
    int64_t ids[HEAVY];
    void *held;
    bool ran;

    assert_non_null(items);
    put_many(w, world_text(w, "r%u-", round).p, HEAVY, &like, ids);
    for (size_t i = 0; i < PAIR; i++) {
        (void)claim_won(w, ids[i], 0);
        items[i] = finish_of(w, ids[i], 1, FINISH_RETRY);
    }
    j->finish.items = items;
    j->finish.n = PAIR;
    held = w->backend->hold(
        w->url,
        world_text(w, "%s BETWEEN %" PRId64 " AND %" PRId64, update, ids[1], ids[HEAVY - 1]).p);
    rig_post(r, j);
    ran = wait_until_one_waits(w) &&
          w->backend->run_held(held, world_text(w, "%s = %" PRId64, update, ids[0]).p);
    w->backend->release(held, ran);
    rig_wait(r);
    assert_int_equal(j->op.rc, 0);
    for (size_t i = 0; i < PAIR; i++) {
        struct call_get c = look_attempts(w, ids[i]);

        assert_int_equal(items[i].result, FINISH_DONE);
        assert_int_equal(c.task->status, TASK_RETRYING);
        assert_int_equal(c.task->snooze_count, ran ? 1 : 0);
        assert_int_equal(c.n_attempts, 1);
    }
    return ran;
}

static void test_a_deadlock_is_run_again(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct store_stats stats;
    unsigned round = 0;

    while (round < COLLISIONS && !collide(w, r, round))
        round++;
    assert_true(round < COLLISIONS);
    store_stats(r->store, &stats);
    assert_true(stats.retries >= 1);
    print_message("# %s: %" PRIu64 " deadlock met and run again inside the store\n",
                  w->backend->name, stats.retries);
}

static const struct test_case cases[] = {
    {"lock: on all of the tasks", test_a_lock_on_all, NEEDS_THREADS | NEEDS_SQL},
    {"lock: on a few rows", test_a_lock_on_rows, NEEDS_THREADS | NEEDS_SERVER},
    {"lock: a call that gives up", test_a_call_that_gives_up, NEEDS_THREADS | NEEDS_SERVER},
    {"lock: a deadlock is run again", test_a_deadlock_is_run_again, NEEDS_THREADS | NEEDS_SERVER},
    {"database-57: a writer waits for its turn", test_a_writer_waits_for_its_turn,
     NEEDS_THREADS | NEEDS_SQL},
};

const struct case_list lock_cases = CASE_LIST(cases);
