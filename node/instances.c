/* SPDX-License-Identifier: Apache-2.0 */
#include "node/instances.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Name and address stand behind it. */
struct live {
    struct str name;
    struct str base_url;
    uint64_t id;
    int32_t ttl_ms;
    wall_ms registered_at;
    wall_ms expires_at;
    wall_ms aside_until; /* WALL_NONE = is not set aside */
    bool is_listed;      /* in the list that is being taken over */
    bool is_newer;       /* changed since the list on its way was asked for */
    bool has_left;       /* only while is_newer: so that the list does not bring it back */
};

struct instance_group {
    struct instance_ptrs members; /* struct live, owned, by name */
    size_t next;                  /* whose turn it is; their number = the first's */
    struct str service_name;
};

int instances_init(struct instances *t)
{
    *t = (struct instances){.back_at = WALL_NONE};
    return pthread_mutex_init(&t->lock, NULL) ? ERR_NOMEM : 0;
}

static struct instance_group *group(const struct instances *t, size_t i)
{
    return t->groups.p[i];
}

static struct live *member(const struct instance_group *g, size_t i)
{
    return g->members.p[i];
}

static void group_free(struct instance_group *g)
{
    for (size_t i = 0; i < g->members.n; i++)
        free(member(g, i));
    free(g->members.p);
    free(g);
}

void instances_fini(struct instances *t)
{
    for (size_t i = 0; i < t->groups.n; i++)
        group_free(group(t, i));
    free(t->groups.p);
    pthread_mutex_destroy(&t->lock);
}

void instances_back(struct instances *t, wall_ms now)
{
    pthread_mutex_lock(&t->lock);
    t->back_at = now;
    pthread_mutex_unlock(&t->lock);
}

/* ---- Sorted arrays of pointers ------------------------------------------------------------- */

/* Errors: ERR_NOMEM. */
static int insert_at(struct instance_ptrs *list, size_t i, void *p)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4;
        void **grown = reallocarray(list->p, cap, sizeof(void *));

        if (!grown)
            return ERR_NOMEM;
        list->p = grown;
        list->cap = cap;
    }
    memmove(list->p + i + 1, list->p + i, (list->n++ - i) * sizeof(void *));
    list->p[i] = p;
    return 0;
}

static void remove_at(struct instance_ptrs *list, size_t i)
{
    assert(i < list->n);
    memmove(list->p + i, list->p + i + 1, (--list->n - i) * sizeof(void *));
}

/* The index of the service's group, or of where it belongs. */
static size_t group_at(const struct instances *t, struct str service_name, bool *ret_found)
{
    size_t low = 0;
    size_t high = t->groups.n;

    *ret_found = false;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = str_cmp(group(t, mid)->service_name, service_name);

        *ret_found |= order == 0;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static size_t member_at(const struct instance_group *g, struct str name, bool *ret_found)
{
    size_t i = 0;

    while (i < g->members.n && str_cmp(member(g, i)->name, name) < 0)
        i++;
    *ret_found = i < g->members.n && str_eq(member(g, i)->name, name);
    return i;
}

static struct instance_group *find_group(const struct instances *t, struct str service_name)
{
    bool found;
    size_t i = group_at(t, service_name, &found);

    return found ? group(t, i) : NULL;
}

static struct live *find_member(const struct instances *t, struct str service_name, struct str name)
{
    struct instance_group *g = find_group(t, service_name);
    bool found = false;
    size_t i = g ? member_at(g, name, &found) : 0;

    return found ? member(g, i) : NULL;
}

/* ---- Changes ------------------------------------------------------------------------------- */

static struct str keep(char **p, struct str s)
{
    struct str copy = {*p, s.len};

    if (s.len)
        memcpy(*p, s.p, s.len);
    *p += s.len;
    return copy;
}

static struct live *member_new(struct instances *t, const struct instance *in)
{
    struct live *m = calloc(1, sizeof(*m) + in->name.len + in->base_url.len);
    char *p = (char *)(m + 1);

    if (!m)
        return NULL;
    m->name = keep(&p, in->name);
    m->base_url = keep(&p, in->base_url);
    m->id = ++t->last_id;
    m->ttl_ms = in->ttl_ms;
    m->registered_at = in->registered_at;
    m->expires_at = in->expires_at;
    m->aside_until = WALL_NONE;
    return m;
}

/* Finds the group, or makes an empty one. NULL when out of memory. */
static struct instance_group *ensure_group(struct instances *t, struct str service_name)
{
    bool found;
    size_t i = group_at(t, service_name, &found);
    struct instance_group *g;
    char *p;

    if (found)
        return group(t, i);
    g = calloc(1, sizeof(*g) + service_name.len);
    if (!g || insert_at(&t->groups, i, g)) {
        free(g);
        return NULL;
    }
    p = (char *)(g + 1);
    g->service_name = keep(&p, service_name);
    return g;
}

static void remove_group_if_empty(struct instances *t, struct str service_name)
{
    bool found;
    size_t i = group_at(t, service_name, &found);

    if (!found || group(t, i)->members.n)
        return;
    group_free(group(t, i));
    remove_at(&t->groups, i);
}

static void remove_member(struct instance_group *g, size_t i)
{
    free(member(g, i));
    remove_at(&g->members, i);
    if (i < g->next)
        g->next--;
}

/* Puts a member in the place of none, or of one at another address. */
static struct live *add_member(struct instances *t, struct instance_group *g, size_t i, bool found,
                               const struct instance *in)
{
    struct live *m = member_new(t, in);

    if (!m)
        return NULL;
    if (found) {
        free(member(g, i));
        g->members.p[i] = m;
    } else if (insert_at(&g->members, i, m)) {
        free(m);
        return NULL;
    } else if (i < g->next) {
        g->next++;
    }
    return m;
}

/* Returns the member as it is then, or NULL when out of memory. */
static struct live *put(struct instances *t, const struct instance *in)
{
    struct instance_group *g = ensure_group(t, in->service_name);
    bool found;
    size_t i;
    struct live *m;

    if (!g)
        return NULL;
    i = member_at(g, in->name, &found);
    m = found ? member(g, i) : NULL;
    if (m && !m->has_left && m->registered_at == in->registered_at &&
        str_eq(m->base_url, in->base_url)) {
        m->ttl_ms = in->ttl_ms;
        m->expires_at = in->expires_at;
    } else {
        m = add_member(t, g, i, found, in);
    }
    remove_group_if_empty(t, in->service_name);
    return m;
}

int instances_put(struct instances *t, const struct instance *in)
{
    struct live *m;

    pthread_mutex_lock(&t->lock);
    m = put(t, in);
    if (m)
        m->is_newer = t->is_reading;
    pthread_mutex_unlock(&t->lock);
    return m ? 0 : ERR_NOMEM;
}

void instances_remove(struct instances *t, struct str service_name, struct str name)
{
    struct instance_group *g;
    bool found = false;

    pthread_mutex_lock(&t->lock);
    g = find_group(t, service_name);
    size_t i = g ? member_at(g, name, &found) : 0;
    if (found && t->is_reading) {
        member(g, i)->is_newer = member(g, i)->has_left = true;
    } else if (found) {
        remove_member(g, i);
        remove_group_if_empty(t, service_name);
    }
    pthread_mutex_unlock(&t->lock);
}

/* ---- Lists --------------------------------------------------------------------------------- */

/* Removes who has left, and with `unlisted` also who is neither listed nor newer. */
static void sweep(struct instances *t, bool unlisted)
{
    for (size_t k = t->groups.n; k-- > 0;) {
        struct instance_group *g = group(t, k);

        for (size_t i = g->members.n; i-- > 0;) {
            struct live *m = member(g, i);

            if (m->has_left || (unlisted && !m->is_listed && !m->is_newer))
                remove_member(g, i);
            else
                m->is_listed = m->is_newer = false;
        }
        remove_group_if_empty(t, g->service_name);
    }
}

void instances_reading(struct instances *t)
{
    pthread_mutex_lock(&t->lock);
    sweep(t, false);
    t->is_reading = true;
    pthread_mutex_unlock(&t->lock);
}

int instances_set(struct instances *t, const struct instance *list, size_t n)
{
    int rc = 0;

    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < n; i++) {
        struct live *m = find_member(t, list[i].service_name, list[i].name);

        if (!m || !m->is_newer)
            m = put(t, &list[i]);
        if (m)
            m->is_listed = true;
        else
            rc = ERR_NOMEM;
    }
    sweep(t, true);
    t->is_reading = false;
    pthread_mutex_unlock(&t->lock);
    return rc;
}

/* ---- Whose turn it is ---------------------------------------------------------------------- */

static bool is_live(const struct instances *t, const struct live *m, wall_ms now)
{
    return !m->has_left &&
           (m->expires_at > now || (t->back_at != WALL_NONE && now < t->back_at + m->ttl_ms));
}

static bool is_aside(const struct live *m, wall_ms now)
{
    return m->aside_until != WALL_NONE && m->aside_until > now;
}

static bool is_among(uint64_t id, const uint64_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
}

/* The index of the next one in turn, or n. */
static size_t next_in_turn(const struct instances *t, const struct instance_group *g, wall_ms now,
                           const uint64_t *tried, size_t n_tried)
{
    size_t first_back = g->members.n;

    for (size_t k = 0; k < g->members.n; k++) {
        size_t i = (g->next + k) % g->members.n;
        const struct live *m = member(g, i);

        if (!is_live(t, m, now) || is_among(m->id, tried, n_tried))
            continue;
        if (!is_aside(m, now))
            return i;
        if (first_back == g->members.n || m->aside_until < member(g, first_back)->aside_until)
            first_back = i;
    }
    return first_back;
}

uint64_t instances_pick(struct instances *t, struct str service_name, wall_ms now,
                        const uint64_t *tried, size_t n_tried, struct buf *url)
{
    struct instance_group *g;
    uint64_t id = 0;

    pthread_mutex_lock(&t->lock);
    g = find_group(t, service_name);
    size_t i = g ? next_in_turn(t, g, now, tried, n_tried) : 0;
    if (g && i < g->members.n) {
        g->next = i + 1;
        id = member(g, i)->id;
        buf_adds(url, member(g, i)->base_url);
    }
    pthread_mutex_unlock(&t->lock);
    return id;
}

bool instances_set_aside(struct instances *t, struct str service_name, uint64_t id, wall_ms now,
                         wall_ms until)
{
    struct instance_group *g;
    bool changes = false;

    pthread_mutex_lock(&t->lock);
    g = find_group(t, service_name);
    for (size_t i = 0; g && i < g->members.n; i++) {
        struct live *m = member(g, i);

        if (m->id != id)
            continue;
        changes = is_aside(m, now) != (until != WALL_NONE);
        m->aside_until = until;
        break;
    }
    pthread_mutex_unlock(&t->lock);
    return changes;
}

wall_ms instances_aside_until(struct instances *t, struct str service_name, struct str name,
                              wall_ms now)
{
    const struct live *m;
    wall_ms until = WALL_NONE;

    pthread_mutex_lock(&t->lock);
    m = find_member(t, service_name, name);
    if (m && is_live(t, m, now) && is_aside(m, now))
        until = m->aside_until;
    pthread_mutex_unlock(&t->lock);
    return until;
}

/* ---- Counts -------------------------------------------------------------------------------- */

void instances_stats(struct instances *t, wall_ms now, struct instances_stats *ret)
{
    *ret = (struct instances_stats){0};
    pthread_mutex_lock(&t->lock);
    for (size_t k = 0; k < t->groups.n; k++) {
        const struct instance_group *g = group(t, k);

        for (size_t i = 0; i < g->members.n; i++) {
            bool live = is_live(t, member(g, i), now);

            ret->n_live += live;
            ret->n_aside += live && is_aside(member(g, i), now);
        }
    }
    pthread_mutex_unlock(&t->lock);
}

int32_t instances_least_ttl(struct instances *t)
{
    int32_t least = INT32_MAX;

    pthread_mutex_lock(&t->lock);
    for (size_t k = 0; k < t->groups.n; k++) {
        const struct instance_group *g = group(t, k);

        for (size_t i = 0; i < g->members.n; i++) {
            if (member(g, i)->ttl_ms < least)
                least = member(g, i)->ttl_ms;
        }
    }
    pthread_mutex_unlock(&t->lock);
    return least;
}
