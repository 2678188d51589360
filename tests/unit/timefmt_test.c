/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/timefmt.h"

#define MIN_TIME (-INT64_C(62167219200000))
#define MAX_TIME INT64_C(253402300799999)

static const struct {
    wall_ms t;
    const char *text;
} exact_times[] = {
    {0, "1970-01-01T00:00:00.000Z"},
    {1, "1970-01-01T00:00:00.001Z"},
    {-1, "1969-12-31T23:59:59.999Z"},
    {-1000, "1969-12-31T23:59:59.000Z"},
    {-86400000, "1969-12-31T00:00:00.000Z"},
    {951782400000, "2000-02-29T00:00:00.000Z"},
    {1709164800000, "2024-02-29T00:00:00.000Z"},
    {1769862896789, "2026-01-31T12:34:56.789Z"},
    {2147483647000, "2038-01-19T03:14:07.000Z"},
    {2147483648000, "2038-01-19T03:14:08.000Z"},
    {4107542399999, "2100-02-28T23:59:59.999Z"},
    {4107542400000, "2100-03-01T00:00:00.000Z"},
    {13574563200000, "2400-02-29T00:00:00.000Z"},
    {MIN_TIME, "0000-01-01T00:00:00.000Z"},
    {MAX_TIME, "9999-12-31T23:59:59.999Z"},
};

static void test_format_and_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(exact_times) / sizeof(exact_times[0]); i++) {
        char text[TIME_TEXT_LEN + 1];
        time_format(exact_times[i].t, text);
        assert_string_equal(text, exact_times[i].text);
        wall_ms t;
        assert_int_equal(time_parse(str_from(text), &t, NULL), 0);
        assert_int_equal(t, exact_times[i].t);
    }
}

static void test_format_clamps(void **state)
{
    (void)state;
    char text[TIME_TEXT_LEN + 1];
    time_format(MAX_TIME + 1, text);
    assert_string_equal(text, "9999-12-31T23:59:59.999Z");
    time_format(WALL_MAX, text);
    assert_string_equal(text, "9999-12-31T23:59:59.999Z");
    time_format(MIN_TIME - 1, text);
    assert_string_equal(text, "0000-01-01T00:00:00.000Z");
    time_format(WALL_NONE, text);
    assert_string_equal(text, "0000-01-01T00:00:00.000Z");
}

/* The C library's calendar agrees, from the first year to the last, in steps that visit each day
 * of the year and each part of the day. */
static void test_calendar_agrees_with_libc(void **state)
{
    (void)state;
    for (wall_ms t = MIN_TIME; t <= MAX_TIME; t += 11 * 86400000LL + 12345678) {
        int64_t sub = ((t % 1000) + 1000) % 1000;
        time_t seconds = (t - sub) / 1000;
        struct tm tm;
        char expected[64];
        assert_non_null(gmtime_r(&seconds, &tm));
        snprintf(expected, sizeof(expected), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ",
                 tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                 (int)sub);
        char text[TIME_TEXT_LEN + 1];
        time_format(t, text);
        assert_string_equal(text, expected);
        wall_ms back;
        assert_int_equal(time_parse(str_from(text), &back, NULL), 0);
        assert_int_equal(back, t);
    }
}

static void test_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text, *utc;
    } cases[] = {
        {"2026-01-31T12:34:56Z", "2026-01-31T12:34:56.000Z"},
        {"2026-01-31t12:34:56z", "2026-01-31T12:34:56.000Z"},
        {"2026-01-31 12:34:56Z", "2026-01-31T12:34:56.000Z"},
        {"2026-01-31T12:34:56.7Z", "2026-01-31T12:34:56.700Z"},
        {"2026-01-31T12:34:56.0789999999999999999999Z", "2026-01-31T12:34:56.078Z"},
        {"2026-01-31T12:34:56+00:00", "2026-01-31T12:34:56.000Z"},
        {"2026-01-31T12:34:56-00:00", "2026-01-31T12:34:56.000Z"},
        {"2026-01-31T12:34:56+08:00", "2026-01-31T04:34:56.000Z"},
        {"2026-01-31T22:34:56-03:30", "2026-02-01T02:04:56.000Z"},
        {"2026-01-01T00:00:00+05:45", "2025-12-31T18:15:00.000Z"},
        {"2026-12-31T23:59:59.999-23:59", "2027-01-01T23:58:59.999Z"},
        {"1969-12-31T23:59:59.9Z", "1969-12-31T23:59:59.900Z"},
        {"2016-12-31T23:59:60Z", "2016-12-31T23:59:59.999Z"},
        {"2016-12-31T23:59:60.5Z", "2016-12-31T23:59:59.999Z"},
        {"2017-01-01T05:29:60+05:30", "2016-12-31T23:59:59.999Z"},
        {"1960-06-30T23:59:60Z", "1960-06-30T23:59:59.999Z"},
        {"2000-02-29T00:00:00Z", "2000-02-29T00:00:00.000Z"},
        {"9999-12-31T23:59:59-00:00", "9999-12-31T23:59:59.000Z"},
        {"0000-01-01T00:00:00Z", "0000-01-01T00:00:00.000Z"},
        {"0000-02-29T00:00:00Z", "0000-02-29T00:00:00.000Z"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        wall_ms t;
        char text[TIME_TEXT_LEN + 1];
        if (time_parse(str_from(cases[i].text), &t, &err) != 0)
            fail_msg("%s: %s", cases[i].text, err.text);
        time_format(t, text);
        assert_string_equal(text, cases[i].utc);
    }
}

static void test_parse_refuses(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "",
        "now",
        "2026-01-31",
        "2026-01-31T12:34Z",
        "2026-01-31T12:34:56",
        "2026-01-31T12:34:56.789",
        "2026-01-31T12:34:56.Z",
        "2026-01-31T12:34:56,5Z",
        "2026-01-31T12:34:56 Z",
        "2026-01-31T12:34:56ZZ",
        "2026-01-31T12:34:56Z ",
        " 2026-01-31T12:34:56Z",
        "2026-01-31T12:34:56+0800",
        "2026-01-31T12:34:56+08",
        "2026-01-31T12:34:56+24:00",
        "2026-01-31T12:34:56+08:60",
        "2026-01-31T12:34:56+8:00",
        "2026-01-31T12:34:56 08:00",
        "2026-01-31_12:34:56Z",
        "2026/01/31T12:34:56Z",
        "26-01-31T12:34:56Z",
        "+2026-01-31T12:34:56Z",
        "-2026-01-31T12:34:56Z",
        "12026-01-31T12:34:56Z",
        "2026-1-31T12:34:56Z",
        "2026-00-31T12:34:56Z",
        "2026-13-31T12:34:56Z",
        "2026-01-00T12:34:56Z",
        "2026-01-32T12:34:56Z",
        "2026-04-31T12:34:56Z",
        "2026-02-29T12:34:56Z",
        "2100-02-29T12:34:56Z",
        "1900-02-29T12:34:56Z",
        "2024-02-30T12:34:56Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:60:00Z",
        "2026-01-31T12:34:61Z",
        "2026-01-31T12:34:60Z",
        "2016-12-31T23:59:60+01:00",
        "0000-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "1769862896789",
        "Sat, 31 Jan 2026 12:34:56 GMT",
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        wall_ms t = 77;
        if (time_parse(str_from(cases[i]), &t, &err) != ERR_INVALID)
            fail_msg("accepted \"%s\"", cases[i]);
        assert_int_equal(t, 77);
        assert_true(strlen(err.text) > 10);
    }
    wall_ms t;
    assert_int_equal(time_parse(STR("2026-01-31T12:34:56\0"), &t, NULL), ERR_INVALID);
    assert_int_equal(time_parse(STR("2026-01-31\00012:34:56Z"), &t, NULL), ERR_INVALID);
    assert_int_equal(time_parse((struct str){0}, &t, NULL), ERR_INVALID);
}

static void test_http_date(void **state)
{
    (void)state;
    static const struct {
        const char *text, *utc; /* NULL: refused */
    } cases[] = {
        {"Sun, 06 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37.000Z"},
        {"Sunday, 06-Nov-94 08:49:37 GMT", "1994-11-06T08:49:37.000Z"},
        {"Sun Nov  6 08:49:37 1994", "1994-11-06T08:49:37.000Z"},
        {"Wed Nov 16 08:49:37 1994", "1994-11-16T08:49:37.000Z"},
        {"Tue, 19 Jan 2038 03:14:08 GMT", "2038-01-19T03:14:08.000Z"},
        {"Thu, 29 Feb 2024 00:00:00 GMT", "2024-02-29T00:00:00.000Z"},
        {"Sat, 31 Dec 2016 23:59:60 GMT", "2016-12-31T23:59:59.999Z"},
        {"Friday, 31-Dec-99 23:59:59 GMT", "1999-12-31T23:59:59.000Z"},
        {"Thursday, 01-Jan-26 00:00:00 GMT", "2026-01-01T00:00:00.000Z"},
        {"", NULL},
        {"120", NULL},
        {"Sun", NULL},
        {"Sun, 06 Nov 1994 08:49:37", NULL},
        {"Sun, 06 Nov 1994 08:49:37 UTC", NULL},
        {"Sun, 06 Nov 1994 08:49:37 GMT ", NULL},
        {"Sun, 6 Nov 1994 08:49:37 GMT", NULL},
        {"Sun, 06 Nov 94 08:49:37 GMT", NULL},
        {"Sun, 06 nov 1994 08:49:37 GMT", NULL},
        {"Xxx, 06 Nov 1994 08:49:37 GMT", NULL},
        {"Sun, 31 Feb 1994 08:49:37 GMT", NULL},
        {"Sun, 06 Nov 1994 24:00:00 GMT", NULL},
        {"Sunday, 06-Nov-1994 08:49:37 GMT", NULL},
        {"Sun Nov 06 08:49:37 94", NULL},
        {"Sun Nov 6 08:49:37 1994", NULL},
        {"2026-01-31T12:34:56Z", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        wall_ms t = 77;
        int rc = http_date_parse(str_from(cases[i].text), clock_wall(), &t);
        if (rc != (cases[i].utc ? 0 : ERR_INVALID))
            fail_msg("\"%s\"", cases[i].text);
        char text[TIME_TEXT_LEN + 1];
        time_format(t, text);
        assert_string_equal(text, cases[i].utc ? cases[i].utc : "1970-01-01T00:00:00.077Z");
    }
}

/* Two digits of a year stand for the one that is not more than 50 years ahead. */
static void test_http_date_century(void **state)
{
    (void)state;
    char today[TIME_TEXT_LEN + 1];
    time_format(clock_wall(), today);
    int this_year = 0;
    sscanf(today, "%4d", &this_year);
    for (int yy = 0; yy < 100; yy++) {
        char date[64];
        wall_ms t;
        snprintf(date, sizeof(date), "Monday, 01-Jul-%02d 00:00:00 GMT", yy);
        assert_int_equal(http_date_parse(str_from(date), clock_wall(), &t), 0);
        char text[TIME_TEXT_LEN + 1];
        time_format(t, text);
        int year = 0;
        sscanf(text, "%4d", &year);
        assert_int_equal(year % 100, yy);
        assert_true(year <= this_year + 50);
        assert_true(year > this_year - 50 || year / 100 == this_year / 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format_and_back),
        cmocka_unit_test(test_format_clamps),
        cmocka_unit_test(test_calendar_agrees_with_libc),
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_parse_refuses),
        cmocka_unit_test(test_http_date),
        cmocka_unit_test(test_http_date_century),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
