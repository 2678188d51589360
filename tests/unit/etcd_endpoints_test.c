/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "node/cluster/etcd_endpoints.h"

#define NOW 1000000

static const char *const urls[] = {"http://a", "http://b/", "http://c//"};

static int setup(void **state)
{
    struct etcd_endpoints *e = calloc(1, sizeof(*e));

    assert_non_null(e);
    assert_int_equal(etcd_endpoints_init(e, urls, 3), 0);
    *state = e;
    return 0;
}

static int teardown(void **state)
{
    etcd_endpoints_fini(*state);
    free(*state);
    return 0;
}

static void test_sticky(void **state)
{
    struct etcd_endpoints *e = *state;

    assert_string_equal(e->list[1].url, "http://b");
    assert_string_equal(e->list[2].url, "http://c");
    assert_int_equal(etcd_endpoints_pick(e, 0, NOW), 0);
    etcd_endpoints_good(e, 2);
    assert_int_equal(etcd_endpoints_pick(e, 0, NOW), 2);
    assert_int_equal(etcd_endpoints_pick(e, 1U << 2, NOW), 0);
    assert_int_equal(etcd_endpoints_pick(e, 1U << 2 | 1U << 0, NOW), 1);
    assert_int_equal(etcd_endpoints_pick(e, 7, NOW), -1);
}

/* One that comes back is not gone back to: the one that works stays. */
static void test_fail_over(void **state)
{
    struct etcd_endpoints *e = *state;

    etcd_endpoints_failed(e, 0, NOW);
    assert_int_equal(etcd_endpoints_pick(e, 0, NOW), 1);
    etcd_endpoints_good(e, 1);
    assert_int_equal(etcd_endpoints_pick(e, 0, NOW + ETCD_ASIDE_MAX_MS), 1);
    assert_int_equal(etcd_endpoints_pick(e, 1U << 1, NOW + ETCD_ASIDE_MIN_MS), 2);
    /* c is not set aside, a is. */
    assert_int_equal(etcd_endpoints_pick(e, 1U << 1, NOW), 2);
    etcd_endpoints_failed(e, 2, NOW);
    assert_int_equal(etcd_endpoints_pick(e, 1U << 1, NOW + ETCD_ASIDE_MIN_MS), 2);
}

/* Those set aside are tried all the same, the first to come back first. */
static void test_all_set_aside(void **state)
{
    struct etcd_endpoints *e = *state;

    etcd_endpoints_failed(e, 1, NOW);
    etcd_endpoints_failed(e, 2, NOW + 1);
    etcd_endpoints_failed(e, 0, NOW + 2);
    assert_int_equal(etcd_endpoints_pick(e, 0, NOW + 3), 1);
    assert_int_equal(etcd_endpoints_pick(e, 1U << 1, NOW + 3), 2);
}

static void test_longer_each_time(void **state)
{
    struct etcd_endpoints *e = *state;
    mono_ms now = NOW;

    etcd_endpoints_failed(e, 0, now);
    etcd_endpoints_failed(e, 0, now); /* another call that failed at the same time */
    assert_int_equal(e->list[0].aside_until, now + ETCD_ASIDE_MIN_MS);
    now = e->list[0].aside_until;
    etcd_endpoints_failed(e, 0, now);
    assert_int_equal(e->list[0].aside_until, now + 2 * ETCD_ASIDE_MIN_MS);
    for (int i = 0; i < 100; i++) {
        now = e->list[0].aside_until;
        etcd_endpoints_failed(e, 0, now);
        assert_true(e->list[0].aside_until <= now + ETCD_ASIDE_MAX_MS);
    }
    assert_int_equal(e->list[0].aside_until, now + ETCD_ASIDE_MAX_MS);
    etcd_endpoints_good(e, 0);
    etcd_endpoints_failed(e, 0, now);
    assert_int_equal(e->list[0].aside_until, now + ETCD_ASIDE_MIN_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sticky, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fail_over, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_set_aside, setup, teardown),
        cmocka_unit_test_setup_teardown(test_longer_each_time, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
