/* SPDX-License-Identifier: Apache-2.0 */
#include "node/dispatch/reply_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* What a 1xx counts at least against the limit of headers, so that there is an end to them. */
#define STATUS_LINE_LEN 16

static const char magic[] = "HTTP/";

static int bad(struct reply *r, const char *text)
{
    (void)snprintf(r->failure, sizeof(r->failure), "%s", text);
    return -1;
}

static bool is_interim(const struct reply *r)
{
    return r->parser.status_code / 100 == 1;
}

static int count_header(struct reply *r, size_t len)
{
    r->header_len += len;
    if (r->header_len <= REPLY_HEADERS_MAX)
        return 0;
    (void)snprintf(r->failure, sizeof(r->failure), "the answer's headers are above %d bytes",
                   REPLY_HEADERS_MAX);
    return -1;
}

static int on_message_begin(http_parser *p)
{
    return count_header(p->data, STATUS_LINE_LEN);
}

static int on_status(http_parser *p, const char *at, size_t len)
{
    (void)at;
    return count_header(p->data, len);
}

static bool is_named(const struct reply *r, const char *name)
{
    return r->name_len == strlen(name) && !strncasecmp(r->name, name, r->name_len);
}

static bool is_retry_after(const struct reply *r)
{
    return is_named(r, "retry-after");
}

/* A value that does not fit is none: the answer is one without the header. */
static void end_retry_after(struct reply *r)
{
    while (r->retry_after_len > 0 && r->retry_after_len <= REPLY_RETRY_AFTER_MAX &&
           strchr(" \t", r->retry_after[r->retry_after_len - 1]))
        r->retry_after_len--;
    r->has_retry_after = r->retry_after_len <= REPLY_RETRY_AFTER_MAX;
}

/* The last line of it may be one whose name only http-parser knows. */
static int check_length(struct reply *r)
{
    if (r->has_length && r->length != r->parser.content_length)
        return bad(r, "the answer has two different Content-Lengths");
    if (r->has_length && r->parser.uses_transfer_encoding)
        return bad(r, "the answer has a Content-Length beside a Transfer-Encoding");
    return 0;
}

/* The same length twice is harmless, and some services say it twice; http-parser would refuse the
 * second one. Two different ones leave it open where the answer ends and the next one begins. */
static int end_length(struct reply *r)
{
    http_parser *p = &r->parser;

    if (check_length(r))
        return -1;
    r->has_length = true;
    r->length = p->content_length;
    p->flags &= ~(unsigned)F_CONTENTLENGTH;
    return 0;
}

static int end_line(struct reply *r)
{
    if (!r->in_value)
        return 0;
    if (is_retry_after(r))
        end_retry_after(r);
    else if (is_named(r, "content-length") && end_length(r))
        return -1;
    r->in_value = false;
    r->name_len = 0;
    return 0;
}

static int on_header_field(http_parser *p, const char *at, size_t len)
{
    struct reply *r = p->data;

    if (r->in_body)
        return count_header(r, len); /* a trailer */
    r->is_begun = !is_interim(r);
    if (end_line(r))
        return -1;
    if (r->name_len < sizeof(r->name)) {
        size_t room = sizeof(r->name) - r->name_len;
        memcpy(r->name + r->name_len, at, len < room ? len : room);
    }
    r->name_len += len;
    return count_header(r, len);
}

static int on_header_value(http_parser *p, const char *at, size_t len)
{
    struct reply *r = p->data;

    if (r->in_body)
        return count_header(r, len);
    if (!r->in_value)
        r->retry_after_len = is_retry_after(r) ? 0 : r->retry_after_len;
    r->in_value = true;
    if (is_retry_after(r)) {
        if (r->retry_after_len < sizeof(r->retry_after)) {
            size_t room = sizeof(r->retry_after) - r->retry_after_len;
            memcpy(r->retry_after + r->retry_after_len, at, len < room ? len : room);
        }
        r->retry_after_len += len;
    }
    return count_header(r, len);
}

/* 1 = whatever its header says, this one has no body. */
static int on_headers_complete(http_parser *p)
{
    struct reply *r = p->data;

    if (end_line(r))
        return -1;
    if (p->http_major != 1)
        return bad(r, "the answer's version is not HTTP/1.1 or HTTP/1.0");
    if (p->status_code < 100)
        return bad(r, "the answer's status has not three digits");
    if (check_length(r))
        return -1;
    p->upgrade = 0; /* nobody asked for it */
    r->in_body = true;
    r->is_begun = !is_interim(r);
    return is_interim(r) || p->status_code == 204 || p->status_code == 304;
}

static int on_body(http_parser *p, const char *at, size_t len)
{
    struct reply *r = p->data;
    size_t room = r->max_body - r->body.len;

    buf_add(&r->body, at, len < room ? len : room);
    if (!buf_ok(&r->body))
        return bad(r, "no memory for the answer");
    r->is_cut = len > room;
    return r->is_cut ? -1 : 0;
}

/* Stops the parser, so that it says how many bytes the answer has. */
static int on_message_complete(http_parser *p)
{
    struct reply *r = p->data;

    r->is_whole = !is_interim(r);
    r->keep_alive = r->is_whole && http_should_keep_alive(p);
    http_parser_pause(p, 1);
    return 0;
}

static const http_parser_settings settings = {
    .on_message_begin = on_message_begin,
    .on_status = on_status,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

static void begin_message(struct reply *r)
{
    http_parser_init(&r->parser, HTTP_RESPONSE);
    r->parser.data = r;
    r->n_magic = 0;
    r->in_body = false;
    r->in_value = false;
    r->name_len = 0;
    r->has_length = false;
    r->has_retry_after = false; /* that of a 1xx says nothing */
    r->retry_after_len = 0;
}

void reply_begin(struct reply *r, size_t max_body)
{
    struct buf kept = r->body;

    if (kept.cap > REPLY_KEEP_MAX)
        buf_fini(&kept);
    buf_clear(&kept);
    memset(r, 0, offsetof(struct reply, retry_after)); /* the texts behind have lengths */
    r->body = kept;
    r->failure[0] = '\0';
    r->max_body = max_body;
    begin_message(r);
}

void reply_fini(struct reply *r)
{
    buf_fini(&r->body);
}

bool reply_is_empty(const struct reply *r)
{
    return !r->n_magic && !r->header_len;
}

/* http-parser takes some other words for "HTTP", as HTXX. */
static bool check_magic(struct reply *r, struct str data)
{
    for (size_t i = 0; i < data.len && r->n_magic < sizeof(magic) - 1; i++) {
        if (data.p[i] != magic[r->n_magic++])
            return false;
    }
    return true;
}

static enum reply_state fault(struct reply *r)
{
    enum http_errno code = HTTP_PARSER_ERRNO(&r->parser);

    if (r->failure[0])
        return REPLY_BAD;
    if (code == HPE_HEADER_OVERFLOW)
        (void)count_header(r, REPLY_HEADERS_MAX + 1);
    else if (code == HPE_UNEXPECTED_CONTENT_LENGTH)
        (void)bad(r, "the answer has a Content-Length beside a Transfer-Encoding");
    else if (code == HPE_INVALID_CONTENT_LENGTH && r->in_body)
        (void)bad(r, "a chunk of the answer has a size that none can have");
    else
        (void)snprintf(r->failure, sizeof(r->failure), "the answer is no HTTP/1.1: %s",
                       http_errno_description(code));
    return REPLY_BAD;
}

enum reply_state reply_feed(struct reply *r, struct str data, size_t *ret_used)
{
    size_t at = 0;

    assert(!r->is_whole && !r->is_cut && !r->failure[0]);
    while (at < data.len) {
        struct str rest = {data.p + at, data.len - at};

        if (!check_magic(r, rest)) {
            (void)bad(r, "the answer is no HTTP/1.1: it does not begin with HTTP/");
            return REPLY_BAD;
        }
        at += http_parser_execute(&r->parser, &settings, rest.p, rest.len);
        *ret_used = at;
        if (r->is_cut || r->is_whole)
            return REPLY_DONE;
        if (HTTP_PARSER_ERRNO(&r->parser) == HPE_PAUSED)
            begin_message(r); /* behind a 1xx */
        else if (HTTP_PARSER_ERRNO(&r->parser) != HPE_OK)
            return fault(r);
    }
    *ret_used = at;
    return REPLY_MORE;
}

enum reply_state reply_end(struct reply *r)
{
    uint64_t left = r->parser.content_length;

    assert(!r->is_whole && !r->is_cut && !r->failure[0]);
    (void)http_parser_execute(&r->parser, &settings, NULL, 0);
    r->keep_alive = false;
    if (r->is_whole)
        return REPLY_DONE;
    if (r->in_body && left > 0 && left != UINT64_MAX)
        (void)snprintf(r->failure, sizeof(r->failure),
                       "the connection broke with %llu bytes remaining of the answer",
                       (unsigned long long)left);
    else
        (void)bad(r, "the connection broke in the middle of the answer");
    return REPLY_BAD;
}
