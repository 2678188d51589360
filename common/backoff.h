/* SPDX-License-Identifier: Apache-2.0 */
/* Exponential back-off with cap and jitter. */
#ifndef JF_COMMON_BACKOFF_H
#define JF_COMMON_BACKOFF_H

#include "common/ids.h"

struct backoff {
    int64_t initial_ms; /* >= 1 */
    int64_t cap_ms;     /* >= initial_ms */
    double multiplier;  /* >= 1.0 */
    double jitter;      /* 0.0 to 1.0: the share of the delay that is random */
};

/* The delay before retry number n (1 is the first), without jitter: initial * multiplier^(n-1),
 * never above the cap, never below 1 ms, non-decreasing in n, for any n >= 1. */
int64_t backoff_base(const struct backoff *b, int64_t n);

/* The same with jitter: uniform in [base * (1 - jitter), base], at least 1 ms. */
int64_t backoff_delay(const struct backoff *b, int64_t n, struct rng *rng);

#endif
