/* SPDX-License-Identifier: Apache-2.0 */
/* One task: get, cancel, move, run. */
#include <stdlib.h>
#include <string.h>

#include "node/api/api_impl.h"
#include "node/api/submit_parse.h"

static bool check_key(struct api_call *c)
{
    struct problem p;
    if (check_biz_uuid(&p, "bizUuid", c->params[0]))
        return true;
    call_problem(c, &p);
    return false;
}

/* ---- Get --------------------------------------------------------------------------------- */

struct get_state {
    struct api_call call;
    struct call_get op;
};

static void get_fini(struct api_call *c)
{
    struct get_state *s = (struct get_state *)c;
    task_free(s->op.task);
    free(s->op.attempts);
}

static void get_answer(struct get_state *s)
{
    struct buf *b = call_out(&s->call);
    task_put_record(b, s->op.task);
    buf_addz(b, ",\"attempts\":[");
    for (size_t i = 0; i < s->op.n_attempts; i++) {
        if (i > 0)
            buf_addc(b, ',');
        attempt_put_record(b, &s->op.attempts[i]);
    }
    buf_addz(b, "]}");
    call_send_json(&s->call, 200);
}

static void on_got(struct mail *m)
{
    struct get_state *s = OWNER_OF(m, struct get_state, op.call.op.mail);
    struct api_call *c = &s->call;
    bool by_trace = s->op.id != 0;
    int rc = s->op.call.op.rc;
    if (rc && rc != ERR_NOT_FOUND)
        call_store_failed(c, &s->op.call.op, EFFECT_NONE);
    else if (rc || (by_trace && !str_eq(c->params[0], str_from(s->op.task->trace_id))))
        call_not_found(c, by_trace ? "traceId" : "bizUuid", c->params[0]);
    else
        get_answer(s);
}

static void get_handle(struct api_call *c)
{
    struct get_state *s = (struct get_state *)c;
    if (!check_key(c))
        return;
    s->op.biz_uuid = c->params[0];
    s->op.with_attempts = true;
    call_post(c, call_prepare(&s->op.call, CALL_GET), on_got, EFFECT_NONE);
}

static void trace_handle(struct api_call *c)
{
    struct get_state *s = (struct get_state *)c;
    struct problem p;
    if (!check_trace_id(&p, c->params[0], &s->op.id)) {
        call_problem(c, &p);
        return;
    }
    s->op.with_attempts = true;
    call_post(c, call_prepare(&s->op.call, CALL_GET), on_got, EFFECT_NONE);
}

/* ---- What failed in the store ------------------------------------------------------------- */

/* With a time-out it has waited for another transaction that has the key, and done nothing. */
static void key_failed(struct api_call *c, const struct store_op *op, enum call_effect effect)
{
    call_store_failed(c, op, op->rc == ERR_TIMEOUT ? EFFECT_NONE : effect);
}

/* ---- Cancel ------------------------------------------------------------------------------ */

struct cancel_state {
    struct api_call call;
    struct cancel_op op;
};

static void cancel_fini(struct api_call *c)
{
    task_free(((struct cancel_state *)c)->op.task);
}

static void on_cancelled(struct mail *m)
{
    struct cancel_state *s = OWNER_OF(m, struct cancel_state, op.op.mail);
    struct api_call *c = &s->call;
    if (s->op.op.rc) {
        key_failed(c, &s->op.op, EFFECT_REPEAT);
        return;
    }
    switch (s->op.result) {
    case CANCEL_DONE:
        counter_add(&c->api->env.counters->finished[TASK_CANCELLED], 1);
        api_log_task(c->api, LOG_INFO, "task.cancelled", s->op.task);
        call_send_task(c, s->op.task);
        return;
    case CANCEL_ALREADY:
        call_send_task(c, s->op.task);
        return;
    case CANCEL_IN_FLIGHT:
    case CANCEL_FINISHED:
        call_state_conflict(c, s->op.task, "cancelled");
        return;
    case CANCEL_NOT_FOUND:
        call_not_found(c, "bizUuid", c->params[0]);
        return;
    }
}

static void cancel_handle(struct api_call *c)
{
    struct cancel_state *s = (struct cancel_state *)c;
    if (!check_key(c))
        return;
    s->op.op.kind = STORE_CANCEL;
    s->op.biz_uuid = c->params[0];
    call_post(c, &s->op.op, on_cancelled, EFFECT_NONE);
}

/* ---- Move -------------------------------------------------------------------------------- */

/* Answers for a call whose operation has a task that it changed, or that stood in its way. */
static void answer_change(struct api_call *c, const struct store_op *op, const struct task *t,
                          const char *event, const char *verb, enum call_effect effect)
{
    if (op->rc == 0) {
        api_log_task(c->api, LOG_INFO, event, t);
        call_send_task(c, t);
    } else if (op->rc == ERR_NOT_FOUND) {
        call_not_found(c, "bizUuid", c->params[0]);
    } else if (op->rc == ERR_CONFLICT && t) {
        call_state_conflict(c, t, verb);
    } else {
        key_failed(c, op, effect);
    }
}

struct move_state {
    struct api_call call;
    bool is_relative; /* the new time counts from the call on */
    struct call_move op;
};

static void move_fini(struct api_call *c)
{
    task_free(((struct move_state *)c)->op.task);
}

static void on_moved(struct mail *m)
{
    struct move_state *s = OWNER_OF(m, struct move_state, op.call.op.mail);
    answer_change(&s->call, &s->op.call.op, s->op.task, "task.moved", "changed",
                  s->is_relative ? EFFECT_AGAIN : EFFECT_REPEAT);
}

static void move_handle(struct api_call *c)
{
    struct move_state *s = (struct move_state *)c;
    struct move_request wanted;
    struct problem p;
    if (!check_key(c) || !call_services_known(c))
        return;
    if (!move_parse(c, api_now(c->api), &wanted, &p)) {
        call_problem(c, &p);
        return;
    }
    s->op.biz_uuid = c->params[0];
    s->is_relative = wanted.is_relative;
    s->op.execute_time = wanted.execute_time;
    s->op.set_payload = wanted.set_payload;
    s->op.payload = wanted.payload;
    call_post(c, call_prepare(&s->op.call, CALL_MOVE), on_moved, EFFECT_NONE);
}

/* ---- Run --------------------------------------------------------------------------------- */

struct run_state {
    struct api_call call;
    struct call_run op;
    char actor[sizeof("api ") + INET6_ADDRSTRLEN];
};

static void run_fini(struct api_call *c)
{
    task_free(((struct run_state *)c)->op.task);
}

static void on_run(struct mail *m)
{
    struct run_state *s = OWNER_OF(m, struct run_state, op.call.op.mail);
    answer_change(&s->call, &s->op.call.op, s->op.task, "task.run", "run", EFFECT_AGAIN);
}

static void run_handle(struct api_call *c)
{
    struct run_state *s = (struct run_state *)c;
    struct problem p;
    if (!check_key(c))
        return;
    if (!call_no_fields(c, &p)) {
        call_problem(c, &p);
        return;
    }
    memcpy(s->actor, "api ", 4);
    http_peer(c->req, s->actor + 4);
    s->op.biz_uuid = c->params[0];
    s->op.actor = str_from(s->actor);
    call_post(c, call_prepare(&s->op.call, CALL_RUN), on_run, EFFECT_NONE);
}

const struct route task_routes[5] = {
    {VERB_GET, "/api/delay-tasks/{bizUuid}", sizeof(struct get_state), get_handle, get_fini},
    {VERB_GET, "/api/traces/{traceId}", sizeof(struct get_state), trace_handle, get_fini},
    {VERB_DELETE, "/api/delay-tasks/{bizUuid}", sizeof(struct cancel_state), cancel_handle,
     cancel_fini},
    {VERB_PATCH, "/api/delay-tasks/{bizUuid}", sizeof(struct move_state), move_handle, move_fini},
    {VERB_POST, "/api/delay-tasks/{bizUuid}/run", sizeof(struct run_state), run_handle, run_fini},
};
