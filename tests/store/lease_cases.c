/* SPDX-License-Identifier: Apache-2.0 */
/* Claims for workers, and what workers report in bulk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/core/attemptcall.h"
#include "tests/store/world.h"

#define LEASE 9007199254740993 /* beyond what a double holds */

static struct claim_item lease_as(struct world *w, int64_t id, int32_t attempt, int64_t lease)
{
    struct claim_item item = claim_of(id, attempt);

    item.lease = lease;
    claim(w, &item, 1, NODE);
    return item;
}

static void test_who_has_leased_it(struct world *w)
{
    int64_t ids[3];
    struct claim_item items[3];
    struct task like = draft(w, "like");

    put_many(w, "k", 3, &like, ids);
    for (size_t i = 0; i < 3; i++)
        items[i] = claim_of(ids[i], 0);
    items[1].lease = 7;
    items[2].lease = LEASE;
    items[2].timeout_ms = 1234;
    claim(w, items, 3, NODE);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(items[i].result, CLAIM_WON);
    assert_str(items[0].task->claimed_by, NODE);
    assert_str(items[1].task->claimed_by, NODE "/7");
    assert_str(items[2].task->claimed_by, NODE "/9007199254740993");
    assert_true(items[2].task->deadline_at == items[2].task->claimed_at + 1234 + MARGIN_MS);
    assert_same_task(look_id(w, ids[2]), items[2].task);
}

/* One whose answer was lost is asked again. Another lease of the same process, or a request, may
 * not take it: the first one's worker has it. */
static void test_only_the_same_lease_is_recognised(struct world *w)
{
    int64_t id = put_key(w, "k");

    assert_int_equal(lease_as(w, id, 0, 7).result, CLAIM_WON);
    assert_int_equal(lease_as(w, id, 0, 8).result, CLAIM_LOST);
    assert_int_equal(lease_as(w, id, 0, 77).result, CLAIM_LOST);
    assert_int_equal(lease_as(w, id, 0, 0).result, CLAIM_LOST);
    assert_int_equal(claim_as(w, id, 0, "node-a/2").result, CLAIM_LOST);
    assert_int_equal(lease_as(w, id, 0, 7).result, CLAIM_WON);
    assert_int_equal(look_id(w, id)->attempt, 1);
    int64_t sent = put_key(w, "s");
    (void)claim_won(w, sent, 0);
    assert_int_equal(lease_as(w, sent, 0, 7).result, CLAIM_LOST);
}

static void test_a_lease_is_no_orphan(struct world *w)
{
    int64_t id = put_key(w, "k");
    struct scan_key key = {.service_name = STR("svc"),
                           .lane = task_lane(TASK_PRIORITY_DEFAULT, false),
                           .from_time = WALL_NONE,
                           .to_time = world_now(w) + 1000,
                           .limit = 10};
    struct scan_op op = {.keys = &key, .n_keys = 1, .claimed_by = STR("node-a/2")};
    struct err err = {0};

    assert_int_equal(lease_as(w, id, 0, 7).result, CLAIM_WON);
    assert_int_equal(w->d->scan(w->conn, &op, &err), 0);
    assert_int_equal(op.n_rows, 1);
    assert_false(op.rows[0].own_orphan);
    free(op.rows);
}

/* ---- Reports ------------------------------------------------------------------------------- */

static void test_many_tasks_at_once(struct world *w)
{
    int64_t ids[5];
    struct call_get_many c = {.n = 5};
    struct task like = draft(w, "like");

    like.policy = STR("slow");
    like.timeout_ms = 55;
    put_many(w, "k", 4, &like, ids);
    (void)claim_won(w, ids[1], 0);
    (void)claim_won(w, ids[2], 0);
    finish_done(w, ids[2], 1, FINISH_SUCCESS);
    ids[4] = ids[3] + 1000000; /* nobody's */
    c.ids = ids;
    assert_int_equal(call(w, &c.call, CALL_GET_MANY), 0);
    for (size_t i = 0; i < 4; i++) {
        struct task want = *look_id(w, ids[i]);

        want.payload = (struct str){0};
        assert_non_null(c.tasks[i]);
        assert_same_task(c.tasks[i], &want);
        task_free(c.tasks[i]);
    }
    assert_int_equal(look_id(w, ids[2])->status, TASK_SUCCESS);
    assert_null(c.tasks[4]);
    free(c.tasks);
}

static struct extend_item beat(struct world *w, int64_t id, int32_t attempt, int64_t extend_ms)
{
    struct extend_item item = {.id = id, .attempt = attempt, .extend_ms = extend_ms};

    memcpy(item.trace_id, look_id(w, id)->trace_id, sizeof(item.trace_id));
    return item;
}

static void beats(struct world *w, struct extend_item *items, size_t n)
{
    struct call_extend_many c = {
        .items = items, .n = n, .default_timeout_ms = 120000, .margin_ms = 5000};

    assert_int_equal(call(w, &c.call, CALL_EXTEND_MANY), 0);
}

static void test_heartbeats_of_many(struct world *w)
{
    int64_t ids[6];
    struct extend_item items[8];
    struct task like = draft(w, "like");
    wall_ms before;

    put_many(w, "k", 6, &like, ids);
    for (size_t i = 0; i < 5; i++)
        (void)claim_won(w, ids[i], 0);
    finish_done(w, ids[1], 1, FINISH_SENT);
    finish_done(w, ids[3], 1, FINISH_SUCCESS);
    before = world_now(w);
    items[0] = beat(w, ids[0], 1, 3600000);
    items[1] = beat(w, ids[1], 1, 3600000);
    items[2] = beat(w, ids[2], 1, 0);
    items[3] = beat(w, ids[3], 1, 1000);
    items[4] = beat(w, ids[4], 2, 1000);
    items[5] = beat(w, ids[4], 1, 1000); /* nearer than it is */
    items[6] = beat(w, ids[5], 1, 1000);
    items[7] = beat(w, ids[5], 1, 1000);
    items[7].trace_id[31] ^= 1;
    wall_ms old = look_id(w, ids[4])->deadline_at;
    beats(w, items, 8);
    assert_int_equal(items[0].result, EXTEND_DONE);
    assert_true(items[0].deadline_at >= before + 3600000);
    assert_true(look_id(w, ids[0])->deadline_at == items[0].deadline_at);
    assert_int_equal(items[1].result, EXTEND_DONE);
    assert_true(look_id(w, ids[1])->next_attempt_time == items[1].deadline_at);
    assert_int_equal(items[2].result, EXTEND_DONE);
    assert_true(items[2].deadline_at >= before + 125000);
    assert_int_equal(items[3].result, EXTEND_STALE);
    assert_int_equal(items[3].status, TASK_SUCCESS);
    assert_int_equal(items[4].result, EXTEND_STALE);
    assert_int_equal(items[4].live_attempt, 1);
    assert_int_equal(items[5].result, EXTEND_DONE);
    assert_true(items[5].deadline_at == old && look_id(w, ids[4])->deadline_at == old);
    assert_int_equal(items[6].result, EXTEND_STALE);
    assert_int_equal(items[6].status, TASK_PENDING);
    assert_int_equal(items[7].result, EXTEND_NOT_FOUND);
}

static void test_heartbeats_go_by_the_service(struct world *w)
{
    struct service conf = {.name = STR("svc"), .shards = 1, .timeout_ms = 7000000};
    struct call_service_put c = {.in = &conf};
    struct task own = draft(w, "own");
    struct extend_item items[2];
    wall_ms before;
    int64_t id = put_key(w, "k");

    own.timeout_ms = 9000000;
    (void)put(w, &own);
    assert_int_equal(call(w, &c.call, CALL_SERVICE_PUT), 0);
    (void)world_keep(w, c.stored);
    (void)claim_won(w, id, 0);
    (void)claim_won(w, own.id, 0);
    before = world_now(w);
    items[0] = beat(w, id, 1, 0);
    items[1] = beat(w, own.id, 1, 0);
    beats(w, items, 2);
    assert_true(items[0].deadline_at >= before + 7005000 &&
                items[0].deadline_at < before + 8005000);
    assert_true(items[1].deadline_at >= before + 9005000);
}

static void test_heartbeats_after_the_deadline(struct world *w)
{
    struct claim_item item = {.id = put_key(w, "k"), .timeout_ms = 1, .lease = 3};
    struct claim_item *list[] = {&item};
    struct extend_item one;
    struct err err = {0};

    assert_int_equal(w->d->claim(w->conn, list, 1, STR(NODE), 1, &err), 0);
    (void)world_keep_task(w, item.task);
    world_wait_past(w, item.task->deadline_at);
    one = beat(w, item.id, 1, 60000);
    beats(w, &one, 1);
    assert_int_equal(one.result, EXTEND_STALE);
    assert_true(look_id(w, item.id)->deadline_at == item.task->deadline_at);
}

static const struct test_case cases[] = {
    {"lease: who has it", test_who_has_leased_it, 0},
    {"lease: only the same one is recognised", test_only_the_same_lease_is_recognised, 0},
    {"lease: no orphan", test_a_lease_is_no_orphan, 0},
    {"reports: many tasks at once", test_many_tasks_at_once, 0},
    {"reports: heartbeats of many", test_heartbeats_of_many, 0},
    {"reports: heartbeats go by the service", test_heartbeats_go_by_the_service, 0},
    {"reports: heartbeats after the deadline", test_heartbeats_after_the_deadline, 0},
};

const struct case_list lease_cases = CASE_LIST(cases);
