/* SPDX-License-Identifier: Apache-2.0 */
/* The business services: they answer well, late, wrongly or never, and some bring their result
 * later through the interface for asynchronous handlers, which is played here as a node would do
 * it. */
#include "tests/sim/handlers_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/oracle.h"
#include "tests/sim/vnode.h"

/* Work that goes on at a service after the request: heartbeats, then perhaps a result. */
struct work {
    struct sim_event ev; /* first */
    int64_t id;
    int32_t attempt;
    int n_beats;
    int64_t beat_ms;
    const char *result; /* static; NULL: none is brought */
};

struct handlers *handlers_new(struct sim *s)
{
    struct handlers *h = sim_alloc(sizeof(*h));

    for (int i = 0; i < REACT_N; i++)
        h->total += s->sc->reactions[i];
    assert(h->total);
    for (int i = 0; i < SIM_SERVICES_MAX && s->sc->poison; i++)
        h->body_max[i] = (size_t)sim_between(s, 1, SIM_BATCH_MAX) * SIM_ENVELOPE_BYTES;
    return h;
}

void handlers_free(struct handlers *h)
{
    free(h);
}

/* ---- Afterwards --------------------------------------------------------------------------- */

static void work_drop(struct sim_event *ev)
{
    free(ev);
}

static void beat(struct sim *s, const struct work *w)
{
    struct call_extend call = {
        .call = {.what = CALL_EXTEND},
        .id = w->id,
        .attempt = w->attempt,
        .extend_ms = sim_between(s, 200, 3000),
    };

    if (!fake_driver.call(s->conn, &call.call, NULL))
        s->met[MET_HEARTBEATS]++;
    task_free(call.task);
}

/* The result of an attempt, as a node's interface takes it. */
static void bring_result(struct sim *s, const struct work *w)
{
    const struct retry_policies *set = vnode_policies(s->nodes[0]);
    struct verdict_limits limits = {set->retry_after_cap_ms, set->snooze_cap_ms};
    struct call_get get = {.call = {.what = CALL_GET}, .id = w->id};
    struct finish_item item = {.node = STR("interface")};
    struct finish_item *items[] = {&item};
    struct verdict v;
    struct err err;

    if (fake_driver.call(s->conn, &get.call, NULL))
        abort(); /* delivered tasks are stored */
    if (verdict_read_result(str_from(w->result), &limits, sim_store_now(s), &v, &err))
        sim_fail(s, "the result %s was refused: %s", w->result, err.text);
    struct retry_facts facts = {
        .id = w->id,
        .attempt = w->attempt,
        .retry_count = get.task->retry_count,
        .max_retry = get.task->max_retry,
        .snooze_count = get.task->snooze_count,
        .priority = get.task->priority,
        .result_wait_ms = vnode_result_wait(s->nodes[0], get.task),
        .policy = get.task->policy,
    };
    retry_decide(set, &facts, &v, sim_store_now(s), &s->rng, &item);
    item.alert = item.kind == FINISH_FAIL;
    if (v.kind == VERDICT_SUCCESS)
        oracle_worked(s, w->id, w->attempt);
    if (fake_driver.finish(s->conn, items, 1, NULL))
        abort();
    s->met[item.result == FINISH_DONE ? MET_RESULTS : MET_FENCED]++;
    task_free(get.task);
}

static void on_work(struct sim *s, struct sim_event *ev)
{
    struct work *w = (struct work *)ev;

    if (s->store_down || sim_chance(s, s->sc->lost_rate)) {
        sim_at(s, ev, s->now + 200, on_work); /* 503: once more */
        return;
    }
    if (w->n_beats) {
        w->n_beats--;
        beat(s, w);
        sim_at(s, ev, s->now + w->beat_ms, on_work);
        return;
    }
    if (w->result) {
        sim_note(s, "task %lld: the result of attempt %lld comes", w->id, w->attempt, 0, 0);
        bring_result(s, w);
        if (sim_chance(s, s->sc->answer_lost_rate)) {
            sim_at(s, ev, s->now + 200, on_work); /* the service did not hear: once more */
            return;
        }
    }
    free(w);
}

static void work_start(struct sim *s, const struct task *t, int n_beats, int64_t beat_ms,
                       const char *result)
{
    struct work *w = sim_alloc(sizeof(*w));

    w->ev.drop = work_drop;
    w->id = t->id;
    w->attempt = t->attempt;
    w->n_beats = n_beats;
    w->beat_ms = beat_ms;
    w->result = result;
    sim_at(s, &w->ev, s->now + beat_ms, on_work);
}

void handlers_beat(struct sim *s, const struct task *t, int n_beats, int64_t beat_ms)
{
    work_start(s, t, n_beats, beat_ms, NULL);
}

/* ---- Answers ------------------------------------------------------------------------------ */

enum reaction handlers_draw(struct sim *s, const struct task *t)
{
    bool is_healthy = s->sc->isolation && !oracle_service_of(s, t->id);
    uint32_t at;
    int r = 0;

    if ((uint64_t)t->id * 7919 % 100 < s->sc->doomed && !is_healthy)
        return REACT_500;
    if (s->healed || is_healthy)
        return REACT_OK;
    for (at = (uint32_t)rng_below(&s->rng, s->handlers->total); at >= s->sc->reactions[r]; r++)
        at -= s->sc->reactions[r];
    return (enum reaction)r;
}

void handlers_async(struct sim *s, const struct task *t)
{
    static const char *const results[] = {
        "{\"success\":true}",
        "{\"success\":true}",
        "{\"success\":true}",
        "{\"success\":false,\"message\":\"try again\"}",
        "{\"success\":false,\"retryable\":false,\"message\":\"never\"}",
        "{\"snooze\":\"2s\"}",
        NULL,
    };
    const char *result = results[sim_between(s, 0, 6)];

    s->met[MET_NO_RESULTS] += !result;
    work_start(s, t, (int)sim_between(s, 0, 1) * (int)sim_between(s, 1, 8),
               sim_between(s, 0, 3) ? sim_between(s, 50, 900) : sim_between(s, 0, 3), result);
}

/* What a worker does with a task comes as a result, or never. */
void handlers_lease(struct sim *s, const struct task *t)
{
    int64_t length = t->deadline_at - t->claimed_at;
    const char *result = "{\"success\":true}";
    int64_t after_ms = sim_between(s, 0, 3) ? sim_between(s, 0, 30) : sim_between(s, 30, 400);
    int n_beats = 0;
    bool works = true;

    switch (handlers_draw(s, t)) {
    case REACT_OK:
        break;
    case REACT_SLOW: /* beyond the deadline, if no sign of life keeps it away */
        n_beats = (int)sim_between(s, 0, 3);
        after_ms = sim_between(s, length / 4, length + length / 4) / (n_beats + 1);
        break;
    case REACT_ASYNC:
        handlers_async(s, t);
        return;
    case REACT_HANG: /* it has died */
    case REACT_REFUSED:
        return;
    case REACT_RESET: /* likewise, when its work was done */
        oracle_worked(s, t->id, t->attempt);
        return;
    case REACT_SNOOZE:
        result = "{\"snooze\":\"3s\"}";
        works = false;
        break;
    case REACT_FINAL:
        result = "{\"success\":false,\"retryable\":false,\"message\":\"no such order\"}";
        works = false;
        break;
    default:
        result = "{\"success\":false,\"message\":\"out of order\"}";
        works = false;
    }
    if (works)
        oracle_worked(s, t->id, t->attempt);
    work_start(s, t, n_beats, after_ms, result);
}

static void react_busy(struct sim *s, struct reply *ret)
{
    ret->answer.http_status = sim_between(s, 0, 1) ? 429 : 503;
    (void)snprintf(ret->retry_after, sizeof(ret->retry_after), "%lld",
                   (long long)sim_between(s, 0, 10));
}

static void react_final(struct sim *s, struct reply *ret)
{
    ret->answer.http_status = sim_between(s, 0, 1) ? 422 : 200;
    ret->answer.body = STR("{\"success\":false,\"retryable\":false,\"message\":\"no such order\"}");
}

int64_t handlers_pace(struct sim *s)
{
    bool calm = s->sc->isolation || s->sc->punctual;

    return calm || sim_between(s, 0, 3) ? sim_between(s, 0, 30) : sim_between(s, 30, 400);
}

void handlers_fail(struct reply *ret, const char *why)
{
    ret->answer.http_status = 0;
    ret->answer.failure = str_from(why);
}

void handlers_receive(struct sim *s, const struct task *t, int64_t timeout_ms, struct reply *ret)
{
    *ret = (struct reply){.arrives = true, .answer = {.http_status = 200, .sent = true}};
    ret->after_ms = handlers_pace(s);
    switch (handlers_draw(s, t)) {
    case REACT_OK:
        oracle_worked(s, t->id, t->attempt);
        break;
    case REACT_SLOW:
        oracle_worked(s, t->id, t->attempt);
        ret->after_ms = sim_between(s, timeout_ms / 2, timeout_ms + timeout_ms / 4);
        handlers_beat(s, t, (int)sim_between(s, 0, 3), timeout_ms / 4 + 1);
        break;
    case REACT_500:
        ret->answer.http_status = 500;
        ret->answer.body = STR("out of order");
        break;
    case REACT_BUSY:
        react_busy(s, ret);
        break;
    case REACT_FINAL:
        react_final(s, ret);
        break;
    case REACT_SNOOZE:
        ret->answer.body = STR("{\"snooze\":\"3s\"}");
        break;
    case REACT_ASYNC:
        ret->answer.http_status = 202;
        handlers_async(s, t);
        break;
    case REACT_HANG:
        ret->after_ms = -1;
        break;
    case REACT_REFUSED:
        ret->arrives = false;
        handlers_fail(ret, "connection refused");
        break;
    case REACT_RESET:
        oracle_worked(s, t->id, t->attempt);
        handlers_fail(ret, "connection reset");
        break;
    case REACT_N:
        abort();
    }
}
