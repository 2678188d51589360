/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster as this node sees it, and this node's part in it. */
#include <stdlib.h>

#include "common/timefmt.h"
#include "node/api/api_impl.h"
#include "node/api/fields.h"
#include "node/api/uri.h"

static bool read_query(struct api_call *c, struct str *ret_service, struct problem *p)
{
    struct str rest = c->req->query;
    struct str key;
    struct str value;

    while (rest.p && uri_next_pair(&rest, &key, &value)) {
        struct str name = {0};

        if (!uri_decode(key, &c->text, &name))
            return problem_set(p, PROBLEM_INVALID_FIELD, "query",
                               "a parameter's name has a bad encoding");
        if (!str_eqz(name, "service")) {
            problem_set(p, PROBLEM_UNKNOWN_FIELD, NULL, "there is no such query parameter");
            problem_field(p, name);
            problem_hint(p, "The only parameter of this call is service.");
            return false;
        }
        if (ret_service->p)
            return problem_set(p, PROBLEM_INVALID_FIELD, "service", "service is given twice");
        if (!value.p || !uri_decode(value, &c->text, ret_service))
            return problem_set(p, PROBLEM_INVALID_FIELD, "service",
                               "service has a bad percent-encoding or no value");
        if (!check_name(p, "service", *ret_service, TASK_NAME_MAX))
            return false;
    }
    return true;
}

static void cluster_handle(struct api_call *c)
{
    const struct api_env *env = &c->api->env;
    struct str service = {0};
    struct problem p;

    if (!read_query(c, &service, &p)) {
        call_problem(c, &p);
        return;
    }
    switch (env->cluster(env->ctx, service, call_out(c))) {
    case 0:
        call_send_json(c, 200);
        break;
    case ERR_NOT_FOUND:
        call_not_found(c, "service", service);
        break;
    default:
        problem_set(&p, PROBLEM_OVERLOADED, NULL, "out of memory");
        call_problem(c, &p);
    }
}

static void change_part(struct api_call *c, bool drain)
{
    const struct api_env *env = &c->api->env;
    struct problem p;

    if (!call_no_fields(c, &p)) {
        call_problem(c, &p);
        return;
    }
    if (!env->drain(env->ctx, drain)) {
        problem_set(&p, PROBLEM_NOT_READY, NULL, "the node is stopping");
        call_problem(c, &p);
        return;
    }
    buf_addz(call_out(c), "{\"node\":");
    json_put_stringz(&c->loop->out, env->node_name);
    buf_addf(&c->loop->out, ",\"drain\":%s}", drain ? "true" : "false");
    call_send_json(c, 202);
}

static void drain_handle(struct api_call *c)
{
    change_part(c, true);
}

static void resume_handle(struct api_call *c)
{
    change_part(c, false);
}

/* ---- Hints from other members -------------------------------------------------------------- */

static bool hint_service(struct fields *f, const struct json_token *value)
{
    struct hint *h = f->ctx;
    return field_name(f, value, TASK_NAME_MAX, &h->service_name);
}

static bool hint_int32(struct fields *f, const struct json_token *value, int64_t max, int32_t *ret)
{
    int64_t n;

    if (!field_int(f, value, 0, max, &n))
        return false;
    *ret = (int32_t)n;
    return true;
}

static bool hint_shard(struct fields *f, const struct json_token *value)
{
    return hint_int32(f, value, SERVICE_SHARDS_MAX - 1, &((struct hint *)f->ctx)->shard);
}

static bool hint_lane(struct fields *f, const struct json_token *value)
{
    return hint_int32(f, value, TASK_LANES - 1, &((struct hint *)f->ctx)->lane);
}

static bool hint_id(struct fields *f, const struct json_token *value)
{
    return field_int(f, value, 1, INT64_MAX, &((struct hint *)f->ctx)->id);
}

static bool hint_attempt(struct fields *f, const struct json_token *value)
{
    return hint_int32(f, value, INT32_MAX, &((struct hint *)f->ctx)->attempt);
}

static bool hint_time(struct fields *f, const struct json_token *value)
{
    return field_int(f, value, TIME_MIN, TIME_MAX, &((struct hint *)f->ctx)->next_attempt_time);
}

/* Reads the array at `list`; the caller frees *ret. */
static bool read_hints(struct api_call *c, uint32_t list, struct hint **ret, struct problem *p)
{
    static const struct field table[] = {
        {"serviceName", hint_service, .required = true}, {"shard", hint_shard, .required = true},
        {"lane", hint_lane, .required = true},           {"id", hint_id, .required = true},
        {"attempt", hint_attempt, .required = true},     {"time", hint_time, .required = true},
    };
    const struct json_doc *doc = &c->loop->doc;
    uint32_t n = doc->tokens[list].n;
    uint32_t at = list + 1;

    *ret = calloc(n ? n : 1, sizeof(struct hint));
    if (!*ret)
        return problem_set(p, PROBLEM_OVERLOADED, NULL, "out of memory");
    for (uint32_t i = 0; i < n; i++) {
        struct fields f = {.doc = doc, .text = &c->text, .problem = p, .ctx = &(*ret)[i]};

        if (doc->tokens[at].type != JSON_OBJECT)
            return problem_set(p, PROBLEM_INVALID_FIELD, "hints", "each hint has to be an object");
        if (!fields_read(&f, at, table, sizeof(table) / sizeof(table[0])))
            return false;
        at = doc->tokens[at].next;
    }
    return true;
}

/* The signature's parts stand in the query. */
bool call_is_signed(struct api_call *c)
{
    const struct api_env *env = &c->api->env;
    struct str rest = c->req->query;
    struct str stamp = {0};
    struct str signature = {0};
    struct str key;
    struct str value;

    while (rest.p && uri_next_pair(&rest, &key, &value)) {
        struct str *dst = str_eqz(key, "stamp")       ? &stamp
                          : str_eqz(key, "signature") ? &signature
                                                      : NULL;

        if (!dst || !value.p || !uri_decode(value, &c->text, dst))
            return false;
    }
    return env->is_member(env->ctx, c->req->path, stamp, signature, c->req->body);
}

static void take_hints(struct api_call *c, struct problem *p)
{
    const struct api_env *env = &c->api->env;
    uint32_t list = json_find(&c->loop->doc, 0, "hints");
    uint32_t services = json_find(&c->loop->doc, 0, "services");
    struct hint *hints = NULL;
    bool ok = false;

    if (!list || c->loop->doc.tokens[list].type != JSON_ARRAY ||
        c->loop->doc.tokens[list].n > HINTS_MAX)
        problem_set(p, PROBLEM_INVALID_FIELD, "hints", "hints has to be an array of at most %d",
                    HINTS_MAX);
    else if (services && c->loop->doc.tokens[services].type != JSON_TRUE)
        problem_set(p, PROBLEM_INVALID_FIELD, "services", "services has to be true, or left out");
    else if (!read_hints(c, list, &hints, p))
        ok = false;
    else if (!env->hints(env->ctx, hints, c->loop->doc.tokens[list].n, services))
        problem_set(p, PROBLEM_OVERLOADED, NULL, "too many hints are on their way already");
    else
        ok = true;
    free(hints);
    if (ok)
        call_send_empty(c, 204);
    else
        call_problem(c, p);
}

/* Without the cluster's signature there is nothing here. */
static void hints_handle(struct api_call *c)
{
    struct problem p;

    if (!call_is_signed(c))
        problem_set(&p, PROBLEM_NO_SUCH_PATH, NULL, "there is nothing at this path");
    else if (call_parse_body(c, &p)) {
        take_hints(c, &p);
        return;
    }
    call_problem(c, &p);
}

const struct route cluster_routes[4] = {
    {VERB_GET, "/api/cluster", sizeof(struct api_call), cluster_handle, NULL},
    {VERB_POST, "/api/cluster/drain", sizeof(struct api_call), drain_handle, NULL},
    {VERB_POST, "/api/cluster/resume", sizeof(struct api_call), resume_handle, NULL},
    {VERB_POST, "/internal/hints", sizeof(struct api_call), hints_handle, NULL},
};
