/* SPDX-License-Identifier: Apache-2.0 */
/* Where services live and how they may be called. A secret goes in and never comes out again. */
#include <stdlib.h>

#include "common/timefmt.h"
#include "node/api/api_impl.h"
#include "node/api/submit_parse.h"

#define CONCURRENCY_MAX 10000

void api_put_time(struct buf *b, const char *key, wall_ms t)
{
    char text[TIME_TEXT_LEN + 1];
    time_format(t, text);
    buf_addf(b, ",\"%s\":\"%s\"", key, text);
}

static void put_service(struct buf *b, const struct api *api, const struct service *s)
{
    const struct api_config *cfg = &api->cfg;
    char timeout[DURATION_TEXT_LEN + 1];
    duration_format(s->timeout_ms > 0 ? s->timeout_ms : cfg->default_timeout_ms, timeout);
    buf_addz(b, "{\"name\":");
    json_put_string(b, s->name);
    buf_addz(b, ",\"baseUrl\":");
    json_put_string(b, s->base_url);
    buf_addf(b, ",\"hasSecret\":%s,\"policy\":", s->secret.p ? "true" : "false");
    json_put_string(b, s->policy.p ? s->policy : STR("default"));
    buf_addf(b,
             ",\"shards\":%d,\"concurrency\":%d,\"timeout\":\"%s\",\"paused\":%s,\"version\":%lld",
             (int)s->shards, (int)(s->concurrency > 0 ? s->concurrency : cfg->default_concurrency),
             timeout, s->paused ? "true" : "false", (long long)s->version);
    buf_addz(b, ",\"delivery\":");
    delivery_put(b, s);
    api_put_time(b, "createdAt", s->created_at);
    api_put_time(b, "updatedAt", s->updated_at);
    buf_addc(b, '}');
}

static void send_service(struct api_call *c, int status, const struct service *s)
{
    put_service(call_out(c), c->api, s);
    call_send_json(c, status);
}

bool call_check_service(struct api_call *c)
{
    struct problem p;
    if (check_name(&p, "name", c->params[0], TASK_NAME_MAX))
        return true;
    call_problem(c, &p);
    return false;
}

static void service_changed(struct api_call *c, const char *what)
{
    LOG(c->api->env.log, LOG_INFO, "service.changed", NULL, F_STR("service", c->params[0]),
        F_Z("change", what));
    c->api->env.services_changed(c->api->env.ctx);
}

/* ---- List and get ------------------------------------------------------------------------ */

struct services_state {
    struct api_call call;
    struct call_service_list op;
};

static void services_fini(struct api_call *c)
{
    free(((struct services_state *)c)->op.services);
}

static void on_listed(struct mail *m)
{
    struct services_state *s = OWNER_OF(m, struct services_state, op.call.op.mail);
    struct api_call *c = &s->call;
    if (s->op.call.op.rc) {
        call_store_failed(c, &s->op.call.op, EFFECT_NONE);
        return;
    }
    struct buf *b = call_out(c);
    buf_addz(b, "{\"services\":[");
    for (size_t i = 0; i < s->op.n; i++) {
        if (i > 0)
            buf_addc(b, ',');
        put_service(b, c->api, &s->op.services[i]);
    }
    buf_addz(b, "]}");
    call_send_json(c, 200);
}

static void list_handle(struct api_call *c)
{
    struct services_state *s = (struct services_state *)c;
    call_post(c, call_prepare(&s->op.call, CALL_SERVICE_LIST), on_listed, EFFECT_NONE);
}

static void on_listed_for_one(struct mail *m)
{
    struct services_state *s = OWNER_OF(m, struct services_state, op.call.op.mail);
    struct api_call *c = &s->call;
    if (s->op.call.op.rc) {
        call_store_failed(c, &s->op.call.op, EFFECT_NONE);
        return;
    }
    for (size_t i = 0; i < s->op.n; i++) {
        if (str_eq(s->op.services[i].name, c->params[0])) {
            send_service(c, 200, &s->op.services[i]);
            return;
        }
    }
    call_not_found(c, "name", c->params[0]);
}

static void get_handle(struct api_call *c)
{
    struct services_state *s = (struct services_state *)c;
    if (call_check_service(c))
        call_post(c, call_prepare(&s->op.call, CALL_SERVICE_LIST), on_listed_for_one, EFFECT_NONE);
}

/* ---- Put --------------------------------------------------------------------------------- */

struct put_state {
    struct api_call call;
    struct service in;
    struct call_service_put op;
};

static void put_fini(struct api_call *c)
{
    free(((struct put_state *)c)->op.stored);
}

bool api_read_checked(struct api *api, struct fields *f, const struct json_token *value,
                      int (*check)(void *ctx, struct str s, struct err *err), struct str *ret)
{
    struct err err = {0};
    if (!field_string(f, value, ret))
        return false;
    switch (check(api->env.ctx, *ret, &err)) {
    case 0:
        return true;
    case ERR_UNAVAILABLE:
        return problem_set(f->problem, PROBLEM_UNAVAILABLE, NULL, "%s", err.text);
    case ERR_NOMEM:
        return problem_set(f->problem, PROBLEM_OVERLOADED, NULL, "out of memory");
    default:
        return problem_set(f->problem, PROBLEM_INVALID_FIELD, f->name, "%s: %s", f->name, err.text);
    }
}

static bool read_base_url(struct fields *f, const struct json_token *value)
{
    struct put_state *s = f->ctx;
    struct api *api = s->call.api;
    return api_read_checked(api, f, value, api->env.check_base_url, &s->in.base_url);
}

static bool read_secret(struct fields *f, const struct json_token *value)
{
    struct put_state *s = f->ctx;
    struct api *api = s->call.api;
    return api_read_checked(api, f, value, api->env.check_secret, &s->in.secret);
}

static bool read_number(struct fields *f, const struct json_token *value, int64_t max, int32_t *ret)
{
    int64_t n;
    if (!field_int(f, value, 1, max, &n))
        return false;
    *ret = (int32_t)n;
    return true;
}

static bool read_shards(struct fields *f, const struct json_token *value)
{
    return read_number(f, value, SERVICE_SHARDS_MAX, &((struct put_state *)f->ctx)->in.shards);
}

static bool read_concurrency(struct fields *f, const struct json_token *value)
{
    return read_number(f, value, CONCURRENCY_MAX, &((struct put_state *)f->ctx)->in.concurrency);
}

static bool read_timeout(struct fields *f, const struct json_token *value)
{
    struct put_state *s = f->ctx;
    int64_t ms;
    if (!field_duration(f, value, 1, s->call.api->cfg.max_timeout_ms, &ms))
        return false;
    s->in.timeout_ms = (int32_t)ms;
    return true;
}

static bool read_policy(struct fields *f, const struct json_token *value)
{
    struct put_state *s = f->ctx;
    return field_string(f, value, &s->in.policy) &&
           policy_find_named(s->call.api, s->in.policy, f->problem);
}

static bool read_delivery(struct fields *f, const struct json_token *value)
{
    return delivery_read(f, value, &((struct put_state *)f->ctx)->in);
}

/* Only workers that fetch their tasks themselves have no address. */
static bool has_address(const struct service *s, struct problem *p)
{
    if (s->base_url.p || s->delivery == DELIVERY_PULL)
        return true;
    problem_set(p, PROBLEM_MISSING_FIELD, "baseUrl", "baseUrl is required");
    problem_hint(p, "A service whose delivery has the mode \"pull\" needs none.");
    return false;
}

static void on_put(struct mail *m)
{
    struct put_state *s = OWNER_OF(m, struct put_state, op.call.op.mail);
    struct api_call *c = &s->call;
    if (s->op.call.op.rc) {
        call_store_failed(c, &s->op.call.op, EFFECT_REPEAT);
        return;
    }
    service_changed(c, s->op.created ? "created" : "replaced");
    send_service(c, s->op.created ? 201 : 200, s->op.stored);
}

static void put_handle(struct api_call *c)
{
    static const struct field put_fields[] = {
        {"baseUrl", read_base_url},        {"secret", read_secret},   {"shards", read_shards},
        {"concurrency", read_concurrency}, {"timeout", read_timeout}, {"policy", read_policy},
        {"delivery", read_delivery},
    };
    struct put_state *s = (struct put_state *)c;
    struct problem p;
    struct fields f = {.doc = &c->loop->doc, .text = &c->text, .problem = &p, .ctx = s};
    if (!call_check_service(c))
        return;
    s->in.name = c->params[0];
    s->in.shards = 1;
    s->op.in = &s->in;
    if (!call_parse_body(c, &p) ||
        !fields_read(&f, 0, put_fields, sizeof(put_fields) / sizeof(put_fields[0])) ||
        !has_address(&s->in, &p)) {
        call_problem(c, &p);
        return;
    }
    call_post(c, call_prepare(&s->op.call, CALL_SERVICE_PUT), on_put, EFFECT_NONE);
}

/* ---- Pause, resume, delete --------------------------------------------------------------- */

struct pause_state {
    struct api_call call;
    struct call_service_pause op;
};

static void pause_fini(struct api_call *c)
{
    free(((struct pause_state *)c)->op.stored);
}

static void on_paused(struct mail *m)
{
    struct pause_state *s = OWNER_OF(m, struct pause_state, op.call.op.mail);
    struct api_call *c = &s->call;
    if (s->op.call.op.rc == ERR_NOT_FOUND) {
        call_not_found(c, "name", c->params[0]);
    } else if (s->op.call.op.rc) {
        call_store_failed(c, &s->op.call.op, EFFECT_REPEAT);
    } else {
        service_changed(c, s->op.paused ? "paused" : "resumed");
        send_service(c, 200, s->op.stored);
    }
}

static void pause_or_resume(struct api_call *c, bool paused)
{
    struct pause_state *s = (struct pause_state *)c;
    struct problem p;
    if (!call_check_service(c))
        return;
    if (!call_no_fields(c, &p)) {
        call_problem(c, &p);
        return;
    }
    s->op.name = c->params[0];
    s->op.paused = paused;
    call_post(c, call_prepare(&s->op.call, CALL_SERVICE_PAUSE), on_paused, EFFECT_NONE);
}

static void pause_handle(struct api_call *c)
{
    pause_or_resume(c, true);
}

static void resume_handle(struct api_call *c)
{
    pause_or_resume(c, false);
}

struct delete_state {
    struct api_call call;
    struct call_service_delete op;
};

static void on_deleted(struct mail *m)
{
    struct delete_state *s = OWNER_OF(m, struct delete_state, op.call.op.mail);
    struct api_call *c = &s->call;
    struct problem p;
    switch (s->op.call.op.rc) {
    case 0:
        service_changed(c, "deleted");
        call_send_empty(c, 204);
        return;
    case ERR_NOT_FOUND:
        call_not_found(c, "name", c->params[0]);
        return;
    case ERR_CONFLICT:
        problem_set(&p, PROBLEM_IN_USE, "name", "live tasks name this service");
        problem_hint(&p, "Cancel them or let them end first; pausing the service holds them back.");
        call_problem(c, &p);
        return;
    default:
        call_store_failed(c, &s->op.call.op, EFFECT_REPEAT);
    }
}

static void delete_handle(struct api_call *c)
{
    struct delete_state *s = (struct delete_state *)c;
    if (!call_check_service(c))
        return;
    s->op.name = c->params[0];
    call_post(c, call_prepare(&s->op.call, CALL_SERVICE_DELETE), on_deleted, EFFECT_NONE);
}

const struct route service_routes[6] = {
    {VERB_GET, "/api/services", sizeof(struct services_state), list_handle, services_fini},
    {VERB_GET, "/api/services/{name}", sizeof(struct services_state), get_handle, services_fini},
    {VERB_PUT, "/api/services/{name}", sizeof(struct put_state), put_handle, put_fini},
    {VERB_DELETE, "/api/services/{name}", sizeof(struct delete_state), delete_handle, NULL},
    {VERB_POST, "/api/services/{name}/pause", sizeof(struct pause_state), pause_handle, pause_fini},
    {VERB_POST, "/api/services/{name}/resume", sizeof(struct pause_state), resume_handle,
     pause_fini},
};
