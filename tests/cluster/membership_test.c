/* SPDX-License-Identifier: Apache-2.0 */
/* A node's place in a real etcd, and what it sees of others there. Where the TTL is long, what
 * happens in time can only have come from the watch. While the loop does not run the nodes see
 * nothing, so what etcdctl does meanwhile is all there when they look again. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cluster/membership_fixture.h"

#define LONG_MS 600000 /* readings and keep-alives: every 200 s */
#define SHORT_MS 2000
#define OUTPUT_MAX 4096

struct rig {
    struct fixture f;
    struct peer a;
    struct peer b;
    int64_t others; /* the lease of the members that the test writes; 0 = none yet */
};

static struct etcdserver *server; /* all tests' */

static int open_server(void **state)
{
    struct etcdserver_options o = {.n_members = 1};

    (void)state;
    server = fixture_server(&o);
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    etcdserver_free(server);
    return 0;
}

static int setup(void **state)
{
    struct rig *x = calloc(1, sizeof(*x));
    struct etcd_config cfg = fixture_config(server, 1);

    assert_non_null(x);
    fixture_open(&x->f);
    fixture_client(&x->f, &cfg);
    fixture_wipe(&x->f);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    struct rig *x = *state;

    peer_close(&x->a);
    peer_close(&x->b);
    fixture_close(&x->f);
    free(x);
    return 0;
}

static void start(struct rig *x, struct peer *p, const char *name, int64_t ttl_ms)
{
    struct etcd_config cfg = fixture_config(server, 1);

    peer_open(p, &x->f, &cfg, name, ttl_ms);
}

/* Registered, and with a watch that stands: what comes now comes through it. */
static void start_settled(struct rig *x, struct peer *p, const char *name, int64_t ttl_ms)
{
    start(x, p, name, ttl_ms);
    wait_story(p, "R");
    wait_seen(p, name, 1, MEMBER_JOINING);
    wait_count(p, &p->n_asked, 2); /* one before the watch, one after */
}

static void PRINTF_LIKE(1, 2) ctl(const char *fmt, ...)
{
    char command[1024];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(command, sizeof(command), fmt, args);
    va_end(args);
    assert_int_equal(etcdserver_ctl(server, NULL, 0, "%s", command), 0);
}

static void output(char dst[OUTPUT_MAX], const char *command)
{
    assert_int_equal(etcdserver_ctl(server, dst, OUTPUT_MAX, "%s", command), 0);
}

static void start_server(void)
{
    struct err err = {0};

    if (etcdserver_start(server, 0, true, &err))
        fail_msg("%s", err.text);
}

/* What a member of another process would write. */
static const char *json(const char *name, int64_t epoch)
{
    static char text[512];

    (void)snprintf(text, sizeof(text),
                   "{\"name\":\"%s\",\"address\":\"other:80\",\"state\":\"active\","
                   "\"epoch\":%" PRId64 ",\"version\":\"1.0\",\"hashVersion\":1,"
                   "\"startedAt\":\"2026-01-01T00:00:00.000Z\"}",
                   name, epoch);
    return text;
}

/* A key of the other members, under their lease. */
static void put_other(struct rig *x, const char *key, const char *value)
{
    if (!x->others)
        x->others = grant(&x->f, 600);
    ctl("put --lease=%" PRIx64 " %s '%s'", (uint64_t)x->others, key, value);
}

static int64_t lease_of(struct rig *x, const char *key)
{
    struct asked a;

    assert_int_equal(ask(&x->f, &a, (struct etcd_call){.op = ETCD_RANGE, .key = str_from(key)}), 0);
    return a.a.n_kvs ? a.kvs[0].lease : -1; /* the key is not there */
}

static bool is_lease_there(int64_t lease)
{
    char command[64];
    char text[OUTPUT_MAX];

    (void)snprintf(command, sizeof(command), "lease timetolive %" PRIx64, (uint64_t)lease);
    output(text, command);
    return !strstr(text, "already expired");
}

/* ---- The key ------------------------------------------------------------------------------- */

static void test_reads_well(void **state)
{
    struct rig *x = *state;
    char text[OUTPUT_MAX];
    char command[64];

    start_settled(x, &x->a, "node-a", LONG_MS + 1);
    output(text, "get --prefix /jobflow/");
    assert_string_equal(text, NODES "node-a\n"
                                    "{\"name\":\"node-a\",\"address\":\"node-a:80\",\"state\":"
                                    "\"joining\",\"epoch\":1,\"version\":\"1.0\",\"hashVersion\":1,"
                                    "\"startedAt\":\"2026-01-01T00:00:00.000Z\"}\n");
    (void)snprintf(command, sizeof(command), "lease timetolive --keys %" PRIx64,
                   (uint64_t)lease_of(x, NODES "node-a"));
    output(text, command);
    assert_non_null(strstr(text, "granted with TTL(601s)")); /* whole seconds, rounded up */
    assert_non_null(strstr(text, NODES "node-a"));
}

static void test_state_and_epoch(void **state)
{
    struct rig *x = *state;
    char text[OUTPUT_MAX];

    start(x, &x->a, "node-a", LONG_MS);
    membership_set(x->a.m, 7, MEMBER_JOINING); /* before the key stands */
    wait_seen(&x->a, "node-a", 7, MEMBER_JOINING);
    membership_set(x->a.m, 8, MEMBER_JOINING);
    membership_set(x->a.m, 8, MEMBER_ACTIVE);
    membership_set(x->a.m, 9, MEMBER_DRAINING);
    wait_seen(&x->a, "node-a", 9, MEMBER_DRAINING);
    output(text, "get --prefix " NODES);
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
    struct rig *x = *state;

    start_settled(x, &x->a, "node-a", 1000);
    int64_t lease = lease_of(x, NODES "node-a");
    wait_asked(&x->a, 12); /* three of them in a TTL */
    assert_string_equal(x->a.story, "R");
    assert_true(lease_of(x, NODES "node-a") == lease);
}

/* Each sees the other without a reading in between. */
static void test_two_see_each_other(void **state)
{
    struct rig *x = *state;

    start_settled(x, &x->a, "node-a", LONG_MS);
    mono_ms asked_at = x->a.asked_at;
    start_settled(x, &x->b, "node-b", LONG_MS);
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
    struct rig *x = *state;

    put_other(x, "/jobflow/tes/nodes/n1", json("n1", 1));
    put_other(x, "/jobflow/test/nodes0", json("n2", 1));
    put_other(x, "/jobflow/test/executors/n3", json("n3", 1));
    start_settled(x, &x->a, "node-a", LONG_MS);
    assert_int_equal(x->a.n, 1);
    assert_int_equal(x->a.n_troubles, 0);
}

/* ---- One name, two processes --------------------------------------------------------------- */

static void test_name_is_held_until_released(void **state)
{
    struct rig *x = *state;

    start_settled(x, &x->a, "node-a", LONG_MS);
    start(x, &x->b, "node-a", 600); /* asks again every 200 ms */
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
    struct rig *x = *state;

    start_settled(x, &x->a, "node-a", LONG_MS);
    start(x, &x->b, "node-a", LONG_MS); /* would ask again in 200 s */
    wait_story(&x->b, "H");
    wait_count(&x->b, &x->b.n_asked, 2);
    peer_leave(&x->a, 10000);
    wait_story(&x->b, "HR");
}

static void test_name_of_a_dead_process(void **state)
{
    struct rig *x = *state;
    struct asked a;
    int64_t lease = grant(&x->f, 1);

    assert_int_equal(ask(&x->f, &a,
                         (struct etcd_call){.op = ETCD_CREATE,
                                            .key = STR(NODES "node-a"),
                                            .value = str_from(json("node-a", 41)),
                                            .lease = lease}),
                     0);
    start(x, &x->a, "node-a", LONG_MS);
    wait_story(&x->a, "H");
    assert_int_equal(x->a.holder.epoch, 41);
    wait_story(&x->a, "HR"); /* its lease ran out */
}

static void test_holder_is_no_member(void **state)
{
    struct rig *x = *state;

    put_other(x, NODES "node-a", "hello");
    start(x, &x->a, "node-a", LONG_MS);
    wait_count(&x->a, &x->a.n_corrupt, 2); /* as a key, and as the holder */
    assert_string_equal(x->a.story, "");
    wait_count(&x->a, &x->a.n_asked, 2);
    ctl("del " NODES "node-a");
    wait_story(&x->a, "R");
}

/* ---- Behind its back ----------------------------------------------------------------------- */

static void test_lease_is_revoked(void **state)
{
    struct rig *x = *state;

    start_settled(x, &x->a, "node-a", LONG_MS);
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
    struct rig *x = *state;

    start_settled(x, &x->b, "node-a", LONG_MS);
    start(x, &x->a, "node-a", SHORT_MS);
    wait_story(&x->a, "H");
    char text[OUTPUT_MAX];
    output(text, "lease list");
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
    struct rig *x = *state;

    start_settled(x, &x->a, "node-a", LONG_MS);
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
    struct rig *x = *state;
    int64_t lease = grant(&x->f, 60);

    start_settled(x, &x->a, "node-a", LONG_MS);
    ctl("put --lease=%" PRIx64 " " NODES "node-a '%s'", (uint64_t)lease, json("node-a", 99));
    wait_story(&x->a, "RLH");
    assert_int_equal(x->a.holder.epoch, 99);
    wait_seen(&x->a, "node-a", 99, MEMBER_ACTIVE);
    ctl("lease revoke %" PRIx64, (uint64_t)lease);
    wait_story(&x->a, "RLHR");

    ctl("put " NODES "node-a '%s'", json("node-a", 100)); /* without a lease: nobody's */
    wait_story(&x->a, "RLHRLR");
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    assert_true(is_lease_there(lease_of(x, NODES "node-a")));
}

/* What somebody has written by hand, or a tool has copied. */
static void test_keys_without_a_lease(void **state)
{
    struct rig *x = *state;

    ctl("put " NODES "node-a '%s'", json("node-a", 100));
    ctl("put " NODES "other '%s'", json("other", 4));
    start(x, &x->a, "node-a", LONG_MS);
    wait_story(&x->a, "R"); /* its own at once: what nobody keeps is nobody's */
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    assert_true(is_lease_there(lease_of(x, NODES "node-a")));
    wait_count(&x->a, &x->a.n_asked, 2);
    assert_null(peer_find(&x->a, "other"));
    assert_non_null(strstr(x->a.trouble, NODES "other: left out: the key has no lease"));
    assert_true(lease_of(x, NODES "other") == 0); /* left to whoever wrote it */

    put_other(x, NODES "other", json("other", 5));
    wait_seen(&x->a, "other", 5, MEMBER_ACTIVE);
    ctl("put " NODES "other '%s'", json("other", 6)); /* as the watch tells */
    wait_gone(&x->a, "other");
    assert_int_equal(x->a.n_good, 0);
    assert_string_equal(x->a.story, "R");
}

/* An earlier process, of no later epoch, had a longer TTL. It has to be silent for longer than a
 * third of that and this one's TTL. */
static void test_abandoned_key(void **state)
{
    struct rig *x = *state;
    int64_t lease = grant(&x->f, 15);

    ctl("put --lease=%" PRIx64 " " NODES "node-a '%s'", (uint64_t)lease, json("node-a", 1));
    start(x, &x->a, "node-a", 1000);
    wait_story(&x->a, "H");
    wait_story(&x->a, "HR");
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    assert_true(lease_of(x, NODES "node-a") != lease);
    assert_true(is_lease_there(lease)); /* whatever else is under it is not touched */
}

/* As a late repetition of an older writing would. */
static void test_an_old_value_comes_back(void **state)
{
    struct rig *x = *state;

    start_settled(x, &x->a, "node-a", LONG_MS);
    membership_set(x->a.m, 2, MEMBER_DRAINING);
    wait_seen(&x->a, "node-a", 2, MEMBER_DRAINING);
    ctl("put --lease=%" PRIx64 " " NODES "node-a '%s'", (uint64_t)lease_of(x, NODES "node-a"),
        json("node-a", 1));
    wait_seen(&x->a, "node-a", 1, MEMBER_ACTIVE);
    wait_seen(&x->a, "node-a", 2, MEMBER_DRAINING);
    assert_string_equal(x->a.story, "R");
}

/* ---- Outages ------------------------------------------------------------------------------- */

static void test_restart(void **state)
{
    struct rig *x = *state;

    start_settled(x, &x->a, "node-a", SHORT_MS);
    etcdserver_kill(server, 0);
    wait_count(&x->a, &x->a.n_troubles, 2);
    assert_string_equal(x->a.story, "R");
    start_server();
    wait_count(&x->a, &x->a.n_good, 1);
    wait_asked(&x->a, 2);
    assert_true(is_lease_there(lease_of(x, NODES "node-a")));
    put_other(x, NODES "other", json("other", 4));
    wait_seen(&x->a, "other", 4, MEMBER_ACTIVE);
}

/* Started while nobody is there; the pauses end. */
static void test_starts_late(void **state)
{
    struct rig *x = *state;

    etcdserver_kill(server, 0);
    start(x, &x->a, "node-a", SHORT_MS);
    wait_count(&x->a, &x->a.n_troubles, 4);
    assert_int_equal(x->a.n_told, 0);
    start_server();
    wait_story(&x->a, "R");
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    assert_true(x->a.n_good > 0);
}

/* Nobody answers for longer than the TTL; then the lease is gone. */
static void test_down_longer_than_ttl(void **state)
{
    struct rig *x = *state;

    start_settled(x, &x->a, "node-a", SHORT_MS);
    int64_t lease = lease_of(x, NODES "node-a");
    mono_ms asked_at = x->a.asked_at;
    etcdserver_kill(server, 0);
    fixture_run(&x->f, SHORT_MS + 500);
    assert_string_equal(x->a.story, "R"); /* nobody can say */
    assert_true(membership_is_registered(x->a.m));
    assert_true(x->a.asked_at - asked_at <= SHORT_MS); /* but the list grows old */
    start_server();
    ctl("lease revoke %" PRIx64, (uint64_t)lease); /* a restart has lengthened it */
    wait_story(&x->a, "RLR");
    assert_true(lease_of(x, NODES "node-a") != lease);
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    wait_count(&x->a, &x->a.n_good, 1);
}

/* etcd-49: silent for longer than the idle limit and the TTL. */
static void test_etcd_49_silence(void **state)
{
    struct rig *x = *state;
    struct etcd_config cfg = fixture_config(server, 1);

    cfg.watch_idle_ms = 700;
    peer_open(&x->a, &x->f, &cfg, "node-a", SHORT_MS);
    wait_story(&x->a, "R");
    wait_asked(&x->a, 2);
    etcdserver_pause(server, 0);
    fixture_run(&x->f, SHORT_MS + 1500);
    assert_true(x->a.n_troubles > 0);
    assert_string_equal(x->a.story, "R");
    unsigned n_good = x->a.n_good;
    etcdserver_resume(server, 0);
    wait_count(&x->a, &x->a.n_good, n_good + 1);
    wait_asked(&x->a, 2);
    fixture_run(&x->f, 1000); /* the lessor looks twice a second */
    wait_asked(&x->a, 1);
    assert_true(is_lease_there(lease_of(x, NODES "node-a")));
    assert_true(membership_is_registered(x->a.m));
    put_other(x, NODES "other", json("other", 4));
    wait_seen(&x->a, "other", 4, MEMBER_ACTIVE);
}

/* The history that the watch needs is gone before it is back: a reading, and a new watch. */
static void test_compaction(void **state)
{
    struct rig *x = *state;
    struct asked a;

    start_settled(x, &x->a, "node-a", LONG_MS);
    put_other(x, NODES "before", json("before", 1));
    wait_seen(&x->a, "before", 1, MEMBER_ACTIVE);
    etcdserver_kill(server, 0);
    start_server();
    ctl("del " NODES "before");
    put_other(x, NODES "after", json("after", 1));
    assert_int_equal(etcdserver_ctl(server, NULL, 0, "put /x 1"), 0);
    assert_int_equal(ask(&x->f, &a, (struct etcd_call){.op = ETCD_RANGE, .key = STR("/x")}), 0);
    ctl("compact %" PRId64, a.a.revision);
    wait_seen(&x->a, "after", 1, MEMBER_ACTIVE);
    assert_null(peer_find(&x->a, "before"));
    wait_count(&x->a, &x->a.n_not_found, 1);
    wait_asked(&x->a, 1); /* the new watch stands */
    put_other(x, NODES "last", json("last", 1));
    wait_seen(&x->a, "last", 1, MEMBER_ACTIVE);
    assert_string_equal(x->a.story, "R");
}

/* etcd is put back to an earlier state, here to nothing: the revisions begin anew, far below that
 * at which the watch would go on. */
static void test_restored(void **state)
{
    struct rig *x = *state;
    char dir[ETCDSERVER_PATH_MAX];
    char command[ETCDSERVER_PATH_MAX + 16];

    start_settled(x, &x->a, "node-a", LONG_MS);
    for (int i = 0; i < 20; i++)
        put_other(x, NODES "old", json("old", i));
    wait_seen(&x->a, "old", 19, MEMBER_ACTIVE);
    etcdserver_kill(server, 0);
    etcdserver_file(server, "m0", dir);
    (void)snprintf(command, sizeof(command), "rm -r '%s'", dir);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): a test's own words */
    start_server();
    wait_story(&x->a, "RLR");
    wait_seen(&x->a, "node-a", 1, MEMBER_JOINING);
    assert_null(peer_find(&x->a, "old"));
    wait_count(&x->a, &x->a.n_asked, 4);
    mono_ms asked_at = x->a.asked_at;
    x->others = 0; /* went with the rest */
    put_other(x, NODES "new", json("new", 1));
    wait_seen(&x->a, "new", 1, MEMBER_ACTIVE);
    ctl("del " NODES "new");
    wait_gone(&x->a, "new");
    assert_true(x->a.asked_at == asked_at); /* by a watch that stands where the store is */
}

/* ---- Keys that are no members -------------------------------------------------------------- */

static void test_no_member(void **state)
{
    struct rig *x = *state;

    put_other(x, NODES "bad", "{\"name\":\"bad\"}");
    put_other(x, NODES "a/b", json("a", 1));
    put_other(x, NODES "alias", json("node-a", 1));
    put_other(x, NODES "good", json("good", 1));
    start(x, &x->a, "node-a", 600);
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
    put_other(x, NODES "bad", json("bad", 5));
    wait_seen(&x->a, "bad", 5, MEMBER_ACTIVE);
    wait_asked(&x->a, 2);
    assert_int_equal(x->a.n_corrupt, 4);
    assert_int_equal(x->a.n_good, 0); /* etcd was well all the time */
    assert_string_equal(x->a.story, "R");
}

/* ---- Leaving ------------------------------------------------------------------------------- */

static void test_leave(void **state)
{
    struct rig *x = *state;

    start_settled(x, &x->a, "node-a", LONG_MS);
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
    struct rig *x = *state;

    for (int steps = 0; steps < 12; steps++) {
        start(x, &x->a, "node-a", LONG_MS);
        for (int i = 0; i < steps; i++)
            fixture_run(&x->f, 1);
        peer_leave(&x->a, 20000);
        assert_true(lease_of(x, NODES "node-a") < 0);
        peer_close(&x->a);
    }
}

static void test_leave_in_time(void **state)
{
    struct rig *x = *state;

    start_settled(x, &x->a, "node-a", LONG_MS);
    etcdserver_pause(server, 0);
    peer_leave(&x->a, 300); /* which waits no longer than a minute for it */
    etcdserver_resume(server, 0);
    peer_close(&x->a);
    ctl("del --prefix /");

    start_settled(x, &x->b, "node-b", LONG_MS);
    etcdserver_kill(server, 0);
    x->b.frees_itself = true;
    peer_leave(&x->b, 300);
    assert_true(x->b.n_troubles > 0);
    start_server();
}

/* It is tried again within the time. */
static void test_leave_while_etcd_restarts(void **state)
{
    struct rig *x = *state;
    struct err err = {0};

    start_settled(x, &x->a, "node-a", LONG_MS);
    int64_t lease = lease_of(x, NODES "node-a");
    etcdserver_kill(server, 0);
    assert_int_equal(etcdserver_start(server, 0, false, &err), 0);
    peer_leave(&x->a, 50000);
    assert_false(is_lease_there(lease));
}

static void test_free_at_any_time(void **state)
{
    struct rig *x = *state;

    membership_free(NULL);
    for (int steps = 0; steps < 12; steps++) {
        start(x, &x->a, "node-a", LONG_MS);
        for (int i = 0; i < steps; i++)
            fixture_run(&x->f, 1);
        peer_close(&x->a);
        ctl("del --prefix /");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads_well, setup, teardown),
        cmocka_unit_test_setup_teardown(test_state_and_epoch, setup, teardown),
        cmocka_unit_test_setup_teardown(test_is_kept_alive, setup, teardown),
        cmocka_unit_test_setup_teardown(test_two_see_each_other, setup, teardown),
        cmocka_unit_test_setup_teardown(test_own_cluster_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_name_is_held_until_released, setup, teardown),
        cmocka_unit_test_setup_teardown(test_name_is_taken_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_name_of_a_dead_process, setup, teardown),
        cmocka_unit_test_setup_teardown(test_holder_is_no_member, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lease_is_revoked, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keep_alive_finds_no_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(test_etcd_46_key_is_deleted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_somebody_else_writes_the_key, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys_without_a_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(test_abandoned_key, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_old_value_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_starts_late, setup, teardown),
        cmocka_unit_test_setup_teardown(test_down_longer_than_ttl, setup, teardown),
        cmocka_unit_test_setup_teardown(test_etcd_49_silence, setup, teardown),
        cmocka_unit_test_setup_teardown(test_compaction, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restored, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_member, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leave, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leave_early, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leave_in_time, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leave_while_etcd_restarts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_free_at_any_time, setup, teardown),
    };

    return cmocka_run_group_tests(tests, open_server, close_server);
}
