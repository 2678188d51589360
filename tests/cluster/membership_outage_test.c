/* SPDX-License-Identifier: Apache-2.0 */
/* A node's place in a real etcd that is changed behind its back, goes away or loses what it had. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cluster/membership_rig.h"

/* ---- Behind its back ----------------------------------------------------------------------- */

static void test_lease_is_revoked(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    int64_t lease = lease_of(x, NODES "node-a");
    ctl("lease revoke %" PRIx64, (uint64_t)lease);
    wait_story(&x->a, "RLR");
    assert_true(lease_of(x, NODES "node-a") > 0);
    assert_true(lease_of(x, NODES "node-a") != lease);
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
}

/* The keep-alive says so as well. Without a watch's event: nobody's key goes with this lease. */
static void test_keep_alive_finds_no_lease(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->b, "node-a", LONG_MS);
    rig_start(x, &x->a, "node-a", SHORT_MS);
    wait_story(&x->a, "H");
    char text[OUTPUT_MAX];
    ctl_output(text, "lease list");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        int64_t lease = (int64_t)strtoull(line, NULL, 16);
        if (lease != lease_of(x, NODES "node-a") && strlen(line) == 16)
            ctl("lease revoke %s", line);
    }
    wait_asked(&x->a, 4);
    assert_string_equal(x->a.story, "H"); /* told once */
    peer_leave(&x->b, 10000);
    wait_story(&x->a, "HR"); /* under a lease that lives, so it had asked for a new one */
    assert_true(is_lease_there(lease_of(x, NODES "node-a")));
}

/* etcd-46: the key vanishes under a lease that lives; that lease does not stay behind. */
static void test_etcd_46_key_is_deleted(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    int64_t lease = lease_of(x, NODES "node-a");
    for (int i = 0; i < 3; i++) {
        static const char *const stories[] = {"RLR", "RLRLR", "RLRLRLR"};
        ctl("del " NODES "node-a");
        wait_story(&x->a, stories[i]);
    }
    assert_false(is_lease_there(lease));
    assert_true(is_lease_there(lease_of(x, NODES "node-a")));
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
}

static void test_somebody_else_writes_the_key(void **state)
{
    struct etcd_rig *x = *state;
    int64_t lease = grant(&x->f, 60);

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    ctl("put --lease=%" PRIx64 " " NODES "node-a '%s'", (uint64_t)lease, member_json("node-a", 99));
    wait_story(&x->a, "RLH");
    assert_int_equal(x->a.holder.epoch, 99);
    wait_seen(&x->a, "node-a", 99, MEMBER_ACTIVE);
    ctl("lease revoke %" PRIx64, (uint64_t)lease);
    wait_story(&x->a, "RLHR");

    ctl("put " NODES "node-a '%s'", member_json("node-a", 100)); /* without a lease: nobody's */
    wait_story(&x->a, "RLHRLR");
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    assert_true(is_lease_there(lease_of(x, NODES "node-a")));
}

/* What somebody has written by hand, or a tool has copied. */
static void test_keys_without_a_lease(void **state)
{
    struct etcd_rig *x = *state;

    ctl("put " NODES "node-a '%s'", member_json("node-a", 100));
    ctl("put " NODES "other '%s'", member_json("other", 4));
    rig_start(x, &x->a, "node-a", LONG_MS);
    wait_story(&x->a, "R"); /* its own at once: what nobody keeps is nobody's */
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    assert_true(is_lease_there(lease_of(x, NODES "node-a")));
    wait_count(&x->a, &x->a.n_asked, 2);
    assert_null(peer_find(&x->a, "other"));
    assert_non_null(strstr(x->a.trouble, NODES "other: left out: the key has no lease"));
    assert_true(lease_of(x, NODES "other") == 0); /* left to whoever wrote it */

    put_other(x, NODES "other", member_json("other", 5));
    wait_seen(&x->a, "other", 5, MEMBER_ACTIVE);
    ctl("put " NODES "other '%s'", member_json("other", 6)); /* as the watch tells */
    wait_gone(&x->a, "other");
    assert_int_equal(x->a.n_good, 0);
    assert_string_equal(x->a.story, "R");
}

/* An earlier process, of no later epoch, had a longer TTL. It has to be silent for longer than a
 * third of that and this one's TTL. */
static void test_abandoned_key(void **state)
{
    struct etcd_rig *x = *state;
    int64_t lease = grant(&x->f, 15);

    ctl("put --lease=%" PRIx64 " " NODES "node-a '%s'", (uint64_t)lease, member_json("node-a", 1));
    rig_start(x, &x->a, "node-a", 1000);
    wait_story(&x->a, "H");
    wait_story(&x->a, "HR");
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    assert_true(lease_of(x, NODES "node-a") != lease);
    assert_true(is_lease_there(lease)); /* whatever else is under it is not touched */
}

/* As a late repetition of an older writing would. */
static void test_an_old_value_comes_back(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    membership_set(x->a.m, 2, MEMBER_DRAINING);
    wait_seen(&x->a, "node-a", 2, MEMBER_DRAINING);
    ctl("put --lease=%" PRIx64 " " NODES "node-a '%s'", (uint64_t)lease_of(x, NODES "node-a"),
        member_json("node-a", 1));
    wait_seen(&x->a, "node-a", 1, MEMBER_ACTIVE);
    wait_seen(&x->a, "node-a", 2, MEMBER_DRAINING);
    assert_string_equal(x->a.story, "R");
}

/* ---- Outages ------------------------------------------------------------------------------- */

static void test_restart(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->a, "node-a", SHORT_MS);
    etcdserver_kill(rig_server, 0);
    wait_count(&x->a, &x->a.n_troubles, 2);
    assert_string_equal(x->a.story, "R");
    rig_start_server();
    wait_count(&x->a, &x->a.n_good, 1);
    wait_asked(&x->a, 2);
    assert_true(is_lease_there(lease_of(x, NODES "node-a")));
    put_other(x, NODES "other", member_json("other", 4));
    wait_seen(&x->a, "other", 4, MEMBER_ACTIVE);
}

/* Started while nobody is there; the pauses end. */
static void test_starts_late(void **state)
{
    struct etcd_rig *x = *state;

    etcdserver_kill(rig_server, 0);
    rig_start(x, &x->a, "node-a", SHORT_MS);
    wait_count(&x->a, &x->a.n_troubles, 4);
    assert_int_equal(x->a.n_told, 0);
    rig_start_server();
    wait_story(&x->a, "R");
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    assert_true(x->a.n_good > 0);
}

/* Nobody answers for longer than the TTL; then the lease is gone. */
static void test_down_longer_than_ttl(void **state)
{
    struct etcd_rig *x = *state;

    rig_start_settled(x, &x->a, "node-a", SHORT_MS);
    int64_t lease = lease_of(x, NODES "node-a");
    mono_ms asked_at = x->a.asked_at;
    etcdserver_kill(rig_server, 0);
    fixture_run(&x->f, SHORT_MS + 500);
    assert_string_equal(x->a.story, "R"); /* nobody can say */
    assert_true(membership_is_registered(x->a.m));
    assert_true(x->a.asked_at - asked_at <= SHORT_MS); /* but the list grows old */
    rig_start_server();
    ctl("lease revoke %" PRIx64, (uint64_t)lease); /* a restart has lengthened it */
    wait_story(&x->a, "RLR");
    assert_true(lease_of(x, NODES "node-a") != lease);
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    wait_count(&x->a, &x->a.n_good, 1);
}

/* etcd-49: silent for longer than the idle limit and the TTL. */
static void test_etcd_49_silence(void **state)
{
    struct etcd_rig *x = *state;
    struct etcd_config cfg = fixture_config(rig_server, 1);

    cfg.watch_idle_ms = 700;
    peer_open(&x->a, &x->f, &cfg, "node-a", SHORT_MS);
    wait_story(&x->a, "R");
    wait_asked(&x->a, 2);
    etcdserver_pause(rig_server, 0);
    fixture_run(&x->f, SHORT_MS + 1500);
    assert_true(x->a.n_troubles > 0);
    assert_string_equal(x->a.story, "R");
    unsigned n_good = x->a.n_good;
    etcdserver_resume(rig_server, 0);
    wait_count(&x->a, &x->a.n_good, n_good + 1);
    wait_asked(&x->a, 2);
    fixture_run(&x->f, 1000); /* the lessor looks twice a second */
    wait_asked(&x->a, 1);
    assert_true(is_lease_there(lease_of(x, NODES "node-a")));
    assert_true(membership_is_registered(x->a.m));
    put_other(x, NODES "other", member_json("other", 4));
    wait_seen(&x->a, "other", 4, MEMBER_ACTIVE);
}

/* The history that the watch needs is gone before it is back: a reading, and a new watch. */
static void test_compaction(void **state)
{
    struct etcd_rig *x = *state;
    struct asked a;

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    put_other(x, NODES "before", member_json("before", 1));
    wait_seen(&x->a, "before", 1, MEMBER_ACTIVE);
    etcdserver_kill(rig_server, 0);
    rig_start_server();
    ctl("del " NODES "before");
    put_other(x, NODES "after", member_json("after", 1));
    assert_int_equal(etcdserver_ctl(rig_server, NULL, 0, "put /x 1"), 0);
    assert_int_equal(ask(&x->f, &a, (struct etcd_call){.op = ETCD_RANGE, .key = STR("/x")}), 0);
    ctl("compact %" PRId64, a.a.revision);
    wait_seen(&x->a, "after", 1, MEMBER_ACTIVE);
    assert_null(peer_find(&x->a, "before"));
    wait_count(&x->a, &x->a.n_not_found, 1);
    wait_asked(&x->a, 1); /* the new watch stands */
    put_other(x, NODES "last", member_json("last", 1));
    wait_seen(&x->a, "last", 1, MEMBER_ACTIVE);
    assert_string_equal(x->a.story, "R");
}

/* etcd is put back to an earlier state, here to nothing: the revisions begin anew, far below that
 * at which the watch would go on. */
static void test_restored(void **state)
{
    struct etcd_rig *x = *state;
    char dir[ETCDSERVER_PATH_MAX];
    char command[ETCDSERVER_PATH_MAX + 16];

    rig_start_settled(x, &x->a, "node-a", LONG_MS);
    for (int i = 0; i < 20; i++)
        put_other(x, NODES "old", member_json("old", i));
    wait_seen(&x->a, "old", 19, MEMBER_ACTIVE);
    etcdserver_kill(rig_server, 0);
    etcdserver_file(rig_server, "m0", dir);
    (void)snprintf(command, sizeof(command), "rm -r '%s'", dir);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): a test's own words */
    rig_start_server();
    wait_story(&x->a, "RLR");
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    assert_null(peer_find(&x->a, "old"));
    wait_count(&x->a, &x->a.n_asked, 4);
    mono_ms asked_at = x->a.asked_at;
    x->others = 0; /* went with the rest */
    put_other(x, NODES "new", member_json("new", 1));
    wait_seen(&x->a, "new", 1, MEMBER_ACTIVE);
    ctl("del " NODES "new");
    wait_gone(&x->a, "new");
    assert_true(x->a.asked_at == asked_at); /* by a watch that stands where the store is */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lease_is_revoked, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_keep_alive_finds_no_lease, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_etcd_46_key_is_deleted, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_somebody_else_writes_the_key, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_keys_without_a_lease, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_abandoned_key, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_an_old_value_comes_back, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_restart, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_starts_late, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_down_longer_than_ttl, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_etcd_49_silence, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_compaction, rig_setup, rig_teardown),
        cmocka_unit_test_setup_teardown(test_restored, rig_setup, rig_teardown),
    };

    return cmocka_run_group_tests(tests, rig_open_server, rig_close_server);
}
