/* SPDX-License-Identifier: Apache-2.0 */
/* A delay task as every layer knows it: the words of the table job_delay_task, of the JSON record
 * (camelCase) and of the metrics are the same. */
#ifndef JF_PROTO_TASK_H
#define JF_PROTO_TASK_H

#include "common/buf.h"
#include "common/clock.h"
#include "common/ids.h"

enum task_status {
    TASK_PENDING,  /* waits for its first attempt (of this series) */
    TASK_SENDING,  /* claimed; an attempt is on its way */
    TASK_SENT,     /* delivered and acknowledged with 202; its result is awaited */
    TASK_RETRYING, /* waits for a retry */
    TASK_SUCCESS,
    TASK_FAILED, /* out of tries, or the answer forbade a retry; somebody is told */
    TASK_MANUAL_REQUIRED,
    TASK_CANCELLED,
    TASK_N_STATUSES
};

const char *task_status_name(enum task_status s); /* "PENDING", … */
bool task_status_parse(struct str s, enum task_status *ret);

static inline unsigned task_status_bit(enum task_status s)
{
    return 1u << s;
}
/* The sets that the life of a task is made of, as bits of task_status_bit. */
#define TASK_WAITING ((1u << TASK_PENDING) | (1u << TASK_RETRYING))
#define TASK_IN_FLIGHT ((1u << TASK_SENDING) | (1u << TASK_SENT))
#define TASK_NEEDS_PERSON ((1u << TASK_FAILED) | (1u << TASK_MANUAL_REQUIRED))
#define TASK_ENDED ((1u << TASK_SUCCESS) | (1u << TASK_CANCELLED)) /* stands in history */
#define TASK_CANCELLABLE (TASK_WAITING | TASK_NEEDS_PERSON)

/* True if the life of a task allows the move from one status to the other. */
bool task_status_can(enum task_status from, enum task_status to);

#define TASK_BIZ_UUID_MAX 128
#define TASK_NAME_MAX 128   /* service_name, handler */
#define TASK_POLICY_MAX 32  /* name of a retry policy */
#define TASK_ERROR_MAX 1024 /* bytes of last_error, after cleaning */
#define TASK_PRIORITY_MAX 9 /* the most urgent */
#define TASK_PRIORITY_DEFAULT 5
#define TASK_MAX_RETRY_MAX 1000
#define TASK_LANES 20
#define TASK_RETRY_LANES 10 /* lanes from here on are the retries' */

/* lane = 9 - priority, + 10 for retries: small is urgent. */
static inline int32_t task_lane(int32_t priority, bool retry)
{
    return TASK_PRIORITY_MAX - priority + (retry ? TASK_RETRY_LANES : 0);
}

struct task {
    int64_t id; /* > 0; 0 = not assigned yet */
    char trace_id[TRACE_ID_LEN + 1];
    enum task_status status;
    struct str biz_uuid;
    struct str service_name;
    struct str handler;
    struct str payload; /* JSON text as submitted; absent = none was given */
    struct str policy;  /* absent = the service's, then "default" */
    struct str claimed_by;
    struct str last_error;
    wall_ms execute_time;
    wall_ms next_attempt_time; /* WALL_NONE in FAILED, MANUAL_REQUIRED and history */
    wall_ms claimed_at;        /* these five: WALL_NONE where they do not apply */
    wall_ms deadline_at;
    wall_ms failed_at;
    wall_ms finished_at;
    wall_ms created_at;
    wall_ms updated_at;
    int32_t shard;
    int32_t lane;
    int32_t priority;    /* 0 to 9, 9 the most urgent */
    int32_t attempt;     /* the fencing token: claims so far, only ever grows */
    int32_t retry_count; /* retries of the current series */
    int32_t max_retry;
    int32_t snooze_count;
    int32_t timeout_ms;       /* 0 = the service's */
    int32_t last_http_status; /* 0 = none */
};

/* True if the task's status is one of the set. */
static inline bool task_is_in(const struct task *t, unsigned statuses)
{
    return (task_status_bit(t->status) & statuses) != 0;
}

/* A task with all that is absent absent. */
struct task task_empty(void);

/* Copies a task and the strings that it points to into one block. Free with task_free.
 * Returns NULL when out of memory. */
struct task *task_dup(const struct task *view);
void task_free(struct task *t);

/* One row of job_attempt: an attempt that did not succeed. */
struct attempt {
    int32_t attempt;
    wall_ms started_at;
    wall_ms ended_at;
    int32_t http_status; /* 0 = no answer */
    struct str outcome;  /* "retry", "failed", "ghost", "snooze", … */
    struct str error;
    struct str node;
};

/* Appends the task record of the HTTP interface as a JSON object, without its closing brace, so
 * that the caller may add members ("duplicate", "attempts"). */
void task_put_record(struct buf *b, const struct task *t);

/* Appends one attempt as a JSON object. */
void attempt_put_record(struct buf *b, const struct attempt *a);

/* Appends the envelope that a handler receives: {traceId, bizUuid, serviceName, handler, attempt,
 * retryCount, executeTime, sentTime, deadline, payload}; the payload byte for byte, null when
 * absent. `deadline` is by when the handler should have answered. */
void task_put_envelope(struct buf *b, const struct task *t, wall_ms sent_time, wall_ms deadline);

/* The same for many tasks of one service and handler that leave together, each with a traceparent
 * of its own as a last member: what they have in common is written out once. */
struct envelopes {
    struct buf same;  /* the names, then the times of the request */
    size_t names_len; /* of them */
    wall_ms execute_time;
    char execute_text[32]; /* of execute_time */
};
void envelopes_init(struct envelopes *e, const struct task *first, wall_ms sent_time,
                    wall_ms deadline);
void envelopes_fini(struct envelopes *e);
void envelopes_put(struct envelopes *e, struct buf *b, const struct task *t,
                   struct str traceparent);

/* The same for a worker that has leased the task: `deadline` is margin_ms before the end of the
 * lease, and {leaseUntil} stands beside it. */
void task_put_leased(struct buf *b, const struct task *t, wall_ms sent_time, int64_t margin_ms);

#endif
