/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler by scenarios: what it asks for, event by event. The simulation covers the rest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/core/sched_explain.h"
#include "tests/unit/sched_fixture.h"

static void test_life(void **state)
{
    struct fixture *f = *state;
    struct action claims[8];
    struct action finish;

    answer_scans(f, NULL, 0, 4);
    hint(f, "orders", 4, 1, T0 + 100);
    assert_int_equal(sched_next_wakeup(f->s), T0 + 100);
    tick_at(f, T0 + 99);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 8), 0);
    tick_at(f, T0 + 100);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 8), 1);
    assert_int_equal(claims[0].claim.id, 1);
    assert_int_equal(claims[0].claim.timeout_ms, 5000);
    struct task *t = win(f, &claims[0], "orders", 0);
    answer_send(f, t, VERDICT_SUCCESS, &finish);
    assert_int_equal(finish.finish.kind, FINISH_SUCCESS);
    assert_int_equal(finish.finish.attempt, 1);
    finished(f, &finish, FINISH_DONE);
    assert_true(sched_is_idle(f->s));
}

static void test_moved_earlier_and_early_claim(void **state)
{
    struct fixture *f = *state;
    struct action claims[8];

    answer_scans(f, NULL, 0, 4);
    hint(f, "orders", 4, 1, T0 + 1500);
    hint(f, "orders", 4, 1, T0 + 500);
    hint(f, "orders", 4, 1, T0 + 1900); /* later news does not make it late */
    tick_at(f, T0 + 500);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 8), 1);
    struct claim_item item = claims[0].claim;
    item.result = CLAIM_NOT_DUE;
    item.next_attempt_time = T0 + 1900;
    sched_claimed(f->s, f->now, 0, &item, &f->a);
    tick_at(f, T0 + 1899);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 8), 0);
    tick_at(f, T0 + 1900);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 8), 1);
}

static void test_urgent_lane_first(void **state)
{
    struct fixture *f = *state;
    struct action claims[16];

    answer_scans(f, NULL, 0, 4);
    for (int64_t id = 1; id <= 6; id++)
        hint(f, "orders", 9, id, T0);
    hint(f, "orders", 0, 99, T0);
    tick_at(f, T0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 16), 7);
    assert_int_equal(claims[0].claim.id, 99);
}

static void test_retries_keep_to_their_slots(void **state)
{
    struct fixture *f = *state;
    struct action claims[16];

    answer_scans(f, NULL, 0, 4);
    for (int64_t id = 1; id <= 10; id++)
        hint(f, "orders", 14, id, T0);
    tick_at(f, T0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 16), 2); /* a quarter of 8 */
    for (int64_t id = 101; id <= 110; id++)
        hint(f, "orders", 4, id, T0);
    tick_at(f, T0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 16), 6);
    for (size_t i = 0; i < 6; i++)
        assert_true(claims[i].claim.id > 100);
}

/* As many requests, each with so many tasks. */
static void test_slots_in_batch_mode(void **state)
{
    struct fixture *f = *state;
    struct action claims[64];

    answer_scans(f, NULL, 0, 4);
    f->services[0].delivery = DELIVERY_BATCH;
    f->services[0].batch_size = 2;
    set_services(f);
    for (int64_t id = 1; id <= 20; id++)
        hint(f, "orders", 4, id, T0);
    tick_at(f, T0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 64), 16); /* 8 times 2 */
}

static void test_store_away(void **state)
{
    struct fixture *f = *state;
    struct action claims[8];
    struct action finish;

    answer_scans(f, NULL, 0, 4);
    hint(f, "orders", 4, 1, T0);
    tick_at(f, T0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 8), 1);
    struct task *t = win(f, &claims[0], "orders", 0);
    answer_send(f, t, VERDICT_SUCCESS, &finish);
    sched_finished(f->s, f->now, ERR_UNAVAILABLE, &finish.finish, &f->a);
    sched_store_state(f->s, f->now, false);
    tick_at(f, T0 + 30000);
    assert_int_equal(f->a.n, 0);
    assert_false(sched_is_idle(f->s));
    sched_store_state(f->s, f->now, true);
    tick_at(f, T0 + 40000);
    assert_int_equal(take_actions(f, ACTION_FINISH, &finish, 1), 1);
    assert_int_equal(finish.finish.kind, FINISH_SUCCESS);
    finished(f, &finish, FINISH_DONE);
    assert_true(sched_is_idle(f->s));
}

static void test_ghosts(void **state)
{
    struct fixture *f = *state;
    struct action finish[4];
    struct scan_row rows[] = {
        {.id = 1,
         .next_attempt_time = T0 - 50,
         .status = TASK_SENDING,
         .attempt = 1,
         .deadline_at = T0 + 900,
         .max_retry = 3,
         .priority = 5},
        {.id = 2,
         .next_attempt_time = T0 - 40,
         .status = TASK_SENDING,
         .attempt = 4,
         .deadline_at = T0 + 900,
         .retry_count = 3,
         .max_retry = 3,
         .priority = 5,
         .own_orphan = true},
    };

    answer_scans(f, rows, 2, 4);
    assert_int_equal(take_actions(f, ACTION_FINISH, finish, 4), 1); /* the own orphan, at once */
    assert_int_equal(finish[0].finish.id, 2);
    assert_int_equal(finish[0].finish.kind, FINISH_FAIL);
    assert_true(finish[0].finish.alert);
    assert_false(finish[0].finish.past_deadline);
    finished(f, &finish[0], FINISH_DONE);
    tick_at(f, T0 + 900);
    assert_int_equal(take_actions(f, ACTION_FINISH, finish, 4), 1);
    assert_int_equal(finish[0].finish.id, 1);
    assert_int_equal(finish[0].finish.kind, FINISH_RETRY);
    assert_int_equal(finish[0].finish.retry_count, 1);
    assert_true(finish[0].finish.past_deadline);
    assert_int_equal(finish[0].finish.from, task_status_bit(TASK_SENDING));
}

static void test_stop_gives_back(void **state)
{
    struct fixture *f = *state;
    struct action claims[8];
    struct action finish[4];

    answer_scans(f, NULL, 0, 4);
    hint(f, "orders", 4, 1, T0);
    hint(f, "orders", 4, 2, T0 + 1000);
    tick_at(f, T0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 8), 1);
    sched_stop(f->s, f->now, &f->a);
    struct claim_item item = claims[0].claim;
    item.result = CLAIM_WON;
    item.task = claimed_task(1, "orders", 1, 0);
    sched_claimed(f->s, f->now, 0, &item, &f->a);
    assert_int_equal(take_actions(f, ACTION_FINISH, finish, 4), 1);
    assert_int_equal(finish[0].finish.kind, FINISH_PUT_BACK);
    assert_int_equal(finish[0].finish.retry_count, 0);
    finished(f, &finish[0], FINISH_DONE);
    tick_at(f, T0 + 5000);
    assert_int_equal(f->a.n, 0);
    assert_true(sched_is_idle(f->s));
}

static void test_pause_and_resume(void **state)
{
    struct fixture *f = *state;
    struct action claims[8];
    struct sched_explanation e;

    answer_scans(f, NULL, 0, 4);
    hint(f, "orders", 4, 1, T0 + 10);
    f->services[0].paused = true;
    set_services(f);
    struct scan_row rows[] = {
        {.id = 1, .next_attempt_time = T0 + 10, .status = TASK_PENDING, .priority = 5},
        {.id = 2,
         .next_attempt_time = T0 - 40,
         .status = TASK_SENDING,
         .attempt = 1,
         .deadline_at = T0 + 900,
         .max_retry = 3,
         .priority = 5},
    };
    tick_at(f, T0 + 2000);
    assert_true(answer_scans(f, rows, 2, 4) > 0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 8), 0);
    assert_int_equal(take_actions(f, ACTION_FINISH, claims, 8),
                     1); /* a ghost is rescued all the same */
    assert_int_equal(claims[0].finish.id, 2);
    finished(f, &claims[0], FINISH_DONE);
    sched_explain(f->s, f->now, STR("orders"), 0, 1, T0 + 10, &e);
    assert_int_equal(e.gate, GATE_PAUSED);
    f->services[0].paused = false;
    set_services(f);
    struct scan_row row = {
        .id = 1, .next_attempt_time = T0 + 10, .status = TASK_PENDING, .priority = 5};
    assert_true(answer_scans(f, &row, 1, 4) > 0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 8), 1);
}

/* A batch of claims that the store did not take is one failure, not one for each item. */
static void test_one_pause_for_a_batch(void **state)
{
    struct fixture *f = *state;
    struct action claims[16];

    answer_scans(f, NULL, 0, 4);
    for (int64_t id = 1; id <= 8; id++)
        hint(f, "orders", 4, id, T0);
    tick_at(f, T0);
    size_t n = take_actions(f, ACTION_CLAIM, claims, 16);
    assert_int_equal(n, 8);
    for (size_t i = 0; i < n; i++)
        sched_claimed(f->s, f->now, ERR_BUSY, &claims[i].claim, &f->a);
    assert_true(sched_next_wakeup(f->s) <= T0 + 100);
    tick_at(f, T0 + 100);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 16), 8);
}

/* Backlogs of one service leave room in max_tracked (1,000) for another's due task. */
static void test_backlog_leaves_room_in_memory(void **state)
{
    struct fixture *f = *state;
    struct sched_stats stats;

    f->services[0].paused = false;
    add_service(f, "other", 8);
    set_services(f);
    answer_scans(f, NULL, 0, 4);
    for (int64_t id = 1; id <= 2000; id++)
        hint(f, "orders", (int32_t)(id % 10), id, T0 + 1000);
    sched_stats(f->s, &stats);
    assert_true(stats.n_tracked < 1000);
    hint(f, "other", 4, 5000, T0 + 1000);
    struct sched_explanation e;
    sched_explain(f->s, f->now, STR("other"), 0, 5000, T0, &e);
    assert_true(e.tracked);
}

/* The request of a claim that was recognised leaves by the first one's deadline. */
static void test_fence(void **state)
{
    struct task t = task_empty();

    (void)state;
    t.claimed_at = T0;
    assert_int_equal(claim_fence(&t, MARGIN, 500, T0, 500), 500 + MARGIN);
    assert_int_equal(claim_fence(&t, MARGIN, 5500, T0 + 5000, 5500), 500 + MARGIN);
}

/* With 16 slots in all and one service that never answers, another still gets in. */
static void test_slow_service_leaves_room(void **state)
{
    struct fixture *f = *state;
    struct action claims[64];

    f->services[0].concurrency = 1000;
    add_service(f, "other", 8);
    set_services(f);
    answer_scans(f, NULL, 0, 4);
    for (int64_t id = 1; id <= 100; id++)
        hint(f, "orders", 4, id, T0);
    hint(f, "other", 4, 500, T0);
    tick_at(f, T0);
    size_t n = take_actions(f, ACTION_CLAIM, claims, 64);
    bool other = false;
    for (size_t i = 0; i < n; i++)
        other |= claims[i].claim.id == 500;
    assert_true(other);
    assert_true(n <= 16);
}

/* A backlog larger than a lane's room is read in pieces, each row once. */
static void test_backlog_in_pieces(void **state)
{
    struct fixture *f = *state;
    struct scan_row rows[20] = {0};
    struct action claims[64];
    struct sched_stats stats;

    for (int i = 0; i < 20; i++)
        rows[i] = (struct scan_row){
            .id = i + 1, .next_attempt_time = T0 - 1000, .status = TASK_PENDING, .priority = 5};
    assert_true(answer_scans(f, rows, 20, 4) > 0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 64), 8);
    sched_stats(f->s, &stats);
    assert_int_equal(stats.n_tracked, 20);
    assert_int_equal(take_actions(f, ACTION_SCAN, claims, 64), 0); /* 12 wait: no room for more */
    for (size_t i = 0; i < 8; i++) {
        struct claim_item item = claims[i].claim;
        item.result = CLAIM_LOST;
        sched_claimed(f->s, f->now, 0, &item, &f->a);
    }
    tick_at(f, T0);
    struct action scans[8];
    assert_int_equal(take_actions(f, ACTION_SCAN, scans, 8), 1);
    assert_int_equal(scans[0].scan.from_time, T0 - 1000);
    assert_int_equal(scans[0].scan.from_id, 20);
}

/* What finds no room while a scan is out, and was stored after the scan had begun, is read as soon
 * as there is room. */
static void test_no_room_during_a_scan(void **state)
{
    struct fixture *f = *state;
    struct action claims[64];
    struct action scans[8];

    assert_true(answer_scans(f, NULL, 0, 4) > 0);
    tick_at(f, T0 + 1000);
    for (int i = 1; i <= 20; i++)
        hint(f, "orders", 4, i, T0 + 1500);
    hint(f, "orders", 4, 21, T0 + 1600);
    assert_true(answer_scans(f, NULL, 0, 4) > 0);
    tick_at(f, T0 + 1500);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 64), 8);
    assert_int_equal(take_actions(f, ACTION_SCAN, scans, 8), 0);
    for (size_t i = 0; i < 8; i++) {
        claims[i].claim.result = CLAIM_LOST;
        sched_claimed(f->s, f->now, 0, &claims[i].claim, &f->a);
    }
    tick_at(f, T0 + 1500);
    assert_int_equal(take_actions(f, ACTION_SCAN, scans, 8), 1);
    assert_int_equal(scans[0].scan.from_time, T0 + 1600);
    assert_int_equal(scans[0].scan.from_id, 20);
}

/* Rows that the database refuses hold nothing up: neither their slot, nor other claims. */
static void test_refused_rows(void **state)
{
    struct fixture *f = *state;
    struct action claims[8];
    struct action finish;
    struct sched_stats stats;

    answer_scans(f, NULL, 0, 4);
    hint(f, "orders", 4, 1, T0);
    hint(f, "orders", 4, 2, T0);
    tick_at(f, T0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 8), 2);
    struct claim_item item = claims[0].claim;
    item.result = CLAIM_FAILED;
    sched_claimed(f->s, f->now, 0, &item, &f->a);
    struct task *t = win(f, &claims[1], "orders", 0);
    answer_send(f, t, VERDICT_SUCCESS, &finish);
    finished(f, &finish, FINISH_FAILED);
    sched_check(f->s);
    assert_true(sched_is_idle(f->s));
    sched_stats(f->s, &stats);
    assert_int_equal(stats.n_tracked, 0);
    hint(f, "orders", 4, 3, T0);
    tick_at(f, T0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 8), 1); /* no pause */
    item = claims[0].claim;
    item.result = CLAIM_LOST;
    sched_claimed(f->s, f->now, 0, &item, &f->a);
}

/* ---- Members ------------------------------------------------------------------------------ */

static void set_members(struct fixture *f, const struct str *names, size_t n)
{
    (void)sched_members(f->s, f->now, names, n, &f->a);
    sched_check(f->s);
}

static uint32_t owned_shards(struct fixture *f)
{
    struct sched_stats stats;

    sched_stats(f->s, &stats);
    return stats.n_shards;
}

/* What is queued of a lost shard is forgotten at once; a regained one is read from the start. */
static void test_members_lose_and_gain(void **state)
{
    struct fixture *f = *state;
    const struct str self = STR("n1");
    struct action scans[64];
    size_t n;

    answer_scans(f, NULL, 0, 4);
    hint(f, "orders", 4, 1, T0 + 1000);
    assert_int_equal(owned_shards(f), 1);
    assert_true(str_eqz(sched_owner(f->s, STR("orders"), 0), "n1"));

    set_members(f, NULL, 0);
    assert_int_equal(owned_shards(f), 0);
    assert_null(sched_owner(f->s, STR("orders"), 0).p);
    tick_at(f, T0 + 2000);
    assert_int_equal(take_actions(f, ACTION_CLAIM, scans, 64), 0);
    assert_int_equal(take_actions(f, ACTION_SCAN, scans, 64), 0);

    set_members(f, &self, 1);
    n = take_actions(f, ACTION_SCAN, scans, 64);
    assert_int_equal(n, 2); /* first attempts and retries */
    for (size_t i = 0; i < n; i++)
        assert_true(scans[i].scan.from_time == WALL_NONE);
}

static void test_hints_of_others(void **state)
{
    struct fixture *f = *state;
    const struct str other = STR("n2");
    const struct hint h = {
        .service_name = STR("orders"), .lane = 4, .id = 1, .next_attempt_time = T0};
    struct hint far = h;

    far.next_attempt_time = T0 + 100000;
    set_members(f, &other, 1);
    assert_int_equal(sched_hint(f->s, f->now, &h), HINT_FOREIGN);
    assert_int_equal(sched_hint(f->s, f->now, &far), HINT_TAKEN); /* nobody needs it yet */
    assert_true(str_eqz(sched_owner(f->s, STR("orders"), 0), "n2"));
}

/* A claim that is out when its shard is lost goes on to its end: the store has decided. */
static void test_claims_outlive_ownership(void **state)
{
    struct fixture *f = *state;
    const struct str other = STR("n2");
    struct action claims[4];

    answer_scans(f, NULL, 0, 4);
    hint(f, "orders", 4, 1, T0);
    tick_at(f, T0);
    assert_int_equal(take_actions(f, ACTION_CLAIM, claims, 4), 1);
    set_members(f, &other, 1);
    claims[0].claim.result = CLAIM_WON;
    claims[0].claim.task = claimed_task(1, "orders", 1, 0);
    sched_claimed(f->s, f->now, 0, &claims[0].claim, &f->a);
    assert_int_equal(take_actions(f, ACTION_SEND, claims, 4), 1);
    task_free(claims[0].send.task);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_members_lose_and_gain, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_hints_of_others, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_claims_outlive_ownership, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_life, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_moved_earlier_and_early_claim, sched_setup,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_urgent_lane_first, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_retries_keep_to_their_slots, sched_setup,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_slots_in_batch_mode, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_store_away, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_ghosts, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_stop_gives_back, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_pause_and_resume, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_one_pause_for_a_batch, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_backlog_leaves_room_in_memory, sched_setup_small,
                                        sched_teardown),
        cmocka_unit_test(test_fence),
        cmocka_unit_test_setup_teardown(test_slow_service_leaves_room, sched_setup_small,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_backlog_in_pieces, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_no_room_during_a_scan, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_refused_rows, sched_setup, sched_teardown),
    };

    return cmocka_run_group_tests_name("sched", tests, NULL, NULL);
}
