/* SPDX-License-Identifier: Apache-2.0 */
/* The node's housekeeping on the store.
 *
 * When the database comes up, a chain runs: boot epoch (once), the store's clock, the services;
 * then the scheduler may work. After that each job comes round by itself: the clock, the heartbeat
 * row, the services, retention. A job has at most one operation out; one that failed comes round
 * again. */
#include "node/node_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "node/core/nodecall.h"
#include "node/core/ownership.h"

#define HOUSE_TICK_MS 250
#define HOUSE_CLOCK_MS 5000
#define HOUSE_SERVICES_MS 5000
#define HOUSE_EXPIRED_MS 60000  /* between looks for instances whose rows have expired */
#define HOUSE_EXPIRED_ROWS 100  /* deleted in one step */
#define HOUSE_BACK_MS 20000     /* after an outage nothing is purged of them for so long */
#define HOUSE_PURGE_ROWS 2000   /* looked at in one step of retention */
#define HOUSE_RESCUE_LINES 16   /* look-ups for log lines that are out at a time */
#define HOUSE_PURGE_STEP_MS 500 /* between steps that found nothing to delete */

enum job {
    JOB_START,
    JOB_CLOCK,
    JOB_SERVICES,
    JOB_INSTANCES,
    JOB_BEAT,
    JOB_PURGE,
    JOB_EXPIRED,
    JOB_N
};

struct house {
    struct node *node;
    struct event *timer;
    mono_ms due[JOB_N];
    bool out[JOB_N];
    bool again_services;
    bool again_instances;
    bool again_beat;
    bool chain; /* the scheduler waits for clock and services */
    bool clock_known;
    bool services_known;
    bool instances_known;
    struct call_node_start start;
    struct submit_rule rules[3 + CONFIG_MAX_POLICIES];
    struct call_clock clock;
    struct call_service_list services;
    struct call_instance_list instances;
    struct call_instance_purge expired;
    struct call_node_beat beat;
    struct call_node_beat last_beat; /* of leaving: another may still be out */
    mono_ms beat_asked_at;
    mono_ms back_until; /* the database was away not long ago: expired instances count */
    struct call_purge purge;
    int64_t purge_after;
    uint64_t n_deleted; /* by the present walk over history */
    uint64_t n_moved;
    unsigned n_rescue_lines; /* calls that are out for them */
    uint64_t n_rescues_unnamed;
};

void node_call(struct node *n, struct store_call *call, enum call_what what,
               void (*on_done)(struct mail *m))
{
    int rc;

    call->op.kind = STORE_CALL;
    call->op.rc = 0;
    call->op.reply = n->mailbox;
    call->op.mail.on_delivery = on_done;
    call->what = what;
    rc = store_post(&n->port, &call->op);
    if (rc) {
        call->op.rc = rc;
        on_done(&call->op.mail);
    }
}

static void job_post(struct house *h, enum job job);

#define HOUSE_OF(m, field) ((struct house *)((char *)(m)-offsetof(struct house, field)))

static void job_done(struct house *h, enum job job, int64_t next_ms)
{
    h->out[job] = false;
    h->due[job] = clock_mono() + next_ms;
}

/* The chain's end: the scheduler may use the store. */
static void chain_check(struct house *h)
{
    struct node *n = h->node;

    if (!h->chain || !n->epoch || !h->clock_known || !h->services_known || !h->instances_known)
        return;
    h->chain = false;
    pthread_mutex_lock(&n->status.lock);
    bool first = !n->status.started;
    n->status.started = true;
    pthread_mutex_unlock(&n->status.lock);
    if (first)
        LOG(n->log, LOG_INFO, "node.active", "tasks are being scheduled",
            F_Z("node", n->cfg->node_name), F_INT("epoch", n->epoch));
    instances_back(&n->instances, store_clock_now(&n->clock));
    sched_store_state(n->sched, store_clock_now(&n->clock), true);
    members_ready(n->members);
    runner_later(n);
}

static void on_started(struct mail *m)
{
    struct house *h = HOUSE_OF(m, start);
    struct node *n = h->node;

    job_done(h, JOB_START, HOUSE_TICK_MS);
    if (h->start.call.op.rc)
        return;
    if (asprintf(&n->claimed_by, "%s/%" PRId64, n->cfg->node_name, h->start.epoch) < 0)
        abort();
    n->epoch = h->start.epoch;
    h->due[JOB_CLOCK] = h->due[JOB_SERVICES] = h->due[JOB_INSTANCES] = h->due[JOB_BEAT] = 0;
}

static void on_clock(struct mail *m)
{
    struct house *h = HOUSE_OF(m, clock);
    struct node *n = h->node;

    job_done(h, JOB_CLOCK, h->clock.call.op.rc ? HOUSE_TICK_MS : HOUSE_CLOCK_MS);
    if (h->clock.call.op.rc)
        return;
    store_clock_measure(&n->clock, h->clock.now_us, h->clock.sent_us, h->clock.received_us);
    h->clock_known = true;
    chain_check(h);
    runner_later(n);
}

static void on_services(struct mail *m)
{
    struct house *h = HOUSE_OF(m, services);
    struct node *n = h->node;

    job_done(h, JOB_SERVICES, h->services.call.op.rc ? HOUSE_TICK_MS : HOUSE_SERVICES_MS);
    if (h->services.call.op.rc)
        return;
    if (h->again_services)
        h->due[JOB_SERVICES] = 0;
    h->again_services = false;
    sched_services(n->sched, store_clock_now(&n->clock), h->services.services, h->services.n,
                   &n->actions);
    service_table_set(&n->services, h->services.services, h->services.n);
    h->services.services = NULL;
    h->services_known = true;
    atomic_store(&n->services_known, true);
    leases_services(n->leases);
    parcels_services(n->parcels);
    chain_check(h);
    runner_later(n);
}

/* Often enough that the heartbeats of each are seen before it seems to have expired. */
static int64_t instances_interval(struct house *h)
{
    int64_t ms = instances_least_ttl(&h->node->instances) / 3;

    return ms < HOUSE_SERVICES_MS ? ms : HOUSE_SERVICES_MS;
}

static void on_instances(struct mail *m)
{
    struct house *h = HOUSE_OF(m, instances);
    int rc = h->instances.call.op.rc;

    if (!rc)
        rc = instances_set(&h->node->instances, h->instances.instances, h->instances.n);
    free(h->instances.instances);
    h->instances.instances = NULL;
    job_done(h, JOB_INSTANCES, rc ? HOUSE_TICK_MS : instances_interval(h));
    if (rc)
        return;
    if (h->again_instances)
        h->due[JOB_INSTANCES] = 0;
    h->again_instances = false;
    h->instances_known = true;
    chain_check(h);
}

static void on_expired(struct mail *m)
{
    struct house *h = HOUSE_OF(m, expired);
    bool more = !h->expired.call.op.rc && h->expired.n_seen == HOUSE_EXPIRED_ROWS;

    job_done(h, JOB_EXPIRED, more ? 0 : HOUSE_EXPIRED_MS);
}

static void on_beat(struct mail *m)
{
    struct house *h = HOUSE_OF(m, beat);
    struct node *n = h->node;
    int rc = h->beat.call.op.rc;

    job_done(h, JOB_BEAT, h->again_beat ? 0 : members_beat_interval(n->members));
    h->again_beat = false;
    if (!rc) /* which may ask for the next one: the call is the store's again */
        members_rows(n->members, h->beat_asked_at, h->beat.members, h->beat.n);
    if (rc != ERR_CONFLICT || n->stopping)
        return;
    LOG(n->log, LOG_ERROR, "node.superseded",
        "another process has started under this node's name; this one stops. "
        "Give each node a name of its own (--node-name)",
        F_Z("node", n->cfg->node_name), F_INT("epoch", n->epoch));
    n->exit_status = 3;
    (void)event_base_loopbreak(n->base);
}

/* One line for a walk over history that found something. */
static void log_walk(struct house *h)
{
    if (h->n_deleted || h->n_moved)
        LOG(h->node->log, LOG_INFO, "retention.walk", "old tasks were removed",
            F_INT("deleted", (int64_t)h->n_deleted), F_INT("moved", (int64_t)h->n_moved));
    h->n_deleted = h->n_moved = 0;
}

static void on_purged(struct mail *m)
{
    struct house *h = HOUSE_OF(m, purge);
    struct node *n = h->node;
    uint32_t n_ended = h->purge.n_deleted + h->purge.n_moved;

    if (h->purge.call.op.rc) {
        job_done(h, JOB_PURGE, HOUSE_PURGE_STEP_MS);
        return;
    }
    h->n_deleted += h->purge.n_deleted;
    h->n_moved += h->purge.n_moved;
    h->purge_after = h->purge.next_after_id;
    if (n_ended && !n->stopping) { /* at the database's own pace, to keep up with what ends */
        job_post(h, JOB_PURGE);
        return;
    }
    if (!h->purge_after)
        log_walk(h);
    job_done(h, JOB_PURGE, h->purge_after ? HOUSE_PURGE_STEP_MS : n->cfg->retention_interval_ms);
}

static void on_last_beat(struct mail *m)
{
    (void)m; /* nobody waits for it */
}

static void beat_post(struct node *n, struct call_node_beat *beat, enum member_state state,
                      void (*on_done)(struct mail *m))
{
    beat->name = str_from(n->cfg->node_name);
    beat->epoch = n->epoch;
    beat->state = state;
    beat->ttl_ms = n->cfg->ttl_ms;
    node_call(n, &beat->call, CALL_NODE_BEAT, on_done);
}

/* What submissions by SQL go by: the same as the HTTP interface. */
static void fill_rules(struct house *h)
{
    const struct config *cfg = h->node->cfg;
    struct submit_rule *r = h->rules;

    *r++ = (struct submit_rule){"max_ahead_ms", cfg->max_ahead_ms};
    *r++ = (struct submit_rule){"max_payload", (int64_t)cfg->max_payload};
    *r++ = (struct submit_rule){"max_timeout_ms", cfg->max_timeout_ms};
    for (size_t i = 0; i < cfg->n_policies; i++, r++) {
        (void)snprintf(r->name, sizeof(r->name), "policy:%s", cfg->policies[i].name);
        r->value = cfg->policies[i].max_retry;
    }
    h->start.rules = h->rules;
    h->start.n_rules = (size_t)(r - h->rules);
}

static void job_post(struct house *h, enum job job)
{
    struct node *n = h->node;
    wall_ms now = store_clock_now(&n->clock);

    h->out[job] = true;
    switch (job) {
    case JOB_START:
        h->start.name = str_from(n->cfg->node_name);
        h->start.address = str_from(n->advertise);
        h->start.version = STR(JF_VERSION);
        h->start.hash_version = OWNERSHIP_HASH_VERSION;
        fill_rules(h);
        h->start.forget_ms = n->cfg->failed_retention_ms;
        node_call(n, &h->start.call, CALL_NODE_START, on_started);
        break;
    case JOB_CLOCK:
        node_call(n, &h->clock.call, CALL_CLOCK, on_clock);
        break;
    case JOB_SERVICES:
        h->services.fold = true;
        node_call(n, &h->services.call, CALL_SERVICE_LIST, on_services);
        break;
    case JOB_INSTANCES:
        instances_reading(&n->instances);
        h->instances.expired_too = clock_mono() < h->back_until;
        node_call(n, &h->instances.call, CALL_INSTANCE_LIST, on_instances);
        break;
    case JOB_EXPIRED:
        h->expired.limit = HOUSE_EXPIRED_ROWS;
        node_call(n, &h->expired.call, CALL_INSTANCE_PURGE, on_expired);
        break;
    case JOB_BEAT:
        h->beat_asked_at = clock_mono();
        beat_post(n, &h->beat, members_state(n->members), on_beat);
        break;
    case JOB_PURGE:
        h->purge.history_before = now - n->cfg->history_retention_ms;
        h->purge.failed_before = now - n->cfg->failed_retention_ms;
        h->purge.after_id = h->purge_after;
        h->purge.limit = HOUSE_PURGE_ROWS;
        node_call(n, &h->purge.call, CALL_PURGE, on_purged);
        break;
    case JOB_N:
        abort();
    }
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct house *h = arg;
    struct node *n = h->node;
    mono_ms now = clock_mono();

    (void)fd;
    (void)what;
    if (!n->store || !n->members || !store_is_up(n->store))
        return;
    for (int job = JOB_START; job < JOB_N; job++) {
        bool wanted = job == JOB_START ? !n->epoch && members_may_start(n->members) : n->epoch != 0;

        if (wanted && !h->out[job] && h->due[job] <= now)
            job_post(h, (enum job)job);
    }
}

int house_new(struct node *n, struct house **ret)
{
    const struct timeval tick = {0, HOUSE_TICK_MS * 1000};
    struct house *h = calloc(1, sizeof(*h));

    if (!h)
        return ERR_NOMEM;
    h->node = n;
    h->timer = event_new(n->base, -1, EV_PERSIST, on_tick, h);
    if (!h->timer || event_add(h->timer, &tick)) {
        house_free(h);
        return ERR_NOMEM;
    }
    *ret = h;
    return 0;
}

void house_free(struct house *h)
{
    if (!h)
        return;
    if (h->timer)
        event_free(h->timer);
    free(h->beat.members);
    free(h->last_beat.members);
    free(h->services.services);
    free(h->instances.instances);
    free(h);
}

void house_store_up(struct house *h)
{
    h->chain = true;
    h->clock_known = false;
    store_clock_doubt(&h->node->clock);
    h->services_known = false;
    h->instances_known = false;
    h->back_until = clock_mono() + HOUSE_BACK_MS;
    h->due[JOB_EXPIRED] = h->back_until;
    for (int job = 0; job < JOB_PURGE; job++)
        h->due[job] = 0;
    on_tick(-1, 0, h);
}

void house_read_services(struct house *h)
{
    h->again_services |= h->out[JOB_SERVICES];
    h->again_instances |= h->out[JOB_INSTANCES];
    h->due[JOB_SERVICES] = h->due[JOB_INSTANCES] = 0;
    on_tick(-1, 0, h);
}

void house_beat(struct house *h)
{
    if (h->out[JOB_BEAT]) {
        h->again_beat = true;
        return;
    }
    h->due[JOB_BEAT] = 0;
    on_tick(-1, 0, h);
}

void house_leave(struct house *h)
{
    struct node *n = h->node;

    if (n->epoch && store_is_up(n->store))
        beat_post(n, &h->last_beat, MEMBER_LEFT, on_last_beat);
}

/* ---- The log line of a rescue -------------------------------------------------------------- */

struct rescue_line {
    struct call_get get; /* first */
    struct house *house;
    int32_t attempt;
    bool lost;
};

static void on_rescue_known(struct mail *m)
{
    struct rescue_line *r = (struct rescue_line *)m;
    const struct task *t = r->get.task;

    if (!r->get.call.op.rc && t)
        LOG(r->house->node->log, r->lost ? LOG_DEBUG : LOG_WARN,
            r->lost ? "rescue.lost" : "task.rescued",
            r->lost ? "the attempt was still alive or has ended otherwise"
                    : "an attempt that nobody finished was ended",
            F_Z("traceId", t->trace_id), F_STR("bizUuid", t->biz_uuid),
            F_STR("service", t->service_name), F_STR("handler", t->handler),
            F_INT("attempt", r->attempt), F_Z("status", task_status_name(t->status)));
    r->house->n_rescue_lines--;
    if (!r->house->n_rescue_lines && r->house->n_rescues_unnamed) {
        LOG(r->house->node->log, LOG_WARN, "rescue.more", "and so were these, which are not named",
            F_INT("rescues", (int64_t)r->house->n_rescues_unnamed));
        r->house->n_rescues_unnamed = 0;
    }
    task_free(r->get.task);
    free(r);
}

void house_log_rescue(struct house *h, const struct finish_item *item)
{
    struct rescue_line *r = NULL;

    /* Each costs a look-up: after a crash with thousands in flight most are only counted. */
    if (h->n_rescue_lines < HOUSE_RESCUE_LINES)
        r = calloc(1, sizeof(*r));
    if (!r) {
        h->n_rescues_unnamed += item->result != FINISH_LOST;
        return;
    }
    h->n_rescue_lines++;
    r->house = h;
    r->attempt = item->attempt;
    r->lost = item->result == FINISH_LOST;
    r->get.id = item->id;
    node_call(h->node, &r->get.call, CALL_GET, on_rescue_known);
}
