/* SPDX-License-Identifier: Apache-2.0 */
/* Services and nodes. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

#include "node/core/nodecall.h"

static struct call_service_list services(struct world *w)
{
    struct call_service_list c = {0};

    assert_int_equal(call(w, &c.call, CALL_SERVICE_LIST), 0);
    (void)world_keep(w, c.services);
    for (size_t i = 1; i < c.n; i++)
        assert_true(str_cmp(c.services[i - 1].name, c.services[i].name) < 0);
    return c;
}

static const struct service *service(struct world *w, const char *name)
{
    struct call_service_list c = services(w);

    for (size_t i = 0; i < c.n; i++) {
        if (str_eqz(c.services[i].name, name))
            return &c.services[i];
    }
    return NULL;
}

static const struct service *put_service(struct world *w, const struct service *in, bool created)
{
    struct call_service_put c = {.in = in};

    assert_int_equal(call(w, &c.call, CALL_SERVICE_PUT), 0);
    assert_non_null(c.stored);
    assert_true(c.created == created);
    return world_keep(w, c.stored);
}

static int pause_service(struct world *w, const char *name, bool paused, const struct service **ret)
{
    struct call_service_pause c = {.name = str_from(name), .paused = paused};
    int rc = call(w, &c.call, CALL_SERVICE_PAUSE);

    assert_true((rc == ERR_NOT_FOUND) == (c.stored == NULL));
    *ret = world_keep(w, c.stored);
    return rc;
}

static int delete_service(struct world *w, const char *name)
{
    struct call_service_delete c = {.name = str_from(name)};

    return call(w, &c.call, CALL_SERVICE_DELETE);
}

static void assert_same_settings(const struct service *a, const struct service *b)
{
    assert_non_null(a);
    assert_true(str_eq(a->name, b->name));
    assert_true(str_eq(a->base_url, b->base_url));
    assert_true(str_eq(a->secret, b->secret));
    assert_true(str_eq(a->policy, b->policy));
    assert_int_equal(a->shards, b->shards);
    assert_int_equal(a->concurrency, b->concurrency);
    assert_int_equal(a->timeout_ms, b->timeout_ms);
    assert_int_equal(a->delivery, b->delivery);
    assert_int_equal(a->batch_size, b->batch_size);
    assert_int_equal(a->batch_wait_ms, b->batch_wait_ms);
}

static void test_put_creates_and_replaces(struct world *w)
{
    const struct service full = {.name = STR("orders"),
                                 .base_url = STR("http://127.0.0.1:8080/jobflow"),
                                 .secret = STR("whsec_\xc3\xa9"),
                                 .policy = STR("patient"),
                                 .shards = 4,
                                 .concurrency = 64,
                                 .timeout_ms = 30000,
                                 .delivery = DELIVERY_BATCH,
                                 .batch_size = 1000,
                                 .batch_wait_ms = 7};
    const struct service pulled = {.name = STR("pulled"), .shards = 1, .delivery = DELIVERY_PULL};
    const struct service bare = {.name = STR("orders"), .shards = 2};
    const struct service *s;
    int64_t version;
    wall_ms created_at;

    assert_int_equal(services(w).n, 0);
    s = put_service(w, &full, true);
    assert_same_settings(s, &full);
    assert_same_settings(service(w, "orders"), &full);
    assert_int_equal(s->shards_seen, 4);
    assert_int_equal(s->lanes, 0);
    assert_false(s->paused);
    assert_true(s->created_at != WALL_NONE && s->updated_at >= s->created_at);
    version = s->version;
    created_at = s->created_at;
    s = put_service(w, &bare, false);
    assert_same_settings(s, &bare);
    assert_same_settings(service(w, "orders"), &bare);
    assert_null(s->base_url.p);
    assert_null(s->secret.p);
    assert_null(s->policy.p);
    assert_int_equal(s->shards_seen, 4);
    assert_true(s->version > version);
    assert_true(s->created_at == created_at);
    assert_int_equal(services(w).n, 1);
    (void)put_service(w, &pulled, true);
    assert_same_settings(service(w, "pulled"), &pulled);
}

static void test_put_keeps_what_tasks_and_people_set(struct world *w)
{
    const struct service in = {.name = STR("svc"), .shards = 1};
    const struct service *s;

    (void)put_key(w, "k");
    assert_int_equal(pause_service(w, "svc", true, &s), 0);
    s = put_service(w, &in, false);
    assert_true(s->paused);
    assert_int_equal(s->lanes, 1u << 4);
    assert_true(service(w, "svc")->paused);
    assert_int_equal(service(w, "svc")->lanes, 1u << 4);
}

static void test_a_submission_makes_its_service_known(struct world *w)
{
    struct task t = draft(w, "a");
    const struct service *s;
    int64_t version;

    t.service_name = STR("new");
    (void)put(w, &t);
    s = service(w, "new");
    assert_non_null(s);
    assert_int_equal(s->lanes, 1u << 4);
    assert_int_equal(s->shards, 1);
    assert_int_equal(s->shards_seen, 1);
    assert_int_equal(s->concurrency, 0);
    assert_int_equal(s->timeout_ms, 0);
    assert_int_equal(s->delivery, DELIVERY_PUSH);
    assert_null(s->base_url.p);
    version = s->version;
    t = draft(w, "b");
    t.service_name = STR("new");
    (void)put(w, &t);
    assert_true(service(w, "new")->version == version);
    t = draft(w, "c");
    t.service_name = STR("new");
    t.priority = 9;
    t.lane = 0;
    (void)put(w, &t);
    assert_int_equal(service(w, "new")->lanes, 1u << 4 | 1u);
    assert_true(service(w, "new")->version > version);
    assert_int_equal(services(w).n, 1);
}

/* What was submitted for more shards than the service has now stays scanned. */
static void test_shards_ever_used_stay_known(struct world *w)
{
    struct task t = draft(w, "a");

    t.shard = 6;
    (void)put(w, &t);
    assert_int_equal(service(w, "svc")->shards_seen, 7);
    t = draft(w, "b");
    t.shard = 2;
    (void)put(w, &t);
    assert_int_equal(service(w, "svc")->shards_seen, 7);
}

static void test_services_of_one_batch(struct world *w)
{
    enum { N = 60 };
    struct task tasks[N];
    struct submit_item items[N];

    for (int i = 0; i < N; i++) {
        tasks[i] = draft_key(w, world_text(w, "k%d", i));
        tasks[i].service_name = world_text(w, "s%d", i % 6);
        tasks[i].priority = i % 10;
        tasks[i].lane = task_lane(tasks[i].priority, false);
        items[i] = (struct submit_item){.task = &tasks[i]};
    }
    submit(w, items, N);
    assert_int_equal(services(w).n, 6);
    for (int i = 0; i < 6; i++) {
        uint32_t lanes = 0;

        for (int k = i; k < N; k += 6)
            lanes |= 1u << tasks[k].lane;
        assert_int_equal(service(w, world_text(w, "s%d", i).p)->lanes, lanes);
    }
}

static void test_pause_and_resume(struct world *w)
{
    const struct service in = {.name = STR("svc"),
                               .shards = 1,
                               .concurrency = 3,
                               .delivery = DELIVERY_BATCH,
                               .batch_size = 2};
    const struct service *s = put_service(w, &in, true);
    int64_t version = s->version;

    assert_int_equal(pause_service(w, "svc", true, &s), 0);
    assert_true(s->paused);
    assert_true(s->version > version);
    assert_same_settings(s, &in);
    assert_true(service(w, "svc")->paused);
    assert_int_equal(pause_service(w, "svc", true, &s), 0);
    assert_true(s->paused);
    assert_int_equal(pause_service(w, "svc", false, &s), 0);
    assert_false(s->paused);
    assert_false(service(w, "svc")->paused);
    assert_int_equal(pause_service(w, "nobody", true, &s), ERR_NOT_FOUND);
    assert_int_equal(pause_service(w, "SVC", true, &s), ERR_NOT_FOUND);
}

static void test_delete(struct world *w)
{
    const struct service in = {.name = STR("idle"), .shards = 1};

    (void)put_service(w, &in, true);
    assert_int_equal(delete_service(w, "nobody"), ERR_NOT_FOUND);
    assert_int_equal(delete_service(w, "idle"), 0);
    assert_int_equal(delete_service(w, "idle"), ERR_NOT_FOUND);
    assert_int_equal(services(w).n, 0);
}

static void test_no_delete_while_tasks_live(struct world *w)
{
    static const enum task_status statuses[] = {TASK_PENDING, TASK_SENDING, TASK_FAILED};

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        const struct task *t = bring(w, task_status_name(statuses[i]), statuses[i]);

        assert_int_equal(delete_service(w, "svc"), ERR_CONFLICT);
        assert_non_null(service(w, "svc"));
        if (t->status == TASK_SENDING)
            finish_done(w, t->id, 1, FINISH_SUCCESS);
        else
            assert_int_equal(cancel(w, task_status_name(statuses[i]), NULL), CANCEL_DONE);
    }
    assert_int_equal(delete_service(w, "svc"), 0);
    (void)put_key(w, "later");
    assert_non_null(service(w, "svc"));
}

/* ---- Nodes --------------------------------------------------------------------------------- */

static struct call_node_start start_node(struct world *w, const char *name)
{
    struct call_node_start c = {.name = str_from(name),
                                .address = STR("127.0.0.1:7070"),
                                .version = STR("0.1.0"),
                                .hash_version = 7};

    assert_int_equal(call(w, &c.call, CALL_NODE_START), 0);
    assert_true(c.epoch > 0);
    return c;
}

/* Keeps the members that live in `c`: the caller frees them. */
static int beat_into(struct world *w, struct call_node_beat *c, const char *name, int64_t epoch,
                     enum member_state state, int64_t ttl_ms)
{
    *c = (struct call_node_beat){
        .name = str_from(name), .epoch = epoch, .state = state, .ttl_ms = ttl_ms};
    return call(w, &c->call, CALL_NODE_BEAT);
}

static int beat(struct world *w, const char *name, int64_t epoch, enum member_state state)
{
    struct call_node_beat c;
    int rc = beat_into(w, &c, name, epoch, state, 60000);

    free(c.members);
    return rc;
}

static const struct member *member_of(const struct call_node_beat *c, const char *name)
{
    for (size_t i = 0; i < c->n; i++) {
        if (!strcmp(c->members[i].name, name))
            return &c->members[i];
    }
    return NULL;
}

enum { SHORT_TTL_MS = 200 };

static void test_beats_tell_of_members(struct world *w)
{
    struct call_node_start a = start_node(w, "node-a");
    struct call_node_start b = start_node(w, "node-b");
    struct call_node_beat c;

    assert_int_equal(beat_into(w, &c, "node-a", a.epoch, MEMBER_ACTIVE, 60000), 0);
    assert_int_equal(c.n, 2);
    assert_int_equal(member_of(&c, "node-a")->state, MEMBER_ACTIVE);
    assert_int_equal(member_of(&c, "node-b")->state, MEMBER_JOINING);
    assert_int_equal(member_of(&c, "node-b")->epoch, b.epoch);
    assert_int_equal(member_of(&c, "node-b")->hash_version, 7);
    assert_string_equal(member_of(&c, "node-b")->address, "127.0.0.1:7070");
    assert_string_equal(member_of(&c, "node-b")->version, "0.1.0");
    free(c.members);

    /* Long enough for the statement that writes node-b's and the one that reads it. */
    world_wait_past(w, world_now(w) + SHORT_TTL_MS);
    assert_int_equal(beat_into(w, &c, "node-b", b.epoch, MEMBER_DRAINING, SHORT_TTL_MS), 0);
    assert_null(member_of(&c, "node-a")); /* its heartbeat is older than the TTL */
    assert_int_equal(member_of(&c, "node-b")->state, MEMBER_DRAINING);
    free(c.members);
    assert_int_equal(beat(w, "node-a", a.epoch, MEMBER_LEFT), 0);
    assert_int_equal(beat_into(w, &c, "node-b", b.epoch, MEMBER_ACTIVE, 60000), 0);
    assert_int_equal(member_of(&c, "node-a")->state, MEMBER_LEFT);
    free(c.members);
}

static void test_epochs_ascend(struct world *w)
{
    struct call_node_start first = start_node(w, "node-a");
    struct call_node_start last = first;
    wall_ms now = world_now(w);

    assert_true(first.last_seen == WALL_NONE);
    for (int i = 0; i < 5; i++) {
        struct call_node_start next = start_node(w, "node-a");

        assert_true(next.epoch > last.epoch);
        assert_true(next.last_seen != WALL_NONE && next.last_seen <= world_now(w));
        last = next;
    }
    assert_true(last.last_seen >= now);
    assert_true(start_node(w, "node-b").last_seen == WALL_NONE);
    assert_true(start_node(w, "NODE-A").last_seen == WALL_NONE);
}

static void test_beats(struct world *w)
{
    struct call_node_start first = start_node(w, "node-a");
    wall_ms now = world_now(w);
    struct call_node_start second;

    world_wait_past(w, now);
    assert_int_equal(beat(w, "node-a", first.epoch, MEMBER_ACTIVE), 0);
    if (has_sql(w))
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_node WHERE name = 'node-a' AND "
                                      "state = 'active'"),
                         1);
    second = start_node(w, "node-a");
    assert_true(second.last_seen > now);
    assert_int_equal(beat(w, "node-a", first.epoch, MEMBER_DRAINING), ERR_CONFLICT);
    assert_int_equal(beat(w, "node-a", second.epoch + 1, MEMBER_ACTIVE), ERR_CONFLICT);
    assert_int_equal(beat(w, "node-a", second.epoch, MEMBER_DRAINING), 0);
    assert_int_equal(beat(w, "node-a", second.epoch, MEMBER_LEFT), 0);
    if (has_sql(w))
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_node WHERE name = 'node-a' AND "
                                      "state = 'left'"),
                         1);
    assert_int_equal(beat(w, "nobody", 1, MEMBER_ACTIVE), ERR_CONFLICT);
}

static void test_a_start_forgets_a_silent_node(struct world *w)
{
    struct call_node_start c = {.name = STR("node-c"),
                                .address = STR("127.0.0.1:7070"),
                                .version = STR("0.1.0"),
                                .forget_ms = SHORT_TTL_MS};
    struct call_node_start a = start_node(w, "node-a");
    struct call_node_beat seen;

    (void)start_node(w, "node-b");
    world_wait_past(w, world_now(w) + 1);
    assert_int_equal(beat(w, "node-a", a.epoch, MEMBER_ACTIVE), 0); /* node-b is silent longest */
    c.forget_ms = 600000;
    assert_int_equal(call(w, &c.call, CALL_NODE_START), 0);
    world_wait_past(w, world_now(w) + SHORT_TTL_MS);
    c.forget_ms = SHORT_TTL_MS;
    assert_int_equal(call(w, &c.call, CALL_NODE_START), 0);
    assert_int_equal(beat_into(w, &seen, "node-c", c.epoch, MEMBER_ACTIVE, 600000), 0);
    assert_int_equal(seen.n, 2);
    assert_non_null(member_of(&seen, "node-a"));
    assert_null(member_of(&seen, "node-b"));
    free(seen.members);
    assert_int_equal(beat(w, "node-b", 1, MEMBER_ACTIVE), ERR_CONFLICT);
}

static const struct test_case cases[] = {
    {"service: put creates and replaces", test_put_creates_and_replaces, 0},
    {"service: put keeps pause, lanes and shards seen", test_put_keeps_what_tasks_and_people_set,
     0},
    {"service: a submission makes it known", test_a_submission_makes_its_service_known, 0},
    {"service: shards ever used stay known", test_shards_ever_used_stay_known, 0},
    {"service: several in one batch", test_services_of_one_batch, 0},
    {"service: pause and resume", test_pause_and_resume, 0},
    {"service: delete", test_delete, 0},
    {"service: no delete while tasks live", test_no_delete_while_tasks_live, 0},
    {"node: epochs ascend", test_epochs_ascend, 0},
    {"node: beats", test_beats, 0},
    {"node: beats tell of the members", test_beats_tell_of_members, 0},
    {"node: a start forgets a silent one", test_a_start_forgets_a_silent_node, 0},
};

const struct case_list service_cases = CASE_LIST(cases);
