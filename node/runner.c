/* SPDX-License-Identifier: Apache-2.0 */
/* Drives the scheduler: a pass ticks it and carries out its actions. All scans of a pass are one
 * store operation, so are all claims and all finishes; sends go to the dispatcher one by one.
 *
 * An operation that the store does not take is answered to the scheduler with that code at once; it
 * then pauses or parks, so a pass always comes to an end. */
#include "node/node_internal.h"

#include <assert.h>
#include <stdlib.h>

/* One batch on its way through the store. */
struct batch {
    union {
        struct store_op op; /* first in each */
        struct scan_op scan;
        struct claim_op claim;
        struct finish_op finish;
    };
    struct node *node;
    mono_ms asked_at;
};

static void *must_alloc(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (!p)
        abort(); /* the scheduler's books would be wrong: safer dead */
    return p;
}

static struct batch *batch_new(struct node *n, enum store_kind kind,
                               void (*on_done)(struct mail *m))
{
    struct batch *b = must_alloc(1, sizeof(*b));

    b->node = n;
    b->asked_at = clock_mono();
    b->op.kind = kind;
    b->op.reply = n->mailbox;
    b->op.mail.on_delivery = on_done;
    return b;
}

static void on_scanned(struct mail *m)
{
    struct batch *b = (struct batch *)m;
    struct node *n = b->node;

    sched_scanned(n->sched, store_clock_now(&n->clock), b->op.rc, clock_mono() - b->asked_at,
                  b->scan.keys, b->scan.n_keys, b->scan.rows, b->op.rc ? 0 : b->scan.n_rows,
                  &n->actions);
    free(b->scan.rows);
    free(b->scan.keys);
    free(b);
    runner_later(n);
}

/* Starts the SEND actions from this position on. */
static void send_all(struct node *n, size_t from, mono_ms asked_at)
{
    for (size_t i = from; i < n->actions.n; i++) {
        struct action *a = &n->actions.list[i];

        if (a->kind != ACTION_SEND || !a->send.task)
            continue;
        struct action send = *a; /* the list may move while the send adds to it */
        a->send.task = NULL;
        mono_ms send_by = claim_fence(send.send.task, n->cfg->ghost_margin_ms, asked_at,
                                      store_clock_now(&n->clock), clock_mono());
        deliver_start(n, send.send.task, send.send.service, send.send.timeout_ms, send_by);
    }
}

/* One line per batch: of a trigger that refuses all there may be thousands. */
static void log_refused(struct node *n, const struct batch *b, size_t n_refused, int64_t id)
{
    if (n_refused)
        LOG(n->log, LOG_ERROR, "store.refused",
            b->op.kind == STORE_CLAIM ? "the database refuses to write these claims"
                                      : "the database refuses to write the ends of these attempts",
            F_INT("rows", (int64_t)n_refused), F_INT("taskId", id), F_Z("error", b->op.err.text));
}

static void on_claimed(struct mail *m)
{
    struct batch *b = (struct batch *)m;
    struct node *n = b->node;
    size_t from = n->actions.n;
    wall_ms now = store_clock_now(&n->clock);
    size_t n_refused = 0;
    int64_t refused = 0;

    for (size_t i = 0; i < b->claim.n; i++) {
        struct claim_item *item = &b->claim.items[i];

        if (!b->op.rc && item->result == CLAIM_FAILED) {
            n_refused++;
            refused = item->id;
        }
        sched_claimed(n->sched, now, b->op.rc, item, &n->actions);
    }
    log_refused(n, b, n_refused, refused);
    send_all(n, from, b->asked_at);
    leases_hand(n->leases, from, b->asked_at);
    free(b->claim.items);
    free(b);
    runner_later(n);
}

static void flight_end(struct node *n, int64_t id)
{
    struct flight *f = map64_remove(&n->flights, (uint64_t)id);

    if (!f)
        return;
    delivery_free(f->delivery);
    task_free(f->task);
    free(f);
}

static void on_finished(struct mail *m)
{
    struct batch *b = (struct batch *)m;
    struct node *n = b->node;
    wall_ms now = store_clock_now(&n->clock);
    size_t n_refused = 0;
    int64_t refused = 0;

    for (size_t i = 0; i < b->finish.n; i++) {
        struct finish_item *item = &b->finish.items[i];

        if (!b->op.rc && item->result == FINISH_FAILED) {
            n_refused++;
            refused = item->id;
        } else if (!b->op.rc) {
            deliver_log_end(n, map64_find(&n->flights, (uint64_t)item->id), item);
        }
        sched_finished(n->sched, now, b->op.rc, item, &n->actions);
        if (!b->op.rc)
            flight_end(n, item->id);
    }
    log_refused(n, b, n_refused, refused);
    free(b->finish.items);
    free(b);
    runner_later(n);
}

static void batch_post(struct batch *b)
{
    int rc = store_post(&b->node->port, &b->op);

    if (!rc)
        return;
    b->op.rc = rc;
    b->op.mail.on_delivery(&b->op.mail);
}

/* The actions of one pass, sorted into batches. */
struct outbox {
    struct scan_key *scans;
    struct claim_item *claims;
    struct finish_item *finishes;
    size_t n_scans;
    size_t n_claims;
    size_t n_finishes;
};

static void outbox_fill(struct outbox *o, const struct actions *a)
{
    for (size_t i = 0; i < a->n; i++) {
        o->n_scans += a->list[i].kind == ACTION_SCAN;
        o->n_claims += a->list[i].kind == ACTION_CLAIM;
        o->n_finishes += a->list[i].kind == ACTION_FINISH;
    }
    o->scans = o->n_scans ? must_alloc(o->n_scans, sizeof(*o->scans)) : NULL;
    o->claims = o->n_claims ? must_alloc(o->n_claims, sizeof(*o->claims)) : NULL;
    o->finishes = o->n_finishes ? must_alloc(o->n_finishes, sizeof(*o->finishes)) : NULL;
    o->n_scans = o->n_claims = o->n_finishes = 0;
    for (size_t i = 0; i < a->n; i++) {
        const struct action *action = &a->list[i];

        if (action->kind == ACTION_SCAN)
            o->scans[o->n_scans++] = action->scan;
        else if (action->kind == ACTION_CLAIM)
            o->claims[o->n_claims++] = action->claim;
        else if (action->kind == ACTION_FINISH)
            o->finishes[o->n_finishes++] = action->finish;
        else /* was carried out by on_claimed */
            assert(action->kind != ACTION_SEND || !action->send.task);
    }
}

static void outbox_post(struct node *n, struct outbox *o)
{
    struct batch *b;

    if (o->n_finishes) {
        b = batch_new(n, STORE_FINISH, on_finished);
        b->finish.items = o->finishes;
        b->finish.n = o->n_finishes;
        batch_post(b);
    }
    if (o->n_claims) {
        b = batch_new(n, STORE_CLAIM, on_claimed);
        b->claim.items = o->claims;
        b->claim.n = o->n_claims;
        b->claim.claimed_by = str_from(n->claimed_by);
        b->claim.margin_ms = n->cfg->ghost_margin_ms;
        batch_post(b);
    }
    if (o->n_scans) {
        b = batch_new(n, STORE_SCAN, on_scanned);
        b->scan.keys = o->scans;
        b->scan.n_keys = o->n_scans;
        b->scan.claimed_by = str_from(n->claimed_by);
        batch_post(b);
    }
}

static void wake_arm(struct node *n)
{
    wall_ms at = sched_next_wakeup(n->sched);
    int64_t wait_us = (n->stopping ? NODE_TICK_STOPPING_MS : NODE_TICK_MAX_MS) * INT64_C(1000);

    if (at != WALL_MAX) {
        int64_t left = store_clock_wait_us(&n->clock, at);

        wait_us = left < wait_us ? left : wait_us;
    }
    struct timeval tv = {wait_us / 1000000, wait_us % 1000000};
    if (event_add(n->wake_event, &tv))
        abort(); /* a node that cannot wake up is safer dead */
}

void runner_pass(struct node *n)
{
    sched_tick(n->sched, store_clock_now(&n->clock), &n->actions);
    while (n->actions.n) {
        struct outbox o = {0};

        outbox_fill(&o, &n->actions);
        n->actions.n = 0;
        outbox_post(n, &o);
    }
    leases_pass(n->leases);
    node_publish(n);
    wake_arm(n);
}

void runner_later(struct node *n)
{
    event_active(n->pass_event, EV_TIMEOUT, 0);
}

void runner_free_flights(struct node *n)
{
    struct flight *f;
    uint64_t id;

    for (;;) {
        size_t pos = 0;

        if (!(f = map64_each(&n->flights, &pos, &id)))
            break;
        flight_end(n, (int64_t)id);
    }
    map64_fini(&n->flights);
    deliveries_fini(&n->deliveries);
}
