/* SPDX-License-Identifier: Apache-2.0 */
/* The node's own rules of who may share a request (node/parcel_learn.c), apart from the rest of
 * the wiring. */
#ifndef JF_SIM_PARCEL_RULES_H
#define JF_SIM_PARCEL_RULES_H

#include "proto/task.h"

struct parcel_rules;

struct parcel_rules *parcel_rules_new(void);    /* of one service; aborts when out of memory */
void parcel_rules_free(struct parcel_rules *r); /* NULL is accepted */
void parcel_rules_forget(struct parcel_rules *r);

/* Which tasks may share a request: those of a group, so many at most. */
struct parcel_group {
    uint32_t group;
    uint32_t max_tasks;
};
struct parcel_group parcel_rules_group(const struct parcel_rules *r, const struct task *t,
                                       int32_t batch_size);
size_t parcel_rules_max_bytes(const struct parcel_rules *r);

/* From the answer to a request of n tasks of this group; its status is 0 when there was none. */
void parcel_rules_learn(struct parcel_rules *r, struct parcel_group group, size_t n, size_t bytes,
                        int32_t http_status);

#endif
