/* SPDX-License-Identifier: Apache-2.0 */
/* The node's housekeeping on the store.
 *
 * When the database comes up, a chain runs: boot epoch (once), the store's clock, the services;
 * then the scheduler may work. After that each job comes round by itself: the clock, the heartbeat
 * row, the services, retention. A job has at most one operation out; one that failed comes round
 * again. */
#include "node/node_internal.h"

#include <inttypes.h>
#include <stdlib.h>

#define HOUSE_TICK_MS 250
#define HOUSE_CLOCK_MS 5000
#define HOUSE_SERVICES_MS 5000
#define HOUSE_MAX_RTT_MS 250    /* a slower answer says too little about the clock */
#define HOUSE_PURGE_ROWS 2000   /* looked at in one step of retention */
#define HOUSE_RESCUE_LINES 16   /* look-ups for log lines that are out at a time */
#define HOUSE_PURGE_STEP_MS 500 /* between steps that found nothing to delete */

enum job { JOB_START, JOB_CLOCK, JOB_SERVICES, JOB_BEAT, JOB_PURGE, JOB_N };

struct house {
    struct node *node;
    struct event *timer;
    mono_ms due[JOB_N];
    bool out[JOB_N];
    bool again_services;
    bool chain; /* the scheduler waits for clock and services */
    bool clock_known;
    bool services_known;
    struct call_node_start start;
    struct call_clock clock;
    struct call_service_list services;
    struct call_node_beat beat;
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

    if (!h->chain || !n->epoch || !h->clock_known || !h->services_known)
        return;
    h->chain = false;
    pthread_mutex_lock(&n->status.lock);
    bool first = !n->status.started;
    n->status.started = true;
    pthread_mutex_unlock(&n->status.lock);
    if (first)
        LOG(n->log, LOG_INFO, "node.active", "tasks are being scheduled",
            F_Z("node", n->cfg->node_name), F_INT("epoch", n->epoch));
    sched_store_state(n->sched, store_clock_now(&n->clock), true);
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
    h->due[JOB_CLOCK] = h->due[JOB_SERVICES] = 0;
}

static void on_clock(struct mail *m)
{
    struct house *h = HOUSE_OF(m, clock);
    struct node *n = h->node;

    job_done(h, JOB_CLOCK, h->clock.call.op.rc ? HOUSE_TICK_MS : HOUSE_CLOCK_MS);
    if (h->clock.call.op.rc)
        return;
    store_clock_measure(&n->clock, h->clock.now, h->clock.sent, h->clock.received,
                        HOUSE_MAX_RTT_MS);
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
    chain_check(h);
    runner_later(n);
}

static void on_beat(struct mail *m)
{
    struct house *h = HOUSE_OF(m, beat);
    struct node *n = h->node;

    job_done(h, JOB_BEAT, n->cfg->ttl_ms / 3);
    if (h->beat.call.op.rc != ERR_CONFLICT || n->stopping)
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

static void job_post(struct house *h, enum job job)
{
    struct node *n = h->node;
    wall_ms now = store_clock_now(&n->clock);

    h->out[job] = true;
    switch (job) {
    case JOB_START:
        h->start.name = str_from(n->cfg->node_name);
        h->start.address = str_from(api_address(n->api));
        h->start.version = STR(JF_VERSION);
        node_call(n, &h->start.call, CALL_NODE_START, on_started);
        break;
    case JOB_CLOCK:
        node_call(n, &h->clock.call, CALL_CLOCK, on_clock);
        break;
    case JOB_SERVICES:
        node_call(n, &h->services.call, CALL_SERVICE_LIST, on_services);
        break;
    case JOB_BEAT:
        h->beat.name = str_from(n->cfg->node_name);
        h->beat.epoch = n->epoch;
        h->beat.state = n->stopping ? STR("draining") : STR("active");
        node_call(n, &h->beat.call, CALL_NODE_BEAT, on_beat);
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
    if (!n->store || !store_is_up(n->store))
        return;
    for (int job = JOB_START; job < JOB_N; job++) {
        bool wanted = job == JOB_START ? !n->epoch : n->epoch != 0;

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
    free(h->services.services);
    free(h);
}

void house_store_up(struct house *h)
{
    h->chain = true;
    h->clock_known = false;
    h->services_known = false;
    for (int job = 0; job < JOB_PURGE; job++)
        h->due[job] = 0;
    on_tick(-1, 0, h);
}

void house_read_services(struct house *h)
{
    if (h->out[JOB_SERVICES]) {
        h->again_services = true;
        return;
    }
    h->due[JOB_SERVICES] = 0;
    on_tick(-1, 0, h);
}

void house_leave(struct house *h)
{
    struct node *n = h->node;

    if (!n->epoch || h->out[JOB_BEAT] || !store_is_up(n->store))
        return;
    h->out[JOB_BEAT] = true;
    h->beat.name = str_from(n->cfg->node_name);
    h->beat.epoch = n->epoch;
    h->beat.state = STR("left");
    node_call(n, &h->beat.call, CALL_NODE_BEAT, on_beat);
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
        h->n_rescues_unnamed++;
        return;
    }
    h->n_rescue_lines++;
    r->house = h;
    r->attempt = item->attempt;
    r->lost = item->result == FINISH_LOST;
    r->get.id = item->id;
    node_call(h->node, &r->get.call, CALL_GET, on_rescue_known);
}
