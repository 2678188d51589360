/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is, with the clock passed in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/instances.h"

#define T0 1000000
#define TTL 15000
#define END (T0 + TTL)

static struct instances t;
static struct buf url;

static int start(void **state)
{
    (void)state;
    return instances_init(&t);
}

static int stop(void **state)
{
    (void)state;
    instances_fini(&t);
    buf_fini(&url);
    return 0;
}

/* The address says which one it is. */
static struct instance one(const char *service, const char *name)
{
    return (struct instance){.service_name = str_from(service),
                             .name = str_from(name),
                             .base_url = str_from(name),
                             .ttl_ms = TTL,
                             .registered_at = T0,
                             .expires_at = END};
}

static void put(const char *service, const char *name)
{
    struct instance in = one(service, name);

    assert_int_equal(instances_put(&t, &in), 0);
}

static void set(const struct instance *list, size_t n)
{
    instances_reading(&t);
    assert_int_equal(instances_set(&t, list, n), 0);
}

static uint64_t pick_but(const char *service, wall_ms now, const uint64_t *tried, size_t n_tried,
                         const char *wanted)
{
    uint64_t id;

    buf_clear(&url);
    id = instances_pick(&t, str_from(service), now, tried, n_tried, &url);
    assert_true((id != 0) == (wanted != NULL));
    if (wanted && !str_eqz(buf_str(&url), wanted))
        fail_msg("it is the turn of " STR_FMT " and not of %s", STR_ARG(buf_str(&url)), wanted);
    return id;
}

static uint64_t pick(const char *service, wall_ms now, const char *wanted)
{
    return pick_but(service, now, NULL, 0, wanted);
}

static void aside(const char *service, uint64_t id, wall_ms now, wall_ms until)
{
    (void)instances_set_aside(&t, str_from(service), id, now, until);
}

static void expect_stats(wall_ms now, uint32_t n_live, uint32_t n_aside)
{
    struct instances_stats s;

    instances_stats(&t, now, &s);
    assert_int_equal(s.n_live, n_live);
    assert_int_equal(s.n_aside, n_aside);
}

static void test_each_in_turn(void **state)
{
    (void)state;
    pick("s", T0, NULL);
    put("s", "b");
    put("s", "c");
    put("s", "a");
    put("r", "x");
    put("t", "y");
    for (int round = 0; round < 5; round++) {
        pick("s", T0, "a");
        pick("t", T0, "y");
        pick("s", T0, "b");
        pick("r", T0, "x");
        pick("s", T0, "c");
    }
    pick("u", T0, NULL);
    expect_stats(T0, 5, 0);
}

/* Those who come, go and beat do not take another's turn. */
static void test_turns_stay(void **state)
{
    (void)state;
    put("s", "b");
    put("s", "d");
    put("s", "f");
    pick("s", T0, "b");
    put("s", "a");
    put("s", "b");
    pick("s", T0, "d");
    put("s", "e");
    pick("s", T0, "e");
    instances_remove(&t, STR("s"), STR("a"));
    pick("s", T0, "f");
    pick("s", T0, "b");
    instances_remove(&t, STR("s"), STR("b"));
    pick("s", T0, "d");
    instances_remove(&t, STR("s"), STR("nobody"));
    instances_remove(&t, STR("nobody"), STR("d"));
    pick("s", T0, "e");
    pick("s", T0, "f");
    pick("s", T0, "d");
}

static void test_expiry(void **state)
{
    struct instance longer = one("s", "b");

    (void)state;
    put("s", "a");
    longer.expires_at++;
    assert_int_equal(instances_put(&t, &longer), 0);
    pick("s", END - 1, "a");
    pick("s", END, "b");
    pick("s", END, "b");
    expect_stats(END, 1, 0);
    pick("s", END + 1, NULL);
    expect_stats(END + 1, 0, 0);
    /* A heartbeat, as late as it is. */
    longer.expires_at += TTL;
    assert_int_equal(instances_put(&t, &longer), 0);
    pick("s", END + 1, "b");
}

static void test_set_aside(void **state)
{
    uint64_t a;
    uint64_t b;

    (void)state;
    put("s", "a");
    put("s", "b");
    put("s", "c");
    a = pick("s", T0, "a");
    b = pick("s", T0, "b");
    assert_true(a != b);
    assert_true(instances_set_aside(&t, STR("s"), b, T0, T0 + 100));
    assert_false(instances_set_aside(&t, STR("s"), b, T0, T0 + 100));
    assert_true(instances_aside_until(&t, STR("s"), STR("b"), T0) == T0 + 100);
    assert_true(instances_aside_until(&t, STR("s"), STR("a"), T0) == WALL_NONE);
    expect_stats(T0, 3, 1);
    for (int round = 0; round < 4; round++) { /* the others share alike */
        pick("s", T0 + 99, "c");
        pick("s", T0 + 99, "a");
    }
    pick("s", T0 + 100, "b"); /* back */
    assert_true(instances_aside_until(&t, STR("s"), STR("b"), T0 + 100) == WALL_NONE);
    expect_stats(T0 + 100, 3, 0);
    aside("s", b, T0, T0 + 100);
    assert_true(instances_set_aside(&t, STR("s"), b, T0, WALL_NONE));
    assert_false(instances_set_aside(&t, STR("s"), b, T0, WALL_NONE));
    assert_false(instances_set_aside(&t, STR("s"), 99, T0, T0 + 100));
    assert_false(instances_set_aside(&t, STR("nobody"), b, T0, T0 + 100));
    pick("s", T0, "c");
    pick("s", T0, "a");
    pick("s", T0, "b");
}

/* Then they are used all the same: whoever comes back first goes first. */
static void test_all_set_aside(void **state)
{
    uint64_t a;
    uint64_t b;

    (void)state;
    put("s", "a");
    put("s", "b");
    put("s", "c");
    a = pick("s", T0, "a");
    b = pick("s", T0, "b");
    aside("s", a, T0, T0 + 300);
    aside("s", b, T0, T0 + 100);
    aside("s", pick("s", T0, "c"), T0, T0 + 200);
    pick("s", T0, "b");
    pick("s", T0, "b");
    aside("s", b, T0, T0 + 400);
    pick("s", T0, "c");
    pick("s", T0 + 300, "a"); /* of a and c, which are back, a stands next */
}

static void test_each_once(void **state)
{
    uint64_t tried[4];

    (void)state;
    put("s", "a");
    put("s", "b");
    put("s", "c");
    for (size_t i = 0; i < 3; i++) {
        static const char *const wanted[] = {"a", "b", "c"};

        tried[i] = pick_but("s", T0, tried, i, wanted[i]);
        aside("s", tried[i], T0, T0 + 100);
    }
    pick_but("s", T0, tried, 3, NULL);
    put("s", "d");
    tried[3] = pick_but("s", T0, tried, 3, "d");
    instances_remove(&t, STR("s"), STR("b"));
    put("s", "b"); /* anew */
    pick_but("s", T0, tried, 4, "b");
}

/* Another address, or another life, has not failed yet. */
static void test_a_new_life_is_not_set_aside(void **state)
{
    struct instance in = one("s", "a");
    uint64_t id;

    (void)state;
    put("s", "a");
    id = pick("s", T0, "a");
    aside("s", id, T0, T0 + 100);
    in.expires_at++;
    assert_int_equal(instances_put(&t, &in), 0);
    expect_stats(T0, 1, 1);
    in.base_url = STR("elsewhere");
    assert_int_equal(instances_put(&t, &in), 0);
    expect_stats(T0, 1, 0);
    assert_true(pick("s", T0, "elsewhere") != id);
    id = pick("s", T0, "elsewhere");
    aside("s", id, T0, T0 + 100);
    in.registered_at++;
    assert_int_equal(instances_put(&t, &in), 0);
    expect_stats(T0, 1, 0);
}

/* ---- Lists --------------------------------------------------------------------------------- */

static void test_a_list_replaces(void **state)
{
    const struct instance list[] = {one("r", "x"), one("s", "a"), one("s", "b"), one("t", "y")};
    uint64_t b;

    (void)state;
    put("q", "gone");
    put("s", "0");
    set(list, 4);
    expect_stats(T0, 4, 0);
    pick("q", T0, NULL);
    pick("s", T0, "a");
    b = pick("s", T0, "b");
    aside("s", b, T0, T0 + 100);
    set(list + 2, 1);
    expect_stats(T0, 1, 1); /* the same one as before */
    set(NULL, 0);
    expect_stats(T0, 0, 0);
    pick("s", T0, NULL);
    assert_int_equal(t.groups.n, 0);
}

/* What this node stored after the list was asked for is newer than the list. */
static void test_changes_during_a_list(void **state)
{
    const struct instance list[] = {one("s", "a"), one("s", "b"), one("s", "c")};
    struct instance beat = one("s", "a");

    (void)state;
    set(list, 3);
    instances_reading(&t);
    beat.expires_at += 1000;
    assert_int_equal(instances_put(&t, &beat), 0);
    instances_remove(&t, STR("s"), STR("b"));
    put("s", "d");
    put("s", "e");
    instances_remove(&t, STR("s"), STR("e"));
    instances_remove(&t, STR("s"), STR("c"));
    put("s", "c");
    expect_stats(T0, 3, 0);
    assert_int_equal(instances_set(&t, list, 3), 0);
    expect_stats(T0, 3, 0);
    pick("s", T0, "a");
    pick("s", T0, "c");
    pick("s", T0, "d");
    pick("s", T0, "a");
    expect_stats(END, 1, 0); /* the heartbeat stays */
    set(list, 2);            /* which knows of all that */
    expect_stats(T0, 2, 0);
}

/* A list that never came leaves nothing behind. */
static void test_a_lost_list(void **state)
{
    const struct instance list[] = {one("s", "a"), one("s", "b")};

    (void)state;
    set(list, 2);
    instances_reading(&t);
    instances_remove(&t, STR("s"), STR("a"));
    expect_stats(T0, 1, 0);
    instances_reading(&t);
    assert_int_equal(instances_set(&t, list, 2), 0); /* it registered again elsewhere */
    expect_stats(T0, 2, 0);
}

static void test_least_ttl(void **state)
{
    struct instance in = one("s", "a");

    (void)state;
    assert_int_equal(instances_least_ttl(&t), INT32_MAX);
    put("r", "x");
    in.ttl_ms = 1000;
    assert_int_equal(instances_put(&t, &in), 0);
    assert_int_equal(instances_least_ttl(&t), 1000);
    instances_remove(&t, STR("s"), STR("a"));
    assert_int_equal(instances_least_ttl(&t), TTL);
}

/* Shares stay equal whoever is asked for among many services. */
static void test_fairness(void **state)
{
    enum { SERVICES = 40, MEMBERS = 7, ROUNDS = 30 };
    char service[8];
    char name[8];
    unsigned counts[SERVICES][MEMBERS] = {{0}};

    (void)state;
    for (int i = 0; i < SERVICES * MEMBERS; i++) {
        (void)snprintf(service, sizeof(service), "s%d", i * 17 % SERVICES);
        (void)snprintf(name, sizeof(name), "%d", i / SERVICES);
        put(service, name);
    }
    expect_stats(T0, SERVICES * MEMBERS, 0);
    for (int i = 0; i < SERVICES * MEMBERS * ROUNDS; i++) {
        (void)snprintf(service, sizeof(service), "s%d", i % SERVICES);
        buf_clear(&url);
        assert_true(instances_pick(&t, str_from(service), T0, NULL, 0, &url) != 0);
        counts[i % SERVICES][url.data[0] - '0']++;
    }
    for (int i = 0; i < SERVICES; i++) {
        for (int k = 0; k < MEMBERS; k++)
            assert_int_equal(counts[i][k], ROUNDS);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

/* After an outage what is listed lives for one more of its TTL, expired or not. */
static void test_back_after_an_outage(void **state)
{
    const struct instance a = one("s", "a");
    const wall_ms back = END + 100000;

    (void)state;
    set(&a, 1);
    pick("s", back, NULL);
    instances_back(&t, back);
    pick("s", back, "a");
    pick("s", back + TTL - 1, "a");
    pick("s", back + TTL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_back_after_an_outage),
        TEST(test_each_in_turn),
        TEST(test_turns_stay),
        TEST(test_expiry),
        TEST(test_set_aside),
        TEST(test_all_set_aside),
        TEST(test_each_once),
        TEST(test_a_new_life_is_not_set_aside),
        TEST(test_a_list_replaces),
        TEST(test_changes_during_a_list),
        TEST(test_a_lost_list),
        TEST(test_least_ttl),
        TEST(test_fairness),
    };
    return cmocka_run_group_tests_name("instances", tests, NULL, NULL);
}
