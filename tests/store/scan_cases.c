/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the due index by keyset. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

#define LANE 4 /* of the default priority */

static struct scan_key key_of(const char *service, int32_t shard, int32_t lane)
{
    return (struct scan_key){.service_name = str_from(service),
                             .shard = shard,
                             .lane = lane,
                             .from_time = WALL_NONE,
                             .to_time = WALL_MAX,
                             .limit = 1000};
}

static struct scan_op scan_as(struct world *w, struct scan_key *keys, size_t n, const char *me)
{
    struct scan_op op = {.keys = keys, .n_keys = n, .claimed_by = str_from(me)};
    struct err err = {0};
    int rc = w->d->scan(w->conn, &op, &err);

    if (rc)
        fail_msg("scan: %s: %s", err_name(rc), err.text);
    (void)world_keep(w, op.rows);
    return op;
}

static struct scan_op scan(struct world *w, struct scan_key *keys, size_t n)
{
    return scan_as(w, keys, n, NODE);
}

static void test_an_empty_database(struct world *w)
{
    struct scan_key keys[2] = {key_of("svc", 0, LANE), key_of("other", 0, 0)};

    assert_int_equal(scan(w, keys, 2).n_rows, 0);
}

static void test_a_thousand_rows_of_one_millisecond(struct world *w)
{
    enum { N = 1000 };
    int64_t ids[N];
    struct task like = draft(w, "like");
    struct scan_key key = key_of("svc", 0, LANE);
    size_t seen = 0;

    put_many(w, "s", N, &like, ids);
    key.limit = 7;
    for (;;) {
        struct scan_op op = scan(w, &key, 1);

        assert_true(op.n_rows <= 7);
        for (size_t i = 0; i < op.n_rows; i++, seen++) {
            assert_true(seen < N);
            assert_true(op.rows[i].id == ids[seen]);
            assert_true(op.rows[i].next_attempt_time == like.next_attempt_time);
        }
        if (op.n_rows < 7)
            break;
        key.from_time = op.rows[6].next_attempt_time;
        key.from_id = op.rows[6].id;
    }
    assert_int_equal(seen, N);
}

static void test_order_and_bounds(struct world *w)
{
    static const int offsets[] = {5, -3, 0, 9, -3, 2, 0};
    const size_t n = sizeof(offsets) / sizeof(offsets[0]);
    wall_ms base = world_now(w);
    struct scan_key key = key_of("svc", 0, LANE);
    struct scan_op op;

    for (size_t i = 0; i < n; i++) {
        struct task t = draft_key(w, world_text(w, "k%zu", i));

        t.execute_time = t.next_attempt_time = base + offsets[i];
        (void)put(w, &t);
    }
    op = scan(w, &key, 1);
    assert_int_equal(op.n_rows, n);
    for (size_t i = 1; i < n; i++) {
        const struct scan_row *a = &op.rows[i - 1];
        const struct scan_row *b = &op.rows[i];

        assert_true(a->next_attempt_time < b->next_attempt_time ||
                    (a->next_attempt_time == b->next_attempt_time && a->id < b->id));
    }
    key.to_time = base + 2; /* inclusive */
    assert_int_equal(scan(w, &key, 1).n_rows, 5);
    key.to_time = base + 1;
    assert_int_equal(scan(w, &key, 1).n_rows, 4);
    key.from_time = base - 3;
    key.from_id = op.rows[0].id; /* exclusive */
    assert_int_equal(scan(w, &key, 1).n_rows, 3);
    key.from_id = INT64_MAX;
    assert_int_equal(scan(w, &key, 1).n_rows, 2);
    key.from_id = 0;
    assert_int_equal(scan(w, &key, 1).n_rows, 4);
    key.to_time = base - 4;
    assert_int_equal(scan(w, &key, 1).n_rows, 0);
    key.from_time = base + 9;
    key.from_id = op.rows[n - 1].id;
    key.to_time = WALL_MAX;
    assert_int_equal(scan(w, &key, 1).n_rows, 0);
}

static int64_t put_at(struct world *w, const char *service, int32_t shard, int32_t lane)
{
    struct task t = draft_key(w, world_text(w, "%s/%d/%d", service, shard, lane));

    t.service_name = str_from(service);
    t.shard = shard;
    t.lane = lane;
    t.priority = TASK_PRIORITY_MAX - lane % TASK_RETRY_LANES;
    return put(w, &t);
}

/* Names that a careless comparison takes for one another. */
static void test_nothing_leaks_between_keys(struct world *w)
{
    static const char *const services[] = {"svc", "SVC", "svc2", "svc-", "sv", "s_c"};
    const size_t n = sizeof(services) / sizeof(services[0]);

    for (size_t i = 0; i < n; i++) {
        for (int32_t shard = 0; shard < 3; shard++) {
            for (int32_t lane = 0; lane < 3; lane++)
                (void)put_at(w, services[i], shard, lane * 9);
        }
    }
    for (size_t i = 0; i < n; i++) {
        struct scan_key key = key_of(services[i], 1, 9);
        struct scan_op op = scan(w, &key, 1);

        assert_int_equal(op.n_rows, 1);
        assert_true(str_eqz(look_id(w, op.rows[0].id)->service_name, services[i]));
        assert_int_equal(look_id(w, op.rows[0].id)->shard, 1);
        assert_int_equal(look_id(w, op.rows[0].id)->lane, 9);
    }
}

static void test_many_keys_in_one_scan(struct world *w)
{
    enum { N = 240 };
    struct scan_key *keys = world_keep(w, calloc(N, sizeof(*keys)));
    int64_t ids[N] = {0};
    struct scan_op op;
    size_t at = 0;

    assert_non_null(keys);
    for (uint32_t i = 0; i < N; i++) {
        struct str service = world_text(w, "service-%u", i / 40);

        keys[i] = key_of(service.p, (int32_t)(i / TASK_LANES % 2), (int32_t)(i % TASK_LANES));
        if (i % 3)
            ids[i] = put_at(w, service.p, keys[i].shard, keys[i].lane);
    }
    op = scan(w, keys, N);
    for (size_t i = 0; i < N; i++) {
        if (!ids[i])
            continue;
        while (at < op.n_rows && op.rows[at].key != i)
            at++;
        assert_true(at < op.n_rows);
        assert_true(op.rows[at].id == ids[i]);
        at = 0;
    }
    assert_int_equal(op.n_rows, 160);
}

static void test_each_key_has_its_own_limit_and_bounds(struct world *w)
{
    struct task like = draft(w, "like");
    struct scan_key keys[4] = {key_of("svc", 0, LANE), key_of("b", 0, LANE), key_of("svc", 0, LANE),
                               key_of("nobody", 0, LANE)};
    int64_t ids[20];
    size_t n[4] = {0};
    struct scan_op op;

    put_many(w, "a", 20, &like, ids);
    like.service_name = STR("b");
    put_many(w, "b", 20, &like, NULL);
    keys[0].limit = 3;
    keys[1].limit = 5;
    keys[2].from_time = like.next_attempt_time;
    keys[2].from_id = ids[17];
    op = scan(w, keys, 4);
    for (size_t i = 0; i < op.n_rows; i++) {
        n[op.rows[i].key]++;
        if (op.rows[i].key == 0)
            assert_true(op.rows[i].id <= ids[2]);
        if (op.rows[i].key == 2)
            assert_true(op.rows[i].id > ids[17]);
        /* Rows of one key stand together. */
        if (i && op.rows[i].key != op.rows[i - 1].key)
            assert_int_equal(n[op.rows[i].key], 1);
    }
    assert_int_equal(n[0], 3);
    assert_int_equal(n[1], 5);
    assert_int_equal(n[2], 2);
    assert_int_equal(n[3], 0);
}

static void check_row(struct world *w, const struct scan_op *op, const struct task *t)
{
    (void)w;
    for (size_t i = 0; i < op->n_rows; i++) {
        const struct scan_row *r = &op->rows[i];

        if (r->id != t->id)
            continue;
        assert_int_equal(r->status, t->status);
        assert_int_equal(r->attempt, t->attempt);
        assert_true(r->next_attempt_time == t->next_attempt_time);
        assert_false(r->own_orphan);
        if (!(task_status_bit(t->status) & TASK_IN_FLIGHT))
            return;
        assert_true(r->deadline_at == t->deadline_at);
        assert_int_equal(r->retry_count, t->retry_count);
        assert_int_equal(r->max_retry, t->max_retry);
        assert_int_equal(r->priority, t->priority);
        assert_true(str_eq(str_from(r->policy), t->policy.p ? t->policy : STR("")));
        return;
    }
    fail_msg("the task is not in the scan");
}

static void test_statuses_in_the_index(struct world *w)
{
    struct scan_key keys[2] = {key_of("svc", 0, LANE), key_of("svc", 0, LANE + TASK_RETRY_LANES)};
    const struct task *pending = bring(w, "pending", TASK_PENDING);
    const struct task *sending = bring(w, "sending", TASK_SENDING);
    const struct task *sent = bring(w, "sent", TASK_SENT);
    const struct task *retrying = bring(w, "retrying", TASK_RETRYING);
    struct task own = draft(w, "own policy");
    struct scan_op op;

    (void)bring(w, "failed", TASK_FAILED);
    (void)bring(w, "done", TASK_SUCCESS);
    (void)bring(w, "cancelled", TASK_CANCELLED);
    own.policy = world_fill(w, "p", TASK_POLICY_MAX);
    own.max_retry = 17;
    (void)put(w, &own);
    (void)claim_won(w, own.id, 0);
    op = scan(w, keys, 2);
    assert_int_equal(op.n_rows, 5);
    check_row(w, &op, pending);
    check_row(w, &op, sending);
    check_row(w, &op, sent);
    check_row(w, &op, retrying);
    check_row(w, &op, look(w, "own policy"));
}

/* People edit the table by hand, and leave next_attempt_time as it was. */
static void test_statuses_that_people_wrote(struct world *w)
{
    static const char *const statuses[] = {"ON_HOLD", "", "pending", "FAILED", "SUCCESS"};
    struct scan_key key = key_of("svc", 0, LANE);
    struct task like = draft(w, "like");
    int64_t ids[8];
    struct scan_op op;

    put_many(w, "k", 8, &like, ids);
    for (size_t i = 0; i < 5; i++)
        (void)sql_value(w, "UPDATE job_delay_task SET status = '%s' WHERE id = %" PRId64,
                        statuses[i], ids[i]);
    key.limit = 3;
    op = scan(w, &key, 1);
    assert_int_equal(op.n_rows, 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(op.rows[i].id == ids[5 + i]);
}

/* SENDING rows claimed under this node's name by an earlier epoch, and no others: names that are
 * patterns, prefixes or other cases of this one belong to other nodes. */
static void test_own_orphans(struct world *w)
{
    static const struct {
        const char *claimed_by;
        const char *me;
        bool own;
    } rows[] = {
        {"node/1", "node/2", true},   {"node/2", "node/2", false},   {"node/9", "node/10", true},
        {"node2/1", "node/2", false}, {"nod/1", "node/2", false},    {"Node/1", "node/2", false},
        {"node/1", "no_e/2", false},  {"no_e/1", "no_e/2", true},    {"node/1", "%/2", false},
        {"node/1", "nod./2", false},  {"node/b/1", "node/2", false}, {"x.y/3", "x.y/4", true},
        {"x-y/3", "x.y/4", false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct str service = world_text(w, "s%zu", i);
        struct scan_key key = key_of(service.p, 0, LANE);
        struct task t = draft_key(w, service);
        struct scan_op op;

        t.service_name = service;
        (void)put(w, &t);
        assert_int_equal(claim_as(w, t.id, 0, rows[i].claimed_by).result, CLAIM_WON);
        op = scan_as(w, &key, 1, rows[i].me);
        assert_int_equal(op.n_rows, 1);
        if (op.rows[0].own_orphan != rows[i].own)
            fail_msg("%s seen by %s", rows[i].claimed_by, rows[i].me);
    }
}

/* A SENT task is looked after by its deadline, whichever process delivered it. */
static void test_sent_is_no_orphan(struct world *w)
{
    struct scan_key key = key_of("svc", 0, LANE);
    struct scan_op op;

    (void)bring(w, "k", TASK_SENT);
    op = scan_as(w, &key, 1, "node-a/2");
    assert_int_equal(op.n_rows, 1);
    assert_false(op.rows[0].own_orphan);
}

static const struct test_case cases[] = {
    {"scan: an empty database", test_an_empty_database, 0},
    {"scan: 1,000 rows of one millisecond by 7", test_a_thousand_rows_of_one_millisecond, 0},
    {"scan: order and bounds", test_order_and_bounds, 0},
    {"scan: nothing leaks between keys", test_nothing_leaks_between_keys, 0},
    {"scan: many keys at once", test_many_keys_in_one_scan, 0},
    {"scan: limits and bounds of each key", test_each_key_has_its_own_limit_and_bounds, 0},
    {"scan: statuses in the index", test_statuses_in_the_index, 0},
    {"scan: statuses that people wrote", test_statuses_that_people_wrote, NEEDS_SQL},
    {"scan: own orphans", test_own_orphans, 0},
    {"scan: SENT is no orphan", test_sent_is_no_orphan, 0},
};

const struct case_list scan_cases = CASE_LIST(cases);
