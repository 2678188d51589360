/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that the database refuses to write: a trigger's doing, or a row that should not be there.
 * They fail alone; their neighbours in the batch do not notice, and neither does the node. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/rig.h"

enum { ROWS = 40 };

static const size_t bad[] = {0, 17, 18, 39};

#define N_BAD (sizeof(bad) / sizeof(bad[0]))

static bool is_bad(size_t at)
{
    for (size_t i = 0; i < N_BAD; i++) {
        if (bad[i] == at)
            return true;
    }
    return false;
}

static void refuse(struct world *w, const char *event, const char *table, const char *condition)
{
    (void)sql_value(w, w->backend->refuse, event, table, condition);
}

static void allow(struct world *w, const char *table)
{
    (void)sql_value(w, w->backend->allow, "", table, "");
}

/* "NEW.<column> IN (…)" with the ids of the bad ones. */
static const char *bad_ids(struct world *w, const char *column, const int64_t *ids)
{
    struct str text = world_text(w, "NEW.%s IN (0", column);

    for (size_t i = 0; i < N_BAD; i++)
        text = world_text(w, "%s, %" PRId64, text.p, ids[bad[i]]);
    return world_text(w, "%s)", text.p).p;
}

/* One operation about many rows; `more` goes along in the same lane. */
static void run(struct rig *r, struct job *j, struct job *more)
{
    rig_post(r, j);
    rig_post(r, more);
    rig_wait(r);
    assert_int_equal(j->op.rc, 0);
    assert_int_equal(more->op.rc, 0);
}

static void assert_told(const struct job *j)
{
    if (!strstr(j->op.err.text, "a trigger refuses it"))
        fail_msg("the reason is lost: \"%s\"", j->op.err.text);
}

/* ---- Claims -------------------------------------------------------------------------------- */

static struct job *claim_job(struct rig *r, struct claim_item *items, const int64_t *ids)
{
    struct job *j = rig_claim_job(r, ids[0], 0);

    for (size_t i = 0; i < ROWS; i++)
        items[i] = claim_of(ids[i], 0);
    j->claim.items = items;
    j->claim.n = ROWS;
    return j;
}

static void test_a_claim_that_is_refused(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct task like = draft(w, "like");
    struct claim_item items[ROWS];
    struct job *more = rig_claim_job(r, put_key(w, "more"), 0);
    struct job *j;
    int64_t ids[ROWS];

    put_many(w, "k", ROWS, &like, ids);
    refuse(w, "UPDATE", "job_delay_task", bad_ids(w, "id", ids));
    j = claim_job(r, items, ids);
    run(r, j, more);
    assert_told(j);
    assert_int_equal(more->claim_item.result, CLAIM_WON);
    for (size_t i = 0; i < ROWS; i++) {
        const struct task *won = world_keep_task(w, items[i].task);
        const struct task *now = look_id(w, ids[i]);

        assert_int_equal(items[i].result, is_bad(i) ? CLAIM_FAILED : CLAIM_WON);
        assert_true((won == NULL) == is_bad(i));
        assert_int_equal(now->status, won ? TASK_SENDING : TASK_PENDING);
        assert_int_equal(now->attempt, won ? 1 : 0);
    }
    assert_int_equal(atomic_load(&r->n_down), 0);
    allow(w, "job_delay_task");
    for (size_t i = 0; i < N_BAD; i++)
        (void)claim_won(w, ids[bad[i]], 0);
}

/* All of them: each is told, and the database is not taken for down. */
static void test_claims_that_are_all_refused(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct task like = draft(w, "like");
    struct claim_item items[ROWS];
    struct job *submit_job = rig_submit_job(r, 1);
    int64_t ids[ROWS];

    submit_job->tasks[0].biz_uuid = STR("more");
    put_many(w, "k", ROWS, &like, ids);
    refuse(w, "UPDATE", "job_delay_task", "NEW.status = 'SENDING'");
    run(r, claim_job(r, items, ids), submit_job);
    for (size_t i = 0; i < ROWS; i++) {
        assert_int_equal(items[i].result, CLAIM_FAILED);
        assert_null(items[i].task);
    }
    assert_int_equal(submit_job->items[0].result, SUBMIT_CREATED);
    assert_int_equal(atomic_load(&r->n_down), 0);
}

/* ---- The ends of attempts ------------------------------------------------------------------ */

static struct job *finish_job(struct rig *r, struct finish_item *items, size_t n)
{
    struct job *j = rig_finish_job(r, items[0].id, 1, FINISH_SUCCESS);

    j->finish.items = items;
    j->finish.n = n;
    return j;
}

static void claim_rows(struct world *w, const int64_t *ids)
{
    struct claim_item items[ROWS];

    for (size_t i = 0; i < ROWS; i++)
        items[i] = claim_of(ids[i], 0);
    claim(w, items, ROWS, NODE);
}

/* Ends of all kinds in one batch, of which the trigger refuses one statement's rows. */
static void refuse_ends(struct world *w, const char *event, const char *table, const char *column,
                        enum finish_kind kind)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct task like = draft(w, "like");
    struct finish_item items[ROWS];
    struct job *j;
    int64_t ids[ROWS];

    put_many(w, "k", ROWS, &like, ids);
    claim_rows(w, ids);
    refuse(w, event, table, bad_ids(w, column, ids));
    for (size_t i = 0; i < ROWS; i++)
        items[i] = finish_of(w, ids[i], 1, is_bad(i) ? kind : (enum finish_kind)(i % 5));
    j = finish_job(r, items, ROWS);
    run(r, j, rig_finish_job(r, INT64_MAX, 1, FINISH_SUCCESS));
    assert_told(j);
    for (size_t i = 0; i < ROWS; i++) {
        const struct task *now = look_id(w, ids[i]);

        assert_int_equal(items[i].result, is_bad(i) ? FINISH_FAILED : FINISH_DONE);
        assert_true((now->status == TASK_SENDING) == is_bad(i));
        assert_int_equal(now->attempt, 1);
    }
    assert_int_equal(atomic_load(&r->n_down), 0);
    allow(w, table);
    j = finish_job(r, items, ROWS); /* the whole batch again */
    run(r, j, rig_finish_job(r, INT64_MAX, 1, FINISH_SUCCESS));
    for (size_t i = 0; i < ROWS; i++)
        assert_int_equal(items[i].result, FINISH_DONE);
}

static void test_a_success_that_is_refused(struct world *w)
{
    refuse_ends(w, "INSERT", "job_delay_task_history", "id", FINISH_SUCCESS);
}

static void test_a_retry_that_is_refused(struct world *w)
{
    refuse_ends(w, "INSERT", "job_attempt", "task_id", FINISH_RETRY);
}

static void test_an_update_that_is_refused(struct world *w)
{
    refuse_ends(w, "UPDATE", "job_delay_task", "id", FINISH_SENT);
}

/* A restored backup has brought back the history of a task that lives. */
static void test_a_row_in_both_tables(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct task like = draft(w, "like");
    struct finish_item items[ROWS];
    struct finish_item again;
    int64_t ids[ROWS];
    int64_t id;

    put_many(w, "k", ROWS, &like, ids);
    id = ids[17];
    claim_rows(w, ids);
    (void)sql_value(
        w,
        "INSERT INTO job_delay_task_history (id, trace_id, biz_uuid, service_name, handler, shard,"
        " lane, priority, status, execute_time, attempt, retry_count, max_retry, snooze_count,"
        " created_at, updated_at, finished_at) SELECT id, trace_id, biz_uuid, service_name,"
        " handler, shard, lane, priority, 'SUCCESS', execute_time, 0, 0, max_retry, 0, created_at,"
        " updated_at, updated_at FROM job_delay_task WHERE id = %" PRId64,
        id);
    for (size_t i = 0; i < ROWS; i++)
        items[i] = finish_of(w, ids[i], 1, FINISH_SUCCESS);
    run(r, finish_job(r, items, ROWS), rig_finish_job(r, INT64_MAX, 1, FINISH_SUCCESS));
    for (size_t i = 0; i < ROWS; i++)
        assert_int_equal(items[i].result, i == 17 ? FINISH_FAILED : FINISH_DONE);
    assert_int_equal(atomic_load(&r->n_down), 0);
    again = finish_of(w, id, 1, FINISH_RETRY); /* its tries run out, and a person is told */
    assert_int_equal(finish_one(w, again), FINISH_DONE);
}

/* ---- Cancels and submissions --------------------------------------------------------------- */

static void test_a_cancel_that_is_refused(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct task like = draft(w, "like");
    struct job *jobs[ROWS];
    int64_t ids[ROWS];

    put_many(w, "k", ROWS, &like, ids);
    refuse(w, "INSERT", "job_delay_task_history", bad_ids(w, "id", ids));
    for (size_t i = 0; i < ROWS; i++) {
        jobs[i] = rig_job(r, STORE_CANCEL);
        jobs[i]->cancel.biz_uuid = world_text(w, "k%04zu", i);
        rig_post(r, jobs[i]);
    }
    rig_wait(r);
    for (size_t i = 0; i < ROWS; i++) {
        assert_int_equal(jobs[i]->op.rc, is_bad(i) ? ERR_CORRUPT : 0);
        if (is_bad(i))
            assert_told(jobs[i]);
        else
            assert_int_equal(jobs[i]->cancel.result, CANCEL_DONE);
        assert_int_equal(look_id(w, ids[i])->status, is_bad(i) ? TASK_PENDING : TASK_CANCELLED);
    }
    assert_int_equal(atomic_load(&r->n_down), 0);
}

static void test_a_submission_that_is_refused(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct job *j = rig_submit_job(r, ROWS);
    struct job *more = rig_submit_job(r, 1);

    more->tasks[0].biz_uuid = STR("more");
    for (size_t i = 0; i < ROWS; i++)
        j->tasks[i].biz_uuid = is_bad(i) ? world_text(w, "bad%zu", i) : world_text(w, "k%zu", i);
    refuse(w, "INSERT", "job_delay_task", "NEW.biz_uuid LIKE 'bad%'");
    run(r, j, more);
    assert_int_equal(more->items[0].result, SUBMIT_CREATED);
    for (size_t i = 0; i < ROWS; i++) {
        assert_int_equal(j->items[i].result, is_bad(i) ? SUBMIT_FAILED : SUBMIT_CREATED);
        assert_true((look_key(w, j->tasks[i].biz_uuid) == NULL) == is_bad(i));
        if (is_bad(i))
            assert_non_null(strstr(j->items[i].err.text, "a trigger refuses it"));
    }
}

/* The blocks of ids have been set back: an id is another task's already. */
static void test_an_id_that_is_taken(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct job *j = rig_submit_job(r, ROWS);
    struct job *more = rig_submit_job(r, 1);
    struct task first = draft(w, "first");

    (void)put(w, &first);
    more->tasks[0].biz_uuid = STR("more");
    for (size_t i = 0; i < ROWS; i++)
        j->tasks[i].biz_uuid = world_text(w, "k%zu", i);
    j->tasks[17].id = first.id;
    trace_id_make(first.id, 1, j->tasks[17].trace_id);
    run(r, j, more);
    for (size_t i = 0; i < ROWS; i++) {
        const struct task *stored = look_key(w, j->tasks[i].biz_uuid);

        assert_int_equal(j->items[i].result, i == 17 ? SUBMIT_FAILED : SUBMIT_CREATED);
        assert_true((stored == NULL) == (i == 17));
    }
    assert_same_task(look(w, "first"), &first);
}

static const struct test_case cases[] = {
    {"refused: a claim", test_a_claim_that_is_refused, NEEDS_THREADS | NEEDS_SQL},
    {"refused: all claims", test_claims_that_are_all_refused, NEEDS_THREADS | NEEDS_SQL},
    {"refused: a success", test_a_success_that_is_refused, NEEDS_THREADS | NEEDS_SQL},
    {"refused: a retry", test_a_retry_that_is_refused, NEEDS_THREADS | NEEDS_SQL},
    {"refused: an update", test_an_update_that_is_refused, NEEDS_THREADS | NEEDS_SQL},
    {"refused: a row in both tables", test_a_row_in_both_tables, NEEDS_THREADS | NEEDS_SQL},
    {"refused: a cancel", test_a_cancel_that_is_refused, NEEDS_THREADS | NEEDS_SQL},
    {"refused: a submission", test_a_submission_that_is_refused, NEEDS_THREADS | NEEDS_SQL},
    {"refused: an id that is taken", test_an_id_that_is_taken, NEEDS_THREADS},
};

const struct case_list refusal_cases = CASE_LIST(cases);
