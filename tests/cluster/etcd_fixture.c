/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/etcd_fixture.h"

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

#define DEADLINE_MS 60000
#define TICK_MS 10

struct etcdserver *fixture_server(const struct etcdserver_options *o)
{
    struct etcdserver *server;
    struct err err = {0};

    if (etcdserver_new(o, &server, &err))
        fail_msg("%s", err.text);
    return server;
}

static void on_tick(evutil_socket_t fd, short events, void *ctx)
{
    (void)fd;
    (void)events;
    (void)ctx;
}

void fixture_open(struct fixture *f)
{
    struct timeval tv = {.tv_usec = TICK_MS * 1000};

    f->base = event_base_new();
    assert_non_null(f->base);
    f->tick = event_new(f->base, -1, EV_PERSIST, on_tick, NULL);
    assert_non_null(f->tick);
    assert_int_equal(event_add(f->tick, &tv), 0);
}

static void fixture_watches(struct fixture *f, struct etcd_watch *old, struct etcd_watch *new)
{
    size_t i = 0;

    while (i < WATCHES_MAX && f->watches[i] != old)
        i++;
    assert_true(i < WATCHES_MAX);
    f->watches[i] = new;
}

void fixture_close(struct fixture *f)
{
    for (size_t i = 0; i < WATCHES_MAX; i++)
        etcd_watch_stop(f->watches[i]);
    etcd_free(f->e);
    event_free(f->tick);
    event_base_free(f->base);
    f->e = NULL;
}

struct etcd_config fixture_config(const struct etcdserver *server, unsigned n_members)
{
    static char urls[ETCDSERVER_MEMBERS_MAX][ETCDSERVER_URL_MAX];
    static const char *endpoints[ETCDSERVER_MEMBERS_MAX];

    for (unsigned i = 0; i < n_members; i++) {
        etcdserver_url(server, i, urls[i]);
        endpoints[i] = urls[i];
    }
    return (struct etcd_config){
        .endpoints = endpoints,
        .n_endpoints = n_members,
        .request_timeout_ms = 10000,
        .watch_idle_ms = 30000,
    };
}

void fixture_client(struct fixture *f, const struct etcd_config *cfg)
{
    struct err err = {0};

    etcd_free(f->e);
    f->e = NULL;
    if (etcd_new(f->base, cfg, &f->e, &err))
        fail_msg("%s", err.text);
}

struct fixture *fixture_new(const struct etcdserver *server, unsigned n_members)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct etcd_config cfg = fixture_config(server, n_members);

    assert_non_null(f);
    fixture_open(f);
    fixture_client(f, &cfg);
    return f;
}

int fixture_teardown(void **state)
{
    fixture_close(*state);
    free(*state);
    return 0;
}

void fixture_wipe(struct fixture *f)
{
    struct asked a;

    assert_int_equal(
        ask(f, &a, (struct etcd_call){.op = ETCD_DELETE, .key = STR("/"), .is_prefix = true}), 0);
}

void fixture_wait(struct fixture *f, bool (*is_met)(void *ctx), void *ctx)
{
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (!is_met(ctx)) {
        assert_true(clock_mono() < until);
        assert_true(event_base_loop(f->base, EVLOOP_ONCE) >= 0);
    }
}

void fixture_run(struct fixture *f, int ms)
{
    mono_ms until = clock_mono() + ms;

    while (clock_mono() < until)
        assert_true(event_base_loop(f->base, EVLOOP_ONCE) >= 0);
}

static void keep(char dst[TEXT_MAX], struct str s)
{
    (void)snprintf(dst, TEXT_MAX, STR_FMT, STR_ARG(s));
}

/* ---- Calls --------------------------------------------------------------------------------- */

static void on_done(struct etcd_call *c)
{
    struct asked *a = c->ctx;

    assert_null(c->flight);
    a->n_done++;
    a->rc = c->rc;
    (void)snprintf(a->err, sizeof(a->err), "%s", c->err.text);
    assert_true((c->rc != 0) == (c->err.text[0] != '\0'));
    a->a = c->answer;
    a->a.kvs = NULL;
    for (size_t i = 0; i < c->answer.n_kvs && i < KVS_MAX; i++) {
        const struct etcd_kv *kv = &c->answer.kvs[i];
        keep(a->kvs[i].key, kv->key);
        keep(a->kvs[i].value, kv->value);
        a->kvs[i].create_revision = kv->create_revision;
        a->kvs[i].mod_revision = kv->mod_revision;
        a->kvs[i].lease = kv->lease;
    }
}

void ask_start(struct fixture *f, struct asked *a)
{
    a->c.on_done = on_done;
    a->c.ctx = a;
    a->n_done = 0;
    assert_int_equal(etcd_start(f->e, &a->c), 0);
    assert_int_equal(a->n_done, 0);
}

static bool is_done(void *ctx)
{
    struct asked *a = ctx;

    return a->n_done > 0;
}

void ask_wait(struct fixture *f, struct asked *a)
{
    fixture_wait(f, is_done, a);
    assert_int_equal(a->n_done, 1);
}

int ask(struct fixture *f, struct asked *a, struct etcd_call c)
{
    memset(a, 0, sizeof(*a));
    a->c = c;
    ask_start(f, a);
    ask_wait(f, a);
    return a->rc;
}

void ask_until_done(struct fixture *f, struct asked *a, struct etcd_call c)
{
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (ask(f, a, c)) {
        if (clock_mono() >= until)
            fail_msg("%s", a->err);
        fixture_run(f, TICK_MS);
    }
}

int64_t grant(struct fixture *f, int64_t ttl_s)
{
    struct asked a;

    if (ask(f, &a, (struct etcd_call){.op = ETCD_LEASE_GRANT, .ttl_s = ttl_s}))
        fail_msg("%s", a.err);
    assert_true(a.a.lease > 0 && a.a.ttl_s >= ttl_s);
    return a.a.lease;
}

int64_t put(struct fixture *f, const char *k, const char *v)
{
    struct asked a;

    if (ask(f, &a, (struct etcd_call){.op = ETCD_PUT, .key = str_from(k), .value = str_from(v)}))
        fail_msg("%s", a.err);
    return a.a.revision;
}

/* ---- Watches ------------------------------------------------------------------------------- */

static void stop_if_told(struct watched *w)
{
    if (w->stop_in_callback)
        watch_stop(w);
}

static void on_created(void *ctx, int64_t revision, const char *why)
{
    struct watched *w = ctx;

    w->n_created++;
    w->created_revision = revision;
    (void)snprintf(w->why, sizeof(w->why), "%s", why);
}

static void on_events(void *ctx, int64_t revision, const struct etcd_event *events, size_t n)
{
    struct watched *w = ctx;

    assert_int_equal(w->n_broken, 0);
    assert_true(n > 0 && w->n_events + n <= EVENTS_MAX);
    assert_true(events[n - 1].kv.mod_revision == revision);
    for (size_t i = 0; i < n; i++) {
        struct kept_event *e = &w->events[w->n_events++];
        e->type = events[i].type;
        e->mod_revision = events[i].kv.mod_revision;
        assert_true(e->mod_revision >= w->revision);
        w->revision = e->mod_revision;
        keep(e->key, events[i].kv.key);
        keep(e->value, events[i].kv.value);
        keep(e->prev, events[i].has_prev ? events[i].prev.value : STR("(none)"));
    }
    stop_if_told(w);
}

static void on_broken(void *ctx, int rc, int64_t compact_revision, const struct err *err)
{
    struct watched *w = ctx;

    w->n_broken++;
    w->rc = rc;
    w->compact_revision = compact_revision;
    (void)snprintf(w->err, sizeof(w->err), "%s", err->text);
    stop_if_told(w);
}

void watch_start(struct fixture *f, struct watched *w, const char *prefix, int64_t revision)
{
    struct etcd_watch_config cfg = {
        .prefix = str_from(prefix),
        .start_revision = revision,
        .with_prev = true,
        .ctx = w,
        .on_created = on_created,
        .on_events = on_events,
        .on_broken = on_broken,
    };

    memset(w, 0, sizeof(*w));
    w->f = f;
    assert_int_equal(etcd_watch_start(f->e, &cfg, &w->w), 0);
    fixture_watches(f, NULL, w->w);
}

void watch_stop(struct watched *w)
{
    fixture_watches(w->f, w->w, NULL);
    etcd_watch_stop(w->w);
    w->w = NULL;
}

struct wanted {
    const struct watched *w;
    size_t n;
};

static bool is_created(void *ctx)
{
    const struct wanted *x = ctx;

    return x->w->n_created >= x->n;
}

static bool has_events(void *ctx)
{
    const struct wanted *x = ctx;

    return x->w->n_events >= x->n;
}

static bool is_broken(void *ctx)
{
    const struct wanted *x = ctx;

    return x->w->n_broken > 0;
}

void wait_created(struct fixture *f, struct watched *w, unsigned n)
{
    fixture_wait(f, is_created, &(struct wanted){w, n});
}

void wait_events(struct fixture *f, struct watched *w, size_t n)
{
    fixture_wait(f, has_events, &(struct wanted){w, n});
}

void wait_broken(struct fixture *f, struct watched *w)
{
    fixture_wait(f, is_broken, &(struct wanted){w, 0});
    assert_int_equal(w->n_broken, 1);
}
