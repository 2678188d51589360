/* SPDX-License-Identifier: Apache-2.0 */
#ifndef JF_SIM_MET_H
#define JF_SIM_MET_H

/* What a run met: a scenario that did not meet its own kind of trouble proves nothing. */
enum met {
    MET_DELIVERIES,
    MET_CRASHES,
    MET_OPS_LOST,     /* a node's operation never reached the store */
    MET_ANSWERS_LOST, /* its effect stands, the node does not know */
    MET_RUN_TWICE,    /* the store ran it again after a lost commit */
    MET_LATE_WRITES,  /* ran long after the node had given it up */
    MET_FENCED,       /* a finish of an attempt that was no longer the live one */
    MET_CLAIMS_LOST,
    MET_CLAIMS_EARLY,
    MET_RECLAIMED, /* a claim found its own earlier one */
    MET_RESCUES,
    MET_OWN_ORPHANS, /* of them, from an earlier epoch of the rescuer */
    MET_UNSENT,      /* the fence or a stop held a request back */
    MET_OUTAGES,
    MET_PAUSES,
    MET_CLOCK_STEPS,
    MET_STOPS,
    MET_DEATHS,
    MET_RETRIES,
    MET_FAILURES, /* tasks that ended FAILED */
    MET_SNOOZES,
    MET_RETRY_AFTER,
    MET_ASYNC,      /* answers 202 */
    MET_RESULTS,    /* that were taken */
    MET_NO_RESULTS, /* results that never came */
    MET_HEARTBEATS,
    MET_TIMEOUTS,
    MET_DUPLICATES,
    MET_CANCELS,
    MET_MOVES,
    MET_REPLACES,
    MET_RERUNS,
    MET_SERVICE_PAUSES,
    MET_HINTS,
    MET_BACKLOGS, /* a scan brought as many rows as it may */
    MET_VIEWS,    /* a node went by another set of owners */
    MET_LEASES_LOST,
    MET_EVENTS_LOST, /* of a watch */
    MET_STALE_ANSWERS,
    MET_ETCD_DOWN,
    MET_ETCD_FULL,
    MET_ETCD_CUT,
    MET_SPLIT_VIEWS, /* nodes went by different owners at a time */
    MET_BY_ROWS,     /* a node left etcd's list for the rows */
    MET_NO_WITNESS,  /* or had neither */
    MET_DRAINS,
    MET_OVERRULED,      /* a row said that a member has given up, etcd's list did not */
    MET_FOREIGN,        /* hints about another member's task */
    MET_LEASED,         /* by a worker */
    MET_GIVEN_BACK,     /* claimed for a worker that had gone, or too late */
    MET_HANGUPS,        /* of workers whose claims were out */
    MET_MODES,          /* a service was given another way of delivery */
    MET_PARCELS,        /* requests with many tasks */
    MET_NO_PARTS,       /* tasks of them without a result */
    MET_CONTRADICTIONS, /* tasks with two results that differ */
    MET_REFUSALS,       /* of requests with many tasks */
    MET_BODY_LIMITS,    /* a node has learnt that bodies have to be smaller */
    MET_N
};
const char *met_name(enum met m);

#endif
