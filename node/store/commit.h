/* SPDX-License-Identifier: Apache-2.0 */
/* How a thread runs what it took: transactions, run again after transient errors, rows that cannot
 * be written found by bisection, the operations posted back. */
#ifndef JF_STORE_COMMIT_H
#define JF_STORE_COMMIT_H

#include "node/store/worker.h"

/* On the worker's thread, which has a connection. Answers the operations of the chain, all of one
 * kind, except those that it returns, which belong back in the queue: they repeat keys of others,
 * or have time left when the oldest one's is over. The connection may be gone afterwards. */
struct store_op *commit_ops(struct worker *w, struct store_op *chain);

/* While writing fails: takes ids and cancels a task that cannot exist, which needs the right to
 * write and the table of tasks, and tells what came of it. The connection may be gone afterwards.
 */
void commit_probe(struct worker *w);

#endif
