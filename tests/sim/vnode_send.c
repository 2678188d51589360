/* SPDX-License-Identifier: Apache-2.0 */
/* The node's requests: they leave within their fence, or not at all. */
#include <assert.h>
#include <stdlib.h>

#include "tests/sim/vnode_internal.h"

static struct flight *flight_find(const struct vnode *n, int64_t id)
{
    return map64_find(&n->flights, (uint64_t)id);
}

static void flight_free(struct vnode *n, struct flight *f)
{
    sim_forget(n->sim, &f->ev);
    task_free(f->task);
    free(f);
}

void flight_end(struct vnode *n, int64_t id)
{
    struct flight *f = map64_remove(&n->flights, (uint64_t)id);

    if (f)
        flight_free(n, f);
}

void vnode_drop_flights(struct vnode *n)
{
    struct flight *f;

    for (size_t pos = 0; (f = map64_each(&n->flights, &pos, NULL));)
        flight_free(n, f);
    map64_fini(&n->flights);
    n->flights = (struct map64){0};
}

void flight_verdict(struct flight *f, const struct verdict *v)
{
    struct vnode *n = f->node;
    struct sim *s = n->sim;

    sim_note(s, "node %lld: task %lld ends with verdict %lld, status %lld", n->index, f->task->id,
             v->kind, v->http_status);
    s->met[MET_UNSENT] += v->kind == VERDICT_UNSENT;
    s->met[MET_SNOOZES] += v->kind == VERDICT_SNOOZE;
    s->met[MET_ASYNC] += v->kind == VERDICT_ACCEPTED;
    s->met[MET_RETRY_AFTER] += v->kind == VERDICT_RETRY && v->retry_after_ms >= 0;
    f->decided_at = vnode_now(n);
    books_answered(n, f);
    sched_answered(n->sched, vnode_now(n), f->task, v, &n->actions);
}

static void flight_answered(struct flight *f, struct answer *a)
{
    struct vnode *n = f->node;
    struct verdict_limits limits = {n->base->set.retry_after_cap_ms, n->base->set.snooze_cap_ms};
    struct verdict v;

    if (*f->reply.retry_after)
        a->retry_after = str_from(f->reply.retry_after);
    verdict_read(a, &limits, vnode_now(n), &v);
    flight_verdict(f, &v);
    vnode_pass(n);
}

/* True if the event reaches the node now. */
static bool flight_goes_on(struct flight *f, void (*fn)(struct sim *s, struct sim_event *ev))
{
    struct vnode *n = f->node;

    if (n->sim->now < n->paused_until) {
        sim_at(n->sim, &f->ev, n->paused_until, fn);
        return false;
    }
    return !vnode_may_crash(n);
}

static void on_answer(struct sim *s, struct sim_event *ev)
{
    struct flight *f = (struct flight *)ev;
    struct vnode *n = f->node;

    (void)s;
    if (!flight_goes_on(f, on_answer))
        return;
    flight_answered(f, &f->reply.answer);
    if (n->sched)
        (void)vnode_may_crash(n);
}

static void on_timeout(struct sim *s, struct sim_event *ev)
{
    struct flight *f = (struct flight *)ev;
    struct answer a = {.failure = STR("no answer within the time limit"), .sent = true};

    if (!flight_goes_on(f, on_timeout))
        return;
    s->met[MET_TIMEOUTS]++;
    *f->reply.retry_after = '\0';
    flight_answered(f, &a);
}

static void on_leave(struct sim *s, struct sim_event *ev)
{
    struct flight *f = (struct flight *)ev;
    struct vnode *n = f->node;
    wall_ms limit = f->started_at + f->timeout_ms;

    if (!flight_goes_on(f, on_leave))
        return;
    if (s->now >= f->send_by || n->stopping) {
        struct answer unsent = {.failure = STR("held back"), .sent = false};

        flight_answered(f, &unsent);
        return;
    }
    if (s->now >= limit) {
        on_timeout(s, ev);
        return;
    }
    handlers_receive(s, f->task, f->timeout_ms, &f->reply);
    if (f->reply.arrives)
        oracle_delivered(s, n->index, f->task);
    if (f->reply.after_ms < 0 || s->now + f->reply.after_ms > limit)
        sim_at(s, ev, limit, on_timeout);
    else
        sim_at(s, ev, s->now + f->reply.after_ms, on_answer);
    (void)vnode_may_crash(n);
}

static void leave_alone(struct flight *f)
{
    struct sim *s = f->node->sim;
    int64_t connect = sim_latency(s);

    f->started_at = s->now;
    if (sim_chance(s, s->sc->slow_rate))
        connect += sim_between(s, 1, 4000);
    sim_at(s, &f->ev, s->now + connect, on_leave);
}

/* Takes the task. */
static void flight_start(struct vnode *n, struct action *a, wall_ms send_by)
{
    struct sim *s = n->sim;
    struct flight *f = sim_alloc(sizeof(*f));
    const struct service *service = a->send.service;

    assert(!flight_find(n, a->send.task->id));
    f->node = n;
    f->task = a->send.task;
    a->send.task = NULL;
    f->timeout_ms = a->send.timeout_ms;
    f->send_by = send_by;
    f->decided_at = WALL_NONE;
    f->service = oracle_service_of(s, f->task->id);
    if (map64_put(&n->flights, (uint64_t)f->task->id, f))
        abort();
    books_send(n, f);
    if (service->delivery == DELIVERY_BATCH)
        vparcels_add(f, service); /* which may add actions */
    else
        leave_alone(f);
}

/* The SEND actions from index `from` on, of a claim that was asked for at that time. */
void vnode_send_all(struct vnode *n, size_t from, wall_ms asked_at)
{
    for (size_t i = from; i < n->actions.n; i++) {
        struct action *a = &n->actions.list[i];

        if (a->kind != ACTION_SEND || !a->send.task)
            continue;
        flight_start(
            n, a,
            claim_fence(a->send.task, n->cfg.ghost_margin_ms, asked_at, vnode_now(n), n->sim->now));
    }
}
