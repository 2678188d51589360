/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over the text without recursion: a small stack holds the open containers, and three
 * states say what may come next. A container's token is completed when it closes; that is also
 * when an object's keys are checked for duplicates. */
#include "common/json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/json_impl.h"

#define MIN_TOKENS 64
/* Up to here comparing each pair of keys is cheaper than sorting them. */
#define FEW_KEYS 16

enum state { WANT_VALUE, WANT_KEY, AFTER_VALUE };

struct parser {
    struct json_doc *doc;
    const char *start;
    const char *at; /* the next byte to look at */
    const char *end;
    uint32_t max_tokens;
    unsigned depth;
    uint32_t open[JSON_MAX_DEPTH]; /* tokens of the containers around `at`, outermost first */
    struct err *err;
};

static int fail_at(struct parser *ps, int code, const char *where, const char *what)
{
    ps->doc->err_offset = (size_t)(where - ps->start);
    return err_set(ps->err, code, "%s at byte %zu", what, ps->doc->err_offset);
}

static int invalid(struct parser *ps, const char *what)
{
    return fail_at(ps, ERR_INVALID, ps->at, what);
}

static int unexpected(struct parser *ps, const char *expected)
{
    ps->doc->err_offset = (size_t)(ps->at - ps->start);
    if (ps->at == ps->end)
        return err_set(ps->err, ERR_INVALID, "the text ends at byte %zu where %s is expected",
                       ps->doc->err_offset, expected);
    unsigned char c = (unsigned char)*ps->at;
    if (c > ' ' && c < 0x7F)
        return err_set(ps->err, ERR_INVALID, "unexpected '%c' at byte %zu: %s is expected", c,
                       ps->doc->err_offset, expected);
    return err_set(ps->err, ERR_INVALID, "unexpected byte 0x%02x at byte %zu: %s is expected", c,
                   ps->doc->err_offset, expected);
}

static void skip_space(struct parser *ps)
{
    while (ps->at < ps->end &&
           (*ps->at == ' ' || *ps->at == '\n' || *ps->at == '\r' || *ps->at == '\t'))
        ps->at++;
}

static int grow_tokens(struct parser *ps)
{
    struct json_doc *doc = ps->doc;
    uint64_t cap = doc->cap ? (uint64_t)doc->cap * 2 : MIN_TOKENS;
    if (cap > UINT32_MAX)
        cap = UINT32_MAX;
    struct json_token *tokens = reallocarray(doc->tokens, cap, sizeof(tokens[0]));
    if (!tokens)
        return err_set(ps->err, ERR_NOMEM, "out of memory");
    doc->tokens = tokens;
    doc->cap = (uint32_t)cap;
    return 0;
}

/* Adds a token for the value that begins at `from` and, unless it is a container, ends at `at`. */
static int add_token(struct parser *ps, enum json_type type, const char *from, bool has_escape)
{
    struct json_doc *doc = ps->doc;
    if (doc->n_tokens >= ps->max_tokens) {
        ps->doc->err_offset = (size_t)(from - ps->start);
        return err_set(ps->err, ERR_TOO_BIG, "too many JSON values (at most %u) at byte %zu",
                       (unsigned)ps->max_tokens, ps->doc->err_offset);
    }
    if (doc->n_tokens == doc->cap) {
        int rc = grow_tokens(ps);
        if (rc)
            return rc;
    }
    uint32_t index = doc->n_tokens++;
    doc->tokens[index] = (struct json_token){
        .type = type,
        .has_escape = has_escape,
        .next = index + 1,
        .raw = {from, (size_t)(ps->at - from)},
    };
    return 0;
}

static int read_hex4(struct parser *ps, uint32_t *ret)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++, ps->at++) {
        char c = ps->at < ps->end ? *ps->at : '\0';
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            v = v << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else
            return unexpected(ps, "a hexadecimal digit of \\uXXXX");
    }
    *ret = v;
    return 0;
}

/* `at` stands behind the "\u" that begins at `from`. */
static int skip_unicode_escape(struct parser *ps, const char *from)
{
    uint32_t unit = 0;
    int rc = read_hex4(ps, &unit);
    if (rc)
        return rc;
    if (unit == 0)
        return fail_at(ps, ERR_INVALID, from, "\\u0000 is not allowed in a string");
    if (unit < 0xD800 || unit > 0xDFFF)
        return 0;
    if (unit > 0xDBFF || ps->end - ps->at < 2 || ps->at[0] != '\\' || ps->at[1] != 'u')
        return fail_at(ps, ERR_INVALID, from, "a lone surrogate is not allowed in a string");
    ps->at += 2;
    rc = read_hex4(ps, &unit);
    if (rc)
        return rc;
    if (unit < 0xDC00 || unit > 0xDFFF)
        return fail_at(ps, ERR_INVALID, from, "a lone surrogate is not allowed in a string");
    return 0;
}

static int skip_escape(struct parser *ps)
{
    const char *from = ps->at++;
    char c = ps->at < ps->end ? *ps->at : '\0';
    switch (c) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        ps->at++;
        return 0;
    case 'u':
        ps->at++;
        return skip_unicode_escape(ps, from);
    default:
        return unexpected(ps, "one of \" \\ / b f n r t u after a backslash");
    }
}

#define EACH_BYTE(b) (UINT64_C(0x0101010101010101) * (b))

/* True if one of the eight bytes is a quote, a backslash, a control character or not ASCII. The
 * borrow of a subtraction can only reach a byte above one that is reported itself. */
static bool has_special(uint64_t w)
{
    uint64_t quote = w ^ EACH_BYTE('"');
    uint64_t backslash = w ^ EACH_BYTE('\\');
    uint64_t found = (w - EACH_BYTE(0x20)) | (quote - EACH_BYTE(1)) | (backslash - EACH_BYTE(1));
    return ((found | w) & EACH_BYTE(0x80)) != 0;
}

static void skip_plain(struct parser *ps)
{
    const char *at = ps->at;
    for (uint64_t w; ps->end - at >= (ptrdiff_t)sizeof(w); at += sizeof(w)) {
        memcpy(&w, at, sizeof(w));
        if (has_special(w))
            break;
    }
    while (at < ps->end && *at >= 0x20 && *at != '"' && *at != '\\')
        at++;
    ps->at = at;
}

static int skip_utf8(struct parser *ps)
{
    while (ps->at < ps->end && (unsigned char)*ps->at >= 0x80) {
        uint32_t c;
        size_t n = utf8_step((struct str){ps->at, (size_t)(ps->end - ps->at)}, &c);
        if (c == UTF8_BAD)
            return invalid(ps, "ill-formed UTF-8 in a string");
        ps->at += n;
    }
    return 0;
}

static int parse_string(struct parser *ps)
{
    const char *from = ps->at++;
    bool has_escape = false;
    for (;;) {
        skip_plain(ps);
        if (ps->at == ps->end)
            return unexpected(ps, "the end of a string ('\"')");
        unsigned char c = (unsigned char)*ps->at;
        int rc = 0;
        if (c == '"')
            break;
        if (c >= 0x80) {
            rc = skip_utf8(ps);
        } else if (c == '\\') {
            has_escape = true;
            rc = skip_escape(ps);
        } else if (c < 0x20) {
            rc = unexpected(ps, "an escape such as \\n or \\u001f instead of a control character");
        }
        if (rc)
            return rc;
    }
    ps->at++;
    return add_token(ps, JSON_STRING, from, has_escape);
}

static bool skip_digits(struct parser *ps)
{
    const char *from = ps->at;
    while (ps->at < ps->end && *ps->at >= '0' && *ps->at <= '9')
        ps->at++;
    return ps->at > from;
}

static bool skip_one_of(struct parser *ps, char a, char b)
{
    if (ps->at == ps->end || (*ps->at != a && *ps->at != b))
        return false;
    ps->at++;
    return true;
}

static int parse_number(struct parser *ps)
{
    const char *from = ps->at;
    skip_one_of(ps, '-', '-');
    const char *digits = ps->at;
    if (!skip_digits(ps))
        return unexpected(ps, "a digit");
    if (*digits == '0' && ps->at - digits > 1)
        return fail_at(ps, ERR_INVALID, digits, "a leading 0 is not allowed in a number");
    if (skip_one_of(ps, '.', '.') && !skip_digits(ps))
        return unexpected(ps, "a digit after the decimal point");
    if (skip_one_of(ps, 'e', 'E')) {
        skip_one_of(ps, '+', '-');
        if (!skip_digits(ps))
            return unexpected(ps, "a digit of the exponent");
    }
    return add_token(ps, JSON_NUMBER, from, false);
}

static int parse_literal(struct parser *ps, enum json_type type, struct str word)
{
    const char *from = ps->at;
    if ((size_t)(ps->end - from) < word.len || memcmp(from, word.p, word.len) != 0)
        return unexpected(ps, "a JSON value (words are null, true and false)");
    ps->at += word.len;
    return add_token(ps, type, from, false);
}

static int open_container(struct parser *ps, enum json_type type)
{
    if (ps->depth == JSON_MAX_DEPTH) {
        ps->doc->err_offset = (size_t)(ps->at - ps->start);
        return err_set(ps->err, ERR_TOO_BIG, "nested too deep (at most %d levels) at byte %zu",
                       JSON_MAX_DEPTH, ps->doc->err_offset);
    }
    ps->open[ps->depth] = ps->doc->n_tokens;
    int rc = add_token(ps, type, ps->at, false);
    if (rc)
        return rc;
    ps->at++;
    ps->depth++;
    return 0;
}

static int duplicate_key(struct parser *ps, const struct json_token *key)
{
    struct str text = json_inside(key);
    ps->doc->err_offset = (size_t)(key->raw.p - ps->start);
    return err_set(ps->err, ERR_INVALID, "duplicate key \"%.*s\" at byte %zu",
                   (int)utf8_cut(text, 64), text.p, ps->doc->err_offset);
}

static int check_few_keys(struct parser *ps, const struct json_token *object)
{
    const struct json_token *tokens = ps->doc->tokens;
    const struct json_token *keys[FEW_KEYS];
    uint32_t index = (uint32_t)(object - tokens) + 1;
    for (uint32_t n = 0; n < object->n; n++) {
        keys[n] = &tokens[index];
        for (uint32_t i = 0; i < n; i++) {
            if (json_same_string(keys[i], keys[n]))
                return duplicate_key(ps, keys[n]);
        }
        index = tokens[index + 1].next;
    }
    return 0;
}

/* Sorted, so that a hostile object costs n log n and no choice of keys makes it worse. */
static int check_many_keys(struct parser *ps, const struct json_token *object)
{
    const struct json_token **keys = reallocarray(NULL, object->n, sizeof(keys[0]));
    if (!keys)
        return err_set(ps->err, ERR_NOMEM, "out of memory");
    json_sorted_keys(ps->doc, object, keys);
    int rc = 0;
    for (uint32_t i = 1; i < object->n && rc == 0; i++) {
        if (json_same_string(keys[i - 1], keys[i]))
            rc = duplicate_key(ps, keys[i - 1] > keys[i] ? keys[i - 1] : keys[i]);
    }
    free(keys);
    return rc;
}

static int close_container(struct parser *ps)
{
    struct json_token *container = &ps->doc->tokens[ps->open[--ps->depth]];
    ps->at++;
    container->raw.len = (size_t)(ps->at - container->raw.p);
    container->next = ps->doc->n_tokens;
    if (container->type == JSON_ARRAY || container->n < 2)
        return 0;
    return container->n <= FEW_KEYS ? check_few_keys(ps, container)
                                    : check_many_keys(ps, container);
}

/* `at` stands on the first byte of a value. Sets what may follow. */
static int parse_value(struct parser *ps, enum state *ret_next)
{
    *ret_next = AFTER_VALUE;
    if (ps->at == ps->end)
        return unexpected(ps, "a JSON value");
    int rc;
    switch (*ps->at) {
    case '"':
        return parse_string(ps);
    case 'n':
        return parse_literal(ps, JSON_NULL, STR("null"));
    case 't':
        return parse_literal(ps, JSON_TRUE, STR("true"));
    case 'f':
        return parse_literal(ps, JSON_FALSE, STR("false"));
    case '{':
        rc = open_container(ps, JSON_OBJECT);
        *ret_next = WANT_KEY;
        break;
    case '[':
        rc = open_container(ps, JSON_ARRAY);
        *ret_next = WANT_VALUE;
        break;
    default:
        if (*ps->at == '-' || (*ps->at >= '0' && *ps->at <= '9'))
            return parse_number(ps);
        return unexpected(ps, "a JSON value");
    }
    if (rc)
        return rc;
    skip_space(ps);
    if (ps->at < ps->end && *ps->at == (*ret_next == WANT_KEY ? '}' : ']')) {
        *ret_next = AFTER_VALUE;
        return close_container(ps);
    }
    return 0;
}

static int parse_key(struct parser *ps)
{
    if (ps->at == ps->end || *ps->at != '"')
        return unexpected(ps, "a key in double quotes");
    int rc = parse_string(ps);
    if (rc)
        return rc;
    skip_space(ps);
    if (ps->at == ps->end || *ps->at != ':')
        return unexpected(ps, "':' after a key");
    ps->at++;
    return 0;
}

/* Inside a container, behind one of its values: a comma or the end. */
static int parse_rest(struct parser *ps, enum state *ret_next)
{
    struct json_token *container = &ps->doc->tokens[ps->open[ps->depth - 1]];
    bool in_object = container->type == JSON_OBJECT;
    container->n++;
    *ret_next = AFTER_VALUE;
    if (ps->at < ps->end && *ps->at == (in_object ? '}' : ']'))
        return close_container(ps);
    if (ps->at == ps->end || *ps->at != ',')
        return unexpected(ps, in_object ? "',' or '}'" : "',' or ']'");
    ps->at++;
    *ret_next = in_object ? WANT_KEY : WANT_VALUE;
    return 0;
}

static int parse_text(struct parser *ps)
{
    if (ps->end - ps->at >= 3 && memcmp(ps->at, "\xEF\xBB\xBF", 3) == 0)
        return invalid(ps, "a byte-order mark is not allowed");
    enum state state = WANT_VALUE;
    for (;;) {
        int rc = 0;
        skip_space(ps);
        switch (state) {
        case WANT_KEY:
            rc = parse_key(ps);
            state = WANT_VALUE;
            break;
        case WANT_VALUE:
            rc = parse_value(ps, &state);
            break;
        case AFTER_VALUE:
            if (ps->depth == 0)
                return ps->at < ps->end ? unexpected(ps, "the end of the text") : 0;
            rc = parse_rest(ps, &state);
            break;
        }
        if (rc)
            return rc;
    }
}

int json_parse(struct json_doc *doc, struct str text, uint32_t max_tokens, struct err *err)
{
    if (!text.p)
        text = STR("");
    doc->n_tokens = 0;
    doc->err_offset = 0;
    struct parser ps = {
        .doc = doc,
        .start = text.p,
        .at = text.p,
        .end = text.p + text.len,
        .max_tokens = max_tokens,
        .err = err,
    };
    int rc = parse_text(&ps);
    if (rc)
        doc->n_tokens = 0;
    return rc;
}

void json_doc_fini(struct json_doc *doc)
{
    if (!doc)
        return;
    free(doc->tokens);
    *doc = JSON_DOC_INIT;
}
