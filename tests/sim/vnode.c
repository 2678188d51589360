/* SPDX-License-Identifier: Apache-2.0 */
/* A node's life: boot, passes over the scheduler, pauses, crashes, stops. */
#include "tests/sim/vnode.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "node/core/nodecall.h"
#include "node/core/ownership.h"
#include "tests/sim/vnode_internal.h"

#define VNODE_TICK_MAX_MS 1000
#define VNODE_GRACE_MS 10000

#define NODE_OF(event, member) ((struct vnode *)((char *)(event)-offsetof(struct vnode, member)))

static void on_boot(struct sim *s, struct sim_event *ev);

struct vnode *vnode_new(struct sim *s, int index, const struct vnode_config *cfg)
{
    struct vnode *n = sim_alloc(sizeof(*n));

    n->sim = s;
    n->index = index;
    n->base = cfg;
    (void)snprintf(n->name, sizeof(n->name), "node-%d", index);
    n->cfg = cfg->sched;
    n->cfg.node = str_from(n->name);
    n->paused_until = WALL_NONE;
    return n;
}

static void vnode_down(struct vnode *n)
{
    struct sim *s = n->sim;

    n->life++;
    *n->claimed_by = '\0';
    sim_forget(s, &n->wake);
    sim_forget(s, &n->sync);
    sim_forget(s, &n->reread);
    sim_forget(s, &n->boot);
    vnode_members_end(n);
    vparcels_drop(n);
    vnode_drop_flights(n);
    vnode_drop_leases(n);
    books_clear(n);
    sched_free(n->sched);
    n->sched = NULL;
    n->actions.n = 0;
    n->stopping = false;
    n->reading_services = false;
    n->paused_until = WALL_NONE;
}

void vnode_free(struct vnode *n)
{
    if (!n)
        return;
    vnode_down(n);
    actions_fini(&n->actions);
    map64_fini(&n->flights);
    map64_fini(&n->busy);
    free(n);
}

const char *vnode_claimed_by(const struct vnode *n)
{
    return n ? n->claimed_by : "";
}

const struct retry_policies *vnode_policies(const struct vnode *n)
{
    return &n->base->set;
}

int64_t vnode_result_wait(const struct vnode *n, const struct task *t)
{
    return n->cfg.ghost_margin_ms + (t->timeout_ms ? t->timeout_ms : n->cfg.default_timeout_ms);
}

wall_ms vnode_now(const struct vnode *n)
{
    return n->sim->now + n->offset_ms;
}

enum reach vnode_reach(const struct vnode *n, uint32_t life)
{
    if (!n->sched || n->life != life)
        return REACH_NEVER;
    return n->sim->now < n->paused_until ? REACH_LATER : REACH_NOW;
}

bool vnode_is_up(const struct vnode *n)
{
    return n->sched && !n->stopping;
}

bool vnode_is_idle(const struct vnode *n)
{
    struct sched_stats stats;

    if (!n->sched || n->stopping)
        return false;
    sched_stats(n->sched, &stats);
    return !stats.n_tracked;
}

/* ---- Passes ------------------------------------------------------------------------------- */

static void on_wake(struct sim *s, struct sim_event *ev)
{
    struct vnode *n = NODE_OF(ev, wake);

    if (s->now < n->paused_until)
        sim_at(s, ev, n->paused_until, on_wake);
    else
        vnode_pass(n);
}

static void wake_arm(struct vnode *n)
{
    struct sim *s = n->sim;
    wall_ms at = sched_next_wakeup(n->sched);
    int64_t wait = VNODE_TICK_MAX_MS;

    if (at <= vnode_now(n))
        sim_fail(s, "node %d would spin: it wakes up %lld ms ago", n->index,
                 (long long)(vnode_now(n) - at));
    else if (at != WALL_MAX && at - vnode_now(n) < wait)
        wait = at - vnode_now(n);
    sim_forget(s, &n->wake);
    sim_at(s, &n->wake, s->now + wait, on_wake);
}

/* A row still in flight under a node that has stopped in peace was forgotten. */
static void check_stopped(struct vnode *n)
{
    struct sim *s = n->sim;
    const struct scenario *sc = s->sc;
    const struct task *t;

    if (sc->lost_rate || sc->answer_lost_rate || sc->late_rate || sc->twice_rate || sc->n_outages)
        return;
    for (size_t pos = 0; (t = fake_db_each(s->db, true, &pos));) {
        if (t->status == TASK_SENDING && str_eqz(t->claimed_by, n->claimed_by))
            sim_fail(s, "node %d stopped and left task %lld in flight", n->index, (long long)t->id);
    }
}

void vnode_pass(struct vnode *n)
{
    struct sim *s = n->sim;

    sched_tick(n->sched, vnode_now(n), &n->actions);
    vnode_post(n);
    sched_check(n->sched);
    vnode_members_check(n);
    if (n->stopping && (sched_is_idle(n->sched) || s->now >= n->stop_by)) {
        if (sched_is_idle(n->sched))
            check_stopped(n);
        sim_note(s, "node %lld has stopped, idle %lld", n->index, sched_is_idle(n->sched), 0, 0);
        vnode_members_leave(n);
        vnode_down(n);
        sim_at(s, &n->boot, s->now + sim_between(s, 0, 3000), on_boot);
        return;
    }
    wake_arm(n);
}

/* ---- Boot --------------------------------------------------------------------------------- */

static void on_sync(struct sim *s, struct sim_event *ev)
{
    struct vnode *n = NODE_OF(ev, sync);
    int64_t skew = s->healed ? 0 : s->sc->skew_ms;

    if (!s->store_down && s->now >= n->paused_until)
        n->offset_ms = s->store_offset_ms + sim_between(s, -skew, skew);
    sim_at(s, ev, s->now + n->base->sync_ms, on_sync);
}

static void on_reread(struct sim *s, struct sim_event *ev)
{
    struct vnode *n = NODE_OF(ev, reread);

    if (s->now >= n->paused_until)
        vnode_read_services(n);
    sim_at(s, ev, s->now + n->base->services_ms, on_reread);
}

static void on_boot(struct sim *s, struct sim_event *ev)
{
    struct vnode *n = NODE_OF(ev, boot);
    struct call_node_start start = {.call = {.what = CALL_NODE_START},
                                    .name = str_from(n->name),
                                    .hash_version = OWNERSHIP_HASH_VERSION};

    if (s->store_down) {
        sim_at(s, ev, s->now + 100, on_boot);
        return;
    }
    if (fake_driver.call(s->conn, &start.call, NULL))
        abort();
    (void)snprintf(n->claimed_by, sizeof(n->claimed_by), "%s/%lld", n->name,
                   (long long)start.epoch);
    sim_note(s, "node %lld starts, epoch %lld", n->index, start.epoch, 0, 0);
    if (sched_new(&n->cfg, rng_next(&s->rng), &n->sched))
        abort();
    n->offset_ms = s->store_offset_ms;
    n->store_up = true;
    sched_store_state(n->sched, vnode_now(n), true);
    sim_at(s, &n->sync, s->now + n->base->sync_ms, on_sync);
    sim_at(s, &n->reread, s->now + n->base->services_ms, on_reread);
    if (s->sc->clustered)
        vnode_members_start(n, start.epoch);
    else
        vnode_set_members(n, 1u << n->index);
    vnode_read_services(n);
    vnode_pass(n);
}

void vnode_start(struct vnode *n)
{
    sim_at(n->sim, &n->boot, n->sim->now + sim_between(n->sim, 0, 20), on_boot);
}

/* ---- Troubles ----------------------------------------------------------------------------- */

void vnode_crash(struct vnode *n)
{
    struct sim *s = n->sim;

    if (!n->sched)
        return;
    s->met[MET_CRASHES]++;
    sim_note(s, "node %lld crashes", n->index, 0, 0, 0);
    vnode_down(n);
    sim_at(s, &n->boot,
           s->now + (sim_between(s, 0, 2) ? sim_between(s, 1, 500) : sim_between(s, 500, 10000)),
           on_boot);
}

void vnode_die(struct vnode *n)
{
    n->sim->met[MET_DEATHS]++;
    sim_note(n->sim, "node %lld dies", n->index, 0, 0, 0);
    vnode_down(n);
}

bool vnode_may_crash(struct vnode *n)
{
    if (!sim_chance(n->sim, n->sim->sc->crash_rate))
        return false;
    vnode_crash(n);
    return true;
}

void vnode_stop(struct vnode *n)
{
    struct sim *s = n->sim;

    if (!n->sched || n->stopping)
        return;
    s->met[MET_STOPS]++;
    sim_note(s, "node %lld is told to stop", n->index, 0, 0, 0);
    n->stopping = true;
    n->stop_by = s->now + VNODE_GRACE_MS;
    vnode_end_leases(n);
    vparcels_stop(n);
    sched_stop(n->sched, vnode_now(n), &n->actions);
    vnode_members_stop(n);
    vnode_pass(n);
}

void vnode_pause(struct vnode *n, int64_t ms)
{
    struct sim *s = n->sim;

    if (!n->sched)
        return;
    s->met[MET_PAUSES]++;
    sim_note(s, "node %lld stands still for %lld ms", n->index, ms, 0, 0);
    if (n->paused_until < s->now + ms)
        n->paused_until = s->now + ms;
}

void vnode_clock_step(struct vnode *n, int64_t ms)
{
    n->offset_ms += ms;
    sim_note(n->sim, "node %lld: its clock steps by %lld ms", n->index, ms, 0, 0);
}

/* The node looks a little later, and sees what holds then. */
struct state_event {
    struct sim_event ev; /* first */
    struct vnode *node;
    uint32_t life;
};

static void state_drop(struct sim_event *ev)
{
    free(ev);
}

static void on_state(struct sim *s, struct sim_event *ev)
{
    struct state_event *e = (struct state_event *)ev;
    struct vnode *n = e->node;

    switch (vnode_reach(n, e->life)) {
    case REACH_LATER:
        sim_at(s, ev, n->paused_until, on_state);
        return;
    case REACH_NOW:
        sim_note(s, "node %lld hears that the store is up: %lld", n->index, !s->store_down, 0, 0);
        n->store_up = !s->store_down;
        sched_store_state(n->sched, vnode_now(n), n->store_up);
        vnode_pass(n);
        break;
    case REACH_NEVER:
        break;
    }
    free(e);
}

void vnode_store_state(struct vnode *n)
{
    struct state_event *e = sim_alloc(sizeof(*e));

    e->ev.drop = state_drop;
    e->node = n;
    e->life = n->life;
    sim_at(n->sim, &e->ev, n->sim->now + sim_latency(n->sim) + sim_between(n->sim, 0, 300),
           on_state);
}

void vnode_cut_store(struct vnode *n, bool is_cut)
{
    n->store_cut = is_cut;
}

void vnode_heal(struct vnode *n)
{
    vnode_drain(n, false);
    vnode_cut_store(n, false);
    if (n->sched)
        n->offset_ms = n->sim->store_offset_ms;
    else if (!n->boot.node.pos)
        vnode_start(n);
}

/* ---- Hints -------------------------------------------------------------------------------- */

struct hint_event {
    struct sim_event ev; /* first */
    struct vnode *node;
    uint32_t life;
    char service_name[16];
    struct hint hint;
};

static void hint_drop(struct sim_event *ev)
{
    free(ev);
}

static void on_hint(struct sim *s, struct sim_event *ev)
{
    struct hint_event *h = (struct hint_event *)ev;
    struct vnode *n = h->node;

    switch (vnode_reach(n, h->life)) {
    case REACH_LATER:
        sim_at(s, ev, n->paused_until, on_hint);
        return;
    case REACH_NOW:
        s->met[MET_HINTS]++;
        switch (sched_hint(n->sched, vnode_now(n), &h->hint)) {
        case HINT_TAKEN:
            break;
        case HINT_UNKNOWN:
            vnode_read_services(n);
            break;
        case HINT_FOREIGN:
            s->met[MET_FOREIGN]++;
            break;
        }
        vnode_pass(n);
        break;
    case REACH_NEVER:
        break;
    }
    free(h);
}

void vnode_hint(struct vnode *n, const struct task *t)
{
    struct hint_event *h = sim_alloc(sizeof(*h));

    h->ev.drop = hint_drop;
    h->node = n;
    h->life = n->life;
    (void)snprintf(h->service_name, sizeof(h->service_name), STR_FMT, STR_ARG(t->service_name));
    h->hint = (struct hint){.service_name = str_from(h->service_name),
                            .shard = t->shard,
                            .lane = t->lane,
                            .id = t->id,
                            .attempt = t->attempt,
                            .next_attempt_time = t->next_attempt_time};
    sim_at(n->sim, &h->ev, n->sim->now + sim_latency(n->sim), on_hint);
}
