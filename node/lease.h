/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that wait for tasks of services in pull mode, and how due tasks find them.
 *
 * Happy path of a poll: it stands as a lease in this node's scheduler, and what is claimed for it
 * goes back to the interface, at the latest when its wait is over. In a cluster other members may
 * own shards of the service, so a new poll asks each owner in turn, beginning with another one each
 * time; when none has a due task it rests, and one call to each owner, shared by all polls of a
 * service, watches for due tasks there. So no poll holds a connection between two members.
 *
 * An answer is bounded by bytes, and how large a payload is shows only once it is claimed: so a
 * poll that asks for many tasks claims them in steps, each as large as the payloads of late let
 * expect that there is room, and never of more payloads than STEP_BYTES, however large they are. No
 * more steps begin after a while, and one that is stuck then is not waited for.
 *
 * Failures: a client that hangs up ends its lease, and what is claimed for it later is given back
 * by compare-and-set, without using up a try; what another member claimed for it is given back here
 * when its answer comes. What is lost on its way (an answer that breaks off between two members, a
 * dying process) is rescued at its deadline like the tasks of a worker that died. A member that
 * cannot be reached costs a poll at most its own wait once more.
 *
 * All functions belong to the main loop's thread. */
#ifndef JF_NODE_LEASE_H
#define JF_NODE_LEASE_H

#include "node/api/api.h"

struct leases;
struct node;

MUST_CHECK int leases_new(struct node *n, struct leases **ret); /* Errors: ERR_NOMEM */
void leases_free(struct leases *l); /* after leases_close and the dispatcher; NULL is accepted */

void leases_ask(struct leases *l, struct lease_query *q); /* as api_env.lease */
void leases_cancel(struct leases *l, struct lease_query *q);
/* What was claimed, here or by another member, and not handed out: by compare-and-set, so that what
 * has gone on since is left alone. Takes it. */
void leases_give_back(struct leases *l, struct lease_claims *claims);

/* Carries out the LEASED and LEASE_DONE actions from this position on, of claims that were asked
 * for at that time. */
void leases_hand(struct leases *l, size_t from, mono_ms asked_at);
void leases_pass(struct leases *l);     /* after each pass over the scheduler */
void leases_services(struct leases *l); /* the services were read again */

/* The node stops: polls end now, or when the call to another member that they wait for is back. */
void leases_stop(struct leases *l);
/* The loop has ended: every query is answered now, and every later one at once. */
void leases_close(struct leases *l);

#endif
