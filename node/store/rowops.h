/* SPDX-License-Identifier: Apache-2.0 */
/* The hot operations row by row: each row is read (and locked, where there are row locks), judged
 * and written, all rows of a batch in one transaction. For databases in the same process, where a
 * statement costs no round trip; and for the few rows that a set-wise statement did not answer. */
#ifndef JF_STORE_ROWOPS_H
#define JF_STORE_ROWOPS_H

#include "node/core/storeop.h"
#include "node/store/submit.h"

extern const struct submit_ops row_submit_ops;

/* As the driver's functions of these names. */
MUST_CHECK int row_claim(struct sql *db, struct claim_item **items, size_t n, struct str claimed_by,
                         int64_t margin_ms, struct err *err);
MUST_CHECK int row_finish(struct sql *db, struct finish_item **items, size_t n, struct err *err);
MUST_CHECK int row_cancel(struct sql *db, struct cancel_op **items, size_t n, struct err *err);
MUST_CHECK int row_scan(struct sql *db, struct scan_op *op, struct err *err);

/* Inside a transaction: the end of an attempt that changed nothing; one cancel. */
MUST_CHECK int row_finish_miss(struct sql *db, struct finish_item *f, struct err *err);
MUST_CHECK int row_cancel_one(struct sql *db, struct cancel_op *op, struct err *err);

/* Inside a transaction: the live row by id, locked. *ret is NULL or owned before (and is freed). */
MUST_CHECK int row_find_live(struct sql *db, int64_t id, struct task **ret, struct err *err);

/* ---- Scans, shared by all ----------------------------------------------------------------- */

/* Other rows of the index are people's work: one that nobody can read must not stop the others. */
#define SCAN_STATUSES "status IN ('PENDING', 'RETRYING', 'SENDING', 'SENT')"
#define SCAN_COLUMNS                                                                               \
    "id, next_attempt_time, status, attempt, deadline_at, retry_count, max_retry, priority, "      \
    "claimed_by, policy"

struct scan_rows {
    struct scan_op *op;
    struct buf rows; /* of struct scan_row */
    uint32_t key;
};

/* Adds a row of SCAN_COLUMNS. */
MUST_CHECK int scan_add(struct scan_rows *s, const struct sql_value *row);

#endif
