/* SPDX-License-Identifier: Apache-2.0 */
/* A node's key, and what others left in its place, at an etcd that answers as the test wants. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cluster/membership_fake.h"

/* ---- The key ------------------------------------------------------------------------------- */

/* etcd-46, and the watch does not tell: the reading does. */
static void test_etcd_46_lost_event(void **state)
{
    struct fake_rig *x = *state;

    fake_start_settled(x, SHORT_MS);
    key_drop(x, "node-a");
    wait_story(&x->a, "RLR");
    assert_int_equal(x->n_watches, 1);
    assert_int_equal(x->n_revokes, 1);
    assert_int_equal(x->n_grants, 2);

    (void)key_put(x, "node-a", member_json("node-a", 1), 999);
    wait_story(&x->a, "RLRLH");
}

/* The key is still there, and nobody's. */
static void test_keep_alive_says_so(void **state)
{
    struct fake_rig *x = *state;

    fake_start_settled(x, SHORT_MS);
    x->is_alive_lost = true;
    wait_story(&x->a, "RLH");
    assert_int_equal(x->n_revokes, 0);
    x->is_alive_lost = false;
    key_drop(x, "node-a");
    wait_story(&x->a, "RLHR");
}

/* A reading that was answered before the key was created knows nothing of it. */
static void test_reading_from_before_the_key(void **state)
{
    struct fake_rig *x = *state;

    x->reads_are_held = true;
    fake_start(x, LONG_MS);
    wait_story(&x->a, "R");
    fixture_wait(&x->f, has_read, x);
    struct key k = *key_find(x, "node-a");
    int64_t revision = x->revision;
    x->n_keys = 0; /* as it was */
    x->revision = k.revision - 1;
    release_read(x);
    x->revision = revision;
    x->keys[x->n_keys++] = k;
    wait_seen(&x->a, "node-a", 1, MEMBER_ACTIVE); /* the one after the watch began */
    assert_string_equal(x->a.story, "R");
}

/* An answer was lost: the key stands there from an earlier try, with an older value. */
static void test_own_key_is_there_already(void **state)
{
    struct fake_rig *x = *state;

    (void)key_put(x, "node-a", "old", 1); /* the lease that will be granted */
    fake_start(x, LONG_MS);
    wait_story(&x->a, "R");
    wait_count(&x->a, &x->n_puts, 1);
    assert_int_equal(x->n_puts, 1);
    assert_string_equal(x->a.story, "R");
}

static void test_refused_writing_is_repeated(void **state)
{
    struct fake_rig *x = *state;

    fake_start_settled(x, LONG_MS);
    x->is_put_refused = true;
    membership_set(x->a.m, 2, MEMBER_ACTIVE);
    wait_count(&x->a, &x->a.n_troubles, 1);
    assert_int_equal(x->n_puts, 1);
    x->is_put_refused = false;
    wait_count(&x->a, &x->n_puts, 2);
    assert_string_equal(x->a.story, "R");
}

/* etcd is read well and takes no writes: it is well again when it does, and not before. */
static void test_only_a_writing_ends_the_trouble_of_writing(void **state)
{
    struct fake_rig *x = *state;

    fake_start_settled(x, SHORT_MS);
    x->is_put_refused = true;
    membership_set(x->a.m, 2, MEMBER_DRAINING);
    wait_count(&x->a, &x->a.n_troubles, 3);
    wait_asked(&x->a, 4); /* readings and, beside them, keep-alives */
    assert_int_equal(x->a.n_good, 0);
    x->is_put_refused = false;
    wait_count(&x->a, &x->a.n_good, 1);
    wait_asked(&x->a, 2);
    assert_int_equal(x->a.n_good, 1);
    assert_string_equal(x->a.story, "R");
}

/* ---- What others left behind --------------------------------------------------------------- */

static void test_own_key_without_a_lease(void **state)
{
    struct fake_rig *x = *state;

    (void)key_put(x, "node-a", member_json("node-a", 99), 0); /* of whatever epoch */
    fake_start(x, LONG_MS);
    wait_story(&x->a, "R");
    assert_int_equal(x->n_deletes, 1);
    assert_int_equal(x->n_ttls, 0);
    assert_true(key_find(x, "node-a")->lease == x->lease);
}

struct left_behind {
    const char *ttl;
    int64_t epoch; /* of the key */
    int64_t own;   /* this node's */
    bool is_taken;
};

/* The TTL is 2 s, and the other's 600 s. */
static void test_own_key_under_another_lease(void **state)
{
    struct fake_rig *x = *state;
    static const struct left_behind cases[] = {
        {"\"TTL\":\"-1\"", 99, 5, true}, /* there is no such lease */
        {"\"TTL\":\"397\",\"grantedTTL\":\"600\"", 4, 5, true},
        {"\"TTL\":\"397\",\"grantedTTL\":\"600\"", 5, 5, true},
        {"\"TTL\":\"397\",\"grantedTTL\":\"600\"", 4, 0, true},  /* its own is not known yet */
        {"\"TTL\":\"398\",\"grantedTTL\":\"600\"", 5, 5, false}, /* alive every 200 s, or late */
        {"\"TTL\":\"398\",\"grantedTTL\":\"600\"", 4, 0, false},
        {"\"grantedTTL\":\"600\"", 6, 5, false}, /* a later process of the name */
        {"\"grantedTTL\":\"2\"", 4, 5, false},   /* it runs out anyway */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)key_put(x, "node-a", member_json("node-a", cases[i].epoch), 999);
        x->others = cases[i].ttl;
        x->n_deletes = x->n_ttls = 0;
        fake_start(x, 2000);
        membership_set(x->a.m, cases[i].own, MEMBER_JOINING);
        if (cases[i].is_taken)
            wait_story(&x->a, "HR");
        else
            wait_count(&x->a, &x->n_ttls, 3);
        assert_int_equal(x->n_deletes, cases[i].is_taken);
        assert_string_equal(x->a.story, cases[i].is_taken ? "HR" : "H");
        peer_close(&x->a);
    }
}

/* Between the look and the deletion a living process took the name. */
static void test_a_key_written_meanwhile_stays(void **state)
{
    struct fake_rig *x = *state;
    char other[256];

    (void)key_put(x, "node-a", member_json("node-a", 4), 0);
    (void)snprintf(other, sizeof(other), "%s", member_json("node-a", 7));
    x->rewritten = other;
    fake_start(x, SHORT_MS);
    wait_story(&x->a, "H");
    assert_int_equal(x->a.holder.epoch, 7);
    wait_count(&x->a, &x->n_ttls, 3);
    assert_int_equal(x->n_deletes, 1);
    assert_true(key_find(x, "node-a")->lease == 999);
    assert_string_equal(x->a.story, "H");
}

/* Members of whom no lease would take leave are none. */
static void test_others_without_a_lease(void **state)
{
    struct fake_rig *x = *state;

    (void)key_put(x, "b", member_json("b", 5), 0);
    fake_start_settled(x, SHORT_MS);
    wait_asked(&x->a, 2);
    assert_null(peer_find(&x->a, "b"));
    assert_int_equal(x->a.n_corrupt, 1); /* told of once */
    struct key b = *key_put(x, "b", member_json("b", 6), 7);
    tell_event(x, &b, false);
    wait_seen(&x->a, "b", 6, MEMBER_ACTIVE);
    b = *key_put(x, "b", member_json("b", 7), 0);
    tell_event(x, &b, false);
    wait_gone(&x->a, "b");
    wait_asked(&x->a, 2);
    assert_null(peer_find(&x->a, "b"));
    assert_int_equal(x->a.n_corrupt, 2);
    assert_was_well(&x->a);
}

/* Leases that die at birth are not asked for without end. */
static void test_dead_leases_are_paced(void **state)
{
    struct fake_rig *x = *state;

    x->is_lease_bad = true;
    fake_start(x, 6000);
    wait_count(&x->a, &x->n_grants, 2);
    fixture_run(&x->f, 1000);
    assert_true(x->n_grants < 20);
    x->is_lease_bad = false;
    wait_story(&x->a, "R");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_etcd_46_lost_event, fake_setup, fake_teardown),
        cmocka_unit_test_setup_teardown(test_keep_alive_says_so, fake_setup, fake_teardown),
        cmocka_unit_test_setup_teardown(test_reading_from_before_the_key, fake_setup,
                                        fake_teardown),
        cmocka_unit_test_setup_teardown(test_own_key_is_there_already, fake_setup, fake_teardown),
        cmocka_unit_test_setup_teardown(test_refused_writing_is_repeated, fake_setup,
                                        fake_teardown),
        cmocka_unit_test_setup_teardown(test_only_a_writing_ends_the_trouble_of_writing, fake_setup,
                                        fake_teardown),
        cmocka_unit_test_setup_teardown(test_own_key_without_a_lease, fake_setup, fake_teardown),
        cmocka_unit_test_setup_teardown(test_own_key_under_another_lease, fake_setup,
                                        fake_teardown),
        cmocka_unit_test_setup_teardown(test_a_key_written_meanwhile_stays, fake_setup,
                                        fake_teardown),
        cmocka_unit_test_setup_teardown(test_others_without_a_lease, fake_setup, fake_teardown),
        cmocka_unit_test_setup_teardown(test_dead_leases_are_paced, fake_setup, fake_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
