/* SPDX-License-Identifier: Apache-2.0 */
#include "node/api/problem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"

#define TYPE(name) "urn:jobflow:problem:" name

struct problem_row {
    int status;
    const char *type;
    const char *title;
};

static const struct problem_row problem_rows[PROBLEM_N_KINDS] = {
    [PROBLEM_BAD_REQUEST] = {400, TYPE("bad-request"), "The request is not well-formed HTTP"},
    [PROBLEM_INVALID_JSON] = {400, TYPE("invalid-json"), "The body is not acceptable JSON"},
    [PROBLEM_INVALID_FIELD] = {400, TYPE("invalid-field"), "A field has a wrong value"},
    [PROBLEM_MISSING_FIELD] = {400, TYPE("missing-field"), "A required field is missing"},
    [PROBLEM_UNKNOWN_FIELD] = {400, TYPE("unknown-field"), "A field is not known here"},
    [PROBLEM_NO_SUCH_PATH] = {404, TYPE("no-such-path"), "There is nothing at this path"},
    [PROBLEM_NOT_FOUND] = {404, TYPE("not-found"), "The thing named does not exist"},
    [PROBLEM_METHOD_NOT_ALLOWED] = {405, TYPE("method-not-allowed"), "Not with this method"},
    [PROBLEM_REQUEST_TIMEOUT] = {408, TYPE("request-timeout"), "The request came too slowly"},
    [PROBLEM_KEY_TAKEN] = {409, TYPE("key-taken"), "The bizUuid belongs to another task"},
    [PROBLEM_ALREADY_EXISTS] = {409, TYPE("already-exists"), "The task exists already"},
    [PROBLEM_IN_FLIGHT] = {409, TYPE("in-flight"), "An attempt is under way"},
    [PROBLEM_FINISHED] = {409, TYPE("finished"), "The task's state does not allow this"},
    [PROBLEM_STALE_ATTEMPT] = {409, TYPE("stale-attempt"), "That attempt is not the live one"},
    [PROBLEM_NOT_PULLED] = {409, TYPE("not-pulled"), "The service is not in pull mode"},
    [PROBLEM_IN_USE] = {409, TYPE("in-use"), "Live tasks still need it"},
    [PROBLEM_LIMIT] = {409, TYPE("limit-reached"), "There are as many as there may be"},
    [PROBLEM_TOO_LARGE] = {413, TYPE("too-large"), "Too large"},
    [PROBLEM_MEDIA_TYPE] = {415, TYPE("unsupported-media-type"), "The body has to be JSON"},
    [PROBLEM_EXPECTATION] = {417, TYPE("expectation-failed"), "This Expect is not supported"},
    [PROBLEM_NOT_STORABLE] = {422, TYPE("not-storable"), "The database refuses this task"},
    [PROBLEM_HEADER_TOO_LARGE] = {431, TYPE("header-too-large"), "The header is too large"},
    [PROBLEM_INTERNAL] = {500, TYPE("internal"), "Something went wrong inside"},
    [PROBLEM_UNAVAILABLE] = {503, TYPE("unavailable"), "The database cannot be used now"},
    [PROBLEM_OVERLOADED] = {503, TYPE("overloaded"), "Too much is under way"},
    [PROBLEM_NOT_READY] = {503, TYPE("not-ready"), "This node is not ready"},
    [PROBLEM_HTTP_VERSION] = {505, TYPE("http-version"), "Only HTTP/1.0 and HTTP/1.1 are spoken"},
};

static void format(char *dst, size_t cap, const char *fmt, va_list ap)
{
    char text[1024];
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    assert(n >= 0);
    size_t len = (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1;
    utf8_clean(dst, cap, (struct str){text, len});
}

bool problem_set(struct problem *p, enum problem_kind kind, const char *field, const char *fmt, ...)
{
    p->kind = kind;
    p->hint[0] = '\0';
    problem_field(p, str_from(field));
    va_list ap;
    va_start(ap, fmt);
    format(p->detail, sizeof(p->detail), fmt, ap);
    va_end(ap);
    return false;
}

void problem_field(struct problem *p, struct str field)
{
    if (field.p)
        utf8_clean(p->field, sizeof(p->field), field);
    else
        p->field[0] = '\0';
}

void problem_hint(struct problem *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    format(p->hint, sizeof(p->hint), fmt, ap);
    va_end(ap);
}

int problem_status(enum problem_kind kind)
{
    return problem_rows[kind].status;
}

void problem_put_open(struct buf *b, const struct problem *p)
{
    const struct problem_row *row = &problem_rows[p->kind];
    buf_addf(b, "{\"type\":\"%s\",\"title\":\"%s\",\"status\":%d", row->type, row->title,
             row->status);
    buf_addz(b, ",\"detail\":");
    json_put_stringz(b, p->detail);
    if (p->field[0]) {
        buf_addz(b, ",\"field\":");
        json_put_stringz(b, p->field);
    }
    if (p->hint[0]) {
        buf_addz(b, ",\"hint\":");
        json_put_stringz(b, p->hint);
    }
}

void problem_put(struct buf *b, const struct problem *p)
{
    problem_put_open(b, p);
    buf_addc(b, '}');
}
