/* SPDX-License-Identifier: Apache-2.0 */
/* How services answer a request with many tasks: with a result for each, in any order, some left
 * out, said twice or about other tasks; or with one answer for all. Some refuse all for what one
 * task has, or for the size of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/handlers_internal.h"
#include "tests/sim/oracle.h"

bool handlers_is_poison(const struct sim *s, int64_t id)
{
    return (uint64_t)id * 104729 % 100 < s->sc->poison;
}

static void open_part(struct buf *b, const char *trace_id)
{
    if (b->data[b->len - 1] != '[')
        buf_addc(b, ',');
    buf_addf(b, "{\"traceId\":\"%s\"", trace_id);
}

static void put_part(struct buf *b, const char *trace_id, const char *rest)
{
    open_part(b, trace_id);
    buf_addz(b, rest);
    buf_addc(b, '}');
}

/* A result for the task, unless there is none. */
static void put_result(struct sim *s, struct buf *b, const struct task *t)
{
    bool coin = sim_between(s, 0, 1);

    switch (handlers_draw(s, t)) {
    case REACT_OK:
    case REACT_SLOW:
        oracle_worked(s, t->id, t->attempt);
        put_part(b, t->trace_id, coin ? ",\"success\":true" : "");
        if (sim_chance(s, 500)) /* once more, in other words */
            put_part(b, t->trace_id, coin ? ", \"success\": true" : "");
        break;
    case REACT_500:
        put_part(b, t->trace_id, coin ? ",\"status\":500" : ",\"success\":false");
        break;
    case REACT_BUSY:
        open_part(b, t->trace_id);
        buf_addf(b, ",\"status\":%d,\"retryAfter\":%d}", coin ? 429 : 503,
                 (int)sim_between(s, 0, 10));
        break;
    case REACT_FINAL:
        put_part(b, t->trace_id,
                 coin ? ",\"status\":422" : ",\"success\":false,\"retryable\":false");
        break;
    case REACT_SNOOZE:
        put_part(b, t->trace_id, ",\"snooze\":\"3s\"");
        break;
    case REACT_ASYNC:
        handlers_async(s, t);
        put_part(b, t->trace_id, coin ? ",\"accepted\":true" : ",\"status\":202");
        break;
    case REACT_RESET: /* done, and not said */
        oracle_worked(s, t->id, t->attempt);
        s->met[MET_NO_PARTS]++;
        break;
    case REACT_HANG:
        s->met[MET_NO_PARTS]++;
        break;
    case REACT_REFUSED: /* not done; what is said comes to nothing */
        s->met[MET_CONTRADICTIONS]++;
        put_part(b, t->trace_id, coin ? ",\"success\":true" : ",\"success\":false");
        put_part(b, t->trace_id, coin ? ",\"success\":false" : ",\"success\":true");
        break;
    case REACT_N:
        abort();
    }
}

/* Also results for a task that is not in the request: one of an earlier one. */
static void put_results(struct sim *s, struct task *const *tasks, size_t n, struct buf *b)
{
    struct handlers *h = s->handlers;
    size_t order[SIM_BATCH_MAX];
    bool in_order = sim_between(s, 0, 1);
    bool is_alien = *h->last_trace_id != '\0';

    for (size_t i = 0; i < n; i++) {
        size_t k = in_order ? i : (size_t)sim_between(s, 0, (int64_t)i);

        order[i] = order[k];
        order[k] = i;
        is_alien &= strcmp(tasks[i]->trace_id, h->last_trace_id) != 0;
    }
    buf_addz(b, "{\"results\":[");
    if (is_alien && sim_chance(s, 1000))
        put_part(b, h->last_trace_id, ",\"success\":true");
    for (size_t i = 0; i < n; i++)
        put_result(s, b, tasks[order[i]]);
    buf_addz(b, "]}");
    memcpy(h->last_trace_id, tasks[n - 1]->trace_id, sizeof(h->last_trace_id));
}

static void all_worked(struct sim *s, struct task *const *tasks, size_t n)
{
    for (size_t i = 0; i < n; i++)
        oracle_worked(s, tasks[i]->id, tasks[i]->attempt);
}

static void refuse(struct sim *s, size_t n, int32_t http_status, struct reply *ret)
{
    s->met[MET_REFUSALS] += n > 1;
    ret->answer.http_status = http_status;
}

/* One answer for all of them; the work may be done all the same. */
static void react_whole(struct sim *s, struct task *const *tasks, size_t n, int64_t timeout_ms,
                        struct reply *ret, struct buf *body)
{
    static const int32_t refusals[] = {400, 410, 413, 422};

    switch (handlers_draw(s, tasks[0])) {
    case REACT_SLOW:
        put_results(s, tasks, n, body);
        ret->after_ms = sim_between(s, timeout_ms / 2, timeout_ms + timeout_ms / 4);
        for (size_t i = 0; i < n; i++)
            handlers_beat(s, tasks[i], (int)sim_between(s, 0, 2), timeout_ms / 4 + 1);
        break;
    case REACT_500:
        ret->answer.http_status = 500;
        break;
    case REACT_BUSY:
        ret->answer.http_status = 503;
        (void)snprintf(ret->retry_after, sizeof(ret->retry_after), "%d",
                       (int)sim_between(s, 0, 10));
        break;
    case REACT_FINAL:
        refuse(s, n, refusals[sim_between(s, 0, 3)], ret);
        break;
    case REACT_SNOOZE: /* no results */
        all_worked(s, tasks, n);
        buf_addz(body, "{\"success\":true}");
        break;
    case REACT_ASYNC: /* cut: no result counts */
        put_results(s, tasks, n, body);
        ret->answer.body_cut = true;
        break;
    case REACT_HANG:
        ret->after_ms = -1;
        break;
    case REACT_REFUSED:
        ret->arrives = false;
        handlers_fail(ret, "connection refused");
        break;
    case REACT_RESET:
        all_worked(s, tasks, n);
        handlers_fail(ret, "connection reset");
        break;
    default:
        put_results(s, tasks, n, body);
    }
}

/* Whether the request is refused for what is in it. */
static bool is_refused(struct sim *s, struct task *const *tasks, size_t n, struct reply *ret)
{
    if (!s->sc->poison)
        return false;
    if (n * SIM_ENVELOPE_BYTES > s->handlers->body_max[oracle_service_of(s, tasks[0]->id)]) {
        refuse(s, n, 413, ret);
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        if (handlers_is_poison(s, tasks[i]->id)) {
            refuse(s, n, tasks[i]->id % 3 ? 422 : 413, ret);
            return true;
        }
    }
    return false;
}

void handlers_receive_batch(struct sim *s, struct task *const *tasks, size_t n, int64_t timeout_ms,
                            struct reply *ret, struct buf *body)
{
    *ret = (struct reply){.arrives = true, .answer = {.http_status = 200, .sent = true}};
    ret->after_ms = handlers_pace(s);
    buf_clear(body);
    if (is_refused(s, tasks, n, ret))
        return;
    if (sim_chance(s, 2500))
        react_whole(s, tasks, n, timeout_ms, ret, body);
    else
        put_results(s, tasks, n, body);
}
