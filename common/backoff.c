/* SPDX-License-Identifier: Apache-2.0 */
#include "common/backoff.h"

#include <assert.h>
#include <math.h>

int64_t backoff_base(const struct backoff *b, int64_t n)
{
    assert(n >= 1);
    assert(b->initial_ms >= 1 && b->cap_ms >= b->initial_ms && b->multiplier >= 1.0);
    double delay = (double)b->initial_ms * pow(b->multiplier, (double)(n - 1));
    /* Compared as double first: only a value below 2^63 may become an integer. */
    if (!(delay < (double)b->cap_ms))
        return b->cap_ms;
    int64_t base = (int64_t)floor(delay + 0.5);
    return base < b->cap_ms ? base : b->cap_ms;
}

int64_t backoff_delay(const struct backoff *b, int64_t n, struct rng *rng)
{
    assert(b->jitter >= 0.0 && b->jitter <= 1.0);
    int64_t base = backoff_base(b, n);
    /* A share of an int64 that is rounded to a double may come out larger than the whole. */
    double share = floor((double)base * b->jitter);
    int64_t span = share < (double)(base - 1) ? (int64_t)share : base - 1;
    return base - (int64_t)rng_below(rng, (uint64_t)span + 1);
}
