/* SPDX-License-Identifier: Apache-2.0 */
/* The table of instances. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/fake_internal.h"

static size_t text_of(const struct instance *in)
{
    return in->service_name.len + in->name.len + in->base_url.len;
}

static void copy(struct instance *dst, const struct instance *in, char **p)
{
    *dst = *in;
    dst->service_name = fake_text(p, in->service_name);
    dst->name = fake_text(p, in->name);
    dst->base_url = fake_text(p, in->base_url);
}

/* The index of the instance, or of where it belongs. */
static size_t instance_at(const struct fake_db *db, struct str service_name, struct str name,
                          bool *ret_found)
{
    size_t i = 0;
    int order = -1;

    for (; i < db->n_instances; i++) {
        order = str_cmp(db->instances[i]->service_name, service_name);
        if (!order)
            order = str_cmp(db->instances[i]->name, name);
        if (order >= 0)
            break;
    }
    *ret_found = i < db->n_instances && order == 0;
    return i;
}

static void remove_at(struct fake_db *db, size_t i)
{
    free(db->instances[i]);
    memmove(db->instances + i, db->instances + i + 1,
            (--db->n_instances - i) * sizeof(*db->instances));
}

static size_t count_live(const struct fake_db *db, struct str service_name)
{
    size_t n = 0;

    for (size_t i = 0; i < db->n_instances; i++)
        n += str_eq(db->instances[i]->service_name, service_name) &&
             db->instances[i]->expires_at > fake_now(db);
    return n;
}

int fake_instance_put(struct fake_db *db, struct call_instance_put *c)
{
    wall_ms now = fake_now(db);
    struct instance *row;
    bool found;
    size_t i = instance_at(db, c->in.service_name, c->in.name, &found);
    char *p;

    c->created = !found || db->instances[i]->expires_at <= now;
    if (c->created && count_live(db, c->in.service_name) >= INSTANCES_MAX)
        return ERR_CONFLICT;
    fake_service_ensure(db, c->in.service_name);
    c->in.registered_at = c->created ? now : db->instances[i]->registered_at;
    c->in.expires_at = now + c->in.ttl_ms;
    row = fake_alloc(1, sizeof(*row) + text_of(&c->in));
    p = (char *)(row + 1);
    copy(row, &c->in, &p);
    if (found)
        remove_at(db, i);
    FAKE_GROW(db->instances, db->n_instances, db->cap_instances);
    memmove(db->instances + i + 1, db->instances + i,
            (db->n_instances++ - i) * sizeof(*db->instances));
    db->instances[i] = row;
    return 0;
}

int fake_instance_delete(struct fake_db *db, struct call_instance_delete *c)
{
    bool found;
    size_t i = instance_at(db, c->service_name, c->name, &found);

    if (!found || db->instances[i]->expires_at <= fake_now(db))
        return ERR_NOT_FOUND;
    remove_at(db, i);
    return 0;
}

void fake_instances_drop(struct fake_db *db, struct str service_name)
{
    for (size_t i = db->n_instances; i-- > 0;) {
        if (str_eq(db->instances[i]->service_name, service_name))
            remove_at(db, i);
    }
}

int fake_instance_list(struct fake_db *db, struct call_instance_list *c)
{
    wall_ms now = fake_now(db);
    size_t text = 0;
    char *p;

    for (size_t i = 0; i < db->n_instances; i++)
        text += text_of(db->instances[i]);
    c->instances = fake_alloc(1, db->n_instances * sizeof(struct instance) + text + 1);
    c->n = 0;
    p = (char *)(c->instances + db->n_instances);
    for (size_t i = 0; i < db->n_instances; i++) {
        const struct instance *in = db->instances[i];

        if ((in->expires_at > now || (c->expired_too && !c->service_name.p)) &&
            (!c->service_name.p || str_eq(in->service_name, c->service_name)))
            copy(&c->instances[c->n++], in, &p);
    }
    return 0;
}

int fake_instance_purge(struct fake_db *db, struct call_instance_purge *c)
{
    c->n_seen = 0;
    for (size_t i = 0; i < db->n_instances && c->n_seen < c->limit;) {
        if (db->instances[i]->expires_at > fake_now(db)) {
            i++;
            continue;
        }
        remove_at(db, i);
        c->n_seen++;
    }
    return 0;
}
