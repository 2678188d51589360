/* SPDX-License-Identifier: Apache-2.0 */
/* What the node asks of its database: the operations as data, and the port that takes them. The
 * store (node/store) implements the port; the scheduler's runner and the HTTP interface use it
 * and never see a database.
 *
 * An operation is posted once and comes back once, on the loop that owns its mailbox, with `rc`
 * set. Until then it, and all it points to, belongs to the store. Operations of the kinds SUBMIT,
 * CLAIM, FINISH and CANCEL that wait together share one transaction (group commit).
 *
 * rc: 0 (items carry their own results; `err` then says why the last of those that FAILED did),
 * ERR_UNAVAILABLE (no database now; nothing happened, or, after a lost answer that could not be
 * cleared up in time, the effect is unknown), ERR_SHUTDOWN, ERR_NOMEM, ERR_CORRUPT, ERR_TIMEOUT (of
 * cancels and of calls about one key only: another transaction has it, and has not ended; nothing
 * was done. An item of a submission is BUSY then); others where said. */
#ifndef JF_CORE_STOREOP_H
#define JF_CORE_STOREOP_H

#include "common/mailbox.h"
#include "node/core/storeitem.h"

enum store_kind {
    /* Batched. */
    STORE_SUBMIT,
    STORE_CLAIM,
    STORE_FINISH,
    STORE_CANCEL,
    /* One transaction each. */
    STORE_SCAN,
    STORE_CALL,
    STORE_N_KINDS
};

struct store_op {
    struct mail mail;      /* on_delivery: the asker's; runs on the loop of `reply` */
    struct mailbox *reply; /* borrowed */
    enum store_kind kind;
    int rc;
    struct err err;
    struct store_op *next; /* the store's while it has the operation */
    size_t weight;         /* the store's: bytes this adds to a batch */
    int64_t posted_at;     /* the store's: mono_ms */
};

struct submit_op {
    struct store_op op;
    struct submit_item *items; /* the asker's */
    size_t n;
};

struct claim_op {
    struct store_op op;
    struct claim_item *items;
    size_t n;
    struct str claimed_by; /* "<node>/<epoch>"; the same for all claims of a process */
    int64_t margin_ms;     /* deadline_at = now + time-out + margin */
};

struct finish_op {
    struct store_op op;
    struct finish_item *items;
    size_t n;
};

/* ---- Cancel ------------------------------------------------------------------------------ */

enum cancel_result {
    CANCEL_DONE,
    CANCEL_ALREADY,   /* was cancelled before */
    CANCEL_IN_FLIGHT, /* SENDING or SENT: `task` */
    CANCEL_FINISHED,  /* ended otherwise: `task` */
    CANCEL_NOT_FOUND
};

struct cancel_op {
    struct store_op op;
    struct str biz_uuid; /* borrowed until the operation is back */
    enum cancel_result result;
    struct task
        *task; /* the record afterwards (or as found); owned by the asker; NULL if not found */
};

struct scan_op {
    struct store_op op;
    struct scan_key *keys;
    size_t n_keys;
    struct str claimed_by; /* this process, "<node>/<epoch>": what own_orphan compares with */
    /* Out; rows of one key stand together, in index order. A key with `limit` rows may have more.
     */
    struct scan_row *rows; /* owned by the asker afterwards: free() */
    size_t n_rows;
};

/* ---- Everything else --------------------------------------------------------------------- */

/* A call runs once on a store thread against a driver connection (node/store/calls.h makes them).
 * It is run again from the start after a transient error, so `run` must leave no half-made output.
 */
struct store_call;

/* The port. `post` returns 0 and takes the operation, or ERR_BUSY (queue full), ERR_SHUTDOWN,
 * ERR_UNAVAILABLE (the database is known to be down and the operation is not one that waits):
 * the operation stays the asker's and on_delivery is not called. */
struct store_port {
    int (*post)(void *impl, struct store_op *op);
    void *impl;
};

static inline int store_post(const struct store_port *port, struct store_op *op)
{
    return port->post(port->impl, op);
}

#endif
