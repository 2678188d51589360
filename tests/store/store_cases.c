/* SPDX-License-Identifier: Apache-2.0 */
/* The driver behind the store's queue and threads. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/rig.h"

static struct job *submit_keys(struct rig *r, const char *prefix, size_t n)
{
    struct job *j = rig_submit_job(r, n);

    for (size_t i = 0; i < n; i++)
        j->tasks[i].biz_uuid = world_text(r->w, "%s%zu", prefix, i);
    return j;
}

static void assert_rc(const struct job *j, int rc)
{
    assert_true(j->back);
    if (j->op.rc != rc)
        fail_msg("%s: %s", err_name(j->op.rc), j->op.err.text);
}

static void test_one_life_through_the_store(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct job *j = submit_keys(r, "k", 1);
    int64_t id;

    rig_post(r, j);
    rig_wait(r);
    assert_rc(j, 0);
    assert_int_equal(j->items[0].result, SUBMIT_CREATED);
    id = j->tasks[0].id;
    assert_true(id > 0);
    assert_true(trace_id_task(str_from(j->tasks[0].trace_id)) == id);
    assert_same_task(look(w, "k0"), &j->tasks[0]);
    j = rig_claim_job(r, id, 0);
    rig_post(r, j);
    rig_wait(r);
    assert_rc(j, 0);
    assert_int_equal(j->claim_item.result, CLAIM_WON);
    j = rig_finish_job(r, id, 1, FINISH_SUCCESS);
    rig_post(r, j);
    rig_wait(r);
    assert_rc(j, 0);
    assert_int_equal(j->finish_item.result, FINISH_DONE);
    j = rig_job(r, STORE_CANCEL);
    j->cancel.biz_uuid = STR("k0");
    rig_post(r, j);
    rig_wait(r);
    assert_rc(j, 0);
    assert_int_equal(j->cancel.result, CANCEL_FINISHED);
    assert_int_equal(atomic_load(&r->n_committed), 4);
}

static void test_scans_and_calls_through_the_store(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct scan_key key = {.service_name = STR("svc"),
                           .lane = 4,
                           .from_time = WALL_NONE,
                           .to_time = world_now(w),
                           .limit = 10};
    struct job *scan = rig_job(r, STORE_SCAN);
    struct job *get = rig_job(r, STORE_CALL);
    struct job *miss = rig_job(r, STORE_CALL);
    int64_t id = put_key(w, "k");

    scan->scan.keys = &key;
    scan->scan.n_keys = 1;
    scan->scan.claimed_by = STR(NODE);
    get->get.call.what = miss->get.call.what = CALL_GET;
    get->get.biz_uuid = STR("k");
    miss->get.biz_uuid = STR("nobody");
    rig_post(r, scan);
    rig_post(r, get);
    rig_post(r, miss);
    rig_wait(r);
    assert_rc(scan, 0);
    assert_int_equal(scan->scan.n_rows, 1);
    assert_true(scan->scan.rows[0].id == id);
    assert_rc(get, 0);
    assert_true(get->get.task->id == id);
    assert_true(miss->op.rc == ERR_NOT_FOUND);
}

static void test_one_key_a_thousand_times(struct world *w)
{
    enum { N = 1000 };
    struct rig *r = rig_start(w, rig_config(w), true);
    struct job **jobs = world_keep(w, calloc(N, sizeof(struct job *)));
    const struct task *stored;
    size_t created = 0;

    assert_non_null(jobs);
    for (size_t i = 0; i < N; i++) {
        jobs[i] = rig_submit_job(r, 1);
        jobs[i]->tasks[0].biz_uuid = STR("same");
    }
    for (size_t i = 0; i < N; i++)
        rig_post(r, jobs[i]);
    rig_wait(r);
    stored = look(w, "same");
    for (size_t i = 0; i < N; i++) {
        const struct submit_item *item = &jobs[i]->items[0];

        assert_rc(jobs[i], 0);
        if (item->result == SUBMIT_CREATED) {
            created++;
            assert_string_equal(item->task->trace_id, stored->trace_id);
            continue;
        }
        assert_int_equal(item->result, SUBMIT_DUPLICATE);
        assert_string_equal(item->existing->trace_id, stored->trace_id);
    }
    assert_int_equal(created, 1);
    if (has_sql(w))
        assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 1);
}

static void test_a_key_twice_in_one_operation(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct job *j = submit_keys(r, "k", 5);

    j->tasks[3].biz_uuid = j->tasks[1].biz_uuid;
    j->tasks[4].biz_uuid = j->tasks[1].biz_uuid;
    j->tasks[4].payload = STR("\"other\"");
    rig_post(r, j);
    rig_wait(r);
    assert_rc(j, 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(j->items[i].result, SUBMIT_CREATED);
    for (size_t i = 3; i < 5; i++) {
        assert_int_equal(j->items[i].result, SUBMIT_DUPLICATE);
        assert_true(j->items[i].existing->id == j->tasks[1].id);
    }
    assert_int_equal(j->items[4].mismatch, MISMATCH_PAYLOAD);
}

static void test_batches_by_rows(struct world *w)
{
    enum { N = 1000 };
    struct store_config cfg = rig_config(w);
    struct store_stats stats;
    struct job *jobs[N];
    struct rig *r;
    void *held;

    cfg.batch_rows = 50;
    r = rig_start(w, cfg, true);
    for (size_t i = 0; i < N; i++)
        jobs[i] = submit_keys(r, world_text(w, "k%zu-", i).p, 1);
    held = w->backend->hold(w->url, w->backend->lock_tasks); /* so that they wait together */
    for (size_t i = 0; i < N; i++)
        rig_post(r, jobs[i]);
    w->backend->release(held, false);
    rig_wait(r);
    for (struct job *j = r->jobs; j; j = j->next) {
        assert_rc(j, 0);
        assert_int_equal(j->items[0].result, SUBMIT_CREATED);
    }
    store_stats(r->store, &stats);
    assert_int_equal(stats.rows[STORE_SUBMIT], N);
    assert_true(stats.batches[STORE_SUBMIT] >= N / 50);
    assert_true(stats.batches[STORE_SUBMIT] < N / 2); /* they do share transactions */
    assert_int_equal(stats.queued, 0);
    assert_int_equal(atomic_load(&r->n_committed), N);
}

static void test_batches_by_bytes(struct world *w)
{
    enum { N = 64 };
    struct store_config cfg = rig_config(w);
    struct store_stats stats;
    struct str payload = world_fill(w, "\"xyz\"", 20000);
    struct rig *r;

    cfg.batch_bytes = 100000;
    r = rig_start(w, cfg, true);
    for (size_t i = 0; i < N; i++) {
        struct job *j = submit_keys(r, world_text(w, "k%zu-", i).p, 1);

        j->tasks[0].payload = payload;
        rig_post(r, j);
    }
    rig_wait(r);
    for (struct job *j = r->jobs; j; j = j->next)
        assert_int_equal(j->items[0].result, SUBMIT_CREATED);
    store_stats(r->store, &stats);
    assert_int_equal(stats.rows[STORE_SUBMIT], N);
    assert_true(stats.batches[STORE_SUBMIT] >= (N + 4) / 5);
}

/* One operation that is larger than a transaction may be. */
static void test_an_operation_larger_than_a_batch(struct world *w)
{
    struct store_config cfg = rig_config(w);
    struct rig *r;
    struct job *j;

    cfg.batch_rows = 100;
    r = rig_start(w, cfg, true);
    j = submit_keys(r, "k", 1000);
    rig_post(r, j);
    rig_wait(r);
    assert_rc(j, 0);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(j->items[i].result, SUBMIT_CREATED);
    assert_non_null(look(w, "k999"));
}

/* A row that cannot be written fails alone, wherever it stands. */
static void test_a_bad_row_fails_alone(struct world *w)
{
    enum { N = 40 };
    struct rig *r = rig_start(w, rig_config(w), true);

    for (unsigned i = 0;; i++) {
        struct str prefix = world_text(w, "r%u-", i);
        struct job *one = submit_keys(r, prefix.p, N);
        struct job *other = submit_keys(r, world_text(w, "other%u-", i).p, 1);
        size_t bad = i ? N - i : 0;

        if (!w->backend->spoil(&one->tasks[bad], i))
            break;
        rig_post(r, one);
        rig_post(r, other);
        rig_wait(r);
        assert_rc(one, 0);
        assert_rc(other, 0);
        assert_int_equal(other->items[0].result, SUBMIT_CREATED);
        for (size_t k = 0; k < N; k++)
            assert_int_equal(one->items[k].result, k == bad ? SUBMIT_FAILED : SUBMIT_CREATED);
        assert_true(one->items[bad].err.text[0] != '\0');
        assert_null(one->items[bad].existing);
        for (size_t k = 0; k < N; k++) {
            if (k != bad)
                assert_true(look_key(w, one->tasks[k].biz_uuid)->id == one->tasks[k].id);
        }
    }
}

/* The queue is bounded: what does not fit is the asker's problem at once. */
static void test_a_full_queue(struct world *w)
{
    enum { N = 100 };
    struct store_config cfg = rig_config(w);
    struct job *jobs[N];
    struct rig *r;
    void *held;
    size_t taken = 0;
    int rc = 0;

    cfg.queue_limit = 20;
    cfg.batch_rows = 1;
    cfg.connections = 1;
    r = rig_start(w, cfg, true);
    for (size_t i = 0; i < N; i++)
        jobs[i] = submit_keys(r, world_text(w, "k%zu-", i).p, 1);
    held = w->backend->hold(w->url, w->backend->lock_tasks);
    while (taken < N && (rc = rig_try(r, jobs[taken])) == 0)
        taken++;
    w->backend->release(held, false);
    assert_int_equal(rc, ERR_BUSY);
    assert_true(taken >= 20 && taken <= 22);
    rig_wait(r);
    for (size_t i = 0; i < taken; i++)
        assert_rc(jobs[i], 0);
    rig_post(r, jobs[taken]);
    rig_wait(r);
    assert_rc(jobs[taken], 0);
}

static void test_stop_answers_everything(struct world *w)
{
    enum { N = 300 };
    struct rig *r = rig_start(w, rig_config(w), true);
    size_t stored = 0;

    for (size_t i = 0; i < N; i++)
        rig_post(r, submit_keys(r, world_text(w, "k%zu-", i).p, 1));
    rig_stop(r);
    assert_int_equal(r->n_out, 0);
    for (struct job *j = r->jobs; j; j = j->next) {
        const struct task *t = look_key(w, j->tasks[0].biz_uuid);

        assert_rc(j, 0); /* the database was up */
        assert_int_equal(j->items[0].result, SUBMIT_CREATED);
        assert_non_null(t);
        stored++;
    }
    assert_int_equal(stored, N);
}

static void test_unknown_urls(struct world *w)
{
    static const char *const urls[] = {"mongo://127.0.0.1/x", "", "sqlite", "postgres"};

    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        struct store_config cfg = rig_config(w);
        struct store *s = NULL;
        struct err err = {0};

        cfg.url = urls[i];
        assert_int_equal(store_start(&cfg, NULL, &s, &err), ERR_INVALID);
        assert_true(err.text[0] != '\0');
        assert_null(driver_find(urls[i]));
    }
    assert_ptr_equal(driver_find(w->url), w->d);
}

/* Submissions, claims, ends and cancels of the same tasks, all in the queue at once. */
static void on_created(struct job *j)
{
    struct rig *r = j->rig;

    if (j->op.rc || j->items[0].result != SUBMIT_CREATED)
        return;
    rig_post(r, rig_claim_job(r, j->tasks[0].id, 0));
    if (j->index % 3 == 0) {
        struct job *c = rig_job(r, STORE_CANCEL);

        c->cancel.biz_uuid = j->tasks[0].biz_uuid;
        rig_post(r, c);
    }
}

static void test_all_kinds_at_once(struct world *w)
{
    enum { N = 600 };
    struct rig *r = rig_start(w, rig_config(w), true);
    size_t won = 0;
    size_t cancelled = 0;

    for (size_t i = 0; i < N; i++) {
        struct job *j = submit_keys(r, world_text(w, "k%zu-", i).p, 1);

        j->index = i;
        j->on_back = on_created;
        rig_post(r, j);
    }
    rig_wait(r);
    for (struct job *j = r->jobs; j; j = j->next) {
        assert_rc(j, 0);
        won += j->op.kind == STORE_CLAIM && j->claim_item.result == CLAIM_WON;
        if (j->op.kind != STORE_CANCEL)
            continue;
        assert_true(j->cancel.result == CANCEL_DONE || j->cancel.result == CANCEL_IN_FLIGHT);
        cancelled += j->cancel.result == CANCEL_DONE;
    }
    assert_int_equal(won + cancelled, N);
}

static const struct test_case cases[] = {
    {"store: one life", test_one_life_through_the_store, NEEDS_THREADS},
    {"store: scans and calls", test_scans_and_calls_through_the_store, NEEDS_THREADS},
    {"idempotency-16: one key a thousand times", test_one_key_a_thousand_times, NEEDS_THREADS},
    {"store: a key twice in one operation", test_a_key_twice_in_one_operation, NEEDS_THREADS},
    {"store: batches by rows", test_batches_by_rows, NEEDS_THREADS | NEEDS_SQL},
    {"store: batches by bytes", test_batches_by_bytes, NEEDS_THREADS},
    {"store: an operation larger than a batch", test_an_operation_larger_than_a_batch,
     NEEDS_THREADS},
    {"store: a bad row fails alone", test_a_bad_row_fails_alone, NEEDS_THREADS},
    {"store: a full queue", test_a_full_queue, NEEDS_THREADS | NEEDS_SQL},
    {"store: stop answers everything", test_stop_answers_everything, NEEDS_THREADS},
    {"store: unknown URLs", test_unknown_urls, NEEDS_THREADS},
    {"store: all kinds at once", test_all_kinds_at_once, NEEDS_THREADS},
};

const struct case_list store_cases = CASE_LIST(cases);
