/* SPDX-License-Identifier: Apache-2.0 */
/* What a node may ask for, counted a second time, outside the scheduler. */
#include <stdlib.h>

#include "node/core/ownership.h"
#include "tests/sim/vnode_internal.h"

#define BOOKS_KNOWN_MS 100 /* after a task was due, the node knows it */
#define BOOKS_EARLY_MS 50
#define BOOKS_EARLY_MAX 10 /* within that time */

/* Why an id counts against max_in_flight: values of the map. */
static char busy_claim;
static char busy_finish;

/* A quarter of a service's slots are the retries'; a single one is shared. */
static uint32_t retry_slots(const struct known_service *v)
{
    return v->concurrency >= 4 ? (uint32_t)v->concurrency / 4 : 1;
}

static void busy_put(struct vnode *n, int64_t id, char *why)
{
    if (map64_put(&n->busy, (uint64_t)id, why))
        abort();
    if (n->busy.n > n->cfg.max_in_flight)
        sim_fail(n->sim, "node %d has %zu in flight, %u are allowed", n->index, n->busy.n,
                 n->cfg.max_in_flight);
}

/* Nothing more urgent of the same service is left waiting. */
static void check_order(struct vnode *n, int64_t id)
{
    struct sim *s = n->sim;
    bool live;
    const struct task *t = fake_db_find(s->db, id, &live);
    const struct task *other;

    if (t->status != TASK_PENDING)
        return;
    for (size_t pos = 0; (other = fake_db_each(s->db, true, &pos));) {
        if (other->status == TASK_PENDING && other->priority > t->priority &&
            other->next_attempt_time < sim_store_now(s) - BOOKS_KNOWN_MS &&
            str_eq(other->service_name, t->service_name) &&
            !map64_find(&n->busy, (uint64_t)other->id))
            sim_fail(s, "task %lld of priority %d goes before task %lld of priority %d",
                     (long long)id, t->priority, (long long)other->id, other->priority);
    }
}

/* By this node's own view of the members. */
static bool is_owner(const struct vnode *n, struct str service_name, int32_t shard)
{
    struct str names[SIM_NODES_MAX];
    int nodes[SIM_NODES_MAX];
    size_t n_names = 0;
    size_t owner;

    for (int i = 0; i < n->sim->sc->n_nodes; i++) {
        if (!(n->members & 1u << i))
            continue;
        nodes[n_names] = i;
        names[n_names++] = str_from(n->sim->nodes[i]->name);
    }
    owner = ownership_find(names, n_names, service_name, shard);
    return owner != OWNERSHIP_NOBODY && nodes[owner] == n->index;
}

void books_scan(struct vnode *n, const struct scan_key *key)
{
    if (!is_owner(n, key->service_name, key->shard))
        sim_fail(n->sim, "node %d scans a shard of another member", n->index);
}

/* By its own view a node claims its own tasks only; a claim whose answer was lost it asks again
 * wherever the task belongs by now, since it may have it. */
static void check_owner(struct vnode *n, const struct claim_item *item)
{
    bool live;
    const struct task *t = fake_db_find(n->sim->db, item->id, &live);
    bool asked_before = map64_remove(&n->unknown, (uint64_t)item->id) != NULL;

    if (!asked_before && t && !is_owner(n, t->service_name, t->shard))
        sim_fail(n->sim, "node %d claims task %lld of another member", n->index,
                 (long long)item->id);
}

void books_unknown(struct vnode *n, int64_t id)
{
    if (map64_put(&n->unknown, (uint64_t)id, n))
        abort();
}

void books_claim(struct vnode *n, const struct claim_item *item)
{
    struct known_service *v = &n->services[oracle_service_of(n->sim, item->id)];

    sim_note(n->sim, "node %lld claims task %lld after attempt %lld", n->index, item->id,
             item->attempt, 0);
    if (map64_find(&n->busy, (uint64_t)item->id))
        sim_fail(n->sim, "node %d claims task %lld, which it has in flight", n->index,
                 (long long)item->id);
    check_owner(n, item);
    if (n->sim->sc->in_order)
        check_order(n, item->id);
    busy_put(n, item->id, &busy_claim);
    if (!v->n_slots || v->n_retries_max < retry_slots(v))
        v->n_retries_max = retry_slots(v);
    if (n->stopping)
        sim_fail(n->sim, "node %d claims while it stops", n->index);
    if (v->paused)
        sim_fail(n->sim, "node %d claims task %lld of a paused service", n->index,
                 (long long)item->id);
    if (v->delivery == DELIVERY_PULL && !vnode_has_lease(n, oracle_service_of(n->sim, item->id)))
        sim_fail(n->sim, "node %d claims task %lld, which no worker asks for", n->index,
                 (long long)item->id);
    if (v->n_slots++ >= (uint32_t)v->concurrency && v->delivery != DELIVERY_PULL)
        sim_fail(n->sim, "node %d goes beyond the concurrency %d of a service", n->index,
                 v->concurrency);
}

void books_claimed(struct vnode *n, int64_t id, enum claim_end end)
{
    if (end == CLAIM_SENDS)
        return;
    n->services[oracle_service_of(n->sim, id)].n_slots--;
    if (end == CLAIM_OVER && map64_find(&n->busy, (uint64_t)id) == &busy_claim)
        map64_remove(&n->busy, (uint64_t)id);
}

/* A node whose reading of the store's clock is ahead asks again, but not all the time. */
void books_early(struct vnode *n, int64_t id)
{
    struct early *e = &n->early[id % VNODE_EARLY];

    if (e->id != id || n->sim->now - e->since > BOOKS_EARLY_MS)
        *e = (struct early){.id = id, .since = n->sim->now};
    if (++e->n > BOOKS_EARLY_MAX)
        sim_fail(n->sim, "node %d claimed task %lld too early %d times within %d ms", n->index,
                 (long long)id, e->n, BOOKS_EARLY_MS);
}

void books_send(struct vnode *n, const struct flight *f)
{
    struct known_service *v = &n->services[f->service];

    if (f->task->retry_count && v->n_retries++ >= v->n_retries_max)
        sim_fail(n->sim, "node %d: retries of a service take more than their %u slots", n->index,
                 v->n_retries_max);
}

void books_answered(struct vnode *n, const struct flight *f)
{
    n->services[f->service].n_slots--;
    n->services[f->service].n_retries -= f->task->retry_count > 0;
}

/* G7: how long a task may be put off. */
static void check_delay(struct vnode *n, const struct finish_item *item, wall_ms decided_at)
{
    const struct retry_policies *set = &n->base->set;
    int64_t delay = item->next_attempt_time - decided_at;
    int64_t cap = set->retry_after_cap_ms;

    for (size_t i = 0; i < set->n; i++)
        cap = set->policies[i].backoff.cap_ms > cap ? set->policies[i].backoff.cap_ms : cap;
    if (item->kind == FINISH_PUT_BACK)
        cap = set->snooze_cap_ms;
    if (delay <= 0 || delay > cap)
        sim_fail(n->sim, "G7: task %lld is put off by %lld ms, the limit is %lld",
                 (long long)item->id, (long long)delay, (long long)cap);
}

void books_finish(struct vnode *n, const struct finish_item *item)
{
    const struct flight *f = map64_find(&n->flights, (uint64_t)item->id);
    const char *why = map64_find(&n->busy, (uint64_t)item->id);

    sim_note(n->sim, "node %lld finishes task %lld, attempt %lld, kind %lld", n->index, item->id,
             item->attempt, item->kind);
    /* When a claim was given back at once is not known here: the store may have been away since. */
    if ((item->kind == FINISH_RETRY || item->kind == FINISH_PUT_BACK) && why != &busy_finish &&
        (f || !why))
        check_delay(n, item, f ? f->decided_at : vnode_now(n));
    busy_put(n, item->id, &busy_finish);
}

void books_finished(struct vnode *n, const struct finish_item *item)
{
    if (!map64_remove(&n->busy, (uint64_t)item->id))
        abort();
}

void books_clear(struct vnode *n)
{
    map64_fini(&n->busy);
    n->busy = (struct map64){0};
    map64_fini(&n->unknown);
    n->unknown = (struct map64){0};
    for (int i = 0; i < SIM_SERVICES_MAX; i++)
        n->services[i] = (struct known_service){0};
}
