/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of runs of nodes that each work for all: nodes, the store and services fail. */
#include "tests/sim/scenarios.h"

static const struct scenario list[] = {
    {
        .name = "punctual",
        SIZE(2, 3, 60, 20),
        CALM,
        .must = {MET_HINTS, MET_CLAIMS_LOST},
    },
    {
        .name = "read ahead",
        SIZE(2, 3, 60, 25),
        CALM,
        .no_hints = true,
        .must = {MET_CLAIMS_LOST},
    },
    {
        .name = "priorities",
        SIZE(1, 2, 300, 20),
        .one_by_one = true,
        .in_order = true,
        .reactions = {[REACT_OK] = 9, [REACT_500] = 1},
        .must = {MET_RETRIES},
    },
    {
        .name = "a death",
        SIZE(2, 2, 120, 25),
        .one_dies = true,
        .reactions = USUAL,
        .must = {MET_DEATHS, MET_RESCUES, MET_HEARTBEATS},
    },
    {
        .name = "crashes",
        SIZE(2, 3, 80, 25),
        .crash_rate = 120,
        .reactions = USUAL,
        .must = {MET_CRASHES, MET_RESCUES, MET_OWN_ORPHANS, MET_RETRIES, MET_FAILURES},
    },
    {
        .name = "lost answers",
        SIZE(2, 2, 80, 25),
        .lost_rate = 500,
        .answer_lost_rate = 1000,
        .twice_rate = 500,
        .slow_rate = 100,
        .n_repeats = 20,
        .reactions = USUAL,
        .must = {MET_OPS_LOST, MET_ANSWERS_LOST, MET_RUN_TWICE, MET_RECLAIMED, MET_DUPLICATES},
    },
    {
        .name = "late writes",
        SIZE(2, 2, 80, 30),
        .crash_rate = 30,
        .answer_lost_rate = 200,
        .late_rate = 1000,
        .slow_rate = 200,
        .reactions = USUAL,
        .must = {MET_LATE_WRITES, MET_FENCED, MET_RESCUES, MET_UNSENT},
    },
    {
        .name = "moves and cancels",
        SIZE(2, 3, 80, 25),
        .lost_rate = 100,
        .answer_lost_rate = 100,
        .n_cancels = 40,
        .n_moves = 80,
        .n_replaces = 40,
        .n_runs = 40,
        .n_repeats = 20,
        .n_service_pauses = 5,
        .n_service_puts = 5,
        .doomed = 10,
        .reactions = USUAL,
        .must = {MET_CANCELS, MET_MOVES, MET_REPLACES, MET_RERUNS, MET_DUPLICATES,
                 MET_SERVICE_PAUSES, MET_CLAIMS_EARLY},
    },
    {
        .name = "clock steps",
        SIZE(2, 2, 80, 25),
        .n_steps = 20,
        .skew_ms = 80,
        .n_moves = 20,
        .reactions = USUAL,
        .must = {MET_CLOCK_STEPS, MET_CLAIMS_EARLY, MET_MOVES, MET_RESCUES},
    },
    {
        .name = "pauses",
        SIZE(2, 2, 80, 30),
        .n_pauses = 12,
        .slow_rate = 100,
        .reactions = USUAL,
        .must = {MET_PAUSES, MET_UNSENT, MET_RESCUES, MET_FENCED},
    },
    {
        .name = "slow services",
        SIZE(1, 3, 90, 25),
        .one_by_one = true,
        .reactions = {[REACT_OK] = 20,
                      [REACT_SLOW] = 20,
                      [REACT_HANG] = 15,
                      [REACT_ASYNC] = 40,
                      [REACT_BUSY] = 5,
                      [REACT_SNOOZE] = 5},
        .must = {MET_TIMEOUTS, MET_ASYNC, MET_RESULTS, MET_NO_RESULTS, MET_HEARTBEATS,
                 MET_RETRY_AFTER, MET_SNOOZES},
    },
    {
        .name = "outages",
        SIZE(2, 2, 80, 30),
        .n_outages = 5,
        .answer_lost_rate = 100,
        .crash_rate = 20,
        .reactions = USUAL,
        .must = {MET_OUTAGES, MET_RESCUES, MET_RETRIES},
    },
    {
        .name = "retry wave",
        SIZE(2, 2, 150, 20),
        .one_by_one = true,
        .n_service_puts = 10,
        .doomed = 30,
        .reactions = {[REACT_500] = 70, [REACT_OK] = 30},
        .must = {MET_RETRIES, MET_FAILURES},
    },
    {
        .name = "small tables",
        SIZE(2, 3, 150, 20),
        .tight = true,
        .crash_rate = 10,
        .n_moves = 30,
        .n_service_pauses = 3,
        .reactions = USUAL,
        .must = {MET_BACKLOGS, MET_MOVES, MET_RETRIES},
    },
    {
        .name = "stops",
        SIZE(2, 2, 80, 25),
        .slow_rate = 600,
        .n_stops = 12,
        .n_service_pauses = 2,
        .reactions = USUAL,
        .must = {MET_STOPS, MET_UNSENT},
    },
    {
        .name = "isolation",
        SIZE(1, 2, 400, 25),
        .isolation = true,
        .doomed = 20,
        .reactions = {[REACT_HANG] = 50, [REACT_SLOW] = 30, [REACT_500] = 20},
        .must = {MET_TIMEOUTS, MET_RETRIES},
    },
    {
        .name = "mixed",
        SIZE(3, 4, 100, 30),
        .crash_rate = 20,
        .lost_rate = 100,
        .answer_lost_rate = 100,
        .late_rate = 100,
        .twice_rate = 100,
        .slow_rate = 50,
        .n_outages = 1,
        .n_pauses = 3,
        .n_steps = 4,
        .skew_ms = 20,
        .n_stops = 2,
        .n_cancels = 15,
        .n_moves = 20,
        .n_replaces = 10,
        .n_runs = 15,
        .n_repeats = 10,
        .n_service_pauses = 2,
        .n_service_puts = 3,
        .doomed = 5,
        .reactions = USUAL,
        .must = {MET_CRASHES, MET_LATE_WRITES, MET_PAUSES, MET_CLOCK_STEPS, MET_OUTAGES,
                 MET_CANCELS, MET_RERUNS, MET_FENCED},
    },
};

const struct scenario_list scenarios_alone = {list, sizeof(list) / sizeof(list[0])};

static const struct scenario_list *const lists[] = {&scenarios_alone, &scenarios_members,
                                                    &scenarios_delivery};
#define N_LISTS (sizeof(lists) / sizeof(lists[0]))

size_t scenarios_n(void)
{
    size_t n = 0;

    for (size_t k = 0; k < N_LISTS; k++)
        n += lists[k]->n;
    return n;
}

const struct scenario *scenario_at(size_t i)
{
    size_t k = 0;

    for (; i >= lists[k]->n; k++)
        i -= lists[k]->n;
    return &lists[k]->list[i];
}
