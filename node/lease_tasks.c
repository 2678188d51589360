/* SPDX-License-Identifier: Apache-2.0 */
/* Claimed tasks on their way to workers, and back. */
#include <stdlib.h>

#include "node/lease_answer.h"
#include "node/lease_internal.h"

#define TASK_BYTES 512  /* of a task, its payload aside */
#define STEPS_MS 250    /* a poll that has tasks begins steps for more of them so long */
#define STEP_OUT_MS 250 /* and waits for the last one so long after that */

/* ---- Steps --------------------------------------------------------------------------------- */

static struct lease_fill fill_of(const struct poll *p)
{
    return (struct lease_fill){.n = (uint32_t)p->query->n,
                               .max_tasks = p->query->max_tasks,
                               .bytes = p->bytes,
                               .task_bytes = p->pull->task_bytes,
                               .max_payload = p->leases->node->cfg->max_payload};
}

uint32_t step_size(const struct poll *p)
{
    const struct lease_fill fill = fill_of(p);

    return lease_step(&fill);
}

/* The step that is back brought all that it asked for, there is room and more is due. Tasks that
 * are there already wait only so long for one that is stuck; what it claims is given back. */
static bool step_again(struct poll *p)
{
    const struct lease_query *q = p->query;
    const struct lease_fill fill = fill_of(p);
    struct leases *l = p->leases;
    mono_ms now = clock_mono();

    if (!p->in_steps)
        p->steps_until = now + STEPS_MS;
    if (p->is_over || l->stopping || now >= p->steps_until || q->n < p->n_wanted ||
        !lease_has_room(&fill) || !sched_pull_ready(l->node->sched, q->service_name) ||
        lease_start(p))
        return false;
    if (!p->in_steps) {
        p->in_steps = true;
        p->next_in_steps = l->in_steps;
        l->in_steps = p;
        poll_end_in(p, STEPS_MS + STEP_OUT_MS);
    }
    return true;
}

void steps_pass(struct leases *l)
{
    struct poll *next;

    for (struct poll *p = l->in_steps; p; p = next) {
        next = p->next_in_steps;
        if (!sched_lease_is_claiming(p->lease))
            poll_answer(p, LEASE_OK);
    }
}

/* ---- On their way out ---------------------------------------------------------------------- */

static void poll_take(struct poll *p, struct task *t, mono_ms hand_by)
{
    struct lease_query *q = p->query;

    if (q->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 16;
        struct task **tasks = reallocarray(q->tasks, cap, sizeof(*tasks));

        if (!tasks)
            abort(); /* a claimed task must not be forgotten: safer dead, then rescued */
        q->tasks = tasks;
        p->cap = cap;
    }
    if (!q->n || hand_by < q->hand_by)
        q->hand_by = hand_by;
    q->tasks[q->n++] = t;
}

static void note_leased(struct node *n, struct poll *p, const struct task *t, wall_ms now)
{
    struct pull *u = p->pull;
    size_t bytes = t->payload.len + TASK_BYTES;

    p->bytes += bytes;
    u->task_bytes = u->task_bytes ? (u->task_bytes * 7 + bytes) / 8 : bytes;
    counter_add(&n->counters.attempts[VERDICT_ACCEPTED], 1);
    if (t->retry_count == 0 && t->snooze_count == 0)
        counters_lateness(&n->counters, now - t->next_attempt_time);
    LOG(n->log, LOG_DEBUG, "attempt.leased", NULL, F_Z("traceId", t->trace_id),
        F_STR("bizUuid", t->biz_uuid), F_INT("attempt", t->attempt),
        F_STR("worker", p->query->worker), F_INT("latenessMs", now - t->next_attempt_time));
}

void leases_hand(struct leases *l, size_t from, mono_ms asked_at)
{
    struct node *n = l->node;
    wall_ms now = store_clock_now(&n->clock);
    mono_ms mono_now = clock_mono();

    for (size_t i = from; i < n->actions.n; i++) {
        struct action *a = &n->actions.list[i];
        struct poll *p = a->leased.ctx;

        if (a->kind == ACTION_LEASED) {
            struct task *t = a->leased.task;

            note_leased(n, p, t, now);
            poll_take(p, t, claim_fence(t, n->cfg->ghost_margin_ms, asked_at, now, mono_now));
        } else if (a->kind == ACTION_LEASE_DONE) {
            p->lease = NULL;
            if (!step_again(p))
                poll_answer(p, LEASE_OK);
        }
    }
}

/* ---- On their way back --------------------------------------------------------------------- */

struct return_op {
    struct finish_op finish; /* first */
    struct leases *leases;
    struct lease_claims *claims; /* owned */
};

/* Whoever owns it by now claims it for the next worker. */
static void tell_owner(struct node *n, const struct lease_claims *claims, size_t i,
                       wall_ms next_attempt_time)
{
    const struct lease_claim *c = &claims->list[i];
    const struct hint hint = {.service_name = str_from(claims->service_name),
                              .shard = c->shard,
                              .lane = task_lane(c->priority, c->retry_count > 0),
                              .id = c->id,
                              .attempt = c->attempt,
                              .next_attempt_time = next_attempt_time};

    if (sched_hint(n->sched, store_clock_now(&n->clock), &hint) == HINT_FOREIGN)
        forward_add(n->forward, &hint);
}

static void on_returned(struct mail *m)
{
    struct return_op *r = (struct return_op *)m;
    struct node *n = r->leases->node;

    for (size_t i = 0; i < r->finish.n && !r->finish.op.rc; i++) {
        const struct finish_item *item = &r->finish.items[i];

        if (item->result == FINISH_DONE)
            tell_owner(n, r->claims, i, item->next_attempt_time);
    }
    if (!r->finish.op.rc) {
        forward_flush(n->forward);
        runner_later(n);
    }
    free(r->claims);
    free(r->finish.items);
    free(r);
}

void leases_give_back(struct leases *l, struct lease_claims *claims)
{
    struct node *n = l->node;
    struct return_op *r = calloc(1, sizeof(*r));
    struct finish_item *items = calloc(claims->n, sizeof(*items));

    if (!r || !items)
        abort(); /* as above */
    for (size_t i = 0; i < claims->n; i++)
        items[i] = (struct finish_item){.id = claims->list[i].id,
                                        .attempt = claims->list[i].attempt,
                                        .kind = FINISH_PUT_BACK,
                                        .from = task_status_bit(TASK_SENDING),
                                        .next_attempt_time = store_clock_now(&n->clock) + 1,
                                        .retry_count = claims->list[i].retry_count,
                                        .priority = claims->list[i].priority,
                                        .outcome = "unsent",
                                        .node = str_from(n->cfg->node_name)};
    r->leases = l;
    r->claims = claims;
    r->finish.items = items;
    r->finish.n = claims->n;
    r->finish.op.kind = STORE_FINISH;
    r->finish.op.reply = n->mailbox;
    r->finish.op.mail.on_delivery = on_returned;
    LOG(n->log, LOG_INFO, "lease.given_back", "these tasks were claimed and not handed out",
        F_Z("service", claims->service_name), F_INT("tasks", (int64_t)claims->n));
    r->finish.op.rc = store_post(&n->port, &r->finish.op);
    if (r->finish.op.rc)
        on_returned(&r->finish.op.mail);
}
