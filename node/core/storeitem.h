/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the store's operations (storeop.h): what is asked of each, and what came of it. */
#ifndef JF_CORE_STOREITEM_H
#define JF_CORE_STOREITEM_H

#include <inttypes.h>
#include <stdio.h>

#include "proto/task.h"

/* ---- Submission -------------------------------------------------------------------------- */

enum on_conflict { ON_CONFLICT_RETURN, ON_CONFLICT_REJECT, ON_CONFLICT_REPLACE };

enum submit_result {
    SUBMIT_CREATED,
    SUBMIT_DUPLICATE, /* the key lives or stands in history: `existing` */
    SUBMIT_REPLACED,  /* `existing` is the record as it stands now */
    SUBMIT_REFUSED,   /* on_conflict says reject, or replace met a task in flight or finished */
    SUBMIT_FOREIGN,   /* the key belongs to another service or handler: `existing` */
    SUBMIT_FAILED,    /* this row alone cannot be written: see `err` */
    SUBMIT_BUSY       /* nor now: another transaction has the key, and has not ended; likewise */
};

/* Fields of a repeat that differ from what is stored. */
#define MISMATCH_PAYLOAD 1u
#define MISMATCH_EXECUTE_TIME 2u

struct submit_item {
    /* In. id and trace_id are assigned by the store. status PENDING; next_attempt_time =
     * execute_time; created_at and updated_at are the asker's reading of the store's clock. */
    struct task *task; /* owned by the asker */
    enum on_conflict on_conflict;
    bool absolute_time; /* execute_time was given, not a delay: compare it in a repeat */
    /* Out. */
    enum submit_result result;
    unsigned mismatch;
    struct task
        *existing;  /* owned by the asker afterwards: task_free; NULL if CREATED, FAILED, BUSY */
    struct err err; /* of FAILED and BUSY */
};

/* ---- Claim ------------------------------------------------------------------------------- */

enum claim_result {
    CLAIM_WON,
    CLAIM_NOT_DUE, /* still waiting under the same attempt, but later: `next_attempt_time` */
    CLAIM_LOST,    /* claimed by another, moved on, ended or gone */
    CLAIM_FAILED   /* the database refuses to write this row, which stays as it is: see op.err */
};

struct claim_item {
    /* In. */
    int64_t id;
    int32_t attempt;    /* as read; a claim that wins makes it attempt + 1 */
    int32_t timeout_ms; /* the service's, for a task that has none of its own */
    int64_t lease;      /* of this process, that it is asked for; 0 = for a request */
    void *ctx;          /* the asker's */
    /* Out. */
    enum claim_result result;
    wall_ms next_attempt_time; /* of NOT_DUE */
    struct task *task;         /* of WON: the claimed row; owned by the asker afterwards */
};

#define CLAIM_HOLDER_MAX 160
/* What stands in claimed_by: "<node>/<epoch>", of a lease "<node>/<epoch>/<lease>". A claim is
 * recognised by it when its answer was lost, and for a worker that must be its own: another lease
 * of the same process may have handed the task to a worker long ago. */
static inline struct str claim_holder(const struct claim_item *item, struct str claimed_by,
                                      char dst[CLAIM_HOLDER_MAX])
{
    int len;

    if (!item->lease)
        return claimed_by;
    len = snprintf(dst, CLAIM_HOLDER_MAX, STR_FMT "/%" PRId64, STR_ARG(claimed_by), item->lease);
    return (struct str){dst, len < CLAIM_HOLDER_MAX ? (size_t)len : CLAIM_HOLDER_MAX - 1};
}

/* ---- The end of an attempt --------------------------------------------------------------- */

enum finish_kind {
    FINISH_SUCCESS, /* to history */
    FINISH_SENT,    /* result awaited until next_attempt_time, which also becomes deadline_at */
    FINISH_RETRY, /* RETRYING at next_attempt_time; retry_count as given; adds a job_attempt row */
    FINISH_FAIL,  /* FAILED; adds a job_attempt row, and a job_alert row if `alert` */
    FINISH_PUT_BACK /* PENDING or RETRYING (by retry_count) at next_attempt_time: a claim given back
                       unsent, or snoozed (`snoozed`: counts in snooze_count) */
};

enum finish_result {
    FINISH_DONE,  /* also when an earlier try of the same write turns out to have worked */
    FINISH_LOST,  /* the attempt is no longer the live one: nothing was written */
    FINISH_FAILED /* the database refuses to write this row, which stays as it is: see op.err */
};

struct finish_item {
    /* In. */
    int64_t id;
    int32_t attempt;
    enum finish_kind kind;
    unsigned from;      /* statuses it may end: bits out of TASK_IN_FLIGHT */
    bool past_deadline; /* a rescue: only if deadline_at has passed by the store's clock */
    bool snoozed;
    bool alert;
    wall_ms next_attempt_time; /* SENT, RETRY, PUT_BACK */
    int32_t retry_count;       /* RETRY, FAIL, PUT_BACK: the new value */
    int32_t priority;          /* RETRY, PUT_BACK: for the lane */
    int32_t http_status;       /* 0 = none */
    const char *outcome;       /* static: word of the job_attempt row ("retry", "ghost", …) */
    struct str error;          /* cleaned; borrowed until the operation is back */
    struct str node;           /* who writes this; for job_attempt */
    void *ctx;                 /* the asker's */
    /* Out. */
    enum finish_result result;
};

/* ---- Scan -------------------------------------------------------------------------------- */

/* One stretch of the due index: rows of (service, shard, lane) with
 * (next_attempt_time, id) > (from_time, from_id) and next_attempt_time <= to_time, in that order.
 */
struct scan_key {
    struct str service_name; /* borrowed until the operation is back */
    int32_t shard;
    int32_t lane;
    wall_ms from_time; /* WALL_NONE = from the start */
    int64_t from_id;
    wall_ms to_time;
    uint32_t limit; /* rows of this key */
    void *ctx;      /* the asker's */
};

struct scan_row {
    uint32_t key; /* index into keys */
    int64_t id;
    wall_ms next_attempt_time;
    enum task_status status; /* PENDING, RETRYING, SENDING or SENT */
    int32_t attempt;
    /* Of SENDING and SENT rows, for the rescue. */
    wall_ms deadline_at;
    int32_t retry_count;
    int32_t max_retry;
    int32_t priority;
    bool own_orphan; /* SENDING, claimed for a request by an earlier epoch of this node */
    char policy[TASK_POLICY_MAX + 1]; /* "" = none of its own */
};

#endif
