/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler: what one node does with the tasks of the shards that it owns. Pure: events and
 * the time go in, actions and the next wake-up come out. No I/O, no clock, no log; randomness comes
 * from a seed. Single-threaded.
 *
 * Happy path of a task: a scan or a hint tells of it → WAITING in the timer heap → at its time
 * READY in its service's lane → as slots allow CLAIMING (action CLAIM) → SENDING (action SEND with
 * the claimed row) → FINISHING (action FINISH) → forgotten.
 *
 * Failures: a claim that was lost forgets the task; one that was early goes back to WAITING with
 * the time that the store said; a store that is away puts claims back to READY and repeats
 * finishes with back-off, as long as it takes, in bounded memory: each task between CLAIMING and
 * the end of FINISHING counts against `max_in_flight`. A task that somebody else left in SENDING is
 * a GHOST: at its deadline (at once if it is this node's own from an earlier epoch) it is rescued,
 * which is a FINISH that repeats the row's status, attempt and deadline in its condition.
 *
 * A service in pull mode is claimed for its workers: READY tasks wait until a lease asks for them,
 * and once claimed they are the worker's (action LEASED) and forgotten here; the row stays SENDING
 * until the worker reports or its deadline rescues it like any other.
 *
 * Every `now` is the store's clock as the caller knows it, and may step back: nothing fires early
 * since the claim itself compares the store's clock. */
#ifndef JF_CORE_SCHED_H
#define JF_CORE_SCHED_H

#include "node/core/retry.h"
#include "node/core/storecall.h"
#include "proto/member.h"

struct sched;

struct sched_config {
    int64_t lookahead_ms;     /* how far ahead tasks are read into the timers */
    int64_t scan_interval_ms; /* between scans */
    int64_t slack_ms;         /* how far behind now each scan looks again */
    int64_t full_read_ms;     /* between full reads of the due index */
    int64_t ghost_margin_ms;  /* deadline_at = claim + time-out + this */
    int64_t default_timeout_ms;
    int32_t default_concurrency;
    uint32_t lane_limit;    /* tasks tracked per (service, shard, lane), and rows per scan of it */
    uint32_t max_tracked;   /* tasks tracked in all */
    uint32_t max_in_flight; /* claims, sends and finishes in all */
    const struct retry_policies *policies; /* borrowed */
    struct str node; /* this member's name, for job_attempt too; borrowed, outlives the scheduler */
    bool alerts;     /* a FAILED task goes to the outbox */
};

enum action_kind {
    ACTION_SCAN,
    ACTION_CLAIM,
    ACTION_SEND,
    ACTION_FINISH,
    ACTION_LEASED,
    ACTION_LEASE_DONE
};

/* Asks the caller to do something. Pointers and spans stay valid until the answer comes in. */
struct action {
    enum action_kind kind;
    union {
        struct scan_key scan;    /* answer: sched_scanned, with all SCANs of one pass in one call */
        struct claim_item claim; /* answer: sched_claimed */
        struct finish_item finish; /* answer: sched_finished */
        struct {
            struct task *task;             /* the claimed row; the caller's now: task_free */
            int64_t timeout_ms;            /* for the request */
            const struct service *service; /* borrowed until the next sched_services */
        } send;                            /* answer: sched_answered */
        struct {
            void *ctx;         /* of the lease */
            struct task *task; /* the claimed row; the caller's now: task_free */
        } leased;              /* LEASED: no answer; of LEASE_DONE no task: the lease is gone */
    };
};

/* Actions are appended in the order in which they should start. The array is used again. */
struct actions {
    struct action *list; /* owned; actions_fini */
    size_t n;
    size_t cap;
};
void actions_fini(struct actions *a);

/* Errors: ERR_NOMEM, ERR_INVALID (a limit of 0, a missing default policy). */
MUST_CHECK int sched_new(const struct sched_config *cfg, uint64_t seed, struct sched **ret);
void sched_free(struct sched *s);

/* Every event may append actions. Out of memory while appending aborts: a node that cannot keep its
 * books is safer dead (its tasks are rescued) than wrong. */

/* Time has passed: due timers, scans, claims within the free slots. Call it at sched_next_wakeup,
 * after every other event (or batch of events), and at least once a second. */
void sched_tick(struct sched *s, wall_ms now, struct actions *out);

/* When sched_tick has something to do next; WALL_MAX = not before another event. */
wall_ms sched_next_wakeup(const struct sched *s);

/* The services as job_service has them now (all of them; copied). A service that is new is read
 * whole, one that was paused loses its timers (its ghosts are still rescued), one that was resumed
 * is read again. */
void sched_services(struct sched *s, wall_ms now, const struct service *list, size_t n,
                    struct actions *out);

/* The live members of the cluster by this node's view (copied; distinct names): of each service's
 * shards this node works for those that the hash gives to cfg.node. Before the first call, and
 * while its name is not among them, it works for none. Returns whether these are others than
 * before, in the order given; if not, nothing was done. */
bool sched_members(struct sched *s, wall_ms now, const struct str *names, size_t n,
                   struct actions *out);
/* The member that owns a shard by this view; {NULL} when there are no members. Borrowed until the
 * next sched_members. */
struct str sched_owner(const struct sched *s, struct str service_name, int32_t shard);

enum hint_result {
    HINT_TAKEN,   /* or not needed: its time is beyond the look-ahead, or the scans have to do */
    HINT_UNKNOWN, /* the service is unknown: time to read job_service again */
    HINT_FOREIGN  /* sched_owner is another member: tell that one */
};
/* In one call from member to member, and waiting for the next one. */
#define HINTS_MAX 1000
/* This waiting task was stored, moved or is to run now. */
struct hint {
    struct str service_name;
    int32_t shard;
    int32_t lane;
    int64_t id;
    int32_t attempt;
    wall_ms next_attempt_time;
};
/* Best effort: what has no room is left to the scans. The hint is borrowed for the call. */
enum hint_result sched_hint(struct sched *s, wall_ms now, const struct hint *hint);

/* The answer to the SCAN actions of one pass, which took so long. rc != 0: they are asked again at
 * the next interval. keys in the order of the actions; rows as struct scan_op says. */
void sched_scanned(struct sched *s, wall_ms now, int rc, int64_t took_ms,
                   const struct scan_key *keys, size_t n_keys, const struct scan_row *rows,
                   size_t n_rows, struct actions *out);

/* The answer to one CLAIM. rc != 0: unknown; it is asked again later under the same attempt, which
 * the store recognises. Takes item->task. */
void sched_claimed(struct sched *s, wall_ms now, int rc, struct claim_item *item,
                   struct actions *out);

/* Until when the request of a claimed task may leave. An attempt must be over before its deadline
 * (claimed_at + time-out + margin), so it may begin within the margin. The store set claimed_at no
 * earlier than it was asked (`asked_at`); a claim whose first answer was lost and that the store
 * recognised is older than this question, which its own claimed_at tells by the store's clock. */
mono_ms claim_fence(const struct task *t, int64_t margin_ms, mono_ms asked_at, wall_ms now,
                    mono_ms mono_now);

/* How the request of a SEND ended. `task` is that of the SEND, borrowed. */
void sched_answered(struct sched *s, wall_ms now, const struct task *task, const struct verdict *v,
                    struct actions *out);

/* The answer to one FINISH. rc != 0: asked again later. */
void sched_finished(struct sched *s, wall_ms now, int rc, const struct finish_item *item,
                    struct actions *out);

/* The store went away or came back: while it is away nothing is asked of it. */
void sched_store_state(struct sched *s, wall_ms now, bool up);

/* Stop: no more scans and claims; what is claimed and not yet sent is given back; sends and
 * finishes go on to their end. */
void sched_stop(struct sched *s, wall_ms now, struct actions *out);
bool sched_is_idle(const struct sched *s); /* nothing in flight any more */

struct sched_stats {
    uint32_t n_shards;  /* of services, that this node works for */
    uint32_t n_tracked; /* in memory, in any state */
    uint32_t n_waiting; /* in timers */
    uint32_t n_ready;   /* due and not yet claimed: the backlog that this node sees */
    uint32_t n_claiming;
    uint32_t n_sending;
    uint32_t n_finishing;
    uint32_t n_ghosts;
    uint64_t n_claims_lost;
    uint64_t n_claims_early;
    uint64_t n_finishes_lost;
    uint64_t n_rescued;
};
void sched_stats(const struct sched *s, struct sched_stats *ret);

/* Aborts when an invariant is broken; for tests. */
void sched_check(const struct sched *s);

#endif
