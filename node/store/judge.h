/* SPDX-License-Identifier: Apache-2.0 */
/* What a row says about a claim, the end of an attempt, a cancel or a repeated submission: the
 * rules, without a database. */
#ifndef JF_STORE_JUDGE_H
#define JF_STORE_JUDGE_H

#include "node/core/storeop.h"

/* Sets the item's result for a claim that this live row (NULL: none) did not let win: WON when
 * an earlier run of the same claim holds it (the caller copies the row), NOT_DUE with the time when
 * it waits under the same attempt, else LOST. */
void judge_claim_miss(struct claim_item *item, const struct task *live, struct str claimed_by);

/* True if the live row is the attempt that the item may end; `now` is the store's clock. */
bool judge_can_finish(const struct finish_item *f, const struct task *live, wall_ms now);

/* True if the row (live or in history, as its status tells) looks as this very write leaves it. */
bool judge_is_finished(const struct finish_item *f, const struct task *t);

/* What the end of an attempt writes into a row that stays in the live table. */
struct finish_write {
    enum task_status status;
    wall_ms next_attempt_time;
    wall_ms deadline_at;
    int32_t retry_count; /* -1: stays */
    int32_t lane;        /* -1: stays */
    bool keeps_claim;    /* claimed_by and claimed_at stay */
    bool failed;         /* failed_at = now */
    bool adds_attempt;
    bool adds_alert;
};
void judge_finish_write(const struct finish_item *f, struct finish_write *ret); /* not SUCCESS */

/* The result of a cancel that meets this record; CANCEL_DONE when it can be cancelled. */
enum cancel_result judge_cancel(const struct task *t);

/* The repeat of a submission whose key belongs to `t`: sets result and mismatch. Returns true when
 * the row is to be replaced now; the result is then REPLACED. */
bool judge_repeat(struct submit_item *item, const struct task *t);

#endif
