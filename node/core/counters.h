/* SPDX-License-Identifier: Apache-2.0 */
/* The counters behind /metrics: plain atomics, bumped where the fact happens, rendered by node/ops.
 */
#ifndef JF_CORE_COUNTERS_H
#define JF_CORE_COUNTERS_H

#include "node/core/verdict.h"

#include <stdatomic.h>

#define LATENESS_BUCKETS 14
/* Upper bounds in milliseconds; the last bucket is +Inf. */
extern const int64_t lateness_bounds_ms[LATENESS_BUCKETS];

struct counters {
    atomic_uint_fast64_t submitted;  /* new tasks stored */
    atomic_uint_fast64_t duplicates; /* repeats answered with the first one's record */
    atomic_uint_fast64_t refused;    /* submissions answered with 4xx or 503 */
    atomic_uint_fast64_t attempts[VERDICT_UNSENT + 1];
    atomic_uint_fast64_t finished[TASK_N_STATUSES]; /* SUCCESS, FAILED, CANCELLED */
    atomic_uint_fast64_t retries;
    atomic_uint_fast64_t rescued;
    atomic_uint_fast64_t alerts_told;
    atomic_uint_fast64_t alerts_failed;
    atomic_uint_fast64_t hints_dropped; /* about others' tasks: no room */
    atomic_uint_fast64_t hints_failed;  /* calls with hints that their owner did not take */
    atomic_uint_fast64_t http_requests;
    atomic_uint_fast64_t
        lateness[LATENESS_BUCKETS + 1]; /* of first attempts: the request's start - due */
    atomic_uint_fast64_t lateness_sum_ms;
};

static inline void counter_add(atomic_uint_fast64_t *c, uint64_t n)
{
    atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}
static inline uint64_t counter_get(const atomic_uint_fast64_t *c)
{
    return atomic_load_explicit(c, memory_order_relaxed);
}
void counters_lateness(struct counters *c, int64_t ms); /* below 0 counts as 0 */

#endif
