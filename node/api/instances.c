/* SPDX-License-Identifier: Apache-2.0 */
/* The instances of a service, as they register themselves. Whatever the database has taken is told
 * to the node before it is answered: its deliveries go by it at once. */
#include <stdlib.h>

#include "common/timefmt.h"
#include "node/api/api_impl.h"
#include "node/api/fields.h"

#define TTL_DEFAULT_MS 15000
#define TTL_MIN_MS 1000
#define TTL_MAX_MS 600000

static void put_instance(struct buf *b, const struct instance *in, wall_ms aside_until)
{
    char ttl[DURATION_TEXT_LEN + 1];
    duration_format(in->ttl_ms, ttl);
    buf_addz(b, "{\"serviceName\":");
    json_put_string(b, in->service_name);
    buf_addz(b, ",\"instance\":");
    json_put_string(b, in->name);
    buf_addz(b, ",\"baseUrl\":");
    json_put_string(b, in->base_url);
    buf_addf(b, ",\"ttl\":\"%s\"", ttl);
    api_put_time(b, "registeredAt", in->registered_at);
    api_put_time(b, "expiresAt", in->expires_at);
    if (aside_until != WALL_NONE)
        api_put_time(b, "setAsideUntil", aside_until);
    buf_addc(b, '}');
}

/* As a name has it, and colons, for host and port. */
static bool check_instance(struct problem *p, struct str s)
{
    bool ok = s.len >= 1 && s.len <= INSTANCE_NAME_MAX && !str_eqz(s, ".") && !str_eqz(s, "..");
    for (size_t i = 0; ok && i < s.len; i++)
        ok = s.p[i] == ':' || name_char_valid(s.p[i]);
    return ok || problem_set(p, PROBLEM_INVALID_FIELD, "instance",
                             "instance has to be 1 to %d characters out of A-Z a-z 0-9 . _ : - and "
                             "neither \".\" nor \"..\"",
                             INSTANCE_NAME_MAX);
}

static void log_instance(struct api_call *c, const char *event, struct str name)
{
    LOG(c->api->env.log, LOG_INFO, event, NULL, F_STR("service", c->params[0]),
        F_STR("instance", name));
}

/* ---- Register and prolong ---------------------------------------------------------------- */

struct register_state {
    struct api_call call;
    struct call_instance_put op;
};

static bool read_instance(struct fields *f, const struct json_token *value)
{
    struct register_state *s = f->ctx;
    return field_string(f, value, &s->op.in.name) && check_instance(f->problem, s->op.in.name);
}

static bool read_base_url(struct fields *f, const struct json_token *value)
{
    struct register_state *s = f->ctx;
    struct api *api = s->call.api;
    return api_read_checked(api, f, value, api->env.check_base_url, &s->op.in.base_url);
}

static bool read_ttl(struct fields *f, const struct json_token *value)
{
    struct register_state *s = f->ctx;
    int64_t ms;
    if (!field_duration(f, value, TTL_MIN_MS, TTL_MAX_MS, &ms))
        return false;
    s->op.in.ttl_ms = (int32_t)ms;
    return true;
}

static void answer_full(struct api_call *c)
{
    struct problem p;
    problem_set(&p, PROBLEM_LIMIT, "instance", "the service has %d live instances already",
                INSTANCES_MAX);
    problem_hint(&p, "One that leaves, or whose ttl ends without a heartbeat, makes room.");
    call_problem(c, &p);
}

static void on_registered(struct mail *m)
{
    struct register_state *s = OWNER_OF(m, struct register_state, op.call.op.mail);
    struct api_call *c = &s->call;
    if (s->op.call.op.rc == ERR_CONFLICT) {
        answer_full(c);
        return;
    }
    if (s->op.call.op.rc) {
        call_store_failed(c, &s->op.call.op, EFFECT_REPEAT);
        return;
    }
    c->api->env.instance_put(c->api->env.ctx, &s->op.in);
    if (s->op.created)
        log_instance(c, "instance.registered", s->op.in.name);
    put_instance(call_out(c), &s->op.in, WALL_NONE);
    call_send_json(c, s->op.created ? 201 : 200);
}

static void register_handle(struct api_call *c)
{
    static const struct field register_fields[] = {
        {"instance", read_instance, .required = true},
        {"baseUrl", read_base_url, .required = true},
        {"ttl", read_ttl},
    };
    struct register_state *s = (struct register_state *)c;
    struct problem p;
    struct fields f = {.doc = &c->loop->doc, .text = &c->text, .problem = &p, .ctx = s};
    if (!call_check_service(c))
        return;
    s->op.in.service_name = c->params[0];
    s->op.in.ttl_ms = TTL_DEFAULT_MS;
    if (!call_parse_body(c, &p) ||
        !fields_read(&f, 0, register_fields,
                     sizeof(register_fields) / sizeof(register_fields[0]))) {
        call_problem(c, &p);
        return;
    }
    call_post(c, call_prepare(&s->op.call, CALL_INSTANCE_PUT), on_registered, EFFECT_NONE);
}

/* ---- Leave ------------------------------------------------------------------------------- */

struct leave_state {
    struct api_call call;
    struct call_instance_delete op;
};

static void on_left(struct mail *m)
{
    struct leave_state *s = OWNER_OF(m, struct leave_state, op.call.op.mail);
    struct api_call *c = &s->call;
    if (s->op.call.op.rc == ERR_NOT_FOUND) {
        call_not_found(c, "instance", c->params[1]);
        return;
    }
    if (s->op.call.op.rc) {
        call_store_failed(c, &s->op.call.op, EFFECT_REPEAT);
        return;
    }
    c->api->env.instance_removed(c->api->env.ctx, s->op.service_name, s->op.name);
    log_instance(c, "instance.left", s->op.name);
    call_send_empty(c, 204);
}

static void leave_handle(struct api_call *c)
{
    struct leave_state *s = (struct leave_state *)c;
    struct problem p;
    if (!call_check_service(c))
        return;
    if (!check_instance(&p, c->params[1])) {
        call_problem(c, &p);
        return;
    }
    s->op.service_name = c->params[0];
    s->op.name = c->params[1];
    call_post(c, call_prepare(&s->op.call, CALL_INSTANCE_DELETE), on_left, EFFECT_NONE);
}

/* ---- List -------------------------------------------------------------------------------- */

struct instances_state {
    struct api_call call;
    struct call_instance_list op;
};

static void list_fini(struct api_call *c)
{
    free(((struct instances_state *)c)->op.instances);
}

static void on_listed(struct mail *m)
{
    struct instances_state *s = OWNER_OF(m, struct instances_state, op.call.op.mail);
    struct api_call *c = &s->call;
    const struct api_env *env = &c->api->env;
    if (s->op.call.op.rc) {
        call_store_failed(c, &s->op.call.op, EFFECT_NONE);
        return;
    }
    struct buf *b = call_out(c);
    buf_addz(b, "{\"instances\":[");
    for (size_t i = 0; i < s->op.n; i++) {
        const struct instance *in = &s->op.instances[i];
        if (i > 0)
            buf_addc(b, ',');
        put_instance(b, in, env->aside_until(env->ctx, in->service_name, in->name));
    }
    buf_addz(b, "]}");
    call_send_json(c, 200);
}

static void list_handle(struct api_call *c)
{
    struct instances_state *s = (struct instances_state *)c;
    if (!call_check_service(c))
        return;
    s->op.service_name = c->params[0];
    call_post(c, call_prepare(&s->op.call, CALL_INSTANCE_LIST), on_listed, EFFECT_NONE);
}

const struct route instance_routes[3] = {
    {VERB_POST, "/api/services/{name}/instances", sizeof(struct register_state), register_handle,
     NULL},
    {VERB_GET, "/api/services/{name}/instances", sizeof(struct instances_state), list_handle,
     list_fini},
    {VERB_DELETE, "/api/services/{name}/instances/{instance}", sizeof(struct leave_state),
     leave_handle, NULL},
};
