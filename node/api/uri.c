/* SPDX-License-Identifier: Apache-2.0 */
#include "node/api/uri.h"

#include <string.h>

bool uri_decode(struct str s, struct buf *text, struct str *ret)
{
    const char *percent = s.len > 0 ? memchr(s.p, '%', s.len) : NULL;
    if (!percent) {
        *ret = s;
        return utf8_valid(s);
    }
    char *dst = buf_room(text, s.len);
    if (!dst)
        return false;
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.p[i];
        if (c == '%') {
            int high = i + 2 < s.len ? hex_digit(s.p[i + 1]) : -1;
            int low = i + 2 < s.len ? hex_digit(s.p[i + 2]) : -1;
            if (high < 0 || low < 0 || (high == 0 && low == 0))
                return false;
            c = (char)(high << 4 | low);
            i += 2;
        }
        dst[n++] = c;
    }
    text->len += n;
    *ret = (struct str){dst, n};
    return utf8_valid(*ret);
}

static bool is_unreserved(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

void uri_encode(struct buf *b, struct str s)
{
    static const char digits[] = "0123456789ABCDEF";
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (is_unreserved(s.p[i])) {
            buf_addc(b, s.p[i]);
        } else {
            char encoded[3] = {'%', digits[c >> 4], digits[c & 15]};
            buf_add(b, encoded, sizeof(encoded));
        }
    }
}

bool uri_next_pair(struct str *rest, struct str *ret_key, struct str *ret_value)
{
    while (rest->len > 0 && *rest->p == '&') {
        rest->p++;
        rest->len--;
    }
    if (rest->len == 0)
        return false;
    const char *end = memchr(rest->p, '&', rest->len);
    size_t len = end ? (size_t)(end - rest->p) : rest->len;
    const char *equals = memchr(rest->p, '=', len);
    *ret_key = (struct str){rest->p, equals ? (size_t)(equals - rest->p) : len};
    *ret_value = (struct str){0};
    if (equals)
        *ret_value = (struct str){equals + 1, len - ret_key->len - 1};
    rest->p += len;
    rest->len -= len;
    return true;
}
