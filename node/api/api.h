/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP interface: what proto/openapi.yaml says, on loops of its own. It turns requests into
 * store operations and their results into answers; it never blocks and keeps no task in memory
 * beyond its request. */
#ifndef JF_API_H
#define JF_API_H

#include "node/core/counters.h"
#include "node/core/instance.h"
#include "node/core/retry.h"
#include "node/core/sched_explain.h"
#include "node/core/storecall.h"

struct api;
struct log;

/* A question to the scheduler, asked from an API loop and answered by mail. */
struct explain_query {
    struct mail mail;
    struct mailbox *reply;   /* borrowed */
    struct str service_name; /* borrowed until it is back */
    int32_t shard;
    int64_t id;
    wall_ms next_attempt_time;
    struct sched_explanation answer;
};

/* A worker's request for tasks, from an API loop to the node and back by mail. */
enum lease_kind {
    LEASE_POLL,  /* a worker waits for tasks */
    LEASE_CLAIM, /* another member asks for one of its own workers: what this node owns */
    LEASE_WATCH  /* another member asks to be told when there are due tasks to claim */
};
#define LEASE_BYTES_MAX ((size_t)4 << 20) /* then an answer gets no more tasks */
#define LEASE_TASKS_MAX 1000              /* in one answer */
enum lease_outcome {
    LEASE_OK,
    LEASE_UNKNOWN,  /* no such service */
    LEASE_NOT_PULL, /* its tasks are delivered to it */
    LEASE_TOO_MANY, /* polls wait already */
    LEASE_STOPPING  /* the node */
};
/* Claimed tasks of one service, as far as it takes to give them back. One block: free(). */
struct lease_claim {
    int64_t id;
    int32_t attempt; /* the one that the claim began */
    int32_t retry_count;
    int32_t priority;
    int32_t shard;
};
struct lease_claims {
    char service_name[TASK_NAME_MAX + 1];
    size_t n;
    struct lease_claim list[];
};
/* Behind the tasks that a member hands to another one stand two lines, each after a '\n': an object
 * {"service": its name, "claims": [[id, attempt, retryCount, priority, shard], …]}, and the
 * signature of all before it, "<stamp> <signature>", as of a body for this path, by the member that
 * answers. A member with no tasks answers the empty list alone. */
#define LEASE_CLAIMS_PATH "/internal/lease#claims"
#define LEASE_NO_TASKS "{\"tasks\":[]}"
struct lease_query {
    struct mail mail;
    struct mail cancel;    /* back by lease_cancel */
    struct mailbox *reply; /* borrowed */
    enum lease_kind kind;
    struct str service_name; /* borrowed until it is back, as the next */
    struct str worker;       /* absent: it gave no name */
    uint32_t max_tasks;
    int64_t wait_ms;
    int32_t visibility_ms; /* 0 = the service's time-out */
    void *holder;          /* the node's while it has the query */
    /* Out. */
    enum lease_outcome outcome;
    struct task **tasks; /* n claimed rows: each task_free, the array free() */
    size_t n;
    mono_ms hand_by;             /* later than this they must not go out: give_back */
    struct buf body;             /* or the whole answer, as another member gave it; buf_fini */
    struct lease_claims *claims; /* of that; free() */
    uint32_t n_ready;            /* of a WATCH */
};

/* What the rest of the node offers. All functions are thread safe and never block. */
struct api_env {
    struct store_port store;
    const struct store_clock *clock;
    struct counters *counters;
    const struct retry_policies *policies;
    struct log *log;
    const char *node_name;
    void *ctx;
    int32_t (*shards_of)(void *ctx, struct str service_name); /* 1 when unknown */
    /* NULL, or writes the name of the service's own policy, "" when it has none. Its max_retry is
     * the default of tasks that name no policy, and it decides the retries of asynchronous results.
     */
    void (*policy_of)(void *ctx, struct str service_name, char dst[TASK_POLICY_MAX + 1]);
    /* NULL, or false while what shards_of, policy_of and the clock say may be wrong since the store
     * has not been asked yet: whatever sets a task's time or shard is answered 503 then. */
    bool (*services_known)(void *ctx);
    void (*explain)(void *ctx, struct explain_query *q);
    void (*services_changed)(void *ctx); /* after a PUT, pause, …: read job_service again now */
    /* What was stored about an instance: deliveries of this node go by it at once. */
    void (*instance_put)(void *ctx, const struct instance *in);
    void (*instance_removed)(void *ctx, struct str service_name, struct str name);
    /* Until when this node passes it over; WALL_NONE when it does not. */
    wall_ms (*aside_until)(void *ctx, struct str service_name, struct str name);
    /* Writes why not into the buffer, as text for people, and returns false when not ready. */
    bool (*ready)(void *ctx, struct buf *why);
    void (*metrics)(void *ctx, struct buf *dst);
    /* Appends the document of GET /api/cluster, of all services or the one named. Errors:
     * ERR_NOT_FOUND (that service is unknown), ERR_NOMEM. */
    int (*cluster)(void *ctx, struct str service_name, struct buf *dst);
    /* Whether a member of the cluster has signed this body for this node and this path. */
    bool (*is_member)(void *ctx, struct str path, struct str stamp, struct str signature,
                      struct str body);
    /* Appends "<stamp> <signature>", by which other members see that this one has signed the body
     * for this path. Errors: ERR_NOMEM, ERR_INVALID (there is no cluster). */
    int (*sign)(void *ctx, struct str path, struct str body, struct buf *dst);
    /* Hints of another member, borrowed for the call; `services`: those have changed. False: there
     * are too many. */
    bool (*hints)(void *ctx, const struct hint *hints, size_t n, bool services);
    /* A client's hint about a task, borrowed for the call; it goes on to the owner where that is
     * another member. False: there are too many. */
    bool (*notify)(void *ctx, const struct hint *hint);
    /* Takes the query until it comes back: with tasks, or none after the wait. */
    void (*lease)(void *ctx, struct lease_query *q);
    /* The client has gone: a query that the node still has comes back soon. `q->cancel` is posted
     * back, too, perhaps later. False: it is not, the node is stopping. */
    bool (*lease_cancel)(void *ctx, struct lease_query *q);
    /* What was claimed and not handed out; takes it. */
    void (*give_back)(void *ctx, struct lease_claims *claims);
    bool (*is_pull)(void *ctx, struct str service_name);
    /* This node gives up what it owns, or takes part again, soon after. False: it is stopping. */
    bool (*drain)(void *ctx, bool drain);
    /* The rules for a service's settings. Errors: ERR_INVALID, with what is allowed; ERR_NOMEM;
     * ERR_UNAVAILABLE when it cannot be told yet. */
    int (*check_base_url)(void *ctx, struct str url, struct err *err);
    int (*check_secret)(void *ctx, struct str secret, struct err *err);
};

struct api_config {
    const char *listen; /* "127.0.0.1:8080", "[::1]:0"; port 0 takes a free one */
    uint32_t threads;
    uint32_t max_connections;    /* in all; one more is answered 503 and closed */
    size_t max_header;           /* bytes of request line and headers */
    size_t max_body;             /* bytes */
    int64_t header_timeout_ms;   /* absolute, from the first byte (and from accept) */
    int64_t body_timeout_ms;     /* absolute, from the end of the headers */
    int64_t idle_timeout_ms;     /* between requests */
    int64_t write_timeout_ms;    /* absolute, for an answer to be taken */
    size_t max_payload;          /* bytes of a task's payload */
    int64_t max_ahead_ms;        /* how far ahead a task may lie */
    int32_t default_concurrency; /* shown for services that have none of their own */
    int64_t default_timeout_ms;
    int64_t max_timeout_ms;  /* of a task or service */
    int64_t ghost_margin_ms; /* for heartbeats: a deadline is now + time-out + this */
    bool alerts;             /* a FAILED task goes to the outbox, as in sched_config */
};

/* Listens and starts the loops. Errors: ERR_INVALID (address), ERR_IO (cannot listen; says why),
 * ERR_NOMEM. */
MUST_CHECK int api_start(const struct api_config *cfg, const struct api_env *env, struct api **ret,
                         struct err *err);

/* "127.0.0.1:8080" with the real port; borrowed until api_stop. */
const char *api_address(const struct api *a);

/* Stops accepting and returns at once; requests under way get their answers ("Connection: close"),
 * until grace_ms are over. */
void api_drain(struct api *a, int64_t grace_ms);
/* True once a drain has come to its end: no request is under way, also none whose client has gone,
 * every answer is out and no connection is open. */
bool api_is_drained(const struct api *a);

/* Drains (if not done), waits until each operation that it has posted and each explain_query is
 * back, ends the loops, frees. So the store must still run, or have returned all it had; and not on
 * the thread that answers explain_query. NULL is accepted. */
void api_stop(struct api *a);

#endif
