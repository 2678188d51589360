/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: the claims that workers ask for.
 *
 * A lease stands in its service's queue. The pump claims READY tasks for the first one; what it
 * claims for a lease within one pump is that lease's round, after which the lease leaves the queue,
 * so that the first tasks do not wait for later ones. A round that brought tasks ends the lease;
 * one that brought none puts it back, before those that came later.
 *
 * Failures: a lease that is ended while its round is out stays in the list of all until the last
 * claim is back, and what is won for it is given back. A row that an earlier lease claimed, in an
 * answer that was lost, is handed on only if its time is as long as the present one was promised.
 */
#include "node/core/sched_pull.h"

#include <stdlib.h>

#include "node/core/sched_lease.h"

#define GHOST_LEAD_SCANS 4 /* a full read begins so many scans late at most */
#define GHOST_SHARE 2      /* ghosts of leased rows take one of so many places */

static void lease_open(struct sched *s, struct lease *l, bool first)
{
    struct svc *v = l->svc;

    assert(!l->open && !l->n_out && !l->ended);
    l->open = true;
    l->prev = first ? NULL : v->lease_tail;
    l->next = first ? v->lease_head : NULL;
    *(l->prev ? &l->prev->next : &v->lease_head) = l;
    *(l->next ? &l->next->prev : &v->lease_tail) = l;
    ring_update(s, v);
}

static void lease_close(struct sched *s, struct lease *l)
{
    struct svc *v = l->svc;

    assert(l->open);
    l->open = false;
    *(l->prev ? &l->prev->next : &v->lease_head) = l->next;
    *(l->next ? &l->next->prev : &v->lease_tail) = l->prev;
    l->prev = l->next = NULL;
    ring_update(s, v);
    lease_news(s, v);
}

static void lease_free(struct sched *s, struct lease *l)
{
    *(l->prev_all ? &l->prev_all->next_all : &s->leases) = l->next_all;
    if (l->next_all)
        l->next_all->prev_all = l->prev_all;
    l->svc->n_leases--;
    free(l);
}

int sched_can_lease(const struct sched *s, struct str service_name)
{
    const struct svc *v = svc_find(s, service_name);

    if (s->stopping)
        return ERR_SHUTDOWN;
    if (!v || v->gone)
        return ERR_NOT_FOUND;
    return is_pull(v) ? 0 : ERR_CONFLICT;
}

int sched_lease(struct sched *s, wall_ms now, const struct lease_ask *ask, struct lease **ret)
{
    int rc = sched_can_lease(s, ask->service_name);
    struct svc *v;
    struct lease *l;

    s->now = now;
    if (rc)
        return rc;
    assert(ask->want > 0 && ask->visibility_ms >= 0);
    v = svc_find(s, ask->service_name);
    l = sched_alloc(sizeof(*l));
    l->svc = v;
    l->ctx = ask->ctx;
    l->number = ++s->n_leases;
    l->want = ask->want;
    l->visibility_ms = ask->visibility_ms;
    l->next_all = s->leases;
    if (l->next_all)
        l->next_all->prev_all = l;
    s->leases = l;
    v->n_leases++;
    lease_open(s, l, false);
    *ret = l;
    return 0;
}

void sched_lease_end(struct sched *s, wall_ms now, struct lease *l)
{
    if (!l)
        return;
    s->now = now;
    if (l->open) {
        lease_close(s, l);
        lease_free(s, l);
    } else {
        l->ended = true;
    }
}

bool sched_lease_is_claiming(const struct lease *l)
{
    return l->n_out > 0;
}

uint32_t sched_pull_ready(const struct sched *s, struct str service_name)
{
    const struct svc *v = svc_find(s, service_name);

    return v && is_pull(v) && !v->lease_head ? v->n_ready : 0;
}

uint64_t sched_pull_news(const struct sched *s)
{
    return s->pull_news;
}

size_t sched_other_owners(const struct sched *s, struct str service_name, struct str *ret,
                          size_t cap)
{
    const struct svc *v = svc_find(s, service_name);
    size_t n = 0;

    for (int32_t shard = 0; v && shard < v->conf->shards_seen && n < cap; shard++) {
        struct str owner = sched_owner(s, service_name, shard);
        size_t i = 0;

        while (i < n && !str_eq(ret[i], owner))
            i++;
        if (i == n && owner.p && !str_eq(owner, s->cfg.node))
            ret[n++] = owner;
    }
    return n;
}

void lease_news(struct sched *s, const struct svc *v)
{
    s->pull_news += is_pull(v) && !v->lease_head && v->n_ready;
}

/* ---- Claims ------------------------------------------------------------------------------- */

void lease_take(struct sched *s, struct entry *e, struct claim_item *item)
{
    struct lease *l = e->lane->svc->lease_head;

    assert(l && l->n_out < l->want && !e->lease);
    if (!l->n_out) {
        l->next_round = s->round;
        s->round = l;
    }
    e->lease = l;
    if (l->visibility_ms)
        item->timeout_ms = l->visibility_ms;
    if (++l->n_out == l->want)
        lease_close(s, l);
}

void lease_round_end(struct sched *s)
{
    while (s->round) {
        struct lease *l = s->round;

        s->round = l->next_round;
        l->next_round = NULL;
        if (l->open)
            lease_close(s, l);
    }
}

bool lease_give(struct sched *s, struct lease *l, struct task *t, struct actions *out)
{
    int64_t length = t->deadline_at - t->claimed_at - s->cfg.ghost_margin_ms;
    struct action *a;

    if (l->ended || (!t->timeout_ms && length < l->visibility_ms))
        return false;
    a = actions_add(out, ACTION_LEASED);
    a->leased.ctx = l->ctx;
    a->leased.task = t;
    l->n_got++;
    return true;
}

void lease_claim_back(struct sched *s, struct lease *l, struct actions *out)
{
    if (!l)
        return;
    assert(!l->open && l->n_out);
    if (--l->n_out)
        return;
    if (l->ended) {
        lease_free(s, l);
    } else if (l->n_got) {
        actions_add(out, ACTION_LEASE_DONE)->leased.ctx = l->ctx;
        lease_free(s, l);
    } else {
        lease_open(s, l, true);
    }
}

/* ---- Ghosts ------------------------------------------------------------------------------- */

/* Workers may hold far more tasks, and longer, than a node delivers at once: only those whose
 * deadline comes before the next full read are kept in memory, and never so many that due tasks
 * find no place. */
bool ghost_is_near(const struct sched *s, const struct svc *v, const struct scan_row *r)
{
    int64_t ahead = s->cfg.full_read_ms + GHOST_LEAD_SCANS * s->cfg.scan_interval_ms;

    return !is_pull(v) || r->own_orphan ||
           (r->deadline_at <= s->now + ahead &&
            s->n_tracks[TRACK_GHOST] <= s->cfg.max_tracked / GHOST_SHARE);
}

/* ---- Books -------------------------------------------------------------------------------- */

void lease_list_check(const struct sched *s)
{
    const struct entry *e;
    size_t n_entries = 0;
    size_t n_out = 0;

    assert(!s->round);
    for (const struct lease *l = s->leases; l; l = l->next_all) {
        assert(l->open == !l->n_out && !(l->open && (l->ended || l->n_got)));
        assert(l->n_out + l->n_got <= l->want && l->svc->n_leases);
        assert(!l->open || (l->prev ? l->prev->next : l->svc->lease_head) == l);
        assert(!l->open || (l->next ? l->next->prev : l->svc->lease_tail) == l);
        n_out += l->n_out;
    }
    for (size_t pos = 0; (e = map64_each(&s->entries, &pos, NULL));) {
        assert(!e->lease || e->lease->svc == e->lane->svc);
        n_entries += e->lease != NULL;
    }
    assert(n_entries == n_out);
}

void lease_list_free(struct sched *s)
{
    while (s->leases)
        lease_free(s, s->leases);
}
