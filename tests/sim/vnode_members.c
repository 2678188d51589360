/* SPDX-License-Identifier: Apache-2.0 */
/* A node among members: the real decisions (node/core/members_view.h) with a line to etcd, a
 * heartbeat row and timers around them, as in node/members.c and node/house.c. */
#include <stdio.h>
#include <stdlib.h>

#include "node/core/members_view.h"
#include "node/core/ownership.h"
#include "tests/sim/cluster.h"
#include "tests/sim/vnode_internal.h"

#define THIRD_MS (CLUSTER_TTL_MS / 3)
#define AGAIN_MS 250 /* a heartbeat that could not be asked for */

/* What etcd told, kept as node/cluster/membership_list.c keeps it. */
struct vnode_members {
    struct members_view view;
    struct vnode *node;
    struct sim_event ask;  /* the next reading */
    struct sim_event beat; /* the next heartbeat */
    struct sim_event look; /* at the end of a view */
    struct member self;
    struct cluster_key keys[SIM_NODES_MAX];
    wall_ms etcd_at; /* when the last readings that were answered were asked for */
    wall_ms rows_at;
    bool is_beating;
    bool beat_again;
};

#define MEMBERS_OF(event, field)                                                                   \
    ((struct vnode_members *)((char *)(event)-offsetof(struct vnode_members, field)))

static void on_ask(struct sim *s, struct sim_event *ev);
static void on_beat(struct sim *s, struct sim_event *ev);
static void on_look(struct sim *s, struct sim_event *ev);

static void again(struct vnode *n, struct sim_event *ev, wall_ms at,
                  void (*fn)(struct sim *s, struct sim_event *ev))
{
    sim_forget(n->sim, ev);
    sim_at(n->sim, ev, at < n->paused_until ? n->paused_until : at, fn);
}

/* ---- Decisions ----------------------------------------------------------------------------- */

void vnode_set_members(struct vnode *n, unsigned members)
{
    struct str names[SIM_NODES_MAX];
    size_t n_names = 0;

    for (int i = 0; i < n->sim->sc->n_nodes; i++) {
        if (members & 1u << i)
            names[n_names++] = str_from(n->sim->nodes[i]->name);
    }
    n->members = members;
    (void)sched_members(n->sched, vnode_now(n), names, n_names, &n->actions);
}

static unsigned owners(const struct vnode_members *m)
{
    const struct sim *s = m->node->sim;
    struct str names[VIEW_MEMBERS_MAX];
    size_t n = members_view_owners(&m->view, names);
    unsigned bits = 0;

    for (size_t k = 0; k < n; k++) {
        for (int i = 0; i < s->sc->n_nodes; i++)
            bits |= str_eqz(names[k], s->nodes[i]->name) ? 1u << i : 0;
    }
    return bits;
}

static void count_view(struct sim *s, const struct vnode_members *m, enum view_source before)
{
    const struct members_view *v = &m->view;

    s->met[MET_NO_WITNESS] += v->source == VIEW_NONE && before != VIEW_NONE;
    s->met[MET_BY_ROWS] += v->source == VIEW_ROWS && before != VIEW_ROWS;
    for (size_t i = 0; v->source == VIEW_ETCD && i < v->n; i++)
        s->met[MET_OVERRULED] += v->members[i].state != v->view.lists[VIEW_ETCD].members[i].state;
}

/* Nobody owns by what is older than the TTL, and nobody whom it does not show active. */
static void check_view(const struct vnode_members *m)
{
    struct vnode *n = m->node;
    wall_ms at = m->etcd_at > m->rows_at ? m->etcd_at : m->rows_at;

    if (!(n->members & 1u << n->index))
        return;
    if (n->sim->now - at > CLUSTER_TTL_MS)
        sim_fail(n->sim, "node %d owns by a view that is %lld ms old", n->index,
                 (long long)(n->sim->now - at));
    if (m->view.is_drained || n->stopping)
        sim_fail(n->sim, "node %d owns while it gives up what it owns", n->index);
}

void vnode_members_check(const struct vnode *n)
{
    if (n->among && n->among->look.node.pos && n->among->look.node.key > n->sim->now)
        check_view(n->among);
}

static void look(struct vnode_members *m)
{
    struct vnode *n = m->node;
    struct sim *s = n->sim;
    enum view_source before = m->view.source;
    struct members_decision d;

    if (n->stopping)
        members_view_set_stopping(&m->view);
    members_view_decide(&m->view, s->now, &d);
    count_view(s, m, before);
    if (d.is_new_state) {
        m->self.state = m->view.state;
        again(n, &m->ask, s->now, on_ask);
        if (m->is_beating)
            m->beat_again = true;
        else
            again(n, &m->beat, s->now, on_beat);
    }
    if (d.has_new_owners) {
        s->met[MET_VIEWS]++;
        sim_note(s, "node %lld goes by the owners %lld, source %lld", n->index, owners(m),
                 m->view.source, 0);
        vnode_set_members(n, owners(m));
        cluster_check(s);
    }
    again(n, &m->look, d.look_again == INT64_MAX ? s->now + 60000 : d.look_again, on_look);
    check_view(m);
}

static void read_list(struct vnode_members *m, enum view_source source, wall_ms asked_at,
                      const struct member *list, size_t n)
{
    if (members_view_read(&m->view, source, asked_at, list, n, m->node->sim->now))
        abort();
    look(m);
}

static void on_look(struct sim *s, struct sim_event *ev)
{
    struct vnode_members *m = MEMBERS_OF(ev, look);

    if (s->now < m->node->paused_until) {
        again(m->node, ev, m->node->paused_until, on_look);
        return;
    }
    look(m);
    vnode_pass(m->node);
}

/* ---- etcd ---------------------------------------------------------------------------------- */

/* A question on its way, then the answer; or an event of the watch. */
struct line_event {
    struct sim_event ev; /* first */
    struct vnode *node;
    uint32_t life;
    wall_ms asked_at;
    struct member self;
    struct cluster_key keys[SIM_NODES_MAX];
    int64_t revision;
    int which; /* of an event: the key */
};

static void line_drop(struct sim_event *ev)
{
    free(ev);
}

static struct line_event *line_new(struct vnode *n)
{
    struct line_event *l = sim_alloc(sizeof(*l));

    l->ev.drop = line_drop;
    l->node = n;
    l->life = n->life;
    l->asked_at = n->sim->now;
    return l;
}

static void tell_etcd(struct vnode_members *m)
{
    struct member list[SIM_NODES_MAX];
    size_t n = 0;

    if (m->etcd_at == WALL_NONE) /* no reading yet: the list is not known */
        return;
    for (int i = 0; i < SIM_NODES_MAX; i++) {
        if (m->keys[i].is_there)
            list[n++] = m->keys[i].member;
    }
    read_list(m, VIEW_ETCD, m->etcd_at, list, n);
    vnode_pass(m->node);
}

/* Keys that the watch knows better stay; an answer that was overtaken makes nothing younger. */
static void take_answer(struct vnode_members *m, const struct line_event *l)
{
    for (int i = 0; i < SIM_NODES_MAX; i++) {
        if (m->keys[i].revision <= l->revision)
            m->keys[i] = l->keys[i];
    }
    if (l->asked_at > m->etcd_at)
        m->etcd_at = l->asked_at;
    tell_etcd(m);
}

static void on_answer(struct sim *s, struct sim_event *ev)
{
    struct line_event *l = (struct line_event *)ev;

    switch (vnode_reach(l->node, l->life)) {
    case REACH_LATER:
        sim_at(s, ev, l->node->paused_until, on_answer);
        return;
    case REACH_NOW:
        take_answer(l->node->among, l);
        break;
    case REACH_NEVER:
        break;
    }
    free(l);
}

static void on_arrival(struct sim *s, struct sim_event *ev)
{
    struct line_event *l = (struct line_event *)ev;
    bool is_stale = sim_chance(s, s->sc->stale_rate);

    if (!cluster_ask(s, l->node->index, &l->self, l->keys, &l->revision)) {
        free(l);
        return;
    }
    s->met[MET_STALE_ANSWERS] += is_stale;
    sim_at(s, ev, s->now + (is_stale ? sim_between(s, 0, CLUSTER_STALE_MS) : sim_latency(s)),
           on_answer);
}

static void on_ask(struct sim *s, struct sim_event *ev)
{
    struct vnode_members *m = MEMBERS_OF(ev, ask);
    struct line_event *l;

    again(m->node, ev, s->now + THIRD_MS, on_ask);
    if (s->now < m->node->paused_until)
        return;
    l = line_new(m->node);
    l->self = m->self;
    sim_at(s, &l->ev, s->now + sim_latency(s), on_arrival);
}

static void on_watch(struct sim *s, struct sim_event *ev)
{
    struct line_event *l = (struct line_event *)ev;
    struct vnode_members *m = l->node->among;

    switch (vnode_reach(l->node, l->life)) {
    case REACH_LATER:
        sim_at(s, ev, l->node->paused_until, on_watch);
        return;
    case REACH_NOW:
        if (m->keys[l->which].revision < l->keys[l->which].revision) {
            m->keys[l->which] = l->keys[l->which];
            tell_etcd(m);
        }
        break;
    case REACH_NEVER:
        break;
    }
    free(l);
}

void vnode_watch(struct vnode *n, int which, const struct cluster_key *key)
{
    struct sim *s = n->sim;
    bool is_stale = sim_chance(s, s->sc->stale_rate);
    struct line_event *l = line_new(n);

    l->which = which;
    l->keys[which] = *key;
    sim_at(s, &l->ev, s->now + (is_stale ? sim_between(s, 0, CLUSTER_STALE_MS) : sim_latency(s)),
           on_watch);
}

/* ---- The heartbeat row --------------------------------------------------------------------- */

static void on_beat(struct sim *s, struct sim_event *ev)
{
    struct vnode_members *m = MEMBERS_OF(ev, beat);
    struct vnode *n = m->node;

    if (s->now < n->paused_until || !n->store_up) {
        again(n, ev, s->now + AGAIN_MS, on_beat);
        return;
    }
    m->is_beating = true;
    m->beat_again = false;
    vnode_beat(n, m->self.epoch, m->self.state, CLUSTER_TTL_MS);
}

void vnode_beaten(struct vnode *n, int rc, wall_ms asked_at, const struct member *list,
                  size_t n_members)
{
    struct vnode_members *m = n->among;
    int64_t wait = members_view_beat_ms(&m->view, n->cfg.scan_interval_ms);

    m->is_beating = false;
    again(n, &m->beat, n->sim->now + (m->beat_again ? 0 : wait), on_beat);
    if (rc == ERR_CONFLICT)
        sim_fail(n->sim, "node %d is superseded, and nobody else has its name", n->index);
    if (rc)
        return;
    if (asked_at > m->rows_at)
        m->rows_at = asked_at;
    read_list(m, VIEW_ROWS, asked_at, list, n_members);
}

/* ---- Life ---------------------------------------------------------------------------------- */

void vnode_members_start(struct vnode *n, int64_t epoch)
{
    struct sim *s = n->sim;
    struct vnode_members *m = sim_alloc(sizeof(*m));

    m->node = n;
    m->etcd_at = m->rows_at = WALL_NONE;
    m->self = (struct member){
        .epoch = epoch, .state = MEMBER_JOINING, .hash_version = OWNERSHIP_HASH_VERSION};
    (void)member_set_text(m->self.name, sizeof(m->self.name), str_from(n->name));
    members_view_init(&m->view, n->name, CLUSTER_TTL_MS, s->now);
    members_view_set_epoch(&m->view, epoch);
    n->among = m;
    vnode_set_members(n, 0);
    sim_at(s, &m->ask, s->now, on_ask);
    sim_at(s, &m->beat, s->now, on_beat);
    sim_at(s, &m->look, s->now, on_look);
}

void vnode_members_end(struct vnode *n)
{
    struct vnode_members *m = n->among;

    n->members = 0;
    n->among = NULL;
    if (!m)
        return;
    sim_forget(n->sim, &m->ask);
    sim_forget(n->sim, &m->beat);
    sim_forget(n->sim, &m->look);
    members_view_fini(&m->view);
    free(m);
}

void vnode_members_ready(struct vnode *n)
{
    if (!n->among || n->among->view.is_ready)
        return;
    members_view_set_ready(&n->among->view);
    look(n->among);
}

void vnode_members_stop(struct vnode *n)
{
    if (n->among)
        look(n->among);
}

void vnode_members_leave(struct vnode *n)
{
    struct vnode_members *m = n->among;

    if (!m)
        return;
    cluster_leave(n->sim, n->index, m->self.epoch);
    if (n->store_up)
        vnode_beat(n, m->self.epoch, MEMBER_LEFT, CLUSTER_TTL_MS);
}

void vnode_drain(struct vnode *n, bool drain)
{
    struct vnode_members *m = n->among;

    if (!m || m->view.is_drained == drain)
        return;
    n->sim->met[MET_DRAINS] += drain;
    sim_note(n->sim, "node %lld drains: %lld", n->index, drain, 0, 0);
    members_view_set_drained(&m->view, drain);
    again(n, &m->look, n->sim->now, on_look);
}

bool vnode_has_view(const struct vnode *n, unsigned *ret_members)
{
    if (!n->sched || !n->among || n->sim->now < n->paused_until)
        return false;
    *ret_members = n->members;
    return true;
}

bool vnode_owns(const struct vnode *n, int service, int32_t shard)
{
    char name[8];

    if (!n->sched || n->sim->now < n->paused_until)
        return false;
    (void)snprintf(name, sizeof(name), "svc-%d", service);
    return str_eqz(sched_owner(n->sched, str_from(name), shard), n->name);
}
