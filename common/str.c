/* SPDX-License-Identifier: Apache-2.0 */
#include "common/str.h"

#include <assert.h>
#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"

struct str str_from(const char *z)
{
    return z ? (struct str){z, strlen(z)} : (struct str){NULL, 0};
}

bool str_eq(struct str a, struct str b)
{
    if (!a.p || !b.p)
        return !a.p && !b.p;
    return a.len == b.len && memcmp(a.p, b.p, a.len) == 0;
}

bool str_eqz(struct str a, const char *z)
{
    return str_eq(a, str_from(z));
}

int str_cmp(struct str a, struct str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n > 0 ? memcmp(a.p, b.p, n) : 0;
    if (order != 0)
        return order;
    return (a.len > b.len) - (a.len < b.len);
}

/* What may follow a lead byte (Unicode, table 3-7): how many bytes, and the range of the first. */
struct lead {
    uint8_t n_more;
    uint8_t low;
    uint8_t high;
};

static struct lead lead_of(uint8_t c)
{
    if (c < 0xC2)
        return (struct lead){0, 0, 0};
    if (c < 0xE0)
        return (struct lead){1, 0x80, 0xBF};
    if (c < 0xF0)
        return (struct lead){2, c == 0xE0 ? 0xA0 : 0x80, c == 0xED ? 0x9F : 0xBF};
    if (c < 0xF5)
        return (struct lead){3, c == 0xF0 ? 0x90 : 0x80, c == 0xF4 ? 0x8F : 0xBF};
    return (struct lead){0, 0, 0};
}

size_t utf8_step(struct str s, uint32_t *ret)
{
    const uint8_t *p = (const uint8_t *)s.p;
    assert(s.len > 0);
    if (p[0] < 0x80) {
        *ret = p[0];
        return 1;
    }
    struct lead lead = lead_of(p[0]);
    uint32_t code = p[0] & (0x3Fu >> lead.n_more);
    size_t n = 1;
    for (; n <= lead.n_more; n++) {
        uint8_t low = n == 1 ? lead.low : 0x80;
        uint8_t high = n == 1 ? lead.high : 0xBF;
        if (n >= s.len || p[n] < low || p[n] > high)
            break;
        code = code << 6 | (p[n] & 0x3Fu);
    }
    *ret = lead.n_more > 0 && n == lead.n_more + 1u ? code : UTF8_BAD;
    return n;
}

static struct str rest_of(struct str s, size_t from)
{
    return (struct str){s.p + from, s.len - from};
}

bool utf8_valid(struct str s)
{
    for (size_t i = 0; i < s.len;) {
        uint32_t c;
        i += utf8_step(rest_of(s, i), &c);
        if (c == UTF8_BAD)
            return false;
    }
    return true;
}

size_t utf8_cut(struct str s, size_t max)
{
    size_t len = s.len < max ? s.len : max;
    /* Only a lead byte among the last three can begin a character that is cut in two. */
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        uint8_t c = (uint8_t)s.p[len - back];
        if ((c & 0xC0) == 0x80)
            continue;
        return lead_of(c).n_more >= back ? len - back : len;
    }
    return len;
}

bool utf8_is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x2028 || c == 0x2029;
}

bool utf8_has_control(struct str s)
{
    for (size_t i = 0; i < s.len;) {
        uint32_t c;
        i += utf8_step(rest_of(s, i), &c);
        if (utf8_is_control(c))
            return true;
    }
    return false;
}

/* The Unicode property White_Space. */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

bool utf8_has_edge_space(struct str s)
{
    if (s.len == 0)
        return false;
    size_t last = s.len - 1;
    while (last > 0 && ((uint8_t)s.p[last] & 0xC0) == 0x80)
        last--;
    uint32_t first_char;
    uint32_t last_char;
    utf8_step(s, &first_char);
    utf8_step(rest_of(s, last), &last_char);
    return is_space(first_char) || is_space(last_char);
}

size_t utf8_clean(char *dst, size_t cap, struct str src)
{
    assert(cap >= 1);
    size_t len = 0;
    for (size_t i = 0; i < src.len;) {
        uint32_t c;
        size_t n = utf8_step(rest_of(src, i), &c);
        struct str out = {src.p + i, n};
        if (c == '\t' || c == '\n' || c == '\r' || c == 0x85 || c == 0x2028 || c == 0x2029)
            out = STR(" ");
        else if (c == UTF8_BAD || utf8_is_control(c))
            out = STR(REPLACEMENT);
        if (out.len > cap - 1 - len)
            break;
        memcpy(dst + len, out.p, out.len);
        len += out.len;
        i += n;
    }
    dst[len] = '\0';
    return len;
}

bool name_char_valid(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

bool name_valid(struct str s, size_t max)
{
    if (s.len == 0 || s.len > max || str_eqz(s, ".") || str_eqz(s, ".."))
        return false;
    for (size_t i = 0; i < s.len; i++) {
        if (!name_char_valid(s.p[i]))
            return false;
    }
    return true;
}

int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
        return (c | 0x20) - 'a' + 10;
    return -1;
}

bool str_to_i64(struct str s, int64_t *ret)
{
    bool negative = s.len > 0 && s.p[0] == '-';
    size_t i = negative ? 1 : 0;
    if (i == s.len)
        return false;
    int64_t v = 0;
    for (; i < s.len; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        int digit = s.p[i] - '0';
        /* Built on the negative side, which holds one value more. */
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, digit, &v))
            return false;
    }
    if (!negative && v == INT64_MIN)
        return false;
    *ret = negative ? v : -v;
    return true;
}
