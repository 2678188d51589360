/* SPDX-License-Identifier: Apache-2.0 */
/* Several connections in threads of their own. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/actors.h"

/* ---- One key, five clients ----------------------------------------------------------------- */

enum { CLIENTS = 5, ROUNDS = 40 };

struct same_key {
    pthread_barrier_t barrier;
    struct task tasks[CLIENTS][ROUNDS];
    struct submit_item items[CLIENTS][ROUNDS];
};

static void *run_client(void *arg)
{
    struct actor *a = arg;
    struct same_key *s = a->ctx;

    for (size_t round = 0; round < ROUNDS; round++) {
        struct submit_item *item = &s->items[a->index][round];

        (void)pthread_barrier_wait(&s->barrier);
        (void)TRY(a, a->w->d->submit(a->conn, &item, 1, &a->err));
    }
    return NULL;
}

static void check_round(struct world *w, const struct same_key *s, size_t round)
{
    const struct task *stored = look_key(w, s->tasks[0][round].biz_uuid);
    size_t created = 0;

    assert_non_null(stored);
    for (size_t i = 0; i < CLIENTS; i++) {
        const struct submit_item *item = &s->items[i][round];

        if (item->result == SUBMIT_CREATED) {
            created++;
            assert_true(item->task->id == stored->id);
            assert_string_equal(item->task->trace_id, stored->trace_id);
        } else {
            assert_int_equal(item->result, SUBMIT_DUPLICATE);
            assert_string_equal(item->existing->trace_id, stored->trace_id);
        }
    }
    assert_int_equal(created, 1);
}

static void test_five_clients_submit_one_key(struct world *w)
{
    struct same_key *s = world_keep(w, calloc(1, sizeof(*s)));
    struct actor actors[CLIENTS];

    assert_non_null(s);
    assert_int_equal(pthread_barrier_init(&s->barrier, NULL, CLIENTS), 0);
    for (size_t i = 0; i < CLIENTS; i++) {
        for (size_t round = 0; round < ROUNDS; round++) {
            s->tasks[i][round] = draft_key(w, world_text(w, "k%zu", round));
            s->items[i][round].task = &s->tasks[i][round];
        }
    }
    for (size_t i = 0; i < CLIENTS; i++)
        actor_start(w, &actors[i], i, run_client, s);
    actors_join(actors, CLIENTS);
    (void)pthread_barrier_destroy(&s->barrier);
    for (size_t i = 0; i < CLIENTS; i++) {
        for (size_t round = 0; round < ROUNDS; round++)
            (void)world_keep_task(w, s->items[i][round].existing);
    }
    for (size_t round = 0; round < ROUNDS; round++)
        check_round(w, s, round);
    if (has_sql(w))
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), ROUNDS);
}

/* ---- A first one that is rolled back ------------------------------------------------------- */

struct one_submit {
    struct submit_item item;
    atomic_bool done;
};

static void *run_one_submit(void *arg)
{
    struct actor *a = arg;
    struct one_submit *s = a->ctx;
    struct submit_item *item = &s->item;

    (void)TRY(a, a->w->d->submit(a->conn, &item, 1, &a->err));
    atomic_store(&s->done, true);
    return NULL;
}

/* The key stands in a transaction that is still open when the driver submits it. */
static void submit_behind(struct world *w, const char *key, bool commit, struct one_submit *ret)
{
    const char *now = w->backend->now_sql;
    struct str sql = world_text(
        w,
        "INSERT INTO job_delay_task (id, trace_id, biz_uuid, service_name, handler, execute_time,"
        " next_attempt_time, status, max_retry, created_at, updated_at, lane, priority) VALUES"
        " (%d, '%032d', '%s', 'svc', 'h', %s, %s, 'PENDING', 3, %s, %s, 4, 5)",
        999999999, 7, key, now, now, now, now);
    struct task t = draft(w, key);
    struct actor a;
    void *held;

    (void)put_key(w, world_text(w, "first of %s", key).p); /* the service is known */
    held = w->backend->hold(w->url, sql.p);
    ret->item = (struct submit_item){.task = &t};
    atomic_init(&ret->done, false);
    actor_start(w, &a, 0, run_one_submit, ret);
    for (int i = 0; i < 50 && !atomic_load(&ret->done); i++)
        nap(); /* so that it gets as far as it can */
    assert_false(atomic_load(&ret->done));
    w->backend->release(held, commit);
    actors_join(&a, 1);
    (void)world_keep_task(w, ret->item.existing);
    assert_non_null(look(w, key));
    if (commit)
        assert_int_equal(look(w, key)->id, 999999999);
    else
        assert_int_equal(look(w, key)->id, t.id);
}

static void test_the_first_one_is_rolled_back(struct world *w)
{
    struct one_submit s;

    submit_behind(w, "k", false, &s);
    assert_int_equal(s.item.result, SUBMIT_CREATED);
}

static void test_the_first_one_commits_late(struct world *w)
{
    struct one_submit s;

    submit_behind(w, "k", true, &s);
    assert_int_equal(s.item.result, SUBMIT_DUPLICATE);
    assert_int_equal(s.item.existing->id, 999999999);
}

/* A lock that somebody keeps: no statement waits for longer than it was told. */
static void test_a_wait_for_a_lock_ends(struct world *w)
{
    const struct driver_options opt = {.statement_timeout_ms = 200, .named_statements = true};
    struct driver_conn *conn = world_connect_to(w, w->url, &opt, NULL);
    struct task t = draft(w, "k");
    struct submit_item item = {.task = &t};
    struct submit_item *list[] = {&item};
    void *held = w->backend->hold(w->url, w->backend->lock_tasks);
    struct err err = {0};
    int rc = w->d->submit(conn, list, 1, &err);

    w->backend->release(held, false);
    assert_true(rc == ERR_BUSY || rc == ERR_TIMEOUT);
    assert_true(err.text[0] != '\0');
    assert_int_equal(w->d->submit(conn, list, 1, &err), 0);
    assert_int_equal(item.result, SUBMIT_CREATED);
}

/* ---- Two claimers -------------------------------------------------------------------------- */

enum { CLAIMS = 400, CLAIM_BATCH = 25 };

struct claim_race {
    int64_t ids[CLAIMS];
    struct claim_item items[2][CLAIMS];
};

static void *run_claimer(void *arg)
{
    static const char *const names[] = {"node-a/1", "node-b/1"};
    struct actor *a = arg;
    struct claim_race *r = a->ctx;
    struct claim_item *items = r->items[a->index];
    struct claim_item *list[CLAIM_BATCH];

    for (size_t i = 0; i < CLAIMS; i += CLAIM_BATCH) {
        for (size_t k = 0; k < CLAIM_BATCH; k++) {
            items[i + k] = claim_of(r->ids[i + k], 0);
            list[k] = &items[i + k];
        }
        (void)TRY(a, a->w->d->claim(a->conn, list, CLAIM_BATCH, str_from(names[a->index]),
                                    MARGIN_MS, &a->err));
    }
    return NULL;
}

static void test_two_claimers_win_each_task_once(struct world *w)
{
    struct claim_race *r = world_keep(w, calloc(1, sizeof(*r)));
    struct task like = draft(w, "like");
    struct actor actors[2];

    assert_non_null(r);
    put_many(w, "c", CLAIMS, &like, r->ids);
    for (size_t i = 0; i < 2; i++)
        actor_start(w, &actors[i], i, run_claimer, r);
    actors_join(actors, 2);
    for (size_t i = 0; i < CLAIMS; i++) {
        const struct task *a = world_keep_task(w, r->items[0][i].task);
        const struct task *b = world_keep_task(w, r->items[1][i].task);

        assert_true((a == NULL) != (b == NULL));
        assert_same_task(look_id(w, r->ids[i]), a ? a : b);
        assert_int_equal(r->items[a ? 1 : 0][i].result, CLAIM_LOST);
    }
}

/* ---- Heartbeats against rescues ------------------------------------------------------------ */

enum { GHOSTS = 60 };

struct beat_race {
    int64_t ids[GHOSTS];
    wall_ms told[GHOSTS]; /* the last deadline that a heartbeat was told */
    bool rescued[GHOSTS];
    wall_ms next_attempt_time;
};

static void *run_heart(void *arg)
{
    struct actor *a = arg;
    struct beat_race *r = a->ctx;

    for (size_t round = 0; round < 15; round++) {
        for (size_t i = 0; i < GHOSTS; i++) {
            struct call_extend c = {.id = r->ids[i], .attempt = 1, .extend_ms = 4};
            int rc;

            c.call.op.kind = STORE_CALL;
            c.call.what = CALL_EXTEND;
            rc = ACTOR_RUN(a, a->w->d->call(a->conn, &c.call, &a->err));
            task_free(c.task);
            if (actor_expect(a, rc, ERR_CONFLICT))
                r->told[i] = c.deadline_at;
        }
    }
    return NULL;
}

static void *run_rescuer(void *arg)
{
    struct actor *a = arg;
    struct beat_race *r = a->ctx;
    mono_ms until = clock_mono() + DEADLINE_MS;
    size_t n = 0;

    while (n < GHOSTS && clock_mono() < until) {
        for (size_t i = 0; i < GHOSTS; i++) {
            struct finish_item f = {.id = r->ids[i],
                                    .attempt = 1,
                                    .kind = FINISH_RETRY,
                                    .from = 1u << TASK_SENDING,
                                    .past_deadline = true,
                                    .next_attempt_time = r->next_attempt_time,
                                    .retry_count = 1,
                                    .outcome = "ghost"};
            struct finish_item *list[] = {&f};

            if (!r->rescued[i] && TRY(a, a->w->d->finish(a->conn, list, 1, &a->err)) &&
                f.result == FINISH_DONE) {
                r->rescued[i] = true;
                n++;
            }
        }
    }
    return NULL;
}

static void test_heartbeats_against_rescues(struct world *w)
{
    struct beat_race *r = world_keep(w, calloc(1, sizeof(*r)));
    struct task like = draft(w, "like");
    struct claim_item items[GHOSTS];
    struct claim_item *list[GHOSTS];
    struct actor actors[2];
    struct err err = {0};

    assert_non_null(r);
    put_many(w, "g", GHOSTS, &like, r->ids);
    r->next_attempt_time = like.created_at;
    for (size_t i = 0; i < GHOSTS; i++) {
        items[i] = (struct claim_item){.id = r->ids[i], .timeout_ms = 10};
        list[i] = &items[i];
    }
    assert_int_equal(w->d->claim(w->conn, list, GHOSTS, STR(NODE), 5, &err), 0);
    for (size_t i = 0; i < GHOSTS; i++)
        (void)world_keep_task(w, items[i].task);
    actor_start(w, &actors[0], 0, run_heart, r);
    actor_start(w, &actors[1], 1, run_rescuer, r);
    actors_join(actors, 2);
    for (size_t i = 0; i < GHOSTS; i++) {
        struct call_get c = look_attempts(w, r->ids[i]);

        assert_true(r->rescued[i]);
        assert_int_equal(c.n_attempts, 1);
        assert_true(!r->told[i] || r->told[i] <= c.attempts[0].ended_at);
        assert_int_equal(c.task->status, TASK_RETRYING);
    }
}

static const struct test_case cases[] = {
    {"idempotency-16: five clients submit one key", test_five_clients_submit_one_key,
     NEEDS_THREADS},
    {"idempotency-16: the first one is rolled back", test_the_first_one_is_rolled_back,
     NEEDS_THREADS | NEEDS_SQL},
    {"idempotency-16: the first one commits late", test_the_first_one_commits_late,
     NEEDS_THREADS | NEEDS_SQL},
    {"race: a wait for a lock ends", test_a_wait_for_a_lock_ends, NEEDS_SQL},
    {"race: two claimers", test_two_claimers_win_each_task_once, NEEDS_THREADS},
    {"race: heartbeats against rescues", test_heartbeats_against_rescues, NEEDS_THREADS},
};

const struct case_list race_cases = CASE_LIST(cases);
