/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

static void check_cancelled(struct world *w, enum task_status status)
{
    const char *key = task_status_name(status);
    const struct task *before = bring(w, key, status);
    const struct task *t;

    assert_int_equal(cancel(w, key, &t), CANCEL_DONE);
    assert_same_task(t, look(w, key));
    assert_int_equal(t->status, TASK_CANCELLED);
    assert_true(t->id == before->id);
    assert_string_equal(t->trace_id, before->trace_id);
    assert_int_equal(t->attempt, before->attempt);
    assert_int_equal(t->retry_count, before->retry_count);
    assert_true(str_eq(t->payload, before->payload));
    assert_true(t->execute_time == before->execute_time);
    assert_true(t->next_attempt_time == WALL_NONE);
    assert_true(t->finished_at >= before->updated_at && t->finished_at <= world_now(w));
    assert_int_equal(claim_as(w, t->id, t->attempt, NODE).result, CLAIM_LOST);
    if (has_sql(w)) {
        assert_int_equal(
            sql_value(w, "SELECT count(*) FROM job_delay_task WHERE biz_uuid = '%s'", key), 0);
        assert_int_equal(sql_value(w,
                                   "SELECT count(*) FROM job_delay_task_history WHERE "
                                   "biz_uuid = '%s' AND status = 'CANCELLED'",
                                   key),
                         1);
    }
}

static void test_what_can_be_cancelled(struct world *w)
{
    check_cancelled(w, TASK_PENDING);
    check_cancelled(w, TASK_RETRYING);
    check_cancelled(w, TASK_FAILED);
}

static void test_manual_required_can_be_cancelled(struct world *w)
{
    check_cancelled(w, TASK_MANUAL_REQUIRED);
}

static void test_in_flight(struct world *w)
{
    static const enum task_status statuses[] = {TASK_SENDING, TASK_SENT};

    for (size_t i = 0; i < 2; i++) {
        const char *key = task_status_name(statuses[i]);
        const struct task *before = bring(w, key, statuses[i]);
        const struct task *t;

        assert_int_equal(cancel(w, key, &t), CANCEL_IN_FLIGHT);
        assert_same_task(t, before);
        assert_same_task(look(w, key), before);
        finish_done(w, t->id, 1, FINISH_SUCCESS);
    }
}

static void test_finished_already_and_unknown(struct world *w)
{
    const struct task *done = bring(w, "done", TASK_SUCCESS);
    const struct task *gone = bring(w, "gone", TASK_CANCELLED);
    const struct task *t;

    assert_int_equal(cancel(w, "done", &t), CANCEL_FINISHED);
    assert_same_task(t, done);
    assert_same_task(look(w, "done"), done);
    assert_int_equal(cancel(w, "gone", &t), CANCEL_ALREADY);
    assert_same_task(t, gone);
    assert_int_equal(cancel(w, "never", &t), CANCEL_NOT_FOUND);
    assert_int_equal(cancel(w, "DONE", &t), CANCEL_NOT_FOUND);
}

/* Moved to history by its age; it ended as FAILED. */
static void test_a_retired_failure_is_finished(struct world *w)
{
    struct call_purge c = {.history_before = 0, .limit = 10};
    const struct task *t = bring(w, "k", TASK_FAILED);

    c.failed_before = t->failed_at + 1;
    assert_int_equal(call(w, &c.call, CALL_PURGE), 0);
    assert_int_equal(c.n_moved, 1);
    assert_int_equal(cancel(w, "k", &t), CANCEL_FINISHED);
    assert_int_equal(t->status, TASK_FAILED);
}

static void test_cancelling_removes_the_alert(struct world *w)
{
    static const char *const keys[] = {"a", "b"};

    for (size_t i = 0; i < 2; i++) {
        int64_t id = put_key(w, keys[i]);
        struct finish_item f = finish_of(w, id, 1, FINISH_FAIL);

        (void)claim_won(w, id, 0);
        f.alert = true;
        assert_int_equal(finish_one(w, f), FINISH_DONE);
    }
    assert_int_equal(count_alerts(w), 2);
    assert_int_equal(cancel(w, "a", NULL), CANCEL_DONE);
    assert_int_equal(count_alerts(w), 1);
    if (has_sql(w))
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_alert"), 1);
}

static void test_attempts_stay_with_a_cancelled_task(struct world *w)
{
    const struct task *t = bring(w, "k", TASK_RETRYING);

    assert_int_equal(cancel(w, "k", NULL), CANCEL_DONE);
    assert_int_equal(look_attempts(w, t->id).n_attempts, 1);
}

static void test_a_mixed_batch(struct world *w)
{
    enum { N = 200 };
    struct cancel_op ops[N];
    struct cancel_op *list[N];
    struct task like = draft(w, "like");
    struct err err = {0};

    put_many(w, "c", N / 2, &like, NULL);
    (void)claim_won(w, look(w, "c0010")->id, 0);
    assert_int_equal(cancel(w, "c0020", NULL), CANCEL_DONE);
    (void)claim_won(w, look(w, "c0030")->id, 0);
    finish_done(w, look(w, "c0030")->id, 1, FINISH_SUCCESS);
    for (size_t i = 0; i < N; i++) {
        ops[i] = (struct cancel_op){.biz_uuid = world_text(w, "c%04zu", i)};
        list[i] = &ops[i];
    }
    assert_int_equal(w->d->cancel(w->conn, list, N, &err), 0);
    for (size_t i = 0; i < N; i++) {
        enum cancel_result expected = i < N / 2 ? CANCEL_DONE : CANCEL_NOT_FOUND;

        (void)world_keep_task(w, ops[i].task);
        if (i == 10)
            expected = CANCEL_IN_FLIGHT;
        else if (i == 20)
            expected = CANCEL_ALREADY;
        else if (i == 30)
            expected = CANCEL_FINISHED;
        assert_int_equal(ops[i].result, expected);
        assert_true((ops[i].task == NULL) == (i >= N / 2));
        if (ops[i].task)
            assert_true(str_eq(ops[i].task->biz_uuid, ops[i].biz_uuid));
    }
}

static const struct test_case cases[] = {
    {"cancel: PENDING, RETRYING and FAILED", test_what_can_be_cancelled, 0},
    {"cancel: MANUAL_REQUIRED", test_manual_required_can_be_cancelled, NEEDS_SQL},
    {"cancel: in flight", test_in_flight, 0},
    {"cancel: finished, already, unknown", test_finished_already_and_unknown, 0},
    {"cancel: a retired failure is finished", test_a_retired_failure_is_finished, 0},
    {"cancel: removes the alert", test_cancelling_removes_the_alert, 0},
    {"cancel: attempts stay", test_attempts_stay_with_a_cancelled_task, 0},
    {"cancel: a mixed batch", test_a_mixed_batch, 0},
};

const struct case_list cancel_cases = CASE_LIST(cases);
