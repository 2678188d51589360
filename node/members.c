/* SPDX-License-Identifier: Apache-2.0 */
#include "node/members.h"

#include <stdlib.h>
#include <string.h>

#include "node/core/ownership.h"
#include "node/members_internal.h"

#define LEAVE_TIMEOUT_MS 1000
#define LOOK_MAX_MS 60000

/* ---- What is seen and said ----------------------------------------------------------------- */

static void publish(struct members *m)
{
    const struct members_view *v = &m->view;
    struct member *copy = malloc(v->n * sizeof(*copy) + 1);

    if (!copy)
        return; /* what was shown before stays */
    if (v->n)
        memcpy(copy, v->members, v->n * sizeof(*copy));
    pthread_mutex_lock(&m->lock);
    free(m->shown.members);
    m->shown = (struct members_snapshot){.source = v->source,
                                         .asked_at = v->view.lists[v->source].asked_at,
                                         .members = copy,
                                         .n = v->n,
                                         .state = v->state,
                                         .can_own = v->can_own};
    pthread_mutex_unlock(&m->lock);
}

static void log_owners(struct members *m, const struct members_decision *d)
{
    const struct members_view *v = &m->view;
    struct buf names = BUF_INIT;

    for (size_t i = 0; i < v->n_owners; i++) {
        if (i)
            buf_addc(&names, ',');
        buf_addz(&names, v->owners[i]);
    }
    LOG(m->node->log, v->source == VIEW_NONE ? LOG_WARN : LOG_INFO, "cluster.members",
        v->source == VIEW_NONE          ? "nobody is known to live; this node owns nothing"
        : v->source == d->source_before ? "who owns services has changed"
        : v->source == VIEW_ETCD        ? "etcd says who owns services"
                                        : "the heartbeat rows say who owns services",
        F_Z("node", v->self), F_Z("source", view_source_name(v->source)),
        F_STR("owners", buf_str(&names)), F_Z("state", member_state_name(v->state)),
        F_INT("changes", d->n_changes));
    buf_fini(&names);
}

static void log_decision(struct members *m, const struct members_decision *d)
{
    if (d->is_line_due)
        log_owners(m, d);
    if (d->disagrees)
        LOG(m->node->log, LOG_ERROR, "cluster.disagrees",
            "an active member owns services by another hash: this node takes no part until it is "
            "gone. Stop the nodes of the older version first",
            F_Z("member", d->disagrees->name), F_Z("version", d->disagrees->version),
            F_INT("hashVersion", d->disagrees->hash_version),
            F_INT("ownHashVersion", OWNERSHIP_HASH_VERSION));
    if (d->n_cut)
        LOG(m->node->log, LOG_ERROR, "cluster.too_many",
            "there are more members than a view has room for: the last by name own nothing. Stop "
            "some, or make a second cluster (cluster.name) with a database of its own",
            F_Z("node", m->view.self), F_INT("most", VIEW_MEMBERS_MAX),
            F_INT("leftOut", (int64_t)d->n_cut));
}

/* ---- Carrying out what is decided ---------------------------------------------------------- */

static void look_at(struct members *m, mono_ms until)
{
    mono_ms now = clock_mono();
    int64_t wait = until <= now ? 0 : until - now < LOOK_MAX_MS ? until - now : LOOK_MAX_MS;
    struct timeval tv = {wait / 1000, wait % 1000 * 1000};

    if (event_add(m->timer, &tv))
        abort(); /* a view that never grows old is worse than a node that is gone */
}

static void look(struct members *m)
{
    struct node *n = m->node;
    struct str owners[VIEW_MEMBERS_MAX];
    struct members_decision d;

    members_view_set_epoch(&m->view, n->epoch);
    if (n->stopping)
        members_view_set_stopping(&m->view);
    members_view_decide(&m->view, clock_mono(), &d);
    if (d.is_new_state) {
        if (m->membership)
            membership_set(m->membership, n->epoch, m->view.state);
        house_beat(n->house);
    }
    if (d.has_new_owners && sched_members(n->sched, store_clock_now(&n->clock), owners,
                                          members_view_owners(&m->view, owners), &n->actions))
        runner_later(n);
    log_decision(m, &d);
    publish(m);
    look_at(m, d.look_again);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    look(arg);
}

/* ---- What happens -------------------------------------------------------------------------- */

void members_witness(struct members *m, enum view_source source, mono_ms asked_at,
                     const struct member *list, size_t n)
{
    if (members_view_read(&m->view, source, asked_at, list, n, clock_mono()))
        return; /* the older list counts until it is too old */
    look(m);
    if (source == VIEW_ETCD && m->view.is_overruled)
        house_beat(m->node->house); /* which reads the rows */
}

void members_rows(struct members *m, mono_ms asked_at, const struct member *list, size_t n)
{
    members_witness(m, VIEW_ROWS, asked_at, list, n);
}

void members_ready(struct members *m)
{
    members_view_set_ready(&m->view);
    if (m->membership)
        membership_set(m->membership, m->node->epoch, m->view.state);
    look(m);
}

void members_drain(struct members *m, bool drain)
{
    if (drain == m->view.is_drained)
        return;
    LOG(m->node->log, LOG_INFO, drain ? "cluster.draining" : "cluster.resumed",
        drain ? "this node gives up what it owns" : "this node takes part again",
        F_Z("node", m->node->cfg->node_name));
    members_view_set_drained(&m->view, drain);
    look(m);
}

void members_stop(struct members *m)
{
    look(m); /* the node is stopping */
}

bool members_may_start(struct members *m)
{
    return members_view_may_start(&m->view,
                                  !m->membership || membership_is_registered(m->membership),
                                  m->is_held, clock_mono());
}

int64_t members_beat_interval(const struct members *m)
{
    return members_view_beat_ms(&m->view, m->node->cfg->scan_interval_ms);
}

enum member_state members_state(const struct members *m)
{
    return m->view.state;
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
    if (n->cfg->etcd && !n->cfg->cluster_secret)
        LOG(n->log, LOG_WARN, "cluster.no_secret",
            "cluster.secret is not set: near tasks of other owners wait for a scan, changed "
            "services for a look every few seconds",
            F_Z("node", n->cfg->node_name));
    members_view_init(&m->view, n->cfg->node_name, n->cfg->ttl_ms, clock_mono());
    m->timer = event_new(n->base, -1, 0, on_timer, m);
    if (!m->timer)
        rc = err_set(err, ERR_NOMEM, "no memory for a timer");
    else if (n->cfg->etcd)
        rc = members_etcd_join(m, err);
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
    members_view_fini(&m->view);
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
    const struct member *found = members_view_find(&m->view, name);

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
