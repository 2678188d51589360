/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/worker.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/backoff.h"
#include "node/store/commit.h"

#define RECONNECT_FIRST_MS 50
#define MIN_EXPIRY_STEP_MS 10
#define STOP_TRIES                                                                                 \
    3 /* for the sake of a batch, when the store stops and there is no time to wait */
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

/* ---- State ------------------------------------------------------------------------------- */

/* With `report` held. */
static void report_state(struct store *s, bool up, const char *text)
{
    if (s->has_reported && s->reported_up == up)
        return;
    s->has_reported = true;
    s->reported_up = up;
    if (s->cfg.on_state)
        s->cfg.on_state(s->cfg.ctx, up, up ? NULL : text);
}

static void set_serving(struct worker *w, bool serving, const char *text)
{
    struct store *s = w->store;
    bool up = true;

    pthread_mutex_lock(&s->report);
    pthread_mutex_lock(&s->lock);
    for (enum lane l = 0; l < N_LANES; l++) {
        if (w->lanes & LANE_BIT(l) && w->serving != serving)
            s->n_serving[l] += serving ? 1 : -1u;
        up = up && s->n_serving[l];
    }
    w->serving = serving;
    atomic_store(&s->is_up, up);
    pthread_mutex_unlock(&s->lock);
    /* A one-writer store whose second connection is still on its way has nothing to report yet. */
    if (up || !serving)
        report_state(s, up, text);
    pthread_mutex_unlock(&s->report);
}

static void report_warning(struct store *s, const char *text)
{
    char *copy;
    size_t i = 0;

    pthread_mutex_lock(&s->report);
    while (i < s->n_warnings && strcmp(s->warnings[i], text))
        i++;
    if (i == s->n_warnings && i < STORE_MAX_WARNINGS) {
        copy = strdup(text);
        if (copy)
            s->warnings[s->n_warnings++] = copy;
        if (s->cfg.on_warning)
            s->cfg.on_warning(s->cfg.ctx, text);
    }
    pthread_mutex_unlock(&s->report);
}

static void wake_all(struct store *s)
{
    for (unsigned i = 0; i < s->n_workers; i++)
        pthread_cond_signal(&s->workers[i].wake);
}

/* What nobody serves comes back when it has waited long enough. */
static void expire(struct store *s, mono_ms before, const char *text)
{
    struct store_op *chains[N_LANES];

    pthread_mutex_lock(&s->lock);
    for (enum lane l = 0; l < N_LANES; l++)
        chains[l] = s->n_serving[l] ? NULL : queue_expire(&s->queue, l, before);
    pthread_mutex_unlock(&s->lock);
    for (enum lane l = 0; l < N_LANES; l++)
        ops_answer(chains[l], ERR_UNAVAILABLE, text);
}

static void become_fatal(struct worker *w, const char *text)
{
    struct store *s = w->store;

    pthread_mutex_lock(&s->lock);
    atomic_store(&s->is_fatal, true);
    wake_all(s);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&s->report);
    report_state(s, false, text);
    pthread_mutex_unlock(&s->report);
    expire(s, INT64_MAX, text);
}

/* ---- Connection -------------------------------------------------------------------------- */

static bool is_ending(const struct store *s) /* with the lock held */
{
    return s->stopping || atomic_load(&s->is_fatal);
}

/* Waits at most `ms` for a wake-up. The lock is held. */
static void wait_for_wake(struct worker *w, int64_t ms)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(&w->wake, &w->store->lock, &t); /* the caller looks at the time */
}

bool worker_pause(struct worker *w, int64_t ms)
{
    struct store *s = w->store;
    mono_ms until = clock_mono() + ms;
    bool ending;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        int64_t left = until - clock_mono();

        ending = is_ending(s);
        if (ending || left <= 0)
            break;
        wait_for_wake(w, left);
    }
    pthread_mutex_unlock(&s->lock);
    return !ending;
}

/* Waits before the next try to connect, and sees to it that nothing in the queue waits too long. */
static bool back_off(struct worker *w, mono_ms until, const char *text)
{
    struct store *s = w->store;
    int64_t cap = s->cfg.reconnect_max_ms > 1 ? s->cfg.reconnect_max_ms : 1;
    struct backoff b = {.initial_ms = cap < RECONNECT_FIRST_MS ? cap : RECONNECT_FIRST_MS,
                        .cap_ms = cap,
                        .multiplier = 2.0,
                        .jitter = 0.2};
    int64_t step = s->cfg.give_up_ms / 4;
    mono_ms now = clock_mono();
    mono_ms end = now + backoff_delay(&b, w->n_failures, &w->rng);

    if (end > until)
        end = until;
    if (step < MIN_EXPIRY_STEP_MS)
        step = MIN_EXPIRY_STEP_MS;
    for (; now < end; now = clock_mono()) {
        if (!worker_pause(w, end - now < step ? end - now : step))
            return false;
        expire(s, clock_mono() - s->cfg.give_up_ms, text);
    }
    return true;
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
    wake_all(s);
    pthread_mutex_unlock(&s->lock);
}

static void disconnect(struct worker *w)
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
            report_warning(s, warning);
        rc = needs_migration(w) ? migrate(w, err) : 0;
        if (rc)
            disconnect(w);
    }
    free(warning);
    return rc;
}

bool worker_reconnect(struct worker *w, mono_ms until, struct err *err)
{
    int rc;

    if (w->conn && clock_mono() - w->connected_at > LASTING_MS)
        w->n_failures = 0;
    disconnect(w);
    for (;;) {
        if (w->n_failures && clock_mono() >= until)
            return false;
        if (w->n_failures && !back_off(w, until, err->text) &&
            (until == WORKER_FOR_EVER || w->n_failures >= STOP_TRIES))
            return false;
        w->n_failures++;
        rc = open_once(w, err);
        if (!rc) {
            w->connected_at = clock_mono();
            /* In this order: one that fails to connect must not report that nobody has. */
            set_serving(w, true, NULL);
            if (needs_migration(w))
                let_others_connect(w->store);
            return true;
        }
        if (rc == ERR_CONFLICT && needs_migration(w)) {
            become_fatal(w, err->text);
            return false;
        }
        set_serving(w, false, err->text);
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

/* Waits for a lane to serve; the lock is held. LANE_NONE: the store stops and nothing is left. */
static enum lane next_lane(struct worker *w)
{
    struct store *s = w->store;
    enum lane lane;

    for (;;) {
        lane = queue_pick(&s->queue, w->lanes, w->last);
        if (lane != LANE_NONE || is_ending(s))
            return lane;
        w->idle = true;
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

    pthread_mutex_lock(&s->lock);
    lane = next_lane(w);
    if (lane == LANE_NONE) {
        pthread_mutex_unlock(&s->lock);
        return false;
    }
    chain = queue_take(&s->queue, lane);
    w->last = lane;
    w->running = lane;
    workers_wake(s); /* what this thread does not take */
    pthread_mutex_unlock(&s->lock);

    back = commit_ops(w, chain);

    pthread_mutex_lock(&s->lock);
    queue_put_back(&s->queue, lane, back);
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
    disconnect(w);
    return NULL;
}

static int init_wake(struct worker *w)
{
    pthread_condattr_t attr;
    int rc;

    rc = pthread_condattr_init(&attr);
    if (rc)
        return ERR_IO;
    rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (!rc)
        rc = pthread_cond_init(&w->wake, &attr);
    pthread_condattr_destroy(&attr);
    return rc ? ERR_IO : 0;
}

int worker_start(struct worker *w, struct store *s, unsigned index, unsigned lanes)
{
    sigset_t all;
    sigset_t before;
    char name[16];
    int rc;

    *w = (struct worker){.store = s,
                         .index = index,
                         .lanes = lanes,
                         .woken_for = LANE_NONE,
                         .running = LANE_NONE,
                         .last = LANE_SCAN};
    random_bytes(&w->rng.state, sizeof(w->rng.state));
    if (init_wake(w))
        return ERR_IO;
    /* Signals are for the main thread. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&w->thread, NULL, run, w);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        pthread_cond_destroy(&w->wake);
        return ERR_IO;
    }
    (void)snprintf(name, sizeof(name), "store-%u", index);
    (void)pthread_setname_np(w->thread, name);
    return 0;
}

void worker_join(struct worker *w)
{
    int rc = pthread_join(w->thread, NULL);

    assert(!rc);
    pthread_cond_destroy(&w->wake);
    batch_fini(&w->batch);
}
