/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/queue.h"

#include <assert.h>

/* Of a full batch: so many rows or bytes are worth a second thread at once. */
#define WORTH_A_THREAD 4

static enum lane call_lane(const struct store_call *call)
{
    switch (call->what) {
    case CALL_NODE_START:
    case CALL_NODE_BEAT:
        return LANE_NODE;
    case CALL_GET:
    case CALL_GET_MANY:
    case CALL_LIST:
    case CALL_SERVICE_LIST:
    case CALL_INSTANCE_LIST:
    case CALL_CLOCK:
        return LANE_READ;
    default:
        return LANE_CALL;
    }
}

enum lane op_lane(const struct store_op *op)
{
    switch (op->kind) {
    case STORE_SUBMIT:
        return LANE_SUBMIT;
    case STORE_CLAIM:
        return LANE_CLAIM;
    case STORE_FINISH:
        return LANE_FINISH;
    case STORE_CANCEL:
        return LANE_CANCEL;
    case STORE_SCAN:
        return LANE_SCAN;
    case STORE_CALL:
        return call_lane((const struct store_call *)op);
    default:
        assert(!"unknown kind of operation");
        return LANE_NONE;
    }
}

size_t op_rows(const struct store_op *op)
{
    switch (op->kind) {
    case STORE_SUBMIT:
        return ((const struct submit_op *)op)->n;
    case STORE_CLAIM:
        return ((const struct claim_op *)op)->n;
    case STORE_FINISH:
        return ((const struct finish_op *)op)->n;
    default:
        return 1;
    }
}

static bool is_batched(enum lane lane)
{
    return lane == LANE_SUBMIT || lane == LANE_CLAIM || lane == LANE_FINISH || lane == LANE_CANCEL;
}

void queue_init(struct queue *q, uint32_t limit, uint32_t batch_rows, size_t batch_bytes)
{
    *q = (struct queue){.limit = limit, .batch_rows = batch_rows, .batch_bytes = batch_bytes};
    for (enum lane l = 0; l < N_LANES; l++)
        q->lanes[l].end = &q->lanes[l].first;
}

void queue_add_thread(struct queue *q, unsigned lanes)
{
    for (enum lane l = 0; l < N_LANES; l++) {
        if (lanes & LANE_BIT(l))
            q->lanes[l].n_threads++;
    }
}

static void count_in(struct queue *q, struct queue_lane *l, const struct store_op *op)
{
    l->n_ops++;
    l->n_rows += op_rows(op);
    l->n_bytes += op->weight;
    q->n_ops++;
}

int queue_add(struct queue *q, struct store_op *op)
{
    struct queue_lane *l = &q->lanes[op_lane(op)];

    if (l->n_ops >= q->limit)
        return ERR_BUSY;
    op->next = NULL;
    *l->end = op;
    l->end = &op->next;
    count_in(q, l, op);
    return 0;
}

static struct store_op *pop(struct queue *q, struct queue_lane *l)
{
    struct store_op *op = l->first;

    assert(op && l->n_ops && q->n_ops);
    l->first = op->next;
    if (!l->first)
        l->end = &l->first;
    op->next = NULL;
    l->n_ops--;
    l->n_rows -= op_rows(op);
    l->n_bytes -= op->weight;
    q->n_ops--;
    return op;
}

/* `n_busy` threads have the lane already. */
static bool is_ready(const struct queue *q, enum lane lane, uint32_t n_busy)
{
    const struct queue_lane *l = &q->lanes[lane];

    if (!l->n_ops)
        return false;
    if (!n_busy || q->draining)
        return true;
    /* A slow look-up must not occupy the last thread. */
    if (!is_batched(lane))
        return n_busy + 1 < l->n_threads;
    return l->n_rows >= q->batch_rows / WORTH_A_THREAD ||
           l->n_bytes >= q->batch_bytes / WORTH_A_THREAD;
}

enum lane queue_pick(const struct queue *q, unsigned lanes, enum lane last)
{
    enum lane second_choice = LANE_NONE;

    for (unsigned i = 1; i <= N_LANES; i++) {
        enum lane lane = (enum lane)(((unsigned)last + i) % N_LANES);
        const struct queue_lane *l = &q->lanes[lane];

        if (!(lanes & LANE_BIT(lane)) || !is_ready(q, lane, l->n_running))
            continue;
        /* The last free thread prefers a lane that has none. */
        if (!l->n_running || l->n_running + 1 < l->n_threads)
            return lane;
        if (second_choice == LANE_NONE)
            second_choice = lane;
    }
    return second_choice;
}

bool queue_wants_thread(const struct queue *q, enum lane lane)
{
    return is_ready(q, lane, q->lanes[lane].n_running + q->lanes[lane].n_woken);
}

struct store_op *queue_take(struct queue *q, enum lane lane)
{
    struct queue_lane *l = &q->lanes[lane];
    struct store_op *chain = pop(q, l);
    struct store_op **end = &chain->next;
    size_t n_rows = op_rows(chain);
    size_t n_bytes = chain->weight;

    l->n_running++;
    while (is_batched(lane) && l->first) {
        n_rows += op_rows(l->first);
        n_bytes += l->first->weight;
        if (n_rows > q->batch_rows || n_bytes > q->batch_bytes)
            break;
        *end = pop(q, l);
        end = &(*end)->next;
    }
    return chain;
}

void queue_end(struct queue *q, enum lane lane)
{
    assert(q->lanes[lane].n_running);
    q->lanes[lane].n_running--;
}

void queue_put_back(struct queue *q, enum lane lane, struct store_op *chain)
{
    struct queue_lane *l = &q->lanes[lane];
    struct store_op *last = NULL;

    for (struct store_op *op = chain; op; op = op->next) {
        count_in(q, l, op);
        last = op;
    }
    if (!last)
        return;
    last->next = l->first;
    if (!l->first)
        l->end = &last->next;
    l->first = chain;
}

struct store_op *queue_expire(struct queue *q, enum lane lane, mono_ms before)
{
    struct queue_lane *l = &q->lanes[lane];
    struct store_op *chain = NULL;
    struct store_op **end = &chain;

    while (l->first && l->first->posted_at < before) {
        *end = pop(q, l);
        end = &(*end)->next;
    }
    return chain;
}
