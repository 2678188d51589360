/* SPDX-License-Identifier: Apache-2.0 */
/* A node's place in a real etcd, and what it sees of others there. Where the TTL is long, what
 * happens in time can only have come from the watch. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cluster/membership_rig.h"

/* ---- The key ------------------------------------------------------------------------------- */

static void test_reads_well(void **state)
{
    struct etcd_rig *x = *state;
    char text[OUTPUT_MAX];
    char command[64];

    rig_start_settled(x, &x->a, "node-a", LONG_MS + 1);
    ctl_output(text, "get --prefix /jobflow/");
    assert_string_equal(text, NODES "node-a\n"
                                    "{\"name\":\"node-a\",\"address\":\"node-a:80\",\"state\":"
                                    "\"joining\",\"epoch\":1,\"version\":\"1.0\",\"hashVersion\":1,"
                                    "\"startedAt\":\"2026-01-01T00:00:00.000Z\"}\n");
    (void)snprintf(command, sizeof(command), "lease timetolive --keys %" PRIx64,
                   (uint64_t)lease_of(x, NODES "node-a"));
    ctl_output(text, command);
    assert_non_null(strstr(text, "granted with TTL(601s)")); /* whole seconds, rounded up */
    assert_non_null(strstr(text, NODES "node-a"));
}

static void test_state_and_epoch(void **state)
{
    struct etcd_rig *x = *state;
    char text[OUTPUT_MAX];

    rig_start(x, &x->a, "node-a", LONG_MS);
    membership_set(x->a.m, 7, MEMBER_JOINING); /* before the key stands */
    wait_seen(&x->a, "node-a", 7, MEMBER_JOINING);
    membership_set(x->a.m, 8, MEMBER_JOINING);
    membership_set(x->a.m, 8, MEMBER_ACTIVE);
    membership_set(x->a.m, 9, MEMBER_DRAINING);
    wait_seen(&x->a, "node-a", 9, MEMBER_DRAINING);
    ctl_output(text, "get --prefix " NODES);
    assert_non_null(strstr(text, "\"state\":\"draining\",\"epoch\":9,"));
    wait_story(&x->a, "R");

    /* The same again is not written. */
    struct asked before;
    struct asked after;
    struct etcd_call c = {.op = ETCD_RANGE, .key = STR("/x")};
    assert_int_equal(ask(&x->f, &before, c), 0);
    membership_set(x->a.m, 9, MEMBER_DRAINING);
    fixture_run(&x->f, 50);
    assert_int_equal(ask(&x->f, &after, c), 0);
    assert_true(before.a.revision == after.a.revision);
}

/* For several times the TTL. */
static void test_is_kept_alive(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->a, "node-a", 1000);
    int64_t lease = lease_of(x, NODES "node-a");
    wait_asked(&x->a, 12); /* three of them in a TTL */
    assert_string_equal(x->a.story, "R");
    assert_true(lease_of(x, NODES "node-a") == lease);
}

/* Each sees the other without a reading in between. */
static void test_two_see_each_other(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    mono_ms asked_at = x->a.asked_at;
    rig_start_settled(x, &x->b, "node-b", LONG_MS);
    assert_non_null(peer_find(&x->b, "node-a"));
    wait_seen(&x->a, "node-b", 1, MEMBER_JOINING);
    membership_set(x->b.m, 2, MEMBER_ACTIVE);
    wait_seen(&x->a, "node-b", 2, MEMBER_ACTIVE);
    membership_set(x->a.m, 3, MEMBER_ACTIVE);
    wait_seen(&x->b, "node-a", 3, MEMBER_ACTIVE);
    peer_leave(&x->b, 10000);
    wait_gone(&x->a, "node-b");
    assert_non_null(peer_find(&x->a, "node-a"));
    assert_true(x->a.asked_at == asked_at); /* events do not make the list younger */
    assert_int_equal(x->a.n_troubles + x->b.n_troubles, 0);
}

/* Other clusters, and what else is in etcd, are nobody's business. */
static void test_own_cluster_only(void **state)
{
    struct etcd_rig *x = *state;

    put_other(x, "/jobflow/tes/nodes/n1", member_json("n1", 1));
    put_other(x, "/jobflow/test/nodes0", member_json("n2", 1));
    put_other(x, "/jobflow/test/executors/n3", member_json("n3", 1));
    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    assert_int_equal(x->a.n, 1);
    assert_int_equal(x->a.n_troubles, 0);
}

/* ---- One name, two processes --------------------------------------------------------------- */

static void test_name_is_held_until_released(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    rig_start(x, &x->b, "node-a", 600); /* asks again every 200 ms */
    wait_story(&x->b, "H");
    assert_string_equal(x->b.holder.address, "node-a:80");
    wait_asked(&x->b, 5); /* so it has asked for the key about as often */
    assert_string_equal(x->b.story, "H");
    assert_string_equal(x->a.story, "R");
    peer_leave(&x->a, 10000);
    wait_story(&x->b, "HR");
    membership_set(x->b.m, 5, MEMBER_ACTIVE);
    wait_seen(&x->b, "node-a", 5, MEMBER_ACTIVE);
}

/* The watch tells of the holder's end. */
static void test_name_is_taken_at_once(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    rig_start(x, &x->b, "node-a", LONG_MS); /* would ask again in 200 s */
    wait_story(&x->b, "H");
    wait_count(&x->b, &x->b.n_asked, 2);
    peer_leave(&x->a, 10000);
    wait_story(&x->b, "HR");
}

static void test_name_of_a_dead_process(void **state)
{
    struct etcd_rig *x = *state;
    struct asked a;
    int64_t lease = grant(&x->f, 1);

    assert_int_equal(ask(&x->f, &a,
                         (struct etcd_call){.op = ETCD_CREATE,
                                            .key = STR(NODES "node-a"),
                                            .value = str_from(member_json("node-a", 41)),
                                            .lease = lease}),
                     0);
    rig_start(x, &x->a, "node-a", LONG_MS);
    wait_story(&x->a, "H");
    assert_int_equal(x->a.holder.epoch, 41);
    wait_story(&x->a, "HR"); /* its lease ran out */
}

static void test_holder_is_no_member(void **state)
{
    struct etcd_rig *x = *state;

    put_other(x, NODES "node-a", "hello");
    rig_start(x, &x->a, "node-a", LONG_MS);
    wait_count(&x->a, &x->a.n_corrupt, 2); /* as a key, and as the holder */
    assert_string_equal(x->a.story, "");
    wait_count(&x->a, &x->a.n_asked, 2);
    ctl("del " NODES "node-a");
    wait_story(&x->a, "R");
}

/* ---- Keys that are no members -------------------------------------------------------------- */

static void test_no_member(void **state)
{
    struct etcd_rig *x = *state;

    put_other(x, NODES "bad", "{\"name\":\"bad\"}");
    put_other(x, NODES "a/b", member_json("a", 1));
    put_other(x, NODES "alias", member_json("node-a", 1));
    put_other(x, NODES "good", member_json("good", 1));
    rig_start(x, &x->a, "node-a", 600);
    wait_story(&x->a, "R");
    wait_asked(&x->a, 4);
    assert_int_equal(x->a.n_corrupt, 3); /* each once */
    assert_int_equal(x->a.n, 2);
    assert_non_null(peer_find(&x->a, "good"));
    assert_non_null(peer_find(&x->a, "node-a"));

    x->a.is_trouble_kept = true;
    put_other(x, NODES "good", "7"); /* a member no longer, as the watch tells */
    wait_gone(&x->a, "good");
    assert_non_null(strstr(x->a.trouble, NODES "good: "));
    wait_asked(&x->a, 2);
    assert_int_equal(x->a.n_corrupt, 4);
    put_other(x, NODES "bad", member_json("bad", 5));
    wait_seen(&x->a, "bad", 5, MEMBER_ACTIVE);
    wait_asked(&x->a, 2);
    assert_int_equal(x->a.n_corrupt, 4);
    assert_was_well(&x->a);
    assert_string_equal(x->a.story, "R");
}

/* ---- Leaving ------------------------------------------------------------------------------- */

static void test_leave(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    int64_t lease = lease_of(x, NODES "node-a");
    membership_set(x->a.m, 2, MEMBER_DRAINING); /* on its way */
    x->a.frees_itself = true;
    peer_leave(&x->a, 20000);
    assert_false(is_lease_there(lease));
    assert_true(lease_of(x, NODES "node-a") < 0);
    assert_string_equal(x->a.story, "R");
    fixture_run(&x->f, 100);
    assert_int_equal(x->a.n_left, 1);
}

/* Before anything began; and at any moment of the beginning: no key stays that nobody knows of. */
static void test_leave_early(void **state)
{
    struct etcd_rig *x = *state;

    for (int steps = 0; steps < 12; steps++) {
        rig_start(x, &x->a, "node-a", LONG_MS);
        for (int i = 0; i < steps; i++)
            fixture_run(&x->f, 1);
        peer_leave(&x->a, 20000);
        assert_true(lease_of(x, NODES "node-a") < 0);
        peer_close(&x->a);
    }
}

static void test_leave_in_time(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    etcdserver_pause(rig_server, 0);
    peer_leave(&x->a, 300); /* which waits no longer than a minute for it */
    etcdserver_resume(rig_server, 0);
    peer_close(&x->a);
    ctl("del --prefix /");

    rig_start_settled(x, &x->b, "node-b", LONG_MS);
    etcdserver_kill(rig_server, 0);
    x->b.frees_itself = true;
    peer_leave(&x->b, 300);
    assert_true(x->b.n_troubles > 0);
    rig_start_server();
}

/* It is tried again within the time. */
static void test_leave_while_etcd_restarts(void **state)
{
    struct etcd_rig *x = *state;
    struct err err = {0};

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    int64_t lease = lease_of(x, NODES "node-a");
    etcdserver_kill(rig_server, 0);
    assert_int_equal(etcdserver_start(rig_server, 0, false, &err), 0);
    peer_leave(&x->a, 50000);
    assert_false(is_lease_there(lease));
}

static void test_free_at_any_time(void **state)
{
    struct etcd_rig *x = *state;

    membership_free(NULL);
    for (int steps = 0; steps < 12; steps++) {
        rig_start(x, &x->a, "node-a", LONG_MS);
        for (int i = 0; i < steps; i++)
            fixture_run(&x->f, 1);
        peer_close(&x->a);
        ctl("del --prefix /");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads_well, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_state_and_epoch, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_is_kept_alive, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_two_see_each_other, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_own_cluster_only, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_name_is_held_until_released, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_name_is_taken_at_once, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_name_of_a_dead_process, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_holder_is_no_member, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_no_member, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_leave, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_leave_early, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_leave_in_time, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_leave_while_etcd_restarts, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_free_at_any_time, rig_setup, rig_teardown),
    };

    return cmocka_run_group_tests(tests, rig_open_server, rig_close_server);
}
