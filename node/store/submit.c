/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/submit.h"

#include <assert.h>
#include <stdlib.h>

#include "node/store/driver.h"
#include "node/store/judge.h"
#include "node/store/services.h"
#include "node/store/task_row.h"

#define ROUNDS_MAX 5

/* ---- The run ------------------------------------------------------------------------------ */

static void run_fini(struct submit_run *run)
{
    free(run->slots);
    free(run->services);
    free(run->open);
}

static int compare_services(const void *a, const void *b)
{
    const struct submit_service *x = a;
    const struct submit_service *y = b;

    return str_cmp(x->name, y->name);
}

/* One entry per service, with all lanes and the highest shard. */
static void merge_services(struct submit_run *run)
{
    size_t kept = 0;

    qsort(run->services, run->n, sizeof(*run->services), compare_services);
    for (size_t i = 0; i < run->n; i++) {
        const struct submit_service *s = &run->services[i];

        if (!kept || !str_eq(run->services[kept - 1].name, s->name)) {
            run->services[kept++] = *s;
            continue;
        }
        run->services[kept - 1].lanes |= s->lanes;
        if (run->services[kept - 1].shards < s->shards)
            run->services[kept - 1].shards = s->shards;
    }
    run->n_services = kept;
}

static int run_init(struct submit_run *run, int32_t patience_ms, struct submit_item **items,
                    size_t n)
{
    *run = (struct submit_run){
        .slots = calloc(n, sizeof(*run->slots)),
        .n = n,
        .services = calloc(n, sizeof(*run->services)),
        .open = calloc(n, sizeof(*run->open)),
        .n_open = n,
        .patience_ms = patience_ms ? patience_ms
                       : n > 1     ? KEY_PATIENCE_MANY_MS
                                   : KEY_PATIENCE_ONE_MS,
    };
    if (!run->slots || !run->services || !run->open) {
        run_fini(run);
        return ERR_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        const struct task *t = items[i]->task;

        assert(t->id > 0 && (!i || str_cmp(items[i - 1]->task->biz_uuid, t->biz_uuid) < 0));
        items[i]->existing = NULL;
        items[i]->mismatch = 0;
        run->slots[i].item = items[i];
        run->open[i] = i;
        run->services[i] = (struct submit_service){
            .name = t->service_name,
            .lanes = 1u << (t->lane % TASK_RETRY_LANES),
            .shards = t->shard + 1,
        };
    }
    merge_services(run);
    return 0;
}

/* ---- Rows that the database gave ---------------------------------------------------------- */

int submit_on_service(void *ctx, const struct sql_value *row)
{
    struct submit_run *run = ctx;
    const struct submit_service name = {.name = row[0].s};
    struct submit_service *s =
        bsearch(&name, run->services, run->n_services, sizeof(*run->services), compare_services);

    if (s)
        s->known = (row[1].i & s->lanes) == s->lanes && row[2].i >= s->shards;
    return 0;
}

struct submit_slot *submit_find_slot(const struct submit_run *run, struct str biz_uuid)
{
    size_t low = 0;
    size_t high = run->n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = str_cmp(run->slots[mid].item->task->biz_uuid, biz_uuid);

        if (!order)
            return &run->slots[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

/* The key belongs to `t`: the item's answer. */
static int settle(struct submit_slot *slot, const struct task *t)
{
    struct submit_item *item = slot->item;

    slot->settled = true;
    if (t->id == item->task->id) {
        item->result = SUBMIT_CREATED;
        return 0;
    }
    (void)judge_repeat(item, t); /* replace_all does what is to be replaced */
    item->existing = task_dup(t);
    return item->existing ? 0 : ERR_NOMEM;
}

static int on_row(struct submit_run *run, const struct sql_value *row)
{
    struct task view;
    struct submit_slot *slot;
    int rc = task_from_row(row, &view);

    if (rc)
        return rc;
    slot = submit_find_slot(run, view.biz_uuid);
    return slot && !slot->settled ? settle(slot, &view) : 0;
}

int submit_on_history(void *ctx, const struct sql_value *row)
{
    return on_row(ctx, row);
}

int submit_on_live(void *ctx, const struct sql_value *row)
{
    return on_row(ctx, row);
}

/* ---- The rounds --------------------------------------------------------------------------- */

static int take_back(struct sql *db, struct submit_slot *slot, struct err *err)
{
    slot->inserted = false;
    return sql_run(db,
                   &(struct sql_query){.text = "DELETE FROM job_delay_task WHERE id = ?",
                                       SQL_PARAMS(sql_int(slot->item->task->id))},
                   err);
}

/* After the inserts and the look into history: the answers so far; the rest stays open. */
static int close_slots(struct sql *db, struct submit_run *run, struct err *err)
{
    size_t n_open = 0;

    for (size_t i = 0; i < run->n_open; i++) {
        struct submit_slot *slot = &run->slots[run->open[i]];

        if (slot->settled && slot->inserted) {
            int rc = take_back(db, slot, err);

            if (rc)
                return rc;
        } else if (slot->inserted) {
            slot->settled = true;
            slot->item->result = SUBMIT_CREATED;
        } else if (!slot->settled) {
            run->open[n_open++] = run->open[i];
        }
    }
    run->n_open = n_open;
    return 0;
}

static int round_once(struct sql *db, const struct submit_ops *ops, struct submit_run *run,
                      bool first, struct err *err)
{
    int rc = ops->insert(db, run, first, err);

    if (!rc)
        rc = close_slots(db, run, err);
    if (!rc && run->n_open) {
        rc = ops->find(db, run, err);
        if (!rc)
            rc = close_slots(db, run, err);
    }
    return rc;
}

static int replace(struct sql *db, struct submit_item *item, struct err *err)
{
    static const char update[] =
        "UPDATE job_delay_task SET payload_json = ?, execute_time = ?, next_attempt_time = ?, "
        "updated_at = {now} WHERE id = ? AND status IN ('PENDING', 'RETRYING')";
    const struct task *t = item->task;
    int64_t id = item->existing->id;
    int64_t changed = 0;
    int rc = sql_run(db,
                     &(struct sql_query){.text = update,
                                         SQL_PARAMS(sql_text(t->payload), sql_time(t->execute_time),
                                                    sql_time(t->execute_time), sql_int(id)),
                                         .ret_changed = &changed},
                     err);

    if (!rc)
        rc = task_find(db, (struct str){0}, id, &item->existing, err);
    if (rc)
        return rc;
    if (!item->existing) /* finished and purged in this instant: the next run finds the key free */
        return ERR_BUSY;
    item->result = changed ? SUBMIT_REPLACED : SUBMIT_REFUSED;
    return 0;
}

static int compare_existing(const void *a, const void *b)
{
    int64_t x = (*(struct submit_item *const *)a)->existing->id;
    int64_t y = (*(struct submit_item *const *)b)->existing->id;

    return (x > y) - (x < y);
}

/* In id order, as by all that locks several rows. */
static int replace_all(struct sql *db, struct submit_run *run, struct err *err)
{
    struct submit_item **items = NULL;
    size_t n = 0;
    int rc = 0;

    for (size_t i = 0; i < run->n; i++)
        n += run->slots[i].item->result == SUBMIT_REPLACED;
    if (!n)
        return 0;
    items = calloc(n, sizeof(struct submit_item *));
    if (!items)
        return err_set(err, ERR_NOMEM, "no memory for a batch");
    n = 0;
    for (size_t i = 0; i < run->n; i++) {
        if (run->slots[i].item->result == SUBMIT_REPLACED)
            items[n++] = run->slots[i].item;
    }
    qsort(items, n, sizeof(struct submit_item *), compare_existing);
    for (size_t i = 0; !rc && i < n; i++)
        rc = replace(db, items[i], err);
    free(items);
    return rc;
}

static int see_services(struct sql *db, struct submit_run *run, struct err *err)
{
    for (size_t i = 0; i < run->n_services; i++) {
        const struct submit_service *s = &run->services[i];
        int rc = s->known ? 0 : service_see(db, s->name, s->lanes, s->shards, err);

        if (rc)
            return rc;
    }
    return 0;
}

static int run_batch(struct sql *db, const struct submit_ops *ops, struct submit_run *run,
                     struct err *err)
{
    int rc = db->d->begin(db, err);

    /* Another round inserts behind keys that come later in their order: two batches that do so wait
     * for each other. */
    for (int round = 0; !rc && run->n_open && round < (run->n > 1 ? 1 : ROUNDS_MAX); round++)
        rc = round_once(db, ops, run, !round, err);
    if (!rc && run->n_open)
        rc = err_set(err, ERR_BUSY, "keys kept moving between the tables");
    if (!rc)
        rc = replace_all(db, run, err);
    if (!rc)
        rc = see_services(db, run, err);
    if (!rc)
        rc = db->d->commit(db, err);
    if (rc)
        db->d->rollback(db);
    return rc;
}

int submit_batch(struct sql *db, const struct submit_ops *ops, struct submit_item **items, size_t n,
                 struct err *err)
{
    struct submit_run run;
    int rc;

    if (!n)
        return 0;
    rc = run_init(&run, db->patience_ms, items, n);
    if (rc)
        return err_set(err, rc, "no memory for a batch");
    rc = run_batch(db, ops, &run, err);
    rc = sql_key_error(db, rc, n == 1 ? items[0]->task->biz_uuid : (struct str){0}, err);
    for (size_t i = 0; rc && i < n; i++) {
        task_free(items[i]->existing);
        items[i]->existing = NULL;
    }
    run_fini(&run);
    return rc;
}
