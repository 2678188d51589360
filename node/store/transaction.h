/* SPDX-License-Identifier: Apache-2.0 */
/* One transaction of a worker's, run again after transient errors.
 *
 * Others' open transactions may have keys for long (jobflow_submit). One of ours that names keys
 * first waits for them hardly at all. Then it waits once, up to a second, when less than half of
 * the threads do. For such a place it may have to stand in line, which the last thread that is
 * left never does for a submission, and otherwise for as long as a try: however many keys are held,
 * the others' work goes on. */
#ifndef JF_STORE_TRANSACTION_H
#define JF_STORE_TRANSACTION_H

#include "node/store/worker.h"

/* Rows of a batch, or an operation of its own. */
struct transaction {
    enum store_kind kind;
    struct store_op *op; /* the first one */
    union batch_item *items;
    size_t n;
    mono_ms posted_at;   /* of the oldest operation in the batch */
    int32_t patience_ms; /* for keys; at least 1 of those that may meet ERR_TIMEOUT */
    bool unsure;         /* out: a try may have been committed though its answer was lost */
};

/* Errors: as of the driver's functions, but ERR_BUSY and ERR_EXISTS; ERR_UNAVAILABLE and
 * ERR_SHUTDOWN also when its time is over. The connection may be gone afterwards. */
MUST_CHECK int transaction_run(struct worker *w, struct transaction *t, struct err *err);

/* After ERR_TIMEOUT of this kind of operation. May the thread wait for keys? Then it has left its
 * lane to others, and transaction_waited() ends it. If not, it may have stood in line for a moment.
 */
MUST_CHECK bool transaction_may_wait(struct worker *w, enum store_kind kind);
void transaction_waited(struct worker *w);

#endif
