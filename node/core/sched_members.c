/* SPDX-License-Identifier: Apache-2.0 */
/* Which lanes this node works for, as the members of the cluster come and go.
 *
 * A lane that was lost forgets what is queued of it at once; claims, sends and finishes that are
 * out, and claims whose answer was lost, go on to their end, since the store's compare-and-set is
 * the judge between two owners. A lane that was gained is read from the start of the due index:
 * overdue work first. */
#include "node/core/sched_internal.h"

#include <stdlib.h>
#include <string.h>

#include "node/core/ownership.h"

bool sched_owns(const struct sched *s, struct str service_name, int32_t shard)
{
    size_t owner = ownership_find(s->members, s->n_members, service_name, shard);

    return owner != OWNERSHIP_NOBODY && str_eq(s->members[owner], s->cfg.node);
}

struct str sched_owner(const struct sched *s, struct str service_name, int32_t shard)
{
    size_t owner = ownership_find(s->members, s->n_members, service_name, shard);

    return owner == OWNERSHIP_NOBODY ? (struct str){0} : s->members[owner];
}

static void members_copy(struct sched *s, const struct str *names, size_t n)
{
    size_t text = 0;

    for (size_t i = 0; i < n; i++)
        text += names[i].len;
    struct str *members = sched_alloc(n * sizeof(struct str) + text + 1);
    char *p = (char *)(members + n);

    for (size_t i = 0; i < n; i++) {
        memcpy(p, names[i].p, names[i].len);
        members[i] = (struct str){p, names[i].len};
        p += names[i].len;
    }
    free(s->members);
    s->members = members;
    s->n_members = n;
}

static bool is_same(const struct sched *s, const struct str *names, size_t n)
{
    if (n != s->n_members)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!str_eq(names[i], s->members[i]))
            return false;
    }
    return true;
}

static void shard_update(struct sched *s, struct svc *v, int32_t shard)
{
    bool owned = sched_owns(s, v->name, shard);

    for (int32_t n = 0; n < TASK_LANES; n++) {
        struct lane *l = v->lanes[(size_t)shard * TASK_LANES + (size_t)n];

        if (!l || l->owned == owned)
            continue;
        l->owned = owned;
        if (owned)
            lane_start(s, l);
        else
            lane_stop(s, l);
    }
}

/* A shard without a task so far has no lane that would know. */
static bool shard_is_owned(const struct sched *s, const struct svc *v, int32_t shard)
{
    for (int32_t n = 0; shard < v->n_shards && n < TASK_LANES; n++) {
        const struct lane *l = v->lanes[(size_t)shard * TASK_LANES + (size_t)n];

        if (l)
            return l->owned;
    }
    return sched_owns(s, v->name, shard);
}

void sched_count_owned(struct sched *s)
{
    s->n_owned = 0;
    for (size_t i = 0; i < s->n_svcs; i++) {
        const struct svc *v = s->svcs[i];

        for (int32_t shard = 0; !v->gone && shard < v->conf->shards_seen; shard++)
            s->n_owned += shard_is_owned(s, v, shard);
    }
}

static bool is_foreign(const struct entry *e, const void *arg)
{
    (void)arg;
    return !e->lane->owned && !e->asked && (is_queued(e->track) || e->track == TRACK_GHOST);
}

bool sched_members(struct sched *s, wall_ms now, const struct str *names, size_t n,
                   struct actions *out)
{
    s->now = now;
    if (is_same(s, names, n))
        return false;
    members_copy(s, names, n);
    for (size_t i = 0; i < s->n_svcs; i++) {
        for (int32_t shard = 0; shard < s->svcs[i]->n_shards; shard++)
            shard_update(s, s->svcs[i], shard);
    }
    drop_entries(s, is_foreign, NULL);
    sched_count_owned(s);
    sched_tick(s, now, out);
    return true;
}
