/* SPDX-License-Identifier: Apache-2.0 */
#include "common/ids.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

void random_bytes(void *dst, size_t n)
{
    char *p = dst;
    while (n > 0) {
        ssize_t got = getrandom(p, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            abort();
        p += got;
        n -= (size_t)got;
    }
}

uint64_t rng_next(struct rng *r)
{
    uint64_t z = r->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

uint64_t rng_below(struct rng *r, uint64_t bound)
{
    assert(bound >= 1);
    /* 2^64 mod bound values at the low end would make some results likelier: draw again. */
    uint64_t skip = -bound % bound;
    uint64_t v;
    do {
        v = rng_next(r);
    } while (v < skip);
    return v % bound;
}

static void put_hex(char *dst, uint64_t v)
{
    for (int i = 15; i >= 0; i--, v >>= 4)
        dst[i] = "0123456789abcdef"[v & 0xF];
}

void trace_id_make(int64_t id, uint64_t tail, char dst[TRACE_ID_LEN + 1])
{
    assert(id > 0);
    put_hex(dst, (uint64_t)id);
    put_hex(dst + 16, tail ? tail : 1);
    dst[TRACE_ID_LEN] = '\0';
}

int64_t trace_id_task(struct str s)
{
    if (s.len != TRACE_ID_LEN)
        return 0;
    uint64_t id = 0;
    for (size_t i = 0; i < TRACE_ID_LEN; i++) {
        char c = s.p[i];
        uint64_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint64_t)(c - 'a') + 10;
        else
            return 0;
        if (i < 16)
            id = id << 4 | digit;
    }
    return id <= INT64_MAX ? (int64_t)id : 0;
}
