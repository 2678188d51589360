/* SPDX-License-Identifier: Apache-2.0 */
/* A virtual node: the real scheduler and a loop around it that mirrors node/runner.c. It reads a
 * clock that may be wrong, talks to a store whose answers may be lost, stands still, crashes,
 * restarts under the next epoch. */
#ifndef JF_SIM_VNODE_H
#define JF_SIM_VNODE_H

#include "tests/sim/sim.h"

struct cluster_key;

struct vnode_config {
    struct sched_config sched;
    struct retry_policy policies[2];
    struct retry_policies set;
    int64_t sync_ms;     /* between two readings of the store's clock */
    int64_t services_ms; /* between two readings of the services */
};

struct vnode *vnode_new(struct sim *s, int index, const struct vnode_config *cfg); /* borrowed */
void vnode_free(struct vnode *n);
void vnode_start(struct vnode *n);
void vnode_crash(struct vnode *n);
void vnode_die(struct vnode *n);  /* until the healing */
void vnode_stop(struct vnode *n); /* gracefully; restarts later */
void vnode_pause(struct vnode *n, int64_t ms);
void vnode_clock_step(struct vnode *n, int64_t ms);
void vnode_store_state(struct vnode *n); /* it changed */
void vnode_hint(struct vnode *n, const struct task *t);
/* A key of etcd has changed; the node's watch tells it in a while. */
void vnode_watch(struct vnode *n, int which, const struct cluster_key *key);
void vnode_drain(struct vnode *n, bool drain);      /* or take part again */
void vnode_cut_store(struct vnode *n, bool is_cut); /* its operations are lost, and only its own */
/* Whom the node takes for owners, a bit each; false while it does not run. */
bool vnode_has_view(const struct vnode *n, unsigned *ret_members);
bool vnode_owns(const struct vnode *n, int service, int32_t shard); /* as it sees it, and runs */
struct worker;
/* A worker asks for tasks; worker_hears answers it, later. False: it cannot be asked now. */
bool vnode_lease(struct vnode *n, int service, struct worker *w, int64_t wait_ms);
void vnode_heal(struct vnode *n); /* goes on at once, with a right clock */
bool vnode_is_up(const struct vnode *n);
bool vnode_is_idle(const struct vnode *n); /* up and without a task in its books */

/* "<node>/<epoch>" of the present incarnation; "" while down. */
const char *vnode_claimed_by(const struct vnode *n);
const struct retry_policies *vnode_policies(const struct vnode *n);
int64_t vnode_result_wait(const struct vnode *n, const struct task *t);

#endif
