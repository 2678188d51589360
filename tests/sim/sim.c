/* SPDX-License-Identifier: Apache-2.0 */
/* The world: its events, its chance, its trace, and the course of one run. */
#include "tests/sim/sim.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "tests/sim/actors.h"
#include "tests/sim/cluster.h"
#include "tests/sim/oracle.h"
#include "tests/sim/vnode.h"

#define SIM_END_MS 600000      /* by when everything has ended after the healing */
#define SIM_EVENTS_MAX 3000000 /* more means that somebody spins */
#define SIM_POLL_MS 250
#define SIM_OUTAGE_MAX_MS 8000
#define SIM_SETTLE_MS 20000 /* by when all members agree, after it */

void *sim_alloc(size_t size)
{
    void *p = calloc(1, size);

    if (!p)
        abort();
    return p;
}

void sim_at(struct sim *s, struct sim_event *ev, wall_ms at,
            void (*fn)(struct sim *s, struct sim_event *ev))
{
    ev->fn = fn;
    if (heap_add(&s->events, &ev->node, at < s->now ? s->now : at))
        abort();
}

void sim_forget(struct sim *s, struct sim_event *ev)
{
    if (ev->node.pos)
        heap_remove(&s->events, &ev->node);
}

wall_ms sim_store_now(const struct sim *s)
{
    return s->now + s->store_offset_ms;
}

int64_t sim_between(struct sim *s, int64_t low, int64_t high)
{
    assert(low <= high);
    return low + (int64_t)rng_below(&s->rng, (uint64_t)(high - low) + 1);
}

bool sim_chance(struct sim *s, int per_10000)
{
    return !s->healed && per_10000 > 0 && rng_below(&s->rng, 10000) < (uint64_t)per_10000;
}

int64_t sim_latency(struct sim *s)
{
    return rng_below(&s->rng, 16) ? sim_between(s, 0, 2) : sim_between(s, 3, 40);
}

void sim_note(struct sim *s, const char *fmt, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t line[] = {s->now, a, b, c, d};

    s->hash = hash_bytes(str_from(fmt), s->hash);
    s->hash = hash_bytes((struct str){(const char *)line, sizeof(line)}, s->hash);
    if (!s->opt.trace)
        return;
    printf("# T+%9.3f ", (double)(s->now - SIM_START) / 1000);
    printf(fmt, (long long)a, (long long)b, (long long)c, (long long)d);
    putchar('\n');
}

void sim_fail(struct sim *s, const char *fmt, ...)
{
    va_list args;

    if (s->failed)
        return;
    s->failed = true;
    printf("# %s, T+%.3f: ", s->sc->name, (double)(s->now - SIM_START) / 1000);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n# replay: sim_test --seed %llu --trace\n", (unsigned long long)s->seed);
    (void)fflush(stdout);
}

static wall_ms on_db_now(void *ctx)
{
    return sim_store_now(ctx);
}

static void on_db_change(void *ctx, const struct fake_change *c)
{
    oracle_on_change(ctx, c);
}

/* ---- Troubles that come at a time of their own -------------------------------------------- */

enum trouble {
    TROUBLE_OUTAGE,
    TROUBLE_OUTAGE_END,
    TROUBLE_PAUSE,
    TROUBLE_STEP,
    TROUBLE_STOP,
    TROUBLE_DEATH,
    TROUBLE_ETCD,
    TROUBLE_ETCD_DOWN,
    TROUBLE_ETCD_FULL,
    TROUBLE_ETCD_FORGETS,
    TROUBLE_ETCD_END,
    TROUBLE_LEASE,
    TROUBLE_DRAIN,
    TROUBLE_DRAIN_END,
    TROUBLE_STORE_CUT
};

struct trouble_event {
    struct sim_event ev; /* first */
    enum trouble kind;
    int node;
};

static void on_trouble(struct sim *s, struct sim_event *ev);

static void trouble_drop(struct sim_event *ev)
{
    free(ev);
}

static void trouble_at(struct sim *s, enum trouble kind, int node, wall_ms at)
{
    struct trouble_event *t = sim_alloc(sizeof(*t));

    t->ev.drop = trouble_drop;
    t->kind = kind;
    t->node = node;
    sim_at(s, &t->ev, at, on_trouble);
}

static void store_state(struct sim *s, bool up)
{
    s->store_down = !up;
    for (int i = 0; i < s->sc->n_nodes; i++)
        vnode_store_state(s->nodes[i]);
}

static void clock_step(struct sim *s, struct vnode *n)
{
    int64_t ms = sim_between(s, 1, 3000) * (sim_between(s, 0, 1) ? 1 : -1);

    s->met[MET_CLOCK_STEPS]++;
    if (sim_between(s, 0, 3)) {
        vnode_clock_step(n, ms);
        return;
    }
    s->store_offset_ms += ms;
    sim_note(s, "the store's clock steps by %lld ms", ms, 0, 0, 0);
}

static void etcd_trouble(struct sim *s, int node)
{
    switch (sim_between(s, 0, 2)) {
    case 0:
        cluster_go_down(s);
        break;
    case 1:
        cluster_fill_up(s);
        break;
    default:
        cluster_cut(s, node);
    }
    trouble_at(s, TROUBLE_ETCD_END, 0, s->now + sim_between(s, 1, SIM_OUTAGE_MAX_MS));
}

static void on_cluster_trouble(struct sim *s, const struct trouble_event *t)
{
    struct vnode *n = s->nodes[t->node];

    switch (t->kind) {
    case TROUBLE_ETCD:
        etcd_trouble(s, t->node);
        break;
    case TROUBLE_ETCD_DOWN:
        cluster_go_down(s);
        break;
    case TROUBLE_ETCD_FULL:
        cluster_fill_up(s);
        break;
    case TROUBLE_ETCD_FORGETS:
        cluster_fill_up(s);
        for (int i = 0; i < s->sc->n_nodes; i++)
            cluster_lose_lease(s, i);
        break;
    case TROUBLE_ETCD_END:
        cluster_end_trouble(s);
        break;
    case TROUBLE_LEASE:
        cluster_lose_lease(s, t->node);
        break;
    case TROUBLE_DRAIN:
        vnode_drain(n, true);
        if (!s->sc->plot)
            trouble_at(s, TROUBLE_DRAIN_END, t->node, s->now + sim_between(s, 1, 6000));
        break;
    case TROUBLE_STORE_CUT:
        vnode_cut_store(n, true);
        break;
    default:
        vnode_drain(n, false);
    }
}

static void on_trouble(struct sim *s, struct sim_event *ev)
{
    struct trouble_event *t = (struct trouble_event *)ev;
    struct vnode *n = s->nodes[t->node];

    switch (t->kind) {
    case TROUBLE_OUTAGE:
        if (s->store_down || s->healed)
            break;
        s->met[MET_OUTAGES]++;
        sim_note(s, "the store is down", 0, 0, 0, 0);
        store_state(s, false);
        trouble_at(s, TROUBLE_OUTAGE_END, 0, s->now + sim_between(s, 1, SIM_OUTAGE_MAX_MS));
        break;
    case TROUBLE_OUTAGE_END:
        if (!s->store_down)
            break;
        sim_note(s, "the store is up", 0, 0, 0, 0);
        store_state(s, true);
        break;
    case TROUBLE_PAUSE:
        if (!s->healed)
            vnode_pause(n, sim_between(s, 1, 12000));
        break;
    case TROUBLE_STEP:
        if (!s->healed)
            clock_step(s, n);
        break;
    case TROUBLE_STOP:
        if (!s->healed)
            vnode_stop(n);
        break;
    case TROUBLE_DEATH:
        vnode_die(n);
        break;
    default:
        if (!s->healed)
            on_cluster_trouble(s, t);
    }
    free(t);
}

static void troubles_plan(struct sim *s, enum trouble kind, int n)
{
    for (int i = 0; i < n; i++)
        trouble_at(s, kind, (int)sim_between(s, 0, s->sc->n_nodes - 1),
                   s->now + sim_between(s, 0, s->sc->span_ms));
}

static void plot_begin(struct sim *s)
{
    static const enum trouble what[] = {
        [PLOT_ETCD_DIES] = TROUBLE_ETCD_DOWN,
        [PLOT_ETCD_FORGETS] = TROUBLE_ETCD_FORGETS,
        [PLOT_UNHEARD_DRAIN] = TROUBLE_ETCD_FULL,
        [PLOT_LOST_BY_STORE] = TROUBLE_STORE_CUT,
    };
    wall_ms at = s->now + sim_between(s, 3000, 8000);

    trouble_at(s, what[s->sc->plot], 0, at);
    if (s->sc->plot == PLOT_UNHEARD_DRAIN)
        trouble_at(s, TROUBLE_DRAIN, 0, at + sim_between(s, 1, 5000));
}

/* ---- One run ------------------------------------------------------------------------------ */

static void config_draw(struct sim *s, struct vnode_config *cfg)
{
    bool tight = s->sc->tight;
    bool calm = s->sc->isolation || s->sc->punctual;
    struct sched_config *c = &cfg->sched;

    c->lookahead_ms = sim_between(s, 300, 3000);
    c->scan_interval_ms = sim_between(s, 100, 1000);
    c->slack_ms = sim_between(s, 1000, 6000);
    c->full_read_ms = sim_between(s, 2000, 20000);
    if (s->sc->one_dies)
        c->full_read_ms = 1000;
    c->ghost_margin_ms = sim_between(s, 1000, 3000);
    c->default_timeout_ms = sim_between(s, 500, 3000);
    c->default_concurrency = (int32_t)(s->sc->isolation    ? 64 /* more than there are slots */
                                       : s->sc->punctual   ? 16
                                       : s->sc->one_by_one ? sim_between(s, 1, 4)
                                                           : sim_between(s, 2, 16));
    c->lane_limit = (uint32_t)(tight ? sim_between(s, 2, 8) : 200);
    c->max_tracked = (uint32_t)(tight ? sim_between(s, 8, 40) : 2000);
    c->max_in_flight = (uint32_t)(calm ? 32 : tight ? sim_between(s, 1, 8) : sim_between(s, 8, 64));
    c->node = STR("sim");
    c->alerts = true;
    for (int i = 0; i < 2; i++) {
        struct retry_policy *p = &cfg->policies[i];

        (void)snprintf(p->name, sizeof(p->name), "%s", i ? "slow" : "default");
        p->backoff.initial_ms = i ? 2000 : sim_between(s, 1, 500);
        p->backoff.cap_ms = i ? 9000 : 4000;
        p->backoff.multiplier = 2.0;
        p->backoff.jitter = 0.3;
        p->max_retry = 3;
    }
    cfg->set = (struct retry_policies){
        .policies = cfg->policies,
        .n = 2,
        .retry_after_cap_ms = 6000,
        .snooze_cap_ms = 5000,
        .max_snoozes = 3,
    };
    c->policies = &cfg->set;
    cfg->sync_ms = 1500;
    cfg->services_ms = 700;
}

static void heal(struct sim *s)
{
    s->healed = true;
    sim_note(s, "healed", 0, 0, 0, 0);
    if (s->store_down)
        store_state(s, true);
    cluster_end_trouble(s);
    for (int i = 0; i < s->sc->n_nodes; i++)
        vnode_heal(s->nodes[i]);
}

static bool is_quiet(const struct sim *s)
{
    if (!clients_are_done(s) || oracle_n_open(s))
        return false;
    for (int i = 0; i < s->sc->n_nodes; i++) {
        if (!vnode_is_idle(s->nodes[i]))
            return false;
    }
    return true;
}

/* Runs the events up to a time, or to the first broken promise. */
static void run_until(struct sim *s, wall_ms until)
{
    struct heap_node *first;

    while (!s->failed && (first = heap_first(&s->events)) && first->key <= until) {
        struct sim_event *ev = (struct sim_event *)first;

        assert(first->key >= s->now);
        s->now = first->key;
        heap_remove(&s->events, first);
        if (++s->n_events > SIM_EVENTS_MAX)
            sim_fail(s, "more than %d events: something spins", SIM_EVENTS_MAX);
        else
            ev->fn(s, ev);
    }
    if (!s->failed)
        s->now = until;
}

static void run(struct sim *s)
{
    wall_ms end;

    run_until(s, SIM_START + s->sc->span_ms);
    if (s->failed)
        return;
    heal(s);
    end = s->now + SIM_END_MS;
    while (!s->failed && !is_quiet(s)) {
        if (s->now >= end) {
            oracle_check_end(s); /* says which task did not end, if that is it */
            sim_fail(s, "not quiet %d ms after the healing: %zu tasks open", SIM_END_MS,
                     oracle_n_open(s));
        }
        run_until(s, s->now + SIM_POLL_MS);
    }
    if (!s->failed)
        oracle_check_end(s);
    end = s->now + SIM_SETTLE_MS;
    while (s->sc->clustered && !s->failed && !cluster_is_settled(s)) {
        if (s->now >= end)
            sim_fail(s, "the members do not agree %d ms after all is well", SIM_SETTLE_MS);
        run_until(s, s->now + SIM_POLL_MS);
    }
}

static void sim_free(struct sim *s)
{
    struct heap_node *first;

    /* First: the workers that wait there ask again. */
    for (int i = 0; i < s->sc->n_nodes; i++)
        vnode_free(s->nodes[i]);
    while ((first = heap_first(&s->events))) {
        struct sim_event *ev = (struct sim_event *)first;

        heap_remove(&s->events, first);
        if (ev->drop)
            ev->drop(ev);
    }
    heap_fini(&s->events);
    clients_free(s->clients);
    workers_free(s->workers);
    handlers_free(s->handlers);
    oracle_free(s->oracle);
    cluster_free(s->cluster);
    fake_driver.close(s->conn);
    fake_db_free(s->db);
    free(s);
}

void sim_run(const struct scenario *sc, uint64_t seed, const struct sim_options *opt,
             struct sim_result *ret)
{
    struct sim *s = sim_alloc(sizeof(*s));
    struct fake_hooks hooks = {.now = on_db_now, .on_change = on_db_change, .ctx = s};
    struct vnode_config cfg = {0};
    char url[FAKE_URL_MAX];
    char *warning;

    s->sc = sc;
    s->seed = seed;
    s->opt = *opt;
    s->rng.state = seed * 0x9E3779B97F4A7C15u + 1;
    s->now = SIM_START;
    s->db = fake_db_new(&hooks);
    fake_db_url(s->db, url);
    if (fake_driver.open(url, NULL, &s->conn, &warning, NULL))
        abort();
    s->oracle = oracle_new(s);
    s->cluster = cluster_new();
    config_draw(s, &cfg);
    s->handlers = handlers_new(s);
    s->clients = clients_new(s);
    s->workers = workers_new(s);
    for (int i = 0; i < sc->n_nodes; i++) {
        s->nodes[i] = vnode_new(s, i, &cfg);
        vnode_start(s->nodes[i]);
    }
    troubles_plan(s, TROUBLE_OUTAGE, sc->n_outages);
    troubles_plan(s, TROUBLE_PAUSE, sc->n_pauses);
    troubles_plan(s, TROUBLE_STEP, sc->n_steps);
    troubles_plan(s, TROUBLE_STOP, sc->n_stops);
    troubles_plan(s, TROUBLE_ETCD, sc->n_etcd_troubles);
    troubles_plan(s, TROUBLE_LEASE, sc->n_leases_lost);
    troubles_plan(s, TROUBLE_DRAIN, sc->n_drains);
    if (sc->plot)
        plot_begin(s);
    if (sc->one_dies)
        trouble_at(s, TROUBLE_DEATH, 0, s->now + sim_between(s, 4000, sc->span_ms / 2));
    run(s);
    ret->hash = s->hash;
    ret->ended_at = s->now;
    ret->failed = s->failed;
    ret->p99_lateness_ms = oracle_p99_lateness(s);
    memcpy(ret->met, s->met, sizeof(ret->met));
    sim_free(s);
}
