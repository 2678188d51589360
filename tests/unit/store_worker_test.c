/* SPDX-License-Identifier: Apache-2.0 */
/* How the store groups operations: batches, threads, order, the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
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

/* Occupies the only thread with a call, so that what is posted next waits together. */
static void hold_thread(struct ask *holder)
{
    fake_block(FAKE_CALL);
    ask_call(holder, CALL_MOVE);
    asker_post(&a, holder);
    fake_wait_inside(FAKE_CALL, 1);
}

static void test_submission_gets_ids_and_comes_back(void **state)
{
    struct ask ask;

    (void)state;
    asker_start_up(&a, &fake_driver);
    ask_submit(&ask, "k");
    asker_post(&a, &ask);
    asker_wait(&a, &ask);
    assert_int_equal(ask.op.rc, 0);
    assert_int_equal(ask.submits[0].result, SUBMIT_CREATED);
    assert_int_equal(ask.tasks[0].id, 1);
    assert_int_equal(trace_id_task(str_from(ask.tasks[0].trace_id)), 1);
    assert_true(ask.was_committed);
    asker_stop(&a);
    assert_int_equal(ask.n_done, 1);
}

static void test_each_kind_comes_back(void **state)
{
    struct ask asks[6];

    (void)state;
    ask_submit(&asks[0], "k");
    ask_claim(&asks[1], 1, 3);
    ask_finish(&asks[2], 1, 3);
    ask_cancel(&asks[3], "k");
    ask_scan(&asks[4]);
    ask_call(&asks[5], CALL_GET);
    asker_start_up(&a, &fake_driver);
    for (int i = 0; i < 6; i++)
        asker_post(&a, &asks[i]);
    for (int i = 0; i < 6; i++) {
        asker_wait(&a, &asks[i]);
        assert_int_equal(asks[i].op.rc, 0);
        assert_true(asks[i].was_committed);
        ask_free(&asks[i]);
    }
    struct store_stats stats;
    store_stats(a.store, &stats);
    for (int k = 0; k < STORE_N_KINDS; k++)
        assert_int_equal(stats.batches[k], 1);
    assert_int_equal(stats.rows[STORE_CLAIM], 3);
    assert_int_equal(stats.rows[STORE_FINISH], 3);
    assert_int_equal(stats.queued, 0);
}

static void test_ids_come_in_blocks(void **state)
{
    struct ask ask;
    int64_t sum = 0;

    (void)state;
    asker_start_up(&a, &fake_driver);
    ask_submit_rows(&ask, "k", 25);
    asker_post(&a, &ask);
    asker_wait(&a, &ask);
    for (int i = 0; i < 25; i++) {
        assert_in_range(ask.tasks[i].id, 1, 25);
        sum += ask.tasks[i].id;
    }
    assert_int_equal(sum, 25 * 26 / 2);
    assert_int_equal(fake_calls(FAKE_TAKE_IDS), 3);
}

static void test_what_waits_is_one_batch(void **state)
{
    struct ask holder;
    struct ask asks[30];

    (void)state;
    asker_start_up(&a, &fake_driver);
    hold_thread(&holder);
    for (int i = 0; i < 30; i++) {
        char key[24];

        (void)snprintf(key, sizeof(key), "k%02d", 29 - i); /* the store sorts them */
        ask_submit(&asks[i], key);
        asker_post(&a, &asks[i]);
    }
    fake_release(FAKE_CALL);
    for (int i = 0; i < 30; i++)
        asker_wait(&a, &asks[i]);
    assert_int_equal(fake_calls(FAKE_SUBMIT), 1);
    assert_int_equal(fake_rows(FAKE_SUBMIT, 0), 30);
    assert_string_equal(fake_first(FAKE_SUBMIT, 0), "k00");
    for (int i = 1; i < 30; i++)
        assert_true(asks[i - 1].order < asks[i].order);
}

static void test_batches_grow_behind_a_running_one(void **state)
{
    struct ask asks[21];

    (void)state;
    a.cfg.connections = 4;
    asker_start_up(&a, &fake_driver);
    fake_block(FAKE_SUBMIT);
    for (int i = 0; i < 21; i++) {
        char key[24];

        (void)snprintf(key, sizeof(key), "k%02d", i);
        ask_submit(&asks[i], key);
        asker_post(&a, &asks[i]);
        if (i == 0)
            fake_wait_inside(FAKE_SUBMIT, 1);
    }
    fake_release(FAKE_SUBMIT);
    for (int i = 0; i < 21; i++)
        asker_wait(&a, &asks[i]);
    assert_int_equal(fake_calls(FAKE_SUBMIT), 2);
    assert_int_equal(fake_rows(FAKE_SUBMIT, 1), 20);
}

static void test_a_quarter_batch_takes_a_second_thread(void **state)
{
    struct ask asks[2];

    (void)state;
    a.cfg.connections = 2;
    asker_start_up(&a, &fake_driver);
    fake_block(FAKE_SUBMIT);
    ask_submit_rows(&asks[0], "a", 1);
    ask_submit_rows(&asks[1], "b", 25);
    asker_post(&a, &asks[0]);
    fake_wait_inside(FAKE_SUBMIT, 1);
    asker_post(&a, &asks[1]);
    fake_wait_inside(FAKE_SUBMIT, 2);
    fake_release(FAKE_SUBMIT);
    asker_wait(&a, &asks[0]);
    asker_wait(&a, &asks[1]);
}

static void test_other_kinds_pass_a_running_batch(void **state)
{
    struct ask sub;
    struct ask claim;

    (void)state;
    a.cfg.connections = 2;
    asker_start_up(&a, &fake_driver);
    fake_block(FAKE_SUBMIT);
    ask_submit(&sub, "k");
    asker_post(&a, &sub);
    fake_wait_inside(FAKE_SUBMIT, 1);
    ask_claim(&claim, 1, 1);
    asker_post(&a, &claim);
    asker_wait(&a, &claim);
    assert_int_equal(sub.n_done, 0);
    fake_release(FAKE_SUBMIT);
    asker_wait(&a, &sub);
    ask_free(&claim);
}

static void test_slow_calls_leave_a_thread(void **state)
{
    struct ask calls[3];
    struct ask finish;

    (void)state;
    a.cfg.connections = 3;
    asker_start_up(&a, &fake_driver);
    fake_block(FAKE_CALL);
    for (int i = 0; i < 3; i++) {
        ask_call(&calls[i], CALL_LIST);
        asker_post(&a, &calls[i]);
    }
    fake_wait_inside(FAKE_CALL, 2);
    ask_finish(&finish, 1, 1);
    asker_post(&a, &finish);
    asker_wait(&a, &finish);
    assert_int_equal(fake_inside(FAKE_CALL), 2);
    fake_release(FAKE_CALL);
    for (int i = 0; i < 3; i++)
        asker_wait(&a, &calls[i]);
}

static void test_repeats_follow_in_order(void **state)
{
    struct ask holder;
    struct ask asks[4];

    (void)state;
    asker_start_up(&a, &fake_driver);
    hold_thread(&holder);
    ask_submit(&asks[0], "k");
    ask_submit(&asks[1], "k");
    ask_submit(&asks[2], "other");
    ask_submit(&asks[3], "k");
    for (int i = 0; i < 4; i++)
        asker_post(&a, &asks[i]);
    fake_release(FAKE_CALL);
    for (int i = 0; i < 4; i++)
        asker_wait(&a, &asks[i]);
    assert_int_equal(fake_calls(FAKE_SUBMIT), 3);
    assert_int_equal(fake_rows(FAKE_SUBMIT, 0), 2);
    assert_int_equal(asks[0].submits[0].result, SUBMIT_CREATED);
    assert_int_equal(asks[1].submits[0].result, SUBMIT_DUPLICATE);
    assert_int_equal(asks[1].submits[0].existing->id, asks[0].tasks[0].id);
    assert_int_equal(asks[2].submits[0].result, SUBMIT_CREATED);
    assert_int_equal(asks[3].submits[0].result, SUBMIT_DUPLICATE);
    assert_true(asks[2].order < asks[1].order && asks[1].order < asks[3].order);
    ask_free(&asks[1]);
    ask_free(&asks[3]);
}

static void test_repeats_within_one_operation(void **state)
{
    struct ask ask;

    (void)state;
    asker_start_up(&a, &fake_driver);
    ask_submit_rows(&ask, "k", 3);
    ask.tasks[2].biz_uuid = ask.tasks[0].biz_uuid;
    asker_post(&a, &ask);
    asker_wait(&a, &ask);
    assert_int_equal(ask.op.rc, 0);
    assert_int_equal(fake_calls(FAKE_SUBMIT), 2);
    assert_int_equal(ask.submits[0].result, SUBMIT_CREATED);
    assert_int_equal(ask.submits[1].result, SUBMIT_CREATED);
    assert_int_equal(ask.submits[2].result, SUBMIT_DUPLICATE);
    ask_free(&ask);
}

/* The second operation shares one key with the first, the third one with the second. */
static void test_no_operation_overtakes_its_key(void **state)
{
    struct ask holder;
    struct ask asks[3];

    (void)state;
    asker_start_up(&a, &fake_driver);
    hold_thread(&holder);
    ask_submit(&asks[0], "k00");
    ask_submit_rows(&asks[1], "k", 2);
    ask_submit(&asks[2], "k01");
    for (int i = 0; i < 3; i++)
        asker_post(&a, &asks[i]);
    fake_release(FAKE_CALL);
    for (int i = 0; i < 3; i++)
        asker_wait(&a, &asks[i]);
    assert_int_equal(asks[1].submits[0].result, SUBMIT_DUPLICATE);
    assert_int_equal(asks[1].submits[1].result, SUBMIT_CREATED);
    assert_int_equal(asks[2].submits[0].result, SUBMIT_DUPLICATE);
    ask_free(&asks[1]);
    ask_free(&asks[2]);
}

static void test_a_large_operation_is_split(void **state)
{
    struct ask ask;

    (void)state;
    a.cfg.batch_rows = 15;
    asker_start_up(&a, &fake_driver);
    ask_claim(&ask, 1, 40);
    asker_post(&a, &ask);
    asker_wait(&a, &ask);
    assert_int_equal(ask.op.rc, 0);
    assert_int_equal(fake_calls(FAKE_CLAIM), 3);
    assert_int_equal(fake_rows(FAKE_CLAIM, 0), 15);
    assert_int_equal(fake_rows(FAKE_CLAIM, 2), 10);
    assert_string_equal(fake_first(FAKE_CLAIM, 1), "16");
    for (int i = 0; i < 40; i++)
        assert_int_equal(ask.claims[i].task->id, ask.claims[i].id);
    ask_free(&ask);
}

static void test_bytes_split_a_batch(void **state)
{
    static const char payload[] = "0123456789";
    struct ask ask;

    (void)state;
    a.cfg.batch_bytes = 25;
    asker_start_up(&a, &fake_driver);
    ask_submit_rows(&ask, "k", 5);
    for (int i = 0; i < 5; i++)
        ask.tasks[i].payload = str_from(payload);
    asker_post(&a, &ask);
    asker_wait(&a, &ask);
    assert_int_equal(fake_calls(FAKE_SUBMIT), 3);
    assert_int_equal(fake_rows(FAKE_SUBMIT, 0), 2);
    assert_int_equal(fake_rows(FAKE_SUBMIT, 2), 1);
}

static void test_an_empty_operation_needs_no_transaction(void **state)
{
    struct ask ask;

    (void)state;
    asker_start_up(&a, &fake_driver);
    ask_claim(&ask, 1, 0);
    asker_post(&a, &ask);
    asker_wait(&a, &ask);
    assert_int_equal(ask.op.rc, 0);
    assert_int_equal(fake_calls(FAKE_CLAIM), 0);
}

static void test_a_full_lane_is_busy(void **state)
{
    struct ask holder;
    struct ask asks[3];
    struct ask cancel;
    struct store_stats stats;

    (void)state;
    a.cfg.queue_limit = 2;
    asker_start_up(&a, &fake_driver);
    hold_thread(&holder);
    ask_submit(&asks[0], "a");
    ask_submit(&asks[1], "b");
    ask_submit(&asks[2], "c");
    ask_cancel(&cancel, "d");
    asker_post(&a, &asks[0]);
    asker_post(&a, &asks[1]);
    assert_int_equal(asker_try(&a, &asks[2]), ERR_BUSY);
    asker_post(&a, &cancel);
    store_stats(a.store, &stats);
    assert_int_equal(stats.queued, 3);
    fake_release(FAKE_CALL);
    asker_wait(&a, &asks[1]);
    asker_wait(&a, &cancel);
    asker_stop(&a);
    assert_int_equal(asks[2].n_done, 0);
}

static void test_one_writer_reads_beside_it(void **state)
{
    struct ask sub;
    struct ask claim;
    struct ask scan;
    struct ask get;

    (void)state;
    a.cfg.connections = 4; /* does not matter */
    asker_start_up(&a, &fake_one_writer);
    assert_int_equal(fake_open_connections(), 2);
    fake_block(FAKE_SUBMIT);
    ask_submit(&sub, "k");
    asker_post(&a, &sub);
    fake_wait_inside(FAKE_SUBMIT, 1);
    ask_claim(&claim, 1, 1);
    asker_post(&a, &claim);
    ask_scan(&scan);
    ask_call(&get, CALL_GET);
    asker_post(&a, &scan);
    asker_post(&a, &get);
    asker_wait(&a, &scan);
    asker_wait(&a, &get);
    assert_int_equal(claim.n_done, 0);
    assert_int_equal(fake_calls(FAKE_CLAIM), 0);
    fake_release(FAKE_SUBMIT);
    asker_wait(&a, &claim);
    ask_free(&claim);
}

static void test_stop_runs_what_waits(void **state)
{
    struct ask asks[3];

    (void)state;
    a.cfg.batch_rows = 1;
    asker_start_up(&a, &fake_driver);
    ask_submit(&asks[0], "a");
    ask_submit(&asks[1], "b");
    ask_submit(&asks[2], "a");
    for (int i = 0; i < 3; i++)
        asker_post(&a, &asks[i]);
    asker_stop(&a);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(asks[i].n_done, 1);
        assert_int_equal(asks[i].op.rc, 0);
        ask_free(&asks[i]);
    }
    assert_int_equal(asks[2].submits[0].result, SUBMIT_DUPLICATE);
}

static void test_migrate_only(void **state)
{
    struct driver_options opt = {0};
    struct err err = {{0}};
    int from = 0;
    int to = 0;

    (void)state;
    assert_int_equal(store_migrate("fake:", &opt, &from, &to, &err), 0);
    assert_int_equal(from, 3);
    assert_int_equal(to, 5);
    assert_int_equal(store_migrate("nonsense:", &opt, &from, &to, &err), ERR_INVALID);
    fake_fail(FAKE_MIGRATE, ERR_CONFLICT, 1);
    assert_int_equal(store_migrate("fake:", &opt, &from, &to, &err), ERR_CONFLICT);
    assert_int_equal(fake_open_connections(), 0);
}

static void test_unknown_url(void **state)
{
    struct err err = {{0}};
    struct store *s = NULL;

    (void)state;
    a.cfg.url = "nonsense:";
    assert_int_equal(store_start(&a.cfg, NULL, &s, &err), ERR_INVALID);
    assert_null(s);
    store_stop(NULL);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_submission_gets_ids_and_comes_back),
        T(test_each_kind_comes_back),
        T(test_ids_come_in_blocks),
        T(test_what_waits_is_one_batch),
        T(test_batches_grow_behind_a_running_one),
        T(test_a_quarter_batch_takes_a_second_thread),
        T(test_other_kinds_pass_a_running_batch),
        T(test_slow_calls_leave_a_thread),
        T(test_repeats_follow_in_order),
        T(test_repeats_within_one_operation),
        T(test_no_operation_overtakes_its_key),
        T(test_a_large_operation_is_split),
        T(test_bytes_split_a_batch),
        T(test_an_empty_operation_needs_no_transaction),
        T(test_a_full_lane_is_busy),
        T(test_one_writer_reads_beside_it),
        T(test_stop_runs_what_waits),
        T(test_migrate_only),
        T(test_unknown_url),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
