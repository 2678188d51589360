/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/worker.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/backoff.h"
#include "node/store/commit.h"
#include "node/store/health.h"
#include "node/store/sweep.h"

#define RECONNECT_FIRST_MS 50
#define STOP_TRIES                                                                                 \
    3 /* for the sake of a batch, when the store drains and there is no time to wait */
#define LASTING_MS 1000 /* a connection that was up for longer is replaced without back-off */

void ops_answer(struct store_op *chain, int rc, const char *text)
{
    struct store_op *next;

    for (struct store_op *op = chain; op; op = next) {
        next = op->next;
        op->next = NULL;
        op->rc = err_set(&op->err, rc, "%s", text);
        mailbox_post(op->reply, &op->mail);
    }
}

/* ---- Connection -------------------------------------------------------------------------- */

static bool is_ending(const struct store *s) /* with the lock held */
{
    return s->stopping || atomic_load(&s->is_fatal);
}

static void become_fatal(struct worker *w, const char *text)
{
    struct store *s = w->store;
    struct store_op *chains[N_LANES];

    health_fatal(s, text);
    pthread_mutex_lock(&s->lock);
    for (enum lane l = 0; l < N_LANES; l++)
        chains[l] = queue_expire(&s->queue, l, INT64_MAX);
    pthread_mutex_unlock(&s->lock);
    for (enum lane l = 0; l < N_LANES; l++)
        ops_answer(chains[l], ERR_UNAVAILABLE, text);
}

bool worker_pause(struct worker *w, int64_t ms)
{
    struct store *s = w->store;
    mono_ms until = clock_mono() + ms;
    bool ending;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        int64_t left = until - clock_mono();

        ending = s->draining || is_ending(s);
        if (ending || left <= 0)
            break;
        wake_wait(&w->wake, &s->lock, left);
    }
    pthread_mutex_unlock(&s->lock);
    return !ending;
}

/* Waits before the next try to connect. */
static bool back_off(struct worker *w, mono_ms until)
{
    struct store *s = w->store;
    int64_t cap = s->cfg.reconnect_max_ms > 1 ? s->cfg.reconnect_max_ms : 1;
    struct backoff b = {.initial_ms = cap < RECONNECT_FIRST_MS ? cap : RECONNECT_FIRST_MS,
                        .cap_ms = cap,
                        .multiplier = 2.0,
                        .jitter = 0.2};
    int64_t delay = backoff_delay(&b, w->n_failures, &w->rng);
    int64_t left = until - clock_mono();

    return worker_pause(w, delay < left ? delay : left);
}

/* Only the first worker migrates, so it alone writes the flag; the others wait until it has. */
static bool needs_migration(const struct worker *w)
{
    return w->index == 0 && !w->store->migrated;
}

static int migrate(struct worker *w, struct err *err)
{
    const struct driver *d = w->store->driver;
    const struct migration *m;
    size_t n = 0;
    int from;
    int to;

    m = driver_migrations(d, &n);
    return d->migrate ? d->migrate(w->conn, m, n, false, &from, &to, err) : 0;
}

static void let_others_connect(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    s->migrated = true;
    workers_wake_all(s);
    pthread_mutex_unlock(&s->lock);
}

void worker_disconnect(struct worker *w)
{
    if (w->conn)
        w->store->driver->close(w->conn);
    w->conn = NULL;
}

static int open_once(struct worker *w, struct err *err)
{
    struct store *s = w->store;
    char *warning = NULL;
    int rc;

    rc = s->driver->open(s->cfg.url, &s->cfg.driver, &w->conn, &warning, err);
    if (rc) {
        w->conn = NULL;
    } else {
        if (warning)
            health_warn(s, warning);
        rc = needs_migration(w) ? migrate(w, err) : 0;
        if (rc)
            worker_disconnect(w);
    }
    free(warning);
    return rc;
}

bool worker_reconnect(struct worker *w, mono_ms until, struct err *err)
{
    mono_ms began = clock_mono();
    int rc;

    if (w->conn && began - w->connected_at > LASTING_MS)
        w->n_failures = 0;
    worker_disconnect(w);
    for (;;) {
        if (w->n_failures && clock_mono() >= until)
            return false;
        if (w->n_failures && !back_off(w, until) &&
            (until == WORKER_FOR_EVER || w->n_failures >= STOP_TRIES ||
             clock_mono() - began >= SWEEP_DRAIN_MS))
            return false;
        w->n_failures++;
        began = clock_mono();
        rc = open_once(w, err);
        if (!rc) {
            w->connected_at = clock_mono();
            /* In this order: one that fails to connect must not report that nobody has. */
            health_serving(w, true, NULL);
            if (needs_migration(w))
                let_others_connect(w->store);
            return true;
        }
        if (rc == ERR_CONFLICT && needs_migration(w)) {
            become_fatal(w, err->text);
            return false;
        }
        health_serving(w, false, err->text);
    }
}

/* ---- The thread -------------------------------------------------------------------------- */

static void wake_one(struct store *s, enum lane lane)
{
    for (unsigned i = 0; i < s->n_workers; i++) {
        struct worker *w = &s->workers[i];

        if (!w->idle || !(w->lanes & LANE_BIT(lane)))
            continue;
        w->idle = false;
        w->woken_for = lane;
        s->queue.lanes[lane].n_woken++;
        pthread_cond_signal(&w->wake);
        return;
    }
}

void workers_wake(struct store *s)
{
    for (enum lane l = 0; l < N_LANES; l++) {
        if (queue_wants_thread(&s->queue, l))
            wake_one(s, l);
    }
}

void workers_wake_all(struct store *s)
{
    for (unsigned i = 0; i < s->n_workers; i++)
        pthread_cond_signal(&s->workers[i].wake);
}

/* Waits for a lane to serve; the lock is held. LANE_NONE: the store stops and nothing is left, or,
 * with *ret_probe, this thread has to probe. */
static enum lane next_lane(struct worker *w, bool *ret_probe)
{
    struct store *s = w->store;
    int64_t probe_wait;
    unsigned lanes;
    enum lane lane;

    for (;;) {
        probe_wait = health_probe_wait(w);
        /* A write that waits is as good as a probe; look-ups are not, and must not put it off. */
        lanes = probe_wait ? w->lanes : w->lanes & ~LANES_READING;
        lane = s->giving_in ? LANE_NONE : queue_pick(&s->queue, lanes, w->last);
        *ret_probe = lane == LANE_NONE && !probe_wait && !is_ending(s);
        if (lane != LANE_NONE || *ret_probe || is_ending(s))
            return lane;
        w->idle = true;
        if (probe_wait > 0)
            wake_wait(&w->wake, &s->lock, probe_wait);
        else
            pthread_cond_wait(&w->wake, &s->lock);
        w->idle = false;
        if (w->woken_for != LANE_NONE)
            s->queue.lanes[w->woken_for].n_woken--;
        w->woken_for = LANE_NONE;
    }
}

/* One batch; false when the thread should end. */
static bool serve(struct worker *w)
{
    struct store *s = w->store;
    struct store_op *chain;
    struct store_op *back;
    enum lane lane;
    bool probe;

    pthread_mutex_lock(&s->lock);
    lane = next_lane(w, &probe);
    if (probe)
        health_probe_begin(s);
    if (lane == LANE_NONE) {
        pthread_mutex_unlock(&s->lock);
        if (probe)
            commit_probe(w);
        return probe;
    }
    chain = queue_take(&s->queue, lane);
    w->last = lane;
    w->running = lane;
    workers_wake(s); /* what this thread does not take */
    pthread_mutex_unlock(&s->lock);

    back = commit_ops(w, chain);

    pthread_mutex_lock(&s->lock);
    queue_put_back(&s->queue, lane, back);
    if (back)
        sweep_wake(s);
    if (w->running != LANE_NONE)
        queue_end(&s->queue, lane);
    w->running = LANE_NONE;
    /* With a connection this thread itself goes on with what has waited for it. */
    if (!w->conn)
        workers_wake(s);
    pthread_mutex_unlock(&s->lock);
    return true;
}

static bool wait_for_schema(struct worker *w)
{
    struct store *s = w->store;
    bool migrated;

    pthread_mutex_lock(&s->lock);
    while (w->index != 0 && !s->migrated && !is_ending(s))
        pthread_cond_wait(&w->wake, &s->lock);
    migrated = w->index == 0 || s->migrated;
    pthread_mutex_unlock(&s->lock);
    return migrated;
}

static void *run(void *arg)
{
    struct worker *w = arg;
    struct err err = {{0}};

    if (wait_for_schema(w)) {
        do {
            if (!w->conn && !worker_reconnect(w, WORKER_FOR_EVER, &err))
                break;
        } while (serve(w));
    }
    worker_disconnect(w);
    return NULL;
}

int worker_start(struct worker *w, struct store *s, unsigned index, unsigned lanes)
{
    char name[16];
    int rc;

    *w = (struct worker){.store = s,
                         .index = index,
                         .lanes = lanes,
                         .woken_for = LANE_NONE,
                         .running = LANE_NONE,
                         .last = LANE_SCAN};
    random_bytes(&w->rng.state, sizeof(w->rng.state));
    (void)snprintf(name, sizeof(name), "store-%u", index);
    if (wake_init(&w->wake))
        return ERR_IO;
    rc = thread_start(&w->thread, run, w, name);
    if (rc)
        pthread_cond_destroy(&w->wake);
    return rc;
}

void worker_join(struct worker *w)
{
    int rc = pthread_join(w->thread, NULL);

    assert(!rc);
    pthread_cond_destroy(&w->wake);
    batch_fini(&w->batch);
}
