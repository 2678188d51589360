/* SPDX-License-Identifier: Apache-2.0 */
/* Workers lease tasks: a long poll that the node answers when there are due tasks, or after its
 * wait. No thread waits with it. Other members ask in the same way, by a signed call.
 *
 * A client that hangs up is told to the node, and the request is answered when the node has given
 * the query back and has heard of that, too. Tasks that come for it nevertheless are given back, as
 * are those of an answer that did not get out whole, and those that did not fit into it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "node/api/api_impl.h"
#include "node/api/fields.h"

#define LEASE_WAIT_MS 20000
#define LEASE_WAIT_MAX_MS 60000

struct lease_state {
    struct api_call call;
    struct lease_query query;
    bool is_back;    /* the query */
    bool is_gone;    /* the client */
    bool cancel_out; /* the node has not heard of it yet */
};

static void lease_fini(struct api_call *c)
{
    struct lease_state *s = (struct lease_state *)c;
    for (size_t i = 0; i < s->query.n; i++)
        task_free(s->query.tasks[i]);
    free(s->query.tasks);
    free(s->query.claims);
    buf_fini(&s->query.body);
}

/* ---- Fields ------------------------------------------------------------------------------ */

static bool read_max_tasks(struct fields *f, const struct json_token *value)
{
    struct lease_query *q = f->ctx;
    int64_t n;
    if (!field_int(f, value, 1, LEASE_TASKS_MAX, &n))
        return false;
    q->max_tasks = (uint32_t)n;
    return true;
}

static bool read_wait(struct fields *f, const struct json_token *value)
{
    struct lease_query *q = f->ctx;
    return field_duration(f, value, 0, LEASE_WAIT_MAX_MS, &q->wait_ms);
}

static bool read_worker(struct fields *f, const struct json_token *value)
{
    struct lease_query *q = f->ctx;
    return field_name(f, value, TASK_NAME_MAX, &q->worker);
}

static bool read_visibility(struct fields *f, const struct json_token *value)
{
    struct lease_state *s = OWNER_OF(f->ctx, struct lease_state, query);
    int64_t ms;
    if (!field_duration(f, value, 1, s->call.api->cfg.max_timeout_ms, &ms))
        return false;
    s->query.visibility_ms = (int32_t)ms;
    return true;
}

/* ---- Answers ----------------------------------------------------------------------------- */

/* The claims of the query's tasks from this one on, or, where another member made them, all. NULL:
 * there are none, or no memory; then they are rescued at their deadline. */
static struct lease_claims *take_claims(struct lease_state *s, size_t from)
{
    struct lease_query *q = &s->query;
    struct lease_claims *claims = q->claims;
    size_t n = q->n - from;
    q->claims = NULL;
    if (!claims && n > 0)
        claims = calloc(1, sizeof(*claims) + n * sizeof(claims->list[0]));
    if (!claims || n == 0)
        return claims;
    memcpy(claims->service_name, q->service_name.p, q->service_name.len);
    claims->n = n;
    for (size_t i = 0; i < n; i++) {
        const struct task *t = q->tasks[from + i];
        claims->list[i] = (struct lease_claim){
            .id = t->id,
            .attempt = t->attempt,
            .retry_count = t->retry_count,
            .priority = t->priority,
            .shard = t->shard,
        };
    }
    return claims;
}

static void give_back(struct lease_state *s, size_t from)
{
    const struct api_env *env = &s->call.api->env;
    struct lease_claims *claims = take_claims(s, from);
    if (claims)
        env->give_back(env->ctx, claims);
    for (size_t i = from; i < s->query.n; i++)
        task_free(s->query.tasks[i]);
    s->query.n = from;
}

/* An answer on its way. */
struct handed {
    const struct api_env *env;
    struct lease_claims *claims;
};

static void on_end(void *ctx, bool sent)
{
    struct handed *h = ctx;
    if (sent)
        free(h->claims);
    else
        h->env->give_back(h->env->ctx, h->claims);
    free(h);
}

/* Another member sees that the tasks come from this one, and can give them back. All that is told
 * is signed, so that nobody between the two puts other payloads in: at 0.5 to 2 GB/s that is little
 * beside what a claim costs the database, and 2 to 10 ms of an answer as large as may be. */
static void put_claims(struct lease_state *s, const struct lease_claims *claims)
{
    struct api_call *c = &s->call;
    const struct api_env *env = &c->api->env;
    struct buf *b = &c->loop->out;
    struct buf line = BUF_INIT;
    buf_addz(b, "\n{\"service\":");
    json_put_stringz(b, claims->service_name);
    buf_addz(b, ",\"claims\":[");
    for (size_t i = 0; i < claims->n; i++) {
        const struct lease_claim *l = &claims->list[i];
        buf_addf(b, "%s[%" PRId64 ",%d,%d,%d,%d]", i > 0 ? "," : "", l->id, (int)l->attempt,
                 (int)l->retry_count, (int)l->priority, (int)l->shard);
    }
    buf_addz(b, "]}");
    buf_addc(&line, '\n');
    if (buf_ok(b) && env->sign(env->ctx, STR(LEASE_CLAIMS_PATH), buf_str(b), &line) == 0)
        buf_adds(b, buf_str(&line));
    else
        b->failed = true; /* answered 500 */
    buf_fini(&line);
}

static void put_tasks(struct lease_state *s)
{
    struct api_call *c = &s->call;
    struct lease_query *q = &s->query;
    struct buf *b = call_out(c);
    size_t i = 0;
    buf_addz(b, "{\"tasks\":[");
    for (; i < q->n && b->len < LEASE_BYTES_MAX; i++) {
        if (i > 0)
            buf_addc(b, ',');
        task_put_leased(b, q->tasks[i], api_now(c->api), c->api->cfg.ghost_margin_ms);
    }
    buf_addz(b, "]}");
    give_back(s, i);
}

/* Follows what becomes of the answer. Out of memory, it is on its own. */
static void follow(struct lease_state *s)
{
    struct api_call *c = &s->call;
    struct lease_claims *claims = take_claims(s, 0);
    struct handed *h = claims ? malloc(sizeof(*h)) : NULL;
    if (claims && s->query.kind == LEASE_CLAIM)
        put_claims(s, claims);
    if (!h) {
        free(claims);
        return;
    }
    *h = (struct handed){&c->api->env, claims};
    if (!buf_ok(&c->loop->out)) {
        on_end(h, false);
        return;
    }
    c->on_end = on_end;
    c->end_ctx = h;
}

static void answer_ok(struct lease_state *s)
{
    struct api_call *c = &s->call;
    struct lease_query *q = &s->query;
    if (s->is_gone || clock_mono() >= q->hand_by) {
        give_back(s, 0);
        buf_clear(&q->body);
    }
    if (q->kind == LEASE_WATCH)
        buf_addf(call_out(c), "{\"ready\":%" PRIu32 "}", q->n_ready);
    else if (q->body.len > 0)
        buf_adds(call_out(c), buf_str(&q->body));
    else
        put_tasks(s);
    follow(s);
    call_send_json(c, 200);
}

static void answer(struct lease_state *s)
{
    struct api_call *c = &s->call;
    struct str name = s->query.service_name;
    struct problem p;
    switch (s->query.outcome) {
    case LEASE_OK:
        answer_ok(s);
        return;
    case LEASE_UNKNOWN:
        call_not_found(c, "name", name);
        return;
    case LEASE_NOT_PULL:
        problem_set(&p, PROBLEM_NOT_PULLED, "name",
                    "the tasks of " STR_FMT " are delivered to it, not leased", STR_ARG(name));
        problem_hint(&p,
                     "PUT /api/services/" STR_FMT " with \"delivery\":{\"mode\":\"pull\"} first.",
                     STR_ARG(name));
        break;
    case LEASE_TOO_MANY:
        problem_set(&p, PROBLEM_OVERLOADED, NULL, "as many workers wait here as may");
        problem_hint(&p, "Nothing was done. Ask for more tasks at a time with fewer polls, or ask "
                         "another node.");
        break;
    case LEASE_STOPPING:
        problem_set(&p, PROBLEM_NOT_READY, NULL, "the node is stopping");
        problem_hint(&p, "Nothing was done. Ask another node, or this one again soon.");
        break;
    }
    call_problem(c, &p);
}

static void on_leased(struct mail *m)
{
    struct lease_state *s = OWNER_OF(m, struct lease_state, query.mail);
    s->is_back = true;
    s->call.req->on_hangup = NULL;
    if (!s->cancel_out)
        answer(s);
}

static void on_cancelled(struct mail *m)
{
    struct lease_state *s = OWNER_OF(m, struct lease_state, query.cancel);
    s->cancel_out = false;
    if (s->is_back)
        answer(s);
}

static void on_hangup(struct http_request *req)
{
    struct lease_state *s = req->user;
    const struct api_env *env = &s->call.api->env;
    s->is_gone = true;
    s->cancel_out = env->lease_cancel(env->ctx, &s->query);
}

static void ask(struct lease_state *s)
{
    struct api_call *c = &s->call;
    const struct api_env *env = &c->api->env;
    s->query.reply = c->req->mailbox;
    s->query.mail.on_delivery = on_leased;
    s->query.cancel.on_delivery = on_cancelled;
    c->req->user = s;
    c->req->on_hangup = on_hangup;
    env->lease(env->ctx, &s->query);
}

static void lease_handle(struct api_call *c)
{
    static const struct field table[] = {
        {"maxTasks", read_max_tasks},
        {"wait", read_wait},
        {"visibility", read_visibility},
        {"worker", read_worker},
    };
    struct lease_state *s = (struct lease_state *)c;
    struct problem p;
    struct fields f = {.doc = &c->loop->doc, .text = &c->text, .problem = &p, .ctx = &s->query};
    if (!call_check_service(c) || !call_services_known(c))
        return;
    s->query.service_name = c->params[0];
    s->query.max_tasks = 1;
    s->query.wait_ms = LEASE_WAIT_MS;
    if (c->req->body.len > 0 &&
        (!call_parse_body(c, &p) || !fields_read(&f, 0, table, sizeof(table) / sizeof(table[0]))))
        call_problem(c, &p);
    else
        ask(s);
}

/* ---- From other members ------------------------------------------------------------------ */

static bool read_service(struct fields *f, const struct json_token *value)
{
    struct lease_query *q = f->ctx;
    return field_name(f, value, TASK_NAME_MAX, &q->service_name);
}

static bool read_visibility_ms(struct fields *f, const struct json_token *value)
{
    struct lease_query *q = f->ctx;
    int64_t ms;
    if (!field_int(f, value, 0, INT32_MAX, &ms))
        return false;
    q->visibility_ms = (int32_t)ms;
    return true;
}

static bool read_watch(struct fields *f, const struct json_token *value)
{
    struct lease_query *q = f->ctx;
    q->kind = LEASE_WATCH;
    return field_int(f, value, 0, LEASE_WAIT_MAX_MS, &q->wait_ms);
}

static void member_handle(struct api_call *c)
{
    static const struct field table[] = {
        {"service", read_service, .required = true},
        {"maxTasks", read_max_tasks},
        {"visibility", read_visibility_ms},
        {"watch", read_watch},
        {"worker", read_worker},
    };
    struct lease_state *s = (struct lease_state *)c;
    struct problem p;
    struct fields f = {.doc = &c->loop->doc, .text = &c->text, .problem = &p, .ctx = &s->query};
    s->query.kind = LEASE_CLAIM;
    s->query.max_tasks = 1;
    if (!call_is_signed(c))
        problem_set(&p, PROBLEM_NO_SUCH_PATH, NULL, "there is nothing at this path");
    else if (call_parse_body(c, &p) &&
             fields_read(&f, 0, table, sizeof(table) / sizeof(table[0]))) {
        ask(s);
        return;
    }
    call_problem(c, &p);
}

const struct route lease_routes[2] = {
    {VERB_POST, "/api/services/{name}/lease", sizeof(struct lease_state), lease_handle, lease_fini},
    {VERB_POST, "/internal/lease", sizeof(struct lease_state), member_handle, lease_fini},
};
