/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the virtual node share. Only vnode*.c include this. */
#ifndef JF_SIM_VNODE_INTERNAL_H
#define JF_SIM_VNODE_INTERNAL_H

#include "common/hash.h"
#include "proto/member.h"
#include "tests/sim/actors.h"
#include "tests/sim/oracle.h"
#include "tests/sim/vnode.h"

struct vparcel;

/* One attempt, from the claim's answer until its end is stored. */
struct flight {
    struct sim_event ev; /* first; leaving, then the answer, if it has a request of its own */
    struct vnode *node;
    struct task *task;  /* owned */
    struct reply reply; /* once it left */
    int64_t timeout_ms;
    wall_ms started_at; /* true time */
    wall_ms send_by;    /* true time: the fence */
    wall_ms decided_at; /* by the node's reading of the store's clock; WALL_NONE = not yet */
    int service;
};

/* What the node was last told of a service. */
struct known_service {
    int32_t concurrency;    /* of tasks */
    int32_t n_requests_max; /* at a time */
    int64_t version;
    bool paused;
    enum delivery_mode delivery;
    uint32_t n_slots;       /* claims and requests that are out */
    uint32_t n_retries;     /* tasks of requests that are out and retries */
    uint32_t n_retries_max; /* slots for them: the most at any claim since none was out */
};

/* How often a claim of one task came too early of late. */
struct early {
    int64_t id;
    wall_ms since;
    int n;
};
#define VNODE_EARLY 64 /* by id */

/* The requests with many tasks of one service. */
struct vline {
    struct vparcel *parcels; /* owned, the oldest first: that gather, and that are out */
    uint32_t n_out;
    struct parcel_rules *rules; /* owned: what was learnt; NULL = nothing yet */
    int64_t version;            /* of the service, when it was */
};

struct vnode {
    struct sim *sim;
    const struct vnode_config *base; /* borrowed */
    struct sched_config cfg;
    char name[16];
    char claimed_by[32]; /* "" while down */
    int index;
    uint32_t life;       /* an incarnation's events reach no other */
    struct sched *sched; /* NULL while down */
    struct actions actions;
    int64_t offset_ms; /* its reading of the store's clock - the true time */
    wall_ms paused_until;
    wall_ms stop_by; /* while stopping */
    bool store_up;   /* as it was told */
    bool store_cut;  /* what it asks of the store is lost */
    bool stopping;
    bool reading_services;
    struct sim_event wake;
    struct sim_event sync;   /* reads the store's clock */
    struct sim_event reread; /* reads the services */
    struct sim_event boot;
    struct map64 flights; /* by task id */
    struct vline lines[SIM_SERVICES_MAX];
    struct vlease *leases;       /* owned: workers that wait */
    unsigned members;            /* who owns, by its view */
    struct vnode_members *among; /* owned; NULL while down, and without a cluster */
    struct map64 unknown;        /* ids of claims whose answer was lost: they are asked again */
    struct map64 busy;           /* ids that count against max_in_flight → BUSY_… */
    struct known_service services[SIM_SERVICES_MAX];
    struct early early[VNODE_EARLY];
};

/* Does an event reach the incarnation that waits for it? */
enum reach { REACH_NOW, REACH_LATER /* paused_until */, REACH_NEVER };
enum reach vnode_reach(const struct vnode *n, uint32_t life);
wall_ms vnode_now(const struct vnode *n);
/* The node may die here: between two steps. Returns true when it did. */
bool vnode_may_crash(struct vnode *n);
/* After each event: ticks the scheduler, carries out its actions, checks its books. */
void vnode_pass(struct vnode *n);

/* vnode_store.c */
void vnode_post(struct vnode *n); /* the actions of one pass; empties them */
void vnode_read_services(struct vnode *n);

/* Asks for a heartbeat; vnode_beaten() follows, unless the node goes down before. */
void vnode_beat(struct vnode *n, int64_t epoch, enum member_state state, int64_t ttl_ms);

/* vnode_members.c */
void vnode_set_members(struct vnode *n, unsigned members);
void vnode_members_start(struct vnode *n, int64_t epoch);
void vnode_members_ready(struct vnode *n); /* the services are known */
void vnode_members_check(const struct vnode *n);
void vnode_members_stop(struct vnode *n);  /* n->stopping was set */
void vnode_members_leave(struct vnode *n); /* the last step of a stop */
void vnode_members_end(struct vnode *n);
void vnode_beaten(struct vnode *n, int rc, wall_ms asked_at, const struct member *list,
                  size_t n_members);

/* vnode_send.c */
void vnode_send_all(struct vnode *n, size_t from, wall_ms asked_at);
void flight_end(struct vnode *n, int64_t id); /* NULL-safe: nothing without a flight */
void vnode_drop_flights(struct vnode *n);
void flight_verdict(struct flight *f, const struct verdict *v); /* a pass has to follow */

/* vnode_parcel.c */
void vparcels_add(struct flight *f, const struct service *service);
void vparcels_services(struct vnode *n); /* n->services are others */
void vparcels_stop(struct vnode *n);     /* what gathers is given back */
void vparcels_drop(struct vnode *n);     /* the node is gone */

/* vnode_pull.c */
/* Carries out the LEASED and LEASE_DONE actions from index `from` on. */
void vnode_hand(struct vnode *n, size_t from, wall_ms asked_at);
bool vnode_has_lease(const struct vnode *n, int service);
void vnode_end_leases(struct vnode *n);  /* the node stops */
void vnode_drop_leases(struct vnode *n); /* it is gone */

/* vnode_books.c: what a node may ask for, counted a second time. */
void books_scan(struct vnode *n, const struct scan_key *key);
void books_claim(struct vnode *n, const struct claim_item *item);
/* How a claim went on: SENDS keeps its slot and its place, GIVEN_BACK its place. */
enum claim_end { CLAIM_SENDS, CLAIM_GIVEN_BACK, CLAIM_OVER };
void books_claimed(struct vnode *n, int64_t id, enum claim_end end);
void books_unknown(struct vnode *n, int64_t id);
void books_early(struct vnode *n, int64_t id);
void books_send(struct vnode *n, const struct flight *f);
void books_answered(struct vnode *n, const struct flight *f);
void books_finish(struct vnode *n, const struct finish_item *item);
void books_finished(struct vnode *n, const struct finish_item *item);
void books_clear(struct vnode *n);

#endif
