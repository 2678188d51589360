/* SPDX-License-Identifier: Apache-2.0 */
/* Instances of services. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "node/core/instance.h"
#include "tests/store/world.h"

#define LONG_MS 600000
#define SHORT_MS 30 /* one that a case sees expire */

static struct call_instance_put put_of(const char *service, const char *name, int32_t ttl_ms)
{
    return (struct call_instance_put){.in = {.service_name = str_from(service),
                                             .name = str_from(name),
                                             .base_url = STR("http://10.0.0.7:8080/jobflow"),
                                             .ttl_ms = ttl_ms}};
}

/* Registers or prolongs, and holds the times against the store's clock. */
static struct instance put_instance(struct world *w, const char *service, const char *name,
                                    int32_t ttl_ms, bool created)
{
    struct call_instance_put c = put_of(service, name, ttl_ms);
    wall_ms before = world_now(w);

    assert_int_equal(call(w, &c.call, CALL_INSTANCE_PUT), 0);
    assert_true(c.created == created);
    assert_true(c.in.expires_at >= before + ttl_ms && c.in.expires_at <= world_now(w) + ttl_ms);
    assert_true(c.in.registered_at <= c.in.expires_at - ttl_ms);
    assert_true(!created || c.in.registered_at == c.in.expires_at - ttl_ms);
    return c.in;
}

static int leave(struct world *w, const char *service, const char *name)
{
    struct call_instance_delete c = {.service_name = str_from(service), .name = str_from(name)};

    return call(w, &c.call, CALL_INSTANCE_DELETE);
}

static struct call_instance_list list(struct world *w, const char *service)
{
    struct call_instance_list c = {.service_name = str_from(service)};

    assert_int_equal(call(w, &c.call, CALL_INSTANCE_LIST), 0);
    (void)world_keep(w, c.instances);
    for (size_t i = 1; i < c.n; i++) {
        int order = str_cmp(c.instances[i - 1].service_name, c.instances[i].service_name);

        assert_true(order < 0 ||
                    (order == 0 && str_cmp(c.instances[i - 1].name, c.instances[i].name) < 0));
    }
    return c;
}

static uint32_t purge(struct world *w, uint32_t limit)
{
    struct call_instance_purge c = {.limit = limit};

    assert_int_equal(call(w, &c.call, CALL_INSTANCE_PURGE), 0);
    return c.n_seen;
}

static size_t count_services(struct world *w)
{
    struct call_service_list c = {0};

    assert_int_equal(call(w, &c.call, CALL_SERVICE_LIST), 0);
    (void)world_keep(w, c.services);
    return c.n;
}

static void test_a_new_one_makes_its_service_known(struct world *w)
{
    struct instance in = put_instance(w, "orders", "pod-7", LONG_MS, true);
    struct call_service_list c = {0};
    struct call_instance_list l = list(w, "orders");

    assert_int_equal(l.n, 1);
    assert_str(l.instances[0].service_name, "orders");
    assert_str(l.instances[0].name, "pod-7");
    assert_str(l.instances[0].base_url, "http://10.0.0.7:8080/jobflow");
    assert_int_equal(l.instances[0].ttl_ms, LONG_MS);
    assert_true(l.instances[0].registered_at == in.registered_at);
    assert_true(l.instances[0].expires_at == in.expires_at);
    assert_int_equal(call(w, &c.call, CALL_SERVICE_LIST), 0);
    (void)world_keep(w, c.services);
    assert_int_equal(c.n, 1);
    assert_str(c.services[0].name, "orders");
    assert_null(c.services[0].base_url.p);
    assert_int_equal(c.services[0].lanes, 0);
    assert_int_equal(c.services[0].shards, 1);
}

static void test_a_heartbeat_prolongs(struct world *w)
{
    struct instance first = put_instance(w, "s", "a", LONG_MS, true);
    struct call_instance_put c = put_of("s", "a", LONG_MS - 1000);
    struct call_instance_list l;

    c.in.base_url = STR("https://elsewhere/\xc3\xa9");
    assert_int_equal(call(w, &c.call, CALL_INSTANCE_PUT), 0);
    assert_false(c.created);
    assert_true(c.in.registered_at == first.registered_at);
    l = list(w, "s");
    assert_int_equal(l.n, 1);
    assert_str(l.instances[0].base_url, "https://elsewhere/\xc3\xa9");
    assert_int_equal(l.instances[0].ttl_ms, LONG_MS - 1000);
    assert_true(l.instances[0].expires_at == c.in.expires_at);
    /* The same again and again: also where nothing in the row differs. */
    for (int i = 0; i < 20; i++)
        (void)put_instance(w, "s", "a", LONG_MS, false);
    assert_true(list(w, "s").instances[0].registered_at == first.registered_at);
}

static void test_names_are_each_services_own(struct world *w)
{
    (void)put_instance(w, "s", "a", LONG_MS, true);
    (void)put_instance(w, "S", "a", LONG_MS, true);
    (void)put_instance(w, "s", "A", LONG_MS, true);
    (void)put_instance(w, "t", "pod:1.x_y-z", LONG_MS, true);
    assert_int_equal(list(w, NULL).n, 4);
    assert_int_equal(list(w, "s").n, 2);
    assert_int_equal(list(w, "u").n, 0);
    assert_int_equal(count_services(w), 3);
    assert_int_equal(leave(w, "S", "a"), 0);
    assert_int_equal(list(w, "s").n, 2);
}

static void test_it_expires_and_comes_back(struct world *w)
{
    struct instance first = put_instance(w, "s", "a", SHORT_MS, true);
    struct instance second;

    (void)put_instance(w, "s", "b", LONG_MS, true);
    world_wait_past(w, first.expires_at);
    assert_int_equal(list(w, "s").n, 1);
    assert_int_equal(list(w, NULL).n, 1);
    assert_int_equal(leave(w, "s", "a"), ERR_NOT_FOUND);
    second = put_instance(w, "s", "a", LONG_MS, true);
    assert_true(second.registered_at >= first.expires_at);
    assert_int_equal(list(w, "s").n, 2);
    (void)put_instance(w, "s", "a", LONG_MS, false);
}

static void test_leave(struct world *w)
{
    assert_int_equal(leave(w, "s", "a"), ERR_NOT_FOUND);
    (void)put_instance(w, "s", "a", LONG_MS, true);
    assert_int_equal(leave(w, "s", "b"), ERR_NOT_FOUND);
    assert_int_equal(leave(w, "t", "a"), ERR_NOT_FOUND);
    assert_int_equal(leave(w, "s", "a"), 0);
    assert_int_equal(leave(w, "s", "a"), ERR_NOT_FOUND);
    assert_int_equal(list(w, "s").n, 0);
    (void)put_instance(w, "s", "a", LONG_MS, true);
}

/* The limit counts live ones of one service; heartbeats go on at the limit. */
static void test_the_limit(struct world *w)
{
    struct instance brief = put_instance(w, "s", "brief", SHORT_MS, true);
    struct call_instance_put one_more = put_of("s", "one more", LONG_MS);
    size_t n = 0;

    world_wait_past(w, brief.expires_at);
    for (; n < INSTANCES_MAX; n++)
        (void)put_instance(w, "s", world_text(w, "i%zu", n).p, LONG_MS, true);
    assert_int_equal(call(w, &one_more.call, CALL_INSTANCE_PUT), ERR_CONFLICT);
    assert_int_equal(list(w, "s").n, INSTANCES_MAX);
    (void)put_instance(w, "s", "i7", LONG_MS, false);
    (void)put_instance(w, "t", "a", LONG_MS, true);
    assert_int_equal(leave(w, "s", "i7"), 0);
    (void)put_instance(w, "s", "one more", LONG_MS, true);
}

static void test_the_service_takes_them_along(struct world *w)
{
    struct call_service_delete d = {.name = STR("s")};

    (void)put_instance(w, "s", "a", LONG_MS, true);
    (void)put_instance(w, "s", "b", LONG_MS, true);
    (void)put_instance(w, "t", "a", LONG_MS, true);
    assert_int_equal(call(w, &d.call, CALL_SERVICE_DELETE), 0);
    assert_int_equal(list(w, NULL).n, 1);
    assert_int_equal(leave(w, "s", "a"), ERR_NOT_FOUND);
    (void)put_instance(w, "s", "a", LONG_MS, true);
    assert_int_equal(count_services(w), 2);
    d.name = STR("svc");
    (void)bring(w, "k", TASK_PENDING);
    (void)put_instance(w, "svc", "a", LONG_MS, true);
    assert_int_equal(call(w, &d.call, CALL_SERVICE_DELETE), ERR_CONFLICT);
    assert_int_equal(list(w, "svc").n, 1);
}

static size_t list_all(struct world *w, bool expired_too)
{
    struct call_instance_list c = {.expired_too = expired_too};

    assert_int_equal(call(w, &c.call, CALL_INSTANCE_LIST), 0);
    free(c.instances);
    return c.n;
}

static void test_purge(struct world *w)
{
    struct instance last = {0};

    for (int i = 0; i < 7; i++)
        last = put_instance(w, "s", world_text(w, "i%d", i).p, SHORT_MS, true);
    (void)put_instance(w, "s", "lives", LONG_MS, true);
    world_wait_past(w, last.expires_at);
    (void)put_instance(w, "s", "i3", LONG_MS, true);
    assert_int_equal(list_all(w, false), 2);
    assert_int_equal(list_all(w, true), 8); /* after an outage they count */
    assert_int_equal(purge(w, 4), 4);
    assert_int_equal(purge(w, 4), 2);
    assert_int_equal(purge(w, 4), 0);
    assert_int_equal(list(w, "s").n, 2);
    if (has_sql(w))
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_instance"), 2);
}

/* ---- Threads ------------------------------------------------------------------------------- */

enum { MEMBERS = 3, NAMES = 8, ROUNDS = 150, MAX_BUSY = 100000 };

/* What the threads share, and what they saw. */
struct race {
    struct world *w;
    atomic_size_t n_busy;
    atomic_size_t n_created;
    atomic_size_t n_left;
    atomic_size_t n_purged;
    atomic_int rc; /* an unexpected one */
    atomic_uint n_running;
};

struct racer {
    pthread_t thread;
    struct race *race;
    struct driver_conn *conn;
    size_t index;
    int32_t ttl_ms;
};

/* Runs a call until it is not busy; notes any rc but 0 and `also`. True when it worked. */
static bool run_call(struct racer *r, struct store_call *c, enum call_what what, int also)
{
    struct race *race = r->race;
    struct err err;
    int rc;

    c->op.kind = STORE_CALL;
    c->what = what;
    for (int left = MAX_BUSY;; left--) {
        rc = race->w->d->call(r->conn, c, &err);
        if (rc != ERR_BUSY || !left)
            break;
        (void)atomic_fetch_add(&race->n_busy, 1);
    }
    if (rc && rc != also)
        atomic_store(&race->rc, rc);
    return rc == 0;
}

static void *run_heart(void *arg)
{
    struct racer *r = arg;

    for (size_t i = 0; i < ROUNDS; i++) {
        char name[16] = {(char)('a' + (i + r->index) % NAMES)};
        struct call_instance_put c = put_of("s", name, r->ttl_ms);

        if (run_call(r, &c.call, CALL_INSTANCE_PUT, 0) && c.created)
            (void)atomic_fetch_add(&r->race->n_created, 1);
    }
    (void)atomic_fetch_sub(&r->race->n_running, 1);
    return NULL;
}

static void *run_leaver(void *arg)
{
    struct racer *r = arg;

    for (size_t i = 0; atomic_load(&r->race->n_running); i++) {
        char name[16] = {(char)('a' + i % NAMES)};
        struct call_instance_delete c = {.service_name = STR("s"), .name = str_from(name)};

        if (run_call(r, &c.call, CALL_INSTANCE_DELETE, ERR_NOT_FOUND))
            (void)atomic_fetch_add(&r->race->n_left, 1);
    }
    return NULL;
}

static void *run_purger(void *arg)
{
    struct racer *r = arg;

    while (atomic_load(&r->race->n_running)) {
        struct call_instance_purge c = {.limit = NAMES / 2};

        if (run_call(r, &c.call, CALL_INSTANCE_PURGE, 0))
            (void)atomic_fetch_add(&r->race->n_purged, c.n_seen);
    }
    return NULL;
}

/* Hearts against one other thread. */
static void race_hearts(struct world *w, struct race *race, int32_t ttl_ms, void *(*other)(void *))
{
    struct racer racers[MEMBERS + 1];

    *race = (struct race){.w = w};
    atomic_store(&race->n_running, MEMBERS);
    for (size_t i = 0; i <= MEMBERS; i++) {
        racers[i] =
            (struct racer){.race = race, .conn = world_connect(w), .index = i, .ttl_ms = ttl_ms};
        assert_int_equal(
            pthread_create(&racers[i].thread, NULL, i < MEMBERS ? run_heart : other, &racers[i]),
            0);
    }
    for (size_t i = 0; i <= MEMBERS; i++)
        assert_int_equal(pthread_join(racers[i].thread, NULL), 0);
    if (atomic_load(&race->rc))
        fail_msg("a thread: %s", err_name(atomic_load(&race->rc)));
    /* Servers with locks on rows: nobody waits for another in a circle. */
    if (w->backend->has & (NEEDS_POSTGRES | NEEDS_MYSQL))
        assert_int_equal(atomic_load(&race->n_busy), 0);
}

/* Each leave ends one life, and each life began once. */
static void test_heartbeats_race_leaves(struct world *w)
{
    struct race race;

    race_hearts(w, &race, LONG_MS, run_leaver);
    assert_true(atomic_load(&race.n_left) > 0);
    assert_int_equal(atomic_load(&race.n_created), atomic_load(&race.n_left) + list(w, "s").n);
}

/* A purge takes only what has expired: what was registered again since stays. */
static void test_heartbeats_race_the_purge(struct world *w)
{
    struct race race;

    race_hearts(w, &race, 1, run_purger);
    assert_true(atomic_load(&race.n_purged) > 0);
    race_hearts(w, &race, LONG_MS, run_purger);
    assert_int_equal(list(w, "s").n, NAMES);
    assert_true(atomic_load(&race.n_created) <= NAMES);
}

/* Several register at once, close to the limit. */
static void *run_newcomer(void *arg)
{
    struct racer *r = arg;

    for (size_t i = 0; i < 4; i++) {
        char name[] = {(char)('a' + r->index), (char)('0' + i), 0};
        struct call_instance_put c = put_of("s", name, LONG_MS);

        if (run_call(r, &c.call, CALL_INSTANCE_PUT, ERR_CONFLICT))
            (void)atomic_fetch_add(&r->race->n_created, 1);
    }
    return NULL;
}

static void test_the_limit_holds_in_a_crowd(struct world *w)
{
    enum { LEFT = 5 };
    struct racer racers[MEMBERS];
    struct race race = {.w = w};

    for (size_t i = 0; i < INSTANCES_MAX - LEFT; i++)
        (void)put_instance(w, "s", world_text(w, "i%zu", i).p, LONG_MS, true);
    for (size_t i = 0; i < MEMBERS; i++) {
        racers[i] = (struct racer){.race = &race, .conn = world_connect(w), .index = i};
        assert_int_equal(pthread_create(&racers[i].thread, NULL, run_newcomer, &racers[i]), 0);
    }
    for (size_t i = 0; i < MEMBERS; i++)
        assert_int_equal(pthread_join(racers[i].thread, NULL), 0);
    assert_int_equal(atomic_load(&race.rc), 0);
    assert_int_equal(atomic_load(&race.n_created), LEFT);
    assert_int_equal(list(w, "s").n, INSTANCES_MAX);
}

static const struct test_case cases[] = {
    {"instance: a new one makes its service known", test_a_new_one_makes_its_service_known, 0},
    {"instance: a heartbeat prolongs", test_a_heartbeat_prolongs, 0},
    {"instance: names are each service's own", test_names_are_each_services_own, 0},
    {"instance: expires and comes back", test_it_expires_and_comes_back, 0},
    {"instance: leave", test_leave, 0},
    {"instance: the limit", test_the_limit, 0},
    {"instance: a deleted service takes them along", test_the_service_takes_them_along, 0},
    {"instance: purge", test_purge, 0},
    {"instance: heartbeats race leaves", test_heartbeats_race_leaves, NEEDS_THREADS},
    {"instance: heartbeats race the purge", test_heartbeats_race_the_purge, NEEDS_THREADS},
    {"instance: the limit holds in a crowd", test_the_limit_holds_in_a_crowd, NEEDS_THREADS},
};

const struct case_list instance_cases = CASE_LIST(cases);
