/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/commit.h"

#include <assert.h>

#define MAX_BUSY 20       /* tries of one transaction */
#define BUSY_AT_ONCE 2    /* of these, without a pause */
#define BUSY_PAUSE_MS 100 /* at most */

/* One run of one transaction: rows of the batch from `from`, or an operation of its own. */
struct transaction {
    enum store_kind kind;
    struct store_op *op; /* the first one */
    union batch_item *items;
    size_t n;
    mono_ms give_up_at;
};

/* ---- Ids --------------------------------------------------------------------------------- */

/* Takes ids from the block in use, or a new block. The lock is not held while the database is
 * asked; when two threads ask at once, the larger rest becomes the block in use. */
static int next_ids(struct worker *w, int64_t n, int64_t *ret_first, int64_t *ret_n,
                    struct err *err)
{
    struct store *s = w->store;
    int64_t first = 0;
    int64_t size = 0;
    int rc;

    pthread_mutex_lock(&s->lock);
    if (s->id_next < s->id_end) {
        first = s->id_next;
        size = s->id_end - s->id_next < n ? s->id_end - s->id_next : n;
        s->id_next += size;
    }
    pthread_mutex_unlock(&s->lock);
    if (!size) {
        int64_t end;

        rc = s->driver->take_ids(w->conn, &first, &size, err);
        if (rc)
            return rc == ERR_INVALID ? ERR_CORRUPT : rc;
        assert(first > 0 && size > 0);
        end = first + size;
        size = size < n ? size : n;
        pthread_mutex_lock(&s->lock);
        if (end - (first + size) > s->id_end - s->id_next) {
            s->id_next = first + size;
            s->id_end = end;
        }
        pthread_mutex_unlock(&s->lock);
    }
    *ret_first = first;
    *ret_n = size;
    return 0;
}

/* Those who have an id keep it: that is how a repeated submission knows its own rows. */
static int give_ids(struct worker *w, const struct transaction *t, struct err *err)
{
    int64_t missing = 0;
    int64_t id = 0;
    int64_t n = 0;

    for (size_t i = 0; i < t->n; i++)
        missing += !t->items[i].submit->task->id;
    for (size_t i = 0; i < t->n; i++) {
        struct task *task = t->items[i].submit->task;

        if (task->id)
            continue;
        if (!n) {
            int rc = next_ids(w, missing, &id, &n, err);

            if (rc)
                return rc;
        }
        task->id = id++;
        trace_id_make(task->id, rng_next(&w->rng), task->trace_id);
        n--;
        missing--;
    }
    return 0;
}

/* ---- One transaction --------------------------------------------------------------------- */

static int run_once(struct worker *w, const struct transaction *t, struct err *err)
{
    const struct driver *d = w->store->driver;
    const struct claim_op *claim;
    int rc;

    switch (t->kind) {
    case STORE_SUBMIT:
        rc = give_ids(w, t, err);
        return rc ? rc : d->submit(w->conn, (struct submit_item **)t->items, t->n, err);
    case STORE_CLAIM:
        claim = (const struct claim_op *)t->op;
        return d->claim(w->conn, (struct claim_item **)t->items, t->n, claim->claimed_by,
                        claim->margin_ms, err);
    case STORE_FINISH:
        return d->finish(w->conn, (struct finish_item **)t->items, t->n, err);
    case STORE_CANCEL:
        return d->cancel(w->conn, (struct cancel_op **)t->items, t->n, err);
    case STORE_SCAN:
        return d->scan(w->conn, (struct scan_op *)t->op, err);
    case STORE_CALL:
        return d->call(w->conn, (struct store_call *)t->op, err);
    default:
        assert(!"unknown kind of operation");
        return ERR_INVALID;
    }
}

/* The batch waits for a connection now: its lane counts as free, so that another thread serves
 * what comes. */
static void leave_lane(struct worker *w)
{
    struct store *s = w->store;

    pthread_mutex_lock(&s->lock);
    if (w->running != LANE_NONE) {
        queue_end(&s->queue, w->running);
        w->running = LANE_NONE;
        workers_wake(s);
    }
    pthread_mutex_unlock(&s->lock);
}

static void count(struct worker *w, const struct transaction *t)
{
    size_t n = t->kind == STORE_SCAN ? ((const struct scan_op *)t->op)->n_rows : t->n;

    w->n_failures = 0;
    atomic_fetch_add_explicit(&w->store->n_batches[t->kind], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->store->n_rows[t->kind], n, memory_order_relaxed);
}

static int run_transaction(struct worker *w, const struct transaction *t, struct err *err)
{
    struct store *s = w->store;
    unsigned n_busy = 0;
    int rc;

    for (;;) {
        rc = w->conn ? run_once(w, t, err) : ERR_UNAVAILABLE;
        if (!rc)
            count(w, t);
        if (rc == ERR_UNAVAILABLE) {
            leave_lane(w);
            if (!worker_reconnect(w, t->give_up_at, err)) {
                if (!err->text[0])
                    err_set(err, rc, "no connection to the database");
                return rc;
            }
            atomic_fetch_add_explicit(&s->n_reconnects, 1, memory_order_relaxed);
        } else if (rc == ERR_BUSY) {
            if (++n_busy >= MAX_BUSY || clock_mono() >= t->give_up_at)
                return ERR_UNAVAILABLE;
            if (n_busy > BUSY_AT_ONCE)
                (void)worker_pause(w,
                                   1 + (int64_t)rng_below(&w->rng, BUSY_PAUSE_MS)); /* or stops */
        } else {
            return rc;
        }
        atomic_fetch_add_explicit(&s->n_retries, 1, memory_order_relaxed);
    }
}

/* ---- Batches ----------------------------------------------------------------------------- */

static void fail_owners(struct batch *b, size_t from, size_t n, int rc, const struct err *err)
{
    for (size_t i = from; i < from + n; i++) {
        struct store_op *op = b->ops[b->owners[i]];

        op->rc = rc;
        op->err = *err;
    }
}

/* Depth: the logarithm of the batch's rows. */
static void run_rows(struct worker *w, size_t from, size_t n, mono_ms give_up_at)
{
    struct batch *b = &w->batch;
    struct transaction t = {.kind = b->kind,
                            .op = b->ops[b->owners[from]],
                            .items = &b->items[from],
                            .n = n,
                            .give_up_at = give_up_at};
    struct err err = {{0}};
    int rc = run_transaction(w, &t, &err);

    if (!rc)
        return;
    if (rc == ERR_INVALID && b->kind == STORE_SUBMIT) {
        if (n > 1) {
            run_rows(w, from, n / 2, give_up_at);
            run_rows(w, from + n / 2, n - n / 2, give_up_at);
        } else {
            t.items[0].submit->result = SUBMIT_FAILED;
            t.items[0].submit->err = err;
        }
        return;
    }
    fail_owners(b, from, n, rc == ERR_INVALID ? ERR_CORRUPT : rc, &err);
}

static void run_single(struct worker *w, mono_ms give_up_at)
{
    struct store_op *op = w->batch.ops[0];
    struct transaction t = {.kind = op->kind, .op = op, .n = 1, .give_up_at = give_up_at};
    struct err err = {{0}};
    int rc = run_transaction(w, &t, &err);

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

struct store_op *commit_ops(struct worker *w, struct store_op *chain)
{
    const struct store_config *cfg = &w->store->cfg;
    mono_ms give_up_at = clock_mono() + cfg->give_up_ms;
    struct store_op *back = NULL;
    size_t n;

    if (batch_fill(&w->batch, chain, &back)) {
        ops_answer(chain, ERR_NOMEM, "no memory for a batch");
        return NULL;
    }
    if (w->batch.kind == STORE_SCAN || w->batch.kind == STORE_CALL)
        run_single(w, give_up_at);
    while ((n = batch_next(&w->batch, cfg->batch_rows, cfg->batch_bytes)) > 0)
        run_rows(w, 0, n, give_up_at);
    answer(w);
    return back;
}
