/* SPDX-License-Identifier: Apache-2.0 */
/* A batch whose commit is unknown is run again with the same arguments, and then reports what
 * really holds. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

static void test_submit_again(struct world *w)
{
    struct task tasks[5];
    struct submit_item items[5];
    enum submit_result first[5];
    const struct task *before[5];

    (void)bring(w, "duplicate", TASK_PENDING);
    (void)bring(w, "foreign", TASK_PENDING);
    (void)bring(w, "replaced", TASK_PENDING);
    tasks[0] = draft(w, "created1");
    tasks[1] = draft(w, "created2");
    tasks[2] = draft(w, "duplicate");
    tasks[3] = draft(w, "foreign");
    tasks[3].handler = STR("other");
    tasks[4] = draft(w, "replaced");
    for (size_t i = 0; i < 5; i++)
        items[i] = (struct submit_item){.task = &tasks[i]};
    items[4].on_conflict = ON_CONFLICT_REPLACE;
    submit(w, items, 5);
    for (size_t i = 0; i < 5; i++) {
        first[i] = items[i].result;
        before[i] = look_key(w, tasks[i].biz_uuid);
    }
    submit(w, items, 5);
    for (size_t i = 0; i < 5; i++) {
        const struct task *after = look_key(w, tasks[i].biz_uuid);

        assert_int_equal(items[i].result, first[i]);
        assert_true((items[i].existing == NULL) == (first[i] == SUBMIT_CREATED));
        assert_true(after->id == before[i]->id);
    }
    assert_same_task(look(w, "created1"), &tasks[0]);
}

static void submit_again_after(struct world *w, const char *key, enum task_status status)
{
    struct task t = draft(w, key);
    const struct task *now;
    struct submit_item item;

    (void)put(w, &t);
    if (status == TASK_CANCELLED)
        assert_int_equal(cancel(w, key, NULL), CANCEL_DONE);
    else
        (void)claim_won(w, t.id, 0);
    if (status == TASK_SUCCESS)
        finish_done(w, t.id, 1, FINISH_SUCCESS);
    now = look(w, key);
    item = submit_one(w, &t, ON_CONFLICT_RETURN, false);
    assert_int_equal(item.result, SUBMIT_CREATED);
    assert_null(item.existing);
    assert_same_task(look(w, key), now);
    assert_int_equal(now->status, status);
}

static void test_submit_again_when_it_has_moved_on(struct world *w)
{
    submit_again_after(w, "claimed", TASK_SENDING);
    submit_again_after(w, "finished", TASK_SUCCESS);
    submit_again_after(w, "cancelled", TASK_CANCELLED);
    if (has_sql(w))
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 1);
}

static void test_claim_again(struct world *w)
{
    struct claim_item items[3];
    const struct task *first;
    struct task late;

    items[0] = claim_of(put_key(w, "won"), 0);
    late = draft(w, "late");
    late.execute_time = late.next_attempt_time = late.created_at + 600000;
    items[1] = claim_of(put(w, &late), 0);
    items[2] = claim_of(put_key(w, "lost"), 1);
    claim(w, items, 3, NODE);
    first = items[0].task;
    claim(w, items, 3, NODE);
    assert_int_equal(items[0].result, CLAIM_WON);
    assert_same_task(items[0].task, first);
    assert_int_equal(items[1].result, CLAIM_NOT_DUE);
    assert_true(items[1].next_attempt_time == late.next_attempt_time);
    assert_int_equal(items[2].result, CLAIM_LOST);
    assert_int_equal(look(w, "won")->attempt, 1);
}

/* The name of another process, or another epoch, is no repeat. */
static void test_claim_again_by_another_is_lost(struct world *w)
{
    static const char *const others[] = {"node-b/1", "node-a/2", "NODE-A/1", "node-a"};
    int64_t id = put_key(w, "k");
    const struct task *won = claim_won(w, id, 0);

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_int_equal(claim_as(w, id, 0, others[i]).result, CLAIM_LOST);
    assert_same_task(look(w, "k"), won);
}

static void test_claim_again_when_it_has_ended_is_lost(struct world *w)
{
    int64_t id = put_key(w, "k");

    (void)claim_won(w, id, 0);
    finish_done(w, id, 1, FINISH_RETRY);
    assert_int_equal(claim_as(w, id, 0, NODE).result, CLAIM_LOST);
    assert_status(w, "k", TASK_RETRYING);
    assert_int_equal(look(w, "k")->attempt, 1);
}

static void test_finish_again(struct world *w)
{
    static const char *const keys[] = {"f0", "f1", "f2", "f3", "f4"};
    struct finish_item items[5];
    const struct task *before[5];

    for (int kind = FINISH_SUCCESS; kind <= FINISH_PUT_BACK; kind++) {
        int64_t id = put_key(w, keys[kind]);

        (void)claim_won(w, id, 0);
        items[kind] = finish_of(w, id, 1, (enum finish_kind)kind);
        items[kind].from = 1u << TASK_SENDING;
    }
    items[FINISH_FAIL].alert = true;
    items[FINISH_PUT_BACK].snoozed = true;
    finish(w, items, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(items[i].result, FINISH_DONE);
        before[i] = look(w, keys[i]);
    }
    finish(w, items, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(items[i].result, FINISH_DONE);
        assert_same_task(look(w, keys[i]), before[i]);
    }
    assert_int_equal(look_attempts(w, items[FINISH_RETRY].id).n_attempts, 1);
    assert_int_equal(look_attempts(w, items[FINISH_FAIL].id).n_attempts, 1);
    assert_int_equal(look(w, keys[FINISH_PUT_BACK])->snooze_count, 1);
    assert_int_equal(count_alerts(w), 1);
}

/* Two different endings of one attempt: the second one did not work earlier. */
static void test_another_ending_is_no_repeat(struct world *w)
{
    for (int first = FINISH_SUCCESS; first <= FINISH_PUT_BACK; first++) {
        for (int then = FINISH_SUCCESS; then <= FINISH_PUT_BACK; then++) {
            struct str key = world_text(w, "%d-%d", first, then);
            struct task t = draft_key(w, key);
            const struct task *before;
            struct finish_item item;

            if (first == then)
                continue;
            (void)put(w, &t);
            (void)claim_won(w, t.id, 0);
            finish_done(w, t.id, 1, (enum finish_kind)first);
            before = look_key(w, key);
            item = finish_of(w, t.id, 1, (enum finish_kind)then);
            item.from = 1u << TASK_SENDING;
            assert_int_equal(finish_one(w, item), FINISH_LOST);
            assert_same_task(look_key(w, key), before);
        }
    }
}

static void test_cancel_again(struct world *w)
{
    const struct task *first;
    const struct task *again;

    (void)put_key(w, "k");
    assert_int_equal(cancel(w, "k", &first), CANCEL_DONE);
    assert_int_equal(cancel(w, "k", &again), CANCEL_ALREADY);
    assert_same_task(again, first);
}

static const struct test_case cases[] = {
    {"repeat: submit again", test_submit_again, 0},
    {"repeat: submit again when it has moved on", test_submit_again_when_it_has_moved_on, 0},
    {"repeat: claim again", test_claim_again, 0},
    {"repeat: a claim by another is lost", test_claim_again_by_another_is_lost, 0},
    {"repeat: a claim that has ended is lost", test_claim_again_when_it_has_ended_is_lost, 0},
    {"repeat: finish again", test_finish_again, 0},
    {"repeat: another ending is no repeat", test_another_ending_is_no_repeat, 0},
    {"repeat: cancel again", test_cancel_again, 0},
};

const struct case_list repeat_cases = CASE_LIST(cases);
