/* SPDX-License-Identifier: Apache-2.0 */
/* Which call a request is: one table, in parts that stand beside their handlers. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "node/api/api_impl.h"
#include "node/api/uri.h"

struct route_part {
    const struct route *routes;
    size_t n;
};

#define PART(routes)                                                                               \
    {                                                                                              \
        (routes), sizeof(routes) / sizeof((routes)[0])                                             \
    }
static const struct route_part parts[] = {
    PART(submit_routes),  PART(task_routes),    PART(list_routes),    PART(explain_routes),
    PART(notify_routes),  PART(attempt_routes), PART(service_routes), PART(instance_routes),
    PART(cluster_routes), PART(lease_routes),   PART(report_routes),  PART(meta_routes),
};

#define VERB_BIT(verb) (1u << (verb))

/* Cuts the segment up to the next '/' or the end off *s. */
static struct str take_segment(struct str *s)
{
    const char *slash = s->len > 0 ? memchr(s->p, '/', s->len) : NULL;
    struct str segment = {s->p, slash ? (size_t)(slash - s->p) : s->len};
    s->p += segment.len;
    s->len -= segment.len;
    return segment;
}

static bool skip_slash(struct str *s)
{
    if (s->len == 0 || *s->p != '/')
        return false;
    s->p++;
    s->len--;
    return true;
}

/* Compares segment by segment; "{…}" stands for any that is not empty. */
static bool matches(struct str pattern, struct str path, struct str params[API_MAX_PARAMS])
{
    size_t n = 0;
    memset(params, 0, API_MAX_PARAMS * sizeof(params[0]));
    while (skip_slash(&pattern)) {
        if (!skip_slash(&path))
            return false;
        struct str want = take_segment(&pattern);
        struct str have = take_segment(&path);
        if (want.len > 0 && want.p[0] == '{') {
            assert(n < API_MAX_PARAMS);
            if (have.len == 0)
                return false;
            params[n++] = have;
        } else if (!str_eq(want, have)) {
            return false;
        }
    }
    return path.len == 0;
}

/* Finds the route; *ret_verbs says what the path knows instead. */
static const struct route *find_route(const struct http_request *req, unsigned *ret_verbs,
                                      struct str params[API_MAX_PARAMS])
{
    unsigned verbs = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        for (size_t j = 0; j < parts[i].n; j++) {
            const struct route *r = &parts[i].routes[j];
            if (!matches(str_from(r->pattern), req->path, params))
                continue;
            if (r->verb == req->verb)
                return r;
            verbs |= VERB_BIT(r->verb);
        }
    }
    *ret_verbs = verbs;
    return NULL;
}

static void put_allow(struct buf *b, unsigned verbs)
{
    static const char *const names[] = {
        [VERB_GET] = "GET, HEAD", [VERB_POST] = "POST",     [VERB_PUT] = "PUT",
        [VERB_PATCH] = "PATCH",   [VERB_DELETE] = "DELETE",
    };
    const char *separator = "Allow: ";
    for (unsigned verb = 0; verb < VERB_OTHER; verb++) {
        if (!(verbs & VERB_BIT(verb)))
            continue;
        buf_addz(b, separator);
        buf_addz(b, names[verb]);
        separator = ", ";
    }
    buf_addz(b, "\r\n");
}

/* A state for requests that no route takes: only there to be answered. */
static const struct route no_route = {.pattern = "", .size = sizeof(struct api_call)};

static void answer_no_route(struct api_call *c, unsigned verbs)
{
    struct problem p;
    if (verbs == 0)
        problem_set(&p, PROBLEM_NO_SUCH_PATH, NULL, "there is nothing at this path");
    else
        problem_set(&p, PROBLEM_METHOD_NOT_ALLOWED, NULL,
                    "this path does not know the request's method");
    problem_put_open(call_out(c), &p);
    if (verbs != 0)
        put_allow(&c->loop->headers, verbs);
    call_send_problem(c, p.kind);
}

static bool is_json_type(struct str type)
{
    const char *semicolon = memchr(type.p, ';', type.len);
    size_t len = semicolon ? (size_t)(semicolon - type.p) : type.len;
    while (len > 0 && (type.p[len - 1] == ' ' || type.p[len - 1] == '\t'))
        len--;
    return len == strlen("application/json") && strncasecmp(type.p, "application/json", len) == 0;
}

/* Bodies of GET and DELETE are not looked at. */
static bool check_body_type(struct api_call *c, struct problem *p)
{
    const struct http_request *req = c->req;
    if (req->verb == VERB_GET || req->verb == VERB_DELETE || req->body.len == 0 ||
        !req->content_type.p || is_json_type(req->content_type))
        return true;
    problem_set(p, PROBLEM_MEDIA_TYPE, NULL, "the body's Content-Type is \"" STR_FMT "\"",
                STR_ARG(req->content_type));
    problem_hint(p, "Send \"Content-Type: application/json\" (or none).");
    return false;
}

/* Room for every text that may have to be decoded or unescaped. */
static bool reserve_text(struct api_call *c)
{
    const struct http_request *req = c->req;
    size_t room = 0;
    if (memchr(req->path.p, '%', req->path.len))
        room += req->path.len;
    if (req->query.len > 0)
        room += req->query.len;
    if (req->body.len > 0 && memchr(req->body.p, '\\', req->body.len))
        room += req->body.len;
    return room == 0 || buf_room(&c->text, room);
}

static bool decode_params(struct api_call *c, struct problem *p)
{
    for (size_t i = 0; i < API_MAX_PARAMS && c->params[i].p; i++) {
        if (!uri_decode(c->params[i], &c->text, &c->params[i])) {
            problem_set(p, PROBLEM_INVALID_FIELD, "path",
                        "the path has a bad percent-encoding, a NUL or ill-formed UTF-8");
            return false;
        }
    }
    return true;
}

void route_request(void *ctx, struct http_request *req)
{
    struct api *api = ctx;
    struct str params[API_MAX_PARAMS] = {{0}};
    unsigned verbs = 0;
    const struct route *route = find_route(req, &verbs, params);
    counter_add(&api->env.counters->http_requests, 1);
    struct api_call *c = calloc(1, route ? route->size : sizeof(*c));
    if (!c) {
        http_answer(req, &(struct http_answer){.status = 503, .close = true});
        return;
    }
    c->api = api;
    c->loop = &api->loops[req->loop];
    c->req = req;
    c->route = route ? route : &no_route;
    if (!route) {
        answer_no_route(c, verbs);
        return;
    }
    struct problem p;
    memcpy(c->params, params, sizeof(params));
    if (!reserve_text(c))
        problem_set(&p, PROBLEM_OVERLOADED, NULL, "out of memory");
    else if (check_body_type(c, &p) && decode_params(c, &p)) {
        route->handle(c);
        return;
    }
    call_problem(c, &p);
}
