/* SPDX-License-Identifier: Apache-2.0 */
/* Why a task does not run, as the scheduler sees it. */
#ifndef JF_CORE_SCHED_EXPLAIN_H
#define JF_CORE_SCHED_EXPLAIN_H

#include "node/core/sched.h"

/* What keeps a task from running, as this node sees it. */
enum gate {
    GATE_NONE,        /* nothing: it is being claimed or sent */
    GATE_TIME,        /* its time has not come */
    GATE_PAUSED,      /* its service is paused */
    GATE_CONCURRENCY, /* its service's slots are all taken */
    GATE_CAPACITY,    /* the node's own slots are all taken */
    GATE_QUEUE,       /* due, waits its turn: `place` */
    GATE_STORE,       /* the database is away */
    GATE_STOPPING,    /* this node is stopping */
    GATE_UNREAD,      /* due, and not yet read into memory (a backlog) */
    GATE_WORKER,      /* due, and no worker asks for it */
    GATE_FOREIGN,     /* another member owns it, or nobody does for now */
};
const char *gate_name(enum gate g); /* "time", "paused", … */

struct sched_explanation {
    enum gate gate;
    char owner[MEMBER_NAME_MAX + 1]; /* by this node's view; "" = nobody */
    bool tracked;
    uint32_t place;     /* QUEUE: how many of its lane go first */
    uint32_t n_ready;   /* of its service */
    uint32_t n_sending; /* of its service */
    uint32_t concurrency;
};
void sched_explain(const struct sched *s, wall_ms now, struct str service_name, int32_t shard,
                   int64_t id, wall_ms next_attempt_time, struct sched_explanation *ret);

#endif
