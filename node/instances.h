/* SPDX-License-Identifier: Apache-2.0 */
/* The instances of services as this node delivers to them: who lives, whose turn it is, and who is
 * set aside since it could not be connected to.
 *
 * The loop reads the store's list every few seconds; what this node stores itself (registrations,
 * heartbeats, leaves) the HTTP interface's threads put in at once. Such a change that comes while a
 * list is on its way is newer than the list and stays. All functions lock; every `now` is the
 * store's clock. */
#ifndef JF_NODE_INSTANCES_H
#define JF_NODE_INSTANCES_H

#include <pthread.h>

#include "common/buf.h"
#include "node/core/instance.h"

struct instance_ptrs {
    void **p; /* owned */
    size_t n;
    size_t cap;
};

struct instances {
    pthread_mutex_t lock;
    struct instance_ptrs groups; /* struct instance_group, owned, by service; none is empty */
    uint64_t last_id;
    bool is_reading; /* a list is on its way */
    wall_ms back_at; /* see instances_back */
};

MUST_CHECK int instances_init(struct instances *t);
void instances_fini(struct instances *t);

/* The node, or its database, was away until now: nobody could prolong anything meanwhile. What the
 * lists know of lives for one more of its TTL, so that due tasks do not fail for want of an
 * address. */
void instances_back(struct instances *t, wall_ms now);

/* A list is about to be asked for: it will know of all changes so far. */
void instances_reading(struct instances *t);
/* The list, of all services; copied. Errors: ERR_NOMEM (some may be missing until the next). */
MUST_CHECK int instances_set(struct instances *t, const struct instance *list, size_t n);

/* One that is new, or lives on: with another address, or registered anew, it counts as new. Errors:
 * ERR_NOMEM (nothing changed). */
MUST_CHECK int instances_put(struct instances *t, const struct instance *in);
void instances_remove(struct instances *t, struct str service_name, struct str name);

/* The service's next live instance in turn out of those that are not among the `n_tried` ids: one
 * that is set aside only when all are, and then the one whose time ends first. Appends its base
 * URL. Returns its id, which stands for this instance at this address, or 0 when there is none. */
uint64_t instances_pick(struct instances *t, struct str service_name, wall_ms now,
                        const uint64_t *tried, size_t n_tried, struct buf *url);

/* Sets an instance aside until then, or (WALL_NONE) no longer; one that has gone is passed over.
 * Returns whether it was not set aside before and is now, or the other way round. */
bool instances_set_aside(struct instances *t, struct str service_name, uint64_t id, wall_ms now,
                         wall_ms until);
/* WALL_NONE when it is not set aside. */
wall_ms instances_aside_until(struct instances *t, struct str service_name, struct str name,
                              wall_ms now);

struct instances_stats {
    uint32_t n_live;
    uint32_t n_aside; /* of these */
};
void instances_stats(struct instances *t, wall_ms now, struct instances_stats *ret);
/* The shortest ttl_ms of any; INT32_MAX when there are none. */
int32_t instances_least_ttl(struct instances *t);

#endif
