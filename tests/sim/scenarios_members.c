/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of runs of a cluster whose members share the services. */
#include "tests/sim/scenarios.h"

static const struct scenario list[] = {
    {
        .name = "members share",
        CALM_CLUSTER(100, 20),
        .must = {MET_HINTS, MET_VIEWS, MET_FOREIGN},
    },
    {
        .name = "a member dies",
        CALM_CLUSTER(150, 25),
        .one_dies = true,
        .must = {MET_DEATHS, MET_LEASES_LOST, MET_VIEWS},
    },
    {
        .name = "members come and go",
        SIZE(3, 4, 120, 30),
        .clustered = true,
        .crash_rate = 30,
        .answer_lost_rate = 100,
        .late_rate = 100,
        .n_pauses = 8,
        .n_stops = 6,
        .n_moves = 20,
        .n_cancels = 10,
        .n_runs = 10,
        .n_service_pauses = 2,
        .lost_watch_rate = 500,
        .stale_rate = 1500,
        .reactions = USUAL,
        .must = {MET_CRASHES, MET_PAUSES, MET_STOPS, MET_LEASES_LOST, MET_VIEWS, MET_RESCUES,
                 MET_CLAIMS_LOST, MET_OWN_ORPHANS},
    },
    {
        .name = "the rows go on without etcd",
        CALM_CLUSTER(100, 20),
        .plot = PLOT_ETCD_DIES,
        .must = {MET_ETCD_DOWN, MET_BY_ROWS, MET_HINTS},
    },
    {
        .name = "a drain that etcd does not hear",
        CALM_CLUSTER(120, 25),
        .plot = PLOT_UNHEARD_DRAIN,
        .must = {MET_ETCD_FULL, MET_DRAINS, MET_OVERRULED, MET_BY_ROWS},
    },
    {
        .name = "an etcd that forgets all",
        CALM_CLUSTER(120, 25),
        .plot = PLOT_ETCD_FORGETS,
        .must = {MET_ETCD_FULL, MET_LEASES_LOST, MET_BY_ROWS},
    },
    {
        .name = "a node that the store loses",
        CALM_CLUSTER(120, 25),
        .plot = PLOT_LOST_BY_STORE,
        .must = {MET_OPS_LOST, MET_VIEWS},
    },
    {
        .name = "witnesses that err",
        SIZE(3, 4, 120, 30),
        .clustered = true,
        .crash_rate = 10,
        .lost_rate = 200,
        .answer_lost_rate = 200,
        .n_outages = 4,
        .n_pauses = 3,
        .n_stops = 2,
        .n_drains = 6,
        .n_etcd_troubles = 8,
        .n_leases_lost = 4,
        .lost_watch_rate = 3000,
        .stale_rate = 1000,
        .n_moves = 10,
        .reactions = USUAL,
        .must = {MET_EVENTS_LOST, MET_STALE_ANSWERS, MET_ETCD_DOWN, MET_ETCD_FULL, MET_ETCD_CUT,
                 MET_SPLIT_VIEWS, MET_BY_ROWS, MET_NO_WITNESS, MET_DRAINS, MET_OVERRULED,
                 MET_LEASES_LOST, MET_CLAIMS_LOST},
    },
};

const struct scenario_list scenarios_members = {list, sizeof(list) / sizeof(list[0])};
