/* SPDX-License-Identifier: Apache-2.0 */
/* The services as last read, for the API threads: replaced whole by the loop, read under a lock. */
#ifndef JF_NODE_SERVICE_TABLE_H
#define JF_NODE_SERVICE_TABLE_H

#include <pthread.h>

#include "node/core/storecall.h"

struct service_table {
    pthread_rwlock_t lock;
    struct service *list; /* owned; by name */
    size_t n;
};

MUST_CHECK int service_table_init(struct service_table *t);
void service_table_fini(struct service_table *t);
/* Takes the list (one block, sorted by name). */
void service_table_set(struct service_table *t, struct service *list, size_t n);
/* True if the task's service is known together with the task's shard and lane. */
bool service_table_covers(struct service_table *t, const struct task *task);
/* 1 when the service is unknown. */
int32_t service_table_shards(struct service_table *t, struct str name);
bool service_table_is_pull(struct service_table *t, struct str name); /* false when unknown */
/* NULL when unknown. For the loop's thread: valid until the next service_table_set. */
const struct service *service_table_get(const struct service_table *t, struct str name);
/* Writes the name of the service's own policy; "" when it has none or is unknown. */
void service_table_policy(struct service_table *t, struct str name, char dst[TASK_POLICY_MAX + 1]);

#endif
