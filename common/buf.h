/* SPDX-License-Identifier: Apache-2.0 */
/* A growable byte buffer. An out-of-memory condition sticks: later appends do nothing, and the
 * one check at the end (`buf_ok`) covers them all. */
#ifndef JF_COMMON_BUF_H
#define JF_COMMON_BUF_H

#include <string.h>

#include "common/err.h"
#include "common/str.h"

struct buf {
    char *data; /* owned; NULL while empty */
    size_t len;
    size_t cap;
    bool failed;
};

#define BUF_INIT ((struct buf){0})

void buf_fini(struct buf *b);
void buf_clear(struct buf *b); /* len = 0 and failed = false; keeps the memory */

/* Makes room for `n` more bytes and returns where to write them, or NULL when out of memory.
 * Add what was written to b->len. */
char *buf_room(struct buf *b, size_t n);

/* What buf_add does when there is no room, or nothing to add. */
void buf_add_slowly(struct buf *b, const void *p, size_t n);

/* These four are inline, since texts are put together from many small pieces. */
static inline void buf_add(struct buf *b, const void *p, size_t n)
{
    /* n - 1: nothing to add, maybe from NULL, is none of the quick cases. */
    if (b->failed || n - 1 >= b->cap - b->len) {
        buf_add_slowly(b, p, n);
        return;
    }
    memcpy(b->data + b->len, p, n);
    b->len += n;
}

static inline void buf_adds(struct buf *b, struct str s)
{
    buf_add(b, s.p, s.len);
}

static inline void buf_addz(struct buf *b, const char *z)
{
    buf_add(b, z, strlen(z));
}

static inline void buf_addc(struct buf *b, char c)
{
    if (b->failed || b->len == b->cap) {
        buf_add_slowly(b, &c, 1);
        return;
    }
    b->data[b->len++] = c;
}

void buf_addf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_addi(struct buf *b, int64_t v); /* decimal */

static inline bool buf_ok(const struct buf *b)
{
    return !b->failed;
}

/* A view of the content, borrowed until the buffer next changes. */
static inline struct str buf_str(const struct buf *b)
{
    return (struct str){b->data ? b->data : "", b->len};
}

/* Gives the content away as a NUL-terminated string that the caller frees, and empties the
 * buffer. Returns NULL when out of memory (now or earlier). */
char *buf_steal(struct buf *b);

#endif
