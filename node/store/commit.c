/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/commit.h"

#include <assert.h>

#include "node/store/health.h"
#include "node/store/ids.h"
#include "node/store/sweep.h"
#include "node/store/transaction.h"

/* ---- Batches ----------------------------------------------------------------------------- */

static void fail_owners(struct batch *b, size_t from, size_t n, int rc, const struct err *err)
{
    for (size_t i = from; i < from + n; i++) {
        struct store_op *op = b->ops[b->owners[i]];

        op->rc = rc;
        op->err = *err;
    }
}

/* The database cannot write this row, for ever (ERR_INVALID) or now: its asker alone hears of it.
 */
static void fail_row(struct batch *b, size_t at, int rc, const struct err *err)
{
    struct store_op *op = b->ops[b->owners[at]];
    union batch_item item = b->items[at];

    switch (b->kind) {
    case STORE_SUBMIT:
        item.submit->result = rc == ERR_TIMEOUT ? SUBMIT_BUSY : SUBMIT_FAILED;
        item.submit->err = *err;
        return;
    case STORE_CLAIM:
        item.claim->result = CLAIM_FAILED;
        break;
    case STORE_FINISH:
        item.finish->result = FINISH_FAILED;
        break;
    default: /* a cancel is an operation of its own */
        op->rc = rc == ERR_TIMEOUT ? ERR_TIMEOUT : ERR_CORRUPT;
    }
    op->err = *err;
}

/* A batch on its way. Rows whose keys others' open transactions have are put aside until the rest
 * is stored, and together wait for no longer than one of them would. */
struct course {
    mono_ms oldest;
    int64_t patience_ms; /* of those waits, what is left */
    bool met;            /* such a key */
    bool last;           /* the rest is stored */
    bool waits;          /* and this thread may wait */
    bool unsure;         /* rows may have been stored by a try whose answer was lost */
    size_t n_aside;      /* the first ones of the batch */
};

static int32_t patience(const struct course *c)
{
    if (!c->last)
        return c->met ? 1 : KEY_PATIENCE_MANY_MS;
    return c->waits && c->patience_ms > 1 ? (int32_t)c->patience_ms : 1;
}

static int run_once_through(struct worker *w, struct course *c, size_t from, size_t n,
                            struct err *err)
{
    struct batch *b = &w->batch;
    struct transaction t = {.kind = b->kind,
                            .op = b->ops[b->owners[from]],
                            .items = &b->items[from],
                            .n = n,
                            .posted_at = c->oldest,
                            .patience_ms = patience(c)};
    mono_ms began = clock_mono();
    int rc = transaction_run(w, &t, err);

    c->unsure |= t.unsure;
    c->met |= rc == ERR_TIMEOUT;
    if (rc == ERR_TIMEOUT || c->last) /* one that came in the end was waited for, too */
        c->patience_ms -= clock_mono() - began;
    return rc;
}

/* Depth: the logarithm of the batch's rows. */
static void run_rows(struct worker *w, struct course *c, size_t from, size_t n)
{
    struct batch *b = &w->batch;
    struct err err = {{0}};
    int rc;

    rc = run_once_through(w, c, from, n, &err);
    if (!rc)
        return;
    if (rc != ERR_INVALID && rc != ERR_TIMEOUT) {
        fail_owners(b, from, n, rc, &err);
    } else if (n > 1) {
        run_rows(w, c, from, n / 2);
        run_rows(w, c, from + n / 2, n - n / 2);
    } else if (rc == ERR_TIMEOUT && !c->last) {
        b->items[c->n_aside] = b->items[from];
        b->owners[c->n_aside++] = b->owners[from];
    } else if (rc == ERR_TIMEOUT && c->unsure) {
        fail_owners(b, from, n, ERR_UNAVAILABLE, &err);
    } else {
        fail_row(b, from, rc, &err);
    }
}

static void run_single(struct worker *w, mono_ms posted_at)
{
    struct store_op *op = w->batch.ops[0];
    struct transaction t = {.kind = op->kind,
                            .op = op,
                            .n = 1,
                            .posted_at = posted_at,
                            .patience_ms = KEY_PATIENCE_MANY_MS};
    struct err err = {{0}};
    int rc = transaction_run(w, &t, &err);

    if (rc == ERR_TIMEOUT) {
        bool waits = transaction_may_wait(w, op->kind);

        t.patience_ms = waits ? KEY_PATIENCE_ONE_MS : 1;
        rc = transaction_run(w, &t, &err);
        if (waits)
            transaction_waited(w);
    }
    if (rc == ERR_TIMEOUT && t.unsure)
        rc = ERR_UNAVAILABLE;
    if (rc == ERR_INVALID && op->kind == STORE_SCAN)
        rc = ERR_CORRUPT;
    op->rc = rc;
    if (rc)
        op->err = err;
}

/* Of an operation that failed after a part of it was committed: who asked looks at rc only. */
static void drop_results(struct store_op *op)
{
    struct submit_op *submit = (struct submit_op *)op;
    struct claim_op *claim = (struct claim_op *)op;

    for (size_t i = 0; op->kind == STORE_SUBMIT && i < submit->n; i++) {
        task_free(submit->items[i].existing);
        submit->items[i].existing = NULL;
    }
    for (size_t i = 0; op->kind == STORE_CLAIM && i < claim->n; i++) {
        task_free(claim->items[i].task);
        claim->items[i].task = NULL;
    }
}

/* Those that failed because the oldest one's time is over, and have time left themselves. What they
 * did not share with it is no reason to keep them from the next batch. */
static struct store_op *take_back_young(struct worker *w, mono_ms oldest, struct store_op *repeats)
{
    struct batch *b = &w->batch;
    struct store_op *chain = NULL;
    struct store_op **end = &chain;

    for (size_t i = 0; i < b->n_ops; i++) {
        struct store_op *op = b->ops[i];

        if (!op || op->rc != ERR_UNAVAILABLE || !sweep_may_requeue(w->store, oldest, op->posted_at))
            continue;
        drop_results(op);
        op->rc = 0;
        op->err.text[0] = '\0';
        b->ops[i] = NULL;
        *end = op;
        end = &op->next;
    }
    *end = repeats; /* of keys of the batch: they come after it */
    return chain;
}

static void answer(struct worker *w)
{
    const struct store_config *cfg = &w->store->cfg;
    struct batch *b = &w->batch;
    size_t n = 0;

    /* Committed ones first, the order within both kept as far as it goes. */
    for (size_t i = 0; i < b->n_ops; i++) {
        struct store_op *op = b->ops[i];

        if (op && !op->rc) {
            b->ops[i] = b->ops[n];
            b->ops[n++] = op;
        }
    }
    if (n && cfg->on_committed)
        cfg->on_committed(cfg->ctx, b->ops, n);
    for (size_t i = 0; i < b->n_ops; i++) {
        struct store_op *op = b->ops[i];

        if (!op)
            continue;
        if (op->rc)
            drop_results(op);
        mailbox_post(op->reply, &op->mail);
    }
}

/* A link to itself marks an operation with rows that are still to come. */
static void mark_open(struct batch *b, const struct course *c)
{
    for (size_t i = 0; i < c->n_aside; i++)
        b->ops[b->owners[i]]->next = b->ops[b->owners[i]];
    for (size_t i = 0; i < b->n_rows; i++)
        b->ops[b->rows[i].op]->next = b->ops[b->rows[i].op];
}

/* Those that have no part in the wait. One whose time is over may go back to the queue later. */
static void answer_early(struct worker *w, const struct course *c)
{
    const struct store_config *cfg = &w->store->cfg;
    struct batch *b = &w->batch;

    mark_open(b, c);
    for (size_t i = 0; i < b->n_ops; i++) {
        struct store_op *op = b->ops[i];
        bool open = op && op->next == op;

        if (!op || open || op->rc == ERR_UNAVAILABLE) {
            if (open)
                op->next = NULL;
            continue;
        }
        b->ops[i] = NULL;
        if (op->rc)
            drop_results(op);
        else if (cfg->on_committed)
            cfg->on_committed(cfg->ctx, &op, 1);
        mailbox_post(op->reply, &op->mail);
    }
}

static void run_batch(struct worker *w, struct course *c, size_t n)
{
    c->n_aside = 0;
    c->last = false;
    run_rows(w, c, 0, n);
    if (!c->n_aside)
        return;
    answer_early(w, c);
    c->last = true;
    c->waits = transaction_may_wait(w, w->batch.kind);
    for (size_t i = 0; i < c->n_aside; i++)
        run_rows(w, c, i, 1);
    if (c->waits)
        transaction_waited(w);
}

/* Those that have an id were in a try before, which has failed. */
static bool any_was_tried(const struct batch *b)
{
    for (size_t i = 0; b->kind == STORE_SUBMIT && i < b->n_rows; i++) {
        if (b->rows[i].item.submit->task->id)
            return true;
    }
    return false;
}

struct store_op *commit_ops(struct worker *w, struct store_op *chain)
{
    const struct store_config *cfg = &w->store->cfg;
    struct store_op *back = NULL;
    struct course c = {.oldest = chain->posted_at, .patience_ms = KEY_PATIENCE_ONE_MS};
    size_t n;

    for (const struct store_op *op = chain; op; op = op->next)
        c.oldest = op->posted_at < c.oldest ? op->posted_at : c.oldest;
    if (batch_fill(&w->batch, chain, &back)) {
        ops_answer(chain, ERR_NOMEM, "no memory for a batch");
        return NULL;
    }
    if (w->batch.kind == STORE_SCAN || w->batch.kind == STORE_CALL)
        run_single(w, c.oldest);
    c.unsure = any_was_tried(&w->batch);
    while ((n = batch_next(&w->batch, cfg->batch_rows, cfg->batch_bytes)) > 0)
        run_batch(w, &c, n);
    back = take_back_young(w, c.oldest, back);
    answer(w);
    return back;
}

void commit_probe(struct worker *w)
{
    struct store *s = w->store;
    struct cancel_op op = {.op.kind = STORE_CANCEL, .biz_uuid = STR("")}; /* no task has this key */
    struct cancel_op *list[] = {&op};
    struct err err = {{0}};
    int rc = ids_probe(w, &err);

    if (!rc) {
        rc = s->driver->cancel(w->conn, list, 1, &err);
        task_free(op.task);
    }
    if (rc == ERR_UNAVAILABLE)
        worker_disconnect(w);
    else if (!rc)
        w->n_failures = 0;
    health_probe_end(s, rc, err.text);
}
