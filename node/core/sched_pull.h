/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's leases: what workers ask of services in pull mode. See sched.h. */
#ifndef JF_CORE_SCHED_PULL_H
#define JF_CORE_SCHED_PULL_H

#include "node/core/sched.h"

struct lease; /* a worker that waits for tasks */
struct lease_ask {
    struct str service_name;
    uint32_t want; /* tasks; at least 1 */
    int32_t
        visibility_ms; /* of tasks without a time-out of their own; 0 = the service's time-out */
    void *ctx;         /* the asker's: stands in the lease's actions */
};
/* Whether workers may lease tasks of this service. Errors: as sched_lease. */
MUST_CHECK int sched_can_lease(const struct sched *s, struct str service_name);
/* Waits for due tasks of a service in pull mode. All claims of one pump that go to a lease are one
 * round; when the round is back and brought tasks (LEASED each) the lease is over: LEASE_DONE. Call
 * sched_tick afterwards. Errors: ERR_NOT_FOUND (the service is unknown), ERR_CONFLICT (its tasks
 * are not pulled), ERR_SHUTDOWN. */
MUST_CHECK int sched_lease(struct sched *s, wall_ms now, const struct lease_ask *ask,
                           struct lease **ret);
/* Nobody waits any longer: no action of the lease comes, what is still claimed for it is given back
 * without using up a try. Not after LEASE_DONE. NULL is accepted. */
void sched_lease_end(struct sched *s, wall_ms now, struct lease *l);
/* Whether claims for it are out: it will soon have brought tasks, or not. */
bool sched_lease_is_claiming(const struct lease *l);
/* Due tasks of a pull service for which no lease waits here. */
uint32_t sched_pull_ready(const struct sched *s, struct str service_name);
/* The other members that own shards of a service by this node's view, each once; at most `cap`.
 * Borrowed until the next sched_members. */
size_t sched_other_owners(const struct sched *s, struct str service_name, struct str *ret,
                          size_t cap);
/* Grows whenever sched_pull_ready may have become more than 0, of any service. */
uint64_t sched_pull_news(const struct sched *s);

#endif
