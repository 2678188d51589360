/* SPDX-License-Identifier: Apache-2.0 */
#include "common/base64.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Four digits for one to three bytes. */
static void encode_group(const unsigned char *p, size_t n, char dst[4])
{
    unsigned bits =
        (unsigned)p[0] << 16 | (n > 1 ? (unsigned)p[1] << 8 : 0) | (n > 2 ? (unsigned)p[2] : 0);

    dst[0] = digits[bits >> 18];
    dst[1] = digits[bits >> 12 & 63];
    dst[2] = n > 1 ? digits[bits >> 6 & 63] : '=';
    dst[3] = n > 2 ? digits[bits & 63] : '=';
}

void base64_encode(struct str bytes, struct buf *dst)
{
    size_t n_groups = bytes.len / 3 + (bytes.len % 3 != 0);
    char *room = n_groups ? buf_room(dst, n_groups * 4) : NULL;

    if (!room)
        return;
    for (size_t i = 0; i < n_groups; i++)
        encode_group((const unsigned char *)bytes.p + i * 3, bytes.len - i * 3, room + i * 4);
    dst->len += n_groups * 4;
}

/* The bytes of a group, 0 for an ill-formed one; padding is good in the last one only. */
static size_t decode_group(const char *p, bool is_last, char dst[3])
{
    size_t n = !is_last || p[3] != '=' ? 3 : p[2] != '=' ? 2 : 1;
    unsigned bits = 0;

    for (size_t i = 0; i < 4; i++) {
        int value = i <= n ? base64_digit(p[i]) : 0;
        if (value < 0)
            return 0;
        bits = bits << 6 | (unsigned)value;
    }
    if (n < 3 && (bits & (n == 2 ? 0xFFU : 0xFFFFU)))
        return 0;
    for (size_t i = 0; i < n; i++)
        dst[i] = (char)(bits >> (16 - 8 * i) & 0xFF);
    return n;
}

bool base64_decode(struct str text, struct buf *dst)
{
    size_t n_groups = text.len / 4;
    size_t n_bytes = 0;

    if (text.len % 4 != 0)
        return false;
    char *room = n_groups ? buf_room(dst, n_groups * 3) : NULL;
    for (size_t i = 0; room && i < n_groups; i++) {
        size_t n = decode_group(text.p + i * 4, i + 1 == n_groups, room + n_bytes);
        if (!n)
            return false;
        n_bytes += n;
    }
    dst->len += n_bytes;
    return true;
}
