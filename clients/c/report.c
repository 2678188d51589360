/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "executor_internal.h"
#include "task.h"

#define HEARTBEAT_TRIES 3

/* Errors: ENOMEM, EUNREACHABLE, ESTALE, EREFUSED. */
static int report(struct jobflow_executor *ex, const char *trace_id, int32_t attempt,
                  const char *what, const char *body, unsigned tries)
{
    char path[128];
    struct jfx_call call = {.method = "POST", .path = path, .body = body, .tries = tries};

    (void)snprintf(path, sizeof(path), "/api/attempts/%s/%" PRId32 "/%s", trace_id, attempt, what);
    int rc = jfx_node_call(ex->node, &call);
    if (rc == 0 && call.status == 409)
        rc = JOBFLOW_ESTALE;
    else if (rc == 0 && call.status != 200)
        rc = JOBFLOW_EREFUSED;
    if (rc)
        jfx_log(ex, "%s of %s, attempt %" PRId32 ": %s: HTTP %d %.200s", what, trace_id, attempt,
                jobflow_strerror(rc), call.status, call.answer ? call.answer : call.error);
    free(call.answer);
    return rc;
}

static bool can_report(struct jobflow_executor *ex, const char *trace_id, int32_t attempt)
{
    if (ex->node && jfx_trace_valid(trace_id) && attempt >= 1)
        return true;
    jfx_log(ex, "a report needs node_url, a trace id of 32 hex digits and an attempt from 1 on");
    return false;
}

int jobflow_result_send(struct jobflow_executor *ex, const char *trace_id, int32_t attempt,
                        const struct jobflow_answer *answer)
{
    struct jobflow_answer mended = *answer;

    jfx_answer_mend(&mended);
    if (!can_report(ex, trace_id, attempt) || mended.outcome == JOBFLOW_LATER)
        return JOBFLOW_EINVAL;
    jfx_seen_report(ex->seen, trace_id, attempt, mended.outcome == JOBFLOW_SUCCESS);
    char *body = jfx_answer_encode(&mended);
    if (!body)
        return JOBFLOW_ENOMEM;
    int rc = report(ex, trace_id, attempt, "result", body, ex->tries);
    free(body);
    return rc;
}

int jobflow_heartbeat(struct jobflow_executor *ex, const char *trace_id, int32_t attempt,
                      int64_t extend_ms)
{
    char body[64];

    if (!can_report(ex, trace_id, attempt) || extend_ms < 0)
        return JOBFLOW_EINVAL;
    if (extend_ms > 0)
        (void)snprintf(body, sizeof(body), "{\"extend\":\"%" PRId64 "ms\"}", extend_ms);
    else
        (void)snprintf(body, sizeof(body), "{}");
    return report(ex, trace_id, attempt, "heartbeat", body, HEARTBEAT_TRIES);
}

int jobflow_call(struct jobflow_executor *ex, const char *method, const char *path,
                 const char *body, int *ret_status, char **ret_answer)
{
    struct jfx_call call = {.method = method, .path = path, .body = body, .tries = 1};

    if (!ex->node || path[0] != '/')
        return JOBFLOW_EINVAL;
    int rc = jfx_node_call(ex->node, &call);
    if (rc == JOBFLOW_EUNREACHABLE && call.status > 0)
        rc = 0;
    if (rc == 0)
        *ret_status = call.status;
    if (rc == 0 && ret_answer)
        *ret_answer = call.answer;
    else
        free(call.answer);
    return rc;
}
