/* SPDX-License-Identifier: Apache-2.0 */
/* What an asynchronous handler says of an attempt: its result, or a sign of life.
 *
 * A result reads the task (its facts decide how it goes on), ends the attempt by compare-and-set
 * and reads the task again for the answer. When the attempt turns out to have ended in between, a
 * repeat of the result that ended it is answered like the first; anything else is stale. */
#include <assert.h>
#include <limits.h>
#include <stdlib.h>

#include "common/timefmt.h"
#include "node/api/api_impl.h"
#include "node/api/fields.h"

/* The two parts of the path. */
static bool read_path(struct api_call *c, int64_t *ret_id, int32_t *ret_attempt, struct problem *p)
{
    int64_t attempt;
    if (!check_trace_id(p, c->params[0], ret_id))
        return false;
    if (!str_to_i64(c->params[1], &attempt) || attempt < 1 || attempt > INT32_MAX)
        return problem_set(p, PROBLEM_INVALID_FIELD, "attempt",
                           "attempt has to be the number that the request to the handler had");
    *ret_attempt = (int32_t)attempt;
    return true;
}

/* Whether a CALL_GET found the task that the path names; if not, the call has been answered. */
static bool found(struct api_call *c, const struct call_get *get, enum call_effect effect)
{
    int rc = get->call.op.rc;
    if (rc && rc != ERR_NOT_FOUND)
        call_store_failed(c, &get->call.op, effect);
    else if (rc || !str_eq(c->params[0], str_from(get->task->trace_id)))
        call_not_found(c, "traceId", c->params[0]);
    else
        return true;
    return false;
}

void attempt_stale_text(const struct task *t, int32_t attempt, struct err *ret)
{
    if (attempt == t->attempt && (task_status_bit(t->status) & TASK_IN_FLIGHT))
        err_set(ret, 0, "the deadline of attempt %d has passed", (int)t->attempt);
    else if (task_status_bit(t->status) & TASK_IN_FLIGHT)
        err_set(ret, 0, "attempt %d has ended; the live one is %d", (int)attempt, (int)t->attempt);
    else
        err_set(ret, 0, "attempt %d has ended; none is live, the last one was %d", (int)attempt,
                (int)t->attempt);
}

static void answer_stale(struct api_call *c, const struct task *t, int32_t attempt)
{
    struct err text;
    attempt_stale_text(t, attempt, &text);
    call_task_conflict(c, PROBLEM_STALE_ATTEMPT, t, text.text);
}

/* ---- Result ------------------------------------------------------------------------------ */

struct result_state {
    struct api_call call;
    int64_t id;
    int32_t attempt;
    bool is_stored; /* this call has ended the attempt */
    struct verdict verdict;
    struct call_get get;
    struct finish_op op;
    struct finish_item item;
};

static void result_fini(struct api_call *c)
{
    task_free(((struct result_state *)c)->get.task);
}

static enum call_effect effect_so_far(const struct result_state *s)
{
    return s->is_stored ? EFFECT_DONE : EFFECT_NONE;
}

/* Reads the task (again). */
static void read_task(struct result_state *s, void (*then)(struct mail *m))
{
    task_free(s->get.task);
    s->get = (struct call_get){.id = s->id};
    call_post(&s->call, call_prepare(&s->get.call, CALL_GET), then, effect_so_far(s));
}

bool attempt_took_effect(const struct task *t, int32_t attempt, enum verdict_kind kind)
{
    if (t->attempt != attempt)
        return false;
    switch (kind) {
    case VERDICT_SUCCESS:
        return t->status == TASK_SUCCESS;
    case VERDICT_FINAL:
        return t->status == TASK_FAILED;
    case VERDICT_RETRY:
        return t->status == TASK_RETRYING || t->status == TASK_FAILED;
    case VERDICT_SNOOZE:
        return t->snooze_count > 0 && (task_status_bit(t->status) & TASK_WAITING) != 0;
    default:
        return false;
    }
}

static void answer_ended(struct result_state *s)
{
    if (attempt_took_effect(s->get.task, s->attempt, s->verdict.kind))
        call_send_task(&s->call, s->get.task);
    else
        answer_stale(&s->call, s->get.task, s->attempt);
}

static void on_read_again(struct mail *m)
{
    struct result_state *s = OWNER_OF(m, struct result_state, get.call.op.mail);
    if (!found(&s->call, &s->get, effect_so_far(s)))
        return;
    if (s->is_stored)
        call_send_task(&s->call, s->get.task);
    else
        answer_ended(s);
}

static void count_end(struct api *api, enum finish_kind kind)
{
    struct counters *counters = api->env.counters;
    if (kind == FINISH_SUCCESS)
        counter_add(&counters->finished[TASK_SUCCESS], 1);
    else if (kind == FINISH_FAIL)
        counter_add(&counters->finished[TASK_FAILED], 1);
    else if (kind == FINISH_RETRY)
        counter_add(&counters->retries, 1);
}

void attempt_ended(struct api *api, const struct task *t, const struct finish_item *item)
{
    const struct hint h = {
        .service_name = t->service_name,
        .shard = t->shard,
        .lane = task_lane(item->priority, item->retry_count > 0),
        .id = t->id,
        .attempt = t->attempt,
        .next_attempt_time = item->next_attempt_time,
    };
    count_end(api, item->kind);
    if (item->kind == FINISH_RETRY || item->kind == FINISH_PUT_BACK)
        (void)api->env.notify(api->env.ctx, &h); /* else a scan finds it */
}

static void on_finished(struct mail *m)
{
    struct result_state *s = OWNER_OF(m, struct result_state, op.op.mail);
    struct api_call *c = &s->call;
    if (!s->op.op.rc && s->item.result == FINISH_FAILED)
        s->op.op.rc = ERR_CORRUPT;
    if (s->op.op.rc) {
        call_store_failed(c, &s->op.op, EFFECT_REPEAT);
        return;
    }
    s->is_stored = s->item.result == FINISH_DONE;
    if (s->is_stored) {
        attempt_ended(c->api, s->get.task, &s->item);
        LOG(c->api->env.log, LOG_DEBUG, "task.result", NULL, F_Z("traceId", s->get.task->trace_id),
            F_STR("bizUuid", s->get.task->biz_uuid), F_INT("attempt", s->attempt),
            F_Z("verdict", verdict_name(s->verdict.kind)));
    }
    read_task(s, on_read_again);
}

void attempt_decide(struct api_call *c, const struct task *t, const struct verdict *v,
                    struct finish_item *ret)
{
    const struct api *api = c->api;
    char policy[TASK_POLICY_MAX + 1];
    struct retry_facts facts = {
        .id = t->id,
        .attempt = t->attempt,
        .retry_count = t->retry_count,
        .max_retry = t->max_retry,
        .snooze_count = t->snooze_count,
        .priority = t->priority,
        .result_wait_ms = (t->timeout_ms > 0 ? t->timeout_ms : api->cfg.default_timeout_ms) +
                          api->cfg.ghost_margin_ms,
        .policy = t->policy,
    };
    if (!t->policy.p) {
        api_service_policy(api, t->service_name, policy);
        facts.policy = str_from(policy);
    }
    retry_decide(api->env.policies, &facts, v, api_now(api), &c->loop->rng, ret);
    ret->from = TASK_IN_FLIGHT;
    ret->alert = api->cfg.alerts && ret->kind == FINISH_FAIL;
    ret->node = str_from(api->env.node_name);
}

static void finish(struct result_state *s)
{
    attempt_decide(&s->call, s->get.task, &s->verdict, &s->item);
    s->op.op.kind = STORE_FINISH;
    s->op.items = &s->item;
    s->op.n = 1;
    call_post(&s->call, &s->op.op, on_finished, EFFECT_NONE);
}

static void on_read(struct mail *m)
{
    struct result_state *s = OWNER_OF(m, struct result_state, get.call.op.mail);
    if (!found(&s->call, &s->get, EFFECT_NONE))
        return;
    const struct task *t = s->get.task;
    if (t->attempt == s->attempt && (task_status_bit(t->status) & TASK_IN_FLIGHT))
        finish(s);
    else
        answer_ended(s);
}

static bool read_bool(struct fields *f, const struct json_token *value)
{
    if (value->type == JSON_TRUE || value->type == JSON_FALSE)
        return true;
    return problem_set(f->problem, PROBLEM_INVALID_FIELD, f->name, "%s has to be true or false",
                       f->name);
}

static bool read_text(struct fields *f, const struct json_token *value)
{
    struct str s;
    return field_string(f, value, &s);
}

static bool read_wait(struct fields *f, const struct json_token *value)
{
    int64_t ms;
    return field_duration(f, value, 0, INT64_MAX, &ms);
}

const struct field attempt_result_fields[] = {
    {"success", read_bool},    {"retryable", read_bool}, {"message", read_text},
    {"retryAfter", read_wait}, {"snooze", read_wait},
};
const size_t attempt_n_result_fields =
    sizeof(attempt_result_fields) / sizeof(attempt_result_fields[0]);

/* Checks the members one by one, so that a problem names the one at fault; what they mean together
 * is verdict_read_result's business. */
static bool check_result_fields(struct api_call *c, struct problem *p)
{
    struct fields f = {.doc = &c->loop->doc, .text = &c->text, .problem = p};
    return fields_read(&f, 0, attempt_result_fields, attempt_n_result_fields);
}

static bool read_result(struct result_state *s, struct problem *p)
{
    struct api_call *c = &s->call;
    const struct retry_policies *policies = c->api->env.policies;
    struct verdict_limits limits = {
        .retry_after_cap_ms = policies->retry_after_cap_ms,
        .snooze_cap_ms = policies->snooze_cap_ms,
    };
    struct err err = {0};
    if (!read_path(c, &s->id, &s->attempt, p) || !call_parse_body(c, p) ||
        !check_result_fields(c, p))
        return false;
    int rc = verdict_read_result(c->req->body, &limits, api_now(c->api), &s->verdict, &err);
    if (rc == 0)
        return true;
    if (rc == ERR_NOMEM)
        return problem_set(p, PROBLEM_OVERLOADED, NULL, "out of memory");
    problem_set(p, PROBLEM_INVALID_FIELD, "success", "%s", err.text);
    problem_hint(p, "Such as {\"success\":true}, {\"success\":false,\"retryable\":true,"
                    "\"message\":\"…\",\"retryAfter\":\"30s\"} or {\"snooze\":\"10m\"}.");
    return false;
}

static void result_handle(struct api_call *c)
{
    struct result_state *s = (struct result_state *)c;
    struct problem p;
    if (!call_services_known(c))
        return;
    if (!read_result(s, &p))
        call_problem(c, &p);
    else
        read_task(s, on_read);
}

/* ---- Heartbeat --------------------------------------------------------------------------- */

struct beat_state {
    struct api_call call;
    int64_t extend_ms; /* 0 = the task's time-out and the margin */
    struct call_get get;
    struct call_extend op;
};

static void beat_fini(struct api_call *c)
{
    struct beat_state *s = (struct beat_state *)c;
    task_free(s->get.task);
    task_free(s->op.task);
}

static bool read_extend(struct fields *f, const struct json_token *value)
{
    struct beat_state *s = f->ctx;
    return field_duration(f, value, 1, s->call.api->cfg.max_timeout_ms, &s->extend_ms);
}

static bool read_beat(struct beat_state *s, struct problem *p)
{
    static const struct field beat_fields[] = {{"extend", read_extend}};
    struct api_call *c = &s->call;
    struct fields f = {.doc = &c->loop->doc, .text = &c->text, .problem = p, .ctx = s};
    if (!read_path(c, &s->op.id, &s->op.attempt, p))
        return false;
    return c->req->body.len == 0 || (call_parse_body(c, p) && fields_read(&f, 0, beat_fields, 1));
}

static void on_extended(struct mail *m)
{
    struct beat_state *s = OWNER_OF(m, struct beat_state, op.call.op.mail);
    struct api_call *c = &s->call;
    int rc = s->op.call.op.rc;
    if (rc == ERR_CONFLICT && s->op.task) {
        answer_stale(c, s->op.task, s->op.attempt);
    } else if (rc == ERR_NOT_FOUND) {
        call_not_found(c, "traceId", c->params[0]);
    } else if (rc) {
        call_store_failed(c, &s->op.call.op, EFFECT_REPEAT);
    } else {
        char deadline[TIME_TEXT_LEN + 1];
        time_format(s->op.deadline_at, deadline);
        buf_addf(call_out(c), "{\"traceId\":\"%s\",\"attempt\":%d,\"deadline\":\"%s\"}",
                 s->get.task->trace_id, (int)s->op.attempt, deadline);
        call_send_json(c, 200);
    }
}

static void on_beat_read(struct mail *m)
{
    struct beat_state *s = OWNER_OF(m, struct beat_state, get.call.op.mail);
    struct api_call *c = &s->call;
    if (!found(c, &s->get, EFFECT_NONE))
        return;
    const struct api_config *cfg = &c->api->cfg;
    s->op.extend_ms = s->extend_ms;
    s->op.default_timeout_ms = (int32_t)cfg->default_timeout_ms;
    s->op.margin_ms = cfg->ghost_margin_ms;
    call_post(c, call_prepare(&s->op.call, CALL_EXTEND), on_extended, EFFECT_NONE);
}

static void beat_handle(struct api_call *c)
{
    struct beat_state *s = (struct beat_state *)c;
    struct problem p;
    if (!read_beat(s, &p)) {
        call_problem(c, &p);
        return;
    }
    s->get.id = s->op.id;
    call_post(c, call_prepare(&s->get.call, CALL_GET), on_beat_read, EFFECT_NONE);
}

const struct route attempt_routes[2] = {
    {VERB_POST, "/api/attempts/{traceId}/{attempt}/result", sizeof(struct result_state),
     result_handle, result_fini},
    {VERB_POST, "/api/attempts/{traceId}/{attempt}/heartbeat", sizeof(struct beat_state),
     beat_handle, beat_fini},
};
