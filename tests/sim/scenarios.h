/* SPDX-License-Identifier: Apache-2.0 */
/* What the lists of scenarios share. Only scenarios*.c include this. */
#ifndef JF_SIM_SCENARIOS_H
#define JF_SIM_SCENARIOS_H

#include "tests/sim/sim.h"

struct scenario_list {
    const struct scenario *list; /* static */
    size_t n;
};
extern const struct scenario_list scenarios_alone;
extern const struct scenario_list scenarios_members;
extern const struct scenario_list scenarios_delivery;

/* Parts of a scenario. */

#define SIZE(nodes, services, tasks, seconds)                                                      \
    .n_nodes = (nodes), .n_services = (services), .n_tasks = (tasks), .span_ms = (seconds)*1000

/* Nothing goes wrong but what the scenario is about, so that nothing may be late. */
#define CALM .punctual = true, .reactions = {[REACT_OK] = 1}
#define CALM_CLUSTER(tasks, seconds) SIZE(3, 4, tasks, seconds), .clustered = true, CALM

/* Services that answer in every way. */
/* clang-format off */
#define USUAL                                                                                      \
    {                                                                                              \
        [REACT_OK] = 50, [REACT_SLOW] = 4, [REACT_500] = 12, [REACT_BUSY] = 6, [REACT_FINAL] = 3,  \
        [REACT_SNOOZE] = 5, [REACT_ASYNC] = 10, [REACT_HANG] = 3, [REACT_REFUSED] = 4,             \
        [REACT_RESET] = 3                                                                          \
    }
/* clang-format on */

#endif
