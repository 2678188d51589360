/* SPDX-License-Identifier: Apache-2.0 */
#include "node/core/view.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "node/core/ownership.h"

#define NEVER INT64_MIN

const char *view_source_name(enum view_source s)
{
    static const char *const names[] = {"none", "etcd", "rows"};

    return names[s];
}

void view_init(struct view *v, int64_t ttl_ms)
{
    *v = (struct view){.ttl_ms = ttl_ms};
    for (int i = 0; i <= VIEW_ROWS; i++)
        v->lists[i] = (struct view_list){.asked_at = NEVER, .trusted_at = INT64_MAX};
}

void view_fini(struct view *v)
{
    for (int i = 0; i <= VIEW_ROWS; i++)
        free(v->lists[i].members);
    *v = (struct view){0};
}

static int compare_name(const void *a, const void *b)
{
    return strcmp(((const struct member *)a)->name, ((const struct member *)b)->name);
}

int view_read(struct view *v, enum view_source source, mono_ms asked_at,
              const struct member *members, size_t n)
{
    struct view_list *list = &v->lists[source];
    struct member *copy = malloc(n ? n * sizeof(*copy) : 1);

    assert(source == VIEW_ETCD || source == VIEW_ROWS);
    if (!copy)
        return ERR_NOMEM;
    if (n)
        memcpy(copy, members, n * sizeof(*copy));
    qsort(copy, n, sizeof(*copy), compare_name);
    free(list->members);
    list->members = copy;
    list->n = n < VIEW_MEMBERS_MAX ? n : VIEW_MEMBERS_MAX;
    list->n_cut = n - list->n;
    list->asked_at = asked_at;
    return 0;
}

bool view_is_fresh(const struct view *v, enum view_source source, mono_ms now)
{
    mono_ms asked_at = v->lists[source].asked_at;

    return asked_at != NEVER && now - asked_at <= v->ttl_ms;
}

void view_trust(struct view *v, enum view_source source, mono_ms at)
{
    v->lists[source].trusted_at = at;
}

enum view_source view_at(const struct view *v, mono_ms now, mono_ms *ret_until)
{
    for (enum view_source s = VIEW_ETCD; s <= VIEW_ROWS; s++) {
        const struct view_list *list = &v->lists[s];
        mono_ms at = list->asked_at < list->trusted_at ? list->asked_at : list->trusted_at;

        if (at != NEVER && now - at <= v->ttl_ms) {
            *ret_until = at + v->ttl_ms + 1;
            return s;
        }
    }
    *ret_until = INT64_MAX;
    return VIEW_NONE;
}

bool view_may_own(const struct member *m)
{
    return m->state == MEMBER_ACTIVE && m->hash_version == OWNERSHIP_HASH_VERSION;
}

static bool has_given_up(enum member_state s)
{
    return s == MEMBER_DRAINING || s == MEMBER_LEFT;
}

size_t view_members(const struct view *v, enum view_source source, mono_ms now, struct member *ret)
{
    const struct view_list *list = &v->lists[source];
    bool has_rows = view_is_fresh(v, VIEW_ROWS, now);

    if (list->n)
        memcpy(ret, list->members, list->n * sizeof(*ret));
    for (size_t i = 0; has_rows && i < list->n; i++) {
        const struct member *row = view_find(v, VIEW_ROWS, str_from(ret[i].name));

        if (row && row->epoch >= ret[i].epoch && has_given_up(row->state))
            ret[i].state = row->state;
    }
    return list->n;
}

const struct member *view_find(const struct view *v, enum view_source source, struct str name)
{
    const struct view_list *list = &v->lists[source];

    for (size_t i = 0; i < list->n; i++) {
        if (str_eqz(name, list->members[i].name))
            return &list->members[i];
    }
    return NULL;
}
