/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdlib.h>

#include "node/api/api_impl.h"
#include "node/api/fields.h"

#define KEEP_OUT ((size_t)256 * 1024) /* an answer's buffer above this is not kept */
#define KEEP_TOKENS 32768             /* nor the tokens of a larger body: 1 MiB of them */

struct buf *call_out(struct api_call *c)
{
    buf_clear(&c->loop->out);
    buf_clear(&c->loop->headers);
    return &c->loop->out;
}

static void call_end(struct api_call *c)
{
    if (c->route->fini)
        c->route->fini(c);
    buf_fini(&c->text);
    free(c);
}

static void send_answer(struct api_call *c, const struct http_answer *a)
{
    struct api_loop *loop = c->loop;
    http_answer(c->req, a);
    call_end(c);
    if (loop->out.cap > KEEP_OUT)
        buf_fini(&loop->out);
    if (loop->doc.cap > KEEP_TOKENS)
        json_doc_fini(&loop->doc);
}

void call_send(struct api_call *c, int status, const char *content_type)
{
    struct api_loop *loop = c->loop;
    struct http_answer a = {
        .status = status, .content_type = content_type, .on_end = c->on_end, .ctx = c->end_ctx};
    if (buf_ok(&loop->out) && buf_ok(&loop->headers)) {
        a.body = buf_str(&loop->out);
        a.headers = buf_str(&loop->headers);
    } else {
        a.status = 500;
        a.content_type = PROBLEM_CONTENT_TYPE;
        a.body = STR("{\"type\":\"urn:jobflow:problem:internal\","
                     "\"title\":\"Something went wrong inside\",\"status\":500,"
                     "\"detail\":\"out of memory\"}");
    }
    send_answer(c, &a);
}

void call_send_json(struct api_call *c, int status)
{
    call_send(c, status, "application/json");
}

void call_send_empty(struct api_call *c, int status)
{
    struct http_answer a = {.status = status};
    send_answer(c, &a);
}

void call_send_problem(struct api_call *c, enum problem_kind kind)
{
    buf_addc(&c->loop->out, '}');
    if (problem_status(kind) == 503)
        buf_addz(&c->loop->headers, "Retry-After: 1\r\n");
    call_send(c, problem_status(kind), PROBLEM_CONTENT_TYPE);
}

void call_problem(struct api_call *c, const struct problem *p)
{
    problem_put_open(call_out(c), p);
    call_send_problem(c, p->kind);
}

struct store_op *call_prepare(struct store_call *sc, enum call_what what)
{
    sc->op.kind = STORE_CALL;
    sc->what = what;
    return &sc->op;
}

struct effect_row {
    const char *word; /* in the problem's "effect" */
    const char *hint;
};

static const struct effect_row effect_rows[] = {
    [EFFECT_NONE] = {"none", "Nothing was done. Try again."},
    [EFFECT_DONE] = {"done", "It is stored; only its record could not be read again for this "
                             "answer. There is nothing to repeat."},
    [EFFECT_SUBMIT] = {"unknown", "Whether it took effect is unknown. Repeat it as it is: with the "
                                  "same bizUuid nothing is stored twice."},
    [EFFECT_REPEAT] = {"unknown", "Whether it took effect is unknown. Repeat it as it is: twice "
                                  "comes to the same as once."},
    [EFFECT_AGAIN] = {"unknown", "Whether it took effect is unknown. Look at the task before you "
                                 "repeat it: a repeat acts on the task as it is then."},
};

/* Answers with the problem, to which it adds what the call has left behind. */
static void send_with_effect(struct api_call *c, struct problem *p, enum call_effect effect)
{
    const struct effect_row *row = &effect_rows[effect];
    problem_hint(p, "%s", row->hint);
    problem_put_open(call_out(c), p);
    buf_addf(&c->loop->out, ",\"effect\":\"%s\"", row->word);
    call_send_problem(c, p->kind);
}

bool call_services_known(struct api_call *c)
{
    const struct api_env *env = &c->api->env;
    struct problem p;
    if (!env->services_known || env->services_known(env->ctx))
        return true;
    problem_set(&p, PROBLEM_NOT_READY, NULL, "the node is starting");
    send_with_effect(c, &p, EFFECT_NONE);
    return false;
}

bool call_post(struct api_call *c, struct store_op *op, void (*on_delivery)(struct mail *m),
               enum call_effect effect)
{
    assert(effect == EFFECT_NONE || effect == EFFECT_DONE);
    op->mail.on_delivery = on_delivery;
    op->reply = c->req->mailbox;
    int rc = store_post(&c->api->env.store, op);
    if (rc == 0)
        return true;
    struct problem p;
    if (rc == ERR_BUSY)
        problem_set(&p, PROBLEM_OVERLOADED, NULL, "the queue to the database is full");
    else if (rc == ERR_SHUTDOWN)
        problem_set(&p, PROBLEM_UNAVAILABLE, NULL, "this node is stopping");
    else
        problem_set(&p, PROBLEM_UNAVAILABLE, NULL, "the database cannot be reached");
    send_with_effect(c, &p, effect);
    return false;
}

void call_store_failed(struct api_call *c, const struct store_op *op, enum call_effect effect)
{
    struct problem p;
    int rc = op->rc;
    bool is_transient = rc == ERR_UNAVAILABLE || rc == ERR_TIMEOUT || rc == ERR_SHUTDOWN ||
                        rc == ERR_BUSY || rc == ERR_NOMEM;
    enum problem_kind kind = is_transient ? PROBLEM_UNAVAILABLE : PROBLEM_INTERNAL;
    problem_set(&p, kind, NULL, "the database operation failed: %s",
                rc == ERR_TIMEOUT && op->err.text[0] ? op->err.text : err_name(rc));
    if (!is_transient)
        LOG(c->api->env.log, LOG_ERROR, "api.store_failed", "an operation failed for good",
            F_Z("error", err_name(rc)), F_Z("detail", op->err.text),
            F_Z("route", c->route->pattern));
    send_with_effect(c, &p, effect);
}

/* Tokens are bounded by the bytes: a value takes at least one, and a comma or colon. */
static uint32_t token_limit(struct str body)
{
    const size_t most = (size_t)1 << 21;
    size_t n = body.len / 2 + 2;
    return (uint32_t)(n < most ? n : most);
}

bool call_parse_body(struct api_call *c, struct problem *p)
{
    struct json_doc *doc = &c->loop->doc;
    struct str body = c->req->body;
    struct err err = {0};
    if (body.len == 0) {
        problem_set(p, PROBLEM_INVALID_JSON, NULL, "the body is empty");
        problem_hint(p, "Send a JSON object.");
        return false;
    }
    int rc = json_parse(doc, body, token_limit(body), &err);
    if (rc == ERR_NOMEM)
        return problem_set(p, PROBLEM_OVERLOADED, NULL, "out of memory");
    if (rc) {
        problem_set(p, PROBLEM_INVALID_JSON, NULL, "%s", err.text);
        problem_field(p, fields_locate(body, doc->err_offset));
        return false;
    }
    if (doc->tokens[0].type != JSON_OBJECT) {
        problem_set(p, PROBLEM_INVALID_JSON, NULL, "the body is not a JSON object");
        return false;
    }
    return true;
}

bool call_no_fields(struct api_call *c, struct problem *p)
{
    if (c->req->body.len == 0)
        return true;
    if (!call_parse_body(c, p))
        return false;
    if (c->loop->doc.tokens[0].n == 0)
        return true;
    struct str key = c->loop->doc.tokens[1].raw;
    problem_set(p, PROBLEM_UNKNOWN_FIELD, NULL, "this call takes no fields");
    problem_field(p, (struct str){key.p + 1, key.len - 2});
    return false;
}

void call_not_found(struct api_call *c, const char *field, struct str name)
{
    struct problem p;
    problem_set(&p, PROBLEM_NOT_FOUND, field, "there is no %s " STR_FMT, field, STR_ARG(name));
    call_problem(c, &p);
}

void call_task_conflict(struct api_call *c, enum problem_kind kind, const struct task *t,
                        const char *detail)
{
    struct problem p;
    problem_set(&p, kind, NULL, "%s", detail);
    struct buf *b = call_out(c);
    problem_put_open(b, &p);
    buf_addf(b, ",\"traceId\":\"%s\",\"taskStatus\":\"%s\",\"attempt\":%d", t->trace_id,
             task_status_name(t->status), (int)t->attempt);
    call_send_problem(c, kind);
}

void call_state_conflict(struct api_call *c, const struct task *t, const char *verb)
{
    struct err text;
    bool in_flight = (task_status_bit(t->status) & TASK_IN_FLIGHT) != 0;
    err_set(&text, 0, "a task that is %s cannot be %s", task_status_name(t->status), verb);
    call_task_conflict(c, in_flight ? PROBLEM_IN_FLIGHT : PROBLEM_FINISHED, t, text.text);
}

void call_send_task(struct api_call *c, const struct task *t)
{
    struct buf *b = call_out(c);
    task_put_record(b, t);
    buf_addc(b, '}');
    call_send_json(c, 200);
}

void api_log_task(struct api *api, enum log_level level, const char *event, const struct task *t)
{
    LOG(api->env.log, level, event, NULL, F_Z("traceId", t->trace_id),
        F_STR("bizUuid", t->biz_uuid), F_STR("service", t->service_name));
}

wall_ms api_now(const struct api *api)
{
    return store_clock_now(api->env.clock);
}

void api_service_policy(const struct api *api, struct str service_name,
                        char dst[TASK_POLICY_MAX + 1])
{
    dst[0] = '\0';
    if (api->env.policy_of)
        api->env.policy_of(api->env.ctx, service_name, dst);
}
