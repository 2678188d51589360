/* SPDX-License-Identifier: Apache-2.0 */
/* Workers lease tasks: a long poll that the node answers when there are due tasks, or after its
 * wait. No thread waits with it. Other members ask in the same way, by a signed call.
 *
 * A client that hangs up is told to the node, and the request is answered when the node has given
 * the query back and has heard of that, too. Tasks that come for it nevertheless are given back. */
#include <inttypes.h>
#include <stdlib.h>

#include "node/api/api_impl.h"
#include "node/api/fields.h"

#define LEASE_TASKS_MAX 1000
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

static void give_back(struct lease_state *s, size_t from)
{
    const struct api_env *env = &s->call.api->env;
    struct lease_query *q = &s->query;
    size_t n = q->n - from;
    struct task **tasks = n > 0 ? calloc(n, sizeof(*tasks)) : NULL;
    if (!tasks) /* or out of memory: they are rescued at their deadline */
        return;
    for (size_t i = 0; i < n; i++)
        tasks[i] = q->tasks[from + i];
    q->n = from;
    env->give_back(env->ctx, tasks, n);
}

static void put_tasks(struct lease_state *s)
{
    struct api_call *c = &s->call;
    struct lease_query *q = &s->query;
    struct buf *b = call_out(c);
    size_t i = 0;
    if (q->n > 0 && (s->is_gone || clock_mono() >= q->hand_by))
        give_back(s, 0);
    buf_addz(b, "{\"tasks\":[");
    for (; i < q->n && b->len < LEASE_BYTES_MAX; i++) {
        if (i > 0)
            buf_addc(b, ',');
        task_put_leased(b, q->tasks[i], api_now(c->api), c->api->cfg.ghost_margin_ms);
    }
    buf_addz(b, "]}");
    give_back(s, buf_ok(b) ? i : 0);
}

static void answer_ok(struct lease_state *s)
{
    struct api_call *c = &s->call;
    if (s->query.kind == LEASE_WATCH)
        buf_addf(call_out(c), "{\"ready\":%" PRIu32 "}", s->query.n_ready);
    else if (s->query.body.len > 0)
        buf_adds(call_out(c), buf_str(&s->query.body));
    else
        put_tasks(s);
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
