/* SPDX-License-Identifier: Apache-2.0 */
/* Which witness counts at what time, and who the members are by it. */
#include "node/core/view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "node/core/ownership.h"

#define TTL 10000

static struct member member(const char *name, enum member_state state)
{
    struct member m = {.state = state, .hash_version = OWNERSHIP_HASH_VERSION};

    assert_true(member_set_text(m.name, sizeof(m.name), str_from(name)));
    return m;
}

static void read_one(struct view *v, enum view_source source, mono_ms asked_at, const char *name)
{
    struct member m = member(name, MEMBER_ACTIVE);

    assert_int_equal(view_read(v, source, asked_at, &m, 1), 0);
}

static void assert_at(const struct view *v, mono_ms now, enum view_source source, mono_ms until)
{
    mono_ms at = 0;

    assert_string_equal(view_source_name(view_at(v, now, &at)), view_source_name(source));
    assert_true(at == until);
}

static void test_nobody_before_a_reading(void **state)
{
    struct view v;
    struct member list[VIEW_MEMBERS_MAX];

    (void)state;
    view_init(&v, TTL);
    assert_at(&v, 0, VIEW_NONE, INT64_MAX);
    assert_at(&v, INT64_MAX, VIEW_NONE, INT64_MAX);
    assert_int_equal(view_members(&v, VIEW_NONE, 0, list), 0);
    assert_int_equal(view_members(&v, VIEW_ETCD, 0, list), 0);
    assert_null(view_find(&v, VIEW_ETCD, STR("a")));
    view_fini(&v);
}

static void test_etcd_counts_while_it_is_fresh(void **state)
{
    struct view v;

    (void)state;
    view_init(&v, TTL);
    read_one(&v, VIEW_ROWS, 1000, "r");
    assert_at(&v, 1000, VIEW_ROWS, 1000 + TTL + 1);
    read_one(&v, VIEW_ETCD, 2000, "e");
    assert_at(&v, 2000, VIEW_ETCD, 2000 + TTL + 1);
    assert_at(&v, 2000 + TTL, VIEW_ETCD, 2000 + TTL + 1);
    assert_at(&v, 2000 + TTL + 1, VIEW_NONE, INT64_MAX); /* the rows are older still */
    read_one(&v, VIEW_ROWS, 5000, "r");
    assert_at(&v, 2000 + TTL, VIEW_ETCD, 2000 + TTL + 1);
    assert_at(&v, 2000 + TTL + 1, VIEW_ROWS, 5000 + TTL + 1);
    assert_at(&v, 5000 + TTL, VIEW_ROWS, 5000 + TTL + 1);
    assert_at(&v, 5000 + TTL + 1, VIEW_NONE, INT64_MAX);
    read_one(&v, VIEW_ETCD, 5000 + TTL, "e"); /* etcd is back */
    assert_at(&v, 5000 + TTL + 1, VIEW_ETCD, 5000 + TTL + TTL + 1);
    view_fini(&v);
}

/* `until` is the first time at which something else counts. */
/* Each witness by itself: a node looks at its own heartbeats while etcd's list counts. */
static void test_fresh_by_itself(void **state)
{
    struct view v;

    (void)state;
    view_init(&v, TTL);
    assert_false(view_is_fresh(&v, VIEW_ROWS, 0));
    read_one(&v, VIEW_ETCD, 500, "a");
    read_one(&v, VIEW_ROWS, 100, "a");
    assert_true(view_is_fresh(&v, VIEW_ROWS, 100 + TTL));
    assert_false(view_is_fresh(&v, VIEW_ROWS, 101 + TTL));
    assert_true(view_is_fresh(&v, VIEW_ETCD, 101 + TTL));
    view_fini(&v);
}

/* A list that has to show this node counts no longer than a TTL after it last did. */
static void test_trust(void **state)
{
    struct view v;

    (void)state;
    view_init(&v, TTL);
    view_trust(&v, VIEW_ETCD, 100);
    read_one(&v, VIEW_ETCD, 500, "a");
    read_one(&v, VIEW_ROWS, 400, "a");
    assert_at(&v, 100 + TTL, VIEW_ETCD, 101 + TTL);
    assert_at(&v, 101 + TTL, VIEW_ROWS, 401 + TTL);
    assert_true(view_is_fresh(&v, VIEW_ETCD, 101 + TTL)); /* which is another question */
    view_trust(&v, VIEW_ETCD, 600);
    assert_at(&v, 500 + TTL, VIEW_ETCD, 501 + TTL);
    view_fini(&v);
}

static void test_until_is_exact(void **state)
{
    struct view v;
    mono_ms until;
    mono_ms later;

    (void)state;
    view_init(&v, TTL);
    read_one(&v, VIEW_ETCD, 100, "e");
    read_one(&v, VIEW_ROWS, 200, "r");
    assert_int_equal(view_at(&v, 300, &until), VIEW_ETCD);
    assert_int_equal(view_at(&v, until - 1, &later), VIEW_ETCD);
    assert_int_equal(view_at(&v, until, &later), VIEW_ROWS);
    assert_int_equal(view_at(&v, later - 1, &until), VIEW_ROWS);
    assert_int_equal(view_at(&v, later, &until), VIEW_NONE);
    view_fini(&v);
}

/* An event says something new about the members, nothing about the age. */
static void test_events_keep_the_age(void **state)
{
    struct view v;
    struct member list[VIEW_MEMBERS_MAX];
    struct member both[] = {member("b", MEMBER_ACTIVE), member("a", MEMBER_ACTIVE)};

    (void)state;
    view_init(&v, TTL);
    read_one(&v, VIEW_ETCD, 1000, "a");
    assert_int_equal(view_read(&v, VIEW_ETCD, 1000, both, 2), 0);
    memset(both, 0, sizeof(both)); /* copied */
    assert_int_equal(view_members(&v, VIEW_ETCD, 1000, list), 2);
    assert_string_equal(list[0].name, "a");
    assert_string_equal(list[1].name, "b");
    assert_at(&v, 1000 + TTL + 1, VIEW_NONE, INT64_MAX);
    view_fini(&v);
}

/* An empty list is a list: a witness that sees nobody is believed. */
static void test_an_empty_list_counts(void **state)
{
    struct view v;
    struct member list[VIEW_MEMBERS_MAX];

    (void)state;
    view_init(&v, TTL);
    read_one(&v, VIEW_ROWS, 1000, "r");
    read_one(&v, VIEW_ETCD, 1000, "e");
    assert_int_equal(view_read(&v, VIEW_ETCD, 2000, NULL, 0), 0);
    assert_at(&v, 2000, VIEW_ETCD, 2000 + TTL + 1);
    assert_int_equal(view_members(&v, VIEW_ETCD, 2000, list), 0);
    assert_int_equal(view_members(&v, VIEW_ROWS, 2000, list), 1);
    view_fini(&v);
}

static void test_who_may_own(void **state)
{
    struct member m = member("a", MEMBER_ACTIVE);

    (void)state;
    for (enum member_state s = MEMBER_JOINING; s < MEMBER_N_STATES; s++) {
        m.state = s;
        assert_int_equal(view_may_own(&m), s == MEMBER_ACTIVE);
    }
    m.state = MEMBER_ACTIVE;
    m.hash_version++;
    assert_false(view_may_own(&m));
}

/* What etcd and the row say of one member, and what it is. */
static enum member_state both_say(enum member_state key, int64_t epoch, enum member_state in_row,
                                  int64_t row_epoch, mono_ms row_age)
{
    struct view v;
    struct member m = member("m", key);
    struct member list[VIEW_MEMBERS_MAX];
    struct member rows[] = {member("another", MEMBER_DRAINING), member("m", in_row)};

    m.epoch = epoch;
    rows[1].epoch = row_epoch;
    view_init(&v, TTL);
    assert_int_equal(view_read(&v, VIEW_ETCD, TTL, &m, 1), 0);
    assert_int_equal(view_read(&v, VIEW_ROWS, TTL - row_age, rows, 2), 0);
    assert_int_equal(view_members(&v, VIEW_ETCD, TTL, list), 1);
    view_fini(&v);
    return list[0].state;
}

/* etcd may have no room for what a member says of itself. */
static void test_a_row_says_that_a_member_has_given_up(void **state)
{
    (void)state;
    for (enum member_state key = MEMBER_JOINING; key < MEMBER_N_STATES; key++) {
        assert_int_equal(both_say(key, 5, MEMBER_DRAINING, 5, 0), MEMBER_DRAINING);
        assert_int_equal(both_say(key, 5, MEMBER_DRAINING, 6, TTL), MEMBER_DRAINING);
        assert_int_equal(both_say(key, 5, MEMBER_LEFT, 5, 0), MEMBER_LEFT);
        assert_int_equal(both_say(key, 5, MEMBER_DRAINING, 4, 0), key); /* an earlier process */
        assert_int_equal(both_say(key, 5, MEMBER_LEFT, 5, TTL + 1), key);
        assert_int_equal(both_say(key, 5, MEMBER_ACTIVE, 6, 0), key); /* never more by a row */
        assert_int_equal(both_say(key, 5, MEMBER_JOINING, 5, 0), key);
    }
}

static void test_find(void **state)
{
    struct view v;
    struct member list[] = {member("b", MEMBER_DRAINING), member("a", MEMBER_ACTIVE)};

    (void)state;
    list[0].epoch = 5;
    view_init(&v, TTL);
    assert_int_equal(view_read(&v, VIEW_ROWS, 0, list, 2), 0);
    const struct member *m = view_find(&v, VIEW_ROWS, STR("b"));
    assert_non_null(m);
    assert_int_equal(m->epoch, 5);
    assert_int_equal(m->state, MEMBER_DRAINING);
    assert_null(view_find(&v, VIEW_ROWS, STR("")));
    assert_null(view_find(&v, VIEW_ROWS, STR("bb")));
    assert_null(view_find(&v, VIEW_ETCD, STR("b")));
    view_fini(&v);
}

static void test_more_than_the_most(void **state)
{
    static struct member list[VIEW_MEMBERS_MAX + 10];
    static struct member shown[VIEW_MEMBERS_MAX];
    const size_t n = sizeof(list) / sizeof(list[0]);
    struct view v;
    char name[16];

    (void)state;
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof(name), "n%03zu", n - 1 - i);
        list[i] = member(name, MEMBER_ACTIVE);
    }
    view_init(&v, TTL);
    assert_int_equal(view_read(&v, VIEW_ROWS, 0, list, n), 0);
    assert_int_equal(view_members(&v, VIEW_ROWS, 0, shown), VIEW_MEMBERS_MAX);
    assert_int_equal(v.lists[VIEW_ROWS].n_cut, 10);
    assert_string_equal(shown[0].name, "n000");
    (void)snprintf(name, sizeof(name), "n%03d", VIEW_MEMBERS_MAX - 1);
    assert_non_null(view_find(&v, VIEW_ROWS, str_from(name)));
    (void)snprintf(name, sizeof(name), "n%03d", VIEW_MEMBERS_MAX);
    assert_null(view_find(&v, VIEW_ROWS, str_from(name)));
    view_fini(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_before_a_reading),
        cmocka_unit_test(test_etcd_counts_while_it_is_fresh),
        cmocka_unit_test(test_fresh_by_itself),
        cmocka_unit_test(test_trust),
        cmocka_unit_test(test_until_is_exact),
        cmocka_unit_test(test_events_keep_the_age),
        cmocka_unit_test(test_an_empty_list_counts),
        cmocka_unit_test(test_who_may_own),
        cmocka_unit_test(test_a_row_says_that_a_member_has_given_up),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_more_than_the_most),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
