/* SPDX-License-Identifier: Apache-2.0 */
/* What a node sees of the others, at an etcd that answers as the test wants. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cluster/membership_fake.h"

static void test_without_a_watch(void **state)
{
    struct fake_rig *x = *state;

    x->is_watch_silent = true;
    fake_start(x, SHORT_MS);
    wait_story(&x->a, "R");
    (void)key_put(x, "b", member_json("b", 5), 7);
    wait_seen(&x->a, "b", 5, MEMBER_ACTIVE);
    key_drop(x, "b");
    wait_gone(&x->a, "b");
    assert_true(x->n_watches > 0);
}

/* The list is as old as the question, and only whole, linearizable answers make it younger. */
static void test_asked_at(void **state)
{
    struct fake_rig *x = *state;

    fake_start_settled(x, SHORT_MS);
    hold_read(x);
    mono_ms before = x->a.asked_at;
    struct key b = *key_put(x, "b", member_json("b", 5), 7);
    tell_event(x, &b, false);
    wait_seen(&x->a, "b", 5, MEMBER_ACTIVE);
    assert_true(x->a.asked_at == before);
    fixture_run(&x->f, 50); /* the answer takes its time */
    unsigned n_asked = x->a.n_asked;
    release_read(x);
    wait_count(&x->a, &x->a.n_asked, n_asked + 1);
    assert_true(x->a.asked_at > before && x->a.asked_at <= x->read_came_at);
    assert_null(strstr(x->read_body, "serializable"));
}

/* A reading that fails makes nothing younger. */
static void test_failed_reading(void **state)
{
    struct fake_rig *x = *state;

    fake_start_settled(x, SHORT_MS);
    hold_read(x);
    mono_ms before = x->a.asked_at;
    wait_count(&x->a, &x->a.n_troubles, 1); /* it took too long */
    assert_true(x->a.asked_at == before);
    x->reads_are_held = false;
    wait_asked(&x->a, 1);
    assert_true(x->a.n_good > 0);
}

/* Events that came while the reading was under way are newer than it. */
static void test_reading_does_not_undo_events(void **state)
{
    struct fake_rig *x = *state;
    struct key gone;

    (void)key_put(x, "gone", member_json("gone", 1), 7);
    (void)key_put(x, "changed", member_json("changed", 1), 7);
    fake_start_settled(x, SHORT_MS);
    wait_seen(&x->a, "changed", 1, MEMBER_ACTIVE);
    hold_read(x);
    gone = *key_find(x, "gone");
    gone.revision = x->revision + 1;
    tell_event(x, &gone, true);
    struct key new = {.name = "new", .revision = x->revision + 2, .lease = 7};
    (void)snprintf(new.value, sizeof(new.value), "%s", member_json("new", 1));
    tell_event(x, &new, false);
    struct key changed = {.name = "changed", .revision = x->revision + 3, .lease = 7};
    (void)snprintf(changed.value, sizeof(changed.value), "%s", member_json("changed", 2));
    tell_event(x, &changed, false);
    wait_seen(&x->a, "changed", 2, MEMBER_ACTIVE);
    unsigned n_asked = x->a.n_asked;
    release_read(x); /* as of before the three */
    key_drop(x, "gone");
    (void)key_put(x, "new", new.value, 7);
    (void)key_put(x, "changed", changed.value, 7);
    wait_count(&x->a, &x->a.n_asked, n_asked + 1);
    assert_int_equal(x->a.n_asked, n_asked + 1);
    assert_null(peer_find(&x->a, "gone"));
    assert_non_null(peer_find(&x->a, "new"));
    assert_int_equal(peer_find(&x->a, "changed")->epoch, 2);
    assert_int_equal(x->n_watches, 1); /* the store was not put back */
    wait_asked(&x->a, 2);
    assert_null(peer_find(&x->a, "gone"));
    assert_non_null(peer_find(&x->a, "new"));
    assert_string_equal(x->a.story, "R");
}

/* Events that a reading contains already come late. */
static void test_late_events(void **state)
{
    struct fake_rig *x = *state;
    struct key early;

    early = *key_put(x, "b", member_json("b", 1), 7);
    (void)key_put(x, "b", member_json("b", 2), 7);
    fake_start_settled(x, LONG_MS);
    unsigned n_told = x->a.n_told;
    tell_event(x, &early, false);
    early.revision--;
    tell_event(x, &early, true);
    wait_count(&x->a, &x->a.n_told, n_told + 2);
    assert_int_equal(peer_find(&x->a, "b")->epoch, 2);
}

/* A backup was restored, with this node's key and lease in it: nothing is lost, and the watch goes
 * on where the store is now. */
static void test_restored(void **state)
{
    struct fake_rig *x = *state;

    (void)key_put(x, "b", member_json("b", 5), 7);
    fake_start_settled(x, SHORT_MS);
    assert_int_equal(peer_find(&x->a, "b")->epoch, 5);
    (void)snprintf(key_find(x, "b")->value, sizeof(x->keys[0].value), "%s", member_json("b", 4));
    for (size_t i = 0; i < x->n_keys; i++)
        x->keys[i].revision = 8 + (int64_t)i;
    x->revision = 10;
    wait_seen(&x->a, "b", 4, MEMBER_ACTIVE);
    wait_count(&x->a, &x->n_watches, 2);
    assert_int_equal(x->n_watches, 2);
    assert_non_null(strstr(x->watch_body, "\"start_revision\":\"11\""));
    struct key b = *key_put(x, "b", member_json("b", 6), 7);
    tell_event(x, &b, false);
    wait_seen(&x->a, "b", 6, MEMBER_ACTIVE);
    assert_string_equal(x->a.story, "R");
    assert_int_equal(x->n_grants, 1);

    key_drop(x, "node-a"); /* judged by the new revisions */
    wait_story(&x->a, "RLR");
}

/* A watch that breaks as soon as it stands is begun anew, with pauses; readings go on. */
static void test_broken_watches_are_paced(void **state)
{
    struct fake_rig *x = *state;

    x->is_watch_cut = true;
    fake_start(x, 6000);
    wait_count(&x->a, &x->n_watches, 2);
    fixture_run(&x->f, 1000);
    assert_true(x->n_watches < 20);
    assert_true(x->a.n_troubles > 0);
    assert_int_equal(x->a.n_good, 0); /* the readings are well, the watch is not */
    x->is_watch_cut = false;
    unsigned n = x->n_watches;
    wait_count(&x->a, &x->n_watches, n + 1);
    wait_asked(&x->a, 1);
    struct key b = *key_put(x, "b", member_json("b", 1), 7);
    tell_event(x, &b, false);
    wait_seen(&x->a, "b", 1, MEMBER_ACTIVE);
    assert_int_equal(x->a.n_good, 1);
}

static void test_too_many(void **state)
{
    struct fake_rig *x = *state;
    char name[16];

    for (int i = 0; i < KEYS_MAX - 1; i++) {
        (void)snprintf(name, sizeof(name), "n%03d", i);
        (void)key_put(x, name, member_json(name, i), 7);
    }
    fake_start(x, SHORT_MS);
    wait_asked(&x->a, 4);
    assert_int_equal(x->a.n, 512);
    assert_non_null(peer_find(&x->a, "n000"));
    assert_null(peer_find(&x->a, "n598"));
    assert_string_equal(x->a.story, "R"); /* its own key is looked at all the same */
    unsigned n_troubles = x->a.n_troubles;
    assert_true(n_troubles >= KEYS_MAX - 512);
    wait_asked(&x->a, 2);
    assert_int_equal(x->a.n_troubles, n_troubles); /* told of each once */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_without_a_watch, fake_setup, fake_teardown),
        cmocka_unit_test_setup_teardown(test_asked_at, fake_setup, fake_teardown),
        cmocka_unit_test_setup_teardown(test_failed_reading, fake_setup, fake_teardown),
        cmocka_unit_test_setup_teardown(test_reading_does_not_undo_events, fake_setup,
                                        fake_teardown),
        cmocka_unit_test_setup_teardown(test_late_events, fake_setup, fake_teardown),
        cmocka_unit_test_setup_teardown(test_restored, fake_setup, fake_teardown),
        cmocka_unit_test_setup_teardown(test_broken_watches_are_paced, fake_setup, fake_teardown),
        cmocka_unit_test_setup_teardown(test_too_many, fake_setup, fake_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
