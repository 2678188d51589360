/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks and attempts as JSON: what the HTTP interface answers and what a handler receives. */
#include "proto/task.h"

#include <assert.h>

#include "common/json.h"
#include "common/timefmt.h"

#define ENVELOPE_ROOM 320 /* what an envelope takes besides its texts, about */

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
    buf_add(b, text, TIME_TEXT_LEN);
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

static void put_envelope(struct buf *b, bool *first, const struct task *t, wall_ms sent_time,
                         wall_ms deadline)
{
    (void)buf_room(b, ENVELOPE_ROOM + t->biz_uuid.len + t->service_name.len + t->handler.len +
                          t->payload.len);
    buf_addc(b, '{');
    put_identity(b, first, t);
    put_int(b, first, "attempt", t->attempt);
    put_int(b, first, "retryCount", t->retry_count);
    put_time(b, first, "executeTime", t->execute_time);
    put_time(b, first, "sentTime", sent_time);
    put_time(b, first, "deadline", deadline);
    put_payload(b, first, t->payload);
}

void task_put_envelope(struct buf *b, const struct task *t, wall_ms sent_time, wall_ms deadline)
{
    bool first = true;

    put_envelope(b, &first, t, sent_time, deadline);
    buf_addc(b, '}');
}

void task_put_leased(struct buf *b, const struct task *t, wall_ms sent_time, int64_t margin_ms)
{
    bool first = true;

    put_envelope(b, &first, t, sent_time, t->deadline_at - margin_ms);
    put_time(b, &first, "leaseUntil", t->deadline_at);
    buf_addc(b, '}');
}

void envelopes_init(struct envelopes *e, const struct task *first, wall_ms sent_time,
                    wall_ms deadline)
{
    bool is_first = false;

    static_assert(sizeof(e->execute_text) > TIME_TEXT_LEN, "a time fits");
    *e = (struct envelopes){.execute_time = first->execute_time};
    time_format(first->execute_time, e->execute_text);
    put_text(&e->same, &is_first, "serviceName", first->service_name);
    put_text(&e->same, &is_first, "handler", first->handler);
    buf_adds(&e->same, STR(",\"attempt\":"));
    e->names_len = e->same.len;
    put_time(&e->same, &is_first, "sentTime", sent_time);
    put_time(&e->same, &is_first, "deadline", deadline);
    buf_adds(&e->same, STR(",\"payload\":"));
}

void envelopes_fini(struct envelopes *e)
{
    buf_fini(&e->same);
}

void envelopes_put(struct envelopes *e, struct buf *b, const struct task *t, struct str traceparent)
{
    struct str same = buf_str(&e->same);

    if (t->execute_time != e->execute_time) {
        e->execute_time = t->execute_time;
        time_format(t->execute_time, e->execute_text);
    }
    buf_adds(b, STR("{\"traceId\":\""));
    buf_add(b, t->trace_id, TRACE_ID_LEN);
    buf_adds(b, STR("\",\"bizUuid\":"));
    json_put_string(b, t->biz_uuid);
    buf_add(b, same.p, e->names_len);
    buf_addi(b, t->attempt);
    buf_adds(b, STR(",\"retryCount\":"));
    buf_addi(b, t->retry_count);
    buf_adds(b, STR(",\"executeTime\":\""));
    buf_add(b, e->execute_text, TIME_TEXT_LEN);
    buf_addc(b, '"');
    buf_add(b, same.p + e->names_len, same.len - e->names_len);
    buf_adds(b, t->payload.p ? t->payload : STR("null"));
    buf_adds(b, STR(",\"traceparent\":\""));
    buf_adds(b, traceparent);
    buf_adds(b, STR("\"}"));
    b->failed |= !buf_ok(&e->same);
}
