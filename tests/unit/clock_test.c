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
    mono_ms mono = clock_mono();
    /* The store is taken to have read its clock half-way between question and answer. */
    store_clock_measure(&c, 5000000, mono - 40, mono, 1000);
    assert_true(c.known);
    assert_int_equal(c.offset_ms, 5000000 - (mono - 20));
    mono_ms before = clock_mono();
    wall_ms now = store_clock_now(&c);
    mono_ms after = clock_mono();
    assert_true(before + c.offset_ms <= now && now <= after + c.offset_ms);
}

static void test_store_clock_ignores_slow_answers(void **state)
{
    (void)state;
    struct store_clock c = {0};
    /* The first is better than nothing. */
    store_clock_measure(&c, 10000, 1000, 3000, 100);
    assert_true(c.known);
    assert_int_equal(c.offset_ms, 8000);
    store_clock_measure(&c, 20000, 1000, 1101, 100);
    assert_int_equal(c.offset_ms, 8000);
    store_clock_measure(&c, 20000, 1000, 1100, 100);
    assert_int_equal(c.offset_ms, 18950);
    store_clock_measure(&c, 500, 1000, 1000, 0);
    assert_int_equal(c.offset_ms, -500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clocks_are_the_right_ones),
        cmocka_unit_test(test_mono_never_goes_back),
        cmocka_unit_test(test_store_clock_unknown),
        cmocka_unit_test(test_store_clock_follows),
        cmocka_unit_test(test_store_clock_ignores_slow_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
