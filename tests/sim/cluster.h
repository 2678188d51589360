/* SPDX-License-Identifier: Apache-2.0 */
/* Who is a member, as an etcd beside the nodes would say it: a node joins when it starts, leaves at
 * once when it stops in peace, and with its lease when it is silent. Each node hears of a change in
 * its own time; until then two nodes have two views. */
#ifndef JF_SIM_CLUSTER_H
#define JF_SIM_CLUSTER_H

#include "tests/sim/sim.h"

#define CLUSTER_TTL_MS 2000
#define CLUSTER_STALE_MS 3000 /* the longest that a change may take to a node */

/* Without effect in scenarios that have no cluster. */
void cluster_join(struct sim *s, int node);
void cluster_leave(struct sim *s, int node);
void cluster_fall_silent(struct sim *s, int node); /* its lease runs out unless it joins before */
void cluster_return(struct sim *s, int node, wall_ms at); /* joins again at that time */

/* A bit for each member. */
unsigned cluster_members(const struct sim *s);

#endif
