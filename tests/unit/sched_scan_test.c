/* SPDX-License-Identifier: Apache-2.0 */
/* What a scheduler reads of the due index when reading takes long. */
#include "tests/unit/sched_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SLACK 5000
#define LANE 4
#define FULL_READ 60000

/* The lanes of the service read alike. */
#define LANES_MAX 8
static struct scan_key keys[LANES_MAX];
static size_t n_keys;

static void end_scan(struct fixture *f, int rc, int64_t took_ms)
{
    f->now += took_ms;
    sched_scanned(f->s, f->now, rc, took_ms, keys, n_keys, NULL, 0, &f->a);
    sched_check(f->s);
}

static void end_scan_with(struct fixture *f, struct scan_row *rows, size_t n)
{
    uint32_t key = 0;

    while (keys[key].lane != LANE)
        key++;
    for (size_t i = 0; i < n; i++)
        rows[i].key = key;
    sched_scanned(f->s, f->now, 0, 1, keys, n_keys, rows, n, &f->a);
    sched_check(f->s);
}

/* Ticks on until the lane of the usual priority is scanned; returns its key. Scans of the others
 * alone come to nothing. */
static struct scan_key next_scan(struct fixture *f)
{
    struct action scans[LANES_MAX];

    for (int i = 0; i < 2000; i++) {
        tick_at(f, f->now);
        n_keys = take_actions(f, ACTION_SCAN, scans, LANES_MAX);
        for (size_t k = 0; k < n_keys; k++)
            keys[k] = scans[k].scan;
        for (size_t k = 0; k < n_keys; k++) {
            if (keys[k].lane == LANE)
                return keys[k];
        }
        if (n_keys)
            end_scan(f, 0, 0);
        f->now += 100;
    }
    fail_msg("no scan within 200 s");
    return keys[0];
}

static bool is_from_start(const struct scan_key *k)
{
    return k->from_time == WALL_NONE;
}

/* Others begin behind a row, or behind all of a time. */
static bool reads_slack(const struct scan_key *k)
{
    return k->from_id == 0 && !is_from_start(k);
}

/* Checks that nothing was left out that a commit may have brought late: the read begins a slack
 * behind the one before. */
struct slack_reads {
    wall_ms asked_at; /* of the last one that came back */
    int n;
};

static void check_slack(struct fixture *f, struct slack_reads *r, const struct scan_key *k)
{
    if (!reads_slack(k))
        return;
    assert_true(k->from_time <= r->asked_at - SLACK);
    r->asked_at = f->now;
    r->n++;
}

static void test_quick_scans_read_the_slack_each_time(void **state)
{
    struct fixture *f = *state;
    struct scan_key k = next_scan(f);
    struct slack_reads r = {.asked_at = f->now};

    assert_true(is_from_start(&k));
    for (int i = 0; i < 20; i++) {
        end_scan(f, 0, 10);
        k = next_scan(f);
        check_slack(f, &r, &k);
    }
    assert_int_equal(r.n, 20);
    assert_true(k.from_time >= f->now - SLACK - 1100);
}

/* 100 ms each: once in two seconds. Between them a scan goes on from its cursor. */
static void test_slow_scans_read_the_slack_less_often(void **state)
{
    struct fixture *f = *state;
    struct scan_key k = next_scan(f);
    struct slack_reads r = {.asked_at = f->now};
    wall_ms began = f->now;
    wall_ms cursor = k.to_time;

    while (f->now < began + 40000) {
        end_scan(f, 0, is_from_start(&k) || reads_slack(&k) ? 100 : 1);
        k = next_scan(f);
        check_slack(f, &r, &k);
        if (!reads_slack(&k))
            assert_int_equal(k.from_time, cursor);
        cursor = k.to_time;
    }
    assert_in_range(r.n, 10, 20);
}

static void test_very_slow_scans_still_read_the_slack(void **state)
{
    struct fixture *f = *state;
    struct scan_key k = next_scan(f);
    struct slack_reads r = {.asked_at = f->now};

    for (int i = 0; i < 50; i++) {
        end_scan(f, 0, 1000);
        k = next_scan(f);
        check_slack(f, &r, &k);
        assert_true(f->now - r.asked_at <= SLACK + 3000);
    }
    assert_true(r.n > 5);
}

/* What was not read since then is read once it is possible. */
static void test_slack_after_failures(void **state)
{
    struct fixture *f = *state;
    struct scan_key k = next_scan(f);
    wall_ms asked_at = f->now;

    end_scan(f, 0, 1);
    for (int i = 0; i < 20; i++) {
        k = next_scan(f);
        assert_true(reads_slack(&k));
        assert_int_equal(k.from_time, asked_at - SLACK);
        end_scan(f, ERR_UNAVAILABLE, 1);
    }
    assert_true(f->now > asked_at + 10000);
}

/* The next one goes on where it was cut. */
static void test_slack_with_more_than_a_scan_brings(void **state)
{
    struct fixture *f = *state;
    struct scan_key k = next_scan(f);
    struct scan_row rows[20] = {0};

    end_scan(f, 0, 1);
    k = next_scan(f);
    assert_true(reads_slack(&k));
    assert_int_equal(k.limit, 20);
    for (int i = 0; i < 20; i++)
        rows[i] = (struct scan_row){.id = i + 1,
                                    .next_attempt_time = k.from_time + i,
                                    .status = TASK_SENDING,
                                    .attempt = 1,
                                    .deadline_at = f->now + 60000,
                                    .priority = 5};
    end_scan_with(f, rows, 20);
    k = next_scan(f);
    while (!reads_slack(&k)) {
        assert_true(f->now < T0 + 30000);
        end_scan(f, 0, 1);
        k = next_scan(f);
    }
    assert_int_equal(k.from_time, rows[19].next_attempt_time);
}

/* The lane goes on from where it was, so that nothing is left out but what was at the start. */
static void test_reads_from_the_start_that_never_end(void **state)
{
    struct fixture *f = *state;
    struct scan_key k = next_scan(f);
    wall_ms read_to = f->now - SLACK; /* what cannot be read from the start begins here */
    wall_ms given_up = f->now;
    int64_t pause = FULL_READ;

    for (int i = 0; i < 3; i++) {
        assert_true(is_from_start(&k));
        end_scan(f, ERR_BUSY, 5000);
        given_up = f->now;
        k = next_scan(f);
    }
    for (int i = 0; i < 3; i++, pause *= 2) {
        while (!is_from_start(&k)) {
            assert_true(k.from_time <= read_to);
            read_to = k.to_time > read_to ? k.to_time : read_to;
            end_scan(f, 0, 1);
            k = next_scan(f);
        }
        assert_in_range(f->now - given_up, pause, pause + 2000);
        end_scan(f, ERR_BUSY, 5000);
        given_up = f->now;
        k = next_scan(f);
    }
    while (!is_from_start(&k)) {
        end_scan(f, 0, 1);
        k = next_scan(f);
    }
    end_scan(f, 0, 100); /* one that ends makes up for all */
    given_up = f->now;
    do {
        k = next_scan(f);
        end_scan(f, 0, 1);
    } while (!is_from_start(&k));
    assert_in_range(f->now - given_up, FULL_READ - 2000, FULL_READ + 2000);
}

static void test_long_reads_from_the_start_come_less_often(void **state)
{
    struct fixture *f = *state;
    struct scan_key k = next_scan(f);
    wall_ms ended;

    end_scan(f, 0, 4500);
    ended = f->now;
    do {
        k = next_scan(f);
        end_scan(f, 0, 1);
    } while (!is_from_start(&k));
    assert_in_range(f->now - ended, 90000, 92000);
}

#define N_GHOSTS 2

/* Two attempts that were still alive when their time was up: the rows around them are read again,
 * the lane is read as before. */
static void test_rows_of_living_ghosts_are_looked_at(void **state)
{
    struct fixture *f = *state;
    struct scan_row rows[N_GHOSTS] = {0};
    struct action finish[N_GHOSTS];
    struct scan_key k = next_scan(f);
    struct slack_reads r = {.asked_at = f->now};
    wall_ms cursor = k.to_time;
    int n_looks = 0;

    for (int i = 0; i < N_GHOSTS; i++)
        rows[i] = (struct scan_row){.id = i + 1,
                                    .next_attempt_time = T0 - 500 + 100 * i,
                                    .status = TASK_SENDING,
                                    .attempt = 1,
                                    .deadline_at = T0 + 20100,
                                    .priority = 5};
    end_scan_with(f, rows, N_GHOSTS);
    while (f->now < T0 + 40000) {
        size_t n = take_actions(f, ACTION_FINISH, finish, N_GHOSTS);

        for (size_t i = 0; i < n; i++)
            finished(f, &finish[i], FINISH_LOST);
        k = next_scan(f);
        assert_false(is_from_start(&k));
        check_slack(f, &r, &k);
        if (k.to_time == T0 - 400) {
            assert_int_equal(k.from_time, T0 - 501);
            assert_int_equal(k.from_id, INT64_MAX);
            n_looks++;
        } else {
            assert_true(k.from_time <= cursor); /* which the look has left alone */
            cursor = k.to_time;
        }
        end_scan(f, 0, 200);
    }
    assert_int_equal(n_looks, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_quick_scans_read_the_slack_each_time, sched_setup,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_slow_scans_read_the_slack_less_often, sched_setup,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_very_slow_scans_still_read_the_slack, sched_setup,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_slack_after_failures, sched_setup, sched_teardown),
        cmocka_unit_test_setup_teardown(test_slack_with_more_than_a_scan_brings, sched_setup,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_reads_from_the_start_that_never_end, sched_setup,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_long_reads_from_the_start_come_less_often, sched_setup,
                                        sched_teardown),
        cmocka_unit_test_setup_teardown(test_rows_of_living_ghosts_are_looked_at, sched_setup,
                                        sched_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
