/* SPDX-License-Identifier: Apache-2.0 */
/* Doubt is resolved towards the promise that no task is lost: an answer that could not be read for
 * want of memory, or that asks for something impossible, is retried and not taken for a success. */
#include "node/core/verdict.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/timefmt.h"
#include "node/core/verdict_body.h"

const char *verdict_name(enum verdict_kind kind)
{
    switch (kind) {
    case VERDICT_SUCCESS:
        return "success";
    case VERDICT_ACCEPTED:
        return "accepted";
    case VERDICT_RETRY:
        return "retry";
    case VERDICT_FINAL:
        return "final";
    case VERDICT_SNOOZE:
        return "snooze";
    case VERDICT_UNSENT:
        return "unsent";
    }
    assert(!"a verdict of no kind");
    return "";
}

static int64_t at_most(int64_t ms, int64_t cap)
{
    return ms < cap ? ms : cap;
}

static struct str trim(struct str s)
{
    while (s.len > 0 && (s.p[0] == ' ' || s.p[0] == '\t' || s.p[0] == '\r' || s.p[0] == '\n')) {
        s.p++;
        s.len--;
    }
    while (s.len > 0 && (s.p[s.len - 1] == ' ' || s.p[s.len - 1] == '\t'))
        s.len--;
    return s;
}

static bool all_digits(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
    }
    return s.len > 0;
}

/* A Retry-After header's wait, or -1: seconds, or a date. One in the past is no wait at all. */
static int64_t header_wait(struct str value, int64_t cap, wall_ms now)
{
    int64_t seconds;
    wall_ms at;

    if (!value.p)
        return -1;
    value = trim(value);
    if (all_digits(value)) {
        bool fits = str_to_i64(value, &seconds) && seconds <= INT64_MAX / 1000;
        return fits ? at_most(seconds * 1000, cap) : cap;
    }
    if (http_date_parse(value, now, &at))
        return -1;
    return at > now ? at_most(at - now, cap) : 0;
}

static void verdict_begin(struct verdict *v, int32_t http_status)
{
    v->http_status = http_status;
    v->retry_after_ms = -1;
    v->error[0] = '\0';
}

/* "<prefix>: <text>", or either alone. */
static void put_error(struct verdict *v, const char *prefix, struct str text)
{
    size_t len = 0;

    text = trim(text);
    if (*prefix) {
        len = utf8_clean(v->error, sizeof(v->error), str_from(prefix));
        if (text.len > 0 && len + 2 < sizeof(v->error)) {
            memcpy(v->error + len, ": ", 2);
            len += 2;
        }
    }
    (void)utf8_clean(v->error + len, sizeof(v->error) - len, text);
}

/* What there is to say, or else the other text: an attempt that failed always has an error. */
static struct str or_else(struct str text, struct str otherwise)
{
    text = trim(text);
    return text.len > 0 ? text : otherwise;
}

static void put_http_error(struct verdict *v, const struct answer *a, const struct verdict_body *b)
{
    char prefix[32];

    (void)snprintf(prefix, sizeof(prefix), "HTTP %d", a->http_status);
    put_error(v, prefix, or_else(b->message, a->body));
}

/* The body knows more than the status: what it says about retrying goes first. */
static void judge_failure(const struct answer *a, const struct verdict_body *b,
                          const struct verdict_limits *limits, wall_ms now, struct verdict *ret)
{
    bool final = b->retryable == SAID_NO ||
                 (b->retryable == SAID_NOTHING && verdict_is_final(a->http_status));

    ret->kind = final ? VERDICT_FINAL : VERDICT_RETRY;
    if (final)
        return;
    if (b->retry_after_ms >= 0)
        ret->retry_after_ms = at_most(b->retry_after_ms, limits->retry_after_cap_ms);
    else if (a->http_status == 429 || a->http_status == 503)
        ret->retry_after_ms = header_wait(a->retry_after, limits->retry_after_cap_ms, now);
}

static void judge_snooze(const struct verdict_body *b, const struct verdict_limits *limits,
                         struct verdict *ret)
{
    if (b->snooze == SAID_YES) {
        ret->kind = VERDICT_SNOOZE;
        ret->retry_after_ms = at_most(b->snooze_ms, limits->snooze_cap_ms);
        put_error(ret, "", b->message);
    } else {
        ret->kind = VERDICT_RETRY;
        put_error(ret, "", STR("the handler's \"snooze\" is no duration such as \"10m\""));
    }
}

/* Of an answer with a 2xx, or of a result. */
static void judge_ok(const struct answer *a, const struct verdict_body *b,
                     const struct verdict_limits *limits, wall_ms now, struct verdict *ret)
{
    if (b->snooze != SAID_NOTHING) {
        judge_snooze(b, limits, ret);
    } else if (b->success == SAID_NO) {
        judge_failure(a, b, limits, now, ret);
        put_error(ret, "", or_else(b->message, STR("the handler's \"success\" is not true")));
    } else {
        ret->kind = a->http_status == 202 ? VERDICT_ACCEPTED : VERDICT_SUCCESS;
    }
}

void verdict_judge(const struct answer *a, const struct verdict_body *b,
                   const struct verdict_limits *limits, wall_ms now, struct verdict *ret)
{
    verdict_begin(ret, a->http_status);
    if (verdict_is_ok(a->http_status)) {
        judge_ok(a, b, limits, now, ret);
    } else {
        judge_failure(a, b, limits, now, ret);
        put_http_error(ret, a, b);
    }
}

void verdict_not_done(struct verdict *ret, int32_t http_status, const char *why, struct str text)
{
    verdict_begin(ret, http_status);
    ret->kind = VERDICT_RETRY;
    put_error(ret, why, text);
}

static void judge_answer(const struct answer *a, const struct verdict_limits *limits, wall_ms now,
                         struct verdict *ret)
{
    struct verdict_body b = VERDICT_BODY_INIT;

    if (verdict_body_read(&b, a->body, a->body_cut))
        verdict_not_done(ret, a->http_status, "no memory to read the answer", (struct str){0});
    else
        verdict_judge(a, &b, limits, now, ret);
    verdict_body_fini(&b);
}

void verdict_read(const struct answer *a, const struct verdict_limits *limits, wall_ms now,
                  struct verdict *ret)
{
    verdict_begin(ret, a->http_status);
    if (!a->sent) {
        ret->kind = VERDICT_UNSENT;
        put_error(ret, "", a->failure);
    } else if (a->failure.p || a->http_status == 0) {
        ret->kind = VERDICT_RETRY;
        put_error(ret, "", or_else(a->failure, STR("no answer")));
    } else {
        judge_answer(a, limits, now, ret);
    }
}

int verdict_read_result(struct str body, const struct verdict_limits *limits, wall_ms now,
                        struct verdict *ret, struct err *err)
{
    static const struct answer none = {.http_status = 0, .sent = true};
    struct verdict_body b = VERDICT_BODY_INIT;
    int rc = verdict_body_read_strictly(&b, body, err);

    if (!rc) {
        verdict_begin(ret, 0);
        judge_ok(&none, &b, limits, now, ret);
    }
    verdict_body_fini(&b);
    return rc;
}
