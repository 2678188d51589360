/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "node/store/sweep.h"
#include "node/store/worker.h"

/* ---- The port ---------------------------------------------------------------------------- */

/* Bytes of payload. */
static size_t op_weight(const struct store_op *op)
{
    const struct submit_op *submit = (const struct submit_op *)op;
    size_t n = 0;

    if (op->kind != STORE_SUBMIT)
        return 0;
    for (size_t i = 0; i < submit->n; i++)
        n += submit->items[i].task->payload.len;
    return n;
}

/* The scheduler's own operations wait for the database to come back; people are told at once. */
static bool is_patient(enum lane lane)
{
    return lane == LANE_CLAIM || lane == LANE_FINISH || lane == LANE_SCAN;
}

/* People are told at once, too, that writing fails; what they read may be there all the same. */
static bool is_refused(const struct store *s, enum lane lane)
{
    bool reads = LANE_BIT(lane) & LANES_READING;

    return atomic_load(&s->is_fatal) ||
           (!is_patient(lane) && (!s->n_serving[lane] || (!reads && atomic_load(&s->is_failing))));
}

static int post(void *impl, struct store_op *op)
{
    struct store *s = impl;
    enum lane lane = op_lane(op);
    int rc;

    op->rc = 0;
    op->err.text[0] = '\0';
    op->weight = op_weight(op);
    op->posted_at = clock_mono();

    pthread_mutex_lock(&s->lock);
    if (s->stopping || s->giving_in)
        rc = ERR_SHUTDOWN;
    else if (is_refused(s, lane))
        rc = ERR_UNAVAILABLE;
    else
        rc = queue_add(&s->queue, op);
    if (!rc)
        workers_wake(s);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

struct store_port store_port(struct store *s)
{
    return (struct store_port){.post = post, .impl = s};
}

/* ---- Lifecycle --------------------------------------------------------------------------- */

static void store_free(struct store *s)
{
    for (size_t i = 0; i < s->n_warnings; i++)
        free(s->warnings[i]);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->report);
    free(s->workers);
    free((char *)s->cfg.url);
    free(s);
}

static struct store *store_new(const struct store_config *cfg, const struct driver *d)
{
    unsigned n = d->one_writer ? 2 : cfg->connections;
    struct store *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->cfg = *cfg;
    s->cfg.url = strdup(cfg->url);
    s->driver = d;
    s->workers = calloc(n, sizeof(*s->workers));
    (void)pthread_mutex_init(&s->lock, NULL); /* cannot fail with the default attributes */
    (void)pthread_mutex_init(&s->report, NULL);
    if (!s->cfg.url || !s->workers) {
        store_free(s);
        return NULL;
    }
    queue_init(&s->queue, cfg->queue_limit, cfg->batch_rows, cfg->batch_bytes);
    return s;
}

static unsigned worker_lanes(const struct driver *d, unsigned index)
{
    if (!d->one_writer)
        return LANES_ALL;
    return index == 0 ? LANES_ALL & ~LANES_READING : LANES_READING;
}

int store_start(const struct store_config *cfg, const struct driver *d, struct store **ret,
                struct err *err)
{
    struct store *s;
    unsigned n;

    assert(cfg->connections >= 1 && cfg->queue_limit >= 1 && cfg->batch_rows >= 1);
    if (!d)
        d = driver_find(cfg->url);
    if (!d)
        return err_set(err, ERR_INVALID, "no database is known for this URL");
    s = store_new(cfg, d);
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for the store");

    n = d->one_writer ? 2 : cfg->connections;
    for (unsigned i = 0; i < n; i++)
        queue_add_thread(&s->queue, worker_lanes(d, i));
    /* Under the lock no thread looks at the others before they are there. */
    pthread_mutex_lock(&s->lock);
    while (s->n_workers < n &&
           !worker_start(&s->workers[s->n_workers], s, s->n_workers, worker_lanes(d, s->n_workers)))
        s->n_workers++;
    pthread_mutex_unlock(&s->lock);
    if (s->n_workers < n || sweep_start(s)) {
        store_stop(s);
        return err_set(err, ERR_IO, "cannot start the store's threads");
    }
    *ret = s;
    return 0;
}

void store_draining(struct store *s)
{
    if (s)
        sweep_drain(s);
}

void store_stop(struct store *s)
{
    if (!s)
        return;
    sweep_drain(s);
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    workers_wake_all(s);
    pthread_mutex_unlock(&s->lock);
    for (unsigned i = 0; i < s->n_workers; i++)
        worker_join(&s->workers[i]);
    sweep_stop(s);
    for (enum lane l = 0; l < N_LANES; l++)
        ops_answer(queue_expire(&s->queue, l, INT64_MAX), ERR_SHUTDOWN, "the node is stopping");
    store_free(s);
}

/* ---- What it tells ----------------------------------------------------------------------- */

bool store_is_up(const struct store *s)
{
    return atomic_load(&s->is_up);
}

bool store_is_fatal(const struct store *s)
{
    return atomic_load(&s->is_fatal);
}

void store_stats(const struct store *s, struct store_stats *ret)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&s->lock;

    for (size_t i = 0; i < STORE_N_KINDS; i++) {
        ret->batches[i] = atomic_load(&s->n_batches[i]);
        ret->rows[i] = atomic_load(&s->n_rows[i]);
    }
    ret->retries = atomic_load(&s->n_retries);
    ret->reconnects = atomic_load(&s->n_reconnects);
    pthread_mutex_lock(lock);
    ret->queued = s->queue.n_ops;
    pthread_mutex_unlock(lock);
}

int store_migrate(const char *url, const struct driver_options *opt, int *ret_from, int *ret_to,
                  struct err *err)
{
    const struct driver *d = driver_find(url);
    const struct migration *m;
    struct driver_conn *conn = NULL;
    char *warning = NULL;
    size_t n;
    int rc;

    if (!d)
        return err_set(err, ERR_INVALID, "no database is known for this URL");
    m = driver_migrations(d, &n);
    rc = d->open(url, opt, &conn, &warning, err);
    free(warning);
    if (rc)
        return rc;
    rc = d->migrate(conn, m, n, false, ret_from, ret_to, err);
    d->close(conn);
    return rc;
}
