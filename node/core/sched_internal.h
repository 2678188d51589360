/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the scheduler share: its books. Only sched*.c include this. */
#ifndef JF_CORE_SCHED_INTERNAL_H
#define JF_CORE_SCHED_INTERNAL_H

#include "common/hash.h"
#include "common/heap.h"
#include "node/core/sched_lane.h"

#include <assert.h>

#define SCHED_SCAN_KEYS 256      /* lanes in one scan statement */
#define SCHED_QUANTUM 8          /* claims a service may start before the next one's turn */
#define SCHED_RETRY_SHARE 4      /* retries own one of so many slots of a service */
#define SCHED_STORE_PAUSE_MS 100 /* after claims or a finish that the store did not take */
#define SCHED_STORE_PAUSE_MAX_MS 3000
#define SCHED_EARLY_SHIFT_MAX 8 /* too early: asked again after 256 ms at most */

/* Where an entry stands. Allowed moves: see entry_move. */
enum track {
    TRACK_NEW,
    TRACK_WAITING,   /* in the timers until next_attempt_time */
    TRACK_READY,     /* due, in its service's queue */
    TRACK_CLAIMING,  /* the CLAIM is out */
    TRACK_SENDING,   /* the SEND is out */
    TRACK_FINISHING, /* the FINISH is out */
    TRACK_PARKED,    /* a FINISH that the store did not take; in the timers until the next try */
    TRACK_GHOST,     /* somebody else's attempt; in the timers until its deadline */
    TRACK_GONE,
    TRACK_N
};

struct ghost {
    enum task_status status;
    int32_t retry_count;
    int32_t max_retry;
    int32_t priority;
    bool own_orphan;
    char policy[TASK_POLICY_MAX + 1];
};

struct lease;
struct entry {
    struct heap_node timer;    /* first, so that a node is its entry */
    struct entry *prev, *next; /* of the READY queue */
    struct lane *lane;
    struct ghost *ghost;        /* owned; of a GHOST and of its rescue */
    struct lease *lease;        /* of a CLAIMING in pull mode: who gets it */
    int64_t claimed_for;        /* number of the lease that it was first asked for; 0 = a request */
    struct finish_item *finish; /* owned, error text behind it; FINISHING and PARKED */
    int64_t id;
    wall_ms next_attempt_time;
    int32_t attempt;
    int16_t tries; /* of the present FINISH; before it, of claims that were too early */
    uint8_t track; /* enum track; changed by entry_move alone */
    bool asked;    /* READY again after a claim whose answer was lost: it may have been won */
};

struct queue {
    struct entry *head, *tail;
    uint32_t n;
};

struct svc {
    struct str name;      /* owned; stays while conf is replaced: scans borrow it */
    struct service *conf; /* owned */
    struct lane **lanes;  /* owned; [shard * TASK_LANES + number], NULL where unused */
    int32_t n_shards;
    struct queue ready[TASK_LANES];
    uint32_t n_ready;
    uint32_t n_ready_retries;
    uint32_t n_slots;       /* claiming and sending */
    uint32_t n_retry_slots; /* of them, retries */
    uint32_t since_retry;   /* first attempts started since the last retry */
    uint32_t n_in_flight;   /* slots and finishes */
    uint32_t n_entries;
    struct lease *lease_head, *lease_tail; /* open ones, in the order in which they asked */
    uint32_t n_leases;                     /* all that name it */
    struct svc *ring_prev; /* ring of services that can start something; NULL = not in it */
    struct svc *ring_next;
    bool listed; /* in the list of the present sched_services call */
    bool gone;
};

struct sched {
    struct sched_config cfg;
    struct rng rng;
    struct map64 entries;  /* by task id */
    struct map64 services; /* by hash of the name; see svc_find */
    struct svc **svcs;     /* owned */
    struct str *members;   /* owned: one block with the names */
    size_t n_members;
    uint32_t n_owned; /* shards; counted when members or services have changed */
    size_t n_svcs, cap_svcs;
    struct heap timers; /* of entries */
    struct heap scans;  /* of lanes */
    struct svc *ring;   /* whose turn is next */
    uint32_t n_ring;
    struct lease *leases; /* all; owned */
    struct lease *round;  /* those that the present pump claims for; NULL between two pumps */
    uint64_t pull_news;
    int64_t n_leases; /* so far: numbers them */
    uint32_t n_tracks[TRACK_N];
    uint32_t n_scans_out; /* keys of the scan that is out */
    uint32_t scan_number; /* its number, or that of the last one */
    struct note *notes;   /* owned; sched_stale.c */
    wall_ms now;
    wall_ms pause_until; /* claims wait: the store did not take the last one */
    int64_t pause_ms;
    bool store_up, stopping;
    uint64_t n_claims_lost, n_claims_early, n_finishes_lost, n_rescued;
};

/* sched.c */
void entry_move(struct sched *s, struct entry *e, enum track to);
/* Adds a new entry; NULL when the lane or the node is full (the lane's cursor is set back so that
 * the task is read again). */
struct entry *entry_add(struct sched *s, struct lane *l, int64_t id, int32_t attempt,
                        wall_ms next_attempt_time);
/* One more task may be tracked: the last quarter is kept for services with few. */
bool svc_may_track(const struct sched *s, const struct svc *v);
void entry_forget(struct sched *s, struct entry *e);
void entry_wait(struct sched *s, struct entry *e, wall_ms until); /* → WAITING */
struct action *actions_add(struct actions *a, enum action_kind kind);
uint32_t sched_in_flight(const struct sched *s);
/* Known and not yet asked for. */
static inline bool is_queued(enum track t)
{
    return t == TRACK_WAITING || t == TRACK_READY;
}
static inline struct entry *sched_entry(const struct sched *s, int64_t id)
{
    return map64_find(&s->entries, (uint64_t)id);
}
void *sched_alloc(size_t size);          /* zeroed; aborts when out of memory */
void sched_must(int rc);                 /* aborts unless 0 */
void sched_store_pause(struct sched *s); /* claims pause, longer each time */

/* sched_stale.c */
MUST_CHECK struct note *notes_new(void); /* free(); NULL when out of memory */
/* This attempt was claimed, and goes on without being tracked here. */
void note_claimed(struct sched *s, int64_t id, int32_t attempt);
/* The store has written this end of an attempt. */
void note_finished(struct sched *s, const struct finish_item *f);
/* A row of the scan that is back, older than what is noted of its task. */
bool is_stale(const struct sched *s, const struct scan_row *r);

/* sched_services.c */
struct svc *svc_find(const struct sched *s, struct str name);
struct lane *svc_lane(struct sched *s, struct svc *v, int32_t shard, int32_t number);
void svc_each_lane(struct sched *s, struct svc *v, void (*fn)(struct sched *s, struct lane *l));
void svc_free(struct sched *s, struct svc *v);
/* Forgets the entries that `is_doomed` names: queued ones and ghosts at most. */
void drop_entries(struct sched *s, bool (*is_doomed)(const struct entry *e, const void *arg),
                  const void *arg);

/* sched_members.c */
void sched_count_owned(struct sched *s);
bool sched_owns(const struct sched *s, struct str service_name, int32_t shard);

/* sched_claim.c */
void ready_push(struct sched *s, struct entry *e);
void ready_remove(struct sched *s, struct entry *e);
void ring_update(struct sched *s, struct svc *v);
void ring_remove(struct sched *s, struct svc *v);
void claim_pump(struct sched *s, struct actions *out);
bool svc_can_start(const struct svc *v, const struct sched *s);
uint32_t svc_concurrency(const struct sched *s, const struct svc *v);

/* sched_finish.c */
void rescue_start(struct sched *s, struct entry *e, struct actions *out);
void finish_again(struct sched *s, struct entry *e, struct actions *out); /* from PARKED */

#endif
