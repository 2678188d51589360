/* SPDX-License-Identifier: Apache-2.0 */
/* The services that the scheduler works for, and their lanes. */
#include "node/core/sched_internal.h"

#include <stdlib.h>
#include <string.h>

/* A second, third and fourth seed keep two names with one hash apart. */
#define SVC_SEEDS 4

struct svc *svc_find(const struct sched *s, struct str name)
{
    for (uint64_t seed = 0; seed < SVC_SEEDS; seed++) {
        struct svc *v = map64_find(&s->services, hash_bytes(name, seed) | 1);

        if (v && str_eq(v->name, name))
            return v;
    }
    return NULL;
}

static void svc_index(struct sched *s, struct svc *v)
{
    for (uint64_t seed = 0; seed < SVC_SEEDS; seed++) {
        uint64_t key = hash_bytes(v->name, seed) | 1;

        if (!map64_find(&s->services, key)) {
            sched_must(map64_put(&s->services, key, v));
            return;
        }
    }
    abort(); /* four collisions of 63 bits */
}

static void svc_unindex(struct sched *s, struct svc *v)
{
    for (uint64_t seed = 0; seed < SVC_SEEDS; seed++) {
        uint64_t key = hash_bytes(v->name, seed) | 1;

        if (map64_find(&s->services, key) == v)
            map64_remove(&s->services, key);
    }
}

struct lane *svc_lane(struct sched *s, struct svc *v, int32_t shard, int32_t number)
{
    assert(shard >= 0 && number >= 0 && number < TASK_LANES);
    if (shard >= v->n_shards) {
        size_t n = (size_t)(shard + 1) * TASK_LANES;
        size_t old = (size_t)v->n_shards * TASK_LANES;
        struct lane **lanes = realloc(v->lanes, n * sizeof(struct lane *));

        if (!lanes)
            abort();
        memset(lanes + old, 0, (n - old) * sizeof(struct lane *));
        v->lanes = lanes;
        v->n_shards = shard + 1;
    }
    struct lane **slot = &v->lanes[(size_t)shard * TASK_LANES + (size_t)number];
    if (!*slot) {
        struct lane *l = sched_alloc(sizeof(*l));

        l->svc = v;
        l->shard = shard;
        l->number = number;
        l->owned = sched_owns(s, v->name, shard);
        *slot = l;
        lane_start(s, l);
    }
    return *slot;
}

static struct service *service_dup(const struct service *in)
{
    const struct str *from[] = {&in->name, &in->base_url, &in->secret, &in->policy};
    size_t len = 0;

    for (size_t i = 0; i < 4; i++)
        len += from[i]->len;
    struct service *c = sched_alloc(sizeof(*c) + len + 1);
    struct str *to[] = {&c->name, &c->base_url, &c->secret, &c->policy};
    char *p = (char *)(c + 1);

    *c = *in;
    for (size_t i = 0; i < 4; i++) {
        if (!from[i]->p)
            continue;
        if (from[i]->len)
            memcpy(p, from[i]->p, from[i]->len);
        to[i]->p = p;
        p += from[i]->len;
    }
    return c;
}

/* Calls `fn` for each lane of the service. */
void svc_each_lane(struct sched *s, struct svc *v, void (*fn)(struct sched *s, struct lane *l))
{
    for (size_t i = 0; i < (size_t)v->n_shards * TASK_LANES; i++) {
        if (v->lanes[i])
            fn(s, v->lanes[i]);
    }
}

void drop_entries(struct sched *s, bool (*is_doomed)(const struct entry *e, const void *arg),
                  const void *arg)
{
    size_t n = 0;
    struct entry **list = sched_alloc((s->entries.n + 1) * sizeof(struct entry *));
    struct entry *e;

    for (size_t pos = 0; (e = map64_each(&s->entries, &pos, NULL));) {
        if (is_doomed(e, arg))
            list[n++] = e;
    }
    for (size_t i = 0; i < n; i++)
        entry_forget(s, list[i]);
    free(list);
}

static bool is_queued_of(const struct entry *e, const void *arg)
{
    return e->lane->svc == arg && is_queued(e->track);
}

static void svc_pause(struct sched *s, struct svc *v)
{
    drop_entries(s, is_queued_of, v);
    ring_update(s, v);
}

static struct svc *svc_add(struct sched *s, const struct service *conf)
{
    if (s->n_svcs == s->cap_svcs) {
        size_t cap = s->cap_svcs ? s->cap_svcs * 2 : 16;
        struct svc **svcs = realloc(s->svcs, cap * sizeof(struct svc *));

        if (!svcs)
            abort();
        s->svcs = svcs;
        s->cap_svcs = cap;
    }
    struct svc *v = sched_alloc(sizeof(*v));

    char *name = sched_alloc(conf->name.len + 1);

    memcpy(name, conf->name.p, conf->name.len);
    v->name = (struct str){name, conf->name.len};
    v->conf = service_dup(conf);
    svc_index(s, v);
    s->svcs[s->n_svcs++] = v;
    return v;
}

static void svc_update(struct sched *s, struct svc *v, const struct service *conf)
{
    bool was_off = v->conf->paused || v->gone;
    struct service *old = v->conf;

    v->conf = service_dup(conf);
    v->gone = false;
    free(old);
    for (int32_t shard = 0; shard < conf->shards_seen; shard++) {
        for (int32_t n = 0; n < TASK_RETRY_LANES; n++) {
            if (!(conf->lanes & (1u << n)))
                continue;
            (void)svc_lane(s, v, shard, n);
            (void)svc_lane(s, v, shard, n + TASK_RETRY_LANES);
        }
    }
    if (conf->paused && !was_off)
        svc_pause(s, v);
    else if (!conf->paused && was_off)
        svc_each_lane(s, v, lane_start);
    ring_update(s, v);
}

void svc_free(struct sched *s, struct svc *v)
{
    ring_remove(s, v);
    svc_unindex(s, v);
    for (size_t i = 0; i < (size_t)v->n_shards * TASK_LANES; i++) {
        if (v->lanes[i])
            lane_stop(s, v->lanes[i]);
        free(v->lanes[i]);
    }
    free(v->lanes);
    free((char *)v->name.p);
    free(v->conf);
    free(v);
}

void sched_services(struct sched *s, wall_ms now, const struct service *list, size_t n,
                    struct actions *out)
{
    size_t kept = 0;

    s->now = now;
    for (size_t i = 0; i < s->n_svcs; i++)
        s->svcs[i]->listed = false;
    for (size_t i = 0; i < n; i++) {
        struct svc *v = svc_find(s, list[i].name);

        if (!v)
            v = svc_add(s, &list[i]);
        v->listed = true;
        svc_update(s, v, &list[i]);
    }
    for (size_t i = 0; i < s->n_svcs; i++) {
        struct svc *v = s->svcs[i];

        if (!v->listed && !v->gone) {
            v->gone = true;
            svc_each_lane(s, v, lane_stop);
            svc_pause(s, v);
        }
        if (v->gone && !v->n_entries && !v->n_leases && !s->n_scans_out)
            svc_free(s, v);
        else
            s->svcs[kept++] = v;
    }
    s->n_svcs = kept;
    sched_count_owned(s);
    sched_tick(s, now, out);
}
