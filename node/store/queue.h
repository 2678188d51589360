/* SPDX-License-Identifier: Apache-2.0 */
/* The store's queue: operations that wait, by lane, and the rule by which a thread chooses its next
 * lane. Pure bookkeeping: the caller holds the lock. Operations are linked through `next`.
 *
 * A lane is a kind of operation; calls that only read have one of their own, since with a
 * one-writer database another thread serves them, and so have heartbeats, which a crowd of calls
 * must not hold up until others take the node for dead. The lanes stand in the order in which a
 * thread goes round, so that none starves.
 *
 * Group commit grows by itself: while a batch of a lane runs, a small number of operations waits
 * for it to end instead of occupying a second thread. */
#ifndef JF_STORE_QUEUE_H
#define JF_STORE_QUEUE_H

#include "node/core/storecall.h"

enum lane {
    LANE_NODE,
    LANE_FINISH,
    LANE_CLAIM,
    LANE_CALL,
    LANE_READ,
    LANE_SUBMIT,
    LANE_CANCEL,
    LANE_SCAN,
    N_LANES,
    LANE_NONE = N_LANES
};

#define LANE_BIT(lane) (1u << (lane))
#define LANES_ALL (LANE_BIT(N_LANES) - 1)
#define LANES_READING (LANE_BIT(LANE_READ) | LANE_BIT(LANE_SCAN))

struct queue_lane {
    struct store_op *first;
    struct store_op **end;
    uint32_t n_ops;
    uint64_t n_rows;
    uint64_t n_bytes;
    uint32_t n_running; /* threads that run a batch of it */
    uint32_t n_woken;   /* threads on their way to it */
    uint32_t n_threads; /* that serve it */
};

struct queue {
    struct queue_lane lanes[N_LANES];
    uint32_t n_ops;
    uint32_t limit; /* of each lane, so that submissions push no claim or heartbeat out */
    uint32_t batch_rows;
    size_t batch_bytes;
    bool draining; /* nothing waits for company any more */
};

enum lane op_lane(const struct store_op *op);
size_t op_rows(const struct store_op *op); /* items; 1 for unbatched kinds */

void queue_init(struct queue *q, uint32_t limit, uint32_t batch_rows, size_t batch_bytes);
void queue_add_thread(struct queue *q, unsigned lanes); /* before the first operation */

/* At the end of its lane; `weight` is set. Errors: ERR_BUSY (the lane is full). */
MUST_CHECK int queue_add(struct queue *q, struct store_op *op);

/* The lane that a thread serving `lanes` should take now: the first one after `last` in the order
 * above whose operations need not wait, or LANE_NONE. */
enum lane queue_pick(const struct queue *q, unsigned lanes, enum lane last);

/* True if one more thread should be woken for the lane, those on their way included. */
bool queue_wants_thread(const struct queue *q, enum lane lane);

/* Takes a batch from the front: at least one operation, further ones up to the limits of rows and
 * bytes; one operation of an unbatched kind. The lane runs until queue_end(). */
struct store_op *queue_take(struct queue *q, enum lane lane);
void queue_end(struct queue *q, enum lane lane);

/* Puts operations (a chain, in order) back at the front. Never fails: they had their place. */
void queue_put_back(struct queue *q, enum lane lane, struct store_op *chain);

/* Removes and returns, as a chain, the operations at the front that were posted before `before`. */
struct store_op *queue_expire(struct queue *q, enum lane lane, mono_ms before);

#endif
