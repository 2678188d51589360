/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/ids.h"

static void test_random_bytes(void **state)
{
    (void)state;
    /* 256 bytes are as much as one call of the kernel gives for sure; ask for more. */
    unsigned char a[1000] = {0};
    unsigned char b[1000] = {0};
    random_bytes(a, sizeof(a) - 1);
    random_bytes(b, sizeof(b) - 1);
    random_bytes(NULL, 0);
    assert_memory_not_equal(a, b, 16);
    assert_memory_not_equal(a + 983, b + 983, 16);
    assert_int_equal(a[999], 0);
}

static void test_splitmix64_vectors(void **state)
{
    (void)state;
    struct rng r = {0};
    assert_true(rng_next(&r) == UINT64_C(0xE220A8397B1DCDAF));
    assert_true(rng_next(&r) == UINT64_C(0x6E789E6AA1B965F4));
    assert_true(rng_next(&r) == UINT64_C(0x06C45D188009454F));
}

static void test_below(void **state)
{
    (void)state;
    struct rng r = {99};
    unsigned seen[10] = {0};
    for (int i = 0; i < 10000; i++) {
        uint64_t v = rng_below(&r, 10);
        assert_true(v < 10);
        seen[v]++;
    }
    for (int i = 0; i < 10; i++)
        assert_in_range(seen[i], 800, 1200);
    assert_int_equal(rng_below(&r, 1), 0);
    for (int i = 0; i < 1000; i++)
        assert_true(rng_below(&r, UINT64_MAX) < UINT64_MAX);
}

static void test_trace_id_make(void **state)
{
    (void)state;
    char id[TRACE_ID_LEN + 1];
    trace_id_make(1, UINT64_C(0xFEDCBA9876543210), id);
    assert_string_equal(id, "0000000000000001fedcba9876543210");
    trace_id_make(INT64_MAX, 0, id);
    assert_string_equal(id, "7fffffffffffffff0000000000000001");
}

static void test_trace_id_task(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t id;
    } cases[] = {
        {"0000000000000001fedcba9876543210", 1},
        {"7fffffffffffffff0000000000000001", INT64_MAX},
        {"00000000deadbeefffffffffffffffff", 0xdeadbeef},
        {"00000000000000000000000000000001", 0},
        {"80000000000000000000000000000001", 0},
        {"ffffffffffffffff0000000000000001", 0},
        {"00000000DEADBEEF0000000000000001", 0},
        {"0000000000000001fedcba987654321", 0},
        {"0000000000000001fedcba98765432100", 0},
        {"0000000000000001fedcba987654321g", 0},
        {"0000000000000001 edcba9876543210", 0},
        {"", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(trace_id_task(str_from(cases[i].text)), cases[i].id);
    assert_int_equal(trace_id_task((struct str){0}), 0);
}

static void test_trace_id_round_trip(void **state)
{
    (void)state;
    struct rng r = {5};
    for (int i = 0; i < 1000; i++) {
        int64_t id = (int64_t)rng_below(&r, INT64_MAX) + 1;
        char text[TRACE_ID_LEN + 1];
        trace_id_make(id, rng_next(&r), text);
        assert_int_equal(strlen(text), TRACE_ID_LEN);
        assert_int_equal(trace_id_task(str_from(text)), id);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_bytes),  cmocka_unit_test(test_splitmix64_vectors),
        cmocka_unit_test(test_below),         cmocka_unit_test(test_trace_id_make),
        cmocka_unit_test(test_trace_id_task), cmocka_unit_test(test_trace_id_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
