/* SPDX-License-Identifier: Apache-2.0 */
#include "node/core/counters.h"

const int64_t lateness_bounds_ms[LATENESS_BUCKETS] = {1,   2,   5,    10,   25,    50,    100,
                                                      250, 500, 1000, 5000, 15000, 60000, 300000};

void counters_lateness(struct counters *c, int64_t ms)
{
    int i = 0;

    if (ms < 0)
        ms = 0;
    while (i < LATENESS_BUCKETS && ms > lateness_bounds_ms[i])
        i++;
    counter_add(&c->lateness[i], 1);
    counter_add(&c->lateness_sum_ms, (uint64_t)ms);
}
