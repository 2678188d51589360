/* SPDX-License-Identifier: Apache-2.0 */
#include "node/members.h"

#include <stdlib.h>
#include <string.h>

#include "node/cluster/membership.h"
#include "node/core/ownership.h"
#include "node/node_internal.h"

#define LEAVE_TIMEOUT_MS 1000

struct members {
    struct node *node;
    struct event *timer; /* the view's end */
    struct etcd *etcd;   /* these two: NULL without etcd */
    struct membership *membership;
    struct view view;
    enum view_source source;
    enum member_state state;
    mono_ms started_at;
    bool ready;   /* the node may become active */
    bool drained; /* somebody asked for it */
    bool held;    /* another process has this node's name */
    bool trouble; /* etcd does not answer */
    bool disagreed;
    pthread_mutex_t lock; /* for snapshots */
    struct members_snapshot shown;
    void (*on_left)(struct node *n);
};

/* ---- What the scheduler is told ------------------------------------------------------------ */

static void publish(struct members *m, bool can_own)
{
    const struct view_list *list = &m->view.lists[m->source];
    struct member *copy = malloc(list->n * sizeof(*copy) + 1);

    if (!copy)
        return; /* what was shown before stays */
    if (list->n)
        memcpy(copy, list->members, list->n * sizeof(*copy));
    pthread_mutex_lock(&m->lock);
    free(m->shown.members);
    m->shown = (struct members_snapshot){.source = m->source,
                                         .asked_at = list->asked_at,
                                         .members = copy,
                                         .n = list->n,
                                         .state = m->state,
                                         .can_own = can_own};
    pthread_mutex_unlock(&m->lock);
}

static void log_change(struct members *m, enum view_source before, const struct str *owners,
                       size_t n_owners)
{
    struct node *n = m->node;
    struct buf names = BUF_INIT;

    for (size_t i = 0; i < n_owners; i++) {
        if (i)
            buf_addc(&names, ',');
        buf_adds(&names, owners[i]);
    }
    LOG(n->log, m->source == VIEW_NONE ? LOG_WARN : LOG_INFO, "cluster.members",
        m->source == VIEW_NONE   ? "nobody is known to live; this node owns nothing"
        : m->source == before    ? "who owns services has changed"
        : m->source == VIEW_ETCD ? "etcd says who owns services"
                                 : "the heartbeat rows say who owns services",
        F_Z("node", n->cfg->node_name), F_Z("source", view_source_name(m->source)),
        F_STR("owners", buf_str(&names)), F_Z("state", member_state_name(m->state)));
    buf_fini(&names);
}

static void timer_arm(struct members *m, mono_ms until)
{
    mono_ms now = clock_mono();
    int64_t wait = until <= now ? 0 : until - now < 60000 ? until - now : 60000;
    struct timeval tv = {wait / 1000, wait % 1000 * 1000};

    if (event_add(m->timer, &tv))
        abort(); /* a view that never grows old is worse than a node that is gone */
}

/* Whether etcd's list shows this node as it is. */
static void note_match(struct members *m)
{
    const struct node *n = m->node;
    const struct member *self = view_find(&m->view, VIEW_ETCD, str_from(n->cfg->node_name));

    if (self && self->epoch == n->epoch && self->state == m->state)
        view_trust(&m->view, VIEW_ETCD, clock_mono());
}

/* Looks at the witnesses and tells the scheduler what has changed. */
static void apply(struct members *m)
{
    struct node *n = m->node;
    struct str names[VIEW_MEMBERS_MAX];
    struct str self = str_from(n->cfg->node_name);
    enum view_source before = m->source;
    bool can_own = false;
    mono_ms until;
    size_t kept = 0;

    m->source = view_at(&m->view, clock_mono(), &until);
    size_t n_names = view_owners(&m->view, m->source, names);
    for (size_t i = 0; i < n_names; i++) {
        bool is_self = str_eq(names[i], self);

        if (is_self &&
            (m->state != MEMBER_ACTIVE || view_find(&m->view, m->source, self)->epoch != n->epoch))
            continue; /* what the witness says is old, or of a namesake */
        can_own |= is_self;
        names[kept++] = names[i];
    }
    bool changed = sched_members(n->sched, store_clock_now(&n->clock), names, kept, &n->actions);
    if (changed)
        runner_later(n);
    if (changed || m->source != before)
        log_change(m, before, names, kept);
    publish(m, can_own);
    if (view_is_fresh(&m->view, VIEW_ROWS, clock_mono()) &&
        until > m->view.lists[VIEW_ROWS].asked_at + m->view.ttl_ms)
        until = m->view.lists[VIEW_ROWS].asked_at + m->view.ttl_ms + 1;
    timer_arm(m, until);
}

/* ---- This node's state --------------------------------------------------------------------- */

static void set_state(struct members *m, enum member_state state)
{
    struct node *n = m->node;

    if (m->state == state)
        return;
    m->state = state;
    if (m->membership)
        membership_set(m->membership, n->epoch, state);
    house_beat(n->house);
    apply(m);
}

/* Nobody owns by two hashes at once: whoever comes later waits. */
static bool disagrees(struct members *m)
{
    struct node *n = m->node;
    const struct member *other = view_disagrees(&m->view, m->source, str_from(n->cfg->node_name));

    if (other && !m->disagreed)
        LOG(n->log, LOG_ERROR, "cluster.disagrees",
            "an active member owns services by another hash: this node takes no part until it is "
            "gone. Stop the nodes of the older version first",
            F_Z("member", other->name), F_Z("version", other->version),
            F_INT("hashVersion", other->hash_version),
            F_INT("ownHashVersion", OWNERSHIP_HASH_VERSION));
    m->disagreed = other != NULL;
    return other != NULL;
}

/* By etcd's list this node lives, but its own heartbeats do not reach the database, which others
 * may reach: they would wait for it as long as that lasts. */
static bool is_cut_off(const struct members *m)
{
    return m->source == VIEW_ETCD && !view_is_fresh(&m->view, VIEW_ROWS, clock_mono());
}

/* A node becomes active once; one that is active stays so whoever joins, while the database hears
 * of it. */
static void advance(struct members *m)
{
    if (m->drained || m->node->stopping)
        set_state(m, MEMBER_DRAINING);
    else if (is_cut_off(m))
        set_state(m, MEMBER_JOINING);
    else if (m->ready && m->source != VIEW_NONE && (m->state == MEMBER_ACTIVE || !disagrees(m)))
        set_state(m, MEMBER_ACTIVE);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    apply(arg);
    advance(arg);
}

static void witness(struct members *m, enum view_source source, mono_ms asked_at,
                    const struct member *list, size_t n)
{
    if (view_read(&m->view, source, asked_at, list, n))
        return; /* the older list counts until it is too old */
    if (source == VIEW_ETCD)
        note_match(m);
    apply(m);
    advance(m);
}

bool members_may_start(struct members *m)
{
    if (!m->membership || membership_is_registered(m->membership))
        return true;
    if (m->held && view_is_fresh(&m->view, VIEW_ETCD, clock_mono()))
        return false;
    return clock_mono() - m->started_at > m->view.ttl_ms;
}

int64_t members_beat_interval(const struct members *m)
{
    int64_t interval = m->view.ttl_ms / 3;
    int64_t scan = m->node->cfg->scan_interval_ms;

    if (m->source == VIEW_ROWS && m->view.lists[VIEW_ROWS].n > 1 && scan < interval)
        return scan;
    return interval;
}

void members_ready(struct members *m)
{
    m->ready = true;
    if (m->membership)
        membership_set(m->membership, m->node->epoch, m->state);
    advance(m);
}

enum member_state members_state(const struct members *m)
{
    return m->state;
}

void members_rows(struct members *m, mono_ms asked_at, const struct member *list, size_t n)
{
    witness(m, VIEW_ROWS, asked_at, list, n);
}

void members_drain(struct members *m, bool drain)
{
    if (drain == m->drained)
        return;
    LOG(m->node->log, LOG_INFO, drain ? "cluster.draining" : "cluster.resumed",
        drain ? "this node gives up what it owns" : "this node takes part again",
        F_Z("node", m->node->cfg->node_name));
    m->drained = drain;
    advance(m);
}

void members_stop(struct members *m)
{
    advance(m);
}

/* ---- etcd ---------------------------------------------------------------------------------- */

static void on_registered(void *ctx)
{
    struct members *m = ctx;

    m->held = false;
    LOG(m->node->log, LOG_INFO, "cluster.registered", "this node's key stands in etcd",
        F_Z("node", m->node->cfg->node_name), F_Z("cluster", m->node->cfg->cluster));
}

static void on_lost(void *ctx, const char *why)
{
    struct members *m = ctx;

    LOG(m->node->log, LOG_WARN, "cluster.lost",
        "this node's key is gone from etcd; it is being registered again",
        F_Z("node", m->node->cfg->node_name), F_Z("why", why));
}

static void on_held(void *ctx, const struct member *holder)
{
    struct members *m = ctx;

    m->held = true;
    LOG(m->node->log, LOG_WARN, "cluster.name_taken",
        "another process holds this node's name in etcd; waiting until it is gone. Give each node "
        "a name of its own (--node-name)",
        F_Z("node", m->node->cfg->node_name), F_Z("holder", holder->address),
        F_INT("holderEpoch", holder->epoch));
}

static void on_members(void *ctx, mono_ms asked_at, const struct member *list, size_t n)
{
    witness(ctx, VIEW_ETCD, asked_at, list, n);
}

static void on_trouble(void *ctx, int rc, const struct err *err)
{
    struct members *m = ctx;
    bool trouble = rc != 0;

    if (rc == ERR_CORRUPT || rc == ERR_TOO_BIG) { /* etcd is well; what stands in it is not */
        LOG(m->node->log, LOG_WARN, "cluster.bad_key", err->text,
            F_Z("node", m->node->cfg->node_name));
        return;
    }

    if (trouble && !m->trouble)
        LOG(m->node->log, LOG_WARN, "etcd.down",
            "etcd does not answer as it should; the heartbeat rows decide when its view is too old",
            F_Z("error", err->text));
    else if (!trouble && m->trouble)
        LOG(m->node->log, LOG_INFO, "etcd.up", "etcd answers again",
            F_Z("node", m->node->cfg->node_name));
    m->trouble = trouble;
}

/* Cuts the list of URLs; both are freed by the caller. */
static int cut_urls(const char *list, char **ret_text, const char ***ret_urls, size_t *ret_n)
{
    size_t n = 1;
    char *text = strdup(list);

    for (const char *p = list; *p; p++)
        n += *p == ',' || *p == ' ';
    const char **urls = calloc(n, sizeof(*urls));
    if (!text || !urls) {
        free(text);
        free(urls);
        return ERR_NOMEM;
    }
    char *save = NULL;
    n = 0;
    for (char *url = strtok_r(text, ", ", &save); url; url = strtok_r(NULL, ", ", &save))
        urls[n++] = url;
    *ret_text = text;
    *ret_urls = urls;
    *ret_n = n;
    return 0;
}

static int etcd_open(struct members *m, struct err *err)
{
    const struct config *c = m->node->cfg;
    const char **urls;
    size_t n_urls;
    char *text;
    int rc = cut_urls(c->etcd, &text, &urls, &n_urls);

    if (rc)
        return err_set(err, rc, "no memory for etcd's URLs");
    struct etcd_config ec = {
        .endpoints = urls,
        .n_endpoints = n_urls,
        .user = c->etcd_user,
        .password = c->etcd_password,
        .ca_file = c->etcd_ca_file,
        .cert_file = c->etcd_cert_file,
        .key_file = c->etcd_key_file,
        .request_timeout_ms = c->ttl_ms / 3,
        .watch_idle_ms = c->ttl_ms,
    };
    rc = etcd_new(m->node->base, &ec, &m->etcd, err);
    free(urls);
    free(text);
    return rc;
}

static int etcd_join(struct members *m, struct err *err)
{
    struct node *n = m->node;
    struct membership_config mc = {
        .cluster = n->cfg->cluster,
        .ttl_ms = n->cfg->ttl_ms,
        .ctx = m,
        .on_registered = on_registered,
        .on_lost = on_lost,
        .on_held = on_held,
        .on_members = on_members,
        .on_trouble = on_trouble,
    };
    struct member self = {.state = MEMBER_JOINING,
                          .hash_version = OWNERSHIP_HASH_VERSION,
                          .started_at = clock_wall()};
    int rc;

    (void)member_set_text(self.name, sizeof(self.name), str_from(n->cfg->node_name));
    (void)member_set_text(self.address, sizeof(self.address), str_from(n->advertise));
    (void)member_set_text(self.version, sizeof(self.version), STR(JF_VERSION));
    rc = etcd_open(m, err);
    if (!rc)
        rc = membership_new(n->base, m->etcd, &mc, &self, &m->membership);
    return rc == ERR_NOMEM ? err_set(err, rc, "no memory for the membership") : rc;
}

/* ---- Life ---------------------------------------------------------------------------------- */

int members_new(struct node *n, struct members **ret, struct err *err)
{
    struct members *m = calloc(1, sizeof(*m));
    int rc = 0;

    if (!m)
        return err_set(err, ERR_NOMEM, "no memory for the members");
    if (pthread_mutex_init(&m->lock, NULL)) {
        free(m);
        return err_set(err, ERR_NOMEM, "no memory for the members");
    }
    m->node = n;
    m->state = MEMBER_JOINING;
    if (n->cfg->etcd && !n->cfg->cluster_secret)
        LOG(n->log, LOG_WARN, "cluster.no_secret",
            "cluster.secret is not set: near tasks of other owners wait for a scan",
            F_Z("node", n->cfg->node_name));
    m->started_at = clock_mono();
    view_init(&m->view, n->cfg->ttl_ms);
    view_trust(&m->view, VIEW_ETCD, m->started_at);
    m->timer = event_new(n->base, -1, 0, on_timer, m);
    if (!m->timer)
        rc = err_set(err, ERR_NOMEM, "no memory for a timer");
    else if (n->cfg->etcd)
        rc = etcd_join(m, err);
    if (rc) {
        members_free(m);
        return rc;
    }
    *ret = m;
    return 0;
}

void members_free(struct members *m)
{
    if (!m)
        return;
    membership_free(m->membership);
    etcd_free(m->etcd);
    if (m->timer)
        event_free(m->timer);
    view_fini(&m->view);
    pthread_mutex_destroy(&m->lock);
    free(m->shown.members);
    free(m);
}

static void on_left(void *ctx)
{
    struct members *m = ctx;

    m->on_left(m->node);
}

void members_leave(struct members *m, void (*after)(struct node *n))
{
    m->on_left = after;
    if (m->membership)
        membership_leave(m->membership, LEAVE_TIMEOUT_MS, on_left);
    else
        on_left(m);
}

const char *members_address(const struct members *m, struct str name)
{
    const struct member *found = view_find(&m->view, m->source, name);

    return found ? found->address : NULL;
}

int members_snapshot(struct members *m, struct members_snapshot *ret)
{
    struct member *copy;

    pthread_mutex_lock(&m->lock);
    *ret = m->shown;
    copy = malloc(ret->n * sizeof(*copy) + 1);
    if (copy && ret->n)
        memcpy(copy, m->shown.members, ret->n * sizeof(*copy));
    pthread_mutex_unlock(&m->lock);
    ret->members = copy;
    return copy ? 0 : ERR_NOMEM;
}
