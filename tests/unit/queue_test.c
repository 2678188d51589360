/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "node/store/queue.h"

#define BATCH_ROWS 8
#define BATCH_BYTES 100

static struct queue q;

static int setup(void **state)
{
    (void)state;
    queue_init(&q, 20, BATCH_ROWS, BATCH_BYTES);
    for (int i = 0; i < 3; i++)
        queue_add_thread(&q, LANES_ALL);
    return 0;
}

static void add(struct store_op *op)
{
    assert_int_equal(queue_add(&q, op), 0);
}

static size_t chain_len(const struct store_op *chain)
{
    size_t n = 0;

    for (; chain; chain = chain->next)
        n++;
    return n;
}

static struct submit_op submit(size_t n_rows, size_t weight)
{
    return (struct submit_op){.op = {.kind = STORE_SUBMIT, .weight = weight}, .n = n_rows};
}

static void test_lanes(void **state)
{
    static const struct {
        enum call_what what;
        enum lane lane;
    } calls[] = {
        {CALL_GET, LANE_READ},           {CALL_LIST, LANE_READ},
        {CALL_SERVICE_LIST, LANE_READ},  {CALL_CLOCK, LANE_READ},
        {CALL_MOVE, LANE_CALL},          {CALL_NODE_BEAT, LANE_NODE},
        {CALL_ALERT_LIST, LANE_CALL},    {CALL_PURGE, LANE_CALL},
        {CALL_GET_MANY, LANE_READ},      {CALL_EXTEND_MANY, LANE_CALL},
        {CALL_EXTEND, LANE_CALL},        {CALL_SERVICE_PUT, LANE_CALL},
        {CALL_INSTANCE_LIST, LANE_READ}, {CALL_INSTANCE_PUT, LANE_CALL},
    };
    static const enum lane by_kind[STORE_N_KINDS] = {
        [STORE_SUBMIT] = LANE_SUBMIT, [STORE_CLAIM] = LANE_CLAIM, [STORE_FINISH] = LANE_FINISH,
        [STORE_CANCEL] = LANE_CANCEL, [STORE_SCAN] = LANE_SCAN,
    };

    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct store_call call = {.op.kind = STORE_CALL, .what = calls[i].what};

        assert_int_equal(op_lane(&call.op), calls[i].lane);
    }
    for (enum store_kind k = 0; k < STORE_CALL; k++)
        assert_int_equal(op_lane(&(struct store_op){.kind = k}), by_kind[k]);
}

static void test_limit_is_each_lanes_own(void **state)
{
    struct submit_op submits[21];
    struct store_op cancel = {.kind = STORE_CANCEL};

    (void)state;
    for (int i = 0; i < 21; i++) {
        submits[i] = submit(1, 0);
        assert_int_equal(queue_add(&q, &submits[i].op), i < 20 ? 0 : ERR_BUSY);
    }
    add(&cancel);
    assert_int_equal(q.n_ops, 21);
}

static void test_take_respects_rows(void **state)
{
    struct submit_op ops[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        ops[i] = submit(3, 0);
        add(&ops[i].op);
    }
    struct store_op *chain = queue_take(&q, LANE_SUBMIT);
    assert_int_equal(chain_len(chain), 2); /* 3 * 3 > 8 */
    assert_ptr_equal(chain, &ops[0].op);
    assert_ptr_equal(chain->next, &ops[1].op);
    assert_int_equal(q.lanes[LANE_SUBMIT].n_rows, 6);
    assert_int_equal(q.n_ops, 2);
}

static void test_take_respects_bytes(void **state)
{
    struct submit_op ops[3] = {submit(1, 60), submit(1, 40), submit(1, 1)};

    (void)state;
    for (int i = 0; i < 3; i++)
        add(&ops[i].op);
    assert_int_equal(chain_len(queue_take(&q, LANE_SUBMIT)), 2);
    assert_int_equal(q.lanes[LANE_SUBMIT].n_bytes, 1);
}

static void test_take_gives_a_huge_operation_alone(void **state)
{
    struct submit_op ops[2] = {submit(50, 5000), submit(1, 1)};

    (void)state;
    add(&ops[0].op);
    add(&ops[1].op);
    assert_int_equal(chain_len(queue_take(&q, LANE_SUBMIT)), 1);
    assert_int_equal(chain_len(queue_take(&q, LANE_SUBMIT)), 1);
    assert_int_equal(q.n_ops, 0);
}

static void test_unbatched_go_one_by_one(void **state)
{
    struct store_op scans[2] = {{.kind = STORE_SCAN}, {.kind = STORE_SCAN}};

    (void)state;
    add(&scans[0]);
    add(&scans[1]);
    assert_ptr_equal(queue_take(&q, LANE_SCAN), &scans[0]);
    assert_null(scans[0].next);
    assert_ptr_equal(queue_take(&q, LANE_SCAN), &scans[1]);
}

static void test_goes_round(void **state)
{
    struct finish_op finish = {.op.kind = STORE_FINISH, .n = 1};
    struct claim_op claim = {.op.kind = STORE_CLAIM, .n = 1};
    struct submit_op sub = submit(1, 0);
    struct store_op scan = {.kind = STORE_SCAN};

    (void)state;
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_SCAN), LANE_NONE);
    add(&scan);
    add(&sub.op);
    add(&claim.op);
    add(&finish.op);
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_SCAN), LANE_FINISH);
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_FINISH), LANE_CLAIM);
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_CLAIM), LANE_SUBMIT);
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_SUBMIT), LANE_SCAN);
    assert_int_equal(queue_pick(&q, LANES_READING, LANE_SCAN), LANE_SCAN);
}

static void test_few_wait_for_the_running_batch(void **state)
{
    struct submit_op ops[3] = {submit(1, 0), submit(1, 0), submit(1, 0)};

    (void)state;
    add(&ops[0].op);
    (void)queue_take(&q, LANE_SUBMIT);
    add(&ops[1].op);
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_SCAN), LANE_NONE);
    add(&ops[2].op); /* a quarter of a batch */
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_SCAN), LANE_SUBMIT);
}

static void test_the_end_of_a_batch_frees_the_lane(void **state)
{
    struct submit_op ops[2] = {submit(1, 0), submit(1, 0)};

    (void)state;
    add(&ops[0].op);
    (void)queue_take(&q, LANE_SUBMIT);
    add(&ops[1].op);
    assert_false(queue_wants_thread(&q, LANE_SUBMIT));
    queue_end(&q, LANE_SUBMIT);
    assert_true(queue_wants_thread(&q, LANE_SUBMIT));
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_SCAN), LANE_SUBMIT);
}

static void test_many_bytes_are_worth_a_thread(void **state)
{
    struct submit_op ops[2] = {submit(1, 0), submit(1, BATCH_BYTES / 4)};

    (void)state;
    add(&ops[0].op);
    (void)queue_take(&q, LANE_SUBMIT);
    add(&ops[1].op);
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_SCAN), LANE_SUBMIT);
}

static void test_one_wake_up_for_a_burst(void **state)
{
    struct submit_op op = submit(1, 0);

    (void)state;
    add(&op.op);
    assert_true(queue_wants_thread(&q, LANE_SUBMIT));
    q.lanes[LANE_SUBMIT].n_woken = 1;
    assert_false(queue_wants_thread(&q, LANE_SUBMIT));
    /* A thread that is awake takes it all the same. */
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_SCAN), LANE_SUBMIT);
}

static void test_unbatched_leave_one_thread(void **state)
{
    struct store_op scans[3] = {{.kind = STORE_SCAN}, {.kind = STORE_SCAN}, {.kind = STORE_SCAN}};

    (void)state;
    for (int i = 0; i < 3; i++)
        add(&scans[i]);
    (void)queue_take(&q, LANE_SCAN);
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_SCAN), LANE_SCAN);
    (void)queue_take(&q, LANE_SCAN);
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_SCAN), LANE_NONE);
}

static void test_calls_do_not_hold_up_heartbeats(void **state)
{
    struct store_call extend = {.op.kind = STORE_CALL, .what = CALL_EXTEND};
    struct store_call beat = {.op.kind = STORE_CALL, .what = CALL_NODE_BEAT};
    struct store_call more[3];

    (void)state;
    add(&extend.op);
    for (int i = 0; i < 3; i++) {
        more[i] = extend;
        add(&more[i].op);
    }
    add(&beat.op);
    (void)queue_take(&q, LANE_CALL);
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_CALL), LANE_NODE);
    assert_ptr_equal(queue_take(&q, LANE_NODE), &beat.op);
}

static void test_last_thread_prefers_other_kinds(void **state)
{
    struct submit_op ops[3] = {submit(8, 0), submit(8, 0), submit(8, 0)};
    struct claim_op claim = {.op.kind = STORE_CLAIM, .n = 1};

    (void)state;
    for (int i = 0; i < 3; i++)
        add(&ops[i].op);
    (void)queue_take(&q, LANE_SUBMIT);
    (void)queue_take(&q, LANE_SUBMIT);
    /* Nothing else waits: even the last thread takes submissions. */
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_CLAIM), LANE_SUBMIT);
    add(&claim.op);
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_CLAIM), LANE_CLAIM);
}

static void test_draining_waits_for_nothing(void **state)
{
    struct submit_op ops[2] = {submit(1, 0), submit(1, 0)};

    (void)state;
    add(&ops[0].op);
    (void)queue_take(&q, LANE_SUBMIT);
    add(&ops[1].op);
    q.draining = true;
    assert_int_equal(queue_pick(&q, LANES_ALL, LANE_SCAN), LANE_SUBMIT);
}

static void test_put_back_keeps_the_order(void **state)
{
    struct submit_op ops[4] = {submit(4, 1), submit(4, 1), submit(4, 1), submit(4, 1)};

    (void)state;
    for (int i = 0; i < 2; i++)
        add(&ops[i].op);
    struct store_op *chain = queue_take(&q, LANE_SUBMIT);
    queue_put_back(&q, LANE_SUBMIT, NULL);
    assert_int_equal(q.n_ops, 0);
    queue_put_back(&q, LANE_SUBMIT, chain); /* into an empty lane, whose end then moves */
    add(&ops[2].op);
    queue_put_back(&q, LANE_SUBMIT, &ops[3].op);
    assert_int_equal(q.lanes[LANE_SUBMIT].n_rows, 16);
    assert_int_equal(q.lanes[LANE_SUBMIT].n_bytes, 4);
    chain = queue_take(&q, LANE_SUBMIT);
    assert_ptr_equal(chain, &ops[3].op);
    assert_ptr_equal(chain->next, &ops[0].op);
    chain = queue_take(&q, LANE_SUBMIT);
    assert_ptr_equal(chain, &ops[1].op);
    assert_ptr_equal(chain->next, &ops[2].op);
}

static void test_expire_takes_the_old(void **state)
{
    struct submit_op ops[3] = {submit(1, 0), submit(1, 0), submit(1, 0)};
    struct store_op *chain;

    (void)state;
    for (int i = 0; i < 3; i++) {
        ops[i].op.posted_at = 10 * i;
        add(&ops[i].op);
    }
    assert_null(queue_expire(&q, LANE_SUBMIT, 0));
    chain = queue_expire(&q, LANE_SUBMIT, 20);
    assert_ptr_equal(chain, &ops[0].op);
    assert_int_equal(chain_len(chain), 2);
    assert_int_equal(q.n_ops, 1);
    assert_ptr_equal(queue_expire(&q, LANE_SUBMIT, INT64_MAX), &ops[2].op);
    assert_int_equal(q.n_ops, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes),
        cmocka_unit_test_setup(test_limit_is_each_lanes_own, setup),
        cmocka_unit_test_setup(test_take_respects_rows, setup),
        cmocka_unit_test_setup(test_take_respects_bytes, setup),
        cmocka_unit_test_setup(test_take_gives_a_huge_operation_alone, setup),
        cmocka_unit_test_setup(test_unbatched_go_one_by_one, setup),
        cmocka_unit_test_setup(test_goes_round, setup),
        cmocka_unit_test_setup(test_few_wait_for_the_running_batch, setup),
        cmocka_unit_test_setup(test_the_end_of_a_batch_frees_the_lane, setup),
        cmocka_unit_test_setup(test_many_bytes_are_worth_a_thread, setup),
        cmocka_unit_test_setup(test_one_wake_up_for_a_burst, setup),
        cmocka_unit_test_setup(test_unbatched_leave_one_thread, setup),
        cmocka_unit_test_setup(test_calls_do_not_hold_up_heartbeats, setup),
        cmocka_unit_test_setup(test_last_thread_prefers_other_kinds, setup),
        cmocka_unit_test_setup(test_draining_waits_for_nothing, setup),
        cmocka_unit_test_setup(test_put_back_keeps_the_order, setup),
        cmocka_unit_test_setup(test_expire_takes_the_old, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
