/* SPDX-License-Identifier: Apache-2.0 */
#include "answer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#define WAIT_MS_MAX (365 * 24 * 3600 * INT64_C(1000))

static struct jobflow_answer make(enum jobflow_outcome outcome, int64_t wait_ms, const char *fmt,
                                  va_list args)
{
    struct jobflow_answer a = {.outcome = outcome, .wait_ms = wait_ms};

    if (fmt)
        (void)vsnprintf(a.message, sizeof(a.message), fmt, args);
    return a;
}

struct jobflow_answer jobflow_success(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    struct jobflow_answer a = make(JOBFLOW_SUCCESS, 0, fmt, args);
    va_end(args);
    return a;
}

struct jobflow_answer jobflow_retry(int64_t wait_ms, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    struct jobflow_answer a = make(JOBFLOW_RETRY, wait_ms, fmt, args);
    va_end(args);
    return a;
}

struct jobflow_answer jobflow_fail(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    struct jobflow_answer a = make(JOBFLOW_FAIL, 0, fmt, args);
    va_end(args);
    return a;
}

struct jobflow_answer jobflow_snooze(int64_t wait_ms, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    struct jobflow_answer a = make(JOBFLOW_SNOOZE, wait_ms, fmt, args);
    va_end(args);
    return a;
}

struct jobflow_answer jobflow_later(void)
{
    return (struct jobflow_answer){.outcome = JOBFLOW_LATER};
}

/* The length of the well-formed UTF-8 character at p, or 0. */
static size_t utf8_len(const unsigned char *p)
{
    size_t n = p[0] < 0x80 ? 1 : p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;

    if (n == 0 || p[0] > 0xF4)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    }
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] >= 0xA0) ||
        (p[0] == 0xF0 && p[1] < 0x90) || (p[0] == 0xF4 && p[1] >= 0x90))
        return 0;
    return n;
}

static void mend_text(char *text)
{
    while (*text) {
        size_t n = utf8_len((const unsigned char *)text);
        if (n == 0) {
            *text = '?';
            n = 1;
        }
        text += n;
    }
}

void jfx_answer_mend(struct jobflow_answer *a)
{
    int64_t least = a->outcome == JOBFLOW_SNOOZE ? 1 : 0;

    if (a->outcome < JOBFLOW_SUCCESS || a->outcome > JOBFLOW_LATER)
        a->outcome = JOBFLOW_RETRY;
    if (a->wait_ms < least)
        a->wait_ms = least;
    if (a->wait_ms > WAIT_MS_MAX)
        a->wait_ms = WAIT_MS_MAX;
    a->message[sizeof(a->message) - 1] = '\0';
    mend_text(a->message);
}

static bool add_wait(struct cJSON *o, const char *name, int64_t wait_ms)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%" PRId64 "ms", wait_ms);
    return cJSON_AddStringToObject(o, name, text) != NULL;
}

static bool add_members(struct cJSON *o, const struct jobflow_answer *a)
{
    bool ok = true;

    if (a->outcome == JOBFLOW_SNOOZE)
        ok = add_wait(o, "snooze", a->wait_ms);
    else
        ok = cJSON_AddBoolToObject(o, "success",
                                   a->outcome == JOBFLOW_SUCCESS || a->outcome == JOBFLOW_LATER);
    if (a->outcome == JOBFLOW_RETRY || a->outcome == JOBFLOW_FAIL)
        ok = ok && cJSON_AddBoolToObject(o, "retryable", a->outcome == JOBFLOW_RETRY);
    if (a->outcome == JOBFLOW_RETRY && a->wait_ms > 0)
        ok = ok && add_wait(o, "retryAfter", a->wait_ms);
    if (a->message[0])
        ok = ok && cJSON_AddStringToObject(o, "message", a->message);
    return ok;
}

char *jfx_answer_encode(const struct jobflow_answer *a)
{
    struct cJSON *o = cJSON_CreateObject();
    char *text = o && add_members(o, a) ? cJSON_PrintUnformatted(o) : NULL;

    cJSON_Delete(o);
    return text;
}

int jfx_answer_status(const struct jobflow_answer *a)
{
    switch (a->outcome) {
    case JOBFLOW_SUCCESS:
    case JOBFLOW_SNOOZE:
        return 200;
    case JOBFLOW_LATER:
        return 202;
    case JOBFLOW_FAIL:
        return 422;
    case JOBFLOW_RETRY:
        break;
    }
    return 500;
}
