/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on one task: get, move, run; and the store's clock. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

static void test_get_by_key_and_by_id(struct world *w)
{
    static const enum task_status statuses[] = {TASK_PENDING, TASK_SENDING, TASK_FAILED,
                                                TASK_SUCCESS, TASK_CANCELLED};

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        const char *key = task_status_name(statuses[i]);
        const struct task *t = bring(w, key, statuses[i]);

        assert_same_task(look(w, key), t);
        assert_same_task(look_id(w, t->id), t);
    }
    assert_null(look(w, "nobody"));
    assert_null(look(w, ""));
    assert_null(look_id(w, INT64_MAX));
}

static void test_get_with_attempts_in_order(struct world *w)
{
    enum { N = 12 }; /* past 9: numbers, not texts, are in order */
    int64_t id = put_key(w, "k");
    struct call_get c;

    (void)bring(w, "neighbour", TASK_RETRYING);
    for (int32_t i = 0; i < N; i++) {
        struct finish_item f = finish_of(w, id, i + 1, FINISH_RETRY);

        (void)claim_won(w, id, i);
        f.error = world_text(w, "error %d", i + 1);
        f.retry_count = i + 1;
        assert_int_equal(finish_one(w, f), FINISH_DONE);
    }
    c = look_attempts(w, id);
    assert_int_equal(c.n_attempts, N);
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(c.attempts[i].attempt, i + 1);
        assert_str(c.attempts[i].error, world_text(w, "error %d", i + 1).p);
        assert_str(c.attempts[i].outcome, "retry");
        assert_true(c.attempts[i].started_at <= c.attempts[i].ended_at);
    }
    assert_int_equal(look_attempts(w, put_key(w, "new")).n_attempts, 0);
}

#define DIGITS                                                                                     \
    "(SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 "   \
    "UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)"

static void test_get_gives_at_most_a_thousand_attempts(struct world *w)
{
    int64_t id = put_key(w, "k");
    struct call_get c;

    (void)sql_value(w,
                    "INSERT INTO job_attempt (task_id, attempt, ended_at, outcome) "
                    "SELECT %" PRId64 ", 1 + a.d + 10 * b.d + 100 * c.d, %s, 'retry' "
                    "FROM " DIGITS " AS a, " DIGITS " AS b, " DIGITS " AS c",
                    id, w->backend->now_sql);
    (void)sql_value(w,
                    "INSERT INTO job_attempt (task_id, attempt, ended_at, outcome) "
                    "SELECT %" PRId64 ", 1001 + a.d, %s, 'retry' FROM " DIGITS " AS a",
                    id, w->backend->now_sql);
    c = look_attempts(w, id);
    assert_int_equal(c.n_attempts, 1000);
    for (int32_t i = 1; i < 1000; i++)
        assert_true(c.attempts[i].attempt > c.attempts[i - 1].attempt);
}

/* ---- Move ---------------------------------------------------------------------------------- */

static int move(struct world *w, const char *key, wall_ms to, const struct str *payload,
                const struct task **ret)
{
    struct call_move c = {.biz_uuid = str_from(key), .execute_time = to};
    int rc;

    if (payload) {
        c.set_payload = true;
        c.payload = *payload;
    }
    rc = call(w, &c.call, CALL_MOVE);
    assert_true((rc == ERR_NOT_FOUND) == (c.task == NULL));
    *ret = world_keep_task(w, c.task);
    return rc;
}

static void check_move(struct world *w, enum task_status status)
{
    const struct str payload = STR("[1e400]");
    const char *key = task_status_name(status);
    const struct task *before = bring(w, key, status);
    wall_ms later = before->execute_time + 5000000;
    const struct task *t;

    assert_int_equal(move(w, key, later, NULL, &t), 0);
    assert_same_task(t, look(w, key));
    assert_true(t->execute_time == later && t->next_attempt_time == later);
    assert_true(str_eq(t->payload, before->payload));
    assert_int_equal(t->status, before->status);
    assert_int_equal(t->attempt, before->attempt);
    assert_int_equal(t->lane, before->lane);
    assert_int_equal(move(w, key, WALL_NONE, &payload, &t), 0);
    assert_same_task(t, look(w, key));
    assert_true(t->execute_time == later && t->next_attempt_time == later);
    assert_str(t->payload, "[1e400]");
    assert_int_equal(move(w, key, later + 1, &(struct str){0}, &t), 0);
    assert_same_task(t, look(w, key));
    assert_null(t->payload.p);
    assert_true(t->execute_time == later + 1);
}

static void test_move_a_waiting_task(struct world *w)
{
    check_move(w, TASK_PENDING);
    check_move(w, TASK_RETRYING);
}

/* A retry waits longer than its execute_time; a new payload alone does not bring it forward. */
static void test_a_new_payload_leaves_the_retry_time(struct world *w)
{
    const struct str payload = STR("2");
    int64_t id = put_key(w, "k");
    struct finish_item f;
    const struct task *t;

    (void)claim_won(w, id, 0);
    f = finish_of(w, id, 1, FINISH_RETRY);
    f.next_attempt_time += 600000;
    assert_int_equal(finish_one(w, f), FINISH_DONE);
    assert_int_equal(move(w, "k", WALL_NONE, &payload, &t), 0);
    assert_true(t->next_attempt_time == f.next_attempt_time);
}

static void test_move_conflicts(struct world *w)
{
    static const enum task_status statuses[] = {TASK_SENDING, TASK_SENT, TASK_FAILED, TASK_SUCCESS,
                                                TASK_CANCELLED};
    const struct str payload = STR("2");
    const struct task *t;

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        const char *key = task_status_name(statuses[i]);
        const struct task *before = bring(w, key, statuses[i]);

        assert_int_equal(move(w, key, before->execute_time + 1, &payload, &t), ERR_CONFLICT);
        assert_same_task(t, before);
        assert_same_task(look(w, key), before);
    }
    assert_int_equal(move(w, "nobody", 1, NULL, &t), ERR_NOT_FOUND);
}

/* ---- Run ----------------------------------------------------------------------------------- */

static int run(struct world *w, const char *key, const struct task **ret)
{
    struct call_run c = {.biz_uuid = str_from(key), .actor = STR("api 127.0.0.1")};
    int rc = call(w, &c.call, CALL_RUN);

    assert_true((rc == ERR_NOT_FOUND) == (c.task == NULL));
    *ret = world_keep_task(w, c.task);
    return rc;
}

static void check_audit(struct world *w, int64_t id, int64_t n)
{
    if (has_sql(w))
        assert_int_equal(sql_value(w,
                                   "SELECT count(*) FROM job_audit WHERE task_id = %" PRId64
                                   " AND actor = 'api 127.0.0.1'",
                                   id),
                         n);
}

static void check_run_now(struct world *w, enum task_status status)
{
    const char *key = task_status_name(status);
    const struct task *before = bring(w, key, status);
    wall_ms now = world_now(w);
    const struct task *t;

    assert_int_equal(move(w, key, now + 900000, NULL, &t), 0);
    assert_int_equal(run(w, key, &t), 0);
    assert_same_task(t, look(w, key));
    assert_true(t->next_attempt_time >= now && t->next_attempt_time <= world_now(w));
    assert_int_equal(t->status, status);
    assert_int_equal(t->retry_count, before->retry_count);
    assert_int_equal(t->attempt, before->attempt);
    assert_int_equal(t->lane, before->lane);
    check_audit(w, t->id, 1);
    (void)claim_won(w, t->id, t->attempt);
}

static void test_run_now(struct world *w)
{
    check_run_now(w, TASK_PENDING);
    check_run_now(w, TASK_RETRYING);
}

static void check_run_again(struct world *w, enum task_status status)
{
    const char *key = task_status_name(status);
    int64_t id = bring(w, key, TASK_RETRYING)->id;
    wall_ms before = world_now(w);
    const struct task *t;
    struct finish_item f;

    (void)claim_won(w, id, 1);
    f = finish_of(w, id, 2, FINISH_FAIL);
    f.retry_count = 1;
    assert_int_equal(finish_one(w, f), FINISH_DONE);
    if (status == TASK_MANUAL_REQUIRED)
        (void)sql_value(w, "UPDATE job_delay_task SET status = 'MANUAL_REQUIRED'"
                           " WHERE status = 'FAILED'");
    assert_int_equal(run(w, key, &t), 0);
    assert_same_task(t, look(w, key));
    assert_int_equal(t->status, TASK_PENDING);
    assert_int_equal(t->retry_count, 0);
    assert_int_equal(t->attempt, 2);
    assert_true(t->failed_at == WALL_NONE);
    assert_int_equal(t->lane, task_lane(TASK_PRIORITY_DEFAULT, false));
    assert_true(t->next_attempt_time >= before && t->next_attempt_time <= world_now(w));
    check_audit(w, id, 1);
    assert_int_equal(look_attempts(w, id).n_attempts, 2);
    assert_int_equal(claim_won(w, id, 2)->attempt, 3);
}

static void test_run_again_after_failed(struct world *w)
{
    check_run_again(w, TASK_FAILED);
}

static void test_run_again_after_manual_required(struct world *w)
{
    check_run_again(w, TASK_MANUAL_REQUIRED);
}

static void test_run_conflicts(struct world *w)
{
    static const enum task_status statuses[] = {TASK_SENDING, TASK_SENT, TASK_SUCCESS,
                                                TASK_CANCELLED};
    const struct task *t;

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        const char *key = task_status_name(statuses[i]);
        const struct task *before = bring(w, key, statuses[i]);

        assert_int_equal(run(w, key, &t), ERR_CONFLICT);
        assert_same_task(t, before);
        assert_same_task(look(w, key), before);
        check_audit(w, before->id, 0);
    }
    assert_int_equal(run(w, "nobody", &t), ERR_NOT_FOUND);
}

/* ---- Clock --------------------------------------------------------------------------------- */

static void test_the_clock(struct world *w)
{
    struct call_clock c = {0};
    int64_t before = clock_mono_us();
    int64_t wall_before = clock_wall_us();
    wall_ms last = 0;

    assert_int_equal(call(w, &c.call, CALL_CLOCK), 0);
    assert_true(before <= c.sent_us && c.sent_us <= c.received_us);
    assert_true(c.received_us <= clock_mono_us());
    /* All of them run on this machine; the fake one knows whole milliseconds only. */
    assert_in_range(c.now_us, wall_before - 1000, clock_wall_us());
    for (int i = 0; i < 100; i++) {
        wall_ms now = world_now(w);

        assert_true(now >= last);
        last = now;
    }
    world_wait_past(w, last + 5);
}

static const struct test_case cases[] = {
    {"get: by key and by id", test_get_by_key_and_by_id, 0},
    {"get: with attempts in order", test_get_with_attempts_in_order, 0},
    {"get: at most 1,000 attempts", test_get_gives_at_most_a_thousand_attempts, NEEDS_SQL},
    {"move: a waiting task", test_move_a_waiting_task, 0},
    {"move: a new payload leaves the retry's time", test_a_new_payload_leaves_the_retry_time, 0},
    {"move: conflicts", test_move_conflicts, 0},
    {"run: now", test_run_now, 0},
    {"run: again after FAILED", test_run_again_after_failed, 0},
    {"run: again after MANUAL_REQUIRED", test_run_again_after_manual_required, NEEDS_SQL},
    {"run: conflicts", test_run_conflicts, 0},
    {"clock: goes forward", test_the_clock, 0},
};

const struct case_list task_call_cases = CASE_LIST(cases);
