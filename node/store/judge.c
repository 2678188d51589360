/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/judge.h"

#include <assert.h>

#include "common/json.h"

void judge_claim_miss(struct claim_item *item, const struct task *live, struct str claimed_by)
{
    char text[CLAIM_HOLDER_MAX];

    item->result = CLAIM_LOST;
    if (!live)
        return;
    if (live->status == TASK_SENDING && live->attempt == item->attempt + 1 &&
        str_eq(live->claimed_by, claim_holder(item, claimed_by, text))) {
        item->result = CLAIM_WON;
    } else if (task_is_in(live, TASK_WAITING) && live->attempt == item->attempt) {
        item->result = CLAIM_NOT_DUE;
        item->next_attempt_time = live->next_attempt_time;
    }
}

bool judge_can_finish(const struct finish_item *f, const struct task *live, wall_ms now)
{
    return live->attempt == f->attempt && task_is_in(live, f->from & TASK_IN_FLIGHT) &&
           (!f->past_deadline || live->deadline_at <= now);
}

bool judge_is_finished(const struct finish_item *f, const struct task *t)
{
    struct finish_write w;

    if (t->attempt != f->attempt)
        return false;
    if (f->kind == FINISH_SUCCESS)
        return t->status == TASK_SUCCESS;
    judge_finish_write(f, &w);
    if (f->kind == FINISH_SENT) /* heartbeats may have moved its time since */
        return t->status == TASK_SENT;
    return t->status == w.status && t->next_attempt_time == w.next_attempt_time &&
           t->retry_count == w.retry_count;
}

void judge_finish_write(const struct finish_item *f, struct finish_write *ret)
{
    *ret = (struct finish_write){.next_attempt_time = WALL_NONE, .deadline_at = WALL_NONE};
    switch (f->kind) {
    case FINISH_SENT:
        ret->status = TASK_SENT;
        ret->retry_count = -1;
        ret->lane = -1;
        ret->next_attempt_time = f->next_attempt_time;
        ret->deadline_at = f->next_attempt_time;
        ret->keeps_claim = true;
        return;
    case FINISH_RETRY:
    case FINISH_PUT_BACK:
        ret->status = f->retry_count > 0 ? TASK_RETRYING : TASK_PENDING;
        ret->next_attempt_time = f->next_attempt_time;
        ret->retry_count = f->retry_count;
        ret->lane = task_lane(f->priority, f->retry_count > 0);
        ret->adds_attempt = f->kind == FINISH_RETRY;
        return;
    case FINISH_FAIL:
        ret->status = TASK_FAILED;
        ret->retry_count = f->retry_count;
        ret->lane = -1;
        ret->failed = true;
        ret->adds_attempt = true;
        ret->adds_alert = f->alert;
        return;
    case FINISH_SUCCESS:
        break;
    }
    assert(false);
}

enum cancel_result judge_cancel(const struct task *t)
{
    if (task_is_in(t, TASK_CANCELLABLE) && t->finished_at == WALL_NONE)
        return CANCEL_DONE;
    if (t->status == TASK_CANCELLED)
        return CANCEL_ALREADY;
    return task_is_in(t, TASK_IN_FLIGHT) ? CANCEL_IN_FLIGHT : CANCEL_FINISHED;
}

static unsigned mismatch_of(const struct submit_item *item, const struct task *t)
{
    const struct task *mine = item->task;
    unsigned mismatch = 0;

    if ((mine->payload.p != NULL) != (t->payload.p != NULL) ||
        (mine->payload.p && !json_same_value(mine->payload, t->payload)))
        mismatch |= MISMATCH_PAYLOAD;
    if (item->absolute_time && mine->execute_time != t->execute_time)
        mismatch |= MISMATCH_EXECUTE_TIME;
    return mismatch;
}

bool judge_repeat(struct submit_item *item, const struct task *t)
{
    item->mismatch = 0;
    if (!str_eq(item->task->service_name, t->service_name) ||
        !str_eq(item->task->handler, t->handler)) {
        item->result = SUBMIT_FOREIGN;
        return false;
    }
    if (item->on_conflict == ON_CONFLICT_REPLACE) {
        bool can = task_is_in(t, TASK_WAITING) && t->finished_at == WALL_NONE;

        item->result = can ? SUBMIT_REPLACED : SUBMIT_REFUSED;
        return can;
    }
    item->result = item->on_conflict == ON_CONFLICT_REJECT ? SUBMIT_REFUSED : SUBMIT_DUPLICATE;
    item->mismatch = mismatch_of(item, t);
    return false;
}
