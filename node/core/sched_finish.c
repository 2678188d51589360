/* SPDX-License-Identifier: Apache-2.0 */
/* How attempts end: this node's own by their answer, other nodes' at their deadline. A FINISH that
 * the store did not take is kept and repeated; it holds its place in max_in_flight meanwhile. */
#include "node/core/sched_internal.h"

#include <stdlib.h>
#include <string.h>

#define FINISH_PAUSE_SHIFT_MAX 5

/* Keeps the item with its error text in one block. */
static struct finish_item *finish_keep(const struct finish_item *in)
{
    struct finish_item *kept = sched_alloc(sizeof(*kept) + in->error.len + 1);

    *kept = *in;
    if (in->error.p) {
        memcpy(kept + 1, in->error.p, in->error.len);
        kept->error.p = (const char *)(kept + 1);
    }
    return kept;
}

static void finish_emit(struct sched *s, struct entry *e, struct actions *out)
{
    entry_move(s, e, TRACK_FINISHING);
    actions_add(out, ACTION_FINISH)->finish = *e->finish;
}

static void finish_park(struct sched *s, struct entry *e)
{
    int shift = e->tries < FINISH_PAUSE_SHIFT_MAX ? e->tries++ : FINISH_PAUSE_SHIFT_MAX;

    entry_move(s, e, TRACK_PARKED);
    sched_must(heap_add(&s->timers, &e->timer, s->now + ((int64_t)SCHED_STORE_PAUSE_MS << shift)));
}

void finish_again(struct sched *s, struct entry *e, struct actions *out)
{
    if (s->store_up)
        finish_emit(s, e, out);
    else
        finish_park(s, e);
}

static void finish_start(struct sched *s, struct entry *e, struct finish_item *item,
                         struct actions *out)
{
    item->id = e->id;
    item->attempt = e->attempt;
    item->node = s->cfg.node;
    item->alert = s->cfg.alerts && item->kind == FINISH_FAIL;
    assert(!e->finish);
    e->finish = finish_keep(item);
    e->tries = 0;
    if (s->store_up)
        finish_emit(s, e, out);
    else
        finish_park(s, e);
}

void sched_answered(struct sched *s, wall_ms now, const struct task *task, const struct verdict *v,
                    struct actions *out)
{
    struct entry *e = sched_entry(s, task->id);
    const struct service *conf;
    struct finish_item item = {0};

    s->now = now;
    assert(e && e->track == TRACK_SENDING && e->attempt == task->attempt);
    conf = e->lane->svc->conf;
    struct retry_facts facts = {
        .id = task->id,
        .attempt = task->attempt,
        .retry_count = task->retry_count,
        .max_retry = task->max_retry,
        .snooze_count = task->snooze_count,
        .priority = task->priority,
        .result_wait_ms =
            s->cfg.ghost_margin_ms + (task->timeout_ms       ? task->timeout_ms
                                      : conf->timeout_ms > 0 ? conf->timeout_ms
                                                             : s->cfg.default_timeout_ms),
        .policy = task->policy.p ? task->policy : conf->policy,
    };
    retry_decide(s->cfg.policies, &facts, v, now, &s->rng, &item);
    item.from = task_status_bit(TASK_SENDING);
    finish_start(s, e, &item, out);
}

void rescue_start(struct sched *s, struct entry *e, struct actions *out)
{
    struct ghost *g = e->ghost;
    struct finish_item item = {0};
    struct verdict v = {.kind = VERDICT_RETRY, .retry_after_ms = -1};

    if (!s->store_up || sched_in_flight(s) >= s->cfg.max_in_flight) {
        sched_must(heap_add(&s->timers, &e->timer, s->now + SCHED_STORE_PAUSE_MS));
        return;
    }
    (void)utf8_clean(v.error, sizeof(v.error),
                     g->own_orphan ? STR("the node stopped during this attempt")
                                   : STR("no answer by the deadline of this attempt"));
    struct retry_facts facts = {
        .id = e->id,
        .attempt = e->attempt,
        .retry_count = g->retry_count,
        .max_retry = g->max_retry,
        .priority = g->priority,
        .result_wait_ms = s->cfg.ghost_margin_ms,
        .policy = *g->policy ? str_from(g->policy) : e->lane->svc->conf->policy,
    };
    retry_decide(s->cfg.policies, &facts, &v, s->now, &s->rng, &item);
    item.from = task_status_bit(g->status);
    item.past_deadline = !g->own_orphan;
    item.outcome = "ghost";
    finish_start(s, e, &item, out);
}

/* The task waits again: keep it when its time is near, since the scans have passed that point. */
static void finish_wait(struct sched *s, struct entry *e)
{
    const struct finish_item *f = e->finish;
    struct svc *v = e->lane->svc;
    wall_ms at = f->next_attempt_time;
    int64_t id = e->id;
    int32_t attempt = e->attempt;
    int32_t shard = e->lane->shard;
    int32_t number = task_lane(f->priority, f->retry_count > 0);
    bool owned = e->lane->owned;

    entry_forget(s, e);
    if (!owned || s->stopping || v->conf->paused || v->gone || at > s->now + s->cfg.lookahead_ms)
        return;
    e = entry_add(s, svc_lane(s, v, shard, number), id, attempt, at);
    if (e)
        entry_wait(s, e, at);
}

void sched_finished(struct sched *s, wall_ms now, int rc, const struct finish_item *item,
                    struct actions *out)
{
    struct entry *e = sched_entry(s, item->id);

    (void)out;
    s->now = now;
    assert(e && e->track == TRACK_FINISHING && e->attempt == item->attempt);
    if (rc) {
        finish_park(s, e);
        return;
    }
    s->pause_ms = 0;
    s->pause_until = WALL_NONE;
    if (item->result == FINISH_FAILED) {    /* still in flight: a ghost for the next full read */
        note_claimed(s, e->id, e->attempt); /* by this node, which must not win it again */
        entry_forget(s, e);
        return;
    }
    if (item->result == FINISH_LOST) {
        if (e->ghost) /* still alive after all: look at the row again */
            lane_look_again(s, e->lane, e->next_attempt_time);
        else
            s->n_finishes_lost++;
        entry_forget(s, e);
        return;
    }
    note_finished(s, item);
    if (e->ghost)
        s->n_rescued++;
    if (item->kind == FINISH_RETRY || item->kind == FINISH_PUT_BACK)
        finish_wait(s, e);
    else
        entry_forget(s, e);
}
