/* SPDX-License-Identifier: Apache-2.0 */
/* The calls, against one real etcd. */
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
    struct fixture *f = fixture_new(server, 1);

    f->server = server;
    fixture_wipe(f);
    *state = f;
    return 0;
}

static struct etcd_call range_of(const char *key, bool is_prefix)
{
    return (struct etcd_call){.op = ETCD_RANGE, .key = str_from(key), .is_prefix = is_prefix};
}

/* ---- Keys ---------------------------------------------------------------------------------- */

static void test_put_and_range(void **state)
{
    struct fixture *f = *state;
    struct asked a;
    int64_t first = put(f, "/k/b", "one");
    int64_t second = put(f, "/k/b", "two");

    (void)put(f, "/k/a", "");
    (void)put(f, "/l", "outside");
    assert_int_equal(second, first + 1);
    assert_int_equal(ask(f, &a, range_of("/k/", true)), 0);
    assert_int_equal(a.a.n_kvs, 2);
    assert_string_equal(a.kvs[0].key, "/k/a");
    assert_string_equal(a.kvs[0].value, "");
    assert_string_equal(a.kvs[1].key, "/k/b");
    assert_string_equal(a.kvs[1].value, "two");
    assert_true(a.kvs[1].create_revision == first && a.kvs[1].mod_revision == second);
    assert_true(a.kvs[1].lease == 0);
    assert_true(a.a.revision == second + 2);

    assert_int_equal(ask(f, &a, range_of("/k/b", false)), 0);
    assert_int_equal(a.a.n_kvs, 1);
    assert_int_equal(ask(f, &a, range_of("/k/", false)), 0);
    assert_int_equal(a.a.n_kvs, 0);
    assert_true(a.a.revision == second + 2);
}

/* etcd-51: the prefix of bytes at the upper end, and values of any bytes. */
static void test_etcd_51_bytes(void **state)
{
    static const char *const keys[] = {"/\xFE", "/\xFF", "/\xFF\xFF", "/\xFFz"};
    struct fixture *f = *state;
    struct asked a;

    for (size_t i = 0; i < 4; i++)
        (void)put(f, keys[i], "x");
    (void)put(f, "0", "the next key behind /\xFF");
    assert_int_equal(ask(f, &a, range_of("/\xFF", true)), 0);
    assert_int_equal(a.a.n_kvs, 3);
    assert_string_equal(a.kvs[0].key, "/\xFF");
    assert_string_equal(a.kvs[2].key, "/\xFF\xFF");

    char bytes[256];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)i;
    struct etcd_call c = {
        .op = ETCD_CREATE, .key = STR("/bytes"), .value = {bytes, sizeof(bytes)}, .lease = 0};
    assert_int_equal(ask(f, &a, c), 0);
    assert_true(a.a.is_done);
    c.lease = grant(f, 60);
    c.op = ETCD_PUT;
    assert_int_equal(ask(f, &a, c), 0);
    c.op = ETCD_CREATE; /* compares what was read back with what was written */
    assert_int_equal(ask(f, &a, c), 0);
    assert_true(a.a.is_done);
}

static void test_delete(void **state)
{
    struct fixture *f = *state;
    struct asked a;

    (void)put(f, "/k/a", "1");
    (void)put(f, "/k/b", "2");
    (void)put(f, "/k/c", "3");
    assert_int_equal(ask(f, &a, (struct etcd_call){.op = ETCD_DELETE, .key = STR("/k/a")}), 0);
    assert_int_equal(a.a.n_deleted, 1);
    assert_int_equal(ask(f, &a, (struct etcd_call){.op = ETCD_DELETE, .key = STR("/k/a")}), 0);
    assert_int_equal(a.a.n_deleted, 0);
    assert_int_equal(
        ask(f, &a, (struct etcd_call){.op = ETCD_DELETE, .key = STR("/k/"), .is_prefix = true}), 0);
    assert_int_equal(a.a.n_deleted, 2);
}

static void test_create(void **state)
{
    struct fixture *f = *state;
    int64_t mine = grant(f, 60);
    int64_t other = grant(f, 60);
    struct etcd_call c = {
        .op = ETCD_CREATE, .key = STR("/name"), .value = STR("me"), .lease = mine};
    struct asked a;

    assert_int_equal(ask(f, &a, c), 0);
    assert_true(a.a.is_done);
    int64_t revision = a.a.revision;
    assert_int_equal(ask(f, &a, c), 0); /* mine already: the store did not change */
    assert_true(a.a.is_done && a.a.revision == revision);

    c.lease = other;
    c.value = STR("another");
    assert_int_equal(ask(f, &a, c), 0);
    assert_false(a.a.is_done);
    assert_int_equal(a.a.n_kvs, 1);
    assert_string_equal(a.kvs[0].value, "me");
    assert_true(a.kvs[0].lease == mine && a.kvs[0].mod_revision == revision);

    struct etcd_call d = {.op = ETCD_DELETE_IF, .key = STR("/name"), .mod_revision = revision - 1};
    assert_int_equal(ask(f, &a, d), 0);
    assert_false(a.a.is_done);
    assert_int_equal(a.a.n_kvs, 1);
    d.mod_revision = revision;
    assert_int_equal(ask(f, &a, d), 0);
    assert_true(a.a.is_done);
    assert_int_equal(ask(f, &a, d), 0);
    assert_false(a.a.is_done);
    assert_int_equal(a.a.n_kvs, 0);

    assert_int_equal(ask(f, &a, c), 0);
    assert_true(a.a.is_done);
}

/* ---- Leases -------------------------------------------------------------------------------- */

/* A lease that nobody keeps alive takes its key along. */
static void test_lease_runs_out(void **state)
{
    struct fixture *f = *state;
    int64_t lease = grant(f, 1);
    mono_ms until = clock_mono() + 30000;
    struct asked a;

    assert_int_equal(
        ask(f, &a, (struct etcd_call){.op = ETCD_CREATE, .key = STR("/brief"), .lease = lease}), 0);
    do {
        assert_true(clock_mono() < until);
        fixture_run(f, 20);
        assert_int_equal(ask(f, &a, range_of("/brief", false)), 0);
    } while (a.a.n_kvs > 0);
    assert_int_equal(ask(f, &a, (struct etcd_call){.op = ETCD_LEASE_KEEP_ALIVE, .lease = lease}),
                     ERR_NOT_FOUND);
    assert_int_equal(a.a.ttl_s, 0);
    assert_int_equal(
        ask(f, &a, (struct etcd_call){.op = ETCD_CREATE, .key = STR("/brief"), .lease = lease}),
        ERR_NOT_FOUND);
    assert_int_equal(
        ask(f, &a, (struct etcd_call){.op = ETCD_PUT, .key = STR("/brief"), .lease = lease}),
        ERR_NOT_FOUND);
}

static void test_lease_kept_alive(void **state)
{
    struct fixture *f = *state;
    int64_t lease = grant(f, 1);
    mono_ms until = clock_mono() + 3000; /* three times its length */
    struct asked a;

    assert_int_equal(
        ask(f, &a, (struct etcd_call){.op = ETCD_PUT, .key = STR("/kept"), .lease = lease}), 0);
    while (clock_mono() < until) {
        assert_int_equal(
            ask(f, &a, (struct etcd_call){.op = ETCD_LEASE_KEEP_ALIVE, .lease = lease}), 0);
        assert_true(a.a.ttl_s >= 1);
        fixture_run(f, 100);
    }
    assert_int_equal(ask(f, &a, range_of("/kept", false)), 0);
    assert_int_equal(a.a.n_kvs, 1);
    assert_true(a.kvs[0].lease == lease);
}

/* What is left of anybody's lease, and that a lease is gone. */
static void test_lease_ttl(void **state)
{
    struct fixture *f = *state;
    int64_t lease = grant(f, 60);
    struct etcd_call c = {.op = ETCD_LEASE_TTL, .lease = lease};
    struct asked a;

    assert_int_equal(ask(f, &a, c), 0);
    assert_int_equal(a.a.granted_ttl_s, 60);
    assert_true(a.a.ttl_s > 0 && a.a.ttl_s <= 60 && a.a.lease == lease);
    assert_int_equal(ask(f, &a, (struct etcd_call){.op = ETCD_LEASE_REVOKE, .lease = lease}), 0);
    assert_int_equal(ask(f, &a, c), ERR_NOT_FOUND);
    c.lease = 12345; /* nobody's ever */
    assert_int_equal(ask(f, &a, c), ERR_NOT_FOUND);
}

static void test_lease_revoked(void **state)
{
    struct fixture *f = *state;
    int64_t lease = grant(f, 60);
    struct etcd_call revoke = {.op = ETCD_LEASE_REVOKE, .lease = lease};
    struct asked a;

    assert_int_equal(
        ask(f, &a, (struct etcd_call){.op = ETCD_PUT, .key = STR("/held"), .lease = lease}), 0);
    assert_int_equal(ask(f, &a, revoke), 0);
    assert_int_equal(ask(f, &a, range_of("/held", false)), 0);
    assert_int_equal(a.a.n_kvs, 0);
    assert_int_equal(ask(f, &a, revoke), ERR_NOT_FOUND);
    assert_non_null(strstr(a.err, "http://127.0.0.1:"));
    assert_non_null(strstr(a.err, "lease not found"));
}

/* ---- Calls as such ------------------------------------------------------------------------- */

static void on_never(struct etcd_call *c)
{
    (void)c;
    fail_msg("on_done of a cancelled call");
}

static void test_cancel(void **state)
{
    struct fixture *f = *state;
    struct etcd_call c = {.op = ETCD_RANGE, .key = STR("/"), .on_done = on_never};
    struct asked a = {.c = range_of("/", true)};

    assert_int_equal(etcd_start(f->e, &c), 0);
    ask_start(f, &a);
    etcd_cancel(&c);
    etcd_cancel(&c); /* it is not under way any more */
    assert_null(c.flight);
    ask_wait(f, &a);
    assert_int_equal(a.rc, 0);
    fixture_run(f, 50);
}

struct chain {
    struct etcd *e;
    struct etcd_call c;
    struct etcd_call other; /* is faster or is cancelled */
    int n_left;
};

static void on_other(struct etcd_call *c)
{
    assert_int_equal(c->rc, 0);
}

static void on_link(struct etcd_call *c)
{
    struct chain *x = c->ctx;

    assert_int_equal(c->rc, 0);
    assert_int_equal(c->answer.n_kvs, 1);
    etcd_cancel(&x->other);
    if (--x->n_left > 0) {
        assert_int_equal(etcd_start(x->e, &x->other), 0);
        assert_int_equal(etcd_start(x->e, c), 0);
    }
}

static bool is_chain_over(void *ctx)
{
    struct chain *x = ctx;

    return x->n_left == 0;
}

/* From inside of on_done: starts itself, starts and cancels others. */
static void test_calls_from_on_done(void **state)
{
    struct fixture *f = *state;
    struct chain x = {
        .e = f->e,
        .c = {.op = ETCD_RANGE, .key = STR("/chain"), .on_done = on_link, .ctx = &x},
        .other = {.op = ETCD_RANGE, .key = STR("/chain"), .on_done = on_other},
        .n_left = 20,
    };

    (void)put(f, "/chain", "x");
    assert_int_equal(etcd_start(f->e, &x.c), 0);
    fixture_wait(f, is_chain_over, &x);
}

/* Many at once; those under way when the client goes end in silence. */
static void test_many_at_once(void **state)
{
    enum { N = 50 };
    struct fixture *f = *state;
    struct asked *a = calloc(N, sizeof(*a));
    struct etcd_call left[3];

    assert_non_null(a);
    for (int i = 0; i < N; i++) {
        a[i].c = (struct etcd_call){.op = ETCD_PUT, .key = STR("/many"), .value = STR("x")};
        ask_start(f, &a[i]);
    }
    for (int i = 0; i < N; i++) {
        ask_wait(f, &a[i]);
        assert_int_equal(a[i].rc, 0);
    }
    free(a);
    for (int i = 0; i < 3; i++) {
        left[i] = (struct etcd_call){.op = ETCD_RANGE, .key = STR("/"), .on_done = on_never};
        assert_int_equal(etcd_start(f->e, &left[i]), 0);
    }
    etcd_free(f->e);
    f->e = NULL;
    for (int i = 0; i < 3; i++)
        assert_null(left[i].flight);
}

/* A server that is there but silent, then one that is not there. */
static void test_outage(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    struct etcd_call c = range_of("/", true);
    struct asked a;

    c.timeout_ms = 300;
    etcdserver_pause(server, 0);
    assert_int_equal(ask(f, &a, c), ERR_TIMEOUT);
    etcdserver_resume(server, 0);
    ask_until_done(f, &a, range_of("/", true));

    etcdserver_kill(server, 0);
    assert_int_equal(ask(f, &a, c), ERR_UNAVAILABLE);
    assert_non_null(strstr(a.err, "http://127.0.0.1:"));
    assert_int_equal(ask(f, &a, c), ERR_UNAVAILABLE); /* also while it is set aside */
    if (etcdserver_start(server, 0, true, &err))
        fail_msg("%s", err.text);
    assert_int_equal(ask(f, &a, range_of("/", true)), 0); /* at once, although it was set aside */
}

/* ---- Configuration ------------------------------------------------------------------------- */

static void test_configuration(void **state)
{
    static const char *const bad[] = {"",
                                      "127.0.0.1:2379",
                                      "ftp://h:1",
                                      "http://",
                                      "http:///x",
                                      "http://h:99999",
                                      "http://u:p@h:1",
                                      "http://h:1/path",
                                      "http://h:1?q",
                                      "http://h:1#f",
                                      "http://h o:1"};
    static const char *const good[] = {"http://127.0.0.1:2379", "https://etcd-0.etcd:2379/",
                                       "http://[::1]:2379"};
    struct fixture *f = *state;
    struct etcd_config cfg = fixture_config(server, 1);
    struct etcd *e = NULL;
    struct err err;

    cfg.n_endpoints = 1;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cfg.endpoints = &bad[i];
        err.text[0] = '\0';
        if (etcd_new(f->base, &cfg, &e, &err) != ERR_INVALID || !err.text[0])
            fail_msg("\"%s\" is taken", bad[i]);
    }
    cfg.endpoints = good;
    cfg.n_endpoints = 3;
    assert_int_equal(etcd_new(f->base, &cfg, &e, &err), 0);
    etcd_free(e);
    etcd_free(NULL);
    cfg.n_endpoints = 0;
    assert_int_equal(etcd_new(f->base, &cfg, &e, &err), ERR_INVALID);
    cfg.n_endpoints = ETCD_ENDPOINTS_MAX + 1;
    assert_int_equal(etcd_new(f->base, &cfg, &e, &err), ERR_INVALID);
    cfg.n_endpoints = 1;
    cfg.user = "root";
    assert_int_equal(etcd_new(f->base, &cfg, &e, &err), ERR_INVALID);
    cfg.password = "\xFF";
    assert_int_equal(etcd_new(f->base, &cfg, &e, &err), ERR_INVALID);
    cfg.user = cfg.password = NULL;
    cfg.cert_file = "/x";
    assert_int_equal(etcd_new(f->base, &cfg, &e, &err), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_put_and_range, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_etcd_51_bytes, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_delete, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_create, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_lease_runs_out, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_lease_kept_alive, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_lease_ttl, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_lease_revoked, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_cancel, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_calls_from_on_done, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_many_at_once, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_outage, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_configuration, setup, fixture_teardown),
    };

    return cmocka_run_group_tests(tests, open_server, close_server);
}
