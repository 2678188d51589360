/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/http_check.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/json.h"
#include "tests/fuzz/json_oracle.h"

static const int statuses[] = {100, 200, 201, 204, 400, 404, 405, 408,
                               409, 413, 415, 417, 422, 431, 503, 505};

struct head {
    struct str type;
    int64_t length; /* -1 = none */
    bool has_date;
    bool has_retry_after;
    bool closes;
};

static _Noreturn void bad(const char *why, struct str at)
{
    (void)fprintf(stderr, "%s:\n" STR_FMT "\n", why, STR_ARG(at));
    abort();
}

static bool is_documented(int status)
{
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        if (status == statuses[i])
            return true;
    }
    return false;
}

/* A line without its CRLF. */
static struct str take_line(struct str *out)
{
    const char *end = out->len > 0 ? memmem(out->p, out->len, "\r\n", 2) : NULL;
    if (!end)
        bad("a line without its end", *out);
    struct str line = {out->p, (size_t)(end - out->p)};
    for (size_t i = 0; i < line.len; i++) {
        if ((uint8_t)line.p[i] < 0x20 || (uint8_t)line.p[i] >= 0x7f)
            bad("a byte that no head may have", line);
    }
    out->p += line.len + 2;
    out->len -= line.len + 2;
    return line;
}

static int read_status(struct str line)
{
    int64_t status;
    if (line.len < 14 || memcmp(line.p, "HTTP/1.1 ", 9) != 0 || line.p[12] != ' ' ||
        !str_to_i64((struct str){line.p + 9, 3}, &status) || !is_documented((int)status))
        bad("no status line, or a status that is not documented", line);
    return (int)status;
}

static bool is_name(struct str s, const char *name)
{
    return s.len == strlen(name) && strncasecmp(s.p, name, s.len) == 0;
}

static void read_header(struct str line, struct head *h)
{
    const char *colon = memchr(line.p, ':', line.len);
    struct str name = {line.p, colon ? (size_t)(colon - line.p) : 0};
    if (!name_valid(name, 40) || colon[1] != ' ')
        bad("no header line", line);
    struct str value = {colon + 2, line.len - name.len - 2};
    if (value.len == 0)
        bad("a header without a value", line);
    if (is_name(name, "content-length")) {
        if (h->length >= 0 || !str_to_i64(value, &h->length) || h->length < 0)
            bad("a wrong Content-Length", line);
    } else if (is_name(name, "content-type")) {
        h->type = value;
    } else if (is_name(name, "connection")) {
        h->closes = is_name(value, "close");
    } else if (is_name(name, "date")) {
        h->has_date = true;
    } else if (is_name(name, "retry-after")) {
        h->has_retry_after = true;
    } else if (!is_name(name, "location") && !is_name(name, "allow")) {
        bad("a header that this server does not send", line);
    }
}

/* What our own tokenizer refuses may only be too deep for it: a payload inside of a list. */
static void check_json(struct str body)
{
    struct json_doc doc = JSON_DOC_INIT;
    int rc = json_parse(&doc, body, (uint32_t)body.len + 1, NULL);
    if ((rc != 0 && rc != ERR_TOO_BIG) || oracle_read(body, NULL) == ORACLE_REFUSES)
        bad("a body that is no JSON", body);
    json_doc_fini(&doc);
}

static void check_problem(struct str body, int status)
{
    static const char *const texts[] = {"type", "title", "detail"};
    struct json_doc doc = JSON_DOC_INIT;
    int64_t said = 0;
    int rc = json_parse(&doc, body, 1000, NULL);
    uint32_t at = rc == 0 ? json_find(&doc, 0, "status") : 0;
    if (at == 0 || !json_to_i64(&doc.tokens[at], &said) || said != status)
        bad("a problem of another status", body);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        at = json_find(&doc, 0, texts[i]);
        if (at == 0 || doc.tokens[at].type != JSON_STRING || doc.tokens[at].raw.len < 3)
            bad("a problem without one of its texts", body);
    }
    json_doc_fini(&doc);
}

static void check_body(const struct head *h, const struct checked_answer *a)
{
    bool is_problem = is_name(h->type, "application/problem+json");
    if (is_problem != (a->status >= 400))
        bad("an error is a problem document, and nothing else is", h->type);
    if (is_problem && a->body.len > 0)
        check_problem(a->body, a->status);
    else if (a->is_json && a->body.len > 0)
        check_json(a->body);
    else if (!a->is_json && h->type.p && !utf8_valid(a->body))
        bad("a body that is no text", a->body);
}

void http_check_answer(struct str *out, enum body_rule rule, struct checked_answer *ret)
{
    struct str whole = *out;
    struct head h = {.length = -1};
    struct str line = take_line(out);
    *ret = (struct checked_answer){.status = read_status(line)};
    while ((line = take_line(out)).len > 0)
        read_header(line, &h);
    if (ret->status == 100)
        return;
    bool has_body = ret->status != 204;
    if (!h.has_date || has_body != (h.length >= 0) || (has_body && !h.type.p && h.length > 0) ||
        (ret->status == 503 && !h.has_retry_after))
        bad("a header that is missing, or too much", whole);
    size_t len = rule == BODY_THERE && has_body ? (size_t)h.length : 0;
    if (len > out->len)
        bad("a body that ends early", whole);
    ret->closes = h.closes;
    ret->is_json = is_name(h.type, "application/json");
    ret->body = (struct str){out->p, len};
    out->p += len;
    out->len -= len;
    check_body(&h, ret);
}
