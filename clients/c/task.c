/* SPDX-License-Identifier: Apache-2.0 */
/* The payload is cut out of the envelope before cJSON sees that: it has to reach the handler byte
 * for byte, and what cJSON cannot represent in it must not make the task unreadable. */
#include "task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cjson/cJSON.h>

#define NAME_LEN_MAX 128

struct span {
    size_t start;
    size_t end; /* == start: there is none */
};

struct scanner {
    const char *p;
    size_t len;
    size_t at;
};

int64_t jfx_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

bool jfx_name_valid(const char *name)
{
    size_t len = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

    return len > 0 && len <= NAME_LEN_MAX && !name[len];
}

/* ---- Finding the payload ----------------------------------------------------------------- */

static void skip_space(struct scanner *s)
{
    while (s->at < s->len && s->p[s->at] && strchr(" \t\r\n", s->p[s->at]))
        s->at++;
}

static bool take(struct scanner *s, char c)
{
    skip_space(s);
    if (s->at >= s->len || s->p[s->at] != c)
        return false;
    s->at++;
    return true;
}

static bool skip_string(struct scanner *s)
{
    if (!take(s, '"'))
        return false;
    while (s->at < s->len && s->p[s->at] != '"')
        s->at += s->p[s->at] == '\\' ? 2 : 1;
    return take(s, '"');
}

/* Only as strictly as it takes to find the end: parsing is cJSON's business. */
static bool skip_value(struct scanner *s)
{
    size_t depth = 0;
    size_t start;

    skip_space(s);
    start = s->at;
    while (s->at < s->len) {
        char c = s->p[s->at];
        if (depth == 0 && s->at > start && (c == ',' || c == '}' || c == ']'))
            break;
        if (c == '"') {
            if (!skip_string(s))
                return false;
            continue;
        }
        if (c == '{' || c == '[')
            depth++;
        if (c == '}' || c == ']') {
            if (depth == 0)
                return false;
            depth--;
        }
        s->at++;
    }
    return depth == 0 && s->at > start;
}

static void cut_space_behind(const struct scanner *s, struct span *span)
{
    while (span->end > span->start && strchr(" \t\r\n", s->p[span->end - 1]))
        span->end--;
}

/* False when the text is no object, or has two payloads. */
static bool find_payload(const char *text, size_t len, struct span *ret)
{
    static const char name[] = "\"payload\"";
    struct scanner s = {text, len, 0};
    bool more = true;

    *ret = (struct span){0, 0};
    if (!take(&s, '{'))
        return false;
    while (more) {
        struct span value;
        skip_space(&s);
        size_t key = s.at;
        if (!skip_string(&s))
            return false;
        bool is_payload =
            s.at - key == sizeof(name) - 1 && memcmp(text + key, name, sizeof(name) - 1) == 0;
        if (!take(&s, ':'))
            return false;
        skip_space(&s);
        value.start = s.at;
        if (!skip_value(&s))
            return false;
        value.end = s.at;
        if (is_payload && ret->end > 0)
            return false;
        if (is_payload)
            *ret = value;
        more = take(&s, ',');
    }
    if (!take(&s, '}'))
        return false;
    skip_space(&s);
    cut_space_behind(&s, ret);
    return s.at == len;
}

/* Parses text[0, len), which is copied: cJSON wants a NUL to see that nothing stands behind. */
static struct cJSON *parse(const char *text, size_t len)
{
    return cJSON_ParseWithLengthOpts(text, len + 1, NULL, 1);
}

/* The envelope with null for a payload, and the payload's text. Errors: ENOMEM. */
static int split(const char *body, size_t len, struct span payload, struct jfx_task *t)
{
    bool has = payload.end > payload.start;
    size_t payload_len = has ? payload.end - payload.start : 4;
    char *rest = malloc(len + 4 + 1);

    t->payload_text = malloc(payload_len + 1);
    if (!rest || !t->payload_text) {
        free(rest);
        return JOBFLOW_ENOMEM;
    }
    memcpy(t->payload_text, has ? body + payload.start : "null", payload_len);
    t->payload_text[payload_len] = '\0';
    t->task.payload_text = t->payload_text;
    t->task.payload_len = payload_len;
    t->payload = parse(t->payload_text, payload_len);
    t->task.payload = t->payload;

    size_t n = payload.start;
    memcpy(rest, body, n);
    if (has) {
        memcpy(rest + n, "null", 4);
        n += 4;
    }
    memcpy(rest + n, body + payload.end, len - payload.end);
    n += len - payload.end;
    rest[n] = '\0';
    t->envelope = parse(rest, n);
    free(rest);
    return 0;
}

/* ---- The members ------------------------------------------------------------------------- */

static bool read_text(const struct cJSON *o, const char *name, const char **ret)
{
    *ret = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, name));
    return *ret != NULL;
}

static bool read_number(const struct cJSON *o, const char *name, int32_t least, int32_t *ret)
{
    const struct cJSON *n = cJSON_GetObjectItemCaseSensitive(o, name);

    if (!cJSON_IsNumber(n) || !(n->valuedouble >= least && n->valuedouble <= INT32_MAX))
        return false;
    *ret = (int32_t)n->valuedouble;
    return *ret == n->valuedouble;
}

/* "2026-01-31T12:34:56.789Z" in milliseconds. */
static bool read_time(const struct cJSON *o, const char *name, int64_t *ret)
{
    struct tm tm = {0};
    int ms = 0;
    int end = 0;
    const char *text;

    if (!read_text(o, name, &text) ||
        sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
               &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &ms, &end) != 7 ||
        end != 24 || text[end])
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    *ret = (int64_t)timegm(&tm) * 1000 + ms;
    return true;
}

/* NULL, or what is wrong. */
static const char *read_members(const struct cJSON *o, struct jobflow_task *t)
{
    if (!read_text(o, "traceId", &t->trace_id))
        return "traceId is missing";
    if (!read_text(o, "bizUuid", &t->biz_uuid))
        return "bizUuid is missing";
    if (!read_text(o, "serviceName", &t->service))
        return "serviceName is missing";
    if (!read_text(o, "handler", &t->handler))
        return "handler is missing";
    if (!read_number(o, "attempt", 1, &t->attempt))
        return "attempt is no number from 1 on";
    if (!read_number(o, "retryCount", 0, &t->retry_count))
        return "retryCount is no number from 0 on";
    if (!read_time(o, "executeTime", &t->execute_time_ms) ||
        !read_time(o, "sentTime", &t->sent_time_ms) || !read_time(o, "deadline", &t->deadline_ms))
        return "executeTime, sentTime or deadline is no time in UTC with milliseconds";
    return NULL;
}

int jfx_task_read(const char *body, size_t len, struct jfx_task *ret, const char **ret_why)
{
    struct jfx_task t = {.received_ms = jfx_now_ms()};
    struct span payload;
    const char *why = NULL;
    int rc = JOBFLOW_EINVAL;

    if (!find_payload(body, len, &payload)) {
        why = "the body is no JSON object";
    } else if (split(body, len, payload, &t)) {
        rc = JOBFLOW_ENOMEM;
    } else {
        why = t.envelope ? read_members(t.envelope, &t.task) : "the body is no JSON object";
        rc = why ? JOBFLOW_EINVAL : 0;
    }
    if (rc)
        jfx_task_fini(&t);
    else
        *ret = t;
    if (rc == JOBFLOW_EINVAL)
        *ret_why = why;
    return rc;
}

void jfx_task_fini(struct jfx_task *t)
{
    if (!t)
        return;
    cJSON_Delete(t->envelope);
    cJSON_Delete(t->payload);
    free(t->payload_text);
}

int64_t jobflow_task_remaining_ms(const struct jobflow_task *task)
{
    const struct jfx_task *t = (const struct jfx_task *)task;
    int64_t left = task->deadline_ms - task->sent_time_ms - (jfx_now_ms() - t->received_ms);

    return left > 0 ? left : 0;
}
