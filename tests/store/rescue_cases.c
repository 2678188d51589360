/* SPDX-License-Identifier: Apache-2.0 */
/* Rescues of ghosts, and the heartbeats that keep a task from becoming one. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

/* SENDING with a deadline that has passed. */
static const struct task *ghost(struct world *w, const char *key)
{
    struct claim_item item = {.id = put_key(w, key), .timeout_ms = 1};
    struct claim_item *list[] = {&item};
    struct err err = {0};

    assert_int_equal(w->d->claim(w->conn, list, 1, STR(NODE), 1, &err), 0);
    assert_int_equal(item.result, CLAIM_WON);
    (void)world_keep_task(w, item.task);
    assert_true(item.task->deadline_at == item.task->claimed_at + 2);
    world_wait_past(w, item.task->deadline_at);
    return item.task;
}

static struct finish_item rescue_of(struct world *w, const struct task *t)
{
    struct finish_item f = finish_of(w, t->id, t->attempt, FINISH_RETRY);

    f.outcome = "ghost";
    f.past_deadline = true;
    f.from = task_status_bit(t->status);
    return f;
}

static int extend(struct world *w, int64_t id, int32_t attempt, int64_t ms, wall_ms *ret)
{
    struct call_extend c = {.id = id, .attempt = attempt, .extend_ms = ms};
    int rc = call(w, &c.call, CALL_EXTEND);

    assert_true((rc == ERR_NOT_FOUND) == (c.task == NULL));
    (void)world_keep_task(w, c.task);
    if (ret && !rc)
        *ret = c.deadline_at;
    return rc;
}

static void test_a_ghost_is_rescued(struct world *w)
{
    const struct task *t = ghost(w, "k");
    struct call_get c;

    assert_int_equal(finish_one(w, rescue_of(w, t)), FINISH_DONE);
    assert_status(w, "k", TASK_RETRYING);
    c = look_attempts(w, t->id);
    assert_int_equal(c.n_attempts, 1);
    assert_str(c.attempts[0].outcome, "ghost");
}

/* Whatever becomes of the node that claimed it. */
static void test_an_attempt_is_counted_at_its_claim(struct world *w)
{
    enum { MAX_RETRY = 3 };
    int64_t id = put_key(w, "k");

    for (int32_t attempt = 1; attempt <= 1 + MAX_RETRY; attempt++) {
        struct claim_item item = {.id = id, .attempt = attempt - 1, .timeout_ms = 1};
        struct claim_item *list[] = {&item};
        struct finish_item f =
            finish_of(w, id, attempt, attempt <= MAX_RETRY ? FINISH_RETRY : FINISH_FAIL);
        struct err err = {0};

        assert_int_equal(w->d->claim(w->conn, list, 1, STR(NODE), 1, &err), 0);
        assert_int_equal(item.result, CLAIM_WON);
        assert_int_equal(look(w, "k")->attempt, attempt);
        world_wait_past(w, world_keep_task(w, item.task)->deadline_at);
        f.past_deadline = true;
        f.retry_count = attempt <= MAX_RETRY ? attempt : MAX_RETRY;
        assert_int_equal(finish_one(w, f), FINISH_DONE);
    }
    assert_status(w, "k", TASK_FAILED);
    assert_int_equal(look(w, "k")->attempt, 1 + MAX_RETRY);
    assert_int_equal(look_attempts(w, id).n_attempts, 1 + MAX_RETRY);
}

static void test_no_rescue_before_the_deadline(struct world *w)
{
    static const enum task_status statuses[] = {TASK_SENDING, TASK_SENT};

    for (size_t i = 0; i < 2; i++) {
        const char *key = task_status_name(statuses[i]);
        const struct task *t = bring(w, key, statuses[i]);

        for (int kind = FINISH_SUCCESS; kind <= FINISH_PUT_BACK; kind++) {
            struct finish_item f = finish_of(w, t->id, t->attempt, (enum finish_kind)kind);

            if (kind == FINISH_SENT && t->status == TASK_SENT)
                continue; /* might be taken for a repeat */
            f.past_deadline = true;
            assert_int_equal(finish_one(w, f), FINISH_LOST);
        }
        assert_same_task(look(w, key), t);
        assert_int_equal(look_attempts(w, t->id).n_attempts, 0);
    }
}

static void test_a_result_that_never_came(struct world *w)
{
    const struct task *t = ghost(w, "k");
    struct finish_item f = finish_of(w, t->id, 1, FINISH_SENT);

    f.next_attempt_time = world_now(w) + 3;
    assert_int_equal(finish_one(w, f), FINISH_DONE);
    t = look(w, "k");
    world_wait_past(w, t->deadline_at);
    assert_int_equal(finish_one(w, rescue_of(w, t)), FINISH_DONE);
    assert_status(w, "k", TASK_RETRYING);
}

/* The rescuer read SENDING; meanwhile the worker's answer came, or another node took the task. */
static void test_a_stale_rescue_changes_nothing(struct world *w)
{
    static const enum finish_kind ends[] = {FINISH_SUCCESS, FINISH_SENT, FINISH_FAIL,
                                            FINISH_PUT_BACK};

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        struct str key = world_text(w, "k%zu", i);
        const struct task *read = ghost(w, key.p);
        const struct task *now;

        finish_done(w, read->id, 1, ends[i]);
        if (ends[i] == FINISH_PUT_BACK)
            (void)claim_won(w, read->id, 1);
        now = look_key(w, key);
        assert_int_equal(finish_one(w, rescue_of(w, read)), FINISH_LOST);
        assert_same_task(look_key(w, key), now);
    }
}

static void test_a_late_answer_still_counts(struct world *w)
{
    const struct task *t = ghost(w, "k");

    finish_done(w, t->id, 1, FINISH_SUCCESS);
    assert_status(w, "k", TASK_SUCCESS);
}

static void test_an_answer_after_the_rescue_is_lost(struct world *w)
{
    const struct task *t = ghost(w, "k");

    assert_int_equal(finish_one(w, rescue_of(w, t)), FINISH_DONE);
    assert_int_equal(finish_one(w, finish_of(w, t->id, 1, FINISH_SUCCESS)), FINISH_LOST);
    assert_status(w, "k", TASK_RETRYING);
}

static void test_a_heartbeat_moves_the_deadline(struct world *w)
{
    const struct task *t = bring(w, "k", TASK_SENDING);
    wall_ms before = world_now(w);
    wall_ms told;

    assert_int_equal(extend(w, t->id, 1, 3600000, &told), 0);
    assert_true(told >= before + 3600000 && told <= world_now(w) + 3600000);
    assert_true(look(w, "k")->deadline_at == told);
    assert_true(look(w, "k")->next_attempt_time == t->next_attempt_time);
    assert_int_equal(look(w, "k")->status, TASK_SENDING);
}

/* Without a length of its own a heartbeat has the claim's: the task's time-out, else its service's,
 * else the node's, and the margin. */
static void test_a_heartbeat_is_as_long_as_its_claim(struct world *w)
{
    const struct task *t = bring(w, "k", TASK_SENDING);
    const struct service settings = {
        .name = t->service_name, .base_url = STR("http://h"), .shards = 1, .timeout_ms = 900000};
    struct call_service_put put = {.in = &settings};
    struct call_extend c = {
        .id = t->id, .attempt = 1, .default_timeout_ms = 600000, .margin_ms = 50000};
    wall_ms before = world_now(w);

    assert_int_equal(t->timeout_ms, 0);
    assert_int_equal(call(w, &c.call, CALL_EXTEND), 0);
    (void)world_keep_task(w, c.task);
    assert_true(c.deadline_at >= before + 650000 && c.deadline_at <= world_now(w) + 650000);
    assert_int_equal(call(w, &put.call, CALL_SERVICE_PUT), 0);
    free(put.stored);
    before = world_now(w);
    assert_int_equal(call(w, &c.call, CALL_EXTEND), 0);
    (void)world_keep_task(w, c.task);
    assert_true(c.deadline_at >= before + 950000 && c.deadline_at <= world_now(w) + 950000);
}

static void test_a_heartbeat_in_sent_moves_both_times(struct world *w)
{
    const struct task *t = bring(w, "k", TASK_SENT);
    wall_ms told;

    assert_int_equal(extend(w, t->id, 1, 7200000, &told), 0);
    assert_true(told > t->deadline_at);
    assert_true(look(w, "k")->deadline_at == told);
    assert_true(look(w, "k")->next_attempt_time == told);
}

static void test_a_deadline_never_moves_closer(struct world *w)
{
    static const enum task_status statuses[] = {TASK_SENDING, TASK_SENT};

    for (size_t i = 0; i < 2; i++) {
        const char *key = task_status_name(statuses[i]);
        const struct task *t = bring(w, key, statuses[i]);
        wall_ms told;

        assert_int_equal(extend(w, t->id, 1, 1, &told), 0);
        assert_true(told == t->deadline_at);
        assert_true(look(w, key)->deadline_at == t->deadline_at);
        assert_true(look(w, key)->next_attempt_time == t->next_attempt_time);
    }
}

static void test_heartbeats_of_other_attempts_conflict(struct world *w)
{
    const struct task *t = bring(w, "k", TASK_SENDING);

    assert_int_equal(extend(w, t->id, 0, 3600000, NULL), ERR_CONFLICT);
    assert_int_equal(extend(w, t->id, 2, 3600000, NULL), ERR_CONFLICT);
    assert_same_task(look(w, "k"), t);
    t = bring(w, "p", TASK_PENDING);
    assert_int_equal(extend(w, t->id, 0, 3600000, NULL), ERR_CONFLICT);
    t = bring(w, "f", TASK_FAILED);
    assert_int_equal(extend(w, t->id, 1, 3600000, NULL), ERR_CONFLICT);
    t = bring(w, "s", TASK_SUCCESS);
    assert_int_equal(extend(w, t->id, 1, 3600000, NULL), ERR_CONFLICT);
    assert_same_task(look(w, "s"), t);
    assert_int_equal(extend(w, INT64_MAX, 1, 3600000, NULL), ERR_NOT_FOUND);
}

/* Whoever comes after the deadline does not know whether the rescue has been decided. */
static void test_a_heartbeat_after_the_deadline_conflicts(struct world *w)
{
    const struct task *t = ghost(w, "k");

    assert_int_equal(extend(w, t->id, 1, 3600000, NULL), ERR_CONFLICT);
    assert_same_task(look(w, "k"), t);
}

static void test_a_heartbeat_keeps_the_rescue_away(struct world *w)
{
    struct claim_item item = {.id = put_key(w, "k"), .timeout_ms = 5000};
    struct claim_item *list[] = {&item};
    wall_ms old;
    struct err err = {0};

    assert_int_equal(w->d->claim(w->conn, list, 1, STR(NODE), 0, &err), 0);
    (void)world_keep_task(w, item.task);
    old = item.task->deadline_at;
    assert_int_equal(extend(w, item.id, 1, 3600000, NULL), 0);
    assert_true(look(w, "k")->deadline_at > old);
    assert_int_equal(finish_one(w, rescue_of(w, item.task)), FINISH_LOST);
    assert_status(w, "k", TASK_SENDING);
}

static const struct test_case cases[] = {
    {"rescue: a ghost", test_a_ghost_is_rescued, 0},
    {"retry-43: an attempt is counted at its claim", test_an_attempt_is_counted_at_its_claim, 0},
    {"rescue: not before the deadline", test_no_rescue_before_the_deadline, 0},
    {"rescue: a result that never came", test_a_result_that_never_came, 0},
    {"claim-25: a stale rescue changes nothing", test_a_stale_rescue_changes_nothing, 0},
    {"rescue: a late answer still counts", test_a_late_answer_still_counts, 0},
    {"rescue: an answer after it is lost", test_an_answer_after_the_rescue_is_lost, 0},
    {"heartbeat: moves the deadline", test_a_heartbeat_moves_the_deadline, 0},
    {"heartbeat: moves both times of SENT", test_a_heartbeat_in_sent_moves_both_times, 0},
    {"heartbeat: never moves a deadline closer", test_a_deadline_never_moves_closer, 0},
    {"heartbeat: as long as its claim", test_a_heartbeat_is_as_long_as_its_claim, 0},
    {"heartbeat: other attempts conflict", test_heartbeats_of_other_attempts_conflict, 0},
    {"heartbeat: after the deadline", test_a_heartbeat_after_the_deadline_conflicts, 0},
    {"heartbeat: keeps the rescue away", test_a_heartbeat_keeps_the_rescue_away, 0},
};

const struct case_list rescue_cases = CASE_LIST(cases);
