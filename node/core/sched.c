/* SPDX-License-Identifier: Apache-2.0 */
#include "node/core/sched.h"

#include <stdlib.h>
#include <string.h>

#include "node/core/sched_lease.h"

#define BIT(t) (1u << (t))

/* The life of an entry: to which tracks each may move. */
static const unsigned track_next[TRACK_N] = {
    [TRACK_NEW] = BIT(TRACK_WAITING) | BIT(TRACK_READY) | BIT(TRACK_GHOST),
    [TRACK_WAITING] = BIT(TRACK_WAITING) | BIT(TRACK_READY) | BIT(TRACK_GHOST) | BIT(TRACK_GONE),
    [TRACK_READY] = BIT(TRACK_CLAIMING) | BIT(TRACK_WAITING) | BIT(TRACK_GHOST) | BIT(TRACK_GONE),
    [TRACK_CLAIMING] = BIT(TRACK_SENDING) | BIT(TRACK_READY) | BIT(TRACK_WAITING) |
                       BIT(TRACK_FINISHING) | BIT(TRACK_PARKED) | BIT(TRACK_GONE),
    [TRACK_SENDING] = BIT(TRACK_FINISHING) | BIT(TRACK_PARKED),
    [TRACK_FINISHING] = BIT(TRACK_PARKED) | BIT(TRACK_WAITING) | BIT(TRACK_GONE),
    [TRACK_PARKED] = BIT(TRACK_PARKED) | BIT(TRACK_FINISHING),
    [TRACK_GHOST] = BIT(TRACK_GHOST) | BIT(TRACK_FINISHING) | BIT(TRACK_WAITING) | BIT(TRACK_GONE),
};

static bool holds_slot(enum track t)
{
    return t == TRACK_CLAIMING || t == TRACK_SENDING;
}

static bool is_in_flight(enum track t)
{
    return holds_slot(t) || t == TRACK_FINISHING || t == TRACK_PARKED;
}

void sched_must(int rc)
{
    if (rc)
        abort();
}

void *sched_alloc(size_t size)
{
    void *p = calloc(1, size);

    if (!p)
        abort();
    return p;
}

void sched_store_pause(struct sched *s)
{
    if (s->now < s->pause_until) /* one batch, many items */
        return;
    s->pause_ms = s->pause_ms ? s->pause_ms * 2 : SCHED_STORE_PAUSE_MS;
    if (s->pause_ms > SCHED_STORE_PAUSE_MAX_MS)
        s->pause_ms = SCHED_STORE_PAUSE_MAX_MS;
    s->pause_until = s->now + s->pause_ms;
}

uint32_t sched_in_flight(const struct sched *s)
{
    return s->n_tracks[TRACK_CLAIMING] + s->n_tracks[TRACK_SENDING] + s->n_tracks[TRACK_FINISHING] +
           s->n_tracks[TRACK_PARKED];
}

struct action *actions_add(struct actions *a, enum action_kind kind)
{
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64;
        struct action *list = realloc(a->list, cap * sizeof(*list));

        if (!list)
            abort();
        a->list = list;
        a->cap = cap;
    }
    struct action *action = &a->list[a->n++];
    memset(action, 0, sizeof(*action));
    action->kind = kind;
    return action;
}

void actions_fini(struct actions *a)
{
    free(a->list);
    *a = (struct actions){0};
}

/* The one place where an entry changes its track; keeps every count. Timers and queues are the
 * callers' (entry_wait, ready_push, …), which end here. */
void entry_move(struct sched *s, struct entry *e, enum track to)
{
    enum track from = e->track;
    struct lane *l = e->lane;
    struct svc *v = l->svc;
    bool retry = l->number >= TASK_RETRY_LANES;

    assert(track_next[from] & BIT(to));
    if (from != TRACK_NEW)
        s->n_tracks[from]--;
    if (to != TRACK_GONE)
        s->n_tracks[to]++;
    l->n_tracked += (uint32_t)is_queued(to) - (uint32_t)is_queued(from);
    v->n_slots += (uint32_t)holds_slot(to) - (uint32_t)holds_slot(from);
    if (retry)
        v->n_retry_slots += (uint32_t)holds_slot(to) - (uint32_t)holds_slot(from);
    v->n_in_flight += (uint32_t)is_in_flight(to) - (uint32_t)is_in_flight(from);
    e->track = (uint8_t)to;
    if (holds_slot(from) && !holds_slot(to))
        ring_update(s, v);
    if (is_queued(from) && !is_queued(to))
        lane_wake(s, l);
}

bool svc_may_track(const struct sched *s, const struct svc *v)
{
    size_t max = s->cfg.max_tracked;

    if (s->entries.n >= max)
        return false;
    return s->entries.n < max - max / 4 || v->n_entries < max / (2 * s->n_svcs) + 1;
}

static bool has_room(const struct sched *s, const struct lane *l)
{
    return l->n_tracked < s->cfg.lane_limit && svc_may_track(s, l->svc);
}

struct entry *entry_add(struct sched *s, struct lane *l, int64_t id, int32_t attempt,
                        wall_ms next_attempt_time)
{
    assert(id > 0 && !sched_entry(s, id));
    if (!has_room(s, l)) {
        lane_set_back(l, next_attempt_time, id);
        return NULL;
    }
    struct entry *e = sched_alloc(sizeof(*e));
    e->id = id;
    e->lane = l;
    e->attempt = attempt;
    e->next_attempt_time = next_attempt_time;
    e->track = TRACK_NEW;
    l->svc->n_entries++;
    sched_must(map64_put(&s->entries, (uint64_t)id, e));
    return e;
}

/* Takes the entry out of the structure that its track stands for. */
static void entry_detach(struct sched *s, struct entry *e)
{
    if (e->timer.pos)
        heap_remove(&s->timers, &e->timer);
    if (e->track == TRACK_READY)
        ready_remove(s, e);
}

void entry_forget(struct sched *s, struct entry *e)
{
    entry_detach(s, e);
    map64_remove(&s->entries, (uint64_t)e->id);
    e->lane->svc->n_entries--;
    entry_move(s, e, TRACK_GONE);
    free(e->ghost);
    free(e->finish);
    free(e);
}

void entry_wait(struct sched *s, struct entry *e, wall_ms until)
{
    entry_detach(s, e);
    free(e->ghost);
    e->ghost = NULL;
    free(e->finish);
    e->finish = NULL;
    e->next_attempt_time = until;
    entry_move(s, e, TRACK_WAITING);
    sched_must(heap_add(&s->timers, &e->timer, until));
}

int sched_new(const struct sched_config *cfg, uint64_t seed, struct sched **ret)
{
    if (cfg->lookahead_ms < 1 || cfg->scan_interval_ms < 1 || cfg->slack_ms < 1 ||
        cfg->full_read_ms < 1 || cfg->ghost_margin_ms < 1 || cfg->default_timeout_ms < 1 ||
        cfg->default_concurrency < 1 || cfg->lane_limit < 2 || cfg->max_tracked < 1 ||
        cfg->max_in_flight < 1 || !cfg->policies || !cfg->policies->n)
        return ERR_INVALID;
    struct sched *s = calloc(1, sizeof(*s));

    if (!s)
        return ERR_NOMEM;
    s->notes = notes_new();
    if (!s->notes) {
        free(s);
        return ERR_NOMEM;
    }
    s->cfg = *cfg;
    s->rng.state = seed;
    s->now = WALL_NONE;
    s->pause_until = WALL_NONE;
    *ret = s;
    return 0;
}

void sched_free(struct sched *s)
{
    struct entry *e;

    if (!s)
        return;
    for (size_t pos = 0; (e = map64_each(&s->entries, &pos, NULL));) {
        free(e->ghost);
        free(e->finish);
        free(e);
    }
    map64_fini(&s->entries);
    lease_list_free(s);
    for (size_t i = 0; i < s->n_svcs; i++)
        svc_free(s, s->svcs[i]);
    free(s->svcs);
    free(s->members);
    free(s->notes);
    map64_fini(&s->services);
    heap_fini(&s->timers);
    heap_fini(&s->scans);
    free(s);
}

static void timer_due(struct sched *s, struct entry *e, struct actions *out)
{
    heap_remove(&s->timers, &e->timer);
    switch ((enum track)e->track) {
    case TRACK_WAITING:
        ready_push(s, e);
        break;
    case TRACK_GHOST:
        rescue_start(s, e, out);
        break;
    case TRACK_PARKED:
        finish_again(s, e, out);
        break;
    default:
        abort();
    }
}

void sched_tick(struct sched *s, wall_ms now, struct actions *out)
{
    struct heap_node *first;

    s->now = now;
    while ((first = heap_first(&s->timers)) && first->key <= now)
        timer_due(s, (struct entry *)first, out);
    claim_pump(s, out);
    scan_plan(s, out);
}

wall_ms sched_next_wakeup(const struct sched *s)
{
    const struct heap_node *timer = heap_first(&s->timers);
    const struct heap_node *scan = heap_first(&s->scans);
    wall_ms at = timer ? timer->key : WALL_MAX;

    if (!s->store_up)
        return at;
    if (scan && !s->n_scans_out && scan->key < at)
        at = scan->key;
    if (s->ring && s->pause_until > s->now && s->pause_until < at)
        at = s->pause_until;
    return at;
}

enum hint_result sched_hint(struct sched *s, wall_ms now, const struct hint *h)
{
    struct svc *v = svc_find(s, h->service_name);

    s->now = now;
    if (!v || v->gone)
        return HINT_UNKNOWN;
    struct lane *l = svc_lane(s, v, h->shard, h->lane); /* new ones are scanned from now on */
    if (v->conf->paused || h->next_attempt_time > now + s->cfg.lookahead_ms)
        return HINT_TAKEN;
    if (!l->owned || s->stopping)
        return HINT_FOREIGN;
    struct entry *e = sched_entry(s, h->id);

    if (e && is_queued(e->track) && e->lane != l && e->attempt <= h->attempt) {
        entry_forget(s, e); /* its priority was changed, or it waits for a retry now */
        e = NULL;
    }
    if (!e) {
        e = entry_add(s, l, h->id, h->attempt, h->next_attempt_time);
        if (e)
            entry_wait(s, e, h->next_attempt_time);
    } else if (e->track == TRACK_WAITING && e->attempt <= h->attempt &&
               h->next_attempt_time < e->next_attempt_time) {
        /* Never later than known: a claim that comes too early is told the right time. */
        e->attempt = h->attempt;
        e->next_attempt_time = h->next_attempt_time;
        heap_move(&s->timers, &e->timer, h->next_attempt_time);
    }
    return HINT_TAKEN;
}

void sched_store_state(struct sched *s, wall_ms now, bool up)
{
    s->now = now;
    s->store_up = up;
    s->pause_until = WALL_NONE;
    s->pause_ms = 0;
}

static bool is_idle_entry(const struct entry *e, const void *arg)
{
    (void)arg;
    return is_queued(e->track) || e->track == TRACK_GHOST;
}

void sched_stop(struct sched *s, wall_ms now, struct actions *out)
{
    (void)out;
    s->now = now;
    s->stopping = true;
    for (size_t i = 0; i < s->n_svcs; i++)
        svc_each_lane(s, s->svcs[i], lane_stop);
    drop_entries(s, is_idle_entry, NULL);
}

bool sched_is_idle(const struct sched *s)
{
    return sched_in_flight(s) == 0;
}
