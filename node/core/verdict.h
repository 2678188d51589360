/* SPDX-License-Identifier: Apache-2.0 */
/* What the end of an attempt means: a pure reading of a handler's answer (or of its absence). */
#ifndef JF_CORE_VERDICT_H
#define JF_CORE_VERDICT_H

#include "common/clock.h"
#include "common/str.h"
#include "proto/task.h"

enum verdict_kind {
    VERDICT_SUCCESS,
    VERDICT_ACCEPTED, /* 202: the result comes later */
    VERDICT_RETRY,
    VERDICT_FINAL,  /* do not retry */
    VERDICT_SNOOZE, /* put off, without using up a try */
    VERDICT_UNSENT, /* no byte of the request left: give the claim back */
};

/* The label of jobflow_attempts_total and of logs: "success", "accepted", "retry", … */
const char *verdict_name(enum verdict_kind kind);

struct verdict {
    enum verdict_kind kind;
    int32_t http_status;        /* 0 = no answer */
    int64_t retry_after_ms;     /* < 0 = not said; for SNOOZE: by how much */
    char error[TASK_ERROR_MAX]; /* cleaned UTF-8, cut on a character boundary; "" on success */
};

/* An answer as the dispatcher read it. Spans are borrowed for the call. */
struct answer {
    int32_t http_status;    /* 0 = none came */
    struct str body;        /* at most 64 KiB, perhaps cut */
    bool body_cut;          /* the answer was longer than the limit */
    struct str retry_after; /* header's value; absent = no header */
    struct str failure;     /* why no answer came ("connection refused"); absent when one came */
    bool sent;              /* false: the fence or a stop kept the request from leaving */
};

/* Limits that bound what a service may ask for. */
struct verdict_limits {
    int64_t retry_after_cap_ms;
    int64_t snooze_cap_ms;
};

/* The rules: 2xx is success unless a JSON object says {"success":false, "retryable":…,
 * "message":…, "retryAfter":…} or {"snooze":"10m"}; 202 is accepted (a body may still say
 * otherwise); 429 and 503 honour Retry-After in both forms; 400, 410, 413, 422 and
 * "retryable":false are final; everything else, 3xx included, is retried. A bad Retry-After is
 * ignored; one above the cap is cut to it. `now` turns HTTP dates into waits. */
void verdict_read(const struct answer *a, const struct verdict_limits *limits, wall_ms now,
                  struct verdict *ret);

/* Reads an asynchronous result's body ({"success":true} and so on, "snooze" included) under the
 * same rules. Errors: ERR_INVALID (not such an object; says which field and what is allowed). */
MUST_CHECK int verdict_read_result(struct str body, const struct verdict_limits *limits,
                                   wall_ms now, struct verdict *ret, struct err *err);

#endif
