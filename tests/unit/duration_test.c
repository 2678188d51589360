/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/ids.h"
#include "common/timefmt.h"

static void test_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t ms;
    } cases[] = {
        {"0", 0},
        {"0s", 0},
        {"90", 90000},
        {"0.5", 500},
        {"0.0001", 1},
        {"1.0000000000000000000000000001", 1001},
        {"500ms", 500},
        {"30s", 30000},
        {"30m", 1800000},
        {"1h30m", 5400000},
        {"1.5h", 5400000},
        {"1h0.5m", 3630000},
        {"2d", 172800000},
        {"1w", 604800000},
        {"1w2d3h4m5s6ms", 788645006},
        {"1s500ms", 1500},
        {"0.1ms", 1},
        {"1.9ms", 2},
        {"0.333s", 333},
        {"0.3335s", 334},
        {"100000m", 6000000000},
        {"036500d", 3153600000000},
        {"PT30M", 1800000},
        {"P1DT2H", 93600000},
        {"P1D", 86400000},
        {"P2W", 1209600000},
        {"P1W1D", 691200000},
        {"PT0S", 0},
        {"PT1.5S", 1500},
        {"PT0.0005S", 1},
        {"PT1,25S", 1250},
        {"PT0.5H", 1800000},
        {"PT36H", 129600000},
        {"PT1H30M15S", 5415000},
        {"P0.5D", 43200000},
        {"3155760000", 3155760000000},
        {"3155760000000ms", 3155760000000},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        int64_t ms = -1;
        int rc = duration_parse(str_from(cases[i].text), &ms, &err);
        if (rc != 0 || ms != cases[i].ms)
            fail_msg("%s: %d, %lld, %s", cases[i].text, rc, (long long)ms, err.text);
    }
}

static const char *const refused[] = {
    "",
    " ",
    "abc",
    "s",
    "ms",
    "-1",
    "-1s",
    "-PT1S",
    "P-1D",
    "PT-1S",
    "+1s",
    " 1s",
    "1s ",
    "1 s",
    "1h 30m",
    "1x",
    "1S",
    "1H",
    "1M",
    "1min",
    "1sec",
    "1us",
    "1ns",
    "1y",
    "1mo",
    ".5",
    ".5s",
    "5.",
    "5.s",
    "1.s5",
    "1..5s",
    "1,5s",
    "1.5.5s",
    "1e3",
    "1e3s",
    "0x10",
    "NaN",
    "inf",
    /* Units fall, each at most once, and a fraction is the last. */
    "30m1h",
    "1h1h",
    "1s1s",
    "1ms1s",
    "1.5h30m",
    "1h30",
    "90s5",
    /* ISO 8601. */
    "P",
    "PT",
    "P1",
    "PT1",
    "P1DT",
    "P1Y",
    "P1M",
    "P1Y2M",
    "P1H",
    "P1S",
    "PT1D",
    "PT1W",
    "P1D2H",
    "PT1S1M",
    "PT1H1H",
    "P1.5DT1H",
    "PT1.5H1M",
    "PT.5S",
    "PT1.S",
    "pt30m",
    "Pt30m",
    "PT30m",
    "P1D ",
    "PPT1S",
    "PTT1S",
    "PT1ST",
    "PT1M1DT1S",
    "P30s",
    "30sPT1S",
    /* Above 100 years, however it is written. */
    "3155760000.001",
    "3155760000001ms",
    "3155760001",
    "36526d",
    "5219w",
    "876601h",
    "99999999999999999999999999999999999999w",
    "9223372036854775808ms",
    "9223372036854775807s",
    "18446744073709551616s",
    "P36526D",
    "PT9999999999999999H",
    "36525d1ms",
    "P36525DT0.001S",
};

static void test_parse_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct err err = {0};
        int64_t ms = -77;
        if (duration_parse(str_from(refused[i]), &ms, &err) != ERR_INVALID)
            fail_msg("accepted \"%s\" as %lld", refused[i], (long long)ms);
        assert_int_equal(ms, -77);
        assert_true(strlen(err.text) > 10);
    }
    int64_t ms;
    assert_int_equal(duration_parse(STR("1s\0"), &ms, NULL), ERR_INVALID);
    assert_int_equal(duration_parse(STR("1\0"
                                        "5"),
                                    &ms, NULL),
                     ERR_INVALID);
    assert_int_equal(duration_parse((struct str){0}, &ms, NULL), ERR_INVALID);
}

/* Ends exactly where the text does, so that a look beyond it is noticed. */
static void test_reads_no_further_than_the_text(void **state)
{
    (void)state;
    struct str text = STR("P1W2DT3H4M5.25S");
    for (size_t len = 1; len <= text.len; len++) {
        char *copy = malloc(len);
        assert_non_null(copy);
        memcpy(copy, text.p, len);
        int64_t ms = 0;
        bool whole = copy[len - 1] != 'P' && copy[len - 1] != 'T' && copy[len - 1] != '.' &&
                     (copy[len - 1] < '0' || copy[len - 1] > '9');
        int rc = duration_parse((struct str){copy, len}, &ms, NULL);
        assert_int_equal(rc, whole ? 0 : ERR_INVALID);
        free(copy);
    }
}

static void test_format(void **state)
{
    (void)state;
    static const struct {
        int64_t ms;
        const char *text;
    } cases[] = {
        {0, "0s"},
        {1, "1ms"},
        {999, "999ms"},
        {1500, "1s500ms"},
        {60000, "1m"},
        {90000, "1m30s"},
        {5400000, "1h30m"},
        {86400000, "1d"},
        {604800000, "7d"},
        {788645006, "9d3h4m5s6ms"},
        {3600001, "1h1ms"},
        {-1500, "-1s500ms"},
        {INT64_MAX, "106751991167d7h12m55s807ms"},
        {INT64_MIN, "-106751991167d7h12m55s808ms"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[DURATION_TEXT_LEN + 1];
        duration_format(cases[i].ms, text);
        assert_string_equal(text, cases[i].text);
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    struct rng rng = {17};
    for (int i = 0; i < 20000; i++) {
        int64_t ms = (int64_t)rng_below(&rng, (uint64_t)1 << rng_below(&rng, 41));
        char text[DURATION_TEXT_LEN + 1];
        int64_t back = -1;
        duration_format(ms, text);
        assert_int_equal(duration_parse(str_from(text), &back, NULL), 0);
        assert_int_equal(back, ms);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_parse_refuses),
        cmocka_unit_test(test_reads_no_further_than_the_text),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
