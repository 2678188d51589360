/* SPDX-License-Identifier: Apache-2.0 */
/* The workers of services in pull mode: each asks one node after another for tasks, works on what
 * it gets as the handlers do, and reports through the interface; some of what they are sent never
 * arrives. */
#include <stdlib.h>

#include "tests/sim/actors.h"
#include "tests/sim/vnode.h"

#define WORKERS_PER_SERVICE 4

struct worker {
    struct sim_event ev; /* first; asks again */
    int service;
};

struct workers {
    struct worker list[SIM_SERVICES_MAX * WORKERS_PER_SERVICE];
    int n;
};

static void on_ask(struct sim *s, struct sim_event *ev);

static void ask_at(struct sim *s, struct worker *w, wall_ms at)
{
    sim_at(s, &w->ev, at, on_ask);
}

static void on_ask(struct sim *s, struct sim_event *ev)
{
    struct worker *w = (struct worker *)ev;
    struct vnode *n = s->nodes[sim_between(s, 0, s->sc->n_nodes - 1)];
    int64_t wait_ms = s->sc->punctual ? 3000 : sim_between(s, 0, 3000);

    if (!vnode_lease(n, w->service, w, wait_ms))
        ask_at(s, w, s->now + sim_between(s, 1, 300));
}

void worker_hears(struct sim *s, struct worker *w, struct task *const *tasks, size_t n)
{
    bool is_lost = n && sim_chance(s, s->sc->answer_lost_rate);

    for (size_t i = 0; i < n && !is_lost; i++)
        handlers_lease(s, tasks[i]);
    ask_at(s, w, s->now + (n ? sim_latency(s) : sim_between(s, 1, 50)));
}

struct workers *workers_new(struct sim *s)
{
    struct workers *all = sim_alloc(sizeof(*all));

    for (int service = 0; service < s->sc->n_services; service++) {
        for (int i = 0; i < WORKERS_PER_SERVICE && clients_delivery(s, service) == DELIVERY_PULL;
             i++) {
            struct worker *w = &all->list[all->n++];

            w->service = service;
            ask_at(s, w, s->now + sim_between(s, 0, 500));
        }
    }
    return all;
}

void workers_free(struct workers *w)
{
    free(w);
}
