/* SPDX-License-Identifier: Apache-2.0 */
/* An etcd beside the nodes: one key for each under a lease, whole readings, and a watch that may
 * lose what it has to tell. It may be away, for all or for one; take no writes; and lose a lease
 * that is kept alive. The heartbeat rows stand in the fake store. */
#ifndef JF_SIM_CLUSTER_H
#define JF_SIM_CLUSTER_H

#include "proto/member.h"
#include "tests/sim/sim.h"

#define CLUSTER_TTL_MS 2000
#define CLUSTER_STALE_MS 3000 /* the longest that an answer may take */

struct cluster_key {
    struct member member;
    int64_t revision; /* of the last change */
    bool is_there;
};

struct cluster *cluster_new(void);
void cluster_free(struct cluster *c); /* NULL is accepted */

/* At etcd: a node keeps its lease alive, writes what it is, and reads all. Returns false when the
 * request does not get there. A key of an earlier process of the node stays until its lease ends.
 */
bool cluster_ask(struct sim *s, int node, const struct member *self,
                 struct cluster_key ret[SIM_NODES_MAX], int64_t *ret_revision);
/* A process gives its lease back. */
void cluster_leave(struct sim *s, int node, int64_t epoch);

/* Troubles, until cluster_end_trouble. */
void cluster_go_down(struct sim *s);
void cluster_fill_up(struct sim *s);       /* no space: it is read and kept alive, not written */
void cluster_cut(struct sim *s, int node); /* from this node alone */
void cluster_end_trouble(struct sim *s);
void cluster_lose_lease(struct sim *s, int node);

/* What must hold of all nodes' views together. */
void cluster_check(struct sim *s);
/* After the healing: each shard has its one owner, and all agree on it. */
bool cluster_is_settled(const struct sim *s);

#endif
