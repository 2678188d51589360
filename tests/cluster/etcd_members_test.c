/* SPDX-License-Identifier: Apache-2.0 */
/* Fail-over among the three members of a real etcd. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <event2/event.h>

#include "common/clock.h"
#include "tests/cluster/etcd_fixture.h"

#define N 3

static struct etcdserver *server; /* all tests' */

static int open_server(void **state)
{
    struct etcdserver_options o = {.n_members = N};

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
    *state = fixture_new(server, N);
    return 0;
}

static void start_member(unsigned i, bool wait)
{
    struct err err = {0};

    if (etcdserver_start(server, i, wait, &err))
        fail_msg("%s", err.text);
}

static unsigned leader(void)
{
    mono_ms until = clock_mono() + 30000;
    int i;

    while ((i = etcdserver_leader(server)) < 0)
        assert_true(clock_mono() < until);
    return (unsigned)i;
}

/* A client of two endpoints, in this order. */
static void client_of(struct fixture *f, unsigned first, unsigned second)
{
    struct etcd_config cfg = fixture_config(server, N);
    const char *endpoints[2] = {cfg.endpoints[first], cfg.endpoints[second]};

    cfg.endpoints = endpoints;
    cfg.n_endpoints = 2;
    fixture_client(f, &cfg);
}

static struct etcd_call put_call(const char *value)
{
    return (struct etcd_call){.op = ETCD_PUT, .key = STR("/m/k"), .value = str_from(value)};
}

/* One call is enough when a member does not take connections, and when it is silent. */
static void test_fail_over_within_a_call(void **state)
{
    struct fixture *f = *state;
    unsigned first = (leader() + 1) % N; /* those that do not lead */
    unsigned second = (first + 1) % N == leader() ? (first + 2) % N : (first + 1) % N;
    struct asked a;

    client_of(f, first, leader());
    assert_int_equal(ask(f, &a, put_call("1")), 0);
    etcdserver_kill(server, first);
    assert_int_equal(ask(f, &a, put_call("2")), 0);
    start_member(first, true);
    assert_int_equal(ask(f, &a, put_call("3")), 0);

    client_of(f, second, leader());
    assert_int_equal(ask(f, &a, put_call("4")), 0);
    etcdserver_pause(server, second);
    assert_int_equal(ask(f, &a, put_call("5")), 0);
    mono_ms began = clock_mono();
    for (int i = 0; i < 10; i++) /* the silent one is set aside */
        assert_int_equal(ask(f, &a, put_call("6")), 0);
    assert_true(clock_mono() - began < 4500); /* its share of one call's time is 5 s */
    etcdserver_resume(server, second);
}

/* The leader dies: a node goes on with the same lease, the same key, the same watch. */
static void test_leader_dies(void **state)
{
    struct fixture *f = *state;
    unsigned old = leader();
    int64_t lease = grant(f, 20);
    struct asked a;
    struct watched w;

    assert_int_equal(
        ask(f, &a,
            (struct etcd_call){
                .op = ETCD_CREATE, .key = STR("/m/node"), .value = STR("me"), .lease = lease}),
        0);
    assert_true(a.a.is_done);
    watch_start(f, &w, "/m/", 0);
    wait_created(f, &w, 1);
    etcdserver_kill(server, old);
    ask_until_done(f, &a, (struct etcd_call){.op = ETCD_LEASE_KEEP_ALIVE, .lease = lease});
    assert_true(a.a.ttl_s > 0);
    ask_until_done(f, &a, (struct etcd_call){.op = ETCD_RANGE, .key = STR("/m/node")});
    assert_int_equal(a.a.n_kvs, 1);
    assert_true(a.kvs[0].lease == lease);
    ask_until_done(f, &a, put_call("after"));
    wait_events(f, &w, 1);
    assert_string_equal(w.events[w.n_events - 1].value, "after");
    assert_int_equal(w.n_broken, 0);
    watch_stop(&w);
    ask_until_done(f, &a, (struct etcd_call){.op = ETCD_LEASE_REVOKE, .lease = lease});
    start_member(old, true);
}

/* The watch goes on at another member when its own dies, and misses nothing. */
static void test_watch_moves(void **state)
{
    struct fixture *f = *state;
    unsigned first = (leader() + 1) % N;
    struct watched w;

    client_of(f, first, leader());
    watch_start(f, &w, "/m/", 0);
    wait_created(f, &w, 1);
    (void)put(f, "/m/k", "1");
    wait_events(f, &w, 1);
    etcdserver_kill(server, first);
    assert_int_equal(etcdserver_ctl(server, NULL, 0, "put /m/k 2"), 0);
    assert_int_equal(etcdserver_ctl(server, NULL, 0, "put /m/k 3"), 0);
    wait_events(f, &w, 3);
    assert_true(w.n_created >= 2);
    assert_true(w.events[1].mod_revision == w.events[0].mod_revision + 1);
    assert_true(w.events[2].mod_revision == w.events[0].mod_revision + 2);
    watch_stop(&w);
    start_member(first, true);
}

/* etcd-49: the watch's member is silent, others are not. */
static void test_etcd_49_watch_leaves_a_silent_member(void **state)
{
    struct fixture *f = *state;
    unsigned first = (leader() + 1) % N;
    struct watched w;
    struct etcd_config cfg = fixture_config(server, N);
    const char *endpoints[2] = {cfg.endpoints[first], cfg.endpoints[leader()]};

    cfg.endpoints = endpoints;
    cfg.n_endpoints = 2;
    cfg.watch_idle_ms = 1000;
    cfg.request_timeout_ms = 2000;
    fixture_client(f, &cfg);
    watch_start(f, &w, "/m/", 0);
    wait_created(f, &w, 1);
    etcdserver_pause(server, first);
    assert_int_equal(etcdserver_ctl(server, NULL, 0, "put /m/k silent"), 0);
    wait_events(f, &w, 1);
    assert_string_equal(w.events[0].value, "silent");
    etcdserver_resume(server, first);
    watch_stop(&w);
}

static bool has_no_watcher(void *ctx)
{
    (void)ctx;
    return etcdserver_metric(server, 0, "etcd_debugging_mvcc_watcher_total") == 0;
}

/* A member that lost its leader is there, but knows nothing new: it must not keep the watch. */
static void test_watch_leaves_a_member_without_leader(void **state)
{
    struct fixture *f = *state;
    struct etcd_config cfg = fixture_config(server, N);
    struct etcd_call c = put_call("x");
    struct asked a;
    struct watched w;

    cfg.watch_idle_ms = 600000; /* which is not what ends it */
    fixture_client(f, &cfg);
    watch_start(f, &w, "/m/", 0);
    wait_created(f, &w, 1);
    assert_true(etcdserver_metric(server, 0, "etcd_debugging_mvcc_watcher_total") == 1);
    etcdserver_kill(server, 1);
    etcdserver_kill(server, 2);
    fixture_wait(f, has_no_watcher, NULL);
    unsigned n_created = w.n_created;
    c.timeout_ms = 500;
    assert_true(ask(f, &a, c) != 0);
    assert_true(a.rc == ERR_UNAVAILABLE || a.rc == ERR_TIMEOUT);
    start_member(1, false);
    start_member(2, false);
    wait_created(f, &w, n_created + 1);
    ask_until_done(f, &a, put_call("again"));
    wait_events(f, &w, 1);
    watch_stop(&w);
}

/* A put that went on to a second endpoint may have been carried out twice, with an event each. */
static bool has_heard_after(void *ctx)
{
    const struct watched *w = ctx;

    return w->n_events && !strcmp(w->events[w->n_events - 1].value, "after");
}

/* All gone and back. */
static void test_all_down_and_back(void **state)
{
    struct fixture *f = *state;
    struct etcd_call c = put_call("x");
    struct asked a;
    struct watched w;

    watch_start(f, &w, "/m/", 0);
    wait_created(f, &w, 1);
    int64_t revision = put(f, "/m/k", "before");
    wait_events(f, &w, 1);
    for (unsigned i = 0; i < N; i++)
        etcdserver_kill(server, i);
    c.timeout_ms = 2000;
    assert_int_equal(ask(f, &a, c), ERR_UNAVAILABLE);
    for (unsigned i = 0; i < N; i++)
        start_member(i, false);
    ask_until_done(f, &a, put_call("after"));
    fixture_wait(f, has_heard_after, &w);
    assert_true(w.events[w.n_events - 1].mod_revision > revision);
    assert_int_equal(w.n_broken, 0);
    watch_stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fail_over_within_a_call, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_leader_dies, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_watch_moves, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_etcd_49_watch_leaves_a_silent_member, setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(test_watch_leaves_a_member_without_leader, setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(test_all_down_and_back, setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, open_server, close_server);
}
