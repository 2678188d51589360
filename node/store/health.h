/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the database can be used, and who is told.
 *
 * Up: every lane has a thread with a connection, and writing works. Writing counts as failing from
 * the moment when a batch or a call that writes gives up on a connection that stands (locked, full,
 * read-only), until a batch of SUBMIT, CLAIM, FINISH or CANCEL is committed, or a probe: a
 * connection alone proves nothing. Look-ups and scans that give up say nothing about it, since a
 * person's question may be too much for a healthy database; nor does a submission or a call that
 * met another transaction's lock, which others need not meet.
 *
 * While writing fails, submissions, cancels and calls that write are refused; claims and finishes
 * that wait are tried, and one thread at a time probes: at once, and then every
 * `reconnect_max_ms`, at most HEALTH_PROBE_MS. */
#ifndef JF_STORE_HEALTH_H
#define JF_STORE_HEALTH_H

#include "node/store/worker.h"

#define HEALTH_PROBE_MS 1000

/* On the worker's thread: it has, or has not, a connection. */
void health_serving(struct worker *w, bool serving, const char *text);

void health_failing(struct store *s, const char *text); /* a write gave up */
void health_wrote(struct store *s);                     /* rows of tasks were written */
void health_fatal(struct store *s, const char *text);
void health_warn(struct store *s, const char *text); /* the same text once */

/* With the lock held. The wait until a probe of this thread's is due (0: now; then the thread makes
 * it, no other one does until its result), or -1: none. */
int64_t health_probe_wait(const struct worker *w);
void health_probe_begin(struct store *s);

/* Without the lock: what the probe found. */
void health_probe_end(struct store *s, int rc, const char *text);

#endif
