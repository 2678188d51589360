/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/setops.h"

#include <assert.h>
#include <stdlib.h>

#include "node/store/judge.h"
#include "node/store/task_row.h"

static int compare_id(const void *key, const void *element)
{
    int64_t id = *(const int64_t *)key;
    int64_t other = (*(struct claim_item *const *)element)->id;

    return (id > other) - (id < other);
}

struct claim_item *claim_set_find(const struct claim_set *c, int64_t id)
{
    struct claim_item **found = bsearch(&id, c->items, c->n, sizeof(*c->items), compare_id);

    return found ? *found : NULL;
}

int claim_set_on_live(void *ctx, const struct sql_value *row)
{
    const struct claim_set *c = ctx;
    struct claim_item *found = claim_set_find(c, row[0].i);
    struct task view;
    int rc;

    if (!found)
        return ERR_CORRUPT;
    rc = task_from_row(row, &view);
    if (rc)
        return rc;
    judge_claim_miss(found, &view, c->claimed_by);
    if (found->result != CLAIM_WON)
        return 0;
    assert(!found->task);
    found->task = task_dup(&view);
    return found->task ? 0 : ERR_NOMEM;
}

void claim_set_drop(struct claim_set *c)
{
    for (size_t i = 0; i < c->n; i++) {
        task_free(c->items[i]->task);
        c->items[i]->task = NULL;
    }
}

static int compare_key(const void *key, const void *element)
{
    return str_cmp(*(const struct str *)key, (*(struct cancel_op *const *)element)->biz_uuid);
}

struct cancel_op *cancel_set_find(const struct cancel_set *c, struct str biz_uuid)
{
    struct cancel_op **found = bsearch(&biz_uuid, c->items, c->n, sizeof(*c->items), compare_key);

    return found ? *found : NULL;
}

int cancel_set_begin(struct cancel_set *c, struct sql *db, struct err *err)
{
    for (size_t i = 0; i < c->n; i++)
        c->items[i]->task = NULL;
    return sql_begin_patient(db, err);
}

int cancel_set_end(struct cancel_set *c, struct sql *db, int rc, struct err *err)
{
    rc = sql_end(db, rc, err);
    if (!rc)
        return 0;
    for (size_t i = 0; i < c->n; i++) {
        task_free(c->items[i]->task);
        c->items[i]->task = NULL;
    }
    return sql_key_error(db, rc, c->n == 1 ? c->items[0]->biz_uuid : (struct str){0}, err);
}

int cancel_set_on_live(void *ctx, const struct sql_value *row)
{
    struct cancel_op *op = cancel_set_find(ctx, row[2].s);

    return op ? task_keep_row(&op->task, row) : ERR_CORRUPT;
}

int cancel_set_on_cancelled(void *ctx, const struct sql_value *row)
{
    struct cancel_op *op = cancel_set_find(ctx, row[0].s);

    if (!op || !op->task)
        return ERR_CORRUPT;
    op->task->status = TASK_CANCELLED;
    op->task->next_attempt_time = WALL_NONE;
    op->task->deadline_at = WALL_NONE;
    op->task->updated_at = row[1].i;
    op->task->finished_at = row[2].i;
    return 0;
}

int task_from_brief(const struct sql_value *row, struct task *ret)
{
    if (!task_status_parse(row[1].s, &ret->status))
        return ERR_CORRUPT;
    ret->id = row[0].i;
    ret->attempt = (int32_t)row[2].i;
    ret->deadline_at = sql_wall(&row[3]);
    ret->claimed_at = sql_wall(&row[4]);
    return 0;
}
