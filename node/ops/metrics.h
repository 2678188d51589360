/* SPDX-License-Identifier: Apache-2.0 */
/* The text of /metrics, in the Prometheus exposition format. */
#ifndef JF_OPS_METRICS_H
#define JF_OPS_METRICS_H

#include "common/buf.h"
#include "node/core/counters.h"
#include "node/core/sched.h"

/* What the counters do not hold. */
struct metrics_gauges {
    struct sched_stats sched;
    uint32_t n_instances;       /* live ones of all services */
    uint32_t n_instances_aside; /* of these */
    bool store_up;
    uint32_t store_queued;
    uint64_t store_batches[STORE_N_KINDS];
    uint64_t store_rows[STORE_N_KINDS];
    uint64_t store_retries;
    uint64_t store_reconnects;
    const char *node; /* borrowed for the call */
};

/* Appends all series with their HELP and TYPE lines. */
void metrics_put(struct buf *b, const struct counters *c, const struct metrics_gauges *g);

#endif
