/* SPDX-License-Identifier: Apache-2.0 */
/* What the set-wise statements of the servers share: rows that come back, matched with the items of
 * the batch, which are sorted. */
#ifndef JF_STORE_SETOPS_H
#define JF_STORE_SETOPS_H

#include "node/core/storeop.h"
#include "node/store/sql.h"

/* Claims by id. Find returns NULL when the batch has no such item. */
struct claim_set {
    struct claim_item **items; /* by id, which are distinct */
    size_t n;
    struct str claimed_by;
};
struct claim_item *claim_set_find(const struct claim_set *c, int64_t id);
/* With a struct claim_set * as ctx: a live row of LIVE_COLUMNS after the update says whether its
 * claim was won, and if so is kept with it. */
sql_row_fn claim_set_on_live;
/* After a batch that failed: frees the tasks that it had read. */
void claim_set_drop(struct claim_set *c);

/* Cancels by key. */
struct cancel_set {
    struct cancel_op **items; /* by biz_uuid */
    size_t n;
};
struct cancel_op *cancel_set_find(const struct cancel_set *c, struct str biz_uuid);
/* Before and after a batch: the transaction. Frees the tasks that one which failed had read. */
MUST_CHECK int cancel_set_begin(struct cancel_set *c, struct sql *db, struct err *err);
MUST_CHECK int cancel_set_end(struct cancel_set *c, struct sql *db, int rc, struct err *err);
/* With a struct cancel_set * as ctx. Keeps a live row of LIVE_COLUMNS with its cancel. */
sql_row_fn cancel_set_on_live;
/* Turns the kept row into the record as it stands in history now: biz_uuid, updated_at,
 * finished_at. */
sql_row_fn cancel_set_on_cancelled;

/* What judge_can_finish looks at, without the payload. */
#define BRIEF_COLUMNS "id, status, attempt, deadline_at, claimed_at"
MUST_CHECK int task_from_brief(const struct sql_value *row, struct task *ret);

#endif
