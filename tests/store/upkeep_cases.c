/* SPDX-License-Identifier: Apache-2.0 */
/* What goes on beside the traffic for days: an old snapshot, heartbeats, retention. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/store/actors.h"

#include "node/core/nodecall.h"

/* ---- An old snapshot ----------------------------------------------------------------------- */

enum { ROUNDS = 60, PER_ROUND = 100, SAMPLES = 6, LOOKS = 8, RATIO = 4 };

/* In microseconds; the best of several, since this machine has other things to do, too. */
struct costs {
    int64_t scan;
    int64_t claim;
};

static struct scan_key key_from(wall_ms from, wall_ms to)
{
    return (struct scan_key){.service_name = STR("svc"),
                             .lane = task_lane(TASK_PRIORITY_DEFAULT, false),
                             .from_time = from,
                             .to_time = to,
                             .limit = 2 * PER_ROUND};
}

static int64_t scan_cost(struct world *w, struct scan_key key)
{
    int64_t best = INT64_MAX;

    for (int i = 0; i < LOOKS; i++) {
        struct scan_op op = {.keys = &key, .n_keys = 1, .claimed_by = STR(NODE)};
        struct err err = {0};
        int64_t began = clock_mono_us();
        int64_t took;

        assert_int_equal(w->d->scan(w->conn, &op, &err), 0);
        took = clock_mono_us() - began;
        assert_int_equal(op.n_rows, PER_ROUND);
        free(op.rows);
        best = took < best ? took : best;
    }
    return best;
}

/* One round of traffic: tasks come, are read from the owner's mark on, are claimed and end. */
static struct costs flow(struct world *w, int round, wall_ms base)
{
    struct task like = draft(w, "like");
    struct claim_item claims[PER_ROUND];
    struct finish_item ends[PER_ROUND];
    int64_t ids[PER_ROUND];
    struct costs c;
    int64_t began;

    like.execute_time = like.next_attempt_time = base + round;
    put_many(w, world_text(w, "r%d-", round).p, PER_ROUND, &like, ids);
    c.scan = scan_cost(w, key_from(base + round - 1, base + round));
    for (size_t i = 0; i < PER_ROUND; i++) {
        claims[i] = claim_of(ids[i], 0);
        ends[i] = finish_of(w, ids[i], 1, FINISH_SUCCESS);
    }
    began = clock_mono_us();
    claim(w, claims, PER_ROUND, NODE);
    c.claim = clock_mono_us() - began;
    finish(w, ends, PER_ROUND);
    for (size_t i = 0; i < PER_ROUND; i++)
        assert_int_equal(ends[i].result, FINISH_DONE);
    return c;
}

static void keep_best(struct costs *best, struct costs c)
{
    best->scan = c.scan < best->scan ? c.scan : best->scan;
    best->claim = c.claim < best->claim ? c.claim : best->claim;
}

/* Everything that has ended since still stands in the tables and indexes, as dead rows. */
static void test_an_old_snapshot(struct world *w)
{
    wall_ms base = world_now(w) - 10000;
    struct costs early = {INT64_MAX, INT64_MAX};
    struct costs late = {INT64_MAX, INT64_MAX};
    struct task like = draft(w, "like");
    int64_t whole;
    void *held;

    (void)put_key(w, "first"); /* so that there is something to see */
    (void)cancel(w, "first", NULL);
    held = w->backend->hold(w->url, w->backend->old_snapshot);
    for (int round = 1; round <= ROUNDS; round++) {
        struct costs c = flow(w, round, base);

        if (round > 1 && round <= 1 + SAMPLES) /* the first one prepares statements */
            keep_best(&early, c);
        else if (round > ROUNDS - SAMPLES)
            keep_best(&late, c);
    }
    like.execute_time = like.next_attempt_time = base + ROUNDS + 1;
    put_many(w, "last", PER_ROUND, &like, NULL);
    whole = scan_cost(w, key_from(WALL_NONE, base + ROUNDS + 1));
    w->backend->release(held, false);
    print_message("# %s: microseconds early and late: a scan %" PRId64 " and %" PRId64
                  " (from the start of the index it would be %" PRId64 "), %d claims %" PRId64
                  " and %" PRId64 "\n",
                  w->backend->name, early.scan, late.scan, whole, (int)PER_ROUND, early.claim,
                  late.claim);
    assert_true(late.scan < RATIO * early.scan);
    assert_true(late.claim < RATIO * early.claim);
}

/* ---- Heartbeats against retention ---------------------------------------------------------- */

enum { NODES = 3, BEATS = 40, BUSY_TASKS = 10, ENDED = 400, FAILED = 60, STEP = 15 };

struct upkeep {
    int64_t busy[BUSY_TASKS];
    wall_ms before;
    atomic_int beating; /* nodes */
    int64_t n_deleted;
    int64_t n_moved;
};

static void extend_all(struct actor *a, const struct upkeep *u)
{
    for (size_t i = 0; i < BUSY_TASKS; i++) {
        struct call_extend c = {.call = {.op = {.kind = STORE_CALL}, .what = CALL_EXTEND},
                                .id = u->busy[i],
                                .attempt = 1,
                                .extend_ms = 2 * MARGIN_MS};

        (void)TRY(a, a->w->d->call(a->conn, &c.call, &a->err));
        task_free(c.task);
    }
}

static void *run_node(void *arg)
{
    static const char *const names[NODES] = {"node-a", "node-b", "node-c"};
    struct actor *a = arg;
    struct upkeep *u = a->ctx;
    struct call_node_start s = {.call = {.op = {.kind = STORE_CALL}, .what = CALL_NODE_START},
                                .name = str_from(names[a->index]),
                                .address = STR("127.0.0.1:1"),
                                .version = STR("1")};

    (void)TRY(a, a->w->d->call(a->conn, &s.call, &a->err));
    for (int i = 0; i < BEATS; i++) {
        struct call_node_beat b = {.call = {.op = {.kind = STORE_CALL}, .what = CALL_NODE_BEAT},
                                   .name = s.name,
                                   .epoch = s.epoch,
                                   .state = MEMBER_ACTIVE,
                                   .ttl_ms = MARGIN_MS};

        (void)TRY(a, a->w->d->call(a->conn, &b.call, &a->err));
        free(b.members);
        if (i % 6 == 0)
            extend_all(a, u);
    }
    (void)atomic_fetch_sub(&u->beating, 1);
    return NULL;
}

/* One walk after the other, in small steps, as long as there are beats to be in the way of. */
static void *run_purger(void *arg)
{
    struct actor *a = arg;
    struct upkeep *u = a->ctx;
    int64_t after = 0;

    do {
        struct call_purge c = {.call = {.op = {.kind = STORE_CALL}, .what = CALL_PURGE},
                               .history_before = u->before,
                               .failed_before = u->before,
                               .after_id = after,
                               .limit = STEP};

        if (!TRY(a, a->w->d->call(a->conn, &c.call, &a->err)))
            return NULL;
        u->n_deleted += c.n_deleted;
        u->n_moved += c.n_moved;
        after = c.next_after_id;
        if (!c.n_deleted && !c.n_moved)
            nap();
    } while (after || atomic_load(&u->beating) ||
             u->n_deleted < ENDED + FAILED); /* those that failed go twice */
    return NULL;
}

static void make_ended(struct world *w, const char *prefix, size_t n, enum finish_kind kind)
{
    struct task like = draft(w, "like");
    int64_t *ids = world_keep(w, calloc(n, sizeof(*ids)));
    struct claim_item *claims = world_keep(w, calloc(n, sizeof(*claims)));
    struct finish_item *ends = world_keep(w, calloc(n, sizeof(*ends)));

    assert_true(ids && claims && ends);
    put_many(w, prefix, n, &like, ids);
    for (size_t i = 0; i < n; i++) {
        claims[i] = claim_of(ids[i], 0);
        ends[i] = finish_of(w, ids[i], 1, kind);
    }
    claim(w, claims, n, NODE);
    finish(w, ends, n);
}

static void test_heartbeats_against_retention(struct world *w)
{
    struct upkeep *u = world_keep(w, calloc(1, sizeof(*u)));
    struct task like = draft(w, "like");
    struct claim_item claims[BUSY_TASKS];
    struct actor actors[NODES + 1];
    size_t n_busy = 0;

    assert_non_null(u);
    make_ended(w, "e", ENDED, FINISH_SUCCESS);
    make_ended(w, "f", FAILED, FINISH_FAIL);
    put_many(w, "b", BUSY_TASKS, &like, u->busy);
    for (size_t i = 0; i < BUSY_TASKS; i++)
        claims[i] = claim_of(u->busy[i], 0);
    claim(w, claims, BUSY_TASKS, NODE);
    u->before = world_now(w) + MARGIN_MS;
    atomic_init(&u->beating, NODES);
    for (size_t i = 0; i <= NODES; i++)
        actor_start(w, &actors[i], i, i < NODES ? run_node : run_purger, u);
    actors_join(actors, NODES + 1);
    assert_int_equal(u->n_deleted, ENDED + FAILED);
    assert_int_equal(u->n_moved, FAILED);
    for (size_t i = 0; i < BUSY_TASKS; i++)
        assert_true(look_id(w, u->busy[i])->deadline_at > claims[i].task->deadline_at);
    if (has_sql(w)) {
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), BUSY_TASKS);
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_node"), NODES);
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_attempt"), 0);
    }
    for (size_t i = 0; i <= NODES; i++)
        n_busy += actors[i].n_busy;
    print_message("# %s: %zu calls were run again\n", w->backend->name, n_busy);
}

static const struct test_case cases[] = {
    {"database-54: an old snapshot", test_an_old_snapshot, NEEDS_SQL},
    {"database-55: heartbeats against retention", test_heartbeats_against_retention, NEEDS_THREADS},
};

const struct case_list upkeep_cases = CASE_LIST(cases);
