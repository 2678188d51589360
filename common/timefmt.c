/* SPDX-License-Identifier: Apache-2.0 */
#include "common/timefmt.h"

#include <stdio.h>
#include <string.h>

#define DAY_MS INT64_C(86400000)

#define TIME_HINT                                                                                  \
    "an RFC 3339 time with a zone such as 2026-01-31T12:34:56Z or 2026-01-31T12:34:56.789+08:00"

struct civil {
    int year;
    int month; /* 1 to 12 */
    int day;
    int hour;
    int minute;
    int second; /* 60 in a leap second */
    int ms;
};

/* The era is 400 years of 146097 days; years begin in March, so that the leap day comes last. */
static int64_t days_from_civil(int year, int month, int day)
{
    int64_t y = month <= 2 ? year - 1 : year;
    int64_t era = (y >= 0 ? y : y - 399) / 400;
    int64_t year_of_era = y - era * 400;
    int64_t day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    return era * 146097 + day_of_era - 719468;
}

static void civil_from_days(int64_t days, struct civil *c)
{
    days += 719468;
    int64_t era = (days >= 0 ? days : days - 146096) / 146097;
    int64_t day_of_era = days - era * 146097;
    int64_t year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t month = (5 * day_of_year + 2) / 153;
    c->day = (int)(day_of_year - (153 * month + 2) / 5 + 1);
    c->month = (int)(month < 10 ? month + 3 : month - 9);
    c->year = (int)(year_of_era + era * 400 + (c->month <= 2));
}

static bool is_leap(int year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static bool civil_valid(const struct civil *c)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (c->month < 1 || c->month > 12)
        return false;
    int last = days[c->month - 1] + (c->month == 2 && is_leap(c->year));
    return c->day >= 1 && c->day <= last && c->hour <= 23 && c->minute <= 59 && c->second <= 60;
}

/* The instant of valid fields at an offset from UTC. False for a leap second where none can be. */
static bool civil_to_ms(const struct civil *c, int offset_minutes, wall_ms *ret)
{
    int64_t minutes = (days_from_civil(c->year, c->month, c->day) * 24 + c->hour) * 60 + c->minute -
                      offset_minutes;
    if (c->second < 60) {
        *ret = (minutes * 60 + c->second) * 1000 + c->ms;
        return true;
    }
    *ret = (minutes * 60 + 59) * 1000 + 999;
    int64_t in_day = minutes % 1440;
    return in_day == 1439 || in_day == -1;
}

/* Exactly n digits. */
static inline void put_digits(char *p, size_t n, unsigned v)
{
    for (size_t i = n; i-- > 0; v /= 10)
        p[i] = (char)('0' + v % 10);
}

/* By hand: several times go into each task's JSON, and snprintf costs ten times as much. */
void time_format(wall_ms t, char dst[TIME_TEXT_LEN + 1])
{
    t = t < TIME_MIN ? TIME_MIN : t > TIME_MAX ? TIME_MAX : t;
    int64_t days = t / DAY_MS - (t % DAY_MS < 0);
    unsigned ms = (unsigned)(t - days * DAY_MS);
    unsigned minutes = ms / 60000;
    unsigned rest = ms % 60000;
    struct civil c;
    civil_from_days(days, &c);
    put_digits(dst, 4, (unsigned)c.year);
    dst[4] = '-';
    put_digits(dst + 5, 2, (unsigned)c.month);
    dst[7] = '-';
    put_digits(dst + 8, 2, (unsigned)c.day);
    dst[10] = 'T';
    put_digits(dst + 11, 2, minutes / 60);
    dst[13] = ':';
    put_digits(dst + 14, 2, minutes % 60);
    dst[16] = ':';
    put_digits(dst + 17, 2, rest / 1000);
    dst[19] = '.';
    put_digits(dst + 20, 3, rest % 1000);
    dst[23] = 'Z';
    dst[24] = '\0';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Takes exactly n digits from the front. */
static bool take_digits(struct str *s, size_t n, int *ret)
{
    if (s->len < n)
        return false;
    int v = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_digit(s->p[i]))
            return false;
        v = v * 10 + (s->p[i] - '0');
    }
    s->p += n;
    s->len -= n;
    *ret = v;
    return true;
}

/* Takes one character of the set from the front. */
static bool take_char(struct str *s, const char *set)
{
    if (s->len == 0 || s->p[0] == '\0' || !strchr(set, s->p[0]))
        return false;
    s->p++;
    s->len--;
    return true;
}

static bool take_text(struct str *s, const char *text)
{
    size_t n = strlen(text);
    if (s->len < n || memcmp(s->p, text, n) != 0)
        return false;
    s->p += n;
    s->len -= n;
    return true;
}

/* ".789…": at least one digit; those behind the third are dropped. */
static bool take_fraction(struct str *s, int *ret_ms)
{
    *ret_ms = 0;
    if (!take_char(s, "."))
        return true;
    size_t n = 0;
    for (; s->len > 0 && is_digit(s->p[0]); n++) {
        static const int weight[] = {100, 10, 1};
        if (n < 3)
            *ret_ms += weight[n] * (s->p[0] - '0');
        s->p++;
        s->len--;
    }
    return n > 0;
}

static bool take_clock(struct str *s, struct civil *c)
{
    return take_digits(s, 2, &c->hour) && take_char(s, ":") && take_digits(s, 2, &c->minute) &&
           take_char(s, ":") && take_digits(s, 2, &c->second);
}

static bool take_zone(struct str *s, int *ret_minutes)
{
    *ret_minutes = 0;
    if (take_char(s, "Zz"))
        return true;
    bool west = s->len > 0 && s->p[0] == '-';
    int hours;
    int minutes;
    if (!take_char(s, "+-") || !take_digits(s, 2, &hours) || !take_char(s, ":") ||
        !take_digits(s, 2, &minutes) || hours > 23 || minutes > 59)
        return false;
    *ret_minutes = (west ? -1 : 1) * (hours * 60 + minutes);
    return true;
}

int time_parse(struct str s, wall_ms *ret, struct err *err)
{
    struct str rest = s;
    struct civil c = {0};
    bool has_date = take_digits(&rest, 4, &c.year) && take_char(&rest, "-") &&
                    take_digits(&rest, 2, &c.month) && take_char(&rest, "-") &&
                    take_digits(&rest, 2, &c.day) && take_char(&rest, "Tt ");
    if (!has_date || !take_clock(&rest, &c) || !take_fraction(&rest, &c.ms))
        return err_set(err, ERR_INVALID, "not a time: expected " TIME_HINT);
    int offset;
    if (rest.len == 0)
        return err_set(err, ERR_INVALID, "a time without a zone: expected " TIME_HINT);
    if (!take_zone(&rest, &offset) || rest.len > 0)
        return err_set(err, ERR_INVALID, "not a zone: expected " TIME_HINT);
    wall_ms t;
    if (!civil_valid(&c) || !civil_to_ms(&c, offset, &t))
        return err_set(err, ERR_INVALID, "no such date or time of day: expected " TIME_HINT);
    if (t < TIME_MIN || t > TIME_MAX)
        return err_set(err, ERR_INVALID, "a time outside the years 0000 to 9999 in UTC");
    *ret = t;
    return 0;
}

static bool take_name(struct str *s, const char *const *names, int n, int *ret_index)
{
    for (int i = 0; i < n; i++) {
        if (take_text(s, names[i])) {
            *ret_index = i;
            return true;
        }
    }
    return false;
}

static bool take_month(struct str *s, int *ret)
{
    static const char *const names[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    int index;
    if (!take_name(s, names, 12, &index))
        return false;
    *ret = index + 1;
    return true;
}

/* The year of this century that ends so, or of the one before if it is over 50 years ahead. */
static int full_year(int two_digits, wall_ms now)
{
    struct civil today;
    civil_from_days(now / DAY_MS, &today);
    int year = today.year - today.year % 100 + two_digits;
    return year > today.year + 50 ? year - 100 : year;
}

/* "Sun, 06 Nov 1994 08:49:37 GMT", behind the comma. */
static bool take_fixdate(struct str *s, struct civil *c)
{
    return take_char(s, " ") && take_digits(s, 2, &c->day) && take_char(s, " ") &&
           take_month(s, &c->month) && take_char(s, " ") && take_digits(s, 4, &c->year) &&
           take_char(s, " ") && take_clock(s, c) && take_text(s, " GMT");
}

/* "Sunday, 06-Nov-94 08:49:37 GMT", behind the comma. */
static bool take_rfc850(struct str *s, wall_ms now, struct civil *c)
{
    if (!take_char(s, " ") || !take_digits(s, 2, &c->day) || !take_char(s, "-") ||
        !take_month(s, &c->month) || !take_char(s, "-") || !take_digits(s, 2, &c->year))
        return false;
    c->year = full_year(c->year, now);
    return take_char(s, " ") && take_clock(s, c) && take_text(s, " GMT");
}

/* "Sun Nov  6 08:49:37 1994", behind the day's name. */
static bool take_asctime(struct str *s, struct civil *c)
{
    if (!take_char(s, " ") || !take_month(s, &c->month) || !take_char(s, " "))
        return false;
    size_t n = take_char(s, " ") ? 1 : 2;
    return take_digits(s, n, &c->day) && take_char(s, " ") && take_clock(s, c) &&
           take_char(s, " ") && take_digits(s, 4, &c->year);
}

static bool take_http_date(struct str *s, wall_ms now, struct civil *c)
{
    static const char *const long_days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                            "Thursday", "Friday", "Saturday"};
    static const char *const short_days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    int day;
    if (take_name(s, long_days, 7, &day))
        return take_char(s, ",") && take_rfc850(s, now, c);
    if (!take_name(s, short_days, 7, &day))
        return false;
    return take_char(s, ",") ? take_fixdate(s, c) : take_asctime(s, c);
}

int http_date_parse(struct str s, wall_ms now, wall_ms *ret)
{
    struct civil c = {0};
    wall_ms t;
    if (!take_http_date(&s, now, &c) || s.len > 0 || !civil_valid(&c) || !civil_to_ms(&c, 0, &t))
        return ERR_INVALID;
    *ret = t;
    return 0;
}
