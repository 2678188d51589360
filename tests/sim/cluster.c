/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/vnode.h"

#define CHECKED_SHARDS 8

struct key {
    struct sim_event expiry; /* first; waits while the key is there */
    int node;
    struct cluster_key k;
};

struct cluster {
    struct key keys[SIM_NODES_MAX];
    int64_t revision;
    bool is_down;
    bool is_full;
    unsigned cut; /* nodes that do not reach it */
};

struct cluster *cluster_new(void)
{
    struct cluster *c = sim_alloc(sizeof(*c));

    for (int i = 0; i < SIM_NODES_MAX; i++)
        c->keys[i].node = i;
    return c;
}

void cluster_free(struct cluster *c)
{
    free(c);
}

static bool is_reached(const struct sim *s, int node)
{
    return !s->cluster->is_down && !(s->cluster->cut & 1u << node);
}

/* ---- Keys ---------------------------------------------------------------------------------- */

/* Watches tell of it, those that are connected. */
static void change(struct sim *s, struct key *key, const struct member *m)
{
    key->k.is_there = m != NULL;
    if (m)
        key->k.member = *m;
    key->k.revision = ++s->cluster->revision;
    sim_note(s, "etcd: node %lld is there: %lld, state %lld, epoch %lld", key->node, m != NULL,
             key->k.member.state, key->k.member.epoch);
    for (int i = 0; i < s->sc->n_nodes; i++) {
        if (!is_reached(s, i))
            continue;
        if (sim_chance(s, s->sc->lost_watch_rate))
            s->met[MET_EVENTS_LOST]++;
        else
            vnode_watch(s->nodes[i], key->node, &key->k);
    }
}

static void drop(struct sim *s, struct key *key)
{
    sim_forget(s, &key->expiry);
    change(s, key, NULL);
}

static void on_expiry(struct sim *s, struct sim_event *ev)
{
    struct key *key = (struct key *)ev;

    if (s->cluster->is_down) { /* nobody counts; afterwards leases begin anew */
        sim_at(s, ev, s->now + CLUSTER_TTL_MS, on_expiry);
        return;
    }
    s->met[MET_LEASES_LOST]++;
    drop(s, key);
}

bool cluster_ask(struct sim *s, int node, const struct member *self,
                 struct cluster_key ret[SIM_NODES_MAX], int64_t *ret_revision)
{
    struct cluster *c = s->cluster;
    struct key *key = &c->keys[node];
    bool is_own = !key->k.is_there || key->k.member.epoch == self->epoch;

    if (!is_reached(s, node))
        return false;
    if (is_own && !c->is_full && (!key->k.is_there || key->k.member.state != self->state))
        change(s, key, self);
    if (is_own && key->k.is_there) {
        sim_forget(s, &key->expiry);
        sim_at(s, &key->expiry, s->now + CLUSTER_TTL_MS, on_expiry);
    }
    for (int i = 0; i < SIM_NODES_MAX; i++)
        ret[i] = c->keys[i].k;
    *ret_revision = c->revision;
    return true;
}

void cluster_leave(struct sim *s, int node, int64_t epoch)
{
    struct key *key = &s->cluster->keys[node];

    if (is_reached(s, node) && key->k.is_there && key->k.member.epoch == epoch)
        drop(s, key);
}

/* ---- Troubles ------------------------------------------------------------------------------ */

void cluster_go_down(struct sim *s)
{
    s->met[MET_ETCD_DOWN]++;
    sim_note(s, "etcd is away", 0, 0, 0, 0);
    s->cluster->is_down = true;
}

void cluster_fill_up(struct sim *s)
{
    s->met[MET_ETCD_FULL]++;
    sim_note(s, "etcd takes no writes", 0, 0, 0, 0);
    s->cluster->is_full = true;
}

void cluster_cut(struct sim *s, int node)
{
    s->met[MET_ETCD_CUT]++;
    sim_note(s, "node %lld does not reach etcd", node, 0, 0, 0);
    s->cluster->cut |= 1u << node;
}

void cluster_end_trouble(struct sim *s)
{
    sim_note(s, "etcd is well", 0, 0, 0, 0);
    s->cluster->is_down = s->cluster->is_full = false;
    s->cluster->cut = 0;
}

void cluster_lose_lease(struct sim *s, int node)
{
    struct key *key = &s->cluster->keys[node];

    if (!key->k.is_there || s->cluster->is_down)
        return;
    s->met[MET_LEASES_LOST]++;
    drop(s, key);
}

/* ---- What must hold ------------------------------------------------------------------------ */

/* How many of the nodes that run take a shard for theirs. */
static int count_owners(const struct sim *s, int service, int32_t shard)
{
    int n = 0;

    for (int i = 0; i < s->sc->n_nodes; i++)
        n += vnode_owns(s->nodes[i], service, shard);
    return n;
}

/* Whether all nodes that run go by the same members, which a fresh reading names. */
static bool is_one_view(const struct sim *s, unsigned *ret_members, int *ret_n)
{
    bool is_one = true;

    *ret_n = 0;
    for (int i = 0; i < s->sc->n_nodes; i++) {
        unsigned members;

        if (!vnode_has_view(s->nodes[i], &members))
            continue;
        is_one &= *ret_n == 0 || members == *ret_members;
        *ret_members = members;
        ++*ret_n;
    }
    return is_one;
}

void cluster_check(struct sim *s)
{
    unsigned members = 0;
    int n;
    bool is_one = is_one_view(s, &members, &n);

    s->met[MET_SPLIT_VIEWS] += !is_one;
    if (!is_one || n < 2)
        return;
    for (int service = 0; service < s->sc->n_services; service++) {
        for (int32_t shard = 0; shard < CHECKED_SHARDS; shard++) {
            if (count_owners(s, service, shard) > 1)
                sim_fail(s, "shard %d of service %d has two owners by one view", shard, service);
        }
    }
}

bool cluster_is_settled(const struct sim *s)
{
    unsigned members = 0;
    int n;

    if (!is_one_view(s, &members, &n) || n != s->sc->n_nodes ||
        members != (1u << s->sc->n_nodes) - 1)
        return false;
    for (int service = 0; service < s->sc->n_services; service++) {
        for (int32_t shard = 0; shard < CHECKED_SHARDS; shard++) {
            if (count_owners(s, service, shard) != 1)
                return false;
        }
    }
    return true;
}
