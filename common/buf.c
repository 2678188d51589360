/* SPDX-License-Identifier: Apache-2.0 */
#include "common/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_CAP 64
/* No object is larger than this (PTRDIFF_MAX); also keeps the doubling below from overflowing. */
#define MAX_CAP (SIZE_MAX / 2)

void buf_fini(struct buf *b)
{
    if (!b)
        return;
    free(b->data);
    *b = BUF_INIT;
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
}

static bool grow(struct buf *b, size_t n)
{
    if (n > MAX_CAP - b->len)
        return false;
    size_t cap = b->cap < MIN_CAP ? MIN_CAP : b->cap;
    while (cap < b->len + n)
        cap *= 2;
    char *data = realloc(b->data, cap);
    if (!data)
        return false;
    b->data = data;
    b->cap = cap;
    return true;
}

char *buf_room(struct buf *b, size_t n)
{
    if (b->failed)
        return NULL;
    if ((!b->data || n > b->cap - b->len) && !grow(b, n)) {
        b->failed = true;
        return NULL;
    }
    return b->data + b->len;
}

void buf_add_slowly(struct buf *b, const void *p, size_t n)
{
    if (n == 0)
        return;
    char *room = buf_room(b, n);
    if (!room)
        return;
    memcpy(room, p, n);
    b->len += n;
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    char *room = buf_room(b, 1);
    if (!room)
        return;
    size_t space = b->cap - b->len;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(room, space, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n >= space) {
        /* One more for the NUL that vsnprintf insists on. */
        room = buf_room(b, (size_t)n + 1);
        if (!room)
            return;
        va_start(args, fmt);
        n = vsnprintf(room, (size_t)n + 1, fmt, args);
        va_end(args);
    }
    if (n < 0)
        b->failed = true;
    else
        b->len += (size_t)n;
}

void buf_addi(struct buf *b, int64_t v)
{
    char digits[20];
    char *p = digits + sizeof(digits);
    uint64_t rest = v < 0 ? -(uint64_t)v : (uint64_t)v;
    do {
        *--p = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (v < 0)
        *--p = '-';
    buf_add(b, p, (size_t)(digits + sizeof(digits) - p));
}

char *buf_steal(struct buf *b)
{
    buf_addc(b, '\0');
    if (b->failed) {
        buf_fini(b);
        return NULL;
    }
    char *data = b->data;
    *b = BUF_INIT;
    return data;
}
