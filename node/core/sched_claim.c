/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the due tasks is claimed next.
 *
 * Services that can start something stand in a ring and take turns of a few claims each. Within a
 * service the most urgent lane goes first; retries have lanes and slots of their own (a quarter of
 * the service's concurrency): a wave of retries never takes the other slots, and first attempts
 * never take the last of theirs while one waits. When three quarters of the node's own slots are
 * taken, the rest is kept for services below their fair share, so that one slow service leaves room
 * for the others. */
#include "node/core/sched_lease.h"

#include <stdlib.h>

uint32_t svc_concurrency(const struct sched *s, const struct svc *v)
{
    if (is_pull(v)) /* the workers' own business */
        return UINT32_MAX;
    uint64_t n =
        (uint64_t)(v->conf->concurrency > 0 ? v->conf->concurrency : s->cfg.default_concurrency);
    if (v->conf->delivery == DELIVERY_BATCH)
        n *= (uint64_t)v->conf->batch_size;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* The slots that belong to retries; a service with a single slot shares it by turns instead. */
static uint32_t retry_slots(uint32_t concurrency)
{
    uint32_t n = concurrency / SCHED_RETRY_SHARE;

    return n ? n : concurrency > 1;
}

/* A single slot is shared by turns, and so is what workers ask for: how much they can take at once
 * is not known here. */
static bool takes_turns(const struct svc *v, uint32_t concurrency)
{
    return concurrency == 1 || is_pull(v);
}

static bool can_start_retry(const struct svc *v, uint32_t concurrency)
{
    if (!v->n_ready_retries || v->n_slots >= concurrency)
        return false;
    if (takes_turns(v, concurrency))
        return v->n_ready == v->n_ready_retries || v->since_retry >= SCHED_QUANTUM;
    return v->n_retry_slots < retry_slots(concurrency);
}

static bool can_start_first(const struct svc *v, uint32_t concurrency)
{
    uint32_t kept = v->n_ready_retries ? retry_slots(concurrency) : 0;

    if (v->n_ready == v->n_ready_retries || v->n_slots >= concurrency)
        return false;
    if (takes_turns(v, concurrency))
        return !v->n_ready_retries || v->since_retry < SCHED_QUANTUM;
    return v->n_slots - v->n_retry_slots < concurrency - kept;
}

bool svc_can_start(const struct svc *v, const struct sched *s)
{
    uint32_t concurrency = svc_concurrency(s, v);

    return !v->conf->paused && !v->gone && (!is_pull(v) || v->lease_head) &&
           (can_start_first(v, concurrency) || can_start_retry(v, concurrency));
}

void ring_remove(struct sched *s, struct svc *v)
{
    if (!v->ring_next)
        return;
    if (v->ring_next == v) {
        s->ring = NULL;
    } else {
        v->ring_prev->ring_next = v->ring_next;
        v->ring_next->ring_prev = v->ring_prev;
        if (s->ring == v)
            s->ring = v->ring_next;
    }
    v->ring_prev = v->ring_next = NULL;
    s->n_ring--;
}

void ring_update(struct sched *s, struct svc *v)
{
    if (!svc_can_start(v, s)) {
        ring_remove(s, v);
        return;
    }
    if (v->ring_next)
        return;
    if (!s->ring) {
        v->ring_prev = v->ring_next = v;
        s->ring = v;
    } else { /* at the end: before whose turn is next */
        v->ring_next = s->ring;
        v->ring_prev = s->ring->ring_prev;
        v->ring_prev->ring_next = v;
        v->ring_next->ring_prev = v;
    }
    s->n_ring++;
}

void ready_push(struct sched *s, struct entry *e)
{
    struct svc *v = e->lane->svc;
    struct queue *q = &v->ready[e->lane->number];

    e->next = NULL;
    e->prev = q->tail;
    if (q->tail)
        q->tail->next = e;
    else
        q->head = e;
    q->tail = e;
    q->n++;
    v->n_ready++;
    v->n_ready_retries += e->lane->number >= TASK_RETRY_LANES;
    entry_move(s, e, TRACK_READY);
    ring_update(s, v);
    lease_news(s, v);
}

void ready_remove(struct sched *s, struct entry *e)
{
    struct svc *v = e->lane->svc;
    struct queue *q = &v->ready[e->lane->number];

    assert(e->track == TRACK_READY && q->n);
    if (e->prev)
        e->prev->next = e->next;
    else
        q->head = e->next;
    if (e->next)
        e->next->prev = e->prev;
    else
        q->tail = e->prev;
    e->prev = e->next = NULL;
    q->n--;
    v->n_ready--;
    v->n_ready_retries -= e->lane->number >= TASK_RETRY_LANES;
    ring_update(s, v);
}

/* The next task of the service's turn; NULL when it cannot start one. */
static struct entry *svc_pick(const struct sched *s, const struct svc *v)
{
    uint32_t concurrency = svc_concurrency(s, v);
    int32_t from = 0;
    int32_t to = TASK_RETRY_LANES;

    if (is_pull(v) && !v->lease_head)
        return NULL;
    if (!can_start_first(v, concurrency)) {
        if (!can_start_retry(v, concurrency))
            return NULL;
        from = TASK_RETRY_LANES;
        to = TASK_LANES;
    }
    for (int32_t n = from; n < to; n++) {
        if (v->ready[n].head)
            return v->ready[n].head;
    }
    abort(); /* the counts say that there is one */
}

static void claim_start(struct sched *s, struct entry *e, struct actions *out)
{
    struct svc *v = e->lane->svc;
    struct claim_item *item;

    ready_remove(s, e);
    v->since_retry = e->lane->number >= TASK_RETRY_LANES ? 0 : v->since_retry + 1;
    entry_move(s, e, TRACK_CLAIMING);
    item = &actions_add(out, ACTION_CLAIM)->claim;
    item->id = e->id;
    item->attempt = e->attempt;
    item->timeout_ms =
        v->conf->timeout_ms > 0 ? v->conf->timeout_ms : (int32_t)s->cfg.default_timeout_ms;
    if (is_pull(v))
        lease_take(s, e, item);
    if (!e->asked)
        e->claimed_for = e->lease ? e->lease->number : 0;
    item->lease = e->claimed_for;
    ring_update(s, v);
}

/* True if the node may start one more of this service. */
static bool has_capacity(const struct sched *s, const struct svc *v)
{
    uint32_t used = sched_in_flight(s);
    uint32_t max = s->cfg.max_in_flight;

    if (used >= max)
        return false;
    if (used < max - max / 4)
        return true;
    return v->n_in_flight < max / (s->n_ring + 1) + 1;
}

static void pump_turns(struct sched *s, struct actions *out)
{
    uint32_t idle_turns = 0;

    while (s->ring && idle_turns < s->n_ring) {
        struct svc *v = s->ring;
        struct entry *e;
        int taken = 0;

        s->ring = v->ring_next; /* the next one's turn, whatever becomes of v */
        while (taken < SCHED_QUANTUM && has_capacity(s, v) && (e = svc_pick(s, v))) {
            claim_start(s, e, out);
            taken++;
        }
        idle_turns = taken ? 0 : idle_turns + 1;
        if (sched_in_flight(s) >= s->cfg.max_in_flight)
            return;
    }
}

void claim_pump(struct sched *s, struct actions *out)
{
    if (!s->store_up || s->stopping || s->now < s->pause_until)
        return;
    pump_turns(s, out);
    lease_round_end(s);
}

/* A task that came back from a claim goes on only while its service may run. Whose it is by now
 * does not matter: the claim has decided that. */
static bool may_run(const struct sched *s, const struct entry *e)
{
    const struct svc *v = e->lane->svc;

    return !s->stopping && !v->conf->paused && !v->gone;
}

/* `lease`: for whom it was asked; NULL when for a request. */
static void claim_won(struct sched *s, struct entry *e, struct lease *lease, struct task *t,
                      struct actions *out)
{
    struct action *a;

    assert(t && t->id == e->id && t->attempt == e->attempt + 1);
    assert(t->deadline_at - t->claimed_at > s->cfg.ghost_margin_ms);
    e->attempt = t->attempt;
    if (lease && may_run(s, e) && lease_give(s, lease, t, out)) {
        note_claimed(s, e->id, e->attempt);
        entry_forget(s, e);
        return;
    }
    entry_move(s, e, TRACK_SENDING);
    /* Something has changed since the claim was asked for: give it back. */
    if (lease || is_pull(e->lane->svc) || !may_run(s, e)) {
        const struct verdict unsent = {.kind = VERDICT_UNSENT, .retry_after_ms = -1};

        sched_answered(s, s->now, t, &unsent, out);
        task_free(t);
        return;
    }
    a = actions_add(out, ACTION_SEND);
    a->send.task = t;
    a->send.service = e->lane->svc->conf;
    /* The time-out that the claim reckoned with, whatever the service's settings say by now. */
    a->send.timeout_ms = t->deadline_at - t->claimed_at - s->cfg.ghost_margin_ms;
}

/* Back to the timers. Where the time has come by this node's reading of the store's clock, that
 * reading is ahead: ask again soon, then less often, as long as it is. */
static void claim_was_early(struct sched *s, struct entry *e, wall_ms next_attempt_time)
{
    entry_wait(s, e, next_attempt_time);
    if (next_attempt_time > s->now)
        return;
    heap_move(&s->timers, &e->timer, s->now + (INT64_C(1) << e->tries));
    if (e->tries < SCHED_EARLY_SHIFT_MAX)
        e->tries++;
}

void sched_claimed(struct sched *s, wall_ms now, int rc, struct claim_item *item,
                   struct actions *out)
{
    struct entry *e = sched_entry(s, item->id);
    struct lease *lease;

    s->now = now;
    assert(e && e->track == TRACK_CLAIMING);
    lease = e->lease;
    e->lease = NULL;
    if (rc) {
        sched_store_pause(s);
        e->asked = true;
        if (may_run(s, e))
            ready_push(s, e);
        else
            entry_forget(s, e);
        lease_claim_back(s, lease, out);
        return;
    }
    e->asked = false;
    s->pause_ms = 0;
    s->pause_until = WALL_NONE;
    switch (item->result) {
    case CLAIM_WON:
        claim_won(s, e, lease, item->task, out);
        item->task = NULL;
        break;
    case CLAIM_NOT_DUE:
        s->n_claims_early++;
        if (!may_run(s, e) || !e->lane->owned ||
            item->next_attempt_time > now + s->cfg.lookahead_ms)
            entry_forget(s, e);
        else
            claim_was_early(s, e, item->next_attempt_time);
        break;
    case CLAIM_LOST:
        s->n_claims_lost++;
        entry_forget(s, e);
        break;
    case CLAIM_FAILED: /* it must not keep others waiting: full reads meet it again */
        entry_forget(s, e);
        break;
    }
    lease_claim_back(s, lease, out);
}

mono_ms claim_fence(const struct task *t, int64_t margin_ms, mono_ms asked_at, wall_ms now,
                    mono_ms mono_now)
{
    mono_ms by_question = asked_at + margin_ms;
    mono_ms by_claim = mono_now + (t->claimed_at + margin_ms - now);

    return by_claim < by_question ? by_claim : by_question;
}
