/* SPDX-License-Identifier: Apache-2.0 */
/* How many tasks the nodes have finished, by their /metrics. Functions abort the program on errors.
 */
#ifndef JF_BENCH_WATCH_H
#define JF_BENCH_WATCH_H

#include "tests/bench/load.h"

struct watch {
    struct watched {
        struct client *client;
        uint64_t finished;
        bool wanted; /* a look that has not been asked for yet */
        bool known;  /* there was an answer */
    } nodes[NODES_MAX];
    size_t n;
};

void watch_start(struct watch *w, struct event_base *base, const uint16_t *ports, size_t n);
void watch_fini(struct watch *w);
void watch_look(struct watch *w); /* asks each node that is not being asked already */
bool watch_is_known(const struct watch *w);
uint64_t watch_total(const struct watch *w); /* as of the last answers */

#endif
