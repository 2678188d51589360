/* SPDX-License-Identifier: Apache-2.0 */
#include "node/core/members_view.h"

#include <assert.h>
#include <string.h>

#include "node/core/ownership.h"

#define NEVER INT64_MIN

void members_view_init(struct members_view *v, const char *self, int64_t ttl_ms, mono_ms now)
{
    memset(v, 0, sizeof(*v));
    view_init(&v->view, ttl_ms);
    view_trust(&v->view, VIEW_ETCD, now);
    v->self = self;
    v->started_at = now;
    v->state = MEMBER_JOINING;
    v->told_at = NEVER;
    v->cut_at = NEVER;
}

void members_view_fini(struct members_view *v)
{
    view_fini(&v->view);
}

/* ---- What happens -------------------------------------------------------------------------- */

void members_view_set_epoch(struct members_view *v, int64_t epoch)
{
    v->epoch = epoch;
}

void members_view_set_ready(struct members_view *v)
{
    v->is_ready = true;
}

void members_view_set_drained(struct members_view *v, bool is_drained)
{
    v->is_drained = is_drained;
}

void members_view_set_stopping(struct members_view *v)
{
    v->is_stopping = true;
}

/* etcd's list is trusted while it shows this node as it is. */
int members_view_read(struct members_view *v, enum view_source source, mono_ms asked_at,
                      const struct member *members, size_t n, mono_ms now)
{
    const struct member *self;

    if (view_read(&v->view, source, asked_at, members, n))
        return ERR_NOMEM;
    self = source == VIEW_ETCD ? view_find(&v->view, VIEW_ETCD, str_from(v->self)) : NULL;
    if (self && self->epoch == v->epoch && self->state == v->state)
        view_trust(&v->view, VIEW_ETCD, now);
    return 0;
}

/* ---- This node's state --------------------------------------------------------------------- */

static const struct member *find_disagreement(const struct members_view *v)
{
    for (size_t i = 0; i < v->n; i++) {
        const struct member *m = &v->members[i];

        if (m->state == MEMBER_ACTIVE && m->hash_version != OWNERSHIP_HASH_VERSION &&
            strcmp(m->name, v->self) != 0)
            return m;
    }
    return NULL;
}

/* Whoever comes later waits. */
static bool is_kept_out(struct members_view *v, struct members_decision *ret)
{
    const struct member *other = find_disagreement(v);

    if (other && !v->has_disagreed)
        ret->disagrees = other;
    v->has_disagreed = other != NULL;
    return other != NULL;
}

/* By etcd's list this node lives, but its own heartbeats do not reach the database, which others
 * may reach: they would wait for it as long as that lasts. */
static bool is_cut_off(const struct members_view *v, mono_ms now)
{
    return v->source == VIEW_ETCD && !view_is_fresh(&v->view, VIEW_ROWS, now);
}

static enum member_state next_state(struct members_view *v, mono_ms now,
                                    struct members_decision *ret)
{
    if (v->is_drained || v->is_stopping)
        return MEMBER_DRAINING;
    if (is_cut_off(v, now))
        return MEMBER_JOINING;
    if (v->is_ready && v->source != VIEW_NONE &&
        (v->state == MEMBER_ACTIVE || !is_kept_out(v, ret)))
        return MEMBER_ACTIVE;
    return v->state;
}

/* ---- Who owns ------------------------------------------------------------------------------ */

/* What the witness says of this node may be old, or of a namesake. */
static bool is_owner(const struct members_view *v, const struct member *m)
{
    if (!view_may_own(m))
        return false;
    return strcmp(m->name, v->self) != 0 || (v->state == MEMBER_ACTIVE && m->epoch == v->epoch);
}

/* Returns whether they are others than before. */
static bool find_owners(struct members_view *v)
{
    bool is_new = false;
    size_t n = 0;

    v->can_own = false;
    for (size_t i = 0; i < v->n; i++) {
        const struct member *m = &v->members[i];

        if (!is_owner(v, m))
            continue;
        v->can_own |= !strcmp(m->name, v->self);
        if (n >= v->n_owners || strcmp(v->owners[n], m->name) != 0) {
            memcpy(v->owners[n], m->name, sizeof(v->owners[n]));
            is_new = true;
        }
        n++;
    }
    is_new |= n != v->n_owners;
    v->n_owners = n;
    return is_new;
}

/* ---- Deciding ------------------------------------------------------------------------------ */

/* Flapping members make no more than one line in its time, and the last change is never lost. */
static void note_change(struct members_view *v, bool is_change, mono_ms now,
                        struct members_decision *ret)
{
    v->n_untold += is_change;
    if (!v->n_untold)
        return;
    if (v->told_at != NEVER && now - v->told_at < MEMBERS_VIEW_LINE_MS) {
        if (v->told_at + MEMBERS_VIEW_LINE_MS < ret->look_again)
            ret->look_again = v->told_at + MEMBERS_VIEW_LINE_MS;
        return;
    }
    ret->is_line_due = true;
    ret->n_changes = v->n_untold;
    ret->source_before = v->told_source;
    v->n_untold = 0;
    v->told_at = now;
    v->told_source = v->source;
}

/* Said again only after they all had room for a TTL. */
static void note_cut(struct members_view *v, mono_ms now, struct members_decision *ret)
{
    size_t n_cut = v->view.lists[v->source].n_cut;

    if (!n_cut)
        return;
    if (v->cut_at == NEVER || now - v->cut_at > v->view.ttl_ms)
        ret->n_cut = n_cut;
    v->cut_at = now;
}

void members_view_decide(struct members_view *v, mono_ms now, struct members_decision *ret)
{
    enum view_source before = v->source;
    mono_ms rows_until = v->view.lists[VIEW_ROWS].asked_at + v->view.ttl_ms + 1;
    enum member_state state;

    *ret = (struct members_decision){0};
    v->source = view_at(&v->view, now, &ret->look_again);
    if (view_is_fresh(&v->view, VIEW_ROWS, now) && rows_until < ret->look_again)
        ret->look_again = rows_until; /* what they say beside etcd ends */
    v->n = view_members(&v->view, v->source, now, v->members);
    v->is_overruled = false;
    for (size_t i = 0; i < v->n; i++)
        v->is_overruled |= v->members[i].state != v->view.lists[v->source].members[i].state;
    state = next_state(v, now, ret);
    ret->is_new_state = state != v->state;
    v->state = state;
    ret->has_new_owners = find_owners(v);
    note_change(v, ret->has_new_owners || v->source != before, now, ret);
    note_cut(v, now, ret);
    assert(ret->look_again > now);
    assert(v->n_owners <= v->n && (!v->can_own || v->state == MEMBER_ACTIVE));
}

size_t members_view_owners(const struct members_view *v, struct str *ret_names)
{
    for (size_t i = 0; i < v->n_owners; i++)
        ret_names[i] = str_from(v->owners[i]);
    return v->n_owners;
}

const struct member *members_view_find(const struct members_view *v, struct str name)
{
    for (size_t i = 0; i < v->n; i++) {
        if (str_eqz(name, v->members[i].name))
            return &v->members[i];
    }
    return NULL;
}

bool members_view_may_start(const struct members_view *v, bool is_registered, bool is_held,
                            mono_ms now)
{
    if (is_registered)
        return true;
    if (is_held && view_is_fresh(&v->view, VIEW_ETCD, now))
        return false;
    return now - v->started_at > v->view.ttl_ms;
}

int64_t members_view_beat_ms(const struct members_view *v, int64_t scan_interval_ms)
{
    int64_t interval = v->view.ttl_ms / 3;

    bool is_soon = v->is_overruled || (v->source == VIEW_ROWS && v->view.lists[VIEW_ROWS].n > 1);

    return is_soon && scan_interval_ms < interval ? scan_interval_ms : interval;
}
