/* SPDX-License-Identifier: Apache-2.0 */
/* Watches, against one real etcd. While the loop does not run the client sees nothing, so what
 * happens meanwhile (by etcdctl) is all there when it looks again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <event2/event.h>

#include "tests/cluster/etcd_fixture.h"

static struct etcdserver *server; /* all tests' */

static int open_server(void **state)
{
    struct etcdserver_options o = {
        .n_members = 1, .flags = {"--experimental-watch-progress-notify-interval=200ms"}};

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
    struct fixture *f = fixture_new(server, 1);

    fixture_wipe(f);
    *state = f;
    return 0;
}

static void restart_server(void)
{
    struct err err = {0};

    etcdserver_kill(server, 0);
    if (etcdserver_start(server, 0, true, &err))
        fail_msg("%s", err.text);
}

static void ctl(const char *command)
{
    assert_int_equal(etcdserver_ctl(server, NULL, 0, "%s", command), 0);
}

static int64_t compact_now(struct fixture *f)
{
    int64_t revision = put(f, "/compacted", "x");
    char command[64];

    (void)snprintf(command, sizeof(command), "compact %lld", (long long)revision);
    ctl(command);
    return revision;
}

static void test_events(void **state)
{
    struct fixture *f = *state;
    struct watched w;
    struct asked a;

    (void)put(f, "/w/old", "1");
    watch_start(f, &w, "/w/", 0);
    assert_int_equal(w.n_created, 0); /* not inside the start */
    wait_created(f, &w, 1);
    assert_string_equal(w.why, "");
    int64_t first = put(f, "/w/a", "one");
    assert_true(w.created_revision == first - 1);
    (void)put(f, "/x", "outside");
    (void)put(f, "/w/a", "two");
    assert_int_equal(ask(f, &a, (struct etcd_call){.op = ETCD_DELETE, .key = STR("/w/a")}), 0);
    wait_events(f, &w, 3);
    assert_int_equal(w.events[0].type, ETCD_EVENT_PUT);
    assert_string_equal(w.events[0].key, "/w/a");
    assert_string_equal(w.events[0].value, "one");
    assert_string_equal(w.events[0].prev, "(none)");
    assert_true(w.events[0].mod_revision == first);
    assert_string_equal(w.events[1].value, "two");
    assert_string_equal(w.events[1].prev, "one");
    assert_int_equal(w.events[2].type, ETCD_EVENT_DELETE);
    assert_string_equal(w.events[2].key, "/w/a");
    assert_string_equal(w.events[2].prev, "two");
    assert_true(w.revision == first + 3);
    watch_stop(&w);
}

/* What one transaction did comes in one piece; here the end of a lease with two keys. */
static void test_lease_end_is_seen(void **state)
{
    struct fixture *f = *state;
    int64_t lease = grant(f, 60);
    struct watched w;
    struct asked a;

    watch_start(f, &w, "/w/", 0);
    wait_created(f, &w, 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ask(f, &a,
                             (struct etcd_call){.op = ETCD_PUT,
                                                .key = i ? STR("/w/a") : STR("/w/b"),
                                                .lease = lease}),
                         0);
    wait_events(f, &w, 2);
    assert_int_equal(ask(f, &a, (struct etcd_call){.op = ETCD_LEASE_REVOKE, .lease = lease}), 0);
    wait_events(f, &w, 4);
    assert_int_equal(w.events[2].type, ETCD_EVENT_DELETE);
    assert_int_equal(w.events[3].type, ETCD_EVENT_DELETE);
    watch_stop(&w);
}

static void test_from_a_revision(void **state)
{
    struct fixture *f = *state;
    int64_t first = put(f, "/w/a", "1");
    struct watched w;

    for (int i = 0; i < 100; i++)
        (void)put(f, "/w/many", "x");
    watch_start(f, &w, "/w/", first);
    wait_events(f, &w, 101);
    assert_true(w.events[0].mod_revision == first);
    for (int i = 0; i < 101; i++)
        assert_true(w.events[i].mod_revision == first + i);
    watch_stop(&w);
}

/* Killed and started again, with changes before the client is back: all of them arrive, once. */
static void test_resumes_after_restart(void **state)
{
    struct fixture *f = *state;
    struct watched w;

    watch_start(f, &w, "/w/", 0);
    wait_created(f, &w, 1);
    int64_t first = put(f, "/w/a", "1");
    wait_events(f, &w, 1);
    restart_server();
    ctl("put /w/b 2");
    ctl("put /w/c 3");
    ctl("del /w/a");
    wait_events(f, &w, 4);
    assert_int_equal(w.n_created, 2);
    assert_true(w.why[0] != '\0');
    (void)put(f, "/w/d", "5");
    wait_events(f, &w, 5);
    for (int i = 0; i < 5; i++)
        assert_true(w.events[i].mod_revision == first + i);
    assert_string_equal(w.events[3].prev, "1");
    assert_int_equal(w.n_broken, 0);
    watch_stop(&w);
}

/* A watch from "now" that saw no event goes on from the "now" of its start, not of its return. */
static void test_resumes_without_an_event(void **state)
{
    struct fixture *f = *state;
    struct watched w;

    watch_start(f, &w, "/w/", 0);
    wait_created(f, &w, 1);
    restart_server();
    ctl("put /w/a 1");
    wait_events(f, &w, 1);
    assert_string_equal(w.events[0].value, "1");
    watch_stop(&w);
}

/* Started while nobody is there. */
static void test_starts_late(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    struct watched w;

    etcdserver_kill(server, 0);
    watch_start(f, &w, "/w/", 0);
    fixture_run(f, 300);
    assert_int_equal(w.n_created, 0);
    if (etcdserver_start(server, 0, true, &err))
        fail_msg("%s", err.text);
    wait_created(f, &w, 1);
    assert_true(w.why[0] != '\0');
    (void)put(f, "/w/a", "1");
    wait_events(f, &w, 1);
    watch_stop(&w);
}

/* The list by full read, then a watch from its revision on, is what etcd has. */
static void check_list(struct fixture *f, struct asked *a)
{
    struct watched w;
    struct etcd_call c = {.op = ETCD_RANGE, .key = STR("/w/"), .is_prefix = true};

    assert_int_equal(ask(f, a, c), 0);
    watch_start(f, &w, "/w/", a->a.revision + 1);
    wait_created(f, &w, 1);
    (void)put(f, "/w/new", "n");
    wait_events(f, &w, 1);
    assert_string_equal(w.events[0].key, "/w/new");
    assert_true(w.events[0].mod_revision == a->a.revision + 1);
    watch_stop(&w);
}

/* etcd-47 */
static void test_etcd_47_start_is_compacted(void **state)
{
    struct fixture *f = *state;
    struct watched w;
    struct asked a;

    (void)put(f, "/w/a", "1");
    int64_t revision = compact_now(f);
    watch_start(f, &w, "/w/", 1);
    wait_broken(f, &w);
    assert_int_equal(w.rc, ERR_NOT_FOUND);
    assert_true(w.compact_revision == revision);
    assert_non_null(strstr(w.err, "http://127.0.0.1:"));
    assert_int_equal(w.n_events, 0);
    watch_stop(&w);
    check_list(f, &a);
    assert_int_equal(a.a.n_kvs, 1);
}

/* etcd-47: a watch at work loses its connection; before it is back its next revision is gone. */
static void test_etcd_47_compacted_meanwhile(void **state)
{
    struct fixture *f = *state;
    struct watched w;
    struct asked a;
    char compact[64];

    watch_start(f, &w, "/w/", 0);
    wait_created(f, &w, 1);
    (void)put(f, "/w/a", "1");
    wait_events(f, &w, 1);
    restart_server();
    ctl("put /w/b 2");
    ctl("del /w/a");
    (void)snprintf(compact, sizeof(compact), "compact %lld", (long long)w.revision + 2);
    ctl(compact);
    wait_broken(f, &w);
    assert_int_equal(w.rc, ERR_NOT_FOUND);
    assert_true(w.compact_revision == w.revision + 2);
    assert_int_equal(w.n_events, 1);
    watch_stop(&w);
    check_list(f, &a);
    assert_int_equal(a.a.n_kvs, 1);
    assert_string_equal(a.kvs[0].key, "/w/b");
}

/* A compaction does not disturb a watch that is up to date. */
static void test_compaction_beside(void **state)
{
    struct fixture *f = *state;
    struct watched w;

    watch_start(f, &w, "/w/", 0);
    wait_created(f, &w, 1);
    (void)put(f, "/w/a", "1");
    wait_events(f, &w, 1);
    (void)compact_now(f);
    (void)put(f, "/w/a", "2");
    wait_events(f, &w, 2);
    assert_int_equal(w.n_created, 1);
    assert_int_equal(w.n_broken, 0);
    watch_stop(&w);
}

/* etcd-49: a server that falls silent without a word. The idle limit ends the connection; when the
 * server is back, what happened meanwhile arrives. */
static void test_etcd_49_silence(void **state)
{
    struct fixture *f = *state;
    struct etcd_config cfg = fixture_config(server, 1);
    struct watched w;

    cfg.watch_idle_ms = 1000;
    cfg.request_timeout_ms = 500;
    fixture_client(f, &cfg);
    watch_start(f, &w, "/w/", 0);
    wait_created(f, &w, 1);
    (void)put(f, "/w/a", "1");
    wait_events(f, &w, 1);
    etcdserver_pause(server, 0);
    fixture_run(f, 2500);
    assert_int_equal(w.n_created, 1);
    etcdserver_resume(server, 0);
    ctl("put /w/b 2");
    wait_events(f, &w, 2);
    assert_true(w.n_created >= 2);
    assert_int_equal(w.n_broken, 0);
    watch_stop(&w);
}

/* Progress notices are signs of life; this server sends them every 200 ms. */
static void test_notices_are_life(void **state)
{
    struct fixture *f = *state;
    struct etcd_config cfg = fixture_config(server, 1);
    struct watched w;

    cfg.watch_idle_ms = 1500;
    fixture_client(f, &cfg);
    watch_start(f, &w, "/w/", 0);
    wait_created(f, &w, 1);
    fixture_run(f, 3000);
    assert_int_equal(w.n_created, 1);
    watch_stop(&w);
}

static void test_stop_in_callbacks(void **state)
{
    struct fixture *f = *state;
    struct watched w;

    watch_start(f, &w, "/w/", 0);
    wait_created(f, &w, 1);
    w.stop_in_callback = true;
    (void)put(f, "/w/a", "1");
    wait_events(f, &w, 1);
    assert_null(w.w);
    (void)put(f, "/w/a", "2");
    fixture_run(f, 50);
    assert_int_equal(w.n_events, 1);

    (void)compact_now(f);
    watch_start(f, &w, "/w/", 1);
    w.stop_in_callback = true;
    wait_broken(f, &w);
    assert_null(w.w);

    /* Before it began, and while it connects. */
    watch_start(f, &w, "/w/", 0);
    watch_stop(&w);
    watch_start(f, &w, "/w/", 0);
    assert_true(event_base_loop(f->base, EVLOOP_ONCE | EVLOOP_NONBLOCK) >= 0);
    watch_stop(&w);
    etcd_watch_stop(NULL);
    fixture_run(f, 50);
    assert_int_equal(w.n_created, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_events, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_lease_end_is_seen, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_from_a_revision, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_resumes_after_restart, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_resumes_without_an_event, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_starts_late, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_etcd_47_start_is_compacted, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_etcd_47_compacted_meanwhile, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_compaction_beside, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_etcd_49_silence, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_notices_are_life, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_stop_in_callbacks, setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, open_server, close_server);
}
