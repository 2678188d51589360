/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "answer.h"
#include "executor_internal.h"
#include "task.h"

#define HEARTBEAT_TRIES 3
#define REGISTER_WAIT_MS 30000

/* ---- Results and heartbeats -------------------------------------------------------------- */

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

/* ---- Registration ------------------------------------------------------------------------ */

static int make_base_url(struct jobflow_executor *ex, const struct jobflow_config *c)
{
    char url[512];
    const char *address = c->address;
    bool is_v6 = strchr(address, ':') != NULL;

    if (c->base_url) {
        ex->base_url = strdup(c->base_url);
    } else if (strcmp(address, "0.0.0.0") == 0 || strcmp(address, "::") == 0) {
        jfx_log(ex, "base_url is needed: no node reaches a service at %s", address);
        return JOBFLOW_EINVAL;
    } else {
        (void)snprintf(url, sizeof(url), is_v6 ? "http://[%s]:%u%s" : "http://%s:%u%s", address,
                       (unsigned)ex->port, ex->path);
        ex->base_url = strdup(url);
    }
    return ex->base_url ? 0 : JOBFLOW_ENOMEM;
}

static bool add_text(struct cJSON *o, const char *name, const char *text)
{
    return !text || cJSON_AddStringToObject(o, name, text);
}

static bool add_number(struct cJSON *o, const char *name, unsigned n)
{
    return n == 0 || cJSON_AddNumberToObject(o, name, n);
}

int jfx_registration_init(struct jobflow_executor *ex, const struct jobflow_config *c)
{
    ex->registers = c->node_url && !c->skip_registration;
    if (!ex->registers)
        return 0;
    int rc = make_base_url(ex, c);
    if (rc)
        return rc;
    struct cJSON *o = cJSON_CreateObject();
    if (o && add_text(o, "baseUrl", ex->base_url) && add_text(o, "secret", c->secrets[0]) &&
        add_number(o, "concurrency", c->concurrency) && add_number(o, "shards", c->shards) &&
        add_text(o, "timeout", c->timeout) && add_text(o, "policy", c->policy))
        ex->settings = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return ex->settings ? 0 : JOBFLOW_ENOMEM;
}

void *jfx_register(void *ctx)
{
    struct jobflow_executor *ex = ctx;
    char path[256];
    struct jfx_call call = {
        .method = "PUT", .path = path, .body = ex->settings, .tries = 1, .abort = &ex->stop};
    bool is_registered = false;

    (void)snprintf(path, sizeof(path), "/api/services/%s", ex->service);
    for (unsigned n = 1; !is_registered && !atomic_load(&ex->stop); n++) {
        call.status = 0;
        int rc = jfx_node_call(ex->node, &call);
        is_registered = rc == 0 && (call.status == 200 || call.status == 201);
        bool is_refused = rc == 0 && !is_registered;
        if (is_registered)
            jfx_log(ex, "registered at JobFlow as %s", ex->base_url);
        else if (!atomic_load(&ex->stop))
            jfx_log(ex, "not registered yet: HTTP %d %.200s", call.status,
                    call.answer ? call.answer : call.error);
        free(call.answer);
        if (!is_registered)
            jfx_node_sleep(jfx_node_wait_ms(n, is_refused ? REGISTER_WAIT_MS : 0), &ex->stop);
    }
    return NULL;
}
