/* SPDX-License-Identifier: Apache-2.0 */
#include "node/core/retry.h"

#include <assert.h>

const struct retry_policy *retry_policy_find(const struct retry_policies *p, struct str name)
{
    assert(p->n > 0);
    if (!name.len)
        return &p->policies[0];
    for (size_t i = 0; i < p->n; i++) {
        if (str_eqz(name, p->policies[i].name))
            return &p->policies[i];
    }
    return NULL;
}

static int64_t clamp(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}

/* The wait before the next try: the back-off's, or the service's own wish where that is longer. */
static int64_t retry_wait(const struct retry_policies *p, const struct retry_facts *f,
                          const struct verdict *v, struct rng *rng)
{
    const struct retry_policy *policy = retry_policy_find(p, f->policy);

    if (!policy) /* its policy is no longer configured */
        policy = &p->policies[0];
    int64_t backoff = backoff_delay(&policy->backoff, (int64_t)f->retry_count + 1, rng);
    int64_t wish = clamp(v->retry_after_ms, 0, p->retry_after_cap_ms);

    return wish > backoff ? wish : backoff;
}

static void decide_retry(const struct retry_policies *p, const struct retry_facts *f,
                         const struct verdict *v, wall_ms now, struct rng *rng,
                         struct finish_item *ret)
{
    if (f->retry_count >= f->max_retry) {
        ret->kind = FINISH_FAIL;
        ret->outcome = "failed";
        return;
    }
    ret->kind = FINISH_RETRY;
    ret->outcome = "retry";
    ret->retry_count = f->retry_count + 1;
    ret->next_attempt_time = now + retry_wait(p, f, v, rng);
}

static void decide_put_back(wall_ms next_attempt_time, const char *outcome, struct finish_item *ret)
{
    ret->kind = FINISH_PUT_BACK;
    ret->outcome = outcome;
    ret->next_attempt_time = next_attempt_time;
}

void retry_decide(const struct retry_policies *p, const struct retry_facts *f,
                  const struct verdict *v, wall_ms now, struct rng *rng, struct finish_item *ret)
{
    ret->id = f->id;
    ret->attempt = f->attempt;
    ret->from = TASK_IN_FLIGHT;
    ret->snoozed = false;
    ret->next_attempt_time = WALL_NONE;
    ret->retry_count = f->retry_count;
    ret->priority = f->priority;
    ret->http_status = v->http_status;
    ret->error = str_from(v->error);
    switch (v->kind) {
    case VERDICT_SUCCESS:
        ret->kind = FINISH_SUCCESS;
        ret->outcome = "success";
        break;
    case VERDICT_ACCEPTED:
        assert(f->result_wait_ms > 0);
        ret->kind = FINISH_SENT;
        ret->outcome = "accepted";
        ret->next_attempt_time = now + f->result_wait_ms;
        break;
    case VERDICT_RETRY:
        decide_retry(p, f, v, now, rng, ret);
        break;
    case VERDICT_FINAL:
        ret->kind = FINISH_FAIL;
        ret->outcome = "failed";
        break;
    case VERDICT_SNOOZE:
        if (f->snooze_count < p->max_snoozes) {
            decide_put_back(now + clamp(v->retry_after_ms, 1, p->snooze_cap_ms), "snooze", ret);
            ret->snoozed = true;
            break;
        }
        if (!ret->error.len)
            ret->error = STR("put off more often than is allowed");
        decide_retry(p, f, v, now, rng, ret);
        break;
    case VERDICT_UNSENT:
        decide_put_back(now + 1, "unsent", ret);
        break;
    }
    assert(ret->kind == FINISH_SUCCESS || ret->kind == FINISH_FAIL || ret->next_attempt_time > now);
}
