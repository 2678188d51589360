/* SPDX-License-Identifier: Apache-2.0 */
/* Claimed tasks on their way to workers, and back. */
#include <stdlib.h>

#include "node/lease_internal.h"

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

static void note_leased(struct node *n, const struct poll *p, const struct task *t, wall_ms now)
{
    struct pull *u = p->pull;
    size_t bytes = t->payload.len + 512;

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
            poll_answer(p, LEASE_OK);
        }
    }
}

/* Claims on their way back. */
struct return_op {
    struct finish_op finish; /* first */
    struct leases *leases;
    struct task **tasks;
};

static void on_returned(struct mail *m)
{
    struct return_op *r = (struct return_op *)m;
    struct node *n = r->leases->node;

    for (size_t i = 0; i < r->finish.n; i++) {
        const struct finish_item *item = &r->finish.items[i];
        const struct task *t = r->tasks[i];
        const struct hint hint = {.service_name = t->service_name,
                                  .shard = t->shard,
                                  .lane = t->lane,
                                  .id = t->id,
                                  .attempt = t->attempt,
                                  .next_attempt_time = item->next_attempt_time};

        if (!r->finish.op.rc && item->result == FINISH_DONE)
            (void)sched_hint(n->sched, store_clock_now(&n->clock), &hint);
        task_free(r->tasks[i]);
    }
    if (!r->finish.op.rc)
        runner_later(n);
    free(r->tasks);
    free(r->finish.items);
    free(r);
}

void leases_give_back(struct leases *l, struct task **tasks, size_t n_tasks)
{
    struct node *n = l->node;
    struct return_op *r = calloc(1, sizeof(*r));
    struct finish_item *items = calloc(n_tasks, sizeof(*items));

    if (!r || !items)
        abort(); /* as above */
    for (size_t i = 0; i < n_tasks; i++)
        items[i] = (struct finish_item){.id = tasks[i]->id,
                                        .attempt = tasks[i]->attempt,
                                        .kind = FINISH_PUT_BACK,
                                        .from = task_status_bit(TASK_SENDING),
                                        .next_attempt_time = store_clock_now(&n->clock) + 1,
                                        .retry_count = tasks[i]->retry_count,
                                        .priority = tasks[i]->priority,
                                        .outcome = "unsent",
                                        .node = str_from(n->cfg->node_name)};
    r->leases = l;
    r->tasks = tasks;
    r->finish.items = items;
    r->finish.n = n_tasks;
    r->finish.op.kind = STORE_FINISH;
    r->finish.op.reply = n->mailbox;
    r->finish.op.mail.on_delivery = on_returned;
    LOG(n->log, LOG_INFO, "lease.given_back", "nobody was there any more to take these tasks",
        F_INT("tasks", (int64_t)n_tasks));
    r->finish.op.rc = store_post(&n->port, &r->finish.op);
    if (r->finish.op.rc)
        on_returned(&r->finish.op.mail);
}
