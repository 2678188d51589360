/* SPDX-License-Identifier: Apache-2.0 */
/* Random bytes and trace ids. A trace id is 32 lower-case hex digits (W3C trace-id): the first 16
 * are the task's id, the rest random, so it is unique by construction and found by primary key. */
#ifndef JF_COMMON_IDS_H
#define JF_COMMON_IDS_H

#include "common/err.h"
#include "common/str.h"

#define TRACE_ID_LEN 32

/* Fills from the kernel's generator; aborts if that is impossible. */
void random_bytes(void *dst, size_t n);

/* A small fast generator with explicit state (splitmix64), for jitter: no secrets. */
struct rng {
    uint64_t state;
};
uint64_t rng_next(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t bound); /* 0 <= result < bound; bound >= 1 */

/* id > 0. Writes 32 digits and a NUL. `tail` supplies the random half (0 is replaced by 1). */
void trace_id_make(int64_t id, uint64_t tail, char dst[TRACE_ID_LEN + 1]);

/* Returns the task's id, or 0 when s is not a trace id of ours (32 lower-case hex digits, id > 0).
 */
int64_t trace_id_task(struct str s);

#endif
