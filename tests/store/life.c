/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a task's life, for the cases. */
#include "tests/store/world.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void must(int rc, const char *what, const struct err *err)
{
    if (rc)
        fail_msg("%s: %s: %s", what, err_name(rc), err->text);
}

/* ---- Submission ---------------------------------------------------------------------------- */

void stamp(struct world *w, struct task *t)
{
    struct err err = {0};
    uint64_t tail;

    if (!w->n_ids) {
        must(w->d->take_ids(w->conn, &w->next_id, &w->n_ids, &err), "take_ids", &err);
        assert_true(w->next_id > 0 && w->n_ids > 0);
    }
    t->id = w->next_id++;
    w->n_ids--;
    random_bytes(&tail, sizeof(tail));
    trace_id_make(t->id, tail, t->trace_id);
}

struct task draft_key(struct world *w, struct str biz_uuid)
{
    struct task t = task_empty();

    t.biz_uuid = biz_uuid;
    t.service_name = STR("svc");
    t.handler = STR("h");
    t.payload = STR("{\"n\":1}");
    t.created_at = t.updated_at = world_now(w);
    t.execute_time = t.next_attempt_time = t.created_at - 1000;
    t.lane = task_lane(t.priority, false);
    t.max_retry = 3;
    stamp(w, &t);
    return t;
}

struct task draft(struct world *w, const char *biz_uuid)
{
    return draft_key(w, str_from(biz_uuid));
}

static int compare_items(const void *a, const void *b)
{
    const struct submit_item *const *x = a;
    const struct submit_item *const *y = b;

    return str_cmp((*x)->task->biz_uuid, (*y)->task->biz_uuid);
}

void submit(struct world *w, struct submit_item *items, size_t n)
{
    struct submit_item **sorted = calloc(n, sizeof(*sorted));
    struct err err = {0};

    if (!sorted)
        abort();
    (void)world_keep(w, sorted);
    for (size_t i = 0; i < n; i++) {
        items[i].existing = NULL;
        sorted[i] = &items[i];
    }
    qsort(sorted, n, sizeof(*sorted), compare_items);
    must(w->d->submit(w->conn, sorted, n, &err), "submit", &err);
    for (size_t i = 0; i < n; i++)
        (void)world_keep_task(w, items[i].existing);
}

struct submit_item submit_one(struct world *w, struct task *t, enum on_conflict on_conflict,
                              bool absolute_time)
{
    struct submit_item item = {
        .task = t, .on_conflict = on_conflict, .absolute_time = absolute_time};

    submit(w, &item, 1);
    return item;
}

int64_t put(struct world *w, struct task *t)
{
    struct submit_item item = submit_one(w, t, ON_CONFLICT_RETURN, false);

    assert_int_equal(item.result, SUBMIT_CREATED);
    assert_null(item.existing);
    return t->id;
}

int64_t put_key(struct world *w, const char *biz_uuid)
{
    struct task t = draft(w, biz_uuid);

    return put(w, &t);
}

void put_many(struct world *w, const char *prefix, size_t n, const struct task *like,
              int64_t *ret_ids)
{
    struct submit_item *items = world_keep(w, calloc(n, sizeof(*items)));
    struct task *tasks = world_keep(w, calloc(n, sizeof(*tasks)));

    assert_true(items && tasks);
    for (size_t i = 0; i < n; i++) {
        tasks[i] = *like;
        tasks[i].biz_uuid = world_text(w, "%s%04zu", prefix, i);
        stamp(w, &tasks[i]);
        items[i].task = &tasks[i];
        if (ret_ids)
            ret_ids[i] = tasks[i].id;
    }
    submit(w, items, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(items[i].result, SUBMIT_CREATED);
}

/* ---- Crowds -------------------------------------------------------------------------------- */

#define CROWD_BATCH 500

static size_t crowd_batch(size_t left)
{
    return left < CROWD_BATCH ? left : CROWD_BATCH;
}

const int64_t *put_crowd(struct world *w, size_t n, struct str payload)
{
    int64_t *ids = world_keep(w, calloc(n, sizeof(*ids)));
    struct task like = draft(w, "like");

    assert_non_null(ids);
    like.payload = payload;
    for (size_t i = 0; i < n; i += CROWD_BATCH)
        put_many(w, world_text(w, "crowd%zu-", i).p, crowd_batch(n - i), &like, ids + i);
    return ids;
}

void claim_crowd(struct world *w, const int64_t *ids, size_t n)
{
    struct claim_item *items = world_keep(w, calloc(n, sizeof(*items)));

    assert_non_null(items);
    for (size_t i = 0; i < n; i++)
        items[i] = claim_of(ids[i], 0);
    for (size_t i = 0; i < n; i += CROWD_BATCH)
        claim(w, items + i, crowd_batch(n - i), NODE);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(items[i].result, CLAIM_WON);
}

/* ---- Claim --------------------------------------------------------------------------------- */

struct claim_item claim_of(int64_t id, int32_t attempt)
{
    return (struct claim_item){.id = id, .attempt = attempt, .timeout_ms = TIMEOUT_MS};
}

void claim(struct world *w, struct claim_item *items, size_t n, const char *claimed_by)
{
    struct claim_item **list = world_keep(w, calloc(n, sizeof(*list)));
    struct err err = {0};

    assert_non_null(list);
    for (size_t i = 0; i < n; i++) {
        assert_true(!i || items[i - 1].id < items[i].id);
        list[i] = &items[i];
    }
    must(w->d->claim(w->conn, list, n, str_from(claimed_by), MARGIN_MS, &err), "claim", &err);
    for (size_t i = 0; i < n; i++) {
        assert_true((items[i].result == CLAIM_WON) == (items[i].task != NULL));
        (void)world_keep_task(w, items[i].task);
    }
}

struct claim_item claim_as(struct world *w, int64_t id, int32_t attempt, const char *claimed_by)
{
    struct claim_item item = claim_of(id, attempt);

    claim(w, &item, 1, claimed_by);
    return item;
}

const struct task *claim_won(struct world *w, int64_t id, int32_t attempt)
{
    struct claim_item item = claim_as(w, id, attempt, NODE);

    assert_int_equal(item.result, CLAIM_WON);
    return item.task;
}

/* ---- Finish -------------------------------------------------------------------------------- */

struct finish_item finish_of(struct world *w, int64_t id, int32_t attempt, enum finish_kind kind)
{
    static const char *const outcomes[] = {
        [FINISH_SUCCESS] = "success", [FINISH_SENT] = "sent",         [FINISH_RETRY] = "retry",
        [FINISH_FAIL] = "failed",     [FINISH_PUT_BACK] = "put_back",
    };
    struct finish_item f = {
        .id = id,
        .attempt = attempt,
        .kind = kind,
        .from = TASK_IN_FLIGHT,
        .next_attempt_time = WALL_NONE,
        .priority = TASK_PRIORITY_DEFAULT,
        .outcome = outcomes[kind],
        .node = STR("node-a"),
    };

    if (kind == FINISH_SENT)
        f.next_attempt_time = world_now(w) + 3600000;
    if (kind == FINISH_RETRY || kind == FINISH_PUT_BACK)
        f.next_attempt_time = world_now(w) - 1;
    if (kind == FINISH_RETRY)
        f.retry_count = 1;
    if (kind == FINISH_RETRY || kind == FINISH_FAIL) {
        f.http_status = 500;
        f.error = STR("it broke");
    }
    if (kind == FINISH_SUCCESS)
        f.http_status = 200;
    return f;
}

void finish(struct world *w, struct finish_item *items, size_t n)
{
    struct finish_item **list = world_keep(w, calloc(n, sizeof(*list)));
    struct err err = {0};

    assert_non_null(list);
    for (size_t i = 0; i < n; i++) {
        assert_true(!i || items[i - 1].id < items[i].id);
        list[i] = &items[i];
    }
    must(w->d->finish(w->conn, list, n, &err), "finish", &err);
}

enum finish_result finish_one(struct world *w, struct finish_item item)
{
    finish(w, &item, 1);
    return item.result;
}

void finish_done(struct world *w, int64_t id, int32_t attempt, enum finish_kind kind)
{
    assert_int_equal(finish_one(w, finish_of(w, id, attempt, kind)), FINISH_DONE);
}

/* ---- Cancel -------------------------------------------------------------------------------- */

enum cancel_result cancel(struct world *w, const char *biz_uuid, const struct task **ret_task)
{
    struct cancel_op op = {.biz_uuid = str_from(biz_uuid)};
    struct cancel_op *list[] = {&op};
    struct err err = {0};

    must(w->d->cancel(w->conn, list, 1, &err), "cancel", &err);
    assert_true((op.result == CANCEL_NOT_FOUND) == (op.task == NULL));
    (void)world_keep_task(w, op.task);
    if (ret_task)
        *ret_task = op.task;
    return op.result;
}

const struct task *bring(struct world *w, const char *biz_uuid, enum task_status status)
{
    static const enum finish_kind ends[TASK_N_STATUSES] = {
        [TASK_SENT] = FINISH_SENT,       [TASK_RETRYING] = FINISH_RETRY,
        [TASK_FAILED] = FINISH_FAIL,     [TASK_MANUAL_REQUIRED] = FINISH_FAIL,
        [TASK_SUCCESS] = FINISH_SUCCESS,
    };
    int64_t id = put_key(w, biz_uuid);

    if (status == TASK_CANCELLED)
        assert_int_equal(cancel(w, biz_uuid, NULL), CANCEL_DONE);
    else if (status != TASK_PENDING)
        (void)claim_won(w, id, 0);
    if (status != TASK_PENDING && status != TASK_CANCELLED && status != TASK_SENDING)
        finish_done(w, id, 1, ends[status]);
    if (status == TASK_MANUAL_REQUIRED)
        (void)sql_value(
            w, "UPDATE job_delay_task SET status = 'MANUAL_REQUIRED' WHERE id = %" PRId64, id);
    assert_status(w, biz_uuid, status);
    return look_id(w, id);
}
