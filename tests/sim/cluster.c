/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/cluster.h"

#include <stdlib.h>

#include "tests/sim/vnode.h"

struct lease_event {
    struct sim_event ev; /* first */
    int node;
    unsigned term; /* of an expiry: the membership that it ends */
};

static void lease_drop(struct sim_event *ev)
{
    free(ev);
}

static void lease_at(struct sim *s, int node, wall_ms at,
                     void (*fn)(struct sim *s, struct sim_event *ev))
{
    struct lease_event *l = sim_alloc(sizeof(*l));

    l->ev.drop = lease_drop;
    l->node = node;
    l->term = s->terms[node];
    sim_at(s, &l->ev, at, fn);
}

unsigned cluster_members(const struct sim *s)
{
    return s->members;
}

/* Each node learns what then holds, most of them soon. */
static void tell_all(struct sim *s)
{
    bool calm = s->healed || s->sc->punctual;

    for (int i = 0; i < s->sc->n_nodes; i++) {
        bool stale = !calm && !sim_between(s, 0, 5);

        vnode_view(s->nodes[i],
                   s->now + (stale ? sim_between(s, 0, CLUSTER_STALE_MS) : sim_latency(s)));
    }
}

static void set_member(struct sim *s, int node, bool is_member)
{
    s->terms[node]++;
    if (is_member)
        s->members |= 1u << node;
    else
        s->members &= ~(1u << node);
    sim_note(s, "node %lld is a member: %lld", node, is_member, 0, 0);
    tell_all(s);
}

void cluster_join(struct sim *s, int node)
{
    if (s->sc->clustered)
        set_member(s, node, true);
}

void cluster_leave(struct sim *s, int node)
{
    if (s->sc->clustered && (s->members & 1u << node))
        set_member(s, node, false);
}

static void on_expiry(struct sim *s, struct sim_event *ev)
{
    struct lease_event *l = (struct lease_event *)ev;

    if (l->term == s->terms[l->node]) {
        s->met[MET_LEASES_LOST]++;
        cluster_leave(s, l->node);
    }
    free(l);
}

void cluster_fall_silent(struct sim *s, int node)
{
    if (s->sc->clustered && (s->members & 1u << node))
        lease_at(s, node, s->now + CLUSTER_TTL_MS, on_expiry);
}

static void on_return(struct sim *s, struct sim_event *ev)
{
    struct lease_event *l = (struct lease_event *)ev;

    if (vnode_is_up(s->nodes[l->node]))
        cluster_join(s, l->node);
    free(l);
}

void cluster_return(struct sim *s, int node, wall_ms at)
{
    if (s->sc->clustered)
        lease_at(s, node, at, on_return);
}
