/* SPDX-License-Identifier: Apache-2.0 */
/* Alerts and retention. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

#define FAR INT64_C(4102444800000) /* 2100 */

static int64_t failed(struct world *w, const char *key)
{
    int64_t id = put_key(w, key);
    struct finish_item f = finish_of(w, id, 1, FINISH_FAIL);

    (void)claim_won(w, id, 0);
    f.alert = true;
    assert_int_equal(finish_one(w, f), FINISH_DONE);
    return id;
}

static struct call_alert_list alerts(struct world *w, uint32_t limit, int64_t lease_ms)
{
    struct call_alert_list c = {.limit = limit, .lease_ms = lease_ms};

    assert_int_equal(call(w, &c.call, CALL_ALERT_LIST), 0);
    (void)world_keep(w, c.alerts);
    for (size_t i = 0; i < c.n; i++)
        (void)world_keep_task(w, c.alerts[i].task);
    assert_true(c.n <= limit);
    return c;
}

static void end_alert(struct world *w, int64_t id, int32_t attempt, bool told, int64_t retry_ms)
{
    struct call_alert_end c = {
        .task_id = id, .attempt = attempt, .told = told, .retry_ms = retry_ms};

    assert_int_equal(call(w, &c.call, CALL_ALERT_END), 0);
}

static void test_an_alert_names_its_task(struct world *w)
{
    int64_t id = failed(w, "k");
    struct call_alert_list c = alerts(w, 10, 1000);

    assert_int_equal(c.n, 1);
    assert_true(c.alerts[0].task_id == id);
    assert_int_equal(c.alerts[0].attempt, 1);
    assert_int_equal(c.alerts[0].tries, 0);
    assert_same_task(c.alerts[0].task, look(w, "k"));
}

static void test_listing_leases(struct world *w)
{
    int64_t ids[3];
    struct call_alert_list c;

    ids[0] = failed(w, "a");
    ids[1] = failed(w, "b");
    ids[2] = failed(w, "c");
    c = alerts(w, 2, 3600000);
    assert_int_equal(c.n, 2);
    assert_true(c.alerts[0].task_id != c.alerts[1].task_id);
    ids[0] += ids[1] + ids[2] - c.alerts[0].task_id - c.alerts[1].task_id;
    c = alerts(w, 2, 3600000);
    assert_int_equal(c.n, 1);
    assert_true(c.alerts[0].task_id == ids[0]);
    assert_int_equal(alerts(w, 2, 3600000).n, 0);
}

static void test_a_lease_runs_out(struct world *w)
{
    wall_ms now;

    (void)failed(w, "k");
    assert_int_equal(alerts(w, 1, 3).n, 1);
    now = world_now(w);
    world_wait_past(w, now + 3);
    assert_int_equal(alerts(w, 1, 3).n, 1);
}

static void test_told_or_put_off(struct world *w)
{
    int64_t a = failed(w, "a");
    int64_t b = failed(w, "b");
    struct call_alert_list c;

    end_alert(w, a, 1, true, 0);
    end_alert(w, a, 1, true, 0); /* again: the same */
    end_alert(w, b, 2, true, 0); /* another attempt's */
    c = alerts(w, 10, 0);
    assert_int_equal(c.n, 1);
    assert_true(c.alerts[0].task_id == b);
    end_alert(w, b, 1, false, 3600000);
    assert_int_equal(alerts(w, 10, 0).n, 0);
    end_alert(w, b, 1, false, 0);
    c = alerts(w, 10, 0);
    assert_int_equal(c.n, 1);
    assert_int_equal(c.alerts[0].tries, 2);
    end_alert(w, b, 1, true, 0);
    assert_int_equal(alerts(w, 10, 0).n, 0);
    if (has_sql(w))
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_alert"), 0);
}

/* ---- Retention ----------------------------------------------------------------------------- */

static struct call_purge purge(struct world *w, wall_ms history_before, wall_ms failed_before,
                               int64_t after_id, uint32_t limit)
{
    struct call_purge c = {.history_before = history_before,
                           .failed_before = failed_before,
                           .after_id = after_id,
                           .limit = limit};

    assert_int_equal(call(w, &c.call, CALL_PURGE), 0);
    return c;
}

static void test_history_goes_by_age(struct world *w)
{
    const struct task *old = bring(w, "old", TASK_SUCCESS);
    const struct task *young;
    struct call_purge c;

    world_wait_past(w, old->finished_at);
    young = bring(w, "young", TASK_CANCELLED);
    (void)bring(w, "live", TASK_PENDING);
    c = purge(w, young->finished_at, 0, 0, 100);
    assert_int_equal(c.n_deleted, 1);
    assert_int_equal(c.n_moved, 0);
    assert_true(c.next_after_id == 0);
    assert_null(look(w, "old"));
    assert_non_null(look(w, "young"));
    assert_non_null(look(w, "live"));
    assert_int_equal(purge(w, young->finished_at + 1, 0, 0, 100).n_deleted, 1);
    assert_null(look(w, "young"));
    assert_non_null(look(w, "live"));
}

static void test_attempts_go_along(struct world *w)
{
    int64_t gone = bring(w, "gone", TASK_RETRYING)->id;
    int64_t kept = bring(w, "kept", TASK_RETRYING)->id;

    (void)claim_won(w, gone, 1);
    finish_done(w, gone, 2, FINISH_SUCCESS);
    assert_int_equal(purge(w, FAR, 0, 0, 100).n_deleted, 1);
    assert_int_equal(look_attempts(w, kept).n_attempts, 1);
    if (has_sql(w))
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_attempt"), 1);
}

static void test_a_walk_in_steps(struct world *w)
{
    enum { N = 25 };
    int64_t ids[N];
    struct task like = draft(w, "like");
    size_t deleted = 0;
    int64_t after = 0;
    int steps = 0;

    put_many(w, "p", N, &like, ids);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(cancel(w, world_text(w, "p%04zu", i).p, NULL), CANCEL_DONE);
    do {
        struct call_purge c = purge(w, world_now(w) + 1, 0, after, 10);

        assert_true(c.n_deleted <= 10);
        assert_true(!c.next_after_id || c.next_after_id > after);
        deleted += c.n_deleted;
        after = c.next_after_id;
        assert_true(++steps < 10);
    } while (after);
    assert_int_equal(deleted, N);
    assert_null(look(w, "p0000"));
}

/* A step looks at a bounded number of rows, also when it deletes none of them. */
static void test_a_walk_passes_what_is_young(struct world *w)
{
    enum { N = 25 };
    struct task like = draft(w, "like");
    int64_t after = 0;
    int steps = 0;

    put_many(w, "p", N, &like, NULL);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(cancel(w, world_text(w, "p%04zu", i).p, NULL), CANCEL_DONE);
    do {
        struct call_purge c = purge(w, like.created_at - 100000, 0, after, 10);

        assert_int_equal(c.n_deleted, 0);
        after = c.next_after_id;
        assert_true(++steps < 10);
    } while (after);
    assert_true(steps == 3 || steps == 4);
    assert_non_null(look(w, "p0000"));
}

static void test_failures_move_by_their_own_age(struct world *w)
{
    int64_t old_id = failed(w, "old");
    const struct task *old = look(w, "old");
    const struct task *young;
    const struct task *moved;
    struct call_purge c;

    world_wait_past(w, old->failed_at);
    young = bring(w, "young", TASK_FAILED);
    c = purge(w, 0, young->failed_at, 0, 100);
    assert_int_equal(c.n_moved, 1);
    assert_int_equal(c.n_deleted, 0);
    assert_same_task(look(w, "young"), young);
    moved = look_id(w, old_id);
    assert_int_equal(moved->status, TASK_FAILED);
    assert_true(moved->finished_at != WALL_NONE);
    assert_true(moved->next_attempt_time == WALL_NONE);
    assert_string_equal(moved->trace_id, old->trace_id);
    assert_str(moved->last_error, "it broke");
    assert_int_equal(look_attempts(w, old_id).n_attempts, 1);
    if (has_sql(w)) {
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 1);
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task_history"), 1);
    }
    assert_int_equal(purge(w, 0, young->failed_at, 0, 100).n_moved, 0);
    assert_int_equal(purge(w, FAR, 0, 0, 100).n_deleted, 1);
    assert_null(look(w, "old"));
}

static void test_a_moved_failure_answers_for_its_key(struct world *w)
{
    const struct task *t = bring(w, "k", TASK_FAILED);
    struct task again = draft(w, "k");
    struct submit_item item;

    assert_int_equal(purge(w, 0, t->failed_at + 1, 0, 100).n_moved, 1);
    item = submit_one(w, &again, ON_CONFLICT_RETURN, false);
    assert_int_equal(item.result, SUBMIT_DUPLICATE);
    assert_true(item.existing->id == t->id);
}

static void test_manual_required_moves_too(struct world *w)
{
    const struct task *t = bring(w, "k", TASK_MANUAL_REQUIRED);

    assert_int_equal(purge(w, 0, t->failed_at + 1, 0, 100).n_moved, 1);
    assert_status(w, "k", TASK_MANUAL_REQUIRED);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 0);
}

static void test_failures_move_in_bounded_steps(struct world *w)
{
    static const char *const keys[] = {"a", "b", "c", "d", "e"};
    wall_ms last = 0;

    for (size_t i = 0; i < 5; i++)
        last = bring(w, keys[i], TASK_FAILED)->failed_at;
    assert_int_equal(purge(w, 0, last + 1, 0, 2).n_moved, 2);
    assert_int_equal(purge(w, 0, last + 1, 0, 2).n_moved, 2);
    assert_int_equal(purge(w, 0, last + 1, 0, 2).n_moved, 1);
    assert_int_equal(purge(w, 0, last + 1, 0, 2).n_moved, 0);
}

static const struct test_case cases[] = {
    {"alert: names its task", test_an_alert_names_its_task, 0},
    {"alert: listing leases", test_listing_leases, 0},
    {"alert: a lease runs out", test_a_lease_runs_out, 0},
    {"alert: told or put off", test_told_or_put_off, 0},
    {"purge: history goes by age", test_history_goes_by_age, 0},
    {"purge: attempts go along", test_attempts_go_along, 0},
    {"purge: a walk in steps", test_a_walk_in_steps, 0},
    {"purge: a walk passes what is young", test_a_walk_passes_what_is_young, 0},
    {"purge: failures move by their own age", test_failures_move_by_their_own_age, 0},
    {"purge: a moved failure answers for its key", test_a_moved_failure_answers_for_its_key, 0},
    {"purge: MANUAL_REQUIRED moves too", test_manual_required_moves_too, NEEDS_SQL},
    {"purge: failures move in bounded steps", test_failures_move_in_bounded_steps, 0},
};

const struct case_list alert_cases = CASE_LIST(cases);
