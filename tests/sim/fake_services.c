/* SPDX-License-Identifier: Apache-2.0 */
/* The tables beside the tasks: attempts, alerts, services, nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/fake_internal.h"

#include "node/core/nodecall.h"

/* ---- Attempts and alerts ------------------------------------------------------------------ */

struct str fake_text(char **p, struct str s)
{
    struct str copy = {s.p ? *p : NULL, s.len};

    if (s.len)
        memcpy(*p, s.p, s.len);
    *p += s.len;
    return copy;
}

void fake_add_attempt(struct fake_db *db, const struct task *t, const struct finish_item *f)
{
    struct str outcome = str_from(f->outcome);
    char *text = fake_alloc(outcome.len + f->error.len + f->node.len, 1);
    char *p = text;

    FAKE_GROW(db->attempts, db->n_attempts, db->cap_attempts);
    db->attempts[db->n_attempts++] = (struct fake_attempt){
        .task_id = t->id,
        .text = text,
        .a = {.attempt = t->attempt,
              .started_at = t->claimed_at,
              .ended_at = fake_now(db),
              .http_status = f->http_status,
              .outcome = fake_text(&p, outcome),
              .error = fake_text(&p, f->error),
              .node = fake_text(&p, f->node)},
    };
}

void fake_drop_attempts(struct fake_db *db, int64_t task_id)
{
    size_t kept = 0;

    for (size_t i = 0; i < db->n_attempts; i++) {
        if (db->attempts[i].task_id == task_id)
            free(db->attempts[i].text);
        else
            db->attempts[kept++] = db->attempts[i];
    }
    db->n_attempts = kept;
}

void fake_add_alert(struct fake_db *db, const struct finish_item *f)
{
    FAKE_GROW(db->alerts, db->n_alerts, db->cap_alerts);
    db->alerts[db->n_alerts++] =
        (struct fake_alert){.task_id = f->id, .attempt = f->attempt, .next_try = fake_now(db)};
}

void fake_drop_alerts(struct fake_db *db, int64_t task_id)
{
    size_t kept = 0;

    for (size_t i = 0; i < db->n_alerts; i++) {
        if (db->alerts[i].task_id != task_id)
            db->alerts[kept++] = db->alerts[i];
    }
    db->n_alerts = kept;
}

int fake_alert_list(struct fake_db *db, struct call_alert_list *c)
{
    wall_ms now = fake_now(db);

    c->n = 0;
    c->alerts = fake_alloc(c->limit, sizeof(*c->alerts));
    for (size_t i = 0; i < db->n_alerts && c->n < c->limit; i++) {
        struct fake_alert *a = &db->alerts[i];
        const struct fake_row *row = fake_row_by_id(db, a->task_id);

        if (a->next_try > now)
            continue;
        a->next_try = now + c->lease_ms;
        c->alerts[c->n++] = (struct alert){
            .task_id = a->task_id,
            .attempt = a->attempt,
            .tries = a->tries,
            .task = row ? task_dup(row->t) : NULL,
        };
    }
    return 0;
}

int fake_alert_end(struct fake_db *db, struct call_alert_end *c)
{
    for (size_t i = 0; i < db->n_alerts; i++) {
        struct fake_alert *a = &db->alerts[i];

        if (a->task_id != c->task_id || a->attempt != c->attempt)
            continue;
        if (c->told) {
            memmove(a, a + 1, (--db->n_alerts - i) * sizeof(*a));
        } else {
            a->tries++;
            a->next_try = fake_now(db) + c->retry_ms;
        }
        break;
    }
    return 0;
}

/* ---- Services ----------------------------------------------------------------------------- */

static size_t service_text(const struct service *in)
{
    return in->name.len + in->base_url.len + in->secret.len + in->policy.len;
}

static void service_copy(struct service *dst, const struct service *in, char **p)
{
    *dst = *in;
    dst->name = fake_text(p, in->name);
    dst->base_url = fake_text(p, in->base_url);
    dst->secret = fake_text(p, in->secret);
    dst->policy = fake_text(p, in->policy);
}

static struct service *service_dup(const struct service *in)
{
    struct service *copy = fake_alloc(1, sizeof(*copy) + service_text(in));
    char *p = (char *)(copy + 1);

    service_copy(copy, in, &p);
    return copy;
}

/* The index of the service, or of where it belongs. */
static size_t service_at(const struct fake_db *db, struct str name, bool *ret_found)
{
    size_t i = 0;

    while (i < db->n_services && str_cmp(db->services[i]->name, name) < 0)
        i++;
    *ret_found = i < db->n_services && str_eq(db->services[i]->name, name);
    return i;
}

static struct service *service_set(struct fake_db *db, const struct service *next)
{
    bool found;
    size_t i = service_at(db, next->name, &found);
    struct service *copy = service_dup(next);

    copy->updated_at = fake_now(db);
    if (found) {
        copy->version = db->services[i]->version + 1;
        free(db->services[i]);
    } else {
        copy->version = 1;
        copy->created_at = copy->updated_at;
        FAKE_GROW(db->services, db->n_services, db->cap_services);
        memmove(db->services + i + 1, db->services + i,
                (db->n_services++ - i) * sizeof(*db->services));
    }
    db->services[i] = copy;
    return copy;
}

void fake_service_seen(struct fake_db *db, const struct task *t)
{
    bool found;
    size_t i = service_at(db, t->service_name, &found);
    uint32_t lane = 1u << (t->lane % TASK_RETRY_LANES);
    struct service next = {.name = t->service_name, .shards = 1, .shards_seen = 1};

    if (found)
        next = *db->services[i];
    if (found && (next.lanes & lane) && next.shards_seen > t->shard)
        return;
    next.lanes |= lane;
    if (next.shards_seen <= t->shard)
        next.shards_seen = t->shard + 1;
    (void)service_set(db, &next);
}

void fake_service_ensure(struct fake_db *db, struct str name)
{
    const struct service next = {.name = name, .shards = 1, .shards_seen = 1};
    bool found;

    (void)service_at(db, name, &found);
    if (!found)
        (void)service_set(db, &next);
}

const struct service *fake_service_find(const struct fake_db *db, struct str name)
{
    for (size_t i = 0; i < db->n_services; i++) {
        if (str_eq(db->services[i]->name, name))
            return db->services[i];
    }
    return NULL;
}

int fake_service_put(struct fake_db *db, struct call_service_put *c)
{
    bool found;
    size_t i = service_at(db, c->in->name, &found);
    struct service next = *c->in;

    next.shards_seen = next.shards;
    next.lanes = 0;
    next.paused = false;
    if (found) {
        const struct service *old = db->services[i];

        next.paused = old->paused;
        next.lanes = old->lanes;
        next.created_at = old->created_at;
        if (old->shards_seen > next.shards_seen)
            next.shards_seen = old->shards_seen;
    }
    c->created = !found;
    c->stored = service_dup(service_set(db, &next));
    return 0;
}

int fake_service_pause(struct fake_db *db, struct call_service_pause *c)
{
    bool found;
    size_t i = service_at(db, c->name, &found);

    c->stored = NULL;
    if (!found)
        return ERR_NOT_FOUND;
    struct service next = *db->services[i];
    next.paused = c->paused;
    c->stored = service_dup(next.paused != db->services[i]->paused ? service_set(db, &next)
                                                                   : db->services[i]);
    return 0;
}

int fake_service_delete(struct fake_db *db, struct call_service_delete *c)
{
    bool found;
    size_t i = service_at(db, c->name, &found);

    if (!found)
        return ERR_NOT_FOUND;
    for (size_t k = 0; k < db->live.n; k++) {
        if (str_eq(db->live.rows[k]->t->service_name, c->name))
            return ERR_CONFLICT;
    }
    fake_instances_drop(db, c->name);
    free(db->services[i]);
    memmove(db->services + i, db->services + i + 1, (--db->n_services - i) * sizeof(*db->services));
    return 0;
}

int fake_service_list(struct fake_db *db, struct call_service_list *c)
{
    size_t text = 0;

    for (size_t i = 0; i < db->n_services; i++)
        text += service_text(db->services[i]);
    c->services = fake_alloc(1, db->n_services * sizeof(struct service) + text + 1);
    c->n = db->n_services;
    char *p = (char *)(c->services + c->n);
    for (size_t i = 0; i < c->n; i++)
        service_copy(&c->services[i], db->services[i], &p);
    return 0;
}

/* ---- Nodes -------------------------------------------------------------------------------- */

static struct fake_node *node_find(struct fake_db *db, struct str name)
{
    for (size_t i = 0; i < db->n_nodes; i++) {
        if (str_eqz(name, db->nodes[i].name))
            return &db->nodes[i];
    }
    return NULL;
}

static void forget_silent(struct fake_db *db, wall_ms before)
{
    struct fake_node *first = &db->nodes[0];

    for (size_t i = 1; i < db->n_nodes; i++) {
        if (db->nodes[i].last_seen < first->last_seen)
            first = &db->nodes[i];
    }
    if (first->last_seen < before)
        *first = db->nodes[--db->n_nodes];
}

int fake_node_start(struct fake_db *db, struct call_node_start *c)
{
    struct fake_node *node = node_find(db, c->name);

    c->last_seen = node ? node->last_seen : WALL_NONE;
    if (!node) {
        FAKE_GROW(db->nodes, db->n_nodes, db->cap_nodes);
        node = &db->nodes[db->n_nodes++];
        *node = (struct fake_node){0};
        (void)snprintf(node->name, sizeof(node->name), STR_FMT, STR_ARG(c->name));
    }
    c->epoch = ++node->epoch;
    node->last_seen = fake_now(db);
    node->started_at = node->last_seen;
    node->state = MEMBER_JOINING;
    node->hash_version = c->hash_version;
    (void)member_set_text(node->address, sizeof(node->address), c->address);
    (void)member_set_text(node->version, sizeof(node->version), c->version);
    if (c->forget_ms)
        forget_silent(db, fake_now(db) - c->forget_ms);
    return 0;
}

int fake_node_beat(struct fake_db *db, struct call_node_beat *c)
{
    struct fake_node *node = node_find(db, c->name);

    if (!node || node->epoch != c->epoch)
        return ERR_CONFLICT;
    node->last_seen = fake_now(db);
    node->state = c->state;
    free(c->members);
    c->members = calloc(db->n_nodes, sizeof(*c->members));
    if (!c->members)
        return ERR_NOMEM;
    c->n = 0;
    for (size_t i = 0; i < db->n_nodes; i++) {
        const struct fake_node *other = &db->nodes[i];
        struct member *m = &c->members[c->n];

        if (other->last_seen <= fake_now(db) - c->ttl_ms)
            continue;
        *m = (struct member){.epoch = other->epoch,
                             .state = other->state,
                             .hash_version = other->hash_version,
                             .started_at = other->started_at};
        (void)member_set_text(m->name, sizeof(m->name), str_from(other->name));
        (void)member_set_text(m->address, sizeof(m->address), str_from(other->address));
        (void)member_set_text(m->version, sizeof(m->version), str_from(other->version));
        c->n++;
    }
    return 0;
}
