/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold. The oracle keeps its own books from what clients were told, from each change that
 * commits, and from the requests that arrive at the services, and fails the run at the first
 * contradiction. Names G1 to G10 are the promises in the README. */
#ifndef JF_SIM_ORACLE_H
#define JF_SIM_ORACLE_H

#include "tests/sim/sim.h"

struct oracle *oracle_new(struct sim *s);
void oracle_free(struct oracle *o);

/* For fake_hooks. */
void oracle_on_change(struct sim *s, const struct fake_change *c);

/* A client was told that its task is stored under this trace id. */
void oracle_accepted(struct sim *s, struct str biz_uuid, const char *trace_id);

/* A request left a node. `t` is the node's claimed row. */
void oracle_delivered(struct sim *s, int node, const struct task *t);
/* Whether a worker has the live attempt of this task. */
bool oracle_is_leased(const struct sim *s, const struct task *t);
/* A service did the work of this attempt: only then may it end in SUCCESS. */
void oracle_worked(struct sim *s, int64_t id, int32_t attempt);

/* The service (0 …) of a task, by id. */
int oracle_service_of(const struct sim *s, int64_t id);
/* Tasks that are neither ended nor given to a person. */
size_t oracle_n_open(const struct sim *s);
/* After the healing: everything has ended and stands where it should. */
void oracle_check_end(struct sim *s);
int64_t oracle_p99_lateness(const struct sim *s);

#endif
