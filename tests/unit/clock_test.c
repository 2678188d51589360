/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "common/clock.h"

static int64_t read_ms(clockid_t id)
{
    struct timespec ts;
    assert_int_equal(clock_gettime(id, &ts), 0);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void test_clocks_are_the_right_ones(void **state)
{
    (void)state;
    int64_t before = read_ms(CLOCK_BOOTTIME);
    mono_ms mono = clock_mono();
    int64_t mono_us = clock_mono_us();
    int64_t after = read_ms(CLOCK_BOOTTIME);
    assert_true(before <= mono && mono <= after);
    assert_true(before <= mono_us / 1000 && mono_us / 1000 <= after);
    assert_true(mono <= mono_us / 1000);

    before = read_ms(CLOCK_REALTIME);
    wall_ms wall = clock_wall();
    after = read_ms(CLOCK_REALTIME);
    assert_true(before <= wall && wall <= after);
}

static void test_mono_never_goes_back(void **state)
{
    (void)state;
    int64_t last = clock_mono_us();
    for (int i = 0; i < 100000; i++) {
        int64_t now = clock_mono_us();
        assert_true(now >= last);
        last = now;
    }
}

static void test_store_clock_unknown(void **state)
{
    (void)state;
    struct store_clock c = {0};
    wall_ms before = clock_wall();
    wall_ms now = store_clock_now(&c);
    assert_true(before <= now && now <= clock_wall());
}

static void test_store_clock_follows(void **state)
{
    (void)state;
    struct store_clock c = {0};
    int64_t mono = clock_mono_us();
    /* The store is taken to have read its clock half-way between question and answer. */
    store_clock_measure(&c, 5000000250, mono - 400, mono);
    assert_true(c.known);
    assert_int_equal(c.offset_us, 5000000250 - (mono - 200));
    int64_t before = clock_mono_us();
    wall_ms now = store_clock_now(&c);
    int64_t after = clock_mono_us();
    assert_true((before + c.offset_us) / 1000 <= now && now <= (after + c.offset_us) / 1000);
}

#define S INT64_C(1000000)

/* A busy database answers late, and says less about its clock than a better answer of before. */
static void test_store_clock_keeps_the_better_answer(void **state)
{
    (void)state;
    struct store_clock c = {0};

    store_clock_measure(&c, 9 * S, 5 * S, 7 * S); /* the first is better than nothing */
    assert_int_equal(c.offset_us, 3 * S);
    store_clock_measure(&c, 10 * S + 400, 7 * S, 7 * S + 200);
    assert_int_equal(c.offset_us, 3 * S + 300);
    /* Slower, and it may be that nothing has changed. */
    store_clock_measure(&c, 11 * S + 1800, 8 * S, 8 * S + 2000);
    assert_int_equal(c.offset_us, 3 * S + 300);
    store_clock_measure(&c, 11 * S + 1800 + 700 * 1000, 8 * S + 700 * 1000,
                        8 * S + 700 * 1000 + 2000);
    assert_int_equal(c.offset_us, 3 * S + 300);
    /* Two seconds after the one in use the clocks may have drifted by more than that is in doubt.
     */
    store_clock_measure(&c, 12 * S + 1800, 9 * S, 9 * S + 2000);
    assert_int_equal(c.offset_us, 3 * S + 800);
}

/* What cannot be drift is a clock that was set, however slow the answer that says so. */
static void test_store_clock_follows_a_clock_that_was_set(void **state)
{
    (void)state;
    struct store_clock c = {0};

    store_clock_measure(&c, 10 * S, 7 * S, 7 * S + 200);
    store_clock_measure(&c, 9 * S, 8 * S, 8 * S + 20000);
    assert_int_equal(c.offset_us, S - 10000);
    store_clock_measure(&c, 3600 * S, 9 * S, 9 * S + 20000);
    assert_int_equal(c.offset_us, 3591 * S - 10000);
}

/* It may be another server: even what would fit is no reason to keep what the first one said. */
static void test_store_clock_in_doubt(void **state)
{
    (void)state;
    struct store_clock c = {0};

    store_clock_measure(&c, 10 * S, 7 * S, 7 * S + 200);
    store_clock_doubt(&c);
    assert_int_equal(c.offset_us, 3 * S - 100);
    store_clock_measure(&c, 11 * S, 8 * S, 8 * S + 40000);
    assert_int_equal(c.offset_us, 3 * S - 20000);
    store_clock_measure(&c, 12 * S, 9 * S, 9 * S + 60000); /* from then on as ever */
    assert_int_equal(c.offset_us, 3 * S - 20000);
}

static void test_store_clock_wait(void **state)
{
    (void)state;
    struct store_clock c = {0};
    int64_t mono = clock_mono_us();

    store_clock_measure(&c, mono + 500, mono, mono); /* half a millisecond ahead */
    wall_ms now = store_clock_now(&c);
    assert_int_equal(store_clock_wait_us(&c, now), 0);
    int64_t left = store_clock_wait_us(&c, now + 1000);
    assert_true(left <= 1000 * 1000 && left > 0);
    assert_true(now * 1000 + 1000 * 1000 - left >= mono + 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clocks_are_the_right_ones),
        cmocka_unit_test(test_mono_never_goes_back),
        cmocka_unit_test(test_store_clock_unknown),
        cmocka_unit_test(test_store_clock_follows),
        cmocka_unit_test(test_store_clock_keeps_the_better_answer),
        cmocka_unit_test(test_store_clock_follows_a_clock_that_was_set),
        cmocka_unit_test(test_store_clock_in_doubt),
        cmocka_unit_test(test_store_clock_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
