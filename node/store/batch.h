/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the operations that a thread has taken, sorted and cut into transactions. One per
 * thread; its memory is kept from batch to batch. */
#ifndef JF_STORE_BATCH_H
#define JF_STORE_BATCH_H

#include "node/core/storeop.h"

union batch_item {
    struct submit_item *submit;
    struct claim_item *claim;
    struct finish_item *finish;
    struct cancel_op *cancel;
};

struct batch_row {
    union batch_item item;
    struct str key; /* submissions and cancels; others go by id */
    int64_t id;
    size_t bytes;
    uint32_t op;  /* index */
    uint32_t seq; /* order of arrival */
};

struct batch {
    enum store_kind kind;
    struct store_op **ops; /* NULL where an operation was sent back to the queue */
    size_t n_ops;
    size_t cap_ops;
    struct batch_row *rows; /* not yet in a transaction, sorted */
    size_t n_rows;
    size_t cap_rows;
    /* The current transaction, from batch_next(): items and the operations that they belong to. */
    union batch_item *items;
    uint32_t *owners;
};

/* Takes over a chain of operations of one kind, and clears the tasks that they carry back. Those
 * with a key or id that an earlier one has, too, are given back in *ret_back as a chain, in order:
 * they follow in the next batch. Kinds that are not batched have no rows. Errors: ERR_NOMEM; the
 * chain is as it was. */
MUST_CHECK int batch_fill(struct batch *b, struct store_op *chain, struct store_op **ret_back);

/* Moves the next transaction's rows into `items`: distinct keys, sorted, at most max_rows and
 * max_bytes, but at least one. Returns how many; 0 = all done. */
size_t batch_next(struct batch *b, size_t max_rows, size_t max_bytes);

void batch_fini(struct batch *b);

#endif
