/* SPDX-License-Identifier: Apache-2.0 */
/* A virtual node: the real scheduler and a loop around it that mirrors node/runner.c. It reads a
 * clock that may be wrong, talks to a store whose answers may be lost, stands still, crashes,
 * restarts under the next epoch. */
#ifndef JF_SIM_VNODE_H
#define JF_SIM_VNODE_H

#include "tests/sim/sim.h"

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
/* At that time the node hears who is a member then. */
void vnode_view(struct vnode *n, wall_ms at);
void vnode_heal(struct vnode *n); /* goes on at once, with a right clock */
bool vnode_is_up(const struct vnode *n);
bool vnode_is_idle(const struct vnode *n); /* up and without a task in its books */

/* "<node>/<epoch>" of the present incarnation; "" while down. */
const char *vnode_claimed_by(const struct vnode *n);
const struct retry_policies *vnode_policies(const struct vnode *n);
int64_t vnode_result_wait(const struct vnode *n, const struct task *t);

#endif
