/* SPDX-License-Identifier: Apache-2.0 */
/* Times and durations. The text is read as each kind that there is; the number in its front, as far
 * as it goes, is written as each kind and read again. The C library is the judge of dates. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/backoff.h"
#include "common/timefmt.h"
#include "node/core/verdict.h"
#include "tests/fuzz/fuzz.h"

#define NOW INT64_C(1700000000000)
#define CENTURY_MS INT64_C(3155760000000)
#define CAP_MS INT64_C(86400000) /* a day */

/* The C library's reading of an instant. */
static struct tm broken_down(wall_ms t)
{
    time_t seconds = (time_t)(t / 1000 - (t % 1000 < 0));
    struct tm tm;
    struct tm *ok = gmtime_r(&seconds, &tm);
    assert(ok);
    return tm;
}

static void check_instant(wall_ms t)
{
    char text[TIME_TEXT_LEN + 1];
    char theirs[64];
    wall_ms again;
    wall_ms shown = t < TIME_MIN ? TIME_MIN : t > TIME_MAX ? TIME_MAX : t;
    struct tm tm = broken_down(shown);
    time_format(t, text);
    (void)snprintf(theirs, sizeof(theirs), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900,
                   tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                   (int)((shown % 1000 + 1000) % 1000));
    fuzz_same("a time", str_from(text), str_from(theirs));
    int rc = time_parse(str_from(text), &again, NULL);
    assert(rc == 0 && again == shown);
}

/* All three forms of an HTTP date, the second one within the years that two digits can tell. */
static void check_http_date(wall_ms t)
{
    static const char *const forms[] = {"%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT",
                                        "%a %b %e %H:%M:%S %Y"};
    if (t < TIME_MIN || t > TIME_MAX)
        return;
    struct tm tm = broken_down(t);
    wall_ms whole = t - (t % 1000 + 1000) % 1000;
    for (size_t i = 0; i < 3; i++) {
        char text[64];
        wall_ms again;
        bool far = llabs(whole - NOW) > CENTURY_MS / 2 - 366 * CAP_MS;
        if ((i == 1 && far) || tm.tm_year < -900) /* strftime pads no year */
            continue;
        size_t len = strftime(text, sizeof(text), forms[i], &tm);
        assert(len > 0);
        int rc = http_date_parse((struct str){text, len}, NOW, &again);
        assert(rc == 0 && again == whole);
    }
}

static void check_duration(int64_t ms)
{
    char text[DURATION_TEXT_LEN + 1];
    int64_t again;
    duration_format(ms, text);
    assert(strlen(text) <= DURATION_TEXT_LEN);
    int rc = duration_parse(str_from(text), &again, NULL);
    assert((rc == 0) == (ms >= 0 && ms <= CENTURY_MS));
    assert(rc != 0 || again == ms);
}

static void check_backoff(int64_t v)
{
    uint64_t seed = (uint64_t)v;
    struct backoff b = {.initial_ms = 1 + (int64_t)(seed % 86400000),
                        .multiplier = 1 + (double)(seed % 97) / 16,
                        .jitter = (double)(seed & 7) / 7};
    struct rng rng = {.state = seed};
    b.cap_ms = b.initial_ms + CAP_MS;
    int64_t n = v > 0 ? v : 1;
    for (int64_t last = 0, at = 1; at < 8; at++) {
        int64_t base = backoff_base(&b, at);
        assert(base >= last && base >= 1 && base <= b.cap_ms);
        last = base;
    }
    int64_t delay = backoff_delay(&b, n, &rng);
    assert(delay >= 1 && delay <= backoff_base(&b, n) && backoff_base(&b, n) <= b.cap_ms);
}

/* The C library's instant, in seconds, of a date that there is. */
static int64_t instant_of(struct tm tm)
{
    struct tm same = tm;
    time_t t = timegm(&same);
    assert(same.tm_mday == tm.tm_mday && same.tm_mon == tm.tm_mon && same.tm_min == tm.tm_min);
    return t;
}

/* An accepted RFC 3339 time, read by its columns. */
static void check_columns(struct str text, wall_ms t)
{
    struct tm tm = {0};
    char z[20];
    memcpy(z, text.p, 19);
    z[19] = '\0';
    z[10] = ' ';
    int n = sscanf(z, "%4d-%2d-%2d %2d:%2d:%2d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour,
                   &tm.tm_min, &tm.tm_sec);
    assert(n == 6);
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    bool is_leap_second = tm.tm_sec == 60;
    tm.tm_sec -= is_leap_second;
    int64_t offset = 0;
    const char *zone = text.p + text.len - 6;
    if (*zone == '+' || *zone == '-') {
        struct str hours = {zone + 1, 2};
        struct str minutes = {zone + 4, 2};
        offset = fuzz_take_number(&hours) * 60;
        offset += fuzz_take_number(&minutes);
        offset = *zone == '-' ? -offset : offset;
    }
    assert(t / 1000 - (t % 1000 < 0) == instant_of(tm) - offset * 60);
    assert(!is_leap_second || (t % 1000 + 1000) % 1000 == 999);
}

/* An accepted HTTP date with a full year, as the C library reads it. */
static void check_strptime(struct str text, wall_ms t)
{
    static const char *const forms[] = {"%a, %d %b %Y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"};
    char z[40] = "";
    struct tm tm = {0};
    assert(text.len < sizeof(z));
    memcpy(z, text.p, text.len);
    if (strchr(z, '-')) /* two digits */
        return;
    const char *end = strptime(z, forms[strchr(z, ',') ? 0 : 1], &tm);
    assert(end && *end == '\0');
    tm.tm_sec -= tm.tm_sec == 60;
    assert(t / 1000 - (t % 1000 < 0) == instant_of(tm));
}

static void read_time(struct str text)
{
    struct err err = {0};
    wall_ms t;
    if (time_parse(text, &t, &err) == 0) {
        assert(t >= TIME_MIN && t <= TIME_MAX);
        check_instant(t);
        check_columns(text, t);
    } else {
        fuzz_clean_text("the reason", str_from(err.text));
        assert(err.text[0] != '\0');
    }
    if (http_date_parse(text, NOW, &t) == 0) {
        check_instant(t);
        check_strptime(text, t);
    }
}

/* A plain number of seconds, by its decimal digits: what is below a millisecond counts as one. */
static void check_seconds(struct str text, int64_t ms)
{
    int64_t wanted = 0;
    size_t i = 0;
    for (; i < text.len && text.p[i] != '.'; i++) {
        if (text.p[i] < '0' || text.p[i] > '9')
            return;
        wanted = wanted * 10 + (text.p[i] - '0');
    }
    int64_t unit = 1000;
    bool has_rest = false;
    wanted *= unit;
    for (i++; i < text.len; i++) {
        if (text.p[i] < '0' || text.p[i] > '9')
            return;
        unit /= 10;
        wanted += unit * (text.p[i] - '0');
        has_rest = has_rest || (unit == 0 && text.p[i] != '0');
    }
    assert(ms == wanted + has_rest);
}

static void read_duration(struct str text)
{
    struct err err = {0};
    int64_t ms;
    if (duration_parse(text, &ms, &err) == 0) {
        assert(ms >= 0 && ms <= CENTURY_MS);
        check_duration(ms);
        check_seconds(text, ms);
    } else {
        fuzz_clean_text("the reason", str_from(err.text));
        assert(err.text[0] != '\0');
    }
}

/* Seconds of any number of digits, by another way than the one that is tested. */
static int64_t seconds_or_cap(struct str digits)
{
    int64_t v = 0;
    for (size_t i = 0; i < digits.len; i++)
        v = v > CAP_MS ? v : v * 10 + (digits.p[i] - '0');
    return v > CAP_MS / 1000 ? CAP_MS : v * 1000;
}

static void read_retry_after(struct str text)
{
    static const struct verdict_limits limits = {.retry_after_cap_ms = CAP_MS,
                                                 .snooze_cap_ms = CAP_MS};
    struct answer a = {.http_status = 503, .retry_after = text, .body = STR(""), .sent = true};
    struct verdict v;
    wall_ms at;
    verdict_read(&a, &limits, NOW, &v);
    assert(v.kind == VERDICT_RETRY && v.retry_after_ms >= -1 && v.retry_after_ms <= CAP_MS);
    size_t n = 0;
    while (n < text.len && text.p[n] >= '0' && text.p[n] <= '9')
        n++;
    if (n > 0 && n == text.len)
        assert(v.retry_after_ms == seconds_or_cap(text));
    else if (http_date_parse(text, NOW, &at) == 0)
        assert(v.retry_after_ms == (at <= NOW ? 0 : at - NOW > CAP_MS ? CAP_MS : at - NOW));
}

/* The number that the text is, or else the bytes that it begins with. */
static int64_t number_of(struct str text)
{
    int64_t v = 0;
    if (!str_to_i64(text, &v) && text.len > 0)
        memcpy(&v, text.p, text.len < sizeof(v) ? text.len : sizeof(v));
    return v;
}

static void check_integer(struct str text)
{
    char z[24];
    int64_t v;
    if (!str_to_i64(text, &v) || text.len >= sizeof(z))
        return;
    memcpy(z, text.p, text.len);
    z[text.len] = '\0';
    assert(v == strtoll(z, NULL, 10));
}

void fuzz_one(struct str input)
{
    int64_t v = number_of(input);
    read_time(input);
    read_duration(input);
    read_retry_after(input);
    check_integer(input);
    wall_ms t = TIME_MIN + (int64_t)((uint64_t)v % (uint64_t)(TIME_MAX - TIME_MIN));
    check_instant(v);
    check_instant(t);
    check_http_date(v);
    check_http_date(t);
    check_duration(v);
    check_duration((int64_t)((uint64_t)v % (uint64_t)CENTURY_MS));
    check_backoff(v);
}
