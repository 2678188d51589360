/* SPDX-License-Identifier: Apache-2.0 */
/* A database that is there and does nothing: how long operations are held, what is said, how the
 * store ends. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/store_fake.h"

#define DEADLINE_MS 20000

static struct asker a;

static int setup(void **state)
{
    (void)state;
    asker_init(&a);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    asker_fini(&a);
    return 0;
}

static void run(struct ask *ask, int expected_rc)
{
    asker_post(&a, ask);
    asker_wait(&a, ask);
    assert_int_equal(ask->op.rc, expected_rc);
    assert_int_equal(ask->was_committed, expected_rc == 0);
    if (expected_rc)
        assert_true(ask->op.err.text[0]);
}

/* ---- Limits ------------------------------------------------------------------------------ */

/* The only writer stands inside the driver the whole time. */
static void test_queued_ones_come_back_in_time(void **state)
{
    struct ask stuck;
    struct ask queued[4];

    (void)state;
    a.cfg.give_up_ms = 50;
    asker_start_up(&a, &fake_driver);
    fake_block(FAKE_CALL);
    ask_call(&stuck, CALL_MOVE);
    asker_post(&a, &stuck);
    fake_wait_inside(FAKE_CALL, 1);
    ask_submit(&queued[0], "k");
    ask_cancel(&queued[1], "k");
    ask_finish(&queued[2], 1, 1);
    ask_claim(&queued[3], 1, 1);
    for (int i = 0; i < 4; i++)
        asker_post(&a, &queued[i]);
    for (int i = 0; i < 4; i++) {
        asker_wait(&a, &queued[i]);
        assert_int_equal(queued[i].op.rc, ERR_UNAVAILABLE);
        assert_true(queued[i].op.err.text[0]);
    }
    assert_int_equal(stuck.n_done, 0);
    assert_true(store_is_up(a.store)); /* nothing has failed */
    fake_release(FAKE_CALL);
    asker_wait(&a, &stuck);
    assert_int_equal(stuck.op.rc, 0);
    assert_int_equal(fake_calls(FAKE_SUBMIT) + fake_calls(FAKE_CANCEL) + fake_calls(FAKE_FINISH) +
                         fake_calls(FAKE_CLAIM),
                     0);
}

/* Until more than `ms` have gone by. */
static void pass(int64_t ms)
{
    mono_ms until = clock_mono() + ms;

    while (clock_mono() <= until)
        (void)sched_yield();
}

/* The time in the queue counts: a call that outlasts the limit is not made again. */
static void test_the_limit_counts_from_the_post(void **state)
{
    struct ask ask;

    (void)state;
    a.cfg.give_up_ms = 500;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_FINISH, ERR_BUSY, 1);
    fake_block(FAKE_FINISH);
    ask_finish(&ask, 1, 1);
    asker_post(&a, &ask);
    fake_wait_inside(FAKE_FINISH, 1);
    pass(a.cfg.give_up_ms);
    fake_release(FAKE_FINISH);
    asker_wait(&a, &ask);
    assert_int_equal(ask.op.rc, ERR_UNAVAILABLE);
    assert_int_equal(fake_calls(FAKE_FINISH), 1);
}

/* A batch gives up with its oldest operation; one that has time left is tried again without it. */
static void test_the_young_outlive_the_old(void **state)
{
    struct ask holder;
    struct ask old;
    struct ask young;

    (void)state;
    a.cfg.give_up_ms = 2000;
    asker_start_up(&a, &fake_driver);
    fake_block(FAKE_CALL);
    ask_call(&holder, CALL_MOVE);
    asker_post(&a, &holder);
    fake_wait_inside(FAKE_CALL, 1);
    ask_claim(&old, 1, 1);
    asker_post(&a, &old);
    pass(a.cfg.give_up_ms / 2);
    ask_claim(&young, 2, 1);
    asker_post(&a, &young);
    fake_fail(FAKE_CLAIM, ERR_BUSY, 1);
    fake_block(FAKE_CLAIM);
    fake_release(FAKE_CALL);
    fake_wait_inside(FAKE_CLAIM, 1);
    assert_int_equal(fake_rows(FAKE_CLAIM, 0), 2);
    while (clock_mono() <= old.op.posted_at + a.cfg.give_up_ms)
        (void)sched_yield();
    fake_release(FAKE_CLAIM);
    asker_wait(&a, &old);
    asker_wait(&a, &young);
    assert_int_equal(old.op.rc, ERR_UNAVAILABLE);
    assert_int_equal(young.op.rc, 0);
    assert_int_equal(fake_calls(FAKE_CLAIM), 2);
    assert_int_equal(fake_rows(FAKE_CLAIM, 1), 1);
    ask_free(&young);
}

/* ---- State ------------------------------------------------------------------------------- */

static void expect_report(unsigned i, bool up, const char *expected)
{
    const char *text;

    asker_wait_reports(i + 1);
    assert_int_equal(asker_report(i, &text), up);
    assert_string_equal(text, expected);
}

/* Connections can be had, but every write fails: a new connection alone is no recovery. */
static void fail_writes(int rc)
{
    struct ask ask;
    struct ask refused;
    unsigned n_probes;

    a.cfg.give_up_ms = 500;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_FINISH, rc, FAKE_FOR_EVER);
    fake_fail(FAKE_TAKE_IDS, rc, FAKE_FOR_EVER);
    ask_finish(&ask, 1, 1);
    run(&ask, ERR_UNAVAILABLE);
    expect_report(1, false, rc == ERR_BUSY ? "scripted: busy" : "scripted: unavailable");
    assert_false(store_is_up(a.store));

    ask_submit(&refused, "k");
    assert_int_equal(asker_try(&a, &refused), ERR_UNAVAILABLE);
    ask_cancel(&refused, "k");
    assert_int_equal(asker_try(&a, &refused), ERR_UNAVAILABLE);
    ask_call(&refused, CALL_MOVE);
    assert_int_equal(asker_try(&a, &refused), ERR_UNAVAILABLE);
    ask_call(&ask, CALL_GET);
    run(&ask, 0); /* reading works, and proves nothing */
    n_probes = fake_calls(FAKE_TAKE_IDS);
    while (fake_calls(FAKE_TAKE_IDS) < n_probes + 3)
        asker_wait_state(&a, false);

    /* The ids can be had again, the tasks not yet. */
    fake_fail(FAKE_CANCEL, rc, FAKE_FOR_EVER);
    fake_fail(FAKE_TAKE_IDS, 0, 0);
    n_probes = fake_calls(FAKE_CANCEL);
    while (fake_calls(FAKE_CANCEL) < n_probes + 3)
        asker_wait_state(&a, false);
    assert_int_equal(asker_reports(), 2); /* said once */
}

static void test_a_locked_database_is_down(void **state)
{
    struct ask ask;

    (void)state;
    fail_writes(ERR_BUSY);
    fake_fail(FAKE_CANCEL, 0, 0); /* nobody asks for anything: the probe finds out */
    expect_report(2, true, "");
    ask_submit(&ask, "k");
    run(&ask, 0);
}

static void test_a_read_only_database_is_down(void **state)
{
    mono_ms until = clock_mono() + DEADLINE_MS;
    struct ask ask;

    (void)state;
    fail_writes(ERR_UNAVAILABLE);
    fake_fail(FAKE_FINISH, 0, 0);
    do { /* it may wait for too long while connections break on probes, as the scheduler knows */
        assert_true(clock_mono() < until);
        ask_finish(&ask, 1, 1);
        asker_post(&a, &ask);
        asker_wait(&a, &ask);
    } while (ask.op.rc == ERR_UNAVAILABLE);
    assert_int_equal(ask.op.rc, 0); /* the probes still fail; a committed batch is enough */
    expect_report(2, true, "");
    assert_int_equal(asker_reports(), 3);
}

/* ---- The end ----------------------------------------------------------------------------- */

static void test_draining_waits_for_the_running_call_only(void **state)
{
    struct ask stuck;
    struct ask queued[3];
    struct ask refused;

    (void)state;
    a.cfg.give_up_ms = 3600 * 1000;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_FINISH, ERR_BUSY, FAKE_FOR_EVER);
    fake_block(FAKE_FINISH);
    ask_finish(&stuck, 1, 1);
    asker_post(&a, &stuck);
    fake_wait_inside(FAKE_FINISH, 1);
    ask_submit(&queued[0], "a");
    ask_claim(&queued[1], 1, 1);
    ask_finish(&queued[2], 2, 1);
    for (int i = 0; i < 3; i++)
        asker_post(&a, &queued[i]);
    store_draining(a.store);
    store_draining(a.store);
    for (int i = 0; i < 3; i++) { /* while the call goes on */
        asker_wait(&a, &queued[i]);
        assert_int_equal(queued[i].op.rc, ERR_SHUTDOWN);
    }
    assert_int_equal(stuck.n_done, 0);
    fake_release(FAKE_FINISH);
    asker_wait(&a, &stuck);
    assert_int_equal(stuck.op.rc, ERR_UNAVAILABLE);
    assert_int_equal(fake_calls(FAKE_FINISH), 1);
    ask_claim(&refused, 1, 1);
    assert_int_equal(asker_try(&a, &refused), ERR_SHUTDOWN);
    asker_stop(&a);
    assert_int_equal(fake_calls(FAKE_CLAIM) + fake_calls(FAKE_SUBMIT), 0);
}

static void test_draining_knows_that_writing_fails(void **state)
{
    struct ask ask;
    struct ask queued[2];

    (void)state;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_FINISH, ERR_BUSY, FAKE_FOR_EVER);
    fake_fail(FAKE_TAKE_IDS, ERR_BUSY, FAKE_FOR_EVER);
    ask_finish(&ask, 1, 1);
    run(&ask, ERR_UNAVAILABLE);
    fake_block(FAKE_TAKE_IDS);
    fake_wait_inside(FAKE_TAKE_IDS, 1); /* the only thread is inside a probe */
    ask_finish(&queued[0], 1, 1);
    ask_claim(&queued[1], 1, 1);
    asker_post(&a, &queued[0]);
    asker_post(&a, &queued[1]);
    store_draining(a.store);
    for (int i = 0; i < 2; i++) {
        asker_wait(&a, &queued[i]);
        assert_int_equal(queued[i].op.rc, ERR_SHUTDOWN);
    }
    assert_int_equal(asker_try(&a, &ask), ERR_SHUTDOWN);
    fake_release(FAKE_TAKE_IDS);
}

static void test_draining_runs_what_a_healthy_database_takes(void **state)
{
    struct ask ask;

    (void)state;
    asker_start_up(&a, &fake_driver);
    store_draining(a.store);
    fake_fail(FAKE_SUBMIT, ERR_BUSY, 2);
    ask_submit(&ask, "k");
    run(&ask, 0);
    store_draining(NULL);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_queued_ones_come_back_in_time),
        T(test_the_limit_counts_from_the_post),
        T(test_the_young_outlive_the_old),
        T(test_a_locked_database_is_down),
        T(test_a_read_only_database_is_down),
        T(test_draining_waits_for_the_running_call_only),
        T(test_draining_knows_that_writing_fails),
        T(test_draining_runs_what_a_healthy_database_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
