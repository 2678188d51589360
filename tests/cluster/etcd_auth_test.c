/* SPDX-License-Identifier: Apache-2.0 */
/* Users, and TLS with certificates on both sides, against real servers. */
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

static struct etcdserver *server; /* with users */

static void ctl(const char *command)
{
    if (etcdserver_ctl(server, NULL, 0, "%s", command))
        fail_msg("etcdctl %s", command);
}

static int open_server(void **state)
{
    struct etcdserver_options o = {.n_members = 1, .flags = {"--auth-token=simple"}};

    (void)state;
    server = fixture_server(&o);
    ctl("user add root:secret");
    ctl("role add root");
    ctl("user grant-role root root");
    ctl("user add bob:secret");
    ctl("role add bobs");
    ctl("role grant-permission bobs readwrite --prefix /bob/");
    ctl("user grant-role bob bobs");
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
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    fixture_open(f);
    ctl("auth enable");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_close(*state);
    free(*state);
    ctl("--user root:secret auth disable");
    return 0;
}

static void client_as(struct fixture *f, const char *user, const char *password)
{
    struct etcd_config cfg = fixture_config(server, 1);

    cfg.user = user;
    cfg.password = password;
    fixture_client(f, &cfg);
}

static void restart_server(void)
{
    struct err err = {0};

    etcdserver_kill(server, 0);
    if (etcdserver_start(server, 0, true, &err))
        fail_msg("%s", err.text);
}

static struct etcd_call put_of(const char *key)
{
    return (struct etcd_call){.op = ETCD_PUT, .key = str_from(key), .value = STR("x")};
}

static void test_all_calls_as_user(void **state)
{
    struct fixture *f = *state;
    struct asked a;

    client_as(f, "root", "secret");
    int64_t lease = grant(f, 60);
    assert_int_equal(
        ask(f, &a, (struct etcd_call){.op = ETCD_CREATE, .key = STR("/bob/k"), .lease = lease}), 0);
    assert_int_equal(ask(f, &a, (struct etcd_call){.op = ETCD_LEASE_KEEP_ALIVE, .lease = lease}),
                     0);
    assert_int_equal(
        ask(f, &a, (struct etcd_call){.op = ETCD_RANGE, .key = STR("/"), .is_prefix = true}), 0);
    assert_int_equal(a.a.n_kvs, 1);
    assert_int_equal(ask(f, &a, (struct etcd_call){.op = ETCD_LEASE_REVOKE, .lease = lease}), 0);
}

static void test_wrong_and_missing(void **state)
{
    struct fixture *f = *state;
    struct asked a;
    struct watched w;

    client_as(f, "root", "wrong");
    assert_int_equal(ask(f, &a, put_of("/bob/k")), ERR_INVALID);
    assert_non_null(strstr(a.err, "invalid user ID or password"));
    watch_start(f, &w, "/bob/", 0);
    wait_broken(f, &w);
    assert_int_equal(w.rc, ERR_INVALID);
    watch_stop(&w);

    client_as(f, NULL, NULL);
    assert_int_equal(ask(f, &a, put_of("/bob/k")), ERR_INVALID);
    assert_non_null(strstr(a.err, "user name is empty"));
    watch_start(f, &w, "/bob/", 0);
    wait_broken(f, &w);
    assert_int_equal(w.rc, ERR_INVALID);
    watch_stop(&w);
}

static void test_permissions(void **state)
{
    struct fixture *f = *state;
    struct asked a;
    struct watched w;

    client_as(f, "bob", "secret");
    assert_int_equal(ask(f, &a, put_of("/bob/k")), 0);
    assert_int_equal(ask(f, &a, put_of("/other")), ERR_INVALID);
    assert_non_null(strstr(a.err, "permission denied"));
    watch_start(f, &w, "/other", 0);
    wait_broken(f, &w);
    assert_int_equal(w.rc, ERR_INVALID);
    assert_non_null(strstr(w.err, "permission denied"));
    watch_stop(&w);
    watch_start(f, &w, "/bob/", 0);
    wait_created(f, &w, 1);
    (void)put(f, "/bob/k", "seen");
    wait_events(f, &w, 1);
    watch_stop(&w);
}

/* A restarted server knows none of its tokens: each call gets a new one by itself, and so does the
 * watch. */
static void test_tokens_are_renewed(void **state)
{
    struct fixture *f = *state;
    struct asked a[4];
    struct watched w;

    client_as(f, "bob", "secret");
    watch_start(f, &w, "/bob/", 0);
    wait_created(f, &w, 1);
    (void)put(f, "/bob/k", "1");
    restart_server();
    for (int i = 0; i < 4; i++) { /* all with the old token */
        memset(&a[i], 0, sizeof(a[i]));
        a[i].c = put_of("/bob/k");
        ask_start(f, &a[i]);
    }
    for (int i = 0; i < 4; i++) {
        ask_wait(f, &a[i]);
        if (a[i].rc)
            fail_msg("%s", a[i].err);
    }
    wait_events(f, &w, 5);
    assert_int_equal(w.n_broken, 0);

    /* The watch alone. */
    restart_server();
    ctl("--user root:secret put /bob/k alone");
    wait_events(f, &w, 6);
    assert_string_equal(w.events[5].value, "alone");
    assert_int_equal(w.n_broken, 0);
    watch_stop(&w);
}

/* Users are switched on and off while we are at work. */
static void test_users_come_and_go(void **state)
{
    struct fixture *f = *state;
    struct asked a;

    client_as(f, "bob", "secret");
    assert_int_equal(ask(f, &a, put_of("/bob/k")), 0);
    ctl("--user root:secret auth disable");
    assert_int_equal(ask(f, &a, put_of("/bob/k")), 0);
    client_as(f, "bob", "secret"); /* that never knew it otherwise */
    assert_int_equal(ask(f, &a, put_of("/bob/k")), 0);
    ctl("auth enable");
    assert_int_equal(ask(f, &a, put_of("/bob/k")), 0);
}

/* ---- TLS ----------------------------------------------------------------------------------- */

static void test_tls(void **state)
{
    struct etcdserver_options o = {.n_members = 1, .has_tls = true};
    struct etcdserver *tls = NULL;
    struct err err = {0};
    struct fixture f = {0};
    struct asked a;
    struct watched w;
    char ca[ETCDSERVER_PATH_MAX];
    char cert[ETCDSERVER_PATH_MAX];
    char key[ETCDSERVER_PATH_MAX];

    (void)state;
    if (etcdserver_new(&o, &tls, &err))
        fail_msg("%s", err.text);
    fixture_open(&f);
    etcdserver_file(tls, "ca.pem", ca);
    etcdserver_file(tls, "client.pem", cert);
    etcdserver_file(tls, "client.key", key);
    struct etcd_config cfg = fixture_config(tls, 1);
    cfg.ca_file = ca;
    cfg.cert_file = cert;
    cfg.key_file = key;
    fixture_client(&f, &cfg);
    watch_start(&f, &w, "/t/", 0);
    wait_created(&f, &w, 1);
    (void)put(&f, "/t/k", "secret");
    wait_events(&f, &w, 1);
    watch_stop(&w);

    /* A certificate of another authority, and none. */
    etcdserver_file(tls, "stranger.pem", cert);
    etcdserver_file(tls, "stranger.key", key);
    fixture_client(&f, &cfg);
    assert_int_equal(ask(&f, &a, put_of("/t/k")), ERR_UNAVAILABLE);
    cfg.cert_file = cfg.key_file = NULL;
    fixture_client(&f, &cfg);
    assert_int_equal(ask(&f, &a, put_of("/t/k")), ERR_UNAVAILABLE);

    /* A server whose certificate is not signed by ours. */
    etcdserver_file(tls, "client.pem", cert);
    etcdserver_file(tls, "client.key", key);
    etcdserver_file(tls, "other.pem", ca);
    cfg.cert_file = cert;
    cfg.key_file = key;
    fixture_client(&f, &cfg);
    assert_int_equal(ask(&f, &a, put_of("/t/k")), ERR_UNAVAILABLE);
    assert_non_null(strstr(a.err, "https://127.0.0.1:"));
    cfg.ca_file = NULL; /* nor by one of the system's */
    fixture_client(&f, &cfg);
    assert_int_equal(ask(&f, &a, put_of("/t/k")), ERR_UNAVAILABLE);
    fixture_close(&f);
    etcdserver_free(tls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_calls_as_user, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wrong_and_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_permissions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tokens_are_renewed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_users_come_and_go, setup, teardown),
        cmocka_unit_test(test_tls),
    };

    return cmocka_run_group_tests(tests, open_server, close_server);
}
