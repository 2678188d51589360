/* SPDX-License-Identifier: Apache-2.0 */
/* Workers of a pull service: each connection leases tasks, notes them, and reports all as done with
 * its next call. Functions abort the program on errors. */
#ifndef JF_BENCH_WORKERS_H
#define JF_BENCH_WORKERS_H

#include "tests/bench/options.h"
#include "tests/bench/tally.h"

struct workers;

/* opt, service and tally are borrowed until workers_free. */
struct workers *workers_start(struct event_base *base, const struct options *opt,
                              const char *service, struct tally *tally);
void workers_free(struct workers *w);

#endif
