/* SPDX-License-Identifier: Apache-2.0 */
/* Requests with many tasks: they gather and leave as node/parcel.c and parcel_send.c have it, whose
 * timers and clocks are real ones; who may share one is decided by the node's own rules. */
#include <assert.h>
#include <stdlib.h>

#include "node/core/verdict_batch.h"
#include "tests/sim/parcel_rules.h"
#include "tests/sim/vnode_internal.h"

enum stage { GATHERS, IS_DUE, IS_FULL, IS_OUT };

struct vparcel {
    struct sim_event ev; /* first; the end of the wait, then leaving, then the answer */
    struct vnode *node;
    struct vline *line;
    struct vparcel *next;
    enum stage stage;
    struct flight *flights[SIM_BATCH_MAX]; /* the node's */
    size_t n;
    struct parcel_group group;
    int64_t timeout_ms;
    wall_ms started_at; /* these two: true time */
    wall_ms send_by;    /* the first fence of its tasks */
    struct reply reply;
    struct buf body; /* of the answer */
};

static void pump(struct vline *l);

static size_t bytes_of(const struct vparcel *q)
{
    return q->n * SIM_ENVELOPE_BYTES;
}

static void vparcel_free(struct vparcel *q)
{
    struct vparcel **at = &q->line->parcels;

    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    sim_forget(q->node->sim, &q->ev);
    buf_fini(&q->body);
    free(q);
}

/* ---- The end ------------------------------------------------------------------------------- */

static void give_back(struct flight *f)
{
    static const struct verdict unsent = {.kind = VERDICT_UNSENT, .retry_after_ms = -1};

    flight_verdict(f, &unsent);
}

/* Ends the attempts, each by what the answer means for it. */
static void vparcel_end(struct vparcel *q, const struct answer *a)
{
    struct vnode *n = q->node;
    struct verdict_limits limits = {n->base->set.retry_after_cap_ms, n->base->set.snooze_cap_ms};
    struct verdict_batch verdicts = VERDICT_BATCH_INIT;
    const char *trace_ids[SIM_BATCH_MAX];

    for (size_t i = 0; i < q->n; i++)
        trace_ids[i] = q->flights[i]->task->trace_id;
    verdict_batch_read(&verdicts, a, trace_ids, q->n, &limits, vnode_now(n));
    for (size_t i = 0; i < q->n; i++)
        flight_verdict(q->flights[i], verdict_batch_get(&verdicts, i));
    verdict_batch_fini(&verdicts);
}

static void vparcel_answered(struct vparcel *q, struct answer *a)
{
    struct vnode *n = q->node;
    struct vline *l = q->line;
    size_t max_bytes = parcel_rules_max_bytes(l->rules);

    if (*q->reply.retry_after)
        a->retry_after = str_from(q->reply.retry_after);
    parcel_rules_learn(l->rules, q->group, q->n, bytes_of(q), a->failure.p ? 0 : a->http_status);
    n->sim->met[MET_BODY_LIMITS] += parcel_rules_max_bytes(l->rules) < max_bytes;
    vparcel_end(q, a);
    vparcel_free(q);
    assert(l->n_out > 0);
    l->n_out--;
    pump(l);
    vnode_pass(n);
}

/* ---- On its way ---------------------------------------------------------------------------- */

/* True if the event reaches the node now. */
static bool goes_on(struct vparcel *q, void (*fn)(struct sim *s, struct sim_event *ev))
{
    struct vnode *n = q->node;

    if (n->sim->now < n->paused_until) {
        sim_at(n->sim, &q->ev, n->paused_until, fn);
        return false;
    }
    return !vnode_may_crash(n);
}

static void on_answer(struct sim *s, struct sim_event *ev)
{
    struct vparcel *q = (struct vparcel *)ev;
    struct vnode *n = q->node;

    (void)s;
    if (!goes_on(q, on_answer))
        return;
    q->reply.answer.body = buf_str(&q->body);
    vparcel_answered(q, &q->reply.answer);
    if (n->sched)
        (void)vnode_may_crash(n);
}

static void on_timeout(struct sim *s, struct sim_event *ev)
{
    struct vparcel *q = (struct vparcel *)ev;
    struct answer a = {.failure = STR("no answer within the time limit"), .sent = true};

    if (!goes_on(q, on_timeout))
        return;
    s->met[MET_TIMEOUTS]++;
    *q->reply.retry_after = '\0';
    vparcel_answered(q, &a);
}

/* All of it is over before the first of its tasks may be taken for a ghost. */
static void check_limit(const struct vparcel *q, wall_ms limit)
{
    struct sim *s = q->node->sim;

    for (size_t i = 0; i < q->n; i++) {
        const struct task *t = q->flights[i]->task;

        if (limit + s->store_offset_ms > t->deadline_at && !s->sc->n_steps)
            sim_fail(s, "G5: task %lld is in a request that may last beyond its deadline",
                     (long long)t->id);
    }
}

static void deliver(struct vparcel *q)
{
    struct vnode *n = q->node;
    struct sim *s = n->sim;
    struct task *tasks[SIM_BATCH_MAX];

    for (size_t i = 0; i < q->n; i++)
        tasks[i] = q->flights[i]->task;
    s->met[MET_PARCELS] += q->n > 1;
    handlers_receive_batch(s, tasks, q->n, q->timeout_ms, &q->reply, &q->body);
    for (size_t i = 0; i < q->n && q->reply.arrives; i++)
        oracle_delivered(s, n->index, tasks[i]);
}

static void on_leave(struct sim *s, struct sim_event *ev)
{
    struct vparcel *q = (struct vparcel *)ev;
    struct vnode *n = q->node;
    wall_ms limit = q->started_at + q->timeout_ms;

    if (!goes_on(q, on_leave))
        return;
    if (s->now >= q->send_by || n->stopping) {
        struct answer unsent = {.failure = STR("held back"), .sent = false};

        vparcel_answered(q, &unsent);
        return;
    }
    if (s->now >= limit) {
        on_timeout(s, ev);
        return;
    }
    check_limit(q, limit);
    deliver(q);
    if (q->reply.after_ms < 0 || s->now + q->reply.after_ms > limit)
        sim_at(s, ev, limit, on_timeout);
    else
        sim_at(s, ev, s->now + q->reply.after_ms, on_answer);
    (void)vnode_may_crash(n);
}

/* Gives back what would leave too late, and keeps the rest in its order. */
static void drop_late(struct vparcel *q)
{
    size_t kept = 0;

    q->send_by = WALL_MAX;
    for (size_t i = 0; i < q->n; i++) {
        struct flight *f = q->flights[i];

        if (q->node->sim->now >= f->send_by) {
            give_back(f);
            continue;
        }
        q->flights[kept++] = f;
        if (f->send_by < q->send_by)
            q->send_by = f->send_by;
    }
    q->n = kept;
}

static void vparcel_send(struct vparcel *q)
{
    struct sim *s = q->node->sim;
    int64_t connect = sim_latency(s);

    drop_late(q);
    if (!q->n) {
        vparcel_free(q);
        return;
    }
    sim_forget(s, &q->ev);
    q->stage = IS_OUT;
    q->line->n_out++;
    q->started_at = s->now;
    if (sim_chance(s, s->sc->slow_rate))
        connect += sim_between(s, 1, 4000);
    sim_at(s, &q->ev, s->now + connect, on_leave);
}

/* ---- Gathering ----------------------------------------------------------------------------- */

static struct known_service *service_of(const struct vline *l, struct vnode *n)
{
    return &n->services[l - n->lines];
}

static void give_all_back(struct vline *l)
{
    struct vparcel *next;

    for (struct vparcel *q = l->parcels; q; q = next) {
        next = q->next;
        if (q->stage == IS_OUT)
            continue;
        for (size_t i = 0; i < q->n; i++)
            give_back(q->flights[i]);
        vparcel_free(q);
    }
}

/* Sends what may leave. */
static void pump(struct vline *l)
{
    struct vparcel *next;

    for (struct vparcel *q = l->parcels; q; q = next) {
        const struct known_service *v = service_of(l, q->node);

        next = q->next;
        if (v->paused || v->delivery != DELIVERY_BATCH) {
            give_all_back(l);
            return;
        }
        if (l->n_out >= (uint32_t)v->n_requests_max)
            return;
        if (q->stage == IS_DUE || q->stage == IS_FULL)
            vparcel_send(q);
    }
}

static void on_wait_over(struct sim *s, struct sim_event *ev)
{
    struct vparcel *q = (struct vparcel *)ev;
    struct vnode *n = q->node;

    (void)s;
    if (!goes_on(q, on_wait_over))
        return;
    if (q->stage == GATHERS)
        q->stage = IS_DUE;
    pump(q->line);
    vnode_pass(n);
}

/* The one that gathers what the task is like; NULL when there is none with room for it. One without
 * room is full from now on. */
static struct vparcel *find_parcel(struct vline *l, const struct flight *f,
                                   struct parcel_group group)
{
    for (struct vparcel *q = l->parcels; q; q = q->next) {
        if (q->stage >= IS_FULL || q->group.group != group.group || q->timeout_ms != f->timeout_ms)
            continue;
        if (bytes_of(q) + SIM_ENVELOPE_BYTES <= parcel_rules_max_bytes(l->rules))
            return q;
        q->stage = IS_FULL;
    }
    return NULL;
}

/* It waits for others, but not until a fence or a time-out is near. */
static struct vparcel *vparcel_new(struct vline *l, const struct flight *f,
                                   const struct service *service, struct parcel_group group)
{
    struct sim *s = f->node->sim;
    struct vparcel *q = sim_alloc(sizeof(*q));
    struct vparcel **at = &l->parcels;
    int64_t least_ms = f->send_by - s->now < f->timeout_ms ? f->send_by - s->now : f->timeout_ms;
    int64_t wait_ms = service->batch_wait_ms;

    while (*at)
        at = &(*at)->next;
    *at = q;
    q->node = f->node;
    q->line = l;
    q->group = group;
    q->timeout_ms = f->timeout_ms;
    if (wait_ms > least_ms / 2)
        wait_ms = least_ms > 0 ? least_ms / 2 : 0;
    sim_at(s, &q->ev, s->now + wait_ms, on_wait_over);
    return q;
}

void vparcels_add(struct flight *f, const struct service *service)
{
    struct vline *l = &f->node->lines[f->service];

    if (!l->rules)
        l->rules = parcel_rules_new();
    struct parcel_group group = parcel_rules_group(l->rules, f->task, service->batch_size);
    struct vparcel *q = find_parcel(l, f, group);

    if (!q)
        q = vparcel_new(l, f, service, group);
    q->flights[q->n++] = f;
    if (q->n >= group.max_tasks || q->n >= (size_t)service->batch_size ||
        bytes_of(q) >= parcel_rules_max_bytes(l->rules))
        q->stage = IS_FULL;
    pump(l);
}

void vparcels_services(struct vnode *n)
{
    for (int i = 0; i < SIM_SERVICES_MAX; i++) {
        struct vline *l = &n->lines[i];

        if (l->rules && l->version != n->services[i].version)
            parcel_rules_forget(l->rules);
        l->version = n->services[i].version;
        pump(l);
    }
}

void vparcels_stop(struct vnode *n)
{
    for (int i = 0; i < SIM_SERVICES_MAX; i++)
        give_all_back(&n->lines[i]);
}

void vparcels_drop(struct vnode *n)
{
    for (int i = 0; i < SIM_SERVICES_MAX; i++) {
        struct vline *l = &n->lines[i];

        while (l->parcels)
            vparcel_free(l->parcels);
        parcel_rules_free(l->rules);
        *l = (struct vline){0};
    }
}
