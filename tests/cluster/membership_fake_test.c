/* SPDX-License-Identifier: Apache-2.0 */
/* A node's place in an etcd that answers in the order, and with the gaps, that the test wants. */
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
#include "tests/cluster/fake_etcd.h"
#include "tests/cluster/membership_fixture.h"

#define LONG_MS 600000
#define SHORT_MS 600
#define KEYS_MAX 600
#define HEADER "\"header\":{\"revision\":\"%" PRId64 "\"}"

struct key {
    char name[16];
    char value[256];
    int64_t revision;
    int64_t lease;
};

struct rig {
    struct fixture f;
    struct fake_etcd *s;
    struct peer a;
    int64_t revision;
    int64_t lease; /* the last one granted */
    struct key keys[KEYS_MAX];
    size_t n_keys;
    bool reads_are_held; /* one reading is kept instead of answered */
    struct fake_request *read;
    mono_ms read_came_at;
    bool is_watch_silent;
    bool is_watch_cut;     /* cancelled as soon as it stands */
    bool is_put_refused;   /* no space, no permission */
    bool is_alive_lost;    /* the lease is gone, as only its keep-alive says */
    bool is_lease_bad;     /* gone as soon as it is granted */
    const char *others;    /* of another's lease: what is left of it and what it was granted for */
    const char *rewritten; /* what the key becomes before it can be deleted */
    struct fake_request *watch;
    char watch_body[512];
    char read_body[512];
    unsigned n_reads;
    unsigned n_watches;
    unsigned n_grants;
    unsigned n_puts;
    unsigned n_revokes;
    unsigned n_deletes;
    unsigned n_ttls; /* asked for */
};

static const char *json(const char *name, int64_t epoch)
{
    static char text[256];

    (void)snprintf(text, sizeof(text),
                   "{\"name\":\"%s\",\"address\":\"%s:80\",\"state\":\"active\",\"epoch\":%" PRId64
                   ",\"version\":\"1.0\",\"hashVersion\":1,"
                   "\"startedAt\":\"2026-01-01T00:00:00.000Z\"}",
                   name, name, epoch);
    return text;
}

/* ---- The store ----------------------------------------------------------------------------- */

static struct key *key_find(struct rig *x, const char *name)
{
    for (size_t i = 0; i < x->n_keys; i++) {
        if (!strcmp(x->keys[i].name, name))
            return &x->keys[i];
    }
    return NULL;
}

static struct key *key_put(struct rig *x, const char *name, const char *value, int64_t lease)
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

static void key_drop(struct rig *x, const char *name)
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

static void add_kvs(struct buf *b, struct rig *x)
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

static void answer_read(struct rig *x, struct fake_request *r)
{
    struct buf b = BUF_INIT;

    buf_addf(&b, "{" HEADER ",", x->revision);
    add_kvs(&b, x);
    buf_addc(&b, '}');
    say(r, "200 OK", &b);
}

static void on_read(struct rig *x, struct fake_request *r, const char *body)
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
static void on_create(struct rig *x, struct fake_request *r)
{
    struct buf b = BUF_INIT;
    struct key *k = key_find(x, "node-a");

    if (x->is_lease_bad) {
        buf_addz(&b, "{\"message\":\"etcdserver: requested lease not found\",\"code\":5}");
        say(r, "404 Not Found", &b);
        return;
    }
    if (!k)
        (void)key_put(x, "node-a", json("node-a", 1), x->lease);
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
static void on_delete(struct rig *x, struct fake_request *r, const char *body)
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

static void on_ttl(struct rig *x, struct fake_request *r, const char *body)
{
    struct buf b = BUF_INIT;
    int64_t lease = 0;

    x->n_ttls++;
    assert_int_equal(sscanf(body, "{\"ID\":\"%" SCNd64, &lease), 1);
    buf_addf(&b, "{" HEADER ",\"ID\":\"%" PRId64 "\",%s}", x->revision, lease, x->others);
    say(r, "200 OK", &b);
}

static void on_put(struct rig *x, struct fake_request *r)
{
    struct buf b = BUF_INIT;

    x->n_puts++;
    if (x->is_put_refused) {
        buf_addz(&b, "{\"message\":\"etcdserver: too many requests\",\"code\":8}");
        say(r, "429 Too Many Requests", &b);
        return;
    }
    (void)key_put(x, "node-a", json("node-a", 1), x->lease);
    buf_addf(&b, "{" HEADER "}", x->revision);
    say(r, "200 OK", &b);
}

static void on_watch(struct rig *x, struct fake_request *r, const char *body)
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
    struct rig *x = ctx;
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

static void tell_event(struct rig *x, const struct key *k, bool is_delete)
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

static int setup(void **state)
{
    struct rig *x = calloc(1, sizeof(*x));

    assert_non_null(x);
    fixture_open(&x->f);
    x->s = fake_etcd_new(x->f.base, on_request, x);
    x->revision = 1000;
    x->others = "\"TTL\":\"590\",\"grantedTTL\":\"600\"";
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    struct rig *x = *state;

    peer_close(&x->a);
    fake_etcd_free(x->s);
    fixture_close(&x->f);
    free(x);
    return 0;
}

static void start(struct rig *x, int64_t ttl_ms)
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

static void start_settled(struct rig *x, int64_t ttl_ms)
{
    start(x, ttl_ms);
    wait_story(&x->a, "R");
    wait_count(&x->a, &x->a.n_told,
               2); /* no event was sent: a reading before the watch, one after */
}

static bool has_read(void *ctx)
{
    return ((struct rig *)ctx)->read != NULL;
}

/* A reading that is under way, and stays so. */
static void hold_read(struct rig *x)
{
    x->reads_are_held = true;
    fixture_wait(&x->f, has_read, x);
}

static void release_read(struct rig *x)
{
    struct fake_request *r = x->read;

    x->reads_are_held = false;
    x->read = NULL;
    answer_read(x, r);
}

/* ---- The key ------------------------------------------------------------------------------- */

/* etcd-46, and the watch does not tell: the reading does. */
static void test_etcd_46_lost_event(void **state)
{
    struct rig *x = *state;

    start_settled(x, SHORT_MS);
    key_drop(x, "node-a");
    wait_story(&x->a, "RLR");
    assert_int_equal(x->n_watches, 1);
    assert_int_equal(x->n_revokes, 1);
    assert_int_equal(x->n_grants, 2);

    (void)key_put(x, "node-a", json("node-a", 1), 999);
    wait_story(&x->a, "RLRLH");
}

/* The key is still there, and nobody's. */
static void test_keep_alive_says_so(void **state)
{
    struct rig *x = *state;

    start_settled(x, SHORT_MS);
    x->is_alive_lost = true;
    wait_story(&x->a, "RLH");
    assert_int_equal(x->n_revokes, 0);
    x->is_alive_lost = false;
    key_drop(x, "node-a");
    wait_story(&x->a, "RLHR");
}

/* A reading that was answered before the key was created knows nothing of it. */
static void test_reading_from_before_the_key(void **state)
{
    struct rig *x = *state;

    x->reads_are_held = true;
    start(x, LONG_MS);
    wait_story(&x->a, "R");
    fixture_wait(&x->f, has_read, x);
    struct key k = *key_find(x, "node-a");
    int64_t revision = x->revision;
    x->n_keys = 0; /* as it was */
    x->revision = k.revision - 1;
    release_read(x);
    x->revision = revision;
    x->keys[x->n_keys++] = k;
    wait_seen(&x->a, "node-a", 1, MEMBER_ACTIVE); /* the one after the watch began */
    assert_string_equal(x->a.story, "R");
}

/* An answer was lost: the key stands there from an earlier try, with an older value. */
static void test_own_key_is_there_already(void **state)
{
    struct rig *x = *state;

    (void)key_put(x, "node-a", "old", 1); /* the lease that will be granted */
    start(x, LONG_MS);
    wait_story(&x->a, "R");
    wait_count(&x->a, &x->n_puts, 1);
    assert_int_equal(x->n_puts, 1);
    assert_string_equal(x->a.story, "R");
}

static void test_refused_writing_is_repeated(void **state)
{
    struct rig *x = *state;

    start_settled(x, LONG_MS);
    x->is_put_refused = true;
    membership_set(x->a.m, 2, MEMBER_ACTIVE);
    wait_count(&x->a, &x->a.n_troubles, 1);
    assert_int_equal(x->n_puts, 1);
    x->is_put_refused = false;
    wait_count(&x->a, &x->n_puts, 2);
    assert_string_equal(x->a.story, "R");
}

/* etcd is read well and takes no writes: it is well again when it does, and not before. */
static void test_only_a_writing_ends_the_trouble_of_writing(void **state)
{
    struct rig *x = *state;

    start_settled(x, SHORT_MS);
    x->is_put_refused = true;
    membership_set(x->a.m, 2, MEMBER_DRAINING);
    wait_count(&x->a, &x->a.n_troubles, 3);
    wait_asked(&x->a, 4); /* readings and, beside them, keep-alives */
    assert_int_equal(x->a.n_good, 0);
    x->is_put_refused = false;
    wait_count(&x->a, &x->a.n_good, 1);
    wait_asked(&x->a, 2);
    assert_int_equal(x->a.n_good, 1);
    assert_string_equal(x->a.story, "R");
}

/* ---- What others left behind --------------------------------------------------------------- */

static void test_own_key_without_a_lease(void **state)
{
    struct rig *x = *state;

    (void)key_put(x, "node-a", json("node-a", 99), 0); /* of whatever epoch */
    start(x, LONG_MS);
    wait_story(&x->a, "R");
    assert_int_equal(x->n_deletes, 1);
    assert_int_equal(x->n_ttls, 0);
    assert_true(key_find(x, "node-a")->lease == x->lease);
}

struct left_behind {
    const char *ttl;
    int64_t epoch; /* of the key */
    int64_t own;   /* this node's */
    bool is_taken;
};

/* The TTL is 2 s, and the other's 600 s. */
static void test_own_key_under_another_lease(void **state)
{
    struct rig *x = *state;
    static const struct left_behind cases[] = {
        {"\"TTL\":\"-1\"", 99, 5, true}, /* there is no such lease */
        {"\"TTL\":\"397\",\"grantedTTL\":\"600\"", 4, 5, true},
        {"\"TTL\":\"397\",\"grantedTTL\":\"600\"", 5, 5, true},
        {"\"TTL\":\"397\",\"grantedTTL\":\"600\"", 4, 0, true},  /* its own is not known yet */
        {"\"TTL\":\"398\",\"grantedTTL\":\"600\"", 5, 5, false}, /* alive every 200 s, or late */
        {"\"TTL\":\"398\",\"grantedTTL\":\"600\"", 4, 0, false},
        {"\"grantedTTL\":\"600\"", 6, 5, false}, /* a later process of the name */
        {"\"grantedTTL\":\"2\"", 4, 5, false},   /* it runs out anyway */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)key_put(x, "node-a", json("node-a", cases[i].epoch), 999);
        x->others = cases[i].ttl;
        x->n_deletes = x->n_ttls = 0;
        start(x, 2000);
        membership_set(x->a.m, cases[i].own, MEMBER_JOINING);
        if (cases[i].is_taken)
            wait_story(&x->a, "HR");
        else
            wait_count(&x->a, &x->n_ttls, 3);
        assert_int_equal(x->n_deletes, cases[i].is_taken);
        assert_string_equal(x->a.story, cases[i].is_taken ? "HR" : "H");
        peer_close(&x->a);
    }
}

/* Between the look and the deletion a living process took the name. */
static void test_a_key_written_meanwhile_stays(void **state)
{
    struct rig *x = *state;
    char other[256];

    (void)key_put(x, "node-a", json("node-a", 4), 0);
    (void)snprintf(other, sizeof(other), "%s", json("node-a", 7));
    x->rewritten = other;
    start(x, SHORT_MS);
    wait_story(&x->a, "H");
    assert_int_equal(x->a.holder.epoch, 7);
    wait_count(&x->a, &x->n_ttls, 3);
    assert_int_equal(x->n_deletes, 1);
    assert_true(key_find(x, "node-a")->lease == 999);
    assert_string_equal(x->a.story, "H");
}

/* Members of whom no lease would take leave are none. */
static void test_others_without_a_lease(void **state)
{
    struct rig *x = *state;

    (void)key_put(x, "b", json("b", 5), 0);
    start_settled(x, SHORT_MS);
    wait_asked(&x->a, 2);
    assert_null(peer_find(&x->a, "b"));
    assert_int_equal(x->a.n_corrupt, 1); /* told of once */
    struct key b = *key_put(x, "b", json("b", 6), 7);
    tell_event(x, &b, false);
    wait_seen(&x->a, "b", 6, MEMBER_ACTIVE);
    b = *key_put(x, "b", json("b", 7), 0);
    tell_event(x, &b, false);
    wait_gone(&x->a, "b");
    wait_asked(&x->a, 2);
    assert_null(peer_find(&x->a, "b"));
    assert_int_equal(x->a.n_corrupt, 2);
    assert_int_equal(x->a.n_good, 0); /* etcd was well */
}

/* Leases that die at birth are not asked for without end. */
static void test_dead_leases_are_paced(void **state)
{
    struct rig *x = *state;

    x->is_lease_bad = true;
    start(x, 6000);
    wait_count(&x->a, &x->n_grants, 2);
    fixture_run(&x->f, 1000);
    assert_true(x->n_grants < 20);
    x->is_lease_bad = false;
    wait_story(&x->a, "R");
}

/* ---- The list ------------------------------------------------------------------------------ */

static void test_without_a_watch(void **state)
{
    struct rig *x = *state;

    x->is_watch_silent = true;
    start(x, SHORT_MS);
    wait_story(&x->a, "R");
    (void)key_put(x, "b", json("b", 5), 7);
    wait_seen(&x->a, "b", 5, MEMBER_ACTIVE);
    key_drop(x, "b");
    wait_gone(&x->a, "b");
    assert_true(x->n_watches > 0);
}

/* The list is as old as the question, and only whole, linearizable answers make it younger. */
static void test_asked_at(void **state)
{
    struct rig *x = *state;

    start_settled(x, SHORT_MS);
    hold_read(x);
    mono_ms before = x->a.asked_at;
    struct key b = *key_put(x, "b", json("b", 5), 7);
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
    struct rig *x = *state;

    start_settled(x, SHORT_MS);
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
    struct rig *x = *state;
    struct key gone;

    (void)key_put(x, "gone", json("gone", 1), 7);
    (void)key_put(x, "changed", json("changed", 1), 7);
    start_settled(x, SHORT_MS);
    wait_seen(&x->a, "changed", 1, MEMBER_ACTIVE);
    hold_read(x);
    gone = *key_find(x, "gone");
    gone.revision = x->revision + 1;
    tell_event(x, &gone, true);
    struct key new = {.name = "new", .revision = x->revision + 2, .lease = 7};
    (void)snprintf(new.value, sizeof(new.value), "%s", json("new", 1));
    tell_event(x, &new, false);
    struct key changed = {.name = "changed", .revision = x->revision + 3, .lease = 7};
    (void)snprintf(changed.value, sizeof(changed.value), "%s", json("changed", 2));
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
    struct rig *x = *state;
    struct key early;

    early = *key_put(x, "b", json("b", 1), 7);
    (void)key_put(x, "b", json("b", 2), 7);
    start_settled(x, LONG_MS);
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
    struct rig *x = *state;

    (void)key_put(x, "b", json("b", 5), 7);
    start_settled(x, SHORT_MS);
    assert_int_equal(peer_find(&x->a, "b")->epoch, 5);
    (void)snprintf(key_find(x, "b")->value, sizeof(x->keys[0].value), "%s", json("b", 4));
    for (size_t i = 0; i < x->n_keys; i++)
        x->keys[i].revision = 8 + (int64_t)i;
    x->revision = 10;
    wait_seen(&x->a, "b", 4, MEMBER_ACTIVE);
    wait_count(&x->a, &x->n_watches, 2);
    assert_int_equal(x->n_watches, 2);
    assert_non_null(strstr(x->watch_body, "\"start_revision\":\"11\""));
    struct key b = *key_put(x, "b", json("b", 6), 7);
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
    struct rig *x = *state;

    x->is_watch_cut = true;
    start(x, 6000);
    wait_count(&x->a, &x->n_watches, 2);
    fixture_run(&x->f, 1000);
    assert_true(x->n_watches < 20);
    assert_true(x->a.n_troubles > 0);
    assert_int_equal(x->a.n_good, 0); /* the readings are well, the watch is not */
    x->is_watch_cut = false;
    unsigned n = x->n_watches;
    wait_count(&x->a, &x->n_watches, n + 1);
    wait_asked(&x->a, 1);
    struct key b = *key_put(x, "b", json("b", 1), 7);
    tell_event(x, &b, false);
    wait_seen(&x->a, "b", 1, MEMBER_ACTIVE);
    assert_int_equal(x->a.n_good, 1);
}

static void test_too_many(void **state)
{
    struct rig *x = *state;
    char name[16];

    for (int i = 0; i < KEYS_MAX - 1; i++) {
        (void)snprintf(name, sizeof(name), "n%03d", i);
        (void)key_put(x, name, json(name, i), 7);
    }
    start(x, SHORT_MS);
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
        cmocka_unit_test_setup_teardown(test_etcd_46_lost_event, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keep_alive_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reading_from_before_the_key, setup, teardown),
        cmocka_unit_test_setup_teardown(test_own_key_is_there_already, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused_writing_is_repeated, setup, teardown),
        cmocka_unit_test_setup_teardown(test_only_a_writing_ends_the_trouble_of_writing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_own_key_without_a_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(test_own_key_under_another_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_key_written_meanwhile_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_others_without_a_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dead_leases_are_paced, setup, teardown),
        cmocka_unit_test_setup_teardown(test_without_a_watch, setup, teardown),
        cmocka_unit_test_setup_teardown(test_asked_at, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_reading, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reading_does_not_undo_events, setup, teardown),
        cmocka_unit_test_setup_teardown(test_late_events, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restored, setup, teardown),
        cmocka_unit_test_setup_teardown(test_broken_watches_are_paced, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_many, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
