/* SPDX-License-Identifier: Apache-2.0 */
#include "node/core/verdict_body.h"

#include <string.h>

#include "common/timefmt.h"

/* An answer of 64 KiB has no more tokens than this. */
#define MAX_TOKENS 32768
#define ESCAPE_LEN 6 /* of a \uXXXX */

void verdict_body_fini(struct verdict_body *b)
{
    if (!b)
        return;
    buf_fini(&b->text);
    buf_fini(&b->mended);
    json_doc_fini(&b->doc);
}

/* The code of the \uXXXX at p, or -1 when there is none. */
static int unicode_escape(const char *p, size_t len)
{
    int code = 0;

    if (len < ESCAPE_LEN || p[0] != '\\' || p[1] != 'u')
        return -1;
    for (size_t i = 2; i < ESCAPE_LEN; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0)
            return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* Replaces an escape for U+0000 or for half a surrogate pair. Returns how long the escape is. */
static size_t mend_escape(char *p, size_t len)
{
    int code = unicode_escape(p, len);

    if (code < 0)
        return 2;
    bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
    if (is_surrogate && code <= 0xDBFF) {
        int second = unicode_escape(p + ESCAPE_LEN, len - ESCAPE_LEN);
        if (second >= 0xDC00 && second <= 0xDFFF)
            return 2 * (size_t)ESCAPE_LEN;
    }
    if (code == 0 || is_surrogate)
        memcpy(p, "\\ufffd", ESCAPE_LEN);
    return ESCAPE_LEN;
}

/* Mends all escapes; of a cut text, also closes the root object behind its last whole member.
 * Returns the new length. */
static size_t mend(char *p, size_t len, bool cut)
{
    bool in_string = false;
    size_t depth = 0;
    size_t whole = 0;

    for (size_t i = 0; i < len; i++) {
        if (in_string && p[i] == '\\')
            i += mend_escape(p + i, len - i) - 1;
        else if (p[i] == '"')
            in_string = !in_string;
        else if (in_string)
            continue;
        else if (p[i] == '{' || p[i] == '[')
            depth++;
        else if (p[i] == '}' || p[i] == ']')
            depth--;
        else if (p[i] == ',' && depth == 1)
            whole = i;
    }
    if (!cut || whole == 0)
        return len;
    p[whole] = '}';
    return whole + 1;
}

/* Empties what is nested in the root object: no member that counts is a container. Returns the new
 * length. */
static size_t flatten(char *p, size_t len)
{
    bool in_string = false;
    size_t depth = 0;
    size_t kept = 0;

    for (size_t i = 0; i < len; i++) {
        bool keep = depth <= 1;
        size_t n = 1;
        if (in_string && p[i] == '\\' && i + 1 < len) {
            n = 2;
        } else if (p[i] == '"') {
            in_string = !in_string;
        } else if (!in_string && (p[i] == '{' || p[i] == '[')) {
            depth++;
        } else if (!in_string && depth > 0 && (p[i] == '}' || p[i] == ']')) {
            depth--;
            keep = depth <= 1;
        }
        if (keep) {
            memmove(p + kept, p + i, n);
            kept += n;
        }
        i += n - 1;
    }
    return kept;
}

enum body_size { BODY_FITS, BODY_TOO_BIG };

static int parse_mended(struct json_doc *doc, struct buf *mended, struct str body, bool cut,
                        enum body_size size, uint32_t max_tokens)
{
    size_t cap = body.len * 3 + 1; /* U+FFFD takes three bytes */
    buf_clear(mended);
    char *p = buf_room(mended, cap);

    if (!p)
        return ERR_NOMEM;
    mended->len = mend(p, utf8_clean(p, cap, body), cut);
    if (size == BODY_TOO_BIG)
        mended->len = flatten(p, mended->len);
    return json_parse(doc, buf_str(mended), max_tokens, NULL);
}

/* Cheap for what most answers are: empty, "ok", or a page of HTML. */
static bool looks_like_object(struct str *body)
{
    if (body->len >= 3 && !memcmp(body->p, "\xEF\xBB\xBF", 3)) { /* a byte-order mark */
        body->p += 3;
        body->len -= 3;
    }
    for (size_t i = 0; i < body->len; i++) {
        if (!strchr(" \t\r\n", body->p[i]) || !body->p[i])
            return body->p[i] == '{';
    }
    return false;
}

static enum said said(const struct json_token *t)
{
    if (t->type != JSON_TRUE && t->type != JSON_FALSE)
        return SAID_NOTHING;
    return t->type == JSON_TRUE ? SAID_YES : SAID_NO;
}

static int read_bool(enum said *ret, const struct json_token *t, const char *key, struct err *err)
{
    *ret = said(t);
    if (*ret == SAID_NOTHING)
        return err_set(err, ERR_INVALID, "\"%s\" must be true or false", key);
    return 0;
}

static int read_message(struct verdict_body *b, const struct json_token *t, struct err *err)
{
    if (t->type != JSON_STRING)
        return err_set(err, ERR_INVALID, "\"message\" must be a text");
    buf_clear(&b->text);
    if (!json_unescape(t, &b->text))
        return err_set(err, ERR_NOMEM, "out of memory");
    b->message = buf_str(&b->text);
    return 0;
}

/* A number of seconds, or a duration as text. */
static int read_wait(int64_t *ret_ms, const struct json_token *t, const char *key, struct err *err)
{
    struct str text = t->type == JSON_NUMBER ? t->raw : (struct str){0};
    struct buf scratch = BUF_INIT;
    struct err why = {0};
    int rc = 0;

    if (t->type == JSON_STRING) {
        if (!json_unescape(t, &scratch))
            rc = ERR_NOMEM;
        text = buf_str(&scratch);
    }
    if (rc)
        err_set(err, rc, "out of memory");
    else if (!text.p)
        rc =
            err_set(err, ERR_INVALID, "\"%s\" must be a duration such as \"10m\", or seconds", key);
    else if (duration_parse(text, ret_ms, &why))
        rc = err_set(err, ERR_INVALID, "\"%s\": %s", key, why.text);
    buf_fini(&scratch);
    return rc;
}

/* Errors: ERR_NOT_FOUND (no member that is known), ERR_INVALID (its value), ERR_NOMEM. */
static int read_member(struct verdict_body *b, const struct json_token *key,
                       const struct json_token *value, struct err *err)
{
    struct str name = json_plain(key);

    if (str_eqz(name, "success")) {
        int rc = read_bool(&b->success, value, "success", err);
        if (rc)
            b->success = SAID_NO;
        return rc;
    }
    if (str_eqz(name, "retryable"))
        return read_bool(&b->retryable, value, "retryable", err);
    if (str_eqz(name, "message"))
        return read_message(b, value, err);
    if (str_eqz(name, "retryAfter"))
        return read_wait(&b->retry_after_ms, value, "retryAfter", err);
    if (str_eqz(name, "snooze")) {
        int rc = read_wait(&b->snooze_ms, value, "snooze", err);
        b->snooze = rc ? SAID_NO : SAID_YES;
        return rc;
    }
    return err_set(err, ERR_NOT_FOUND,
                   "unknown member " STR_FMT
                   "; allowed are success, retryable, message, retryAfter and snooze",
                   STR_ARG(key->raw));
}

static int read_members(struct verdict_body *b, const struct json_token *tokens, uint32_t obj,
                        bool strict, struct err *err)
{
    uint32_t at = obj + 1;

    for (uint32_t i = 0; i < tokens[obj].n; i++) {
        int rc = read_member(b, &tokens[at], &tokens[at + 1], err);
        if (rc == ERR_NOMEM)
            return rc;
        if (rc && strict)
            return ERR_INVALID;
        at = tokens[at + 1].next;
    }
    return 0;
}

int verdict_parse(struct json_doc *doc, struct buf *mended, struct str body, bool cut,
                  uint32_t max_tokens)
{
    int rc = ERR_INVALID;

    if (!looks_like_object(&body))
        return ERR_INVALID;
    if (!cut)
        rc = json_parse(doc, body, max_tokens, NULL);
    if (rc == ERR_INVALID)
        rc = parse_mended(doc, mended, body, cut, BODY_FITS, max_tokens);
    return rc;
}

int verdict_body_read(struct verdict_body *b, struct str body, bool cut)
{
    int rc;

    if (str_eqz(body, "{}")) /* what handlers answer that have nothing to say */
        return 0;
    rc = verdict_parse(&b->doc, &b->mended, body, cut, MAX_TOKENS);
    if (rc == ERR_TOO_BIG)
        rc = parse_mended(&b->doc, &b->mended, body, cut, BODY_TOO_BIG, MAX_TOKENS);
    if (rc)
        return rc == ERR_NOMEM ? rc : 0;
    return read_members(b, b->doc.tokens, 0, false, NULL);
}

int verdict_body_read_object(struct verdict_body *b, const struct json_doc *doc, uint32_t obj)
{
    return read_members(b, doc->tokens, obj, false, NULL);
}

int verdict_body_read_strictly(struct verdict_body *b, struct str body, struct err *err)
{
    int rc = json_parse(&b->doc, body, MAX_TOKENS, err);

    if (rc)
        return rc == ERR_NOMEM ? rc : ERR_INVALID;
    if (b->doc.tokens[0].type != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "a result must be a JSON object");
    rc = read_members(b, b->doc.tokens, 0, true, err);
    if (rc)
        return rc;
    if (b->success == SAID_NOTHING && b->snooze == SAID_NOTHING)
        return err_set(err, ERR_INVALID,
                       "a result must say \"success\": true or false, or \"snooze\"");
    return 0;
}
