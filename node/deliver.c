/* SPDX-License-Identifier: Apache-2.0 */
/* One attempt: from the claimed row to the request, and from its answer to the verdict.
 *
 * A service with live instances is called at one of them. When none of the request has left, since
 * the instance could not be connected to, the next one is tried within the same attempt, in what is
 * left of its time.
 *
 * The flight stays in the node's table until the attempt's end is stored, so that every log line
 * about it can name the task. */
#include "node/node_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/timefmt.h"
#include "node/dispatch/sign.h"

#define DELIVERY_HEADERS 9
#define DELIVERY_TRIES_MAX 8 /* instances that one attempt tries to connect to */

struct delivery {
    struct dispatch_request request; /* first: on_done gets it */
    struct flight *flight;
    mono_ms ends_at;                    /* the attempt's time-out */
    uint64_t tried[DELIVERY_TRIES_MAX]; /* ids of instances, the present one last */
    size_t n_tried;                     /* 0 = at the service's own address */
    struct buf body;
    struct buf url;  /* NUL-terminated */
    struct buf text; /* headers, NUL-terminated, one behind the other */
    const char *headers[DELIVERY_HEADERS];
    size_t offsets[DELIVERY_HEADERS];
};

void delivery_free(struct delivery *d)
{
    if (!d)
        return;
    buf_fini(&d->body);
    buf_fini(&d->url);
    buf_fini(&d->text);
    free(d);
}

/* Puts the template's {service} and {namespace} in place. */
static void put_template(struct buf *b, const struct config *cfg, struct str service)
{
    const char *p = cfg->url_template;

    while (*p) {
        if (!strncmp(p, "{service}", 9)) {
            buf_adds(b, service);
            p += 9;
        } else if (!strncmp(p, "{namespace}", 11)) {
            buf_addz(b, cfg->url_namespace);
            p += 11;
        } else {
            buf_addc(b, *p++);
        }
    }
}

/* Ends a URL of which the base stands. */
static void put_handler(struct delivery *d)
{
    if (d->url.len && d->url.data[d->url.len - 1] != '/')
        buf_addc(&d->url, '/');
    buf_adds(&d->url, d->flight->task->handler);
    buf_addc(&d->url, '\0');
}

/* Makes the URL of the next instance in turn that was not tried. False when there is none. */
static bool put_instance_url(struct delivery *d)
{
    struct node *n = d->flight->node;
    uint64_t id;

    if (d->n_tried == DELIVERY_TRIES_MAX)
        return false;
    buf_clear(&d->url);
    id = instances_pick(&n->instances, d->flight->task->service_name, store_clock_now(&n->clock),
                        d->tried, d->n_tried, &d->url);
    if (!id)
        return false;
    d->tried[d->n_tried++] = id;
    put_handler(d);
    return true;
}

static int put_url(struct delivery *d, const struct service *service, struct err *err)
{
    const struct node *n = d->flight->node;
    const struct task *t = d->flight->task;

    if (put_instance_url(d))
        return 0;
    if (service->base_url.p)
        buf_adds(&d->url, service->base_url);
    else if (n->cfg->url_template)
        put_template(&d->url, n->cfg, t->service_name);
    else
        return err_set(err, ERR_NOT_FOUND,
                       "no address for service " STR_FMT ": PUT /api/services/" STR_FMT
                       " with its baseUrl, or let an instance register itself",
                       STR_ARG(t->service_name), STR_ARG(t->service_name));
    put_handler(d);
    return 0;
}

static void header_begin(struct delivery *d, const char *name)
{
    assert(d->request.n_headers < DELIVERY_HEADERS);
    d->offsets[d->request.n_headers++] = d->text.len;
    buf_addz(&d->text, name);
}

static void put_header(struct delivery *d, const char *name, const char *value)
{
    header_begin(d, name);
    buf_addz(&d->text, value);
    buf_addc(&d->text, '\0');
}

static int put_signature(struct delivery *d, struct str secret, wall_ms now)
{
    char signature[SIGN_TEXT_MAX];
    char stamp[24];
    int rc = sign_webhook(secret, str_from(d->flight->task->trace_id), now / 1000,
                          buf_str(&d->body), signature);

    if (rc)
        return rc;
    (void)snprintf(stamp, sizeof(stamp), "%lld", (long long)(now / 1000));
    put_header(d, "webhook-timestamp: ", stamp);
    put_header(d, "webhook-signature: ", signature);
    return 0;
}

static int put_headers(struct delivery *d, const struct service *service, wall_ms now)
{
    const struct task *t = d->flight->task;
    char text[64];

    put_header(d, "Content-Type: ", "application/json");
    put_header(d, "User-Agent: ", "JobFlow/" JF_VERSION);
    /* The span is the attempt: the task's trace goes on in the handler. */
    (void)snprintf(text, sizeof(text), "00-%s-%016llx-01", t->trace_id,
                   (unsigned long long)hash_bytes(str_from(t->trace_id), (uint64_t)t->attempt) | 1);
    put_header(d, "traceparent: ", text);
    put_header(d, "X-Trace-Id: ", t->trace_id);
    (void)snprintf(text, sizeof(text), "%d", t->attempt);
    put_header(d, "X-JobFlow-Attempt: ", text);
    put_header(d, "Idempotency-Key: ", t->trace_id);
    put_header(d, "webhook-id: ", t->trace_id);
    return service->secret.p ? put_signature(d, service->secret, now) : 0;
}

static void deliver_answered(struct flight *f, const struct answer *a, int64_t elapsed_us)
{
    struct node *n = f->node;
    wall_ms now = store_clock_now(&n->clock);
    struct verdict_limits limits = {n->cfg->retry_after_cap_ms, n->cfg->snooze_cap_ms};
    struct verdict v;

    verdict_read(a, &limits, now, &v);
    counter_add(&n->counters.attempts[v.kind], 1);
    LOG(n->log, LOG_DEBUG, "attempt.answered", NULL, F_Z("traceId", f->task->trace_id),
        F_STR("bizUuid", f->task->biz_uuid), F_INT("attempt", f->task->attempt),
        F_INT("status", v.http_status), F_INT("elapsedUs", elapsed_us));
    sched_answered(n->sched, now, f->task, &v, &n->actions);
    runner_later(n);
}

static int delivery_send(struct delivery *d, struct err *err)
{
    if (!buf_ok(&d->url))
        return err_set(err, ERR_NOMEM, "no memory for the request");
    d->request.url = d->url.data;
    d->request.timeout_ms = d->ends_at - clock_mono();
    return dispatch_start(d->flight->node->dispatch, &d->request, err);
}

/* Takes note of whether the instance could be connected to. */
static void note_instance(struct delivery *d)
{
    struct node *n = d->flight->node;
    const struct task *t = d->flight->task;
    wall_ms now = store_clock_now(&n->clock);
    bool failed = d->request.is_unsent;

    if (!d->request.answer.sent) /* the fence says nothing about it */
        return;
    if (instances_set_aside(&n->instances, t->service_name, d->tried[d->n_tried - 1], now,
                            failed ? now + n->cfg->instance_set_aside_ms : WALL_NONE) &&
        failed)
        LOG(n->log, LOG_WARN, "instance.set_aside", "it could not be connected to",
            F_STR("service", t->service_name), F_Z("url", d->request.url),
            F_INT("forMs", n->cfg->instance_set_aside_ms),
            F_STR("error", d->request.answer.failure));
}

/* After a request that did not leave: sends it to the next instance, or says in `err` how the
 * attempt has failed, and returns false. */
static bool try_next(struct delivery *d, struct err *err)
{
    mono_ms now = clock_mono();

    if (now < d->request.send_by && now < d->ends_at && put_instance_url(d))
        return !delivery_send(d, err);
    err_set(err, ERR_UNAVAILABLE,
            "no instance could be connected to, %zu tried; the last: " STR_FMT, d->n_tried,
            STR_ARG(d->request.answer.failure));
    return false;
}

static void on_done(struct dispatch_request *r)
{
    struct delivery *d = (struct delivery *)r;
    struct flight *f = d->flight;
    struct err err;

    if (d->n_tried)
        note_instance(d);
    /* A try that came too late is given back, but not after another one failed: the attempts of a
     * task of which no instance is ever connected to in time would not be counted. */
    if (d->n_tried && (r->is_unsent || (!r->answer.sent && d->n_tried > 1))) {
        if (try_next(d, &err))
            return;
        r->answer = (struct answer){.failure = str_from(err.text), .sent = true};
    }
    deliver_answered(f, &r->answer, r->elapsed_us);
    f->delivery = NULL;
    delivery_free(d);
}

static int delivery_build(struct delivery *d, const struct service *service, int64_t timeout_ms,
                          mono_ms send_by, struct err *err)
{
    wall_ms now = store_clock_now(&d->flight->node->clock);
    int rc = put_url(d, service, err);

    d->ends_at = clock_mono() + timeout_ms;
    if (rc)
        return rc;
    task_put_envelope(&d->body, d->flight->task, now, now + timeout_ms);
    rc = put_headers(d, service, now);
    if (rc)
        return err_set(err, rc, "the request could not be signed");
    if (!buf_ok(&d->body) || !buf_ok(&d->text))
        return err_set(err, ERR_NOMEM, "no memory for the request");
    for (size_t i = 0; i < d->request.n_headers; i++)
        d->headers[i] = d->text.data + d->offsets[i];
    d->request.headers = d->headers;
    d->request.body = buf_str(&d->body);
    d->request.send_by = send_by;
    d->request.on_done = on_done;
    return delivery_send(d, err);
}

void deliver_start(struct node *n, struct task *t, const struct service *service,
                   int64_t timeout_ms, mono_ms send_by)
{
    struct flight *f = calloc(1, sizeof(*f));
    struct delivery *d = calloc(1, sizeof(*d));
    struct err err = {0};

    if (!f || !d || map64_put(&n->flights, (uint64_t)t->id, f))
        abort(); /* a claimed task must not be forgotten: safer dead, then rescued */
    f->node = n;
    f->task = t;
    f->delivery = d;
    d->flight = f;
    f->lateness_ms = store_clock_now(&n->clock) - t->next_attempt_time;
    if (t->retry_count == 0 && t->snooze_count == 0)
        counters_lateness(&n->counters, f->lateness_ms);
    LOG(n->log, LOG_DEBUG, "attempt.started", NULL, F_Z("traceId", t->trace_id),
        F_STR("bizUuid", t->biz_uuid), F_INT("attempt", t->attempt), F_STR("payload", t->payload));
    if (delivery_build(d, service, timeout_ms, send_by, &err)) {
        struct answer a = {.failure = str_from(err.text), .sent = true};

        f->delivery = NULL;
        delivery_free(d);
        deliver_answered(f, &a, 0);
    }
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
