/* SPDX-License-Identifier: Apache-2.0 */
/* Durations in the three forms that people write. All of them are a row of "number unit" with
 * falling units, of which only the last may have a fraction. */
#include "common/timefmt.h"

#include <stdio.h>
#include <string.h>

#define MAX_DURATION_MS INT64_C(3155760000000) /* 100 years of 365.25 days */

#define DURATION_HINT                                                                              \
    "a duration such as \"500ms\", \"30s\", \"1h30m\", \"2d\", \"PT30M\" or a number of seconds"

struct unit {
    const char *name;
    int64_t ms;
};

static const struct unit plain_units[] = {
    {"w", 604800000}, {"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1},
};
static const struct unit iso_date_units[] = {{"W", 604800000}, {"D", 86400000}};
static const struct unit iso_time_units[] = {{"H", 3600000}, {"M", 60000}, {"S", 1000}};

struct number {
    int64_t whole;     /* at most MAX_DURATION_MS + 1, which stands for all above */
    uint64_t fraction; /* in units of 10^-18, rounded up */
    bool has_fraction;
};

#define FRACTION_DIGITS 18
#define FRACTION_ONE INT64_C(1000000000000000000)

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void skip(struct str *s, size_t n)
{
    s->p += n;
    s->len -= n;
}

static bool take_fraction(struct str *s, struct number *num)
{
    size_t n = 0;
    bool round_up = false;
    for (; s->len > 0 && is_digit(s->p[0]); n++, skip(s, 1)) {
        if (n < FRACTION_DIGITS)
            num->fraction = num->fraction * 10 + (uint64_t)(s->p[0] - '0');
        else
            round_up = round_up || s->p[0] != '0';
    }
    for (size_t i = n; i < FRACTION_DIGITS; i++)
        num->fraction *= 10;
    num->fraction += round_up;
    num->has_fraction = true;
    return n > 0;
}

static bool take_number(struct str *s, const char *points, struct number *ret)
{
    struct number num = {0};
    size_t n = 0;
    for (; s->len > 0 && is_digit(s->p[0]); n++, skip(s, 1)) {
        if (num.whole <= MAX_DURATION_MS)
            num.whole = num.whole * 10 + (s->p[0] - '0');
        if (num.whole > MAX_DURATION_MS)
            num.whole = MAX_DURATION_MS + 1;
    }
    if (n == 0)
        return false;
    if (s->len > 0 && s->p[0] != '\0' && strchr(points, s->p[0])) {
        skip(s, 1);
        if (!take_fraction(s, &num))
            return false;
    }
    *ret = num;
    return true;
}

static bool add_number(int64_t *total, const struct number *num, int64_t unit_ms)
{
    if (num->whole > MAX_DURATION_MS / unit_ms)
        return false;
    __extension__ typedef unsigned __int128 wide;
    wide part = (wide)num->fraction * (wide)unit_ms;
    int64_t part_ms = (int64_t)((part + FRACTION_ONE - 1) / FRACTION_ONE);
    *total += num->whole * unit_ms + part_ms;
    return *total <= MAX_DURATION_MS;
}

/* The unit's index at or behind `from`, taken from the front; -1 when there is none. The name is
 * all letters up to the next digit, so that "m" does not match the front of "ms". */
static int take_unit(struct str *s, const struct unit *units, int n_units, int from)
{
    size_t len = 0;
    while (len < s->len && !is_digit(s->p[len]) && s->p[len] != 'T')
        len++;
    for (int i = from; i < n_units; i++) {
        if (str_eqz((struct str){s->p, len}, units[i].name)) {
            skip(s, len);
            return i;
        }
    }
    return -1;
}

enum part_result { PARTS_OK, PARTS_WRONG, PARTS_TOO_LONG };

/* Takes "number unit" as long as a digit comes. *fraction_seen: a fraction must be the last. */
static enum part_result take_parts(struct str *s, const struct unit *units, int n_units,
                                   const char *points, bool *fraction_seen, int64_t *total)
{
    int from = 0;
    while (s->len > 0 && is_digit(s->p[0])) {
        struct number num;
        if (*fraction_seen || !take_number(s, points, &num))
            return PARTS_WRONG;
        int i = take_unit(s, units, n_units, from);
        if (i < 0)
            return PARTS_WRONG;
        if (!add_number(total, &num, units[i].ms))
            return PARTS_TOO_LONG;
        *fraction_seen = num.has_fraction;
        from = i + 1;
    }
    return PARTS_OK;
}

/* Behind the "P". */
static enum part_result parse_iso(struct str s, int64_t *total)
{
    bool fraction_seen = false;
    struct str date = s;
    enum part_result result = take_parts(&s, iso_date_units, 2, ".,", &fraction_seen, total);
    if (result != PARTS_OK || s.len == 0)
        return result == PARTS_OK && date.len == 0 ? PARTS_WRONG : result;
    if (s.p[0] != 'T' || s.len == 1)
        return PARTS_WRONG;
    skip(&s, 1);
    result = take_parts(&s, iso_time_units, 3, ".,", &fraction_seen, total);
    return result == PARTS_OK && s.len > 0 ? PARTS_WRONG : result;
}

static enum part_result parse_plain(struct str s, int64_t *total)
{
    struct str rest = s;
    struct number num;
    if (take_number(&rest, ".", &num) && rest.len == 0)
        return add_number(total, &num, 1000) ? PARTS_OK : PARTS_TOO_LONG;
    bool fraction_seen = false;
    enum part_result result = take_parts(&s, plain_units, 6, ".", &fraction_seen, total);
    return result == PARTS_OK && s.len > 0 ? PARTS_WRONG : result;
}

int duration_parse(struct str s, int64_t *ret_ms, struct err *err)
{
    if (s.len == 0)
        return err_set(err, ERR_INVALID, "an empty duration: expected " DURATION_HINT);
    if (s.p[0] == '-')
        return err_set(err, ERR_INVALID, "a negative duration: expected " DURATION_HINT);
    int64_t total = 0;
    enum part_result result;
    if (s.p[0] == 'P')
        result = parse_iso((struct str){s.p + 1, s.len - 1}, &total);
    else
        result = parse_plain(s, &total);
    if (result == PARTS_WRONG)
        return err_set(err, ERR_INVALID, "not a duration: expected " DURATION_HINT);
    if (result == PARTS_TOO_LONG)
        return err_set(err, ERR_INVALID, "a duration above 100 years");
    *ret_ms = total;
    return 0;
}

void duration_format(int64_t ms, char dst[DURATION_TEXT_LEN + 1])
{
    uint64_t rest = ms < 0 ? -(uint64_t)ms : (uint64_t)ms;
    size_t len = 0;
    if (ms < 0)
        dst[len++] = '-';
    /* From days on: "1w" is right but few people expect it. */
    for (size_t i = 1; i < sizeof(plain_units) / sizeof(plain_units[0]); i++) {
        uint64_t unit = (uint64_t)plain_units[i].ms;
        if (rest < unit)
            continue;
        len += (size_t)snprintf(dst + len, DURATION_TEXT_LEN + 1 - len, "%llu%s",
                                (unsigned long long)(rest / unit), plain_units[i].name);
        rest %= unit;
    }
    if (ms == 0)
        memcpy(dst, "0s", 3);
}
