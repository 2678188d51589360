/* SPDX-License-Identifier: Apache-2.0 */
/* How a finished attempt goes on: the retry policies and the decision. Pure. */
#ifndef JF_CORE_RETRY_H
#define JF_CORE_RETRY_H

#include "common/backoff.h"
#include "node/core/storeop.h"
#include "node/core/verdict.h"

struct retry_policy {
    char name[TASK_POLICY_MAX + 1];
    struct backoff backoff;
    int32_t max_retry; /* for tasks that do not say */
};

/* The policies of a node; fixed after start. policies[0] is "default". */
struct retry_policies {
    const struct retry_policy *policies; /* borrowed, outlives the scheduler */
    size_t n;
    int64_t retry_after_cap_ms; /* how long a service may put a retry off */
    int64_t snooze_cap_ms;
    int32_t max_snoozes; /* per task; one more counts as a failed attempt */
};

/* NULL when unknown. An absent or empty name finds "default". */
const struct retry_policy *retry_policy_find(const struct retry_policies *p, struct str name);

/* What the decision looks at. */
struct retry_facts {
    int64_t id;
    int32_t attempt;
    int32_t retry_count;
    int32_t max_retry;
    int32_t snooze_count;
    int32_t priority;
    int64_t result_wait_ms; /* time-out + margin: how long a 202 may take to bring its result */
    struct str policy;
};

/* Fills the kind, from, next_attempt_time, retry_count, priority, http_status, outcome and error of
 * a finish_item. Guarantees: 0 < delay <= cap of the back-off or Retry-After's cap; a RETRY only
 * while retry_count < max_retry, else FAIL; a snooze beyond max_snoozes is a RETRY or FAIL; a
 * Retry-After never makes a retry earlier than the back-off. `error` points into the verdict. */
void retry_decide(const struct retry_policies *p, const struct retry_facts *f,
                  const struct verdict *v, wall_ms now, struct rng *rng, struct finish_item *ret);

#endif
