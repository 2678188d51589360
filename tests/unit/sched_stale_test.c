/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that a scan read before the scheduler took their tasks further. The fixture's first scan is
 * out when a test begins. */
#include "node/core/sched_pull.h"
#include "tests/unit/sched_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define ID 7
#define LANE 4
#define CLAIMS_MAX 8

static size_t claims(struct fixture *f)
{
    struct action c[CLAIMS_MAX];

    return take_actions(f, ACTION_CLAIM, c, CLAIMS_MAX);
}

static struct action claim_of(struct fixture *f, int64_t id)
{
    struct action c;

    hint(f, "orders", LANE, id, f->now);
    tick_at(f, f->now);
    assert_int_equal(take_actions(f, ACTION_CLAIM, &c, 1), 1);
    return c;
}

/* The first attempt of a task, from its claim to its end and what the store says of that. */
static void attempt_with(struct fixture *f, int64_t id, enum verdict_kind end,
                         enum finish_result result)
{
    struct action c = claim_of(f, id);
    struct action finish;

    answer_send(f, win(f, &c, "orders", 0), end, &finish);
    finished(f, &finish, result);
}

static void attempt(struct fixture *f, int64_t id, enum verdict_kind end)
{
    attempt_with(f, id, end, FINISH_DONE);
}

static struct scan_row row(int64_t id, enum task_status status, int32_t attempt)
{
    return (struct scan_row){.id = id,
                             .next_attempt_time = T0 - 10,
                             .status = status,
                             .attempt = attempt,
                             .deadline_at = T0 + 60000,
                             .priority = 5};
}

static void scan_brings_both(struct fixture *f, struct scan_row first, struct scan_row second)
{
    struct scan_row rows[] = {first, second};

    assert_true(answer_scans(f, rows, 2, LANE) > 0);
    tick_at(f, f->now);
}

static void scan_brings(struct fixture *f, struct scan_row r)
{
    assert_true(answer_scans(f, &r, 1, LANE) > 0);
    tick_at(f, f->now);
}

static struct sched_stats stats(struct fixture *f)
{
    struct sched_stats st;

    sched_stats(f->s, &st);
    return st;
}

static void test_ended_tasks_are_not_claimed(void **state)
{
    struct fixture *f = *state;

    attempt(f, ID, VERDICT_SUCCESS);
    scan_brings(f, row(ID, TASK_PENDING, 0));
    assert_int_equal(claims(f), 0);
    assert_int_equal(stats(f).n_tracked, 0);
}

/* Somebody ran it again meanwhile. */
static void test_the_next_attempt_is_claimed(void **state)
{
    struct fixture *f = *state;

    attempt(f, ID, VERDICT_FINAL);
    scan_brings(f, row(ID, TASK_PENDING, 1));
    assert_int_equal(claims(f), 1);
}

/* Whatever a database that was set back brings, no task is left out for good. */
static void test_the_next_scan_is_believed(void **state)
{
    struct fixture *f = *state;

    attempt(f, ID, VERDICT_SUCCESS);
    assert_true(answer_scans(f, NULL, 0, LANE) > 0);
    tick_at(f, f->now + 2000);
    scan_brings(f, row(ID, TASK_PENDING, 0));
    assert_int_equal(claims(f), 1);
}

/* What ended before the scan was asked has to be remembered by nobody. */
static void test_the_end_before_a_scan_says_nothing(void **state)
{
    struct fixture *f = *state;

    assert_true(answer_scans(f, NULL, 0, LANE) > 0);
    attempt(f, ID, VERDICT_SUCCESS);
    tick_at(f, f->now + 2000);
    scan_brings(f, row(ID, TASK_PENDING, 0));
    assert_int_equal(claims(f), 1);
}

static void test_put_back_tasks_keep_their_time(void **state)
{
    struct fixture *f = *state;

    attempt(f, ID, VERDICT_SNOOZE);
    scan_brings(f, row(ID, TASK_PENDING, 0));
    assert_int_equal(claims(f), 0);
}

static void test_a_retry_keeps_its_time(void **state)
{
    struct fixture *f = *state;

    attempt(f, ID, VERDICT_RETRY);
    scan_brings(f, row(ID, TASK_PENDING, 0));
    assert_int_equal(claims(f), 0);
    assert_int_equal(stats(f).n_waiting, 1);
    tick_at(f, f->now + 1000);
    assert_int_equal(claims(f), 1);
}

/* Somebody wants it now, while it waits. */
static void test_a_retry_that_is_run_now_is_claimed(void **state)
{
    struct fixture *f = *state;

    attempt(f, ID, VERDICT_RETRY);
    scan_brings(f, row(ID, TASK_RETRYING, 1));
    assert_int_equal(claims(f), 1);
}

static void test_ended_attempts_are_not_watched(void **state)
{
    struct fixture *f = *state;

    attempt(f, ID, VERDICT_SUCCESS);
    scan_brings(f, row(ID, TASK_SENDING, 1));
    assert_int_equal(stats(f).n_ghosts, 0);
}

static void test_later_attempts_are_watched(void **state)
{
    struct fixture *f = *state;

    attempt(f, ID, VERDICT_FINAL);
    scan_brings(f, row(ID, TASK_SENDING, 2));
    assert_int_equal(stats(f).n_ghosts, 1);
}

static void test_awaited_results_are_watched(void **state)
{
    struct fixture *f = *state;

    attempt(f, ID, VERDICT_ACCEPTED);
    scan_brings(f, row(ID, TASK_SENT, 1));
    assert_int_equal(stats(f).n_ghosts, 1);
}

static void test_accepted_attempts_are_no_ghosts(void **state)
{
    struct fixture *f = *state;

    attempt(f, ID, VERDICT_ACCEPTED);
    attempt(f, ID + 1, VERDICT_ACCEPTED);
    scan_brings_both(f, row(ID, TASK_SENDING, 1), row(ID + 1, TASK_PENDING, 0));
    assert_int_equal(claims(f), 0);
    assert_int_equal(stats(f).n_ghosts, 0);
}

/* A ghost that one scan brought; its rescue, for the last time, while the next one is out. */
static struct scan_row overdue_ghost(struct fixture *f, enum task_status status,
                                     struct action *ret_finish)
{
    struct scan_row ghost = row(ID, status, 1);

    ghost.deadline_at = f->now + 2000;
    scan_brings(f, ghost);
    assert_int_equal(stats(f).n_ghosts, 1);
    tick_at(f, f->now + 2000);
    assert_int_equal(take_actions(f, ACTION_FINISH, ret_finish, 1), 1);
    assert_int_equal(ret_finish->finish.kind, FINISH_FAIL);
    return ghost;
}

static void rescued(struct fixture *f, enum task_status status)
{
    struct action finish;
    struct scan_row ghost = overdue_ghost(f, status, &finish);

    finished(f, &finish, FINISH_DONE);
    scan_brings(f, ghost);
    assert_int_equal(take_actions(f, ACTION_FINISH, &finish, 1), 0);
    assert_int_equal(stats(f).n_ghosts, 0);
}

static void test_rescued_attempts_are_not_rescued_again(void **state)
{
    rescued(*state, TASK_SENDING);
}

static void test_results_that_did_not_come_are_missed_once(void **state)
{
    rescued(*state, TASK_SENT);
}

/* A task that was handed to a worker is nobody's in memory. */
static void leased(struct fixture *f)
{
    const struct lease_ask ask = {.service_name = STR("orders"), .want = 1};
    struct lease *l;
    struct action c;
    struct action got;

    f->services[0].delivery = DELIVERY_PULL;
    set_services(f);
    assert_int_equal(sched_lease(f->s, f->now, &ask, &l), 0);
    c = claim_of(f, ID);
    c.claim.result = CLAIM_WON;
    c.claim.task = claimed_task(ID, "orders", 1, 0);
    sched_claimed(f->s, f->now, 0, &c.claim, &f->a);
    assert_int_equal(take_actions(f, ACTION_LEASED, &got, 1), 1);
    task_free(got.leased.task);
    assert_int_equal(take_actions(f, ACTION_LEASE_DONE, &got, 1), 1);
    assert_int_equal(sched_lease(f->s, f->now, &ask, &l), 0); /* there is somebody to claim for */
}

static void test_leased_tasks_are_not_claimed(void **state)
{
    struct fixture *f = *state;

    leased(f);
    scan_brings(f, row(ID, TASK_PENDING, 0));
    assert_int_equal(claims(f), 0);
    assert_int_equal(stats(f).n_tracked, 0);
}

static void test_leases_are_watched(void **state)
{
    struct fixture *f = *state;

    leased(f);
    scan_brings(f, row(ID, TASK_SENDING, 1));
    assert_int_equal(stats(f).n_ghosts, 1);
}

/* That this node's own attempt is no longer there may mean that the database was set back. */
static void test_a_lost_finish_says_nothing(void **state)
{
    struct fixture *f = *state;

    attempt_with(f, ID, VERDICT_SUCCESS, FINISH_LOST);
    scan_brings(f, row(ID, TASK_PENDING, 0));
    assert_int_equal(claims(f), 1);
}

/* It is still this node's claim: a second one would be taken for the first, and sent again. */
static void test_an_attempt_whose_end_was_refused_is_not_repeated(void **state)
{
    struct fixture *f = *state;

    attempt_with(f, ID, VERDICT_SUCCESS, FINISH_FAILED);
    scan_brings(f, row(ID, TASK_PENDING, 0));
    assert_int_equal(claims(f), 0);
}

static void test_an_attempt_whose_end_was_refused_is_watched(void **state)
{
    struct fixture *f = *state;

    attempt_with(f, ID, VERDICT_SUCCESS, FINISH_FAILED);
    scan_brings(f, row(ID, TASK_SENDING, 1));
    assert_int_equal(stats(f).n_ghosts, 1);
}

/* Of a ghost, in either state. */
static void end_of_ghost_refused(struct fixture *f, enum task_status status)
{
    struct action finish;
    struct scan_row ghost = overdue_ghost(f, status, &finish);

    finished(f, &finish, FINISH_FAILED);
    assert_int_equal(stats(f).n_ghosts, 0);
    scan_brings(f, ghost);
    assert_int_equal(take_actions(f, ACTION_FINISH, &finish, 1), 1); /* it is tried again */
    finished(f, &finish, FINISH_DONE);
}

static void test_ghosts_whose_end_was_refused_are_watched(void **state)
{
    end_of_ghost_refused(*state, TASK_SENDING);
}

static void test_results_whose_end_was_refused_are_awaited(void **state)
{
    end_of_ghost_refused(*state, TASK_SENT);
}

static void test_neighbours_are_known(void **state)
{
    struct fixture *f = *state;

    attempt(f, ID, VERDICT_SUCCESS);
    attempt(f, ID + 1, VERDICT_SUCCESS);
    scan_brings_both(f, row(ID, TASK_PENDING, 0), row(ID + 1, TASK_PENDING, 0));
    assert_int_equal(claims(f), 0);
}

/* Two ids that share a place: the one that ended last is known. */
static void test_the_memory_is_bounded(void **state)
{
    struct fixture *f = *state;
    const int64_t other = ID + (INT64_C(1) << 32);
    struct action c;

    attempt(f, ID, VERDICT_SUCCESS);
    attempt(f, other, VERDICT_SUCCESS);
    scan_brings_both(f, row(ID, TASK_PENDING, 0), row(other, TASK_PENDING, 0));
    assert_int_equal(take_actions(f, ACTION_CLAIM, &c, 1), 1);
    assert_int_equal(c.claim.id, ID);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, sched_setup, sched_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_ended_tasks_are_not_claimed),
        TEST(test_the_next_attempt_is_claimed),
        TEST(test_the_next_scan_is_believed),
        TEST(test_the_end_before_a_scan_says_nothing),
        TEST(test_put_back_tasks_keep_their_time),
        TEST(test_a_retry_keeps_its_time),
        TEST(test_a_retry_that_is_run_now_is_claimed),
        TEST(test_ended_attempts_are_not_watched),
        TEST(test_later_attempts_are_watched),
        TEST(test_awaited_results_are_watched),
        TEST(test_accepted_attempts_are_no_ghosts),
        TEST(test_rescued_attempts_are_not_rescued_again),
        TEST(test_results_that_did_not_come_are_missed_once),
        TEST(test_leased_tasks_are_not_claimed),
        TEST(test_leases_are_watched),
        TEST(test_a_lost_finish_says_nothing),
        TEST(test_an_attempt_whose_end_was_refused_is_not_repeated),
        TEST(test_an_attempt_whose_end_was_refused_is_watched),
        TEST(test_ghosts_whose_end_was_refused_are_watched),
        TEST(test_results_whose_end_was_refused_are_awaited),
        TEST(test_neighbours_are_known),
        TEST(test_the_memory_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
