/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/sweep.h"

#include <assert.h>

/* With the lock held, as in all of the static functions. */
static mono_ms limit_of(const struct store *s, mono_ms posted_at)
{
    mono_ms limit = posted_at + s->cfg.give_up_ms;
    mono_ms drain_limit;

    if (!s->draining)
        return limit;
    drain_limit = (posted_at > s->drain_at ? posted_at : s->drain_at) + SWEEP_DRAIN_MS;
    return limit < drain_limit ? limit : drain_limit;
}

static struct store_op *expire(struct store *s, enum lane lane, mono_ms now)
{
    struct store_op **first = &s->queue.lanes[lane].first;
    mono_ms before = INT64_MAX;

    /* What nobody serves has nothing to wait for when the store drains. */
    if (!s->giving_in && (!s->draining || s->n_serving[lane])) {
        before = now - s->cfg.give_up_ms;
        if (s->draining && now - s->drain_at > SWEEP_DRAIN_MS && before < now - SWEEP_DRAIN_MS)
            before = now - SWEEP_DRAIN_MS;
    }
    return *first ? queue_expire(&s->queue, lane, before) : NULL;
}

/* An operation that is posted later has a later limit: there is no need to look earlier. */
static int64_t time_to_next(const struct store *s, mono_ms now)
{
    mono_ms next = limit_of(s, now);

    for (enum lane l = 0; l < N_LANES; l++) {
        const struct store_op *first = s->queue.lanes[l].first;

        if (first && limit_of(s, first->posted_at) < next)
            next = limit_of(s, first->posted_at);
    }
    return next < now ? 1 : next + 1 - now; /* over is what has waited longer */
}

static bool sweep_once(struct store *s)
{
    struct store_op *chains[N_LANES];
    bool stopping = s->draining;
    bool any = false;

    for (enum lane l = 0; l < N_LANES; l++) {
        chains[l] = expire(s, l, clock_mono());
        any = any || chains[l];
    }
    if (!any)
        return false;
    pthread_mutex_unlock(&s->lock);
    for (enum lane l = 0; l < N_LANES; l++) {
        if (stopping)
            ops_answer(chains[l], ERR_SHUTDOWN, "the node is stopping");
        else
            ops_answer(chains[l], ERR_UNAVAILABLE, "the database did not get to it in time");
    }
    pthread_mutex_lock(&s->lock);
    return true;
}

static void *run(void *arg)
{
    struct store *s = arg;

    pthread_mutex_lock(&s->lock);
    while (!s->sweep_ends) {
        if (!sweep_once(s))
            wake_wait(&s->sweep_wake, &s->lock, time_to_next(s, clock_mono()));
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int sweep_start(struct store *s)
{
    int rc;

    if (wake_init(&s->sweep_wake))
        return ERR_IO;
    rc = thread_start(&s->sweeper, run, s, "store-sweep");
    if (rc)
        pthread_cond_destroy(&s->sweep_wake);
    s->has_sweeper = !rc;
    return rc;
}

void sweep_stop(struct store *s)
{
    int rc;

    if (!s->has_sweeper)
        return;
    pthread_mutex_lock(&s->lock);
    s->sweep_ends = true;
    sweep_wake(s);
    pthread_mutex_unlock(&s->lock);
    rc = pthread_join(s->sweeper, NULL);
    assert(!rc);
    s->has_sweeper = false;
    pthread_cond_destroy(&s->sweep_wake);
}

void sweep_wake(struct store *s)
{
    if (s->has_sweeper)
        pthread_cond_signal(&s->sweep_wake);
}

int sweep_admit(struct store *s, mono_ms posted_at, struct err *err)
{
    bool giving_in;
    bool over;

    pthread_mutex_lock(&s->lock);
    giving_in = s->giving_in;
    over = limit_of(s, posted_at) < clock_mono();
    pthread_mutex_unlock(&s->lock);
    if (giving_in)
        return err_set(err, ERR_SHUTDOWN, "the node is stopping");
    return over ? err_set(err, ERR_UNAVAILABLE, "the database did not get to it in time") : 0;
}

bool sweep_may_retry(struct store *s, mono_ms posted_at, mono_ms call_began)
{
    mono_ms now = clock_mono();
    bool may;

    pthread_mutex_lock(&s->lock);
    may = !s->giving_in && now < limit_of(s, posted_at) &&
          !(s->draining && now - call_began >= SWEEP_DRAIN_MS);
    pthread_mutex_unlock(&s->lock);
    return may;
}

bool sweep_may_requeue(struct store *s, mono_ms oldest, mono_ms posted_at)
{
    mono_ms now = clock_mono();
    bool may;

    pthread_mutex_lock(&s->lock);
    may = !s->draining && !atomic_load(&s->is_fatal) && limit_of(s, oldest) <= now &&
          limit_of(s, posted_at) > now;
    pthread_mutex_unlock(&s->lock);
    return may;
}

static void give_in(struct store *s)
{
    s->giving_in = true;
    sweep_wake(s);
    workers_wake_all(s);
}

void sweep_drain(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    if (!s->draining) {
        s->draining = true;
        s->queue.draining = true;
        s->drain_at = clock_mono();
        if (atomic_load(&s->is_failing))
            give_in(s);
        sweep_wake(s);
        workers_wake_all(s);
    }
    pthread_mutex_unlock(&s->lock);
}

void sweep_gave_up(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->draining)
        give_in(s);
    pthread_mutex_unlock(&s->lock);
}
