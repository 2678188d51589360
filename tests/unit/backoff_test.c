/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/backoff.h"

static void test_doubles_up_to_the_cap(void **state)
{
    (void)state;
    struct backoff b = {.initial_ms = 5000, .cap_ms = 3600000, .multiplier = 2.0};
    static const int64_t expected[] = {5000,   10000,  20000,   40000,   80000,   160000,
                                       320000, 640000, 1280000, 2560000, 3600000, 3600000};
    for (int n = 1; n <= 12; n++)
        assert_int_equal(backoff_base(&b, n), expected[n - 1]);
}

static void test_fractional_multipliers(void **state)
{
    (void)state;
    struct backoff b = {.initial_ms = 1000, .cap_ms = 100000, .multiplier = 1.5};
    static const int64_t expected[] = {1000, 1500, 2250, 3375, 5063};
    for (int n = 1; n <= 5; n++)
        assert_int_equal(backoff_base(&b, n), expected[n - 1]);
    b.multiplier = 1.1;
    assert_int_equal(backoff_base(&b, 2), 1100);
    assert_int_equal(backoff_base(&b, 3), 1210);
    assert_int_equal(backoff_base(&b, 4), 1331);
}

static void test_any_attempt_number(void **state)
{
    (void)state;
    static const int64_t numbers[] = {
        1,        2,  18, 19,  20,   30,   31,        32,         33,        62,
        63,       64, 65, 100, 1000, 1024, INT32_MAX, UINT32_MAX, 1LL << 53, INT64_MAX - 1,
        INT64_MAX};
    static const struct backoff settings[] = {
        {.initial_ms = 1, .cap_ms = 1, .multiplier = 1.0},
        {.initial_ms = 1, .cap_ms = INT64_MAX, .multiplier = 1.0},
        {.initial_ms = 1, .cap_ms = INT64_MAX, .multiplier = 2.0},
        {.initial_ms = 5000, .cap_ms = 3600000, .multiplier = 2.0},
        {.initial_ms = 5000, .cap_ms = INT64_MAX, .multiplier = 1.0000001},
        {.initial_ms = 1, .cap_ms = INT64_MAX - 1, .multiplier = 1e300},
        {.initial_ms = INT64_MAX, .cap_ms = INT64_MAX, .multiplier = 3.0},
        {.initial_ms = INT64_MAX - 1, .cap_ms = INT64_MAX, .multiplier = 1.0},
    };
    struct rng rng = {11};
    for (size_t s = 0; s < sizeof(settings) / sizeof(settings[0]); s++) {
        struct backoff b = settings[s];
        int64_t last = 1;
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
            int64_t base = backoff_base(&b, numbers[i]);
            assert_true(base >= last && base <= b.cap_ms);
            last = base;
            b.jitter = 1.0;
            int64_t delay = backoff_delay(&b, numbers[i], &rng);
            assert_true(delay >= 1 && delay <= base);
        }
    }
}

static void test_reaches_the_cap(void **state)
{
    (void)state;
    struct backoff b = {.initial_ms = 1, .cap_ms = INT64_MAX, .multiplier = 2.0};
    assert_int_equal(backoff_base(&b, 63), INT64_C(1) << 62);
    assert_int_equal(backoff_base(&b, 64), INT64_MAX);
    assert_int_equal(backoff_base(&b, INT64_MAX), INT64_MAX);
    b.multiplier = 1.0;
    assert_int_equal(backoff_base(&b, INT64_MAX), 1);
}

static void test_non_decreasing_step_by_step(void **state)
{
    (void)state;
    static const double multipliers[] = {1.0, 1.0001, 1.1, 1.3, 1.5, 2.0, 10.0};
    for (size_t m = 0; m < sizeof(multipliers) / sizeof(multipliers[0]); m++) {
        struct backoff b = {.initial_ms = 7, .cap_ms = 86400000, .multiplier = multipliers[m]};
        int64_t last = 7;
        for (int64_t n = 1; n < 3000; n++) {
            int64_t base = backoff_base(&b, n);
            assert_true(base >= last && base <= b.cap_ms);
            last = base;
        }
    }
}

static void test_jitter_range(void **state)
{
    (void)state;
    struct backoff b = {.initial_ms = 1000, .cap_ms = 1000, .multiplier = 2.0, .jitter = 0.25};
    struct rng rng = {3};
    int64_t low = INT64_MAX;
    int64_t high = 0;
    for (int i = 0; i < 20000; i++) {
        int64_t delay = backoff_delay(&b, 1, &rng);
        low = delay < low ? delay : low;
        high = delay > high ? delay : high;
    }
    assert_int_equal(low, 750);
    assert_int_equal(high, 1000);
    b.jitter = 0.0;
    assert_int_equal(backoff_delay(&b, 1, &rng), 1000);
    b = (struct backoff){.initial_ms = 1, .cap_ms = 1, .multiplier = 1.0, .jitter = 1.0};
    assert_int_equal(backoff_delay(&b, 1, &rng), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doubles_up_to_the_cap),
        cmocka_unit_test(test_fractional_multipliers),
        {.name = "retry-40: any attempt number", .test_func = test_any_attempt_number},
        cmocka_unit_test(test_reaches_the_cap),
        cmocka_unit_test(test_non_decreasing_step_by_step),
        cmocka_unit_test(test_jitter_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
