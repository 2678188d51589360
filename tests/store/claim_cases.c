/* SPDX-License-Identifier: Apache-2.0 */
/* A claim is a compare-and-set on attempt, status and time. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

static void test_a_due_task_is_won(struct world *w)
{
    struct task t = draft(w, "k");
    wall_ms before = world_now(w);
    const struct task *won;

    (void)put(w, &t);
    won = claim_won(w, t.id, 0);
    assert_true(won->claimed_at >= before && won->claimed_at <= world_now(w));
    t.status = TASK_SENDING;
    t.attempt = 1;
    t.claimed_by = STR(NODE);
    t.claimed_at = won->claimed_at;
    t.updated_at = won->updated_at;
    t.deadline_at = won->claimed_at + TIMEOUT_MS + MARGIN_MS;
    assert_true(won->updated_at >= before);
    assert_same_task(won, &t);
    assert_same_task(look(w, "k"), won);
}

static void test_a_time_out_of_its_own(struct world *w)
{
    struct task t = draft(w, "k");
    const struct task *won;

    t.timeout_ms = 7;
    (void)put(w, &t);
    won = claim_won(w, t.id, 0);
    assert_true(won->deadline_at == won->claimed_at + 7 + MARGIN_MS);
}

/* A reader that slept while the row went PENDING, SENDING, PENDING. */
static void test_a_stale_attempt_loses(struct world *w)
{
    int64_t id = put_key(w, "k");
    const struct task *before;

    (void)claim_won(w, id, 0);
    finish_done(w, id, 1, FINISH_PUT_BACK);
    before = look(w, "k");
    assert_int_equal(before->status, TASK_PENDING);
    assert_int_equal(claim_as(w, id, 0, "node-b/1").result, CLAIM_LOST);
    assert_same_task(look(w, "k"), before);
    assert_int_equal(claim_as(w, id, 2, "node-b/1").result, CLAIM_LOST);
    assert_int_equal(claim_as(w, id, 1, "node-b/1").result, CLAIM_WON);
    assert_int_equal(look(w, "k")->attempt, 2);
}

static void test_two_claimers_on_two_connections(struct world *w)
{
    struct driver_conn *mine = w->conn;
    struct claim_item a;
    struct claim_item b;
    int64_t id = put_key(w, "k");

    a = claim_as(w, id, 0, "node-a/1");
    w->conn = world_connect(w);
    b = claim_as(w, id, 0, "node-b/1");
    w->conn = mine;
    assert_int_equal(a.result, CLAIM_WON);
    assert_int_equal(b.result, CLAIM_LOST);
    assert_str(look(w, "k")->claimed_by, "node-a/1");
}

static void test_not_due_yet(struct world *w)
{
    struct task t = draft(w, "k");
    struct claim_item item;

    t.execute_time = t.next_attempt_time = t.created_at + 600000;
    (void)put(w, &t);
    item = claim_as(w, t.id, 0, NODE);
    assert_int_equal(item.result, CLAIM_NOT_DUE);
    assert_true(item.next_attempt_time == t.next_attempt_time);
    assert_same_task(look(w, "k"), &t);
}

static void test_due_within_the_millisecond(struct world *w)
{
    struct task t = draft(w, "k");
    struct claim_item item;
    mono_ms until = clock_mono() + DEADLINE_MS;

    t.execute_time = t.next_attempt_time = t.created_at + 30;
    (void)put(w, &t);
    do {
        assert_true(clock_mono() < until);
        item = claim_as(w, t.id, 0, NODE);
    } while (item.result == CLAIM_NOT_DUE);
    assert_int_equal(item.result, CLAIM_WON);
    assert_true(item.task->claimed_at >= t.next_attempt_time);
}

static void move(struct world *w, const char *key, wall_ms to)
{
    struct call_move c = {.biz_uuid = str_from(key), .execute_time = to};

    assert_int_equal(call(w, &c.call, CALL_MOVE), 0);
    (void)world_keep_task(w, c.task);
}

static void test_moved_since_it_was_read(struct world *w)
{
    wall_ms now = world_now(w);
    int64_t id = put_key(w, "k");
    struct claim_item item;

    move(w, "k", now + 900000);
    item = claim_as(w, id, 0, NODE);
    assert_int_equal(item.result, CLAIM_NOT_DUE);
    assert_true(item.next_attempt_time == now + 900000);
    move(w, "k", now);
    item = claim_as(w, id, 0, NODE);
    assert_int_equal(item.result, CLAIM_WON);
    assert_true(item.task->execute_time == now);
}

static void test_what_cannot_be_claimed(struct world *w)
{
    static const enum task_status statuses[] = {TASK_SENDING, TASK_SENT, TASK_FAILED, TASK_SUCCESS,
                                                TASK_CANCELLED};

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        const char *key = task_status_name(statuses[i]);
        const struct task *t = bring(w, key, statuses[i]);

        assert_int_equal(claim_as(w, t->id, t->attempt, NODE).result, CLAIM_LOST);
        assert_same_task(look(w, key), t);
    }
    assert_int_equal(claim_as(w, INT64_MAX, 0, NODE).result, CLAIM_LOST);
}

static void test_the_payload_is_that_of_the_row_now(struct world *w)
{
    struct call_move c = {.biz_uuid = STR("k"),
                          .execute_time = WALL_NONE,
                          .set_payload = true,
                          .payload = STR("{\"now\": 1e400}")};
    int64_t id = put_key(w, "k");

    assert_int_equal(call(w, &c.call, CALL_MOVE), 0);
    (void)world_keep_task(w, c.task);
    assert_str(claim_won(w, id, 0)->payload, "{\"now\": 1e400}");
}

static void test_payloads_arrive_byte_for_byte(struct world *w)
{
    const struct str payloads[] = {
        STR("18446744073709551615"),
        STR("{\"ns\":1491926160718000000,\"id\":9007199254740993}"),
        STR("1e400"),
        STR("1.10"),
        STR(" [ 1,\t\"\\n\\\\ \xf0\x9f\x90\x98\" ]\n"),
        world_fill(w, "\xf0\x9f\x90\x98", 65536),
        {NULL, 0},
    };
    const size_t n = sizeof(payloads) / sizeof(payloads[0]);
    struct claim_item items[sizeof(payloads) / sizeof(payloads[0])];

    for (size_t i = 0; i < n; i++) {
        struct task t = draft_key(w, world_text(w, "p%zu", i));

        t.payload = payloads[i];
        items[i] = claim_of(put(w, &t), 0);
    }
    claim(w, items, n, NODE);
    for (size_t i = 0; i < n; i++)
        assert_true(str_eq(items[i].task->payload, payloads[i]));
}

static void test_a_retry_keeps_its_count(struct world *w)
{
    int64_t id = put_key(w, "k");
    struct finish_item f;
    const struct task *won;

    (void)claim_won(w, id, 0);
    f = finish_of(w, id, 1, FINISH_RETRY);
    f.retry_count = 2;
    assert_int_equal(finish_one(w, f), FINISH_DONE);
    won = claim_won(w, id, 1);
    assert_int_equal(won->attempt, 2);
    assert_int_equal(won->retry_count, 2);
    assert_int_equal(won->lane, task_lane(TASK_PRIORITY_DEFAULT, true));
    assert_true(won->next_attempt_time == f.next_attempt_time);
}

static void test_a_mixed_batch(struct world *w)
{
    int64_t ids[400];
    struct claim_item items[400];
    struct task like = draft(w, "like");
    size_t won = 0;

    put_many(w, "m", 400, &like, ids);
    for (size_t i = 0; i < 400; i++)
        items[i] = claim_of(ids[i], i % 4 == 3);
    move(w, "m0100", like.created_at + 600000);
    assert_int_equal(cancel(w, "m0200", NULL), CANCEL_DONE);
    claim(w, items, 400, NODE);
    for (size_t i = 0; i < 400; i++)
        won += items[i].result == CLAIM_WON;
    assert_int_equal(won, 298);
    assert_int_equal(items[100].result, CLAIM_NOT_DUE);
    assert_int_equal(items[200].result, CLAIM_LOST);
    assert_int_equal(items[3].result, CLAIM_LOST);
    for (size_t i = 0; i < 400; i++) {
        if (items[i].task)
            assert_true(items[i].task->id == ids[i]);
    }
}

static const struct test_case cases[] = {
    {"claim: a due task is won", test_a_due_task_is_won, 0},
    {"claim: a time-out of its own", test_a_time_out_of_its_own, 0},
    {"claim-24: a stale attempt loses", test_a_stale_attempt_loses, 0},
    {"claim: two claimers on two connections", test_two_claimers_on_two_connections, 0},
    {"claim: not due yet", test_not_due_yet, 0},
    {"claim: never early", test_due_within_the_millisecond, 0},
    {"claim: moved since it was read", test_moved_since_it_was_read, 0},
    {"claim: what cannot be claimed", test_what_cannot_be_claimed, 0},
    {"claim: the payload is that of the row now", test_the_payload_is_that_of_the_row_now, 0},
    {"http-65: payloads arrive byte for byte", test_payloads_arrive_byte_for_byte, 0},
    {"claim: a retry keeps its count", test_a_retry_keeps_its_count, 0},
    {"claim: a mixed batch", test_a_mixed_batch, 0},
};

const struct case_list claim_cases = CASE_LIST(cases);
