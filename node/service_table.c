/* SPDX-License-Identifier: Apache-2.0 */
#include "node/service_table.h"

#include <stdlib.h>
#include <string.h>

int service_table_init(struct service_table *t)
{
    *t = (struct service_table){0};
    return pthread_rwlock_init(&t->lock, NULL) ? ERR_NOMEM : 0;
}

void service_table_fini(struct service_table *t)
{
    pthread_rwlock_destroy(&t->lock);
    free(t->list);
}

void service_table_set(struct service_table *t, struct service *list, size_t n)
{
    struct service *old;

    pthread_rwlock_wrlock(&t->lock);
    old = t->list;
    t->list = list;
    t->n = n;
    pthread_rwlock_unlock(&t->lock);
    free(old);
}

static int compare_name(const void *key, const void *element)
{
    return str_cmp(*(const struct str *)key, ((const struct service *)element)->name);
}

/* With the lock held. */
static const struct service *find(const struct service_table *t, struct str name)
{
    return t->n ? bsearch(&name, t->list, t->n, sizeof(*t->list), compare_name) : NULL;
}

const struct service *service_table_get(const struct service_table *t, struct str name)
{
    return find(t, name);
}

bool service_table_covers(struct service_table *t, const struct task *task)
{
    const struct service *s;
    bool covers;

    pthread_rwlock_rdlock(&t->lock);
    s = find(t, task->service_name);
    covers =
        s && task->shard < s->shards_seen && (s->lanes & (1u << (task->lane % TASK_RETRY_LANES)));
    pthread_rwlock_unlock(&t->lock);
    return covers;
}

int32_t service_table_shards(struct service_table *t, struct str name)
{
    const struct service *s;
    int32_t shards;

    pthread_rwlock_rdlock(&t->lock);
    s = find(t, name);
    shards = s ? s->shards : 1;
    pthread_rwlock_unlock(&t->lock);
    return shards;
}

bool service_table_is_pull(struct service_table *t, struct str name)
{
    const struct service *s;
    bool is_pull;

    pthread_rwlock_rdlock(&t->lock);
    s = find(t, name);
    is_pull = s && s->delivery == DELIVERY_PULL;
    pthread_rwlock_unlock(&t->lock);
    return is_pull;
}

void service_table_policy(struct service_table *t, struct str name, char dst[TASK_POLICY_MAX + 1])
{
    const struct service *s;
    size_t len = 0;

    pthread_rwlock_rdlock(&t->lock);
    s = find(t, name);
    if (s && s->policy.len <= TASK_POLICY_MAX)
        len = s->policy.len;
    if (len)
        memcpy(dst, s->policy.p, len);
    pthread_rwlock_unlock(&t->lock);
    dst[len] = '\0';
}
