/* SPDX-License-Identifier: Apache-2.0 */
/* The store's unbatched operations as data: each struct begins with a store_call, is posted
 * as &x.call.op with kind STORE_CALL, and is answered in place. `what` says which struct it is. In
 * fields are borrowed until the operation is back; what the store allocates is the asker's. */
#ifndef JF_CORE_STORECALL_H
#define JF_CORE_STORECALL_H

#include "node/core/service.h"
#include "node/core/storeop.h"

enum call_what {
    CALL_GET,
    CALL_LIST,
    CALL_MOVE,
    CALL_RUN,
    CALL_EXTEND,
    CALL_GET_MANY, /* this and the next: attemptcall.h */
    CALL_EXTEND_MANY,
    CALL_SERVICE_PUT,
    CALL_SERVICE_PAUSE,
    CALL_SERVICE_DELETE,
    CALL_SERVICE_LIST,
    CALL_INSTANCE_PUT, /* this and the next three: instance.h */
    CALL_INSTANCE_DELETE,
    CALL_INSTANCE_LIST,
    CALL_INSTANCE_PURGE,
    CALL_NODE_START, /* these two: nodecall.h */
    CALL_NODE_BEAT,
    CALL_ALERT_LIST,
    CALL_ALERT_END,
    CALL_PURGE,
    CALL_CLOCK,
    CALL_N
};

struct store_call {
    struct store_op op;
    enum call_what what;
};

/* One task by biz_uuid (id == 0) or by id, live or in history. rc ERR_NOT_FOUND. */
struct call_get {
    struct store_call call;
    struct str biz_uuid;
    int64_t id;
    bool with_attempts;
    struct task *task;
    struct attempt *attempts; /* oldest first, at most 1,000; free() frees rows and their strings */
    size_t n_attempts;
};

/* A page of tasks, live and finished, newest id first, by keyset. */
struct call_list {
    struct store_call call;
    unsigned statuses;       /* bits; 0 = any */
    struct str service_name; /* absent = any; likewise handler */
    struct str handler;
    wall_ms from; /* execute_time >= from, < to; WALL_NONE = open */
    wall_ms to;
    int64_t before_id;   /* ids below; INT64_MAX = from the newest */
    uint32_t limit;      /* rows returned */
    uint32_t look_limit; /* rows looked at in each table */
    struct task **tasks; /* n tasks, each task_free; the array free() */
    size_t n;
    int64_t next_before_id; /* where the next page begins; 0 = nothing is left */
};

/* Move to another time, change the payload, or both: while PENDING or RETRYING.
 * rc ERR_NOT_FOUND; ERR_CONFLICT (in flight or ended: `task` says which). */
struct call_move {
    struct store_call call;
    struct str biz_uuid;
    wall_ms execute_time; /* WALL_NONE = leave; also sets next_attempt_time */
    bool set_payload;
    struct str payload;
    struct task *task; /* the record afterwards, or as found */
};

/* Run now (PENDING, RETRYING: next_attempt_time = the store's now) or again (FAILED,
 * MANUAL_REQUIRED: PENDING, retry_count 0, failed_at null; attempt stays), with a job_audit row. rc
 * ERR_NOT_FOUND; ERR_CONFLICT (in flight or ended). */
struct call_run {
    struct store_call call;
    struct str biz_uuid;
    struct str actor; /* for the audit: who asked ("api 127.0.0.1") */
    struct task *task;
};

/* A heartbeat: deadline_at = the store's now + extend_ms (0: the task's time-out, else its
 * service's, else default_timeout_ms; plus margin_ms) if (id, attempt) is SENDING or SENT and the
 * deadline has not passed; in SENT next_attempt_time moves along. A deadline never moves closer. rc
 * ERR_NOT_FOUND (no such task), ERR_CONFLICT (that attempt is no longer the live one).
 */
struct call_extend {
    struct store_call call;
    int64_t id;
    int32_t attempt;
    int64_t extend_ms;
    int32_t default_timeout_ms;
    int64_t margin_ms;
    wall_ms deadline_at; /* out */
    struct task *task;   /* out: as found; NULL with NOT_FOUND */
};

/* Creates or replaces; `paused`, `lanes` and `shards_seen` of an existing row stay (the last never
 * below `shards`). Out: `created`, and the row as stored in `stored`. */
struct call_service_put {
    struct store_call call;
    const struct service *in;
    bool created;
    struct service *stored; /* free(): one block with its strings */
};

struct call_service_pause {
    struct store_call call;
    struct str name;
    bool paused;
    struct service *stored; /* rc ERR_NOT_FOUND: NULL */
};

/* Forgets a service, its instances too. rc ERR_NOT_FOUND; ERR_CONFLICT while live tasks name it. */
struct call_service_delete {
    struct store_call call;
    struct str name;
};

struct call_service_list {
    struct store_call call;
    bool fold; /* first carries over what jobflow_submit() has noted (node/store/seen.h) */
    struct service *services; /* free(): one block with its strings, by name */
    size_t n;
};

/* FAILED tasks of which nobody has been told yet. */
struct alert {
    int64_t task_id;
    int32_t attempt;
    int32_t tries;     /* of telling */
    struct task *task; /* task_free */
};

/* Up to `limit` alerts that are due, each put off by `lease_ms`: no other node takes it too. */
struct call_alert_list {
    struct store_call call;
    uint32_t limit;
    int64_t lease_ms;
    struct alert *alerts; /* free(), after their tasks */
    size_t n;
};

/* Told (removes it), or put off until now + retry_ms (tries + 1). */
struct call_alert_end {
    struct store_call call;
    int64_t task_id;
    int32_t attempt;
    bool told;
    int64_t retry_ms;
};

/* One step of retention, in id order: looks at up to `limit` history rows above `after_id`, deletes
 * those finished before `history_before` (with their job_attempt rows); moves FAILED and
 * MANUAL_REQUIRED rows with failed_at before `failed_before` to history, up to `limit`. */
struct call_purge {
    struct store_call call;
    wall_ms history_before;
    wall_ms failed_before;
    int64_t after_id;
    uint32_t limit;
    int64_t next_after_id; /* out, as the next two: 0 = the walk is at its end */
    uint32_t n_deleted;
    uint32_t n_moved;
};

/* Asks the store's clock, a few times; the driver notes this machine's time (clock_mono_us) closely
 * around the question that was answered fastest. */
struct call_clock {
    struct store_call call;
    int64_t now_us; /* since 1970-01-01T00:00:00Z */
    int64_t sent_us;
    int64_t received_us;
};

#endif
