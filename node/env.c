/* SPDX-License-Identifier: Apache-2.0 */
/* What the HTTP interface asks of the node: answers on the API's threads, from what the loop
 * published, or by mail to the loop. */
#include "node/node_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "node/cluster_view.h"
#include "node/dispatch/sign.h"
#include "node/ops/metrics.h"

#define REFUSED_LINE_MS 60000 /* between lines about refused calls */

void node_publish(struct node *n)
{
    struct sched_stats stats;

    sched_stats(n->sched, &stats);
    pthread_mutex_lock(&n->status.lock);
    n->status.sched = stats;
    pthread_mutex_unlock(&n->status.lock);
}

static int32_t env_shards_of(void *ctx, struct str service_name)
{
    struct node *n = ctx;

    return service_table_shards(&n->services, service_name);
}

static void env_policy_of(void *ctx, struct str service_name, char dst[TASK_POLICY_MAX + 1])
{
    struct node *n = ctx;

    service_table_policy(&n->services, service_name, dst);
}

static wall_ms env_aside_until(void *ctx, struct str service_name, struct str name)
{
    struct node *n = ctx;

    return instances_aside_until(&n->instances, service_name, name, store_clock_now(&n->clock));
}

static bool env_services_known(void *ctx)
{
    struct node *n = ctx;

    return atomic_load(&n->services_known) && atomic_load(&n->clock.known);
}

struct question {
    struct mail mail; /* first */
    struct node *node;
    enum {
        ASK_EXPLAIN,
        ASK_SERVICES,
        ASK_DRAIN,
        ASK_RESUME,
        ASK_LEASE,
        ASK_CANCEL,
        ASK_GIVE_BACK
    } what;
    struct explain_query *query; /* of EXPLAIN */
    struct lease_query *lease;   /* of LEASE and CANCEL */
    struct lease_claims *claims; /* of GIVE_BACK */
};

static void on_question(struct mail *m)
{
    struct question *q = (struct question *)m;
    struct node *n = q->node;
    struct explain_query *e = q->query;

    switch (q->what) {
    case ASK_EXPLAIN:
        sched_explain(n->sched, store_clock_now(&n->clock), e->service_name, e->shard, e->id,
                      e->next_attempt_time, &e->answer);
        mailbox_post(e->reply, &e->mail);
        break;
    case ASK_SERVICES:
        house_read_services(n->house);
        forward_services(n->forward);
        break;
    case ASK_DRAIN:
    case ASK_RESUME:
        if (n->members) /* else the node failed to start, after its interface did */
            members_drain(n->members, q->what == ASK_DRAIN);
        break;
    case ASK_LEASE:
        leases_ask(n->leases, q->lease);
        break;
    case ASK_CANCEL:
        leases_cancel(n->leases, q->lease);
        mailbox_post(q->lease->reply, &q->lease->cancel);
        break;
    case ASK_GIVE_BACK:
        leases_give_back(n->leases, q->claims);
        break;
    }
    free(q);
}

/* What is still heard when the node is stopping: the mailbox is there for longer than the API, and
 * these come when clients hang up, or their answers are cut, during the grace time and after it. */
static bool is_heard_to_the_end(const struct question *q)
{
    return q->what == ASK_GIVE_BACK;
}

/* Copies the question. Returns false when the loop will not answer: out of memory, or the node is
 * stopping. */
static bool ask_this(struct node *n, const struct question *question)
{
    struct question *q = malloc(sizeof(*q));
    bool asked = false;

    if (!q)
        return false;
    *q = *question;
    q->mail.on_delivery = on_question;
    q->node = n;
    pthread_mutex_lock(&n->status.lock);
    if (!n->status.stopping || is_heard_to_the_end(q)) {
        mailbox_post(n->mailbox, &q->mail);
        asked = true;
    }
    pthread_mutex_unlock(&n->status.lock);
    if (!asked)
        free(q);
    return asked;
}

static bool ask(struct node *n, int what, struct explain_query *e)
{
    return ask_this(n, &(struct question){.what = what, .query = e});
}

static void env_explain(void *ctx, struct explain_query *query)
{
    if (ask(ctx, ASK_EXPLAIN, query))
        return;
    query->answer = (struct sched_explanation){.gate = GATE_STOPPING};
    mailbox_post(query->reply, &query->mail);
}

static void env_lease(void *ctx, struct lease_query *q)
{
    if (ask_this(ctx, &(struct question){.what = ASK_LEASE, .lease = q}))
        return;
    q->outcome = LEASE_STOPPING;
    mailbox_post(q->reply, &q->mail);
}

static bool env_lease_cancel(void *ctx, struct lease_query *q)
{
    return ask_this(ctx, &(struct question){.what = ASK_CANCEL, .lease = q});
}

static void env_give_back(void *ctx, struct lease_claims *claims)
{
    if (!ask_this(ctx, &(struct question){.what = ASK_GIVE_BACK, .claims = claims}))
        free(claims); /* they are rescued at their deadline */
}

static bool env_is_pull(void *ctx, struct str service_name)
{
    struct node *n = ctx;

    return service_table_is_pull(&n->services, service_name);
}

static void env_services_changed(void *ctx)
{
    /* Without memory the next regular reading finds the change. */
    (void)ask(ctx, ASK_SERVICES, NULL);
}

static void env_instance_removed(void *ctx, struct str service_name, struct str name)
{
    struct node *n = ctx;

    instances_remove(&n->instances, service_name, name);
    env_services_changed(ctx);
}

static void env_instance_put(void *ctx, const struct instance *in)
{
    struct node *n = ctx;

    if (instances_put(&n->instances, in))
        env_services_changed(ctx);
}

static bool env_drain(void *ctx, bool drain)
{
    return ask(ctx, drain ? ASK_DRAIN : ASK_RESUME, NULL);
}

static bool env_is_member(void *ctx, struct str path, struct str stamp, struct str signature,
                          struct str body)
{
    struct node *n = ctx;
    mono_ms now = clock_mono();
    mono_ms told_at = atomic_load(&n->refused_at);

    if (forward_verify(n->cfg, str_from(n->cfg->node_name), path, stamp, signature, body,
                       store_clock_now(&n->clock)))
        return true;
    if (n->cfg->cluster_secret && (!told_at || now - told_at > REFUSED_LINE_MS) &&
        atomic_compare_exchange_strong(&n->refused_at, &told_at, now))
        LOG(n->log, LOG_WARN, "cluster.refused",
            "a call that says it comes from a member is not signed with cluster.secret: is it the "
            "same on all nodes?",
            F_Z("node", n->cfg->node_name));
    return false;
}

static int env_sign(void *ctx, struct str path, struct str body, struct buf *dst)
{
    struct node *n = ctx;

    return forward_sign(n->cfg, path, body, store_clock_now(&n->clock), dst);
}

static bool env_hints(void *ctx, const struct hint *hints, size_t n_hints, bool services)
{
    return node_take_hints(ctx, hints, n_hints, services);
}

static bool env_notify(void *ctx, const struct hint *hint)
{
    return node_notify(ctx, hint);
}

static int env_cluster(void *ctx, struct str service_name, struct buf *dst)
{
    struct node *n = ctx;
    struct members_snapshot view = {.source = VIEW_NONE};
    struct members *members = n->members;
    bool known;

    if (members && members_snapshot(members, &view))
        return ERR_NOMEM;
    known = cluster_view_put(dst, n->cfg, &view, &n->services, clock_mono(), service_name);
    free(view.members);
    return known ? 0 : ERR_NOT_FOUND;
}

static bool env_ready(void *ctx, struct buf *why)
{
    struct node *n = ctx;
    char error[sizeof(n->status.store_error)];
    const char *reason = NULL;

    pthread_mutex_lock(&n->status.lock);
    memcpy(error, n->status.store_error, sizeof(error));
    if (n->status.stopping)
        reason = "the node is stopping";
    else if (!n->status.store_up)
        reason = *error ? error : "the database has not answered yet";
    else if (!n->status.started)
        reason = "the node reads its services";
    pthread_mutex_unlock(&n->status.lock);
    if (reason)
        buf_addz(why, reason);
    return !reason;
}

static void env_metrics(void *ctx, struct buf *dst)
{
    struct node *n = ctx;
    struct metrics_gauges g = {.node = n->cfg->node_name};
    struct store_stats stats;
    struct instances_stats in;

    store_stats(n->store, &stats);
    g.store_queued = stats.queued;
    memcpy(g.store_batches, stats.batches, sizeof(g.store_batches));
    memcpy(g.store_rows, stats.rows, sizeof(g.store_rows));
    g.store_retries = stats.retries;
    g.store_reconnects = stats.reconnects;
    pthread_mutex_lock(&n->status.lock);
    g.sched = n->status.sched;
    g.store_up = n->status.store_up;
    pthread_mutex_unlock(&n->status.lock);
    instances_stats(&n->instances, store_clock_now(&n->clock), &in);
    g.n_instances = in.n_live;
    g.n_instances_aside = in.n_aside;
    metrics_put(dst, &n->counters, &g);
}

static int env_check_base_url(void *ctx, struct str url, struct err *err)
{
    struct node *n = ctx;
    const struct dispatch *d = n->dispatch;

    if (!d)
        return err_set(err, ERR_UNAVAILABLE, "the node is still starting");
    return dispatch_check_base_url(d, url, err);
}

static int env_check_secret(void *ctx, struct str secret, struct err *err)
{
    (void)ctx;
    return sign_check_secret(secret, err);
}

void node_api_env(struct node *n, struct api_env *ret)
{
    *ret = (struct api_env){
        .store = n->port,
        .clock = &n->clock,
        .counters = &n->counters,
        .policies = &n->policies,
        .log = n->log,
        .node_name = n->cfg->node_name,
        .ctx = n,
        .shards_of = env_shards_of,
        .policy_of = env_policy_of,
        .services_known = env_services_known,
        .instance_put = env_instance_put,
        .instance_removed = env_instance_removed,
        .aside_until = env_aside_until,
        .explain = env_explain,
        .lease = env_lease,
        .lease_cancel = env_lease_cancel,
        .give_back = env_give_back,
        .is_pull = env_is_pull,
        .services_changed = env_services_changed,
        .ready = env_ready,
        .metrics = env_metrics,
        .cluster = env_cluster,
        .drain = env_drain,
        .is_member = env_is_member,
        .sign = env_sign,
        .hints = env_hints,
        .notify = env_notify,
        .check_base_url = env_check_base_url,
        .check_secret = env_check_secret,
    };
}
