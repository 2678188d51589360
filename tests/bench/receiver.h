/* SPDX-License-Identifier: Apache-2.0 */
/* The business service of the bench: answers every POST with 200 at once, on a thread of its own.
 * Functions abort the program on errors. */
#ifndef JF_BENCH_RECEIVER_H
#define JF_BENCH_RECEIVER_H

#include <stdint.h>

#include "common/str.h"
#include "tests/bench/tally.h"

struct receiver;

/* Listens on 127.0.0.1; port 0 takes a free one. The tally (borrowed until receiver_stop; NULL:
 * nobody wants to know) notes what comes. `fixed` (likewise borrowed), if there is one, is how each
 * request is answered instead, head and body. */
struct receiver *receiver_start(uint16_t port, struct tally *tally, struct str fixed);
void receiver_stop(struct receiver *r);
uint16_t receiver_port(const struct receiver *r);

#endif
