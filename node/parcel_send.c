/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "node/parcel_internal.h"

#define ANSWER_PER_TASK 1024
#define ANSWER_MAX ((size_t)1 << 20)
#define ALIEN_LOG_MS 10000
#define ID_MAX 64

/* Ends the attempts, each by what the answer means for it. */
static void parcel_end(struct parcel *q, const struct answer *a, int64_t elapsed_us)
{
    struct parcels *p = q->parcels;
    wall_ms now = store_clock_now(&p->node->clock);
    const char *trace_ids[SERVICE_BATCH_MAX];
    struct verdict_limits limits;
    uint64_t suppressed;

    for (size_t i = 0; i < q->n; i++)
        trace_ids[i] = q->flights[i]->task->trace_id;
    deliver_limits(p->node, &limits);
    verdict_batch_read(&p->verdicts, a, trace_ids, q->n, &limits, now);
    if (p->verdicts.n_alien && log_limit_pass(&p->alien, ALIEN_LOG_MS, &suppressed))
        LOG(p->node->log, LOG_WARN, "batch.alien_results",
            "an answer has results for tasks that were not in its request; they are passed over",
            F_STR("service", q->line->name), F_INT("results", p->verdicts.n_alien),
            F_INT("suppressed", (int64_t)suppressed));
    for (size_t i = 0; i < q->n; i++)
        deliver_end(q->flights[i], verdict_batch_get(&p->verdicts, i), elapsed_us, now);
}

static void on_done(struct dispatch_request *r)
{
    struct parcel *q = (struct parcel *)r;
    struct parcels *p = q->parcels;
    struct line *l = q->line;
    struct err err;

    if (outgoing_goes_on(&q->out, &err))
        return;
    line_learn(p, l, q, r->answer.failure.p ? 0 : r->answer.http_status);
    parcel_end(q, &r->answer, r->elapsed_us);
    parcel_list_remove(&p->out, q);
    parcel_free(q);
    assert(l->n_out > 0);
    l->n_out--;
    line_pump(p, l);
}

static void put_body(struct parcel *q, wall_ms now)
{
    struct buf *b = &q->out.body;
    char traceparent[DELIVER_TRACEPARENT_LEN + 1];
    struct envelopes e;

    envelopes_init(&e, q->flights[0]->task, now, now + q->timeout_ms);
    (void)buf_room(b, q->bytes); /* about what it takes */
    buf_adds(b, STR("{\"tasks\":["));
    for (size_t i = 0; i < q->n; i++) {
        const struct task *t = q->flights[i]->task;

        if (i > 0)
            buf_addc(b, ',');
        deliver_traceparent(t, traceparent);
        envelopes_put(&e, b, t, (struct str){traceparent, DELIVER_TRACEPARENT_LEN});
    }
    buf_adds(b, STR("]}"));
    envelopes_fini(&e);
}

static int put_headers(struct parcel *q, const struct service *service, wall_ms now)
{
    const struct task *first = q->flights[0]->task;
    char id[ID_MAX];

    /* No second request has the first task in this attempt. */
    (void)snprintf(id, sizeof(id), "batch-%s-%d", first->trace_id, (int)first->attempt);
    outgoing_common_headers(&q->out);
    outgoing_header_int(&q->out, STR("X-JobFlow-Batch: "), (int64_t)q->n);
    outgoing_header(&q->out, STR("webhook-id: "), str_from(id));
    return outgoing_sign(&q->out, service, id, now);
}

static int parcel_build(struct parcel *q, const struct service *service, struct err *err)
{
    struct node *n = q->parcels->node;
    wall_ms now = store_clock_now(&n->clock);
    size_t max_answer = q->n * ANSWER_PER_TASK < ANSWER_MAX ? q->n * ANSWER_PER_TASK : ANSWER_MAX;
    int rc;

    q->out.node = n;
    q->out.service_name = q->line->name;
    q->out.handler = q->flights[0]->task->handler;
    q->out.ends_at = clock_mono() + q->timeout_ms;
    q->out.request.on_done = on_done;
    q->out.request.max_answer = max_answer > n->cfg->max_answer ? max_answer : n->cfg->max_answer;
    q->out.request.send_by = INT64_MAX;
    for (size_t i = 0; i < q->n; i++) {
        if (q->flights[i]->send_by < q->out.request.send_by)
            q->out.request.send_by = q->flights[i]->send_by;
        deliver_begin(q->flights[i], now);
    }
    rc = outgoing_address(&q->out, service, err);
    if (rc)
        return rc;
    put_body(q, now);
    rc = put_headers(q, service, now);
    if (rc)
        return err_set(err, rc, "the request could not be signed");
    return outgoing_send(&q->out, err);
}

/* Gives back what would leave too late, and keeps the rest in its order. */
static void drop_late(struct parcel *q)
{
    static const struct answer late = {.failure = STR("too late to be sent within its claim")};
    struct node *n = q->parcels->node;
    mono_ms now = clock_mono();
    struct verdict_limits limits;
    struct verdict v;
    size_t kept = 0;

    deliver_limits(n, &limits);
    for (size_t i = 0; i < q->n; i++) {
        struct flight *f = q->flights[i];

        if (now < f->send_by) {
            q->flights[kept++] = f;
            continue;
        }
        verdict_read(&late, &limits, store_clock_now(&n->clock), &v);
        deliver_end(f, &v, 0, store_clock_now(&n->clock));
    }
    q->n = kept;
}

void parcel_send(struct parcel *q, const struct service *service)
{
    struct err err = {0};

    drop_late(q);
    if (!q->n) {
        parcel_free(q);
        return;
    }
    if (parcel_build(q, service, &err)) {
        const struct answer a = {.failure = str_from(err.text), .sent = true};

        parcel_end(q, &a, 0);
        parcel_free(q);
        return;
    }
    parcel_list_add(&q->parcels->out, q);
    q->line->n_out++;
}
