/* SPDX-License-Identifier: Apache-2.0 */
/* What store threads and other members tell the loop: near tasks that were just committed, and the
 * database's state. Hints are best effort and bounded; what is dropped is found by the next scan.
 */
#include "node/node_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hint_mail {
    struct mail mail;
    struct node *node;
    bool forwarded; /* by another member: goes no further */
    bool services;  /* have changed */
    size_t n;
    size_t cap;
    char *text; /* where the next service's name goes, behind the hints */
    size_t text_left;
    struct hint hints[];
};

static void on_hints(struct mail *m)
{
    struct hint_mail *h = (struct hint_mail *)m;
    struct node *n = h->node;
    wall_ms now = store_clock_now(&n->clock);
    bool unknown = h->services;

    for (size_t i = 0; i < h->n; i++) {
        switch (sched_hint(n->sched, now, &h->hints[i])) {
        case HINT_TAKEN:
            break;
        case HINT_UNKNOWN:
            unknown = true;
            break;
        case HINT_FOREIGN:
            if (!h->forwarded)
                forward_add(n->forward, &h->hints[i]);
            break;
        }
    }
    forward_flush(n->forward);
    atomic_fetch_sub(&n->n_hints, (unsigned)h->n);
    free(h);
    if (unknown)
        house_read_services(n->house);
    runner_later(n);
}

/* The tasks of a committed operation that may wait for an attempt now: the i-th, or NULL. */
static const struct task *op_task(const struct store_op *op, size_t i)
{
    const struct submit_item *item;

    if (op->kind == STORE_SUBMIT) {
        item = &((const struct submit_op *)op)->items[i];
        return item->result == SUBMIT_CREATED    ? item->task
               : item->result == SUBMIT_REPLACED ? item->existing
                                                 : NULL;
    }
    switch (((const struct store_call *)op)->what) {
    case CALL_MOVE:
        return ((const struct call_move *)op)->task;
    case CALL_RUN:
        return ((const struct call_run *)op)->task;
    default:
        return NULL;
    }
}

static size_t op_tasks(const struct store_op *op)
{
    if (op->rc)
        return 0;
    return op->kind == STORE_SUBMIT ? ((const struct submit_op *)op)->n : op->kind == STORE_CALL;
}

/* Walks the tasks of a batch of operations that the loop should hear of: near ones, and those of a
 * service, shard or lane that it has not seen yet, which it would otherwise read only after its
 * next regular look at job_service. */
struct walk {
    struct service_table *services;
    struct store_op *const *ops;
    size_t n_ops;
    wall_ms until;
    size_t op;
    size_t item;
};

static const struct task *walk_next(struct walk *w)
{
    for (; w->op < w->n_ops; w->op++, w->item = 0) {
        while (w->item < op_tasks(w->ops[w->op])) {
            const struct task *t = op_task(w->ops[w->op], w->item++);

            if (t && task_is_in(t, TASK_WAITING) &&
                (t->next_attempt_time <= w->until || !service_table_covers(w->services, t)))
                return t;
        }
    }
    return NULL;
}

static struct hint_mail *hint_mail_new(struct node *n, bool forwarded, size_t n_hints, size_t text)
{
    struct hint_mail *h = malloc(sizeof(*h) + n_hints * sizeof(struct hint) + text);

    if (!h)
        return NULL;
    h->mail.on_delivery = on_hints;
    h->node = n;
    h->forwarded = forwarded;
    h->services = false;
    h->n = 0;
    h->cap = n_hints;
    h->text = (char *)&h->hints[n_hints];
    h->text_left = text;
    return h;
}

/* What has no room is left to the scans: the services may change after the hints were counted. */
static void hint_mail_add(struct hint_mail *h, const struct hint *hint)
{
    struct hint *copy = &h->hints[h->n];
    size_t len = hint->service_name.len;

    if (h->n == h->cap || len > h->text_left)
        return;
    *copy = *hint;
    memcpy(h->text, hint->service_name.p, len);
    copy->service_name.p = h->text;
    h->text += len;
    h->text_left -= len;
    h->n++;
}

static bool hint_mail_post(struct hint_mail *h)
{
    if (!h)
        return false;
    atomic_fetch_add(&h->node->n_hints, (unsigned)h->n);
    mailbox_post(h->node->mailbox, &h->mail);
    return true;
}

static struct hint_mail *hints_build(struct node *n, struct walk w)
{
    struct walk count = w;
    struct hint_mail *h;
    const struct task *t;
    size_t n_hints = 0;
    size_t text = 0;

    while ((t = walk_next(&count))) {
        n_hints++;
        text += t->service_name.len;
    }
    h = n_hints ? hint_mail_new(n, false, n_hints, text) : NULL;
    while (h && (t = walk_next(&w)))
        hint_mail_add(h, &(struct hint){.service_name = t->service_name,
                                        .shard = t->shard,
                                        .lane = t->lane,
                                        .id = t->id,
                                        .attempt = t->attempt,
                                        .next_attempt_time = t->next_attempt_time});
    return h;
}

bool node_take_hints(struct node *n, const struct hint *hints, size_t n_hints, bool services)
{
    struct hint_mail *h;
    size_t text = 0;

    if (atomic_load(&n->n_hints) > NODE_HINTS_MAX)
        return false;
    for (size_t i = 0; i < n_hints; i++)
        text += hints[i].service_name.len;
    h = hint_mail_new(n, true, n_hints, text);
    for (size_t i = 0; h && i < n_hints; i++)
        hint_mail_add(h, &hints[i]);
    if (h)
        h->services = services;
    return hint_mail_post(h);
}

bool node_notify(struct node *n, const struct hint *hint)
{
    struct hint_mail *h;

    if (atomic_load(&n->n_hints) > NODE_HINTS_MAX)
        return false;
    h = hint_mail_new(n, false, 1, hint->service_name.len);
    if (h)
        hint_mail_add(h, hint);
    return hint_mail_post(h);
}

void node_on_committed(void *ctx, struct store_op *const *ops, size_t n_ops)
{
    struct node *n = ctx;
    struct walk w = {.services = &n->services,
                     .ops = ops,
                     .n_ops = n_ops,
                     .until = store_clock_now(&n->clock) + n->cfg->lookahead_ms};

    if (atomic_load(&n->n_hints) <= NODE_HINTS_MAX)
        (void)hint_mail_post(hints_build(n, w));
}

/* ---- The database's state ----------------------------------------------------------------- */

static void on_state_mail(struct mail *m)
{
    struct node *n = (struct node *)((char *)m - offsetof(struct node, state_mail));
    bool up;

    pthread_mutex_lock(&n->status.lock);
    n->state_posted = false;
    up = n->status.store_up;
    pthread_mutex_unlock(&n->status.lock);
    if (!n->store) /* stopped meanwhile */
        return;
    if (store_is_fatal(n->store)) {
        n->exit_status = 1;
        (void)event_base_loopbreak(n->base);
        return;
    }
    if (!n->sched)
        return;
    if (up)
        house_store_up(n->house);
    else
        sched_store_state(n->sched, store_clock_now(&n->clock), false);
    runner_later(n);
}

void node_on_state(void *ctx, bool up, const char *text)
{
    struct node *n = ctx;
    bool post;

    if (up)
        LOG(n->log, LOG_INFO, "store.up", "the database answers", F_Z("node", n->cfg->node_name));
    else
        LOG(n->log, LOG_ERROR, "store.down",
            "the database does not answer; trying again, submissions get 503 meanwhile",
            F_Z("error", text));
    pthread_mutex_lock(&n->status.lock);
    n->status.store_up = up;
    (void)snprintf(n->status.store_error, sizeof(n->status.store_error), "%s",
                   up || !text ? "" : text);
    post = !n->state_posted;
    n->state_posted = true;
    pthread_mutex_unlock(&n->status.lock);
    if (post)
        mailbox_post(n->mailbox, &n->state_mail);
}

void node_state_init(struct node *n)
{
    n->state_mail.on_delivery = on_state_mail;
}

void node_on_warning(void *ctx, const char *text)
{
    struct node *n = ctx;

    LOG(n->log, LOG_WARN, "store.warning", text, F_Z("node", n->cfg->node_name));
}
