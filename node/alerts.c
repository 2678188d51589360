/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the webhook of each FAILED task, at least once: the outbox (job_alert) is written with the
 * failure and emptied only after a 2xx. At most ALERTS_AT_ONCE requests are under way; a webhook
 * that does not answer delays its own alerts and nothing else. */
#include "node/node_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/json.h"
#include "common/timefmt.h"
#include "node/dispatch/sign.h"

#define ALERTS_AT_ONCE 16
#define ALERTS_POLL_MS 2000
#define ALERTS_HEADERS 5

struct alerts {
    struct node *node;
    struct event *timer;
    struct call_alert_list list;
    bool listing;
    bool again;
    struct telling *out[ALERTS_AT_ONCE]; /* owned: requests, and the calls that end them */
    unsigned n_out;
    struct log_limit limit;
};

struct telling {
    struct dispatch_request request; /* first */
    struct call_alert_end end;
    struct alerts *alerts;
    struct task *task; /* owned */
    struct buf body;
    char headers[ALERTS_HEADERS][160];
    const char *lines[ALERTS_HEADERS];
    int32_t tries;
    unsigned slot; /* in out */
};

static void telling_free(struct telling *t)
{
    task_free(t->task);
    buf_fini(&t->body);
    free(t);
}

static void on_ended(struct mail *m)
{
    struct telling *t = (struct telling *)((char *)m - offsetof(struct telling, end));
    struct alerts *a = t->alerts;

    a->out[t->slot] = NULL;
    a->n_out--;
    if (t->end.told && !t->end.call.op.rc) /* else it stays in the outbox for a later poll */
        alerts_kick(a);
    telling_free(t);
}

static void on_told(struct dispatch_request *r)
{
    struct telling *t = (struct telling *)r;
    struct node *n = t->alerts->node;
    const struct backoff backoff = {5000, 3600000, 2.0, 0.2};
    struct rng rng = {(uint64_t)t->task->id};
    uint64_t left_out;

    t->end.told = r->answer.http_status >= 200 && r->answer.http_status < 300;
    t->end.retry_ms = backoff_delay(&backoff, t->tries + 1, &rng);
    counter_add(t->end.told ? &n->counters.alerts_told : &n->counters.alerts_failed, 1);
    if (!t->end.told && log_limit_pass(&t->alerts->limit, 1000, &left_out))
        LOG(n->log, LOG_WARN, "alert.failed", "the alert webhook did not take a FAILED task",
            F_Z("traceId", t->task->trace_id), F_STR("bizUuid", t->task->biz_uuid),
            F_INT("httpStatus", r->answer.http_status), F_STR("error", r->answer.failure),
            F_INT("retryMs", t->end.retry_ms), F_INT("leftOut", (int64_t)left_out));
    node_call(n, &t->end.call, CALL_ALERT_END, on_ended);
}

static int telling_sign(struct telling *t, wall_ms now, size_t *n_headers)
{
    const struct config *cfg = t->alerts->node->cfg;
    char signature[SIGN_TEXT_MAX];
    char id[64];
    int rc;

    (void)snprintf(id, sizeof(id), "alert-%s-%d", t->task->trace_id, t->end.attempt);
    (void)snprintf(t->headers[1], sizeof(t->headers[1]), "webhook-id: %s", id);
    *n_headers = 2;
    if (!cfg->alert_secret)
        return 0;
    rc = sign_webhook(str_from(cfg->alert_secret), str_from(id), now / 1000, buf_str(&t->body),
                      signature);
    if (rc)
        return rc;
    (void)snprintf(t->headers[2], sizeof(t->headers[2]), "webhook-timestamp: %lld",
                   (long long)(now / 1000));
    (void)snprintf(t->headers[3], sizeof(t->headers[3]), "webhook-signature: %s", signature);
    *n_headers = 4;
    return 0;
}

static int telling_start(struct telling *t, struct err *err)
{
    struct node *n = t->alerts->node;
    wall_ms now = store_clock_now(&n->clock);
    char stamp[TIME_TEXT_LEN + 1];
    size_t n_headers = 0;

    time_format(now, stamp);
    buf_addf(&t->body, "{\"type\":\"task.failed\",\"timestamp\":\"%s\",\"node\":", stamp);
    json_put_stringz(&t->body, n->cfg->node_name);
    buf_addz(&t->body, ",\"data\":");
    task_put_record(&t->body, t->task);
    buf_addz(&t->body, "}}");
    if (!buf_ok(&t->body))
        return err_set(err, ERR_NOMEM, "no memory for the alert");
    (void)snprintf(t->headers[0], sizeof(t->headers[0]), "Content-Type: application/json");
    int rc = telling_sign(t, now, &n_headers);
    if (rc)
        return err_set(err, rc, "the alert could not be signed");
    for (size_t i = 0; i < n_headers; i++)
        t->lines[i] = t->headers[i];
    t->request.url = n->cfg->alert_url;
    t->request.headers = t->lines;
    t->request.n_headers = n_headers;
    t->request.body = buf_str(&t->body);
    t->request.timeout_ms = n->cfg->alert_timeout_ms;
    t->request.send_by = INT64_MAX;
    t->request.on_done = on_told;
    return dispatch_start(n->dispatch, &t->request, err);
}

static void tell(struct alerts *a, struct alert *alert)
{
    struct telling *t = calloc(1, sizeof(*t));
    struct err err = {0};

    if (!t) {
        task_free(alert->task);
        return; /* its lease runs out, then it is told */
    }
    t->alerts = a;
    t->task = alert->task;
    t->tries = alert->tries;
    t->end.task_id = alert->task_id;
    t->end.attempt = alert->attempt;
    while (a->out[t->slot])
        t->slot++; /* one is free: the list asked for no more */
    a->out[t->slot] = t;
    a->n_out++;
    if (telling_start(t, &err)) {
        t->request.answer = (struct answer){.failure = str_from(err.text), .sent = true};
        on_told(&t->request);
    }
}

static void on_listed(struct mail *m)
{
    struct alerts *a = (struct alerts *)((char *)m - offsetof(struct alerts, list));

    a->listing = false;
    for (size_t i = 0; !a->list.call.op.rc && i < a->list.n; i++)
        tell(a, &a->list.alerts[i]);
    free(a->list.alerts);
    a->list.alerts = NULL;
    if (a->again)
        alerts_kick(a);
}

void alerts_kick(struct alerts *a)
{
    if (!a || a->node->stopping || !store_is_up(a->node->store))
        return;
    a->again = a->listing;
    if (a->listing || a->n_out >= ALERTS_AT_ONCE)
        return;
    a->listing = true;
    a->list.limit = ALERTS_AT_ONCE - a->n_out;
    a->list.lease_ms = a->node->cfg->alert_timeout_ms * 2;
    a->list.n = 0;
    node_call(a->node, &a->list.call, CALL_ALERT_LIST, on_listed);
}

static void on_poll(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    alerts_kick(arg);
}

int alerts_new(struct node *n, struct alerts **ret)
{
    const struct timeval poll = {ALERTS_POLL_MS / 1000, 0};
    struct alerts *a = calloc(1, sizeof(*a));

    if (!a)
        return ERR_NOMEM;
    a->node = n;
    a->timer = event_new(n->base, -1, EV_PERSIST, on_poll, a);
    if (!a->timer || event_add(a->timer, &poll)) {
        alerts_free(a);
        return ERR_NOMEM;
    }
    *ret = a;
    return 0;
}

void alerts_free(struct alerts *a)
{
    if (!a)
        return;
    if (a->timer)
        event_free(a->timer);
    for (unsigned i = 0; i < ALERTS_AT_ONCE; i++) {
        if (a->out[i])
            telling_free(a->out[i]);
    }
    free(a);
}
