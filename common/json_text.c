/* SPDX-License-Identifier: Apache-2.0 */
/* The text of JSON strings: reading escapes, comparing and writing. Tokens come from json_parse(),
 * so every escape is well-formed. */
#include "common/json_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint32_t hex4(const char *p)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v = v << 4 | (uint32_t)(p[i] <= '9' ? p[i] - '0' : (p[i] | 0x20) - 'a' + 10);
    return v;
}

static size_t encode_utf8(uint32_t c, char dst[4])
{
    if (c < 0x80) {
        dst[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        dst[i] = (char)(0x80 | (c & 0x3F));
    dst[0] = (char)(marks[n] | c);
    return n;
}

/* Decodes the escape that begins at p (a backslash). Returns how many bytes it takes. */
static size_t decode_escape(const char *p, char dst[4], size_t *ret_len)
{
    static const char from[] = "bfnrt";
    static const char to[] = "\b\f\n\r\t";
    if (p[1] != 'u') {
        const char *found = strchr(from, p[1]);
        dst[0] = found ? to[found - from] : p[1];
        *ret_len = 1;
        return 2;
    }
    uint32_t c = hex4(p + 2);
    bool is_pair = c >= 0xD800 && c <= 0xDBFF;
    if (is_pair)
        c = 0x10000 + ((c - 0xD800) << 10) + (hex4(p + 8) - 0xDC00);
    *ret_len = encode_utf8(c, dst);
    return is_pair ? 12 : 6;
}

/* Reads the text of a string byte by byte, unescaping on the way. */
struct reader {
    struct str rest;
    bool has_escape;
    char unit[4]; /* what the last escape stands for */
    size_t unit_len;
    size_t unit_at;
};

/* The next byte, or -1 at the end. */
static int next_byte(struct reader *r)
{
    if (r->unit_at < r->unit_len)
        return (unsigned char)r->unit[r->unit_at++];
    if (r->rest.len == 0)
        return -1;
    size_t used = 1;
    int c = (unsigned char)r->rest.p[0];
    if (c == '\\' && r->has_escape) {
        used = decode_escape(r->rest.p, r->unit, &r->unit_len);
        c = (unsigned char)r->unit[0];
        r->unit_at = 1;
    }
    r->rest.p += used;
    r->rest.len -= used;
    return c;
}

static int cmp_readers(struct reader a, struct reader b)
{
    int ca;
    int cb;
    do {
        ca = next_byte(&a);
        cb = next_byte(&b);
    } while (ca == cb && ca >= 0);
    return (ca > cb) - (ca < cb);
}

static struct reader reader_of(const struct json_token *t)
{
    return (struct reader){.rest = json_inside(t), .has_escape = t->has_escape};
}

static int string_cmp(const struct json_token *a, const struct json_token *b)
{
    if (a->has_escape || b->has_escape)
        return cmp_readers(reader_of(a), reader_of(b));
    return str_cmp(json_inside(a), json_inside(b));
}

bool json_same_string(const struct json_token *a, const struct json_token *b)
{
    if (a->has_escape || b->has_escape)
        return cmp_readers(reader_of(a), reader_of(b)) == 0;
    return str_eq(json_inside(a), json_inside(b));
}

static bool string_is(const struct json_token *t, struct str s)
{
    if (t->has_escape)
        return cmp_readers(reader_of(t), (struct reader){.rest = s}) == 0;
    return str_eq(json_inside(t), s);
}

static int cmp_key_pointers(const void *a, const void *b)
{
    return string_cmp(*(const struct json_token *const *)a, *(const struct json_token *const *)b);
}

void json_sorted_keys(const struct json_doc *doc, const struct json_token *object,
                      const struct json_token **keys)
{
    assert(object->type == JSON_OBJECT);
    uint32_t index = (uint32_t)(object - doc->tokens) + 1;
    for (uint32_t i = 0; i < object->n; i++) {
        keys[i] = &doc->tokens[index];
        index = doc->tokens[index + 1].next;
    }
    qsort(keys, object->n, sizeof(keys[0]), cmp_key_pointers);
}

uint32_t json_find(const struct json_doc *doc, uint32_t obj, const char *key)
{
    assert(obj < doc->n_tokens && doc->tokens[obj].type == JSON_OBJECT);
    struct str wanted = str_from(key);
    uint32_t index = obj + 1;
    for (uint32_t i = 0; i < doc->tokens[obj].n; i++) {
        if (string_is(&doc->tokens[index], wanted))
            return index + 1;
        index = doc->tokens[index + 1].next;
    }
    return 0;
}

bool json_unescape(const struct json_token *t, struct buf *dst)
{
    assert(t->type == JSON_STRING);
    struct str rest = json_inside(t);
    while (rest.len > 0) {
        const char *escape = t->has_escape ? memchr(rest.p, '\\', rest.len) : NULL;
        size_t plain = escape ? (size_t)(escape - rest.p) : rest.len;
        buf_add(dst, rest.p, plain);
        if (escape) {
            char unit[4];
            size_t len;
            plain += decode_escape(escape, unit, &len);
            buf_add(dst, unit, len);
        }
        rest.p += plain;
        rest.len -= plain;
    }
    return buf_ok(dst);
}

struct str json_plain(const struct json_token *t)
{
    if (t->type != JSON_STRING || t->has_escape)
        return (struct str){0};
    return json_inside(t);
}

bool json_to_i64(const struct json_token *t, int64_t *ret)
{
    return t->type == JSON_NUMBER && str_to_i64(t->raw, ret);
}

static void put_escaped(struct buf *b, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t";
    static const char to[] = "\"\\bfnrt";
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        buf_addc(b, '\\');
        buf_addc(b, to[found - from]);
    } else {
        buf_addf(b, "\\u%04x", c);
    }
}

void json_put_string(struct buf *b, struct str s)
{
    if (!s.p) {
        buf_adds(b, STR("null"));
        return;
    }
    buf_addc(b, '"');
    size_t from = 0;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buf_add(b, s.p + from, i - from);
        put_escaped(b, c);
        from = i + 1;
    }
    buf_add(b, s.p + from, s.len - from);
    buf_addc(b, '"');
}

void json_put_stringz(struct buf *b, const char *z)
{
    json_put_string(b, str_from(z));
}

void json_put_key(struct buf *b, bool *first, const char *key)
{
    if (!*first)
        buf_addc(b, ',');
    *first = false;
    buf_addc(b, '"');
    buf_addz(b, key);
    buf_adds(b, STR("\":"));
}
