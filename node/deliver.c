/* SPDX-License-Identifier: Apache-2.0 */
/* One attempt: from the claimed row to the request, and from its answer to the verdict.
 *
 * The flight stays in the node's table until the attempt's end is stored, so that every log line
 * about it can name the task. */
#include "node/node_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/timefmt.h"
#include "node/outgoing.h"

#define IDLE_MAX 512       /* deliveries that are kept for the next requests */
#define IDLE_BODY_MAX 4096 /* bytes; those with larger ones are not */

struct delivery {
    struct outgoing out; /* first: on_done gets it */
    struct flight *flight;
    struct delivery *next; /* while idle */
};

void delivery_free(struct delivery *d)
{
    if (!d)
        return;
    outgoing_fini(&d->out);
    free(d);
}

void deliveries_fini(struct deliveries *all)
{
    struct delivery *d;

    while ((d = all->idle)) {
        all->idle = d->next;
        delivery_free(d);
    }
    all->n_idle = 0;
}

static struct delivery *delivery_take(struct deliveries *all)
{
    struct delivery *d = all->idle;

    if (!d)
        return calloc(1, sizeof(*d));
    assert(all->n_idle > 0);
    all->idle = d->next;
    all->n_idle--;
    return d;
}

/* The flight goes on without its request. */
static void delivery_put(struct deliveries *all, struct delivery *d)
{
    d->flight->delivery = NULL;
    if (all->n_idle == IDLE_MAX || d->out.body.cap > IDLE_BODY_MAX) {
        delivery_free(d);
        return;
    }
    outgoing_clear(&d->out);
    d->flight = NULL;
    d->next = all->idle;
    all->idle = d;
    all->n_idle++;
}

void deliver_limits(const struct node *n, struct verdict_limits *ret)
{
    *ret = (struct verdict_limits){n->cfg->retry_after_cap_ms, n->cfg->snooze_cap_ms};
}

void deliver_begin(struct flight *f, wall_ms now)
{
    struct node *n = f->node;
    const struct task *t = f->task;

    f->lateness_ms = now - t->next_attempt_time;
    if (t->retry_count == 0 && t->snooze_count == 0)
        counters_lateness(&n->counters, f->lateness_ms);
    LOG(n->log, LOG_DEBUG, "attempt.started", NULL, F_Z("traceId", t->trace_id),
        F_STR("bizUuid", t->biz_uuid), F_INT("attempt", t->attempt), F_STR("payload", t->payload));
}

void deliver_end(struct flight *f, const struct verdict *v, int64_t elapsed_us, wall_ms now)
{
    struct node *n = f->node;

    counter_add(&n->counters.attempts[v->kind], 1);
    LOG(n->log, LOG_DEBUG, "attempt.answered", NULL, F_Z("traceId", f->task->trace_id),
        F_STR("bizUuid", f->task->biz_uuid), F_INT("attempt", f->task->attempt),
        F_INT("status", v->http_status), F_INT("elapsedUs", elapsed_us));
    sched_answered(n->sched, now, f->task, v, &n->actions);
    runner_later(n);
}

/* The span is the attempt: the task's trace goes on in the handler. */
void deliver_traceparent(const struct task *t, char dst[DELIVER_TRACEPARENT_LEN + 1])
{
    static const char digits[] = "0123456789abcdef";
    uint64_t span = hash_bytes(str_from(t->trace_id), (uint64_t)t->attempt) | 1;

    memcpy(dst, "00-", 3);
    memcpy(dst + 3, t->trace_id, TRACE_ID_LEN);
    dst[3 + TRACE_ID_LEN] = '-';
    for (size_t i = 0; i < 16; i++)
        dst[4 + TRACE_ID_LEN + i] = digits[span >> (60 - 4 * i) & 15];
    memcpy(dst + 20 + TRACE_ID_LEN, "-01", 4);
}

static void put_headers(struct delivery *d)
{
    const struct task *t = d->flight->task;
    struct str id = {t->trace_id, TRACE_ID_LEN};
    char parent[DELIVER_TRACEPARENT_LEN + 1];

    outgoing_common_headers(&d->out);
    deliver_traceparent(t, parent);
    outgoing_header(&d->out, STR("traceparent: "), (struct str){parent, DELIVER_TRACEPARENT_LEN});
    outgoing_header(&d->out, STR("X-Trace-Id: "), id);
    outgoing_header_int(&d->out, STR("X-JobFlow-Attempt: "), t->attempt);
    outgoing_header(&d->out, STR("Idempotency-Key: "), id);
    outgoing_header(&d->out, STR("webhook-id: "), id);
}

static void deliver_answered(struct flight *f, const struct answer *a, int64_t elapsed_us)
{
    wall_ms now = store_clock_now(&f->node->clock);
    struct verdict_limits limits;
    struct verdict v;

    deliver_limits(f->node, &limits);
    verdict_read(a, &limits, now, &v);
    deliver_end(f, &v, elapsed_us, now);
}

static void on_done(struct dispatch_request *r)
{
    struct delivery *d = (struct delivery *)r;
    struct flight *f = d->flight;
    struct err err;

    if (outgoing_goes_on(&d->out, &err))
        return;
    deliver_answered(f, &r->answer, r->elapsed_us);
    delivery_put(&f->node->deliveries, d);
}

static int delivery_build(struct delivery *d, const struct service *service, int64_t timeout_ms,
                          mono_ms send_by, wall_ms now, struct err *err)
{
    struct flight *f = d->flight;
    int rc;

    d->out.node = f->node;
    d->out.service_name = f->task->service_name;
    d->out.handler = f->task->handler;
    d->out.ends_at = clock_mono() + timeout_ms;
    d->out.request.send_by = send_by;
    d->out.request.on_done = on_done;
    rc = outgoing_address(&d->out, service, err);
    if (rc)
        return rc;
    task_put_envelope(&d->out.body, f->task, now, now + timeout_ms);
    put_headers(d);
    rc = outgoing_sign(&d->out, service, f->task->trace_id, now);
    if (rc)
        return err_set(err, rc, "the request could not be signed");
    return outgoing_send(&d->out, err);
}

static void deliver_alone(struct flight *f, const struct service *service, int64_t timeout_ms,
                          mono_ms send_by)
{
    struct delivery *d = delivery_take(&f->node->deliveries);
    wall_ms now = store_clock_now(&f->node->clock);
    struct err err;

    if (!d)
        abort(); /* as below */
    f->delivery = d;
    d->flight = f;
    deliver_begin(f, now);
    if (delivery_build(d, service, timeout_ms, send_by, now, &err)) {
        struct answer a = {.failure = str_from(err.text), .sent = true};

        delivery_put(&f->node->deliveries, d);
        deliver_answered(f, &a, 0);
    }
}

void deliver_start(struct node *n, struct task *t, const struct service *service,
                   int64_t timeout_ms, mono_ms send_by)
{
    struct flight *f = calloc(1, sizeof(*f));

    if (!f || map64_put(&n->flights, (uint64_t)t->id, f))
        abort(); /* a claimed task must not be forgotten: safer dead, then rescued */
    f->node = n;
    f->task = t;
    f->send_by = send_by;
    if (service->delivery == DELIVERY_BATCH)
        parcels_add(n->parcels, f, service, timeout_ms);
    else
        deliver_alone(f, service, timeout_ms, send_by);
}

/* One line per attempt, once its end is stored. */
void deliver_log_end(struct node *n, const struct flight *f, const struct finish_item *item)
{
    static const struct {
        const char *event;
        enum log_level level;
    } lines[] = {
        [FINISH_SUCCESS] = {"task.succeeded", LOG_INFO}, [FINISH_SENT] = {"task.sent", LOG_INFO},
        [FINISH_RETRY] = {"task.retrying", LOG_WARN},    [FINISH_FAIL] = {"task.failed", LOG_ERROR},
        [FINISH_PUT_BACK] = {"task.put_back", LOG_INFO},
    };
    bool lost = item->result == FINISH_LOST;
    const struct task *t = f ? f->task : NULL;
    char next[TIME_TEXT_LEN + 1] = "";

    if (!lost) {
        if (item->kind == FINISH_SUCCESS)
            counter_add(&n->counters.finished[TASK_SUCCESS], 1);
        else if (item->kind == FINISH_FAIL)
            counter_add(&n->counters.finished[TASK_FAILED], 1);
        else if (item->kind == FINISH_RETRY)
            counter_add(&n->counters.retries, 1);
        if (!t && item->kind != FINISH_PUT_BACK)
            counter_add(&n->counters.rescued, 1);
        if (item->kind == FINISH_FAIL)
            alerts_kick(n->alerts);
    }
    if (!t) { /* a ghost's end, or a claim that was given back before it was sent */
        if (item->kind != FINISH_PUT_BACK)
            house_log_rescue(n->house, item);
        return;
    }
    if (item->kind == FINISH_RETRY || item->kind == FINISH_PUT_BACK)
        time_format(item->next_attempt_time, next);
    LOG(n->log, lost ? LOG_WARN : lines[item->kind].level,
        lost ? "attempt.lost" : lines[item->kind].event,
        lost ? "another node or a person ended this attempt first; nothing was written" : NULL,
        F_Z("traceId", t->trace_id), F_STR("bizUuid", t->biz_uuid),
        F_STR("service", t->service_name), F_STR("handler", t->handler),
        F_INT("attempt", item->attempt), F_INT("latenessMs", f->lateness_ms),
        F_INT("httpStatus", item->http_status), F_Z("nextAttemptTime", *next ? next : NULL),
        F_STR("error", item->error.len ? item->error : (struct str){0}));
}
