/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: who gets what is due, and what becomes of it when nobody is there any more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "node/core/sched_explain.h"
#include "node/core/sched_pull.h"
#include "tests/unit/sched_fixture.h"

#define CLAIMS_MAX 64

static int setup_pull(void **state)
{
    int rc = sched_setup(state);
    struct fixture *f = *state;

    f->services[0].delivery = DELIVERY_PULL;
    set_services(f);
    answer_scans(f, NULL, 0, 0);
    return rc;
}

static struct lease *lease(struct fixture *f, uint32_t want, int32_t visibility_ms, void *ctx)
{
    const struct lease_ask ask = {
        .service_name = STR("orders"), .want = want, .visibility_ms = visibility_ms, .ctx = ctx};
    struct lease *l = NULL;

    assert_int_equal(sched_lease(f->s, f->now, &ask, &l), 0);
    tick_at(f, f->now);
    return l;
}

static void due(struct fixture *f, int64_t first, int64_t n)
{
    for (int64_t id = first; id < first + n; id++)
        hint(f, "orders", 4, id, f->now);
    tick_at(f, f->now);
}

static size_t claims(struct fixture *f, struct action *dst)
{
    return take_actions(f, ACTION_CLAIM, dst, CLAIMS_MAX);
}

/* The claim comes back won, with the time that it asked for. */
static void won(struct fixture *f, const struct action *claim)
{
    struct claim_item item = claim->claim;

    item.result = CLAIM_WON;
    item.task = claimed_task(item.id, "orders", item.attempt + 1, 0);
    item.task->deadline_at = item.task->claimed_at + item.timeout_ms + MARGIN;
    sched_claimed(f->s, f->now, 0, &item, &f->a);
    sched_check(f->s);
}

static void lost(struct fixture *f, const struct action *claim)
{
    struct claim_item item = claim->claim;

    item.result = CLAIM_LOST;
    sched_claimed(f->s, f->now, 0, &item, &f->a);
    sched_check(f->s);
}

/* Tasks that were handed to the asker, freed; and whether its lease is over. */
static size_t handed(struct fixture *f, const void *ctx, bool *ret_done)
{
    struct action got[CLAIMS_MAX];
    size_t n = take_actions(f, ACTION_LEASED, got, CLAIMS_MAX);
    struct action done;

    for (size_t i = 0; i < n; i++) {
        assert_ptr_equal(got[i].leased.ctx, ctx);
        task_free(got[i].leased.task);
    }
    *ret_done = take_actions(f, ACTION_LEASE_DONE, &done, 1) == 1;
    assert_true(!*ret_done || done.leased.ctx == ctx);
    return n;
}

static void test_nothing_is_claimed_unasked(void **state)
{
    struct fixture *f = *state;
    struct action c[CLAIMS_MAX];
    struct sched_explanation e;
    bool done;
    int me;

    due(f, 1, 3);
    assert_int_equal(claims(f, c), 0);
    assert_int_equal(sched_pull_ready(f->s, STR("orders")), 3);
    sched_explain(f->s, f->now, STR("orders"), 0, 2, f->now, &e);
    assert_int_equal(e.gate, GATE_WORKER);
    struct lease *l = lease(f, 2, 0, &me);
    assert_int_equal(claims(f, c), 2);
    assert_int_equal(c[0].claim.timeout_ms, 5000);
    assert_true(sched_lease_is_claiming(l));
    won(f, &c[0]);
    assert_int_equal(handed(f, &me, &done), 1);
    assert_false(done);
    won(f, &c[1]);
    assert_int_equal(handed(f, &me, &done), 1);
    assert_true(done);
    tick_at(f, f->now + 1000);
    assert_int_equal(claims(f, c), 0);
    assert_int_equal(sched_pull_ready(f->s, STR("orders")), 1);
}

static void test_a_waiting_lease_is_served_at_once(void **state)
{
    struct fixture *f = *state;
    struct action c[CLAIMS_MAX];
    int first;
    int second;
    bool done;

    lease(f, 10, 250, &first);
    struct lease *l = lease(f, 10, 0, &second);
    due(f, 1, 1);
    assert_int_equal(claims(f, c), 1);
    assert_int_equal(c[0].claim.timeout_ms, 250);
    due(f, 2, 2); /* the first one's round is out */
    assert_int_equal(claims(f, c + 1), 2);
    won(f, &c[0]);
    assert_int_equal(handed(f, &first, &done), 1);
    assert_true(done);
    lost(f, &c[1]);
    assert_int_equal(handed(f, &second, &done), 0);
    assert_false(done);
    lost(f, &c[2]); /* goes back into the queue */
    assert_int_equal(handed(f, &second, &done), 0);
    assert_false(done);
    due(f, 4, 1);
    assert_int_equal(claims(f, c), 1);
    won(f, &c[0]);
    assert_int_equal(handed(f, &second, &done), 1);
    assert_true(done);
    (void)l;
}

static void test_what_comes_too_late_is_given_back(void **state)
{
    struct fixture *f = *state;
    struct action c[CLAIMS_MAX];
    struct action finish;
    bool done;
    int me;

    due(f, 1, 1);
    struct lease *l = lease(f, 5, 0, &me);
    assert_int_equal(claims(f, c), 1);
    sched_lease_end(f->s, f->now, l);
    sched_check(f->s);
    won(f, &c[0]);
    assert_int_equal(handed(f, &me, &done), 0);
    assert_false(done);
    assert_int_equal(take_actions(f, ACTION_FINISH, &finish, 1), 1);
    assert_int_equal(finish.finish.kind, FINISH_PUT_BACK);
    assert_int_equal(finish.finish.retry_count, 0);
    finished(f, &finish, FINISH_DONE);
    lease(f, 5, 0, &me);
    tick_at(f, f->now + 2);
    assert_int_equal(claims(f, c), 1);
    assert_int_equal(c[0].claim.attempt, 1);
    won(f, &c[0]);
    assert_int_equal(handed(f, &me, &done), 1);
    assert_true(done);
}

/* The answer to the first claim was lost; the second lease was promised more time than the row
 * has. */
static void test_a_shorter_lease_is_not_handed_on(void **state)
{
    struct fixture *f = *state;
    struct action c[CLAIMS_MAX];
    struct action finish;
    struct claim_item item;
    bool done;
    int me;

    due(f, 1, 1);
    lease(f, 1, 100, &me);
    assert_int_equal(claims(f, c), 1);
    item = c[0].claim;
    sched_claimed(f->s, f->now, ERR_UNAVAILABLE, &item, &f->a);
    sched_check(f->s);
    struct lease *l = NULL;
    const struct lease_ask ask = {
        .service_name = STR("orders"), .want = 1, .visibility_ms = 9000, .ctx = &me};
    assert_int_equal(sched_lease(f->s, f->now, &ask, &l), 0);
    tick_at(f, f->now + 5000);
    assert_int_equal(claims(f, c), 1);
    assert_int_equal(c[0].claim.timeout_ms, 100); /* the first lease asks again */
    assert_int_equal(c[0].claim.lease, item.lease);
    won(f, &c[0]);
    assert_int_equal(handed(f, &me, &done), 1);
    assert_true(done);
    due(f, 2, 1);
    assert_int_equal(claims(f, c), 1);
    assert_int_not_equal(c[0].claim.lease, item.lease);
    c[0].claim.timeout_ms = 100; /* as an earlier lease asked */
    won(f, &c[0]);
    assert_int_equal(handed(f, &me, &done), 0);
    assert_false(done);
    assert_int_equal(take_actions(f, ACTION_FINISH, &finish, 1), 1);
    assert_int_equal(finish.finish.kind, FINISH_PUT_BACK);
    finished(f, &finish, FINISH_DONE);
    sched_lease_end(f->s, f->now, l);
}

static void test_retries_have_their_turn(void **state)
{
    struct fixture *f = *state;
    struct action c[CLAIMS_MAX];
    size_t n_retries = 0;
    size_t n;
    int me;

    for (int64_t id = 1; id <= 20; id++)
        hint(f, "orders", 4, id, f->now);
    for (int64_t id = 21; id <= 40; id++)
        hint(f, "orders", 14, id, f->now);
    tick_at(f, f->now);
    lease(f, 18, 0, &me);
    n = claims(f, c);
    assert_int_equal(n, 18);
    for (size_t i = 0; i < n; i++) {
        n_retries += c[i].claim.id > 20;
        lost(f, &c[i]);
    }
    assert_int_equal(n_retries, 2); /* after each eight others */
}

static void test_slots_are_of_claims_only(void **state)
{
    struct fixture *f = *state;
    struct action c[CLAIMS_MAX];
    int me;
    bool done;

    for (int round = 0; round < 10; round++) { /* 160 leased out, of 64 that may be in flight */
        due(f, 1 + round * 16, 16);
        lease(f, 16, 0, &me);
        assert_int_equal(claims(f, c), 16);
        for (size_t i = 0; i < 16; i++)
            won(f, &c[i]);
        assert_int_equal(handed(f, &me, &done), 16);
        assert_true(done);
    }
}

static void test_modes_change(void **state)
{
    struct fixture *f = *state;
    struct action c[CLAIMS_MAX];
    struct action finish;
    struct lease *l;
    bool done;
    int me;

    due(f, 1, 2);
    l = lease(f, 1, 0, &me);
    assert_int_equal(claims(f, c), 1);
    f->services[0].delivery = DELIVERY_PUSH;
    set_services(f);
    won(f, &c[0]); /* it was asked for by the lease */
    assert_int_equal(handed(f, &me, &done), 1);
    assert_true(done);
    assert_int_equal(claims(f, c), 1); /* the other one is sent */
    f->services[0].delivery = DELIVERY_PULL;
    set_services(f);
    won(f, &c[0]);
    assert_int_equal(take_actions(f, ACTION_FINISH, &finish, 1), 1);
    assert_int_equal(finish.finish.kind, FINISH_PUT_BACK);
    finished(f, &finish, FINISH_DONE);
    tick_at(f, f->now + 2);
    assert_int_equal(claims(f, c), 0);
    l = lease(f, 1, 0, &me);
    assert_int_equal(claims(f, c), 1);
    sched_lease_end(f->s, f->now, l);
    lost(f, &c[0]);
}

static void test_who_may_lease(void **state)
{
    struct fixture *f = *state;
    struct lease *l;
    const struct lease_ask nobody = {.service_name = STR("nobody"), .want = 1};
    const struct lease_ask pushed = {.service_name = STR("pushed"), .want = 1};

    add_service(f, "pushed", 1);
    set_services(f);
    assert_int_equal(sched_lease(f->s, f->now, &nobody, &l), ERR_NOT_FOUND);
    assert_int_equal(sched_lease(f->s, f->now, &pushed, &l), ERR_CONFLICT);
    lease(f, 1, 0, NULL);
    f->n_services = 0; /* a service that is gone stays while somebody waits for it */
    set_services(f);
    assert_int_equal(sched_can_lease(f->s, STR("orders")), ERR_NOT_FOUND);
    sched_stop(f->s, f->now, &f->a);
    assert_int_equal(sched_can_lease(f->s, STR("orders")), ERR_SHUTDOWN);
}

static void see(struct fixture *f, struct scan_row *row)
{
    tick_at(f, f->now + 60000);
    assert_true(answer_scans(f, row, 1, 4) > 0);
}

static void test_ghosts_of_leased_rows(void **state)
{
    struct fixture *f = *state;
    struct action finish;
    struct sched_stats stats;
    struct scan_row row = {
        .id = 7, .status = TASK_SENDING, .attempt = 1, .max_retry = 3, .priority = 5};

    row.next_attempt_time = T0;
    row.deadline_at = T0 + 600000; /* far off: not in memory yet */
    see(f, &row);
    sched_stats(f->s, &stats);
    assert_int_equal(stats.n_tracked, 0);
    row.deadline_at = f->now + 61000;
    see(f, &row);
    sched_stats(f->s, &stats);
    assert_int_equal(stats.n_ghosts, 1);
    tick_at(f, row.deadline_at - 1);
    assert_int_equal(take_actions(f, ACTION_FINISH, &finish, 1), 0);
    tick_at(f, row.deadline_at);
    assert_int_equal(take_actions(f, ACTION_FINISH, &finish, 1), 1);
    assert_int_equal(finish.finish.kind, FINISH_RETRY);
    assert_true(finish.finish.past_deadline);
    finished(f, &finish, FINISH_DONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_is_claimed_unasked, setup_pull,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_a_waiting_lease_is_served_at_once, setup_pull,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_what_comes_too_late_is_given_back, setup_pull,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_a_shorter_lease_is_not_handed_on, setup_pull,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_retries_have_their_turn, setup_pull, sched_teardown),
        cmocka_unit_test_setup_teardown(test_slots_are_of_claims_only, setup_pull, sched_teardown),
        cmocka_unit_test_setup_teardown(test_modes_change, setup_pull, sched_teardown),
        cmocka_unit_test_setup_teardown(test_who_may_lease, setup_pull, sched_teardown),
        cmocka_unit_test_setup_teardown(test_ghosts_of_leased_rows, setup_pull, sched_teardown),
    };

    return cmocka_run_group_tests_name("sched_pull", tests, NULL, NULL);
}
