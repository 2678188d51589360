/* SPDX-License-Identifier: Apache-2.0 */
/* From bytes to a request. The grammar is http-parser's; this file adds what it lets through: names
 * that are no tokens, Content-Length beside Transfer-Encoding or given twice, codings other than
 * chunked, a missing Host, versions other than 1.x, Expect, the limits of size, and, since some
 * builds of it are not strict, any bytes where a chunk or the header has to end with CRLF. Header
 * lines that end with LF alone, or go on in the next line, it takes by design; whoever stands in
 * between may read another request out of them, so they are refused here.
 *
 * So it pauses at the end of the header, which gives the place where a body begins. */
#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "node/api/http_impl.h"

#define KEEP_BODY 4096
#define KEEP_TARGET 1024

bool http_fault(struct conn *c, enum problem_kind kind, const char *text)
{
    if (!c->faulted) {
        c->faulted = true;
        c->fault = kind;
        c->fault_text = text;
    }
    return false;
}

static void shrink(struct buf *b, size_t keep)
{
    if (b->cap > keep)
        buf_fini(b);
    else
        buf_clear(b);
}

void http_parse_begin(struct conn *c)
{
    shrink(&c->target, KEEP_TARGET);
    shrink(&c->body, KEEP_BODY);
    memset(&c->head, 0, offsetof(struct http_head, name));
    c->message_done = false;
    c->is_head = false;
    http_parser_init(&c->parser, HTTP_REQUEST);
    c->parser.data = c;
}

static bool is_token_char(unsigned char c)
{
    return isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static struct str head_value(const struct http_head *h)
{
    size_t len = h->value_len < sizeof(h->value) ? h->value_len : sizeof(h->value);
    while (len > 0 && (h->value[len - 1] == ' ' || h->value[len - 1] == '\t'))
        len--;
    return (struct str){h->value, len};
}

static bool is_word(struct str s, const char *word)
{
    return s.len == strlen(word) && strncasecmp(s.p, word, s.len) == 0;
}

/* Notes what the header line just read means. */
static void end_header(struct conn *c)
{
    struct http_head *h = &c->head;
    struct str name = {h->name, h->name_len};
    struct str value = head_value(h);
    if (!h->in_value)
        return;
    if (str_eqz(name, "host")) {
        h->n_host++;
    } else if (str_eqz(name, "content-length")) {
        h->n_length++;
    } else if (str_eqz(name, "transfer-encoding")) {
        h->n_encoding++;
        h->is_chunked = is_word(value, "chunked");
    } else if (str_eqz(name, "expect")) {
        h->has_expect = true;
        h->expects_continue = is_word(value, "100-continue");
    } else if (str_eqz(name, "content-type")) {
        h->has_type = true;
        h->type_len = value.len;
        memcpy(h->type, value.p, value.len);
    }
    h->in_value = false;
    h->name_len = 0;
    h->value_len = 0;
}

static int on_url(http_parser *parser, const char *at, size_t len)
{
    struct conn *c = parser->data;
    buf_add(&c->target, at, len);
    return buf_ok(&c->target) ? 0 : -1;
}

static int on_header_field(http_parser *parser, const char *at, size_t len)
{
    struct conn *c = parser->data;
    struct http_head *h = &c->head;
    if (h->done)
        return 0; /* a trailer: nothing in it matters here */
    end_header(c);
    for (size_t i = 0; i < len; i++) {
        if (!is_token_char((unsigned char)at[i])) {
            http_fault(c, PROBLEM_BAD_REQUEST,
                       "a header's name has a character that none may have");
            return -1;
        }
        if (h->name_len < sizeof(h->name))
            h->name[h->name_len++] = (char)tolower((unsigned char)at[i]);
    }
    return 0;
}

static int on_header_value(http_parser *parser, const char *at, size_t len)
{
    struct conn *c = parser->data;
    struct http_head *h = &c->head;
    if (h->done)
        return 0;
    h->in_value = true;
    if (h->value_len < sizeof(h->value)) {
        size_t room = sizeof(h->value) - h->value_len;
        memcpy(h->value + h->value_len, at, len < room ? len : room);
    }
    h->value_len += len;
    return 0;
}

static bool has_body(const struct conn *c)
{
    return c->head.n_encoding > 0 || (c->head.n_length > 0 && c->parser.content_length > 0);
}

static bool check_framing(struct conn *c)
{
    const struct http_head *h = &c->head;
    if (h->n_length > 0 && h->n_encoding > 0)
        return http_fault(c, PROBLEM_BAD_REQUEST,
                          "Content-Length and Transfer-Encoding exclude each other");
    if (h->n_length > 1)
        return http_fault(c, PROBLEM_BAD_REQUEST, "Content-Length is given more than once");
    if (h->n_encoding > 0 && (h->n_encoding > 1 || !h->is_chunked || c->parser.http_minor == 0))
        return http_fault(c, PROBLEM_BAD_REQUEST,
                          "the only Transfer-Encoding is chunked, once, in HTTP/1.1");
    if (h->n_length > 0 && c->parser.content_length > c->loop->server->cfg.max_body)
        return http_fault(c, PROBLEM_TOO_LARGE, "the body is larger than this server takes");
    return true;
}

static bool check_head(struct conn *c)
{
    const struct http_head *h = &c->head;
    if (c->parser.http_major != 1)
        return http_fault(c, PROBLEM_HTTP_VERSION, "the request line names another version");
    if (h->n_host > 1 || (h->n_host == 0 && c->parser.http_minor > 0))
        return http_fault(c, PROBLEM_BAD_REQUEST, "HTTP/1.1 needs exactly one Host header");
    if (c->parser.method == HTTP_CONNECT)
        return http_fault(c, PROBLEM_BAD_REQUEST, "this server is no proxy");
    if (!check_framing(c))
        return false;
    if (h->has_expect && c->parser.http_minor > 0 && !h->expects_continue)
        return http_fault(c, PROBLEM_EXPECTATION, "only Expect: 100-continue is understood");
    return true;
}

/* Splits the request target: "/path?query", or the same behind "http://host". */
static bool split_target(struct conn *c)
{
    struct str t = buf_str(&c->target);
    if (memchr(t.p, '#', t.len))
        return http_fault(c, PROBLEM_BAD_REQUEST, "the request target has a fragment");
    size_t scheme = 0;
    if (t.len > 7 && strncasecmp(t.p, "http://", 7) == 0)
        scheme = 7;
    else if (t.len > 8 && strncasecmp(t.p, "https://", 8) == 0)
        scheme = 8;
    t.p += scheme;
    t.len -= scheme;
    while (scheme > 0 && t.len > 0 && *t.p != '/' && *t.p != '?') {
        t.p++;
        t.len--;
    }
    const char *mark = t.len > 0 ? memchr(t.p, '?', t.len) : NULL;
    c->req.path = (struct str){t.p, mark ? (size_t)(mark - t.p) : t.len};
    c->req.query = (struct str){0};
    if (mark)
        c->req.query = (struct str){mark + 1, t.len - c->req.path.len - 1};
    if (c->req.path.len == 0 && scheme > 0)
        c->req.path = STR("/");
    if (c->req.path.len == 0 || c->req.path.p[0] != '/')
        return http_fault(c, PROBLEM_BAD_REQUEST, "the request target is not a path");
    return true;
}

static enum http_verb verb_of(const http_parser *parser)
{
    switch (parser->method) {
    case HTTP_GET:
    case HTTP_HEAD:
        return VERB_GET;
    case HTTP_POST:
        return VERB_POST;
    case HTTP_PUT:
        return VERB_PUT;
    case HTTP_PATCH:
        return VERB_PATCH;
    case HTTP_DELETE:
        return VERB_DELETE;
    default:
        return VERB_OTHER;
    }
}

static int on_headers_complete(http_parser *parser)
{
    struct conn *c = parser->data;
    end_header(c);
    c->head.done = true;
    if (!check_head(c) || !split_target(c))
        return -1;
    /* What an Upgrade asks for is not spoken here; the request is answered as it stands. */
    parser->upgrade = 0;
    c->req.verb = verb_of(parser);
    c->is_head = parser->method == HTTP_HEAD;
    http_parser_pause(parser, 1);
    return 0;
}

/* ---- The body ---------------------------------------------------------------------------- */

/* In the line with a chunk's size. A size is a fault as soon as it cannot fit any more. */
static bool scan_size(struct conn *c, char ch)
{
    struct http_head *h = &c->head;
    int digit = h->frame == FRAME_SIZE ? hex_digit(ch) : -1;
    if (digit >= 0) {
        h->chunk_left = h->chunk_left << 4 | (size_t)digit;
        if (h->chunk_left > c->loop->server->cfg.max_body)
            return http_fault(c, PROBLEM_TOO_LARGE, "a chunk is larger than this server takes");
    } else if (ch == '\n') {
        return http_fault(c, PROBLEM_BAD_REQUEST, "a chunk's size has to end with CRLF");
    } else {
        h->frame = ch == '\r' ? FRAME_SIZE_LF : FRAME_EXTENSION;
    }
    return true;
}

/* Where only one byte may stand. */
static bool scan_exactly(struct conn *c, char ch)
{
    static const struct {
        char wanted;
        enum frame_state next;
        const char *fault;
    } rows[] = {
        [FRAME_HEAD_LF] = {'\n', FRAME_SIZE, "the header has to end with CRLF"},
        [FRAME_SIZE_LF] = {'\n', FRAME_DATA, "a chunk's size has to end with CRLF"},
        [FRAME_DATA_CR] = {'\r', FRAME_DATA_LF, "a chunk's data has to end with CRLF"},
        [FRAME_DATA_LF] = {'\n', FRAME_SIZE, "a chunk's data has to end with CRLF"},
    };
    struct http_head *h = &c->head;
    if (ch != rows[h->frame].wanted)
        return http_fault(c, PROBLEM_BAD_REQUEST, rows[h->frame].fault);
    bool is_last = h->frame == FRAME_SIZE_LF && h->chunk_left == 0;
    h->frame = is_last ? FRAME_TRAILER : rows[h->frame].next;
    return true;
}

/* Follows the chunks ahead of the parser and holds them to the letter. What the parser refuses is
 * left to it. Returns how many bytes stand before a fault. */
static size_t scan_chunks(struct conn *c, struct str in)
{
    struct http_head *h = &c->head;
    for (size_t i = 0; i < in.len && h->frame != FRAME_TRAILER;) {
        if (h->frame == FRAME_DATA) {
            size_t n = h->chunk_left < in.len - i ? h->chunk_left : in.len - i;
            h->chunk_left -= n;
            i += n;
            if (h->chunk_left == 0)
                h->frame = FRAME_DATA_CR;
            continue;
        }
        bool in_size = h->frame == FRAME_SIZE || h->frame == FRAME_EXTENSION;
        if (in_size ? !scan_size(c, in.p[i]) : !scan_exactly(c, in.p[i]))
            return i;
        i++;
    }
    return in.len;
}

static int on_body(http_parser *parser, const char *at, size_t len)
{
    struct conn *c = parser->data;
    if (len > c->loop->server->cfg.max_body - c->body.len) {
        http_fault(c, PROBLEM_TOO_LARGE, "the body is larger than this server takes");
        return -1;
    }
    size_t cap = c->body.cap;
    buf_add(&c->body, at, len);
    if (!buf_ok(&c->body)) {
        http_fault(c, PROBLEM_OVERLOADED, "out of memory");
        return -1;
    }
    if (!conn_charge(c, c->body.cap - cap)) {
        http_fault(c, PROBLEM_OVERLOADED, "the bodies of other requests fill the memory set aside");
        return -1;
    }
    return 0;
}

static int on_message_complete(http_parser *parser)
{
    struct conn *c = parser->data;
    c->message_done = true;
    c->req.body = buf_str(&c->body);
    c->req.content_type = (struct str){0};
    if (c->head.has_type)
        c->req.content_type = (struct str){c->head.type, c->head.type_len};
    http_parser_pause(parser, 1);
    return 0;
}

static const http_parser_settings settings = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

static void parse_fault(struct conn *c, enum http_errno code)
{
    if (code == HPE_HEADER_OVERFLOW)
        http_fault(c, PROBLEM_HEADER_TOO_LARGE, "request line and headers are larger than allowed");
    else if (code == HPE_UNEXPECTED_CONTENT_LENGTH)
        http_fault(c, PROBLEM_BAD_REQUEST,
                   "Content-Length is given more than once, or beside Transfer-Encoding");
    else
        http_fault(c, PROBLEM_BAD_REQUEST, http_errno_description(code));
}

static size_t execute(struct conn *c, struct str in)
{
    size_t used = http_parser_execute(&c->parser, &settings, in.p, in.len);
    enum http_errno code = HTTP_PARSER_ERRNO(&c->parser);
    if (code != HPE_OK && code != HPE_PAUSED)
        parse_fault(c, code);
    return used;
}

/* Goes before a fault that the parser found: that one lies further on, and which of the two is told
 * must not depend on the pieces in which the input comes. */
static bool line_fault(struct conn *c, const char *text)
{
    c->faulted = false;
    return http_fault(c, PROBLEM_BAD_REQUEST, text);
}

/* What the parser used of the header ends its lines with CRLF, and folds none. */
static bool check_lines(struct conn *c, struct str in)
{
    char last = c->head.last;
    for (size_t i = 0; i < in.len; i++) {
        char ch = in.p[i];
        if (ch == '\n' && last != '\r')
            return line_fault(c, "a header line has to end with CRLF");
        if (last == '\n' && (ch == ' ' || ch == '\t'))
            return line_fault(c, "a header line goes on in the next one");
        last = ch;
    }
    c->head.last = last;
    if (c->head.done && last != '\r')
        return line_fault(c, "the header has to end with CRLF");
    return true;
}

/* 25 bytes to a socket whose earlier answers have all been taken: they fit, or it is broken. */
static bool send_continue(struct conn *c)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    ssize_t n = send(c->fd, text, sizeof(text) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n == (ssize_t)sizeof(text) - 1;
}

static void end_head(struct conn *c)
{
    http_parser_pause(&c->parser, 0);
    if (c->head.expects_continue && c->parser.http_minor > 0 && has_body(c) && !send_continue(c))
        http_fault(c, PROBLEM_BAD_REQUEST, "the connection does not take an answer");
}

/* Up to, and not with, the line feed that ends the header. */
static size_t feed_head(struct conn *c, struct str in)
{
    size_t limit = c->loop->server->cfg.max_header;
    if (in.len > limit - c->head.n_bytes)
        in.len = limit - c->head.n_bytes;
    size_t used = execute(c, in);
    c->head.n_bytes += used;
    if (!check_lines(c, (struct str){in.p, used}) || c->faulted)
        return used;
    if (c->head.done)
        end_head(c);
    else if (c->head.n_bytes >= limit)
        http_fault(c, PROBLEM_HEADER_TOO_LARGE, "request line and headers are larger than allowed");
    return used;
}

/* A fault that was found ahead of the parser counts unless the parser finds one before it: which of
 * them is told must not depend on the pieces in which the input comes. */
static size_t feed_to_fault(struct conn *c, struct str before)
{
    enum problem_kind kind = c->fault;
    const char *text = c->fault_text;
    c->faulted = false;
    size_t used = before.len > 0 ? execute(c, before) : 0;
    http_fault(c, kind, text);
    return used;
}

static size_t feed_body(struct conn *c, struct str in)
{
    bool is_chunked = c->head.n_encoding > 0;
    size_t n_head = c->head.frame == FRAME_HEAD_LF ? 1 : 0;
    if (n_head > 0 && !scan_exactly(c, in.p[0]))
        return 0;
    size_t good = in.len;
    if (is_chunked)
        good = n_head + scan_chunks(c, (struct str){in.p + n_head, in.len - n_head});
    if (c->faulted)
        return feed_to_fault(c, (struct str){in.p, good});
    size_t used = execute(c, in);
    if (is_chunked && c->message_done && in.p[used - 1] != '\n')
        http_fault(c, PROBLEM_BAD_REQUEST, "the trailer has to end with CRLF");
    return used;
}

size_t http_parse_feed(struct conn *c, struct str in)
{
    size_t used = c->head.done ? 0 : feed_head(c, in);
    if (c->head.done && !c->faulted && used < in.len)
        used += feed_body(c, (struct str){in.p + used, in.len - used});
    return used;
}
