/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/transaction.h"

#include <assert.h>

#include "node/store/health.h"
#include "node/store/ids.h"
#include "node/store/sweep.h"

#define MAX_BUSY 20       /* tries of one transaction */
#define MAX_EXISTS 3      /* likewise, that meets a key which is taken: no row of others' by then */
#define BUSY_AT_ONCE 2    /* of these, without a pause */
#define BUSY_PAUSE_MS 100 /* at most */
#define KEY_PAUSE_MS 3    /* between two looks at a key that the database does not wait for */
/* For a place among those who wait for keys, at most. Submissions of one key come in crowds, each
 * of which has the key for a moment. */
#define IN_LINE_MS 25
#define IN_LINE_SUBMIT_MS 200

static int run_once(struct worker *w, const struct transaction *t, struct err *err)
{
    const struct driver *d = w->store->driver;
    const struct claim_op *claim;
    int rc;

    if (d->set_key_patience)
        d->set_key_patience(w->conn, t->patience_ms);
    switch (t->kind) {
    case STORE_SUBMIT:
        rc = ids_give(w, t->items, t->n, err);
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
    if (t->kind != STORE_SCAN && t->kind != STORE_CALL)
        health_wrote(w->store);
}

/* These wait for what others need not meet: rows of services, and keys. */
static bool met_lock(const struct worker *w, const struct transaction *t)
{
    const struct driver *d = w->store->driver;

    return (t->kind == STORE_SUBMIT || t->kind == STORE_CANCEL || t->kind == STORE_CALL) &&
           w->conn && d->met_lock && d->met_lock(w->conn);
}

/* Runs it until its patience is over: a database that counts in seconds gives a key up at once. */
static int run_patiently(struct worker *w, const struct transaction *t, struct err *err)
{
    mono_ms until = clock_mono() + t->patience_ms;
    int rc;

    do
        rc = run_once(w, t, err);
    while (rc == ERR_TIMEOUT && clock_mono() < until && worker_pause(w, KEY_PAUSE_MS));
    return rc;
}

static int give_up(struct worker *w, const struct transaction *t, int rc, const struct err *err)
{
    bool by_lock = rc == ERR_BUSY && met_lock(w, t);

    /* Without a connection that is what the state says. */
    if (w->serving && !by_lock && !(LANE_BIT(op_lane(t->op)) & LANES_READING))
        health_failing(w->store, err->text);
    sweep_gave_up(w->store);
    return ERR_UNAVAILABLE;
}

int transaction_run(struct worker *w, struct transaction *t, struct err *err)
{
    struct store *s = w->store;
    unsigned n_busy = 0;
    unsigned n_exists = 0;
    int rc = sweep_admit(s, t->posted_at, err);

    if (rc)
        return rc;
    for (;;) {
        mono_ms began = clock_mono();

        rc = w->conn ? run_patiently(w, t, err)
                     : err_set(err, ERR_UNAVAILABLE, "no connection to the database");
        if (!rc)
            count(w, t);
        if (rc == ERR_TIMEOUT && t->kind != STORE_CALL) /* others need not wait for that key */
            leave_lane(w);
        if (rc == ERR_EXISTS && ++n_exists >= MAX_EXISTS)
            return ERR_INVALID;
        if (rc != ERR_UNAVAILABLE && rc != ERR_BUSY && rc != ERR_EXISTS)
            return rc;
        if (rc == ERR_UNAVAILABLE) {
            t->unsure = true;
            leave_lane(w);
            if (!sweep_may_retry(s, t->posted_at, began)) {
                worker_disconnect(w);
                return give_up(w, t, rc, err);
            }
            if (!worker_reconnect(w, t->posted_at + s->cfg.give_up_ms, err))
                return give_up(w, t, rc, err);
            atomic_fetch_add_explicit(&s->n_reconnects, 1, memory_order_relaxed);
        } else if (rc == ERR_BUSY) {
            if (++n_busy >= MAX_BUSY || !sweep_may_retry(s, t->posted_at, began))
                return give_up(w, t, rc, err);
            if (n_busy > BUSY_AT_ONCE)
                (void)worker_pause(w, 1 + (int64_t)rng_below(&w->rng, BUSY_PAUSE_MS)); /* or less */
        }
        atomic_fetch_add_explicit(&s->n_retries, 1, memory_order_relaxed);
    }
}

/* Somebody has to do the rest of the work. For cancels and calls the line is as short as a try. */
static bool may_stand(const struct store *s, enum store_kind kind)
{
    return s->n_workers > 1 &&
           (kind != STORE_SUBMIT || s->n_waiting + s->n_in_line + 1 < s->n_workers);
}

/* A place among those who wait; the lock is held. Who is new comes after those who wait for one. */
static bool take_place(struct worker *w, enum store_kind kind)
{
    struct store *s = w->store;
    bool is_new = s->n_in_line > 0;
    bool stands = may_stand(s, kind);
    mono_ms until = clock_mono() + (kind == STORE_SUBMIT ? IN_LINE_SUBMIT_MS : IN_LINE_MS);
    bool has_place;

    s->n_in_line++;
    for (;; is_new = false) {
        int64_t left = until - clock_mono();

        has_place = !is_new && s->n_waiting < s->n_workers / 2;
        if (has_place || left <= 0 || !stands || s->draining)
            break;
        wake_wait(&w->wake, &s->lock, left);
    }
    s->n_in_line--;
    s->n_waiting += has_place;
    return has_place;
}

bool transaction_may_wait(struct worker *w, enum store_kind kind)
{
    struct store *s = w->store;
    bool may;

    pthread_mutex_lock(&s->lock);
    may = take_place(w, kind);
    pthread_mutex_unlock(&s->lock);
    if (may)
        leave_lane(w);
    return may;
}

void transaction_waited(struct worker *w)
{
    struct store *s = w->store;

    pthread_mutex_lock(&s->lock);
    assert(s->n_waiting > 0);
    s->n_waiting--;
    if (s->n_in_line)
        workers_wake_all(s);
    pthread_mutex_unlock(&s->lock);
}
