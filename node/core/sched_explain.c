/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's books, read from outside: statistics, explanations, and the check of its
 * invariants. */
#include "node/core/sched_explain.h"

#include "node/core/sched_lease.h"

void sched_stats(const struct sched *s, struct sched_stats *ret)
{
    *ret = (struct sched_stats){
        .n_shards = s->n_owned,
        .n_tracked = (uint32_t)s->entries.n,
        .n_waiting = s->n_tracks[TRACK_WAITING],
        .n_ready = s->n_tracks[TRACK_READY],
        .n_claiming = s->n_tracks[TRACK_CLAIMING],
        .n_sending = s->n_tracks[TRACK_SENDING],
        .n_finishing = s->n_tracks[TRACK_FINISHING] + s->n_tracks[TRACK_PARKED],
        .n_ghosts = s->n_tracks[TRACK_GHOST],
        .n_claims_lost = s->n_claims_lost,
        .n_claims_early = s->n_claims_early,
        .n_finishes_lost = s->n_finishes_lost,
        .n_rescued = s->n_rescued,
    };
}

const char *gate_name(enum gate g)
{
    static const char *const names[] = {
        [GATE_NONE] = "none",         [GATE_TIME] = "time",
        [GATE_PAUSED] = "paused",     [GATE_CONCURRENCY] = "concurrency",
        [GATE_CAPACITY] = "capacity", [GATE_QUEUE] = "queue",
        [GATE_STORE] = "store",       [GATE_STOPPING] = "stopping",
        [GATE_UNREAD] = "unread",     [GATE_WORKER] = "worker",
        [GATE_FOREIGN] = "foreign",
    };

    assert(g >= GATE_NONE && g <= GATE_FOREIGN);
    return names[g];
}

static uint32_t place_in_lane(const struct entry *e)
{
    uint32_t place = 0;

    while ((e = e->prev))
        place++;
    return place;
}

static enum gate ready_gate(const struct sched *s, const struct svc *v, const struct entry *e)
{
    if (is_pull(v) && !v->lease_head)
        return GATE_WORKER;
    if (v->n_slots >= svc_concurrency(s, v))
        return GATE_CONCURRENCY;
    if (sched_in_flight(s) >= s->cfg.max_in_flight)
        return GATE_CAPACITY;
    return e->prev || svc_can_start(v, s) ? GATE_QUEUE : GATE_CONCURRENCY;
}

void sched_explain(const struct sched *s, wall_ms now, struct str service_name, int32_t shard,
                   int64_t id, wall_ms next_attempt_time, struct sched_explanation *ret)
{
    const struct svc *v = svc_find(s, service_name);
    const struct entry *e = sched_entry(s, id);

    *ret = (struct sched_explanation){.tracked = e != NULL, .gate = GATE_UNREAD};
    (void)member_set_text(ret->owner, sizeof(ret->owner), sched_owner(s, service_name, shard));
    if (v) {
        ret->n_ready = v->n_ready;
        ret->n_sending = v->n_slots;
        ret->concurrency = is_pull(v) ? 0 : svc_concurrency(s, v);
    }
    if (s->stopping)
        ret->gate = GATE_STOPPING;
    else if (e && e->track > TRACK_READY && e->track < TRACK_GHOST)
        ret->gate = GATE_NONE;
    else if (!s->store_up)
        ret->gate = GATE_STORE;
    else if (v && v->conf->paused)
        ret->gate = GATE_PAUSED;
    else if (next_attempt_time > now)
        ret->gate = GATE_TIME;
    else if (!sched_owns(s, service_name, shard))
        ret->gate = GATE_FOREIGN;
    else if (v && e && e->track == TRACK_READY) {
        ret->gate = ready_gate(s, v, e);
        ret->place = place_in_lane(e);
    }
}

/* By the hash over the members, all lanes of a shard alike. */
static void check_ownership(const struct sched *s, const struct svc *v)
{
    for (int32_t shard = 0; shard < v->n_shards; shard++) {
        bool owned = sched_owns(s, v->name, shard);

        for (size_t i = 0; i < TASK_LANES; i++) {
            const struct lane *l = v->lanes[(size_t)shard * TASK_LANES + i];

            assert(!l || l->owned == owned);
        }
    }
}

static void check_service(const struct sched *s, const struct svc *v)
{
    uint32_t n = 0;
    uint32_t retries = 0;

    for (int32_t i = 0; i < TASK_LANES; i++) {
        uint32_t len = 0;

        for (const struct entry *e = v->ready[i].head; e; e = e->next) {
            assert(e->track == TRACK_READY && e->lane->svc == v && e->lane->number == i);
            assert(e->next ? e->next->prev == e : v->ready[i].tail == e);
            len++;
        }
        assert(len == v->ready[i].n);
        n += len;
        retries += i >= TASK_RETRY_LANES ? len : 0;
    }
    assert(n == v->n_ready && retries == v->n_ready_retries);
    assert(v->n_retry_slots <= v->n_slots && v->n_slots <= v->n_in_flight);
    assert((v->ring_next != NULL) == (v->ring_prev != NULL));
    assert(!v->ring_next == !svc_can_start(v, s));
}

void sched_check(const struct sched *s)
{
    uint32_t n_tracks[TRACK_N] = {0};
    const struct entry *e;

    heap_check(&s->timers);
    heap_check(&s->scans);
    for (size_t pos = 0; (e = map64_each(&s->entries, &pos, NULL));) {
        bool is_timed =
            e->track == TRACK_WAITING || e->track == TRACK_GHOST || e->track == TRACK_PARKED;

        n_tracks[e->track]++;
        assert(is_timed == (e->timer.pos != 0));
        assert((e->finish != NULL) == (e->track == TRACK_FINISHING || e->track == TRACK_PARKED));
        assert(e->track != TRACK_GHOST || e->ghost);
        /* Of another's shard only what this node may have claimed. */
        assert(e->lane->owned || e->asked || !(is_queued(e->track) || e->track == TRACK_GHOST));
        assert(!e->lease || e->track == TRACK_CLAIMING);
        /* Claims come back to a lane that was filled up meanwhile. */
        assert(e->lane->n_tracked <= s->cfg.lane_limit + s->cfg.max_in_flight);
    }
    for (int i = 0; i < TRACK_N; i++)
        assert(n_tracks[i] == s->n_tracks[i]);
    assert(s->entries.n <= s->cfg.max_tracked);
    assert(sched_in_flight(s) <= s->cfg.max_in_flight);
    for (size_t i = 0; i < s->n_svcs; i++)
        check_service(s, s->svcs[i]);
    for (size_t i = 0; i < s->n_svcs; i++)
        check_ownership(s, s->svcs[i]);
    lease_list_check(s);
}
