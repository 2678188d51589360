/* SPDX-License-Identifier: Apache-2.0 */
/* What lease.c and lease_peer.c share: the polls that wait, by service, and the calls to other
 * members. */
#ifndef JF_NODE_LEASE_INTERNAL_H
#define JF_NODE_LEASE_INTERNAL_H

#include <event2/event.h>
#include <event2/event_struct.h>

#include "node/core/sched_pull.h"
#include "node/node_internal.h"

/* One query that the node has. */
struct poll {
    struct poll *prev; /* of its service's, or of the watchers */
    struct poll *next;
    struct leases *leases;
    struct pull *pull; /* NULL: a watcher */
    struct lease_query *query;
    struct event timer;
    mono_ms until;          /* the end of its wait */
    struct lease *lease;    /* in the scheduler; NULL while `call` is out, or in doubt */
    struct peer_call *call; /* to an owner; NULL = none is out */
    uint32_t place;         /* the owner that it asks next; 0 = this node */
    uint32_t n_left;        /* owners that it has not asked */
    size_t cap;             /* of the query's array */
    size_t bytes;           /* of the tasks that it has */
    size_t n_wanted;        /* tasks, with those of the step that is out */
    mono_ms steps_until;    /* then no other step begins; set with the first */
    struct poll *next_in_steps;
    bool in_steps; /* has tasks, and asks for more that are due */
    int n_doubts;  /* readings of the services since this node did not know it as it should be */
    enum lease_outcome doubt; /* what it comes to otherwise */
    bool is_over;             /* ends with what is out */
};

/* What is known of another owner of a service's shards. */
struct owner {
    char name[MEMBER_NAME_MAX + 1];
    struct peer_call *watch; /* NULL = none is out */
    uint32_t n_asking;       /* polls that ask it because of its watch's news */
    mono_ms back_at;         /* nothing is asked of it before */
    bool listed;             /* it still owns some */
};

/* A service whose workers poll here, or did: a lone worker is between two polls most of the time,
 * and how large its tasks are has to be known all the same. */
struct pull {
    struct pull *next; /* of all */
    struct leases *leases;
    struct poll *head;
    struct poll *tail;
    uint32_t n_polls;
    uint32_t n_calls; /* that name it */
    struct owner *owners;
    size_t n_owners;
    size_t cap_owners;
    mono_ms owners_at; /* when they were looked up */
    mono_ms asked_at;  /* the last poll */
    uint32_t turn;
    size_t task_bytes; /* of a payload, as of late */
    char name[TASK_NAME_MAX + 1];
};

struct leases {
    struct node *node;
    struct pull *pulls;      /* owned */
    struct poll *watchers;   /* owned: of other members */
    struct poll *in_steps;   /* borrowed: those of the polls that are in steps */
    struct peer_call *calls; /* owned: those that are out */
    uint32_t n_polls;        /* watchers too */
    uint64_t news;           /* of the scheduler, as last seen */
    struct event tick;
    bool stopping;
};

/* lease.c */
void poll_rest(struct poll *p); /* waits in this node's scheduler */
void poll_next(struct poll *p); /* asks the next owner, or rests */
void poll_answer(struct poll *p, enum lease_outcome outcome);
void poll_end_in(struct poll *p, int64_t ms);
void pull_release(struct pull *u); /* frees it when nobody needs it, nor what is known of it */
/* Asks the scheduler for as many tasks as step_size says. Errors: as sched_lease. */
MUST_CHECK int lease_start(struct poll *p);

/* lease_tasks.c */
uint32_t step_size(const struct poll *p); /* so many that the answer stays within its size */
void steps_pass(struct leases *l);        /* ends the polls whose next step got nothing at once */

/* lease_peer.c: calls to other members. */
void owners_refresh(struct pull *u);
/* Asks an owner for the poll. False: it cannot be asked now. */
bool owner_ask(struct pull *u, struct owner *o, struct poll *p, bool by_news);
void owners_watch(struct pull *u);     /* each of them, while polls rest */
void call_forget(struct peer_call *c); /* its poll waits no longer */
void calls_free(struct leases *l);     /* after the dispatcher */
void pull_free(struct pull *u);

#endif
