/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks and attempts as JSON: what the HTTP interface answers and what a handler receives. */
#include "proto/task.h"

#include "common/json.h"
#include "common/timefmt.h"

static void put_text(struct buf *b, bool *first, const char *key, struct str text)
{
    json_put_key(b, first, key);
    json_put_string(b, text);
}

static void put_int(struct buf *b, bool *first, const char *key, int64_t v)
{
    json_put_key(b, first, key);
    buf_addi(b, v);
}

static void put_time(struct buf *b, bool *first, const char *key, wall_ms t)
{
    char text[TIME_TEXT_LEN + 1];

    json_put_key(b, first, key);
    if (t == WALL_NONE) {
        buf_adds(b, STR("null"));
        return;
    }
    time_format(t, text);
    buf_addc(b, '"');
    buf_addz(b, text);
    buf_addc(b, '"');
}

static void put_timeout(struct buf *b, bool *first, int32_t timeout_ms)
{
    char text[DURATION_TEXT_LEN + 1];

    json_put_key(b, first, "timeout");
    if (timeout_ms == 0) {
        buf_adds(b, STR("null"));
        return;
    }
    duration_format(timeout_ms, text);
    json_put_stringz(b, text);
}

/* The payload is JSON already and goes out as it came in. */
static void put_payload(struct buf *b, bool *first, struct str payload)
{
    json_put_key(b, first, "payload");
    buf_adds(b, payload.p ? payload : STR("null"));
}

static void put_identity(struct buf *b, bool *first, const struct task *t)
{
    put_text(b, first, "traceId", str_from(t->trace_id));
    put_text(b, first, "bizUuid", t->biz_uuid);
    put_text(b, first, "serviceName", t->service_name);
    put_text(b, first, "handler", t->handler);
}

static void put_where_they_apply(struct buf *b, bool *first, const struct task *t)
{
    if (t->finished_at != WALL_NONE) {
        put_time(b, first, "finishedAt", t->finished_at);
        if (t->claimed_at != WALL_NONE)
            put_int(b, first, "durationMs", t->finished_at - t->claimed_at);
    }
    if (t->last_error.p)
        put_text(b, first, "lastError", t->last_error);
    if (t->last_http_status)
        put_int(b, first, "lastHttpStatus", t->last_http_status);
    if (t->claimed_by.p)
        put_text(b, first, "claimedBy", t->claimed_by);
}

void task_put_record(struct buf *b, const struct task *t)
{
    bool first = true;

    buf_addc(b, '{');
    put_int(b, &first, "id", t->id);
    put_identity(b, &first, t);
    put_time(b, &first, "executeTime", t->execute_time);
    put_time(b, &first, "nextAttemptTime", t->next_attempt_time);
    put_payload(b, &first, t->payload);
    put_text(b, &first, "status", str_from(task_status_name(t->status)));
    put_int(b, &first, "retryCount", t->retry_count);
    put_int(b, &first, "maxRetry", t->max_retry);
    put_int(b, &first, "attempt", t->attempt);
    put_int(b, &first, "priority", t->priority);
    put_text(b, &first, "policy", t->policy);
    put_timeout(b, &first, t->timeout_ms);
    put_time(b, &first, "createdAt", t->created_at);
    put_time(b, &first, "updatedAt", t->updated_at);
    put_where_they_apply(b, &first, t);
}

void attempt_put_record(struct buf *b, const struct attempt *a)
{
    bool first = true;

    buf_addc(b, '{');
    put_int(b, &first, "attempt", a->attempt);
    put_time(b, &first, "startedAt", a->started_at);
    put_time(b, &first, "endedAt", a->ended_at);
    put_text(b, &first, "outcome", a->outcome);
    if (a->http_status)
        put_int(b, &first, "httpStatus", a->http_status);
    if (a->error.p)
        put_text(b, &first, "error", a->error);
    put_text(b, &first, "node", a->node);
    buf_addc(b, '}');
}

void task_put_envelope(struct buf *b, const struct task *t, wall_ms sent_time, wall_ms deadline)
{
    bool first = true;

    buf_addc(b, '{');
    put_identity(b, &first, t);
    put_int(b, &first, "attempt", t->attempt);
    put_int(b, &first, "retryCount", t->retry_count);
    put_time(b, &first, "executeTime", t->execute_time);
    put_time(b, &first, "sentTime", sent_time);
    put_time(b, &first, "deadline", deadline);
    put_payload(b, &first, t->payload);
    buf_addc(b, '}');
}
