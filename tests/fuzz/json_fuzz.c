/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON tokenizer against another library: both accept the same texts, wherever the other has an
 * opinion, and read the same values out of them. And against itself: what it accepted and writes
 * again is accepted and the same value. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_oracle.h"

#define MAX_TOKENS (UINT32_C(1) << 20)

static double double_of(struct str raw)
{
    char *z = malloc(raw.len + 1);
    assert(z);
    memcpy(z, raw.p, raw.len);
    z[raw.len] = '\0';
    double v = strtod(z, NULL);
    free(z);
    return v;
}

static void put_token(struct buf *dst, const struct json_token *t)
{
    struct buf text = BUF_INIT;
    switch (t->type) {
    case JSON_NULL:
    case JSON_FALSE:
    case JSON_TRUE:
        buf_addc(dst, *t->raw.p);
        break;
    case JSON_NUMBER:
        oracle_put_double(dst, double_of(t->raw));
        break;
    case JSON_STRING: {
        bool ok = json_unescape(t, &text);
        assert(ok && utf8_valid(buf_str(&text)));
        oracle_put_string(dst, buf_str(&text));
        if (!t->has_escape)
            fuzz_same("a string without escapes", json_plain(t), buf_str(&text));
        break;
    }
    case JSON_ARRAY:
        oracle_put_open(dst, '[', t->n);
        break;
    case JSON_OBJECT:
        oracle_put_open(dst, '{', t->n);
        break;
    }
    buf_fini(&text);
}

/* Spans lie inside their container's, in order, and `next` steps over what is inside. */
static void check_spans(const struct json_doc *doc, struct str text)
{
    const char *end = text.p + text.len;
    assert(doc->n_tokens > 0 && doc->tokens[0].next == doc->n_tokens);
    for (uint32_t i = 0; i < doc->n_tokens; i++) {
        const struct json_token *t = &doc->tokens[i];
        const char *t_end = t->raw.p + t->raw.len;
        assert(t->raw.p >= text.p && t->raw.len > 0 && t_end <= end);
        assert(t->next > i && t->next <= doc->n_tokens);
        uint32_t child = i + 1;
        uint32_t n = t->type == JSON_OBJECT ? 2 * t->n : t->type == JSON_ARRAY ? t->n : 0;
        for (uint32_t j = 0; j < n; j++) {
            const struct json_token *c = &doc->tokens[child];
            assert(c->raw.p > t->raw.p && c->raw.p + c->raw.len < t_end);
            assert(t->type == JSON_ARRAY || j % 2 == 1 || c->type == JSON_STRING);
            child = c->next;
        }
        assert(child == t->next);
    }
}

static void check_find(const struct json_doc *doc, uint32_t object)
{
    uint32_t key = object + 1;
    for (uint32_t i = 0; i < doc->tokens[object].n; i++) {
        struct buf name = BUF_INIT;
        bool ok = json_unescape(&doc->tokens[key], &name);
        buf_addc(&name, '\0');
        assert(ok && json_find(doc, object, name.data) == key + 1);
        buf_fini(&name);
        key = doc->tokens[key + 1].next;
    }
}

static void put_again(const struct json_doc *doc, uint32_t at, struct buf *dst);

static void put_members(const struct json_doc *doc, uint32_t at, struct buf *dst)
{
    const struct json_token *t = &doc->tokens[at];
    bool is_object = t->type == JSON_OBJECT;
    uint32_t child = at + 1;
    buf_addc(dst, is_object ? '{' : '[');
    for (uint32_t i = 0; i < t->n; i++) {
        if (i > 0)
            buf_addc(dst, ',');
        put_again(doc, child, dst);
        child = doc->tokens[child].next;
        if (is_object) {
            buf_addc(dst, ':');
            put_again(doc, child, dst);
            child = doc->tokens[child].next;
        }
    }
    buf_addc(dst, is_object ? '}' : ']');
}

/* Writes the value at `at` without white space, its strings by our own writer. */
static void put_again(const struct json_doc *doc, uint32_t at, struct buf *dst)
{
    const struct json_token *t = &doc->tokens[at];
    struct buf text = BUF_INIT;
    if (t->type == JSON_OBJECT || t->type == JSON_ARRAY) {
        put_members(doc, at, dst);
    } else if (t->type == JSON_STRING) {
        bool ok = json_unescape(t, &text);
        assert(ok);
        json_put_string(dst, buf_str(&text));
    } else {
        buf_adds(dst, t->raw);
    }
    buf_fini(&text);
}

static void check_written(const struct json_doc *doc, struct str text)
{
    struct json_doc again = JSON_DOC_INIT;
    struct buf first = BUF_INIT;
    struct buf second = BUF_INIT;
    put_again(doc, 0, &first);
    int rc = json_parse(&again, buf_str(&first), MAX_TOKENS, NULL);
    assert(rc == 0 && again.n_tokens == doc->n_tokens);
    assert(json_same_value(text, buf_str(&first)) && json_same_value(buf_str(&first), text));
    put_again(&again, 0, &second);
    fuzz_same("a text written twice", buf_str(&first), buf_str(&second));
    json_doc_fini(&again);
    buf_fini(&first);
    buf_fini(&second);
}

static void check_accepted(const struct json_doc *doc, struct str text)
{
    struct buf mine = BUF_INIT;
    struct buf theirs = BUF_INIT;
    check_spans(doc, text);
    check_written(doc, text);
    for (uint32_t i = 0; i < doc->n_tokens; i++) {
        put_token(&mine, &doc->tokens[i]);
        if (doc->tokens[i].type == JSON_OBJECT && doc->n_tokens < 1000)
            check_find(doc, i);
    }
    enum oracle_opinion opinion = oracle_read(text, &theirs);
    assert(opinion != ORACLE_REFUSES);
    if (opinion == ORACLE_ACCEPTS)
        fuzz_same("the values", buf_str(&mine), buf_str(&theirs));
    buf_fini(&mine);
    buf_fini(&theirs);
}

/* With one token less it is refused for that alone. */
static void check_token_limit(struct str text, uint32_t n_tokens)
{
    struct json_doc doc = JSON_DOC_INIT;
    int rc = json_parse(&doc, text, n_tokens, NULL);
    assert(rc == 0 && doc.n_tokens == n_tokens);
    rc = json_parse(&doc, text, n_tokens - 1, NULL);
    assert(rc == ERR_TOO_BIG && doc.n_tokens == 0);
    json_doc_fini(&doc);
}

/* What any bytes become when they are made storable. */
static void check_utf8(struct str text)
{
    char clean[512];
    size_t len = utf8_clean(clean, sizeof(clean), text);
    assert(clean[len] == '\0' && len < sizeof(clean));
    fuzz_clean_text("a cleaned text", (struct str){clean, len});
    for (size_t max = 0; max < 8; max++) {
        size_t cut = utf8_cut(text, max);
        assert(cut <= max && cut <= text.len && (max >= text.len || cut + 3 >= max));
        if (utf8_valid(text))
            assert(utf8_valid((struct str){text.p, cut}));
    }
}

void fuzz_one(struct str input)
{
    struct json_doc doc = JSON_DOC_INIT;
    struct err err = {0};
    int rc = json_parse(&doc, input, MAX_TOKENS, &err);
    check_utf8(input);
    if (rc == 0) {
        check_accepted(&doc, input);
        check_token_limit(input, doc.n_tokens);
    } else {
        assert(doc.n_tokens == 0 && doc.err_offset <= input.len);
        assert(utf8_valid(str_from(err.text)));
        assert(err.text[0] != '\0');
        assert(rc == ERR_TOO_BIG || rc == ERR_INVALID);
        assert(rc == ERR_TOO_BIG || oracle_read(input, NULL) != ORACLE_ACCEPTS);
        assert(json_same_value(input, input));
    }
    json_doc_fini(&doc);
}
