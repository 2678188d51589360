/* SPDX-License-Identifier: Apache-2.0 */
/* GET /api/delay-tasks: a page by keyset. The cursor is opaque: the id where the next page begins.
 */
#include <stdlib.h>
#include <string.h>

#include "node/api/api_impl.h"
#include "node/api/fields.h"
#include "node/api/uri.h"

#define LIMIT_DEFAULT 50
#define LIMIT_MAX 200
#define CURSOR_LEN 16

struct list_state {
    struct api_call call;
    struct call_list op;
};

static void list_fini(struct api_call *c)
{
    struct list_state *s = (struct list_state *)c;
    for (size_t i = 0; i < s->op.n; i++)
        task_free(s->op.tasks[i]);
    free(s->op.tasks);
}

/* ---- Parameters -------------------------------------------------------------------------- */

static bool read_status(struct call_list *op, struct str value, struct problem *p)
{
    while (value.p) {
        const char *comma = value.len > 0 ? memchr(value.p, ',', value.len) : NULL;
        struct str one = {value.p, comma ? (size_t)(comma - value.p) : value.len};
        enum task_status status;
        if (!task_status_parse(one, &status)) {
            problem_set(p, PROBLEM_INVALID_FIELD, "status", "\"%.*s\" is no status",
                        (int)utf8_cut(one, 64), one.p);
            problem_hint(p, "PENDING, SENDING, SENT, RETRYING, SUCCESS, FAILED, MANUAL_REQUIRED, "
                            "CANCELLED, or several with commas between them.");
            return false;
        }
        op->statuses |= task_status_bit(status);
        value = comma ? (struct str){comma + 1, value.len - one.len - 1} : (struct str){0};
    }
    return true;
}

static bool read_service(struct call_list *op, struct str value, struct problem *p)
{
    op->service_name = value;
    return check_name(p, "service", value, TASK_NAME_MAX);
}

static bool read_handler(struct call_list *op, struct str value, struct problem *p)
{
    op->handler = value;
    return check_name(p, "handler", value, TASK_NAME_MAX);
}

static bool read_time(const char *name, struct str value, wall_ms *ret, struct problem *p)
{
    if (str_to_i64(value, ret))
        return check_time_range(p, name, *ret);
    return check_time(p, name, value, ret);
}

static bool read_from(struct call_list *op, struct str value, struct problem *p)
{
    return read_time("from", value, &op->from, p);
}

static bool read_to(struct call_list *op, struct str value, struct problem *p)
{
    return read_time("to", value, &op->to, p);
}

static bool read_limit(struct call_list *op, struct str value, struct problem *p)
{
    int64_t n;
    if (!str_to_i64(value, &n) || n < 1 || n > LIMIT_MAX)
        return problem_set(p, PROBLEM_INVALID_FIELD, "limit",
                           "limit has to be a whole number from 1 to %d", LIMIT_MAX);
    op->limit = (uint32_t)n;
    return true;
}

static bool read_cursor(struct call_list *op, struct str value, struct problem *p)
{
    uint64_t id = 0;
    bool ok = value.len == CURSOR_LEN;
    for (size_t i = 0; ok && i < value.len; i++) {
        const char *digits = "0123456789abcdef";
        const char *at = value.p[i] ? strchr(digits, value.p[i]) : NULL;
        ok = at != NULL;
        id = id << 4 | (uint64_t)(ok ? at - digits : 0);
    }
    if (!ok || id == 0 || id > INT64_MAX)
        return problem_set(p, PROBLEM_INVALID_FIELD, "cursor",
                           "cursor has to be a nextCursor of an earlier answer, as it stood there");
    op->before_id = (int64_t)id;
    return true;
}

static const struct {
    const char *name;
    bool (*read)(struct call_list *op, struct str value, struct problem *p);
} parameters[] = {
    {"status", read_status}, {"service", read_service}, {"handler", read_handler},
    {"from", read_from},     {"to", read_to},           {"limit", read_limit},
    {"cursor", read_cursor},
};
#define N_PARAMETERS (sizeof(parameters) / sizeof(parameters[0]))

static bool read_parameter(struct list_state *s, struct str key, struct str value, unsigned *seen,
                           struct problem *p)
{
    for (size_t i = 0; i < N_PARAMETERS; i++) {
        const char *name = parameters[i].name;
        if (!str_eqz(key, name))
            continue;
        if (*seen & 1u << i)
            return problem_set(p, PROBLEM_INVALID_FIELD, name, "%s is given more than once", name);
        *seen |= 1u << i;
        if (!value.p || !uri_decode(value, &s->call.text, &value) || value.len == 0)
            return problem_set(p, PROBLEM_INVALID_FIELD, name,
                               "%s has no value, or one with a bad encoding", name);
        return parameters[i].read(&s->op, value, p);
    }
    problem_set(p, PROBLEM_UNKNOWN_FIELD, NULL, "there is no such query parameter");
    problem_field(p, key);
    problem_hint(p, "Parameters are: status, service, handler, from, to, limit, cursor.");
    return false;
}

static bool read_query(struct list_state *s, struct problem *p)
{
    struct str rest = s->call.req->query, key, value;
    unsigned seen = 0;
    while (uri_next_pair(&rest, &key, &value)) {
        if (!uri_decode(key, &s->call.text, &key))
            return problem_set(p, PROBLEM_INVALID_FIELD, "query",
                               "a parameter's name has a bad encoding");
        if (!read_parameter(s, key, value, &seen, p))
            return false;
    }
    if (s->op.from != WALL_NONE && s->op.to != WALL_NONE && s->op.to <= s->op.from)
        return problem_set(p, PROBLEM_INVALID_FIELD, "to", "to has to be later than from");
    return true;
}

/* ---- The page ---------------------------------------------------------------------------- */

static void on_listed(struct mail *m)
{
    struct list_state *s = OWNER_OF(m, struct list_state, op.call.op.mail);
    if (s->op.call.op.rc) {
        call_store_failed(&s->call, &s->op.call.op, EFFECT_NONE);
        return;
    }
    struct buf *b = call_out(&s->call);
    buf_addz(b, "{\"tasks\":[");
    for (size_t i = 0; i < s->op.n; i++) {
        if (i > 0)
            buf_addc(b, ',');
        task_put_record(b, s->op.tasks[i]);
        buf_addc(b, '}');
    }
    if (s->op.next_before_id > 0)
        buf_addf(b, "],\"nextCursor\":\"%016llx\"}", (unsigned long long)s->op.next_before_id);
    else
        buf_addz(b, "],\"nextCursor\":null}");
    call_send_json(&s->call, 200);
}

static void list_handle(struct api_call *c)
{
    struct list_state *s = (struct list_state *)c;
    struct problem p;
    s->op.from = s->op.to = WALL_NONE;
    s->op.before_id = INT64_MAX;
    s->op.limit = LIMIT_DEFAULT;
    s->op.look_limit = API_LOOK_LIMIT;
    if (!read_query(s, &p)) {
        call_problem(c, &p);
        return;
    }
    call_post(c, call_prepare(&s->op.call, CALL_LIST), on_listed, EFFECT_NONE);
}

const struct route list_routes[1] = {
    {VERB_GET, "/api/delay-tasks", sizeof(struct list_state), list_handle, list_fini},
};
