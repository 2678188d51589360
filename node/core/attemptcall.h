/* SPDX-License-Identifier: Apache-2.0 */
/* The store's calls about many attempts at once, in the manner of storecall.h: what workers report
 * in bulk. */
#ifndef JF_CORE_ATTEMPTCALL_H
#define JF_CORE_ATTEMPTCALL_H

#include "node/core/storecall.h"

#define ATTEMPTS_MAX 1000 /* of one call */

/* Tasks by id, live or in history, without their payloads. */
struct call_get_many {
    struct store_call call;
    const int64_t *ids; /* n of them, ascending and distinct */
    size_t n;
    struct task **tasks; /* out: n, by position, NULL where there is none; each task_free, then
                            free() */
};

enum extend_result {
    EXTEND_DONE,
    EXTEND_STALE,    /* that attempt is no longer the live one, or its deadline has passed */
    EXTEND_NOT_FOUND /* no such task, or not under this trace id */
};
struct extend_item {
    int64_t id;
    int32_t attempt;
    char trace_id[TRACE_ID_LEN + 1];
    int64_t extend_ms; /* 0 = as the claim reckoned it: see call_extend */
    /* Out. */
    enum extend_result result;
    wall_ms deadline_at;     /* of DONE */
    enum task_status status; /* these two of STALE: as found */
    int32_t live_attempt;
};

/* Heartbeats in one transaction, each by the rules of call_extend. */
struct call_extend_many {
    struct store_call call;
    struct extend_item *items; /* n of them, ascending by id; ids may repeat */
    size_t n;
    int32_t default_timeout_ms;
    int64_t margin_ms;
};

#endif
