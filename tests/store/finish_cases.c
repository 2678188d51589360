/* SPDX-License-Identifier: Apache-2.0 */
/* How an attempt ends, and what its row looks like after. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

/* A claimed task of priority 8, so that a lane that is made up shows. */
static const struct task *claimed(struct world *w, const char *key)
{
    struct task t = draft(w, key);

    t.priority = 8;
    t.lane = task_lane(8, false);
    t.timeout_ms = 5000;
    (void)put(w, &t);
    return claim_won(w, t.id, 0);
}

static struct finish_item end_of(struct world *w, const struct task *t, enum finish_kind kind)
{
    struct finish_item f = finish_of(w, t->id, t->attempt, kind);

    f.priority = t->priority;
    return f;
}

/* What no end of an attempt changes. */
static void assert_same_core(const struct task *t, const struct task *before)
{
    assert_non_null(t);
    assert_true(t->id == before->id);
    assert_string_equal(t->trace_id, before->trace_id);
    assert_true(str_eq(t->biz_uuid, before->biz_uuid));
    assert_true(str_eq(t->service_name, before->service_name));
    assert_true(str_eq(t->handler, before->handler));
    assert_true(str_eq(t->payload, before->payload));
    assert_true(t->execute_time == before->execute_time);
    assert_true(t->created_at == before->created_at);
    assert_int_equal(t->attempt, before->attempt);
    assert_int_equal(t->priority, before->priority);
    assert_int_equal(t->max_retry, before->max_retry);
    assert_int_equal(t->timeout_ms, before->timeout_ms);
    assert_int_equal(t->shard, before->shard);
    assert_true(t->updated_at >= before->updated_at);
}

static void test_success(struct world *w)
{
    const struct task *before = claimed(w, "k");
    const struct task *t;

    assert_int_equal(finish_one(w, end_of(w, before, FINISH_SUCCESS)), FINISH_DONE);
    t = look(w, "k");
    assert_same_core(t, before);
    assert_int_equal(t->status, TASK_SUCCESS);
    assert_true(t->finished_at >= before->claimed_at && t->finished_at <= world_now(w));
    assert_true(t->next_attempt_time == WALL_NONE);
    assert_true(t->failed_at == WALL_NONE);
    assert_true(t->claimed_at == before->claimed_at);
    assert_str(t->claimed_by, NODE);
    assert_int_equal(t->last_http_status, 200);
    assert_int_equal(look_attempts(w, t->id).n_attempts, 0);
    if (has_sql(w)) {
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 0);
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task_history WHERE "
                                      "status = 'SUCCESS' AND finished_at IS NOT NULL"),
                         1);
    }
}

static void test_sent(struct world *w)
{
    const struct task *before = claimed(w, "k");
    struct finish_item f = end_of(w, before, FINISH_SENT);
    const struct task *t;

    assert_int_equal(finish_one(w, f), FINISH_DONE);
    t = look(w, "k");
    assert_same_core(t, before);
    assert_int_equal(t->status, TASK_SENT);
    assert_true(t->next_attempt_time == f.next_attempt_time);
    assert_true(t->deadline_at == f.next_attempt_time);
    assert_true(t->finished_at == WALL_NONE);
    assert_int_equal(t->lane, before->lane);
    assert_int_equal(t->retry_count, 0);
    assert_int_equal(look_attempts(w, t->id).n_attempts, 0);
}

static void check_attempt(struct world *w, const struct task *before, const struct finish_item *f)
{
    struct call_get c = look_attempts(w, before->id);

    assert_int_equal(c.n_attempts, 1);
    assert_int_equal(c.attempts[0].attempt, before->attempt);
    assert_true(c.attempts[0].started_at == before->claimed_at);
    assert_true(c.attempts[0].ended_at >= before->claimed_at);
    assert_true(c.attempts[0].ended_at <= world_now(w));
    assert_int_equal(c.attempts[0].http_status, f->http_status);
    assert_str(c.attempts[0].outcome, f->outcome);
    assert_true(str_eq(c.attempts[0].error, f->error));
    assert_str(c.attempts[0].node, "node-a");
}

static void test_retry(struct world *w)
{
    const struct task *before = claimed(w, "k");
    struct finish_item f = end_of(w, before, FINISH_RETRY);
    const struct task *t;

    f.next_attempt_time = world_now(w) + 12345;
    f.retry_count = 2;
    assert_int_equal(finish_one(w, f), FINISH_DONE);
    t = look(w, "k");
    assert_same_core(t, before);
    assert_int_equal(t->status, TASK_RETRYING);
    assert_true(t->next_attempt_time == f.next_attempt_time);
    assert_int_equal(t->retry_count, 2);
    assert_int_equal(t->lane, task_lane(8, false) + TASK_RETRY_LANES);
    assert_true(t->failed_at == WALL_NONE);
    assert_true(t->deadline_at == WALL_NONE);
    assert_str(t->last_error, "it broke");
    assert_int_equal(t->last_http_status, 500);
    check_attempt(w, before, &f);
    assert_int_equal(count_alerts(w), 0);
}

static void test_fail(struct world *w)
{
    const struct task *before = claimed(w, "k");
    struct finish_item f = end_of(w, before, FINISH_FAIL);
    const struct task *t;

    f.retry_count = 3;
    f.alert = true;
    assert_int_equal(finish_one(w, f), FINISH_DONE);
    t = look(w, "k");
    assert_same_core(t, before);
    assert_int_equal(t->status, TASK_FAILED);
    assert_true(t->next_attempt_time == WALL_NONE);
    assert_true(t->failed_at >= before->claimed_at && t->failed_at <= world_now(w));
    assert_true(t->finished_at == WALL_NONE);
    assert_int_equal(t->retry_count, 3);
    assert_str(t->last_error, "it broke");
    assert_int_equal(t->last_http_status, 500);
    check_attempt(w, before, &f);
    assert_int_equal(count_alerts(w), 1);
    if (has_sql(w))
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task WHERE status = "
                                      "'FAILED' AND next_attempt_time IS NULL AND "
                                      "failed_at IS NOT NULL"),
                         1);
}

static void test_fail_without_alert(struct world *w)
{
    const struct task *before = claimed(w, "k");

    assert_int_equal(finish_one(w, end_of(w, before, FINISH_FAIL)), FINISH_DONE);
    assert_status(w, "k", TASK_FAILED);
    assert_int_equal(count_alerts(w), 0);
}

static void check_put_back(struct world *w, int32_t retry_count, bool snoozed)
{
    struct str key = world_text(w, "k%d%d", retry_count, snoozed);
    const struct task *before = claimed(w, key.p);
    struct finish_item f = end_of(w, before, FINISH_PUT_BACK);
    const struct task *t;

    f.retry_count = retry_count;
    f.snoozed = snoozed;
    f.next_attempt_time = world_now(w) + 60000;
    assert_int_equal(finish_one(w, f), FINISH_DONE);
    t = look_key(w, key);
    assert_same_core(t, before);
    assert_int_equal(t->status, retry_count ? TASK_RETRYING : TASK_PENDING);
    assert_int_equal(t->retry_count, retry_count);
    assert_int_equal(t->lane, task_lane(8, retry_count > 0));
    assert_int_equal(t->snooze_count, snoozed);
    assert_true(t->next_attempt_time == f.next_attempt_time);
    assert_true(t->deadline_at == WALL_NONE);
    assert_int_equal(look_attempts(w, t->id).n_attempts, 0);
}

static void test_put_back(struct world *w)
{
    check_put_back(w, 0, false);
    check_put_back(w, 2, false);
    check_put_back(w, 0, true);
    check_put_back(w, 1, true);
}

static void test_snoozes_add_up(struct world *w)
{
    const struct task *t = claimed(w, "k");

    for (int32_t i = 1; i <= 3; i++) {
        struct finish_item f = end_of(w, t, FINISH_PUT_BACK);

        f.snoozed = true;
        assert_int_equal(finish_one(w, f), FINISH_DONE);
        assert_int_equal(look(w, "k")->snooze_count, i);
        t = claim_won(w, t->id, i);
        assert_int_equal(t->snooze_count, i);
    }
}

static void test_every_end_after_sent(struct world *w)
{
    static const enum task_status expected[] = {
        [FINISH_SUCCESS] = TASK_SUCCESS,  [FINISH_SENT] = TASK_SENT,
        [FINISH_RETRY] = TASK_RETRYING,   [FINISH_FAIL] = TASK_FAILED,
        [FINISH_PUT_BACK] = TASK_PENDING,
    };

    for (int kind = FINISH_SUCCESS; kind <= FINISH_PUT_BACK; kind++) {
        struct str key = world_text(w, "k%d", kind);
        const struct task *t = bring(w, key.p, TASK_SENT);
        struct finish_item f = finish_of(w, t->id, 1, (enum finish_kind)kind);

        f.from = 1u << TASK_SENT;
        assert_int_equal(finish_one(w, f), FINISH_DONE);
        assert_status(w, key.p, expected[kind]);
    }
}

static void check_lost(struct world *w, const struct task *before, int32_t attempt, unsigned from)
{
    for (int kind = FINISH_SUCCESS; kind <= FINISH_PUT_BACK; kind++) {
        struct finish_item f = finish_of(w, before->id, attempt, (enum finish_kind)kind);

        f.from = from;
        f.alert = true;
        assert_int_equal(finish_one(w, f), FINISH_LOST);
        assert_same_task(look_id(w, before->id), before);
    }
    assert_int_equal(count_alerts(w), 0);
}

static void test_another_attempt_is_lost(struct world *w)
{
    int64_t id = put_key(w, "k");
    const struct task *t;

    (void)claim_won(w, id, 0);
    finish_done(w, id, 1, FINISH_PUT_BACK);
    t = claim_won(w, id, 1);
    check_lost(w, t, 1, TASK_IN_FLIGHT);
    check_lost(w, t, 3, TASK_IN_FLIGHT);
    check_lost(w, t, 0, TASK_IN_FLIGHT);
    assert_int_equal(look_attempts(w, id).n_attempts, 0);
}

static void test_another_status_is_lost(struct world *w)
{
    check_lost(w, bring(w, "pending", TASK_PENDING), 0, TASK_IN_FLIGHT);
    check_lost(w, bring(w, "cancelled", TASK_CANCELLED), 0, TASK_IN_FLIGHT);
    check_lost(w, bring(w, "sending", TASK_SENDING), 1, 1u << TASK_SENT);
    for (int kind = FINISH_SUCCESS; kind <= FINISH_PUT_BACK; kind++) {
        struct finish_item f = finish_of(w, INT64_MAX, 1, (enum finish_kind)kind);

        assert_int_equal(finish_one(w, f), FINISH_LOST);
    }
}

/* The texts of answers are cleaned and cut before they come here; whatever is valid is stored. */
static void test_long_errors_are_stored(struct world *w)
{
    const struct task *t = claimed(w, "k");
    struct finish_item f = end_of(w, t, FINISH_RETRY);
    struct call_get c;

    f.error = world_fill(w, "\xf0\x9f\x90\x98", TASK_ERROR_MAX);
    f.http_status = 599;
    assert_int_equal(finish_one(w, f), FINISH_DONE);
    assert_true(str_eq(look(w, "k")->last_error, f.error));
    c = look_attempts(w, t->id);
    assert_true(str_eq(c.attempts[0].error, f.error));
    assert_int_equal(c.attempts[0].http_status, 599);
}

static void test_an_attempt_without_answer(struct world *w)
{
    const struct task *t = claimed(w, "k");
    struct finish_item f = end_of(w, t, FINISH_RETRY);
    struct call_get c;

    f.http_status = 0;
    f.outcome = "ghost";
    f.error = (struct str){0};
    assert_int_equal(finish_one(w, f), FINISH_DONE);
    c = look_attempts(w, t->id);
    assert_int_equal(c.attempts[0].http_status, 0);
    assert_str(c.attempts[0].outcome, "ghost");
    assert_int_equal(c.attempts[0].error.len, 0);
}

/* The whole series stays readable after the end. */
static void test_attempts_stay_with_a_success(struct world *w)
{
    int64_t id = put_key(w, "k");
    struct call_get c;

    for (int32_t i = 0; i < 3; i++) {
        struct finish_item f = finish_of(w, id, i + 1, FINISH_RETRY);

        (void)claim_won(w, id, i);
        f.retry_count = i + 1;
        f.http_status = 500 + i;
        assert_int_equal(finish_one(w, f), FINISH_DONE);
    }
    (void)claim_won(w, id, 3);
    finish_done(w, id, 4, FINISH_SUCCESS);
    assert_int_equal(look(w, "k")->retry_count, 3);
    c = look_attempts(w, id);
    assert_int_equal(c.n_attempts, 3);
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(c.attempts[i].attempt, i + 1);
        assert_int_equal(c.attempts[i].http_status, 500 + i);
    }
}

static void test_a_mixed_batch(struct world *w)
{
    enum { N = 300 };
    int64_t ids[N];
    struct claim_item claims[N];
    struct finish_item ends[N];
    struct task like = draft(w, "like");
    size_t n[TASK_N_STATUSES] = {0};

    put_many(w, "m", N, &like, ids);
    for (size_t i = 0; i < N; i++)
        claims[i] = claim_of(ids[i], 0);
    claim(w, claims, N, NODE);
    for (size_t i = 0; i < N; i++) {
        ends[i] = finish_of(w, ids[i], i == 7 ? 2 : 1, (enum finish_kind)(i % 5));
        ends[i].alert = i % 2;
    }
    finish(w, ends, N);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(ends[i].result, i == 7 ? FINISH_LOST : FINISH_DONE);
        n[look_id(w, ids[i])->status]++;
    }
    assert_int_equal(n[TASK_SUCCESS], 60);
    assert_int_equal(n[TASK_SENT], 60);
    assert_int_equal(n[TASK_RETRYING], 59);
    assert_int_equal(n[TASK_FAILED], 60);
    assert_int_equal(n[TASK_PENDING], 60);
    assert_int_equal(n[TASK_SENDING], 1);
    assert_int_equal(count_alerts(w), 30);
}

static const struct test_case cases[] = {
    {"finish: success", test_success, 0},
    {"finish: sent", test_sent, 0},
    {"finish: retry", test_retry, 0},
    {"finish: fail", test_fail, 0},
    {"finish: fail without alert", test_fail_without_alert, 0},
    {"finish: put back", test_put_back, 0},
    {"finish: snoozes add up", test_snoozes_add_up, 0},
    {"finish: every end after SENT", test_every_end_after_sent, 0},
    {"finish: another attempt is lost", test_another_attempt_is_lost, 0},
    {"finish: another status is lost", test_another_status_is_lost, 0},
    {"retry-44: long errors are stored", test_long_errors_are_stored, 0},
    {"finish: an attempt without answer", test_an_attempt_without_answer, 0},
    {"finish: attempts stay with a success", test_attempts_stay_with_a_success, 0},
    {"finish: a mixed batch", test_a_mixed_batch, 0},
};

const struct case_list finish_cases = CASE_LIST(cases);
