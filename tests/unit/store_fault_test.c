/* SPDX-License-Identifier: Apache-2.0 */
/* How the store meets failures: busy and lost databases, rows that cannot be written, the state
 * that it reports. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/store_fake.h"

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

static void test_busy_is_run_again(void **state)
{
    struct ask ask;
    struct store_stats stats;

    (void)state;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_FINISH, ERR_BUSY, 4);
    ask_finish(&ask, 1, 2);
    run(&ask, 0);
    assert_int_equal(fake_calls(FAKE_FINISH), 5);
    store_stats(a.store, &stats);
    assert_int_equal(stats.retries, 4);
    assert_int_equal(stats.batches[STORE_FINISH], 1);
    assert_int_equal(stats.reconnects, 0);
}

static void test_busy_has_an_end(void **state)
{
    struct ask ask;

    (void)state;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_CALL, ERR_BUSY, FAKE_FOR_EVER);
    ask_call(&ask, CALL_RUN);
    run(&ask, ERR_UNAVAILABLE);
    assert_in_range(fake_calls(FAKE_CALL), 2, 20);
    asker_wait_reports(3); /* down, and up with the first probe */
    assert_true(store_is_up(a.store));
}

/* The first run worked, but nobody heard: with its id the row is known as the batch's own. */
static void test_a_lost_answer_is_cleared_up(void **state)
{
    struct ask ask;
    struct store_stats stats;

    (void)state;
    asker_start_up(&a, &fake_driver);
    fake_lose(FAKE_SUBMIT, ERR_UNAVAILABLE, 1);
    ask_submit(&ask, "k");
    run(&ask, 0);
    assert_int_equal(ask.submits[0].result, SUBMIT_CREATED);
    assert_int_equal(fake_calls(FAKE_SUBMIT), 2);
    assert_int_equal(fake_calls(FAKE_TAKE_IDS), 1);
    assert_int_equal(fake_calls(FAKE_OPEN), 2);
    store_stats(a.store, &stats);
    assert_int_equal(stats.reconnects, 1);
    assert_int_equal(asker_reports(), 1); /* it never was down */
}

static void test_ids_are_asked_for_again(void **state)
{
    struct ask ask;

    (void)state;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_TAKE_IDS, ERR_UNAVAILABLE, 2);
    ask_submit_rows(&ask, "k", 12);
    run(&ask, 0);
    assert_int_equal(fake_calls(FAKE_SUBMIT), 1);
}

static void test_down_and_up_again(void **state)
{
    struct ask claim;
    struct ask waiting;
    struct ask refused;
    const char *text;

    (void)state;
    a.cfg.give_up_ms = 50;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_CLAIM, ERR_UNAVAILABLE, FAKE_FOR_EVER);
    fake_fail(FAKE_OPEN, ERR_UNAVAILABLE, FAKE_FOR_EVER);
    ask_claim(&claim, 1, 1);
    run(&claim, ERR_UNAVAILABLE);
    asker_wait_state(&a, false);

    ask_submit(&refused, "k");
    assert_int_equal(asker_try(&a, &refused), ERR_UNAVAILABLE);
    ask_cancel(&refused, "k");
    assert_int_equal(asker_try(&a, &refused), ERR_UNAVAILABLE);
    ask_call(&refused, CALL_GET);
    assert_int_equal(asker_try(&a, &refused), ERR_UNAVAILABLE);
    ask_finish(&waiting, 1, 1);
    run(&waiting, ERR_UNAVAILABLE); /* expires in the queue */
    assert_int_equal(fake_calls(FAKE_FINISH), 0);

    fake_fail(FAKE_CLAIM, 0, 0);
    fake_fail(FAKE_OPEN, 0, 0);
    asker_wait_state(&a, true);
    asker_wait_reports(3);
    ask_claim(&claim, 1, 1);
    run(&claim, 0);
    ask_free(&claim);
    assert_int_equal(asker_reports(), 3);
    assert_true(asker_report(0, &text));
    assert_false(asker_report(1, &text));
    assert_string_equal(text, "scripted: unavailable");
    assert_true(asker_report(2, &text));
}

static void test_patient_operations_outlive_an_outage(void **state)
{
    struct ask finish;
    struct ask lost;
    struct ask scan;

    (void)state;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_OPEN, ERR_UNAVAILABLE, FAKE_FOR_EVER);
    fake_fail(FAKE_FINISH, ERR_UNAVAILABLE, 1);
    ask_finish(&lost, 1, 1);
    asker_post(&a, &lost);
    asker_wait_state(&a, false);
    ask_finish(&finish, 2, 1);
    ask_scan(&scan);
    asker_post(&a, &finish);
    asker_post(&a, &scan);
    fake_fail(FAKE_OPEN, 0, 0);
    asker_wait(&a, &lost);
    asker_wait(&a, &finish);
    asker_wait(&a, &scan);
    assert_int_equal(lost.op.rc, 0);
    assert_int_equal(finish.op.rc, 0);
    assert_int_equal(scan.op.rc, 0);
}

/* What waits behind a batch that waits for its connection is served by another thread. */
static void test_a_stuck_batch_frees_its_lane(void **state)
{
    struct ask stuck;
    struct ask next;

    (void)state;
    a.cfg.connections = 2;
    asker_start_up(&a, &fake_driver);
    while (fake_open_connections() < 2)
        asker_wait_state(&a, true);
    fake_block(FAKE_OPEN);
    fake_fail(FAKE_FINISH, ERR_UNAVAILABLE, 1);
    ask_finish(&stuck, 1, 1);
    asker_post(&a, &stuck);
    fake_wait_inside(FAKE_OPEN, 1);
    ask_finish(&next, 2, 1);
    asker_post(&a, &next);
    asker_wait(&a, &next);
    assert_int_equal(next.op.rc, 0);
    assert_int_equal(stuck.n_done, 0);
    fake_release(FAKE_OPEN);
    asker_wait(&a, &stuck);
    assert_int_equal(stuck.op.rc, 0);
}

static void test_one_connection_is_up(void **state)
{
    struct ask asks[2];

    (void)state;
    a.cfg.connections = 2;
    fake_fail_later(FAKE_OPEN, 1, ERR_UNAVAILABLE, FAKE_FOR_EVER);
    asker_start_up(&a, &fake_driver);
    ask_submit(&asks[0], "k");
    run(&asks[0], 0);
    ask_call(&asks[1], CALL_GET);
    run(&asks[1], 0);
    assert_true(store_is_up(a.store));
    assert_int_equal(asker_reports(), 1);
}

static void test_bad_rows_fail_alone(void **state)
{
    struct ask good[2];
    struct ask bad[2];

    (void)state;
    asker_start_up(&a, &fake_driver);
    fake_block(FAKE_CALL);
    struct ask holder;
    ask_call(&holder, CALL_MOVE);
    asker_post(&a, &holder);
    fake_wait_inside(FAKE_CALL, 1);
    ask_submit_rows(&good[0], "a", 7);
    ask_submit(&bad[0], "bad row");
    ask_submit_rows(&bad[1], "bag", 3);
    (void)snprintf(bad[1].keys[1], sizeof(bad[1].keys[1]), "bad too");
    bad[1].tasks[1].biz_uuid = str_from(bad[1].keys[1]);
    ask_submit_rows(&good[1], "z", 5);
    asker_post(&a, &good[0]);
    asker_post(&a, &bad[0]);
    asker_post(&a, &bad[1]);
    asker_post(&a, &good[1]);
    fake_release(FAKE_CALL);
    for (int i = 0; i < 2; i++) {
        asker_wait(&a, &good[i]);
        asker_wait(&a, &bad[i]);
        assert_int_equal(good[i].op.rc, 0);
        assert_int_equal(bad[i].op.rc, 0);
        for (size_t r = 0; r < good[i].submit.n; r++)
            assert_int_equal(good[i].submits[r].result, SUBMIT_CREATED);
    }
    assert_int_equal(fake_rows(FAKE_SUBMIT, 0), 16);
    assert_int_equal(bad[0].submits[0].result, SUBMIT_FAILED);
    assert_string_equal(bad[0].submits[0].err.text, "scripted: invalid");
    assert_int_equal(bad[1].submits[0].result, SUBMIT_CREATED);
    assert_int_equal(bad[1].submits[1].result, SUBMIT_FAILED);
    assert_int_equal(bad[1].submits[2].result, SUBMIT_CREATED);
}

static void test_invalid_elsewhere_is_corrupt(void **state)
{
    struct ask ask;

    (void)state;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_CANCEL, ERR_INVALID, 1);
    ask_cancel(&ask, "k");
    run(&ask, ERR_CORRUPT);
    assert_int_equal(fake_calls(FAKE_CANCEL), 1);
    fake_fail(FAKE_SCAN, ERR_INVALID, 1);
    ask_scan(&ask);
    run(&ask, ERR_CORRUPT);
    fake_fail(FAKE_TAKE_IDS, ERR_INVALID, 1);
    ask_submit_rows(&ask, "k", 2);
    run(&ask, ERR_CORRUPT);
}

/* The whole batch, its first half and its first row, the one with the lowest id, are refused. */
static void test_a_refused_claim_or_end_fails_alone(void **state)
{
    struct ask ask;

    (void)state;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_CLAIM, ERR_INVALID, 3);
    ask_claim(&ask, 1, 4);
    run(&ask, 0);
    assert_int_equal(fake_calls(FAKE_CLAIM), 5);
    assert_string_equal(ask.op.err.text, "scripted: invalid");
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(ask.claims[i].result, i < 3 ? CLAIM_WON : CLAIM_FAILED);
    assert_null(ask.claims[3].task);
    ask_free(&ask);
    fake_fail(FAKE_FINISH, ERR_INVALID, 3);
    ask_finish(&ask, 1, 4);
    run(&ask, 0);
    assert_int_equal(fake_calls(FAKE_FINISH), 5);
    assert_string_equal(ask.op.err.text, "scripted: invalid");
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(ask.finishes[i].result, i < 3 ? FINISH_DONE : FINISH_FAILED);
}

/* A key that is taken may be free again; in the end it is the row that cannot be written. */
static void test_a_taken_key_is_tried_again(void **state)
{
    struct ask ask;

    (void)state;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_FINISH, ERR_EXISTS, 2);
    ask_finish(&ask, 1, 1);
    run(&ask, 0);
    assert_int_equal(fake_calls(FAKE_FINISH), 3);
    assert_int_equal(ask.finishes[0].result, FINISH_DONE);
    fake_fail(FAKE_FINISH, ERR_EXISTS, 3);
    ask_finish(&ask, 1, 1);
    run(&ask, 0);
    assert_int_equal(fake_calls(FAKE_FINISH), 6);
    assert_int_equal(ask.finishes[0].result, FINISH_FAILED);
    assert_true(store_is_up(a.store));
}

static void test_calls_answer_themselves(void **state)
{
    static const int codes[] = {ERR_NOT_FOUND, ERR_CONFLICT, ERR_INVALID, ERR_NOMEM, ERR_CORRUPT};
    struct ask ask;

    (void)state;
    asker_start_up(&a, &fake_driver);
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        fake_fail(FAKE_CALL, codes[i], 1);
        ask_call(&ask, CALL_RUN);
        run(&ask, codes[i]);
    }
    assert_int_equal(fake_calls(FAKE_CALL), 5);
}

/* The tasks that the first transaction brought are not the asker's when the operation fails. */
static void test_half_an_operation_fails(void **state)
{
    struct ask ask;

    (void)state;
    a.cfg.batch_rows = 10;
    asker_start_up(&a, &fake_driver);
    fake_fail_later(FAKE_CLAIM, 1, ERR_NOMEM, 1);
    ask_claim(&ask, 1, 20);
    run(&ask, ERR_NOMEM);
    for (int i = 0; i < 20; i++)
        assert_null(ask.claims[i].task);
}

static void test_newer_schema_is_fatal(void **state)
{
    struct ask ask;
    const char *text;

    (void)state;
    a.cfg.connections = 3;
    fake_fail(FAKE_MIGRATE, ERR_CONFLICT, 1);
    fake_block(FAKE_MIGRATE);
    asker_start(&a, &fake_driver);
    fake_wait_inside(FAKE_MIGRATE, 1);
    ask_finish(&ask, 1, 1);
    asker_post(&a, &ask);
    fake_release(FAKE_MIGRATE);
    asker_wait(&a, &ask);
    assert_int_equal(ask.op.rc, ERR_UNAVAILABLE);
    assert_true(store_is_fatal(a.store));
    assert_false(store_is_up(a.store));
    asker_wait_reports(1);
    assert_false(asker_report(0, &text));
    assert_string_equal(text, "scripted: conflict");
    assert_int_equal(asker_try(&a, &ask), ERR_UNAVAILABLE);
    asker_stop(&a);
    assert_int_equal(fake_calls(FAKE_OPEN), 1);
}

static void test_waits_for_the_database_at_start(void **state)
{
    const char *text;

    (void)state;
    fake_fail(FAKE_MIGRATE, ERR_UNAVAILABLE, 2);
    fake_fail(FAKE_OPEN, ERR_UNAVAILABLE, 3);
    asker_start_up(&a, &fake_driver);
    asker_wait_reports(2);
    assert_false(asker_report(0, &text));
    assert_true(asker_report(1, &text));
    assert_int_equal(fake_calls(FAKE_OPEN), 6);
    assert_int_equal(fake_calls(FAKE_MIGRATE), 3);
}

/* The back-off is far longer than the test may take. */
static void test_stop_interrupts_the_back_off(void **state)
{
    struct ask queued;

    (void)state;
    a.cfg.connections = 2;
    a.cfg.give_up_ms = 3600 * 1000;
    a.cfg.reconnect_max_ms = 3600 * 1000;
    fake_fail(FAKE_OPEN, ERR_UNAVAILABLE, FAKE_FOR_EVER);
    asker_start(&a, &fake_driver);
    asker_wait_reports(1);
    ask_finish(&queued, 1, 1);
    asker_post(&a, &queued);
    while (fake_calls(FAKE_OPEN) < 5)
        asker_wait_state(&a, false);
    asker_stop(&a);
    assert_int_equal(queued.n_done, 1);
    assert_int_equal(queued.op.rc, ERR_SHUTDOWN);
}

static void test_stop_ends_a_stuck_batch(void **state)
{
    struct ask stuck;
    struct ask queued;

    (void)state;
    a.cfg.give_up_ms = 3600 * 1000;
    a.cfg.reconnect_max_ms = 3600 * 1000;
    asker_start_up(&a, &fake_driver);
    fake_fail(FAKE_OPEN, ERR_UNAVAILABLE, FAKE_FOR_EVER);
    fake_fail(FAKE_FINISH, ERR_UNAVAILABLE, FAKE_FOR_EVER);
    ask_finish(&stuck, 1, 1);
    asker_post(&a, &stuck);
    asker_wait_state(&a, false);
    ask_finish(&queued, 2, 1);
    asker_post(&a, &queued);
    asker_stop(&a);
    assert_int_equal(stuck.op.rc, ERR_UNAVAILABLE); /* the effect is unknown */
    assert_int_equal(queued.op.rc, ERR_SHUTDOWN);
}

static void *stop_store(void *arg)
{
    store_stop(arg);
    return NULL;
}

/* A connection that breaks while the store stops costs no result when the database is there. */
static void test_stop_survives_a_lost_connection(void **state)
{
    struct ask ask;
    struct ask queued;
    struct ask probe;
    pthread_t stopper;
    mono_ms until = clock_mono() + 20000;

    (void)state;
    a.cfg.queue_limit = 1;
    a.cfg.reconnect_max_ms = 3600 * 1000;
    asker_start_up(&a, &fake_driver);
    fake_block(FAKE_FINISH);
    fake_fail(FAKE_FINISH, ERR_UNAVAILABLE, 2);
    ask_finish(&ask, 1, 1);
    asker_post(&a, &ask);
    fake_wait_inside(FAKE_FINISH, 1);
    ask_submit(&queued, "a");
    asker_post(&a, &queued);
    assert_int_equal(pthread_create(&stopper, NULL, stop_store, a.store), 0);
    /* The lane is full, so that the answer changes only when the stop has begun. */
    ask_submit(&probe, "b");
    while (asker_try(&a, &probe) == ERR_BUSY && clock_mono() < until)
        (void)sched_yield();
    assert_int_equal(asker_try(&a, &probe), ERR_SHUTDOWN);
    fake_release(FAKE_FINISH);
    assert_int_equal(pthread_join(stopper, NULL), 0);
    a.store = NULL;
    asker_stop(&a);
    assert_int_equal(ask.op.rc, 0);
    assert_int_equal(fake_calls(FAKE_FINISH), 3);
    assert_int_equal(queued.op.rc, 0);
}

static void test_warnings_are_said_once(void **state)
{
    struct ask ask;

    (void)state;
    fake_warn("fsync is off");
    a.cfg.connections = 3;
    asker_start_up(&a, &fake_driver);
    while (fake_open_connections() < 3)
        asker_wait_state(&a, true);
    assert_int_equal(asker_warnings(), 1);
    fake_warn("synchronous_commit is off");
    fake_fail(FAKE_SCAN, ERR_UNAVAILABLE, 1);
    ask_scan(&ask);
    run(&ask, 0);
    assert_int_equal(asker_warnings(), 2);
}

/* ---- All at once ------------------------------------------------------------------------- */

#define N_POSTERS 3
#define N_ASKS 600

static struct ask crowd[N_POSTERS][N_ASKS];

static void *post_many(void *arg)
{
    struct ask *asks = arg;

    for (int i = 0; i < N_ASKS; i++)
        asker_post(&a, &asks[i]);
    return NULL;
}

static void fill_crowd(void)
{
    char key[24];

    for (int p = 0; p < N_POSTERS; p++) {
        for (int i = 0; i < N_ASKS; i++) {
            struct ask *ask = &crowd[p][i];

            (void)snprintf(key, sizeof(key), "k%d", i % 97); /* repeats across the posters */
            switch (i % 6) {
            case 0:
                ask_claim(ask, i, 5);
                break;
            case 1:
                ask_finish(ask, i, 5);
                break;
            case 2:
                ask_cancel(ask, key);
                break;
            case 3:
                ask_call(ask, i % 4 ? CALL_GET : CALL_MOVE);
                break;
            default:
                ask_submit(ask, key);
            }
        }
    }
}

static void test_everything_comes_back_once(void **state)
{
    pthread_t threads[N_POSTERS];

    (void)state;
    a.cfg.connections = 4;
    a.cfg.queue_limit = N_POSTERS * N_ASKS;
    fill_crowd();
    asker_start_up(&a, &fake_driver);
    fake_fail_later(FAKE_SUBMIT, 3, ERR_UNAVAILABLE, 2);
    fake_fail_later(FAKE_CLAIM, 2, ERR_BUSY, 3);
    fake_fail_later(FAKE_FINISH, 2, ERR_UNAVAILABLE, 1);
    for (int p = 0; p < N_POSTERS; p++)
        assert_int_equal(pthread_create(&threads[p], NULL, post_many, crowd[p]), 0);
    for (int p = 0; p < N_POSTERS; p++)
        assert_int_equal(pthread_join(threads[p], NULL), 0);
    asker_stop(&a);
    for (int p = 0; p < N_POSTERS; p++) {
        for (int i = 0; i < N_ASKS; i++) {
            assert_int_equal(crowd[p][i].n_done, 1);
            assert_int_equal(crowd[p][i].op.rc, 0);
            ask_free(&crowd[p][i]);
        }
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_busy_is_run_again),
        T(test_busy_has_an_end),
        T(test_a_lost_answer_is_cleared_up),
        T(test_ids_are_asked_for_again),
        T(test_down_and_up_again),
        T(test_patient_operations_outlive_an_outage),
        T(test_a_stuck_batch_frees_its_lane),
        T(test_one_connection_is_up),
        T(test_bad_rows_fail_alone),
        T(test_invalid_elsewhere_is_corrupt),
        T(test_a_refused_claim_or_end_fails_alone),
        T(test_a_taken_key_is_tried_again),
        T(test_calls_answer_themselves),
        T(test_half_an_operation_fails),
        T(test_newer_schema_is_fatal),
        T(test_waits_for_the_database_at_start),
        T(test_stop_interrupts_the_back_off),
        T(test_stop_ends_a_stuck_batch),
        T(test_stop_survives_a_lost_connection),
        T(test_warnings_are_said_once),
        T(test_everything_comes_back_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
