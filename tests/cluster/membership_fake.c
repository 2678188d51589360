/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/membership_fake.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base64.h"

#define HEADER "\"header\":{\"revision\":\"%" PRId64 "\"}"

/* ---- The store ----------------------------------------------------------------------------- */

struct key *key_find(struct fake_rig *x, const char *name)
{
    for (size_t i = 0; i < x->n_keys; i++) {
        if (!strcmp(x->keys[i].name, name))
            return &x->keys[i];
    }
    return NULL;
}

struct key *key_put(struct fake_rig *x, const char *name, const char *value, int64_t lease)
{
    struct key *k = key_find(x, name);

    if (!k) {
        assert_true(x->n_keys < KEYS_MAX);
        k = &x->keys[x->n_keys++];
        (void)snprintf(k->name, sizeof(k->name), "%s", name);
    }
    (void)snprintf(k->value, sizeof(k->value), "%s", value);
    k->lease = lease;
    k->revision = ++x->revision;
    return k;
}

void key_drop(struct fake_rig *x, const char *name)
{
    struct key *k = key_find(x, name);

    assert_non_null(k);
    *k = x->keys[--x->n_keys];
    x->revision++;
}

static void add_base64(struct buf *b, const char *key, const char *z)
{
    buf_addf(b, "\"%s\":\"", key);
    base64_encode(str_from(z), b);
    buf_addz(b, "\",");
}

static void add_kv(struct buf *b, const struct key *k)
{
    char path[64];

    (void)snprintf(path, sizeof(path), NODES "%s", k->name);
    buf_addc(b, '{');
    add_base64(b, "key", path);
    add_base64(b, "value", k->value);
    buf_addf(
        b, "\"create_revision\":\"1\",\"mod_revision\":\"%" PRId64 "\",\"lease\":\"%" PRId64 "\"}",
        k->revision, k->lease);
}

static void add_kvs(struct buf *b, struct fake_rig *x)
{
    buf_addz(b, "\"kvs\":[");
    for (size_t i = 0; i < x->n_keys; i++) {
        if (i)
            buf_addc(b, ',');
        add_kv(b, &x->keys[i]);
    }
    buf_addc(b, ']');
}

/* ---- Answers ------------------------------------------------------------------------------- */

static void say(struct fake_request *r, const char *status, struct buf *b)
{
    assert_true(buf_ok(b));
    fake_status(r, status);
    fake_say(r, buf_str(b));
    fake_end(r);
    buf_fini(b);
}

static void answer_read(struct fake_rig *x, struct fake_request *r)
{
    struct buf b = BUF_INIT;

    buf_addf(&b, "{" HEADER ",", x->revision);
    add_kvs(&b, x);
    buf_addc(&b, '}');
    say(r, "200 OK", &b);
}

static void on_read(struct fake_rig *x, struct fake_request *r, const char *body)
{
    x->n_reads++;
    (void)snprintf(x->read_body, sizeof(x->read_body), "%s", body);
    if (x->reads_are_held && !x->read) {
        x->read = r;
        x->read_came_at = clock_mono();
    } else {
        answer_read(x, r);
    }
}

/* Nobody's or, when there is a key already, somebody's. */
static void on_create(struct fake_rig *x, struct fake_request *r)
{
    struct buf b = BUF_INIT;
    struct key *k = key_find(x, "node-a");

    if (x->is_lease_bad) {
        buf_addz(&b, "{\"message\":\"etcdserver: requested lease not found\",\"code\":5}");
        say(r, "404 Not Found", &b);
        return;
    }
    if (!k)
        (void)key_put(x, "node-a", member_json("node-a", 1), x->lease);
    buf_addf(&b, "{" HEADER ",\"succeeded\":%s,\"responses\":[", x->revision, k ? "false" : "true");
    if (k) {
        buf_addf(&b, "{\"response_range\":{" HEADER ",\"count\":\"1\",\"kvs\":[", x->revision);
        add_kv(&b, k);
        buf_addz(&b, "]}}]}");
    } else {
        buf_addf(&b, "{\"response_put\":{" HEADER "}}]}", x->revision);
    }
    say(r, "200 OK", &b);
}

/* The key's, unless it was written anew. */
static void on_delete(struct fake_rig *x, struct fake_request *r, const char *body)
{
    struct buf b = BUF_INIT;
    char wanted[64];
    struct key *k;

    if (x->rewritten)
        (void)key_put(x, "node-a", x->rewritten, 999);
    x->rewritten = NULL;
    k = key_find(x, "node-a");
    assert_non_null(k);
    x->n_deletes++;
    (void)snprintf(wanted, sizeof(wanted), "\"mod_revision\":\"%" PRId64 "\"", k->revision);
    if (strstr(body, wanted)) {
        key_drop(x, "node-a");
        buf_addf(&b, "{" HEADER ",\"succeeded\":true,\"responses\":[{}]}", x->revision);
    } else {
        buf_addf(&b, "{" HEADER ",\"responses\":[{\"response_range\":{" HEADER ",\"kvs\":[",
                 x->revision, x->revision);
        add_kv(&b, k);
        buf_addz(&b, "]}}]}");
    }
    say(r, "200 OK", &b);
}

static void on_ttl(struct fake_rig *x, struct fake_request *r, const char *body)
{
    struct buf b = BUF_INIT;
    int64_t lease = 0;

    x->n_ttls++;
    assert_int_equal(sscanf(body, "{\"ID\":\"%" SCNd64, &lease), 1);
    buf_addf(&b, "{" HEADER ",\"ID\":\"%" PRId64 "\",%s}", x->revision, lease, x->others);
    say(r, "200 OK", &b);
}

static void on_put(struct fake_rig *x, struct fake_request *r)
{
    struct buf b = BUF_INIT;

    x->n_puts++;
    if (x->is_put_refused) {
        buf_addz(&b, "{\"message\":\"etcdserver: too many requests\",\"code\":8}");
        say(r, "429 Too Many Requests", &b);
        return;
    }
    (void)key_put(x, "node-a", member_json("node-a", 1), x->lease);
    buf_addf(&b, "{" HEADER "}", x->revision);
    say(r, "200 OK", &b);
}

static void on_watch(struct fake_rig *x, struct fake_request *r, const char *body)
{
    struct buf b = BUF_INIT;

    x->n_watches++;
    (void)snprintf(x->watch_body, sizeof(x->watch_body), "%s", body);
    if (x->is_watch_silent)
        return;
    buf_addf(&b, "{\"result\":{" HEADER ",\"created\":true}}\n", x->revision);
    if (x->is_watch_cut)
        buf_addf(&b, "{\"result\":{" HEADER ",\"canceled\":true}}\n", x->revision);
    fake_status(r, "200 OK");
    fake_say(r, buf_str(&b));
    buf_fini(&b);
    x->watch = r;
}

static void on_request(struct fake_request *r, const char *head, const char *body, void *ctx)
{
    struct fake_rig *x = ctx;
    struct buf b = BUF_INIT;

    if (strstr(head, "/v3/kv/range")) {
        on_read(x, r, body);
    } else if (strstr(head, "/v3/kv/txn")) {
        if (strstr(body, "request_delete_range"))
            on_delete(x, r, body);
        else
            on_create(x, r);
    } else if (strstr(head, "/v3/lease/timetolive")) {
        on_ttl(x, r, body);
    } else if (strstr(head, "/v3/watch")) {
        on_watch(x, r, body);
    } else if (strstr(head, "/v3/lease/grant")) {
        x->n_grants++;
        buf_addf(&b, "{" HEADER ",\"ID\":\"%" PRId64 "\",\"TTL\":\"60\"}", x->revision, ++x->lease);
        say(r, "200 OK", &b);
    } else if (strstr(head, "/v3/lease/keepalive")) {
        buf_addf(&b, "{\"result\":{" HEADER ",\"ID\":\"%" PRId64 "\"%s}}", x->revision, x->lease,
                 x->is_alive_lost ? "" : ",\"TTL\":\"60\"");
        say(r, "200 OK", &b);
    } else if (strstr(head, "/v3/lease/revoke")) {
        x->n_revokes++;
        buf_addf(&b, "{" HEADER "}", x->revision);
        say(r, "200 OK", &b);
    } else {
        assert_non_null(strstr(head, "/v3/kv/put"));
        on_put(x, r);
    }
}

void tell_event(struct fake_rig *x, const struct key *k, bool is_delete)
{
    struct buf b = BUF_INIT;

    assert_non_null(x->watch);
    buf_addf(&b, "{\"result\":{" HEADER ",\"events\":[{%s\"kv\":", k->revision,
             is_delete ? "\"type\":\"DELETE\"," : "");
    add_kv(&b, k);
    buf_addz(&b, "}]}}\n");
    fake_say(x->watch, buf_str(&b));
    buf_fini(&b);
}

/* ---- The rig ------------------------------------------------------------------------------- */

int fake_setup(void **state)
{
    struct fake_rig *x = calloc(1, sizeof(*x));

    assert_non_null(x);
    fixture_open(&x->f);
    x->s = fake_etcd_new(x->f.base, on_request, x);
    x->revision = 1000;
    x->others = "\"TTL\":\"590\",\"grantedTTL\":\"600\"";
    *state = x;
    return 0;
}

int fake_teardown(void **state)
{
    struct fake_rig *x = *state;

    peer_close(&x->a);
    fake_etcd_free(x->s);
    fixture_close(&x->f);
    free(x);
    return 0;
}

void fake_start(struct fake_rig *x, int64_t ttl_ms)
{
    char url[FAKE_URL_MAX];
    const char *endpoints[] = {url};

    fake_etcd_url(x->s, url);
    peer_open(&x->a, &x->f,
              &(struct etcd_config){.endpoints = endpoints,
                                    .n_endpoints = 1,
                                    .request_timeout_ms = 10000,
                                    .watch_idle_ms = LONG_MS},
              "node-a", ttl_ms);
}

void fake_start_settled(struct fake_rig *x, int64_t ttl_ms)
{
    fake_start(x, ttl_ms);
    wait_story(&x->a, "R");
    wait_count(&x->a, &x->a.n_told,
               2); /* no event was sent: a reading before the watch, one after */
}

bool has_read(void *ctx)
{
    return ((struct fake_rig *)ctx)->read != NULL;
}

void hold_read(struct fake_rig *x)
{
    x->reads_are_held = true;
    fixture_wait(&x->f, has_read, x);
}

void release_read(struct fake_rig *x)
{
    struct fake_request *r = x->read;

    x->reads_are_held = false;
    x->read = NULL;
    answer_read(x, r);
}
