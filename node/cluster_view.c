/* SPDX-License-Identifier: Apache-2.0 */
#include "node/cluster_view.h"

#include <string.h>

#include "common/json.h"
#include "common/timefmt.h"
#include "node/core/ownership.h"

struct owners {
    struct str names[VIEW_MEMBERS_MAX];
    uint32_t n_shards[VIEW_MEMBERS_MAX];
    size_t n;
};

static void owners_find(struct owners *o, const struct members_snapshot *view, const char *self)
{
    o->n = 0;
    for (size_t i = 0; i < view->n && o->n < VIEW_MEMBERS_MAX; i++) {
        const struct member *m = &view->members[i];

        if (!view_may_own(m) || (!strcmp(m->name, self) && !view->can_own))
            continue;
        o->n_shards[o->n] = 0;
        o->names[o->n++] = str_from(m->name);
    }
}

static int64_t owned_by(const struct owners *o, const char *name)
{
    for (size_t i = 0; i < o->n; i++) {
        if (str_eqz(o->names[i], name))
            return o->n_shards[i];
    }
    return 0;
}

/* Counts the service's shards, and appends it if `b` is not NULL. */
static void put_service(struct buf *b, struct owners *o, const struct service *s)
{
    if (b) {
        buf_addz(b, "{\"serviceName\":");
        json_put_string(b, s->name);
        buf_addf(b, ",\"shards\":%d,\"owners\":[", s->shards);
    }
    for (int32_t shard = 0; shard < s->shards_seen; shard++) {
        size_t owner = ownership_find(o->names, o->n, s->name, shard);

        if (owner != OWNERSHIP_NOBODY)
            o->n_shards[owner]++;
        if (!b)
            continue;
        if (shard)
            buf_addc(b, ',');
        json_put_string(b, owner == OWNERSHIP_NOBODY ? (struct str){0} : o->names[owner]);
    }
    if (b)
        buf_addz(b, "]}");
}

/* With the table's lock held. Returns how many were listed. */
static size_t put_services(struct buf *b, struct owners *o, const struct service_table *t,
                           struct str service_name)
{
    size_t n = 0;

    for (size_t i = 0; i < t->n; i++) {
        bool is_wanted = !service_name.p || str_eq(service_name, t->list[i].name);
        bool listed = is_wanted && n < CLUSTER_VIEW_SERVICES_MAX;

        if (listed && n++)
            buf_addc(b, ',');
        put_service(listed ? b : NULL, o, &t->list[i]);
    }
    return n;
}

static void put_member(struct buf *b, const struct member *m, int64_t n_shards, bool is_self)
{
    char time[TIME_TEXT_LEN + 1];

    time_format(m->started_at, time);
    buf_addz(b, "{\"name\":");
    json_put_stringz(b, m->name);
    buf_addz(b, ",\"address\":");
    json_put_stringz(b, m->address);
    buf_addf(b, ",\"state\":\"%s\",\"epoch\":%lld,\"version\":", member_state_name(m->state),
             (long long)m->epoch);
    json_put_stringz(b, m->version);
    buf_addf(b, ",\"startedAt\":\"%s\",\"ownedShards\":%lld,\"self\":%s}", time,
             (long long)n_shards, is_self ? "true" : "false");
}

bool cluster_view_put(struct buf *b, const struct config *cfg, const struct members_snapshot *view,
                      struct service_table *services, mono_ms now, struct str service_name)
{
    struct buf list = BUF_INIT;
    struct owners owners;
    size_t n_listed;
    size_t n_services;

    owners_find(&owners, view, cfg->node_name);
    pthread_rwlock_rdlock(&services->lock);
    n_services = services->n;
    n_listed = put_services(&list, &owners, services, service_name);
    pthread_rwlock_unlock(&services->lock);
    if (service_name.p && !n_listed) {
        buf_fini(&list);
        return false;
    }
    buf_addz(b, "{\"cluster\":");
    json_put_stringz(b, cfg->cluster);
    buf_addz(b, ",\"node\":");
    json_put_stringz(b, cfg->node_name);
    buf_addf(b,
             ",\"state\":\"%s\",\"source\":\"%s\",\"viewAgeMs\":", member_state_name(view->state),
             view_source_name(view->source));
    if (view->source == VIEW_NONE)
        buf_addz(b, "null");
    else
        buf_addi(b, now - view->asked_at);
    buf_addz(b, ",\"members\":[");
    for (size_t i = 0; i < view->n; i++) {
        const struct member *m = &view->members[i];

        if (i)
            buf_addc(b, ',');
        put_member(b, m, owned_by(&owners, m->name), !strcmp(m->name, cfg->node_name));
    }
    buf_addz(b, "],\"services\":[");
    if (!buf_ok(&list))
        b->failed = true;
    buf_adds(b, buf_str(&list));
    buf_addf(b, "],\"more\":%s}", !service_name.p && n_listed < n_services ? "true" : "false");
    buf_fini(&list);
    return true;
}
