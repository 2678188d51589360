/* SPDX-License-Identifier: Apache-2.0 */
/* The business service of the bench: answers every POST with 200 at once and notes how late it
 * came. Runs on a thread of its own. */
#ifndef JF_BENCH_RECEIVER_H
#define JF_BENCH_RECEIVER_H

#include <stddef.h>

#include "common/clock.h"
#include "common/err.h"

struct receiver;

/* Keeps up to `cap` samples of lateness. Aborts the program on errors. */
struct receiver *receiver_start(size_t cap);
void receiver_stop(struct receiver *r);
uint16_t receiver_port(const struct receiver *r);
uint64_t receiver_count(const struct receiver *r);
void receiver_reset(struct receiver *r); /* count and samples; while nothing is under way */
/* Sorts the samples (milliseconds) and returns them; *ret_n of them. While nothing is under way. */
const int32_t *receiver_lateness(struct receiver *r, size_t *ret_n);

#endif
