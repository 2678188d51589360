/* SPDX-License-Identifier: Apache-2.0 */
/* How long an operation may be with the store, and the thread that sees to it while all others are
 * inside the database.
 *
 * An operation's limit is give_up_ms after it was posted. It comes back from the queue when that is
 * over; a batch is run again until the limit of its oldest operation (the younger ones then go back
 * to the queue), so that none is held longer than its limit and one call of the driver's.
 *
 * While the store drains the limit is SWEEP_DRAIN_MS after the drain began or the operation was
 * posted, whichever is later: plenty for a healthy database. One that is seen not to be healthy (a
 * call fails after that long, or a batch gives up) gets nothing more to do: what is queued comes
 * back at once. */
#ifndef JF_STORE_SWEEP_H
#define JF_STORE_SWEEP_H

#include "node/store/worker.h"

#define SWEEP_DRAIN_MS 1000

/* Starts the thread. Errors: ERR_IO. */
MUST_CHECK int sweep_start(struct store *s);
void sweep_stop(struct store *s); /* joins it; it may not have been started */

/* With the lock held: an older operation is back in the queue, or the limits have changed. */
void sweep_wake(struct store *s);

/* The others take the lock. May a batch whose oldest operation was posted then be run? Errors:
 * ERR_UNAVAILABLE (its time is over), ERR_SHUTDOWN. */
MUST_CHECK int sweep_admit(struct store *s, mono_ms posted_at, struct err *err);
/* May it be run once more, after a failure of a call that began then? */
bool sweep_may_retry(struct store *s, mono_ms posted_at, mono_ms call_began);
/* Its oldest operation's limit is over; does this one still have time? Not while draining. */
bool sweep_may_requeue(struct store *s, mono_ms oldest, mono_ms posted_at);

void sweep_drain(struct store *s);   /* the drain begins; may be called again */
void sweep_gave_up(struct store *s); /* a batch gave up: matters when the store drains */

#endif
