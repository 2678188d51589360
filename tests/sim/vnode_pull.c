/* SPDX-License-Identifier: Apache-2.0 */
/* Workers' leases at a node, as node/lease.c keeps them: they wait in the scheduler, what is
 * claimed for one is sent to its worker unless it is too late for that, and what cannot be sent any
 * more is given back past the scheduler. */
#include <stdio.h>
#include <stdlib.h>

#include "node/core/sched_pull.h"
#include "tests/sim/vnode_internal.h"

#define VLEASE_AGAIN_MS 20
#define VLEASE_TASKS_MAX 16

struct vlease {
    struct sim_event ev; /* first; the end of its wait */
    struct vlease *next; /* of the node's */
    struct vnode *node;
    struct worker *worker;
    struct lease *lease; /* NULL once it is over */
    int service;
    struct task *tasks[VLEASE_TASKS_MAX]; /* owned */
    size_t n;
    wall_ms send_by; /* true time */
};

static void vlease_free(struct vlease *l)
{
    struct vlease **at = &l->node->leases;

    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    sim_forget(l->node->sim, &l->ev);
    for (size_t i = 0; i < l->n; i++)
        task_free(l->tasks[i]);
    free(l);
}

void vnode_drop_leases(struct vnode *n)
{
    while (n->leases) {
        struct worker *w = n->leases->worker;

        vlease_free(n->leases);
        worker_hears(n->sim, w, NULL, 0);
    }
}

bool vnode_has_lease(const struct vnode *n, int service)
{
    for (const struct vlease *l = n->leases; l; l = l->next) {
        if (l->service == service && l->lease)
            return true;
    }
    return false;
}

/* The write itself may be lost like any other; then the deadline has to do. */
static void give_back(struct vnode *n, const struct task *t)
{
    struct sim *s = n->sim;
    struct finish_item item = {.id = t->id,
                               .attempt = t->attempt,
                               .kind = FINISH_PUT_BACK,
                               .from = task_status_bit(TASK_SENDING),
                               .next_attempt_time = sim_store_now(s) + 1,
                               .retry_count = t->retry_count,
                               .priority = t->priority,
                               .outcome = "unsent",
                               .node = n->cfg.node};
    struct finish_item *items[] = {&item};

    s->met[MET_GIVEN_BACK]++;
    if (s->store_down || sim_chance(s, s->sc->lost_rate))
        return;
    if (fake_driver.finish(s->conn, items, 1, NULL))
        abort();
}

/* What it has goes to the worker. */
static void vlease_answer(struct vlease *l, bool has_gone)
{
    struct vnode *n = l->node;
    struct sim *s = n->sim;
    struct worker *w = l->worker;
    struct task *tasks[VLEASE_TASKS_MAX];
    size_t n_tasks = 0;

    sched_lease_end(n->sched, vnode_now(n), l->lease);
    for (size_t i = 0; i < l->n; i++) {
        if (has_gone || s->now >= l->send_by)
            give_back(n, l->tasks[i]);
        else
            tasks[n_tasks++] = l->tasks[i];
    }
    for (size_t i = 0; i < n_tasks; i++) {
        s->met[MET_LEASED]++;
        oracle_delivered(s, n->index, tasks[i]);
    }
    worker_hears(s, w, tasks, n_tasks);
    vlease_free(l);
}

static void on_wait_over(struct sim *s, struct sim_event *ev)
{
    struct vlease *l = (struct vlease *)ev;
    struct vnode *n = l->node;

    if (s->now < n->paused_until) {
        sim_at(s, ev, n->paused_until, on_wait_over);
        return;
    }
    if (sched_lease_is_claiming(l->lease)) {
        /* Either it waits for what is out, or it has gone. */
        if (sim_between(s, 0, 3)) {
            sim_at(s, ev, s->now + VLEASE_AGAIN_MS, on_wait_over);
            return;
        }
        s->met[MET_HANGUPS]++;
    }
    vlease_answer(l, true);
    vnode_pass(n);
}

bool vnode_lease(struct vnode *n, int service, struct worker *w, int64_t wait_ms)
{
    struct sim *s = n->sim;
    struct vlease *l;
    char name[16];
    struct lease_ask ask = {.want = (uint32_t)sim_between(s, 1, VLEASE_TASKS_MAX),
                            .visibility_ms =
                                sim_between(s, 0, 2) ? 0 : (int32_t)sim_between(s, 200, 4000)};

    if (!vnode_is_up(n) || s->now < n->paused_until)
        return false;
    l = sim_alloc(sizeof(*l));
    (void)snprintf(name, sizeof(name), "svc-%d", service);
    ask.service_name = str_from(name);
    ask.ctx = l;
    if (sched_lease(n->sched, vnode_now(n), &ask, &l->lease)) {
        free(l);
        return false;
    }
    l->node = n;
    l->worker = w;
    l->service = service;
    l->next = n->leases;
    n->leases = l;
    sim_note(s, "a worker of service %lld asks node %lld for %lld tasks", service, n->index,
             ask.want, 0);
    sim_at(s, &l->ev, s->now + wait_ms, on_wait_over);
    vnode_pass(n);
    return true;
}

void vnode_hand(struct vnode *n, size_t from, wall_ms asked_at)
{
    for (size_t i = from; i < n->actions.n; i++) {
        struct action *a = &n->actions.list[i];
        struct vlease *l = a->leased.ctx;

        if (a->kind == ACTION_LEASED) {
            const struct task *t = a->leased.task;
            wall_ms send_by =
                claim_fence(t, n->cfg.ghost_margin_ms, asked_at, vnode_now(n), n->sim->now);

            if (!l->n || send_by < l->send_by)
                l->send_by = send_by;
            l->tasks[l->n++] = a->leased.task;
        } else if (a->kind == ACTION_LEASE_DONE) {
            l->lease = NULL;
            vlease_answer(l, false);
        }
    }
}

void vnode_end_leases(struct vnode *n)
{
    while (n->leases)
        vlease_answer(n->leases, true);
}
