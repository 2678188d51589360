/* SPDX-License-Identifier: Apache-2.0 */
/* Who is there: full readings, and a watch in between.
 *
 * A reading and the watch run beside each other, so either may be ahead. Each key remembers the
 * revision that it is known by, deleted ones too: events that a reading contains already are not
 * taken again, and a reading does not undo events that came while it was under way. What a reading
 * says of a time before that in which it was asked for means that the store was put back to an
 * earlier state; then everything known is forgotten, and a watch from a revision that is not there
 * yet is replaced. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include <event2/event.h>

#include "node/cluster/membership_internal.h"

static void read_start(struct membership *m);

/* ---- Entries ------------------------------------------------------------------------------- */

/* Where the name is or belongs. */
static size_t find(const struct membership_list *l, struct str name, bool *ret_is_found)
{
    size_t low = 0;
    size_t high = l->n;

    *ret_is_found = false;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = str_cmp(str_from(l->entries[mid].member.name), name);

        if (order == 0)
            *ret_is_found = true;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* NULL: there is no room. */
static struct membership_entry *insert(struct membership_list *l, size_t at)
{
    if (l->n == MEMBERSHIP_ENTRIES_MAX)
        return NULL;
    memmove(&l->entries[at + 1], &l->entries[at], (l->n - at) * sizeof(l->entries[0]));
    l->n++;
    return &l->entries[at];
}

/* Those that a reading of this revision knows better. */
static void drop_until(struct membership_list *l, int64_t revision)
{
    size_t kept = 0;

    for (size_t i = 0; i < l->n; i++) {
        if (l->entries[i].revision > revision)
            l->entries[kept++] = l->entries[i];
    }
    l->n = kept;
}

/* Errors: ERR_CORRUPT (no member, not the one of this key, or nobody's), ERR_NOMEM. */
static int parse(struct str name, const struct etcd_kv *kv, struct member *ret, struct err *err)
{
    int rc;

    if (!kv->lease) /* not even a process that died would be taken for dead */
        return err_set(err, ERR_CORRUPT,
                       "left out: the key has no lease, so no node keeps it; delete it");
    rc = member_parse(kv->value, ret, err);
    if (rc == ERR_INVALID)
        return ERR_CORRUPT;
    if (!rc && !str_eqz(name, ret->name))
        return err_set(err, ERR_CORRUPT, "the member's name is %s", ret->name);
    return rc;
}

/* Each writing of it once, since each reading finds it again. */
static void report(struct membership *m, const struct etcd_kv *kv, int rc, const struct err *err)
{
    char what[128];

    if (kv->mod_revision <= m->list.told_revision)
        return;
    (void)utf8_clean(what, sizeof(what), kv->key);
    if (rc == ERR_NOMEM)
        membership_trouble(m, TROUBLE_READING, rc, what, err);
    else
        membership_bad_key(m, rc, what, err);
}

/* What a key says since kv->mod_revision; without a value when is_there is false. The owner may
 * have left when it returns. */
static void learn(struct membership *m, const struct etcd_kv *kv, bool is_there)
{
    struct membership_list *l = &m->list;
    struct str name = {kv->key.p + m->prefix.len, kv->key.len - m->prefix.len};
    struct err err = {0};
    struct member member = {0};
    bool is_found;
    size_t at = find(l, name, &is_found);
    struct membership_entry *e = &l->entries[at];
    int rc = 0;

    if (is_found && e->revision >= kv->mod_revision)
        return;
    if (is_there)
        rc = parse(name, kv, &member, &err);
    if (name_valid(name, MEMBER_NAME_MAX)) {
        if (!is_found)
            e = insert(l, at);
        if (e) {
            *e = (struct membership_entry){member, kv->mod_revision, is_there && !rc};
            (void)member_set_text(e->member.name, sizeof(e->member.name), name); /* it fits */
        } else {
            rc = err_set(&err, ERR_TOO_BIG, "left out: more than %d keys", MEMBERSHIP_ENTRIES_MAX);
        }
    }
    if (rc)
        report(m, kv, rc, &err);
}

static void tell(struct membership *m)
{
    struct membership_list *l = &m->list;
    size_t n = 0;

    l->told_revision = l->revision;
    for (size_t i = 0; i < l->n; i++) {
        if (l->entries[i].is_there)
            l->shown[n++] = l->entries[i].member;
    }
    m->cfg.on_members(m->cfg.ctx, l->asked_at, l->shown, n);
}

/* ---- The watch ----------------------------------------------------------------------------- */

/* The next reading: a third of the TTL after the last one was asked for, or when a watch may begin
 * again. */
static void read_later(struct membership *m)
{
    struct membership_list *l = &m->list;
    mono_ms at = l->asking_at + m->third_ms;

    if (!l->watch && l->watch_at < at)
        at = l->watch_at;
    mono_ms wait = l->is_wanted ? 0 : at - clock_mono();
    membership_timer(&l->timer, wait > 0 ? wait : 0);
    l->is_wanted = false;
}

static void watch_end(struct membership_list *l)
{
    etcd_watch_stop(l->watch);
    l->watch = NULL;
    l->is_watch_created = false;
}

static void watch_pause(struct membership *m)
{
    struct membership_list *l = &m->list;

    l->watch_at = clock_mono() + backoff_delay(&m->pauses, ++l->n_breaks, &m->rng);
}

/* It may stand on another server than before, or on one with another past. */
static void on_created(void *ctx, int64_t revision, const char *why)
{
    struct membership *m = ctx;

    (void)revision;
    (void)why;
    m->list.is_watch_created = true;
    read_start(m);
}

static void on_events(void *ctx, int64_t revision, const struct etcd_event *events, size_t n)
{
    struct membership *m = ctx;
    const struct etcd_event *own = NULL;

    if (revision > m->list.revision)
        m->list.revision = revision;
    for (size_t i = 0; i < n && !m->is_leaving; i++) {
        learn(m, &events[i].kv, events[i].type == ETCD_EVENT_PUT);
        if (str_eq(events[i].kv.key, buf_str(&m->path)))
            own = &events[i];
    }
    if (own && !m->is_leaving)
        membership_key_saw(m, own->kv.mod_revision, own->type == ETCD_EVENT_PUT ? &own->kv : NULL);
    if (!m->is_leaving)
        tell(m);
}

/* Paused, since the next one may break as soon. */
static void on_broken(void *ctx, int rc, int64_t compact_revision, const struct err *err)
{
    struct membership *m = ctx;
    struct membership_list *l = &m->list;

    (void)compact_revision;
    watch_end(l);
    if (clock_mono() - l->watch_since >= m->third_ms)
        l->n_breaks = 0;
    watch_pause(m);
    if (!l->call.flight)
        read_later(m);
    membership_trouble(m, TROUBLE_WATCHING, rc, "watching the members", err);
}

static void watch_begin(struct membership *m, int64_t revision)
{
    struct membership_list *l = &m->list;
    struct etcd_watch_config cfg = {
        .prefix = m->prefix,
        .start_revision = revision,
        .ctx = m,
        .on_created = on_created,
        .on_events = on_events,
        .on_broken = on_broken,
    };

    l->watch_since = clock_mono();
    if (etcd_watch_start(m->etcd, &cfg, &l->watch)) {
        watch_pause(m);
        membership_trouble(m, TROUBLE_WATCHING, ERR_NOMEM, "watching the members",
                           &(struct err){0});
    }
}

/* ---- Readings ------------------------------------------------------------------------------ */

static void read_failed(struct membership *m, int rc, const struct err *err)
{
    struct membership_list *l = &m->list;

    l->is_wanted = false;
    membership_timer(&l->timer, backoff_delay(&m->pauses, ++l->n_failures, &m->rng));
    membership_trouble(m, TROUBLE_READING, rc, "reading the members", err);
}

static void forget(struct membership *m, int64_t revision)
{
    struct membership_list *l = &m->list;

    watch_end(l);
    l->n = 0;
    l->told_revision = 0;
    l->revision = revision;
    membership_key_forget(m);
}

static void take(struct membership *m, const struct etcd_answer *a)
{
    struct membership_list *l = &m->list;
    const struct etcd_kv *own = NULL;

    if (a->revision < l->revision_then)
        forget(m, a->revision);
    drop_until(l, a->revision);
    if (a->revision > l->revision)
        l->revision = a->revision;
    for (size_t i = 0; i < a->n_kvs && !m->is_leaving; i++) {
        learn(m, &a->kvs[i], true);
        if (str_eq(a->kvs[i].key, buf_str(&m->path)))
            own = &a->kvs[i];
    }
    if (!m->is_leaving)
        membership_key_saw(m, a->revision, own);
}

static void on_read(struct etcd_call *c)
{
    struct membership *m = c->ctx;
    struct membership_list *l = &m->list;

    if (c->rc) {
        read_failed(m, c->rc, &c->err);
        return;
    }
    l->n_failures = 0;
    l->asked_at = l->asking_at;
    membership_well(m, TROUBLE_READING);
    if (!m->is_leaving && l->is_watch_created) /* one that broke at once would be well each time */
        membership_well(m, TROUBLE_WATCHING);
    if (!m->is_leaving)
        take(m, &c->answer);
    if (!m->is_leaving && !l->watch && l->asking_at >= l->watch_at)
        watch_begin(m, c->answer.revision + 1);
    if (!m->is_leaving)
        read_later(m);
    if (!m->is_leaving)
        tell(m);
}

static void read_start(struct membership *m)
{
    struct membership_list *l = &m->list;

    if (l->call.flight) {
        l->is_wanted = true;
        return;
    }
    (void)evtimer_del(&l->timer); /* was assigned */
    l->asking_at = clock_mono();
    l->revision_then = l->revision;
    if (etcd_start(m->etcd, &l->call))
        read_failed(m, ERR_NOMEM, &(struct err){0});
}

static void on_timer(evutil_socket_t fd, short events, void *ctx)
{
    (void)fd;
    (void)events;
    read_start(ctx);
}

/* ---- Life ---------------------------------------------------------------------------------- */

void membership_list_init(struct membership *m)
{
    struct membership_list *l = &m->list;

    l->call = (struct etcd_call){
        .op = ETCD_RANGE,
        .key = m->prefix,
        .is_prefix = true,
        .timeout_ms = m->third_ms,
        .on_done = on_read,
        .ctx = m,
    };
    (void)evtimer_assign(&l->timer, m->base, on_timer, m); /* no wrong event type */
    membership_timer(&l->timer, 0);
}

void membership_list_stop(struct membership *m)
{
    etcd_cancel(&m->list.call);
    (void)evtimer_del(&m->list.timer); /* was assigned */
    watch_end(&m->list);
}
