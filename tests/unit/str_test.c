/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/str.h"

static void test_equality(void **state)
{
    (void)state;
    struct str absent = str_from(NULL);
    assert_null(absent.p);
    assert_true(str_eq(absent, absent));
    assert_false(str_eq(absent, STR("")));
    assert_false(str_eq(STR(""), absent));
    assert_true(str_eq(STR(""), str_from("")));
    assert_true(str_eq(STR("a\0b"), STR("a\0b")));
    assert_false(str_eq(STR("a\0b"), STR("a\0c")));
    assert_false(str_eq(STR("A4qD329"), STR("A4qd329")));
    assert_true(str_eqz(STR("abc"), "abc"));
    assert_false(str_eqz(STR("abc"), "abcd"));
    assert_false(str_eqz(STR("abc"), NULL));
}

static void test_order(void **state)
{
    (void)state;
    assert_int_equal(str_cmp(STR("a"), STR("a")), 0);
    assert_true(str_cmp(STR("a"), STR("b")) < 0);
    assert_true(str_cmp(STR("b"), STR("a")) > 0);
    assert_true(str_cmp(STR("a"), STR("ab")) < 0);
    assert_true(str_cmp(STR("ab"), STR("a")) > 0);
    assert_true(str_cmp(STR("\xC3\xA4"), STR("z")) > 0);
    assert_int_equal(str_cmp(STR(""), (struct str){0}), 0);
}

static void test_utf8_valid(void **state)
{
    (void)state;
    static const struct {
        struct str s;
        bool valid;
    } cases[] = {
        {{"", 0}, true},
        {{"plain\x7F", 6}, true},
        {{"\0", 1}, true},
        {{"\xC2\x80", 2}, true},
        {{"\xDF\xBF", 2}, true},
        {{"\xE0\xA0\x80", 3}, true},
        {{"\xED\x9F\xBF", 3}, true},
        {{"\xEE\x80\x80", 3}, true},
        {{"\xEF\xBF\xBF", 3}, true},
        {{"\xF0\x90\x80\x80", 4}, true},
        {{"\xF4\x8F\xBF\xBF", 4}, true},
        {{"\x80", 1}, false},
        {{"\xBF", 1}, false},
        {{"\xC0\x80", 2}, false}, /* overlong */
        {{"\xC1\xBF", 2}, false},
        {{"\xE0\x9F\xBF", 3}, false},
        {{"\xF0\x8F\xBF\xBF", 4}, false},
        {{"\xED\xA0\x80", 3}, false}, /* surrogates */
        {{"\xED\xBF\xBF", 3}, false},
        {{"\xF4\x90\x80\x80", 4}, false}, /* above U+10FFFF */
        {{"\xF5\x80\x80\x80", 4}, false},
        {{"\xFF", 1}, false},
        {{"\xC2", 1}, false}, /* ends inside a character */
        {{"\xE2\x82", 2}, false},
        {{"\xF0\x9F\x98", 3}, false},
        {{"\xC2"
          "a",
          2},
         false},
        {{"\xE2\x82"
          "a",
          3},
         false},
        {{"\xF0\x9F\x98"
          "a",
          4},
         false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (utf8_valid(cases[i].s) != cases[i].valid)
            fail_msg("case %zu", i);
    }
}

/* Every code point, encoded by the definition, decodes to itself; nothing shorter does. */
static void test_utf8_step_on_all_code_points(void **state)
{
    (void)state;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c <= 0xDFFF)
            continue;
        char p[4];
        size_t n;
        if (c < 0x80) {
            n = 1;
            p[0] = (char)c;
        } else if (c < 0x800) {
            n = 2;
            p[0] = (char)(0xC0 | c >> 6);
        } else if (c < 0x10000) {
            n = 3;
            p[0] = (char)(0xE0 | c >> 12);
        } else {
            n = 4;
            p[0] = (char)(0xF0 | c >> 18);
        }
        for (size_t i = 1; i < n; i++)
            p[i] = (char)(0x80 | (c >> 6 * (n - 1 - i) & 0x3F));
        uint32_t got;
        assert_int_equal(utf8_step((struct str){p, n}, &got), n);
        assert_int_equal(got, c);
        if (n > 1) {
            assert_int_equal(utf8_step((struct str){p, n - 1}, &got), n - 1);
            assert_int_equal(got, UTF8_BAD);
        }
    }
}

static void test_utf8_cut(void **state)
{
    (void)state;
    struct str s = STR("a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80z");
    static const size_t expected[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
    for (size_t max = 0; max < sizeof(expected) / sizeof(expected[0]); max++)
        assert_int_equal(utf8_cut(s, max), expected[max]);
    /* Ill-formed bytes stay: there is no character to keep whole. */
    assert_int_equal(utf8_cut(STR("\x80\x80\x80\x80\x80"), 4), 4);
    assert_int_equal(utf8_cut(STR("\xFF\xFF"), 1), 1);
}

static void test_utf8_has_control(void **state)
{
    (void)state;
    assert_false(utf8_has_control(STR("")));
    assert_false(utf8_has_control(STR("a b\xC2\xA0\xE2\x80\xA7\xE2\x80\xAA")));
    assert_true(utf8_has_control(STR("a\0b")));
    assert_true(utf8_has_control(STR("a\tb")));
    assert_true(utf8_has_control(STR("a\x1F")));
    assert_true(utf8_has_control(STR("\x7F")));
    assert_true(utf8_has_control(STR("\xC2\x80")));
    assert_true(utf8_has_control(STR("\xC2\x9F")));
    assert_true(utf8_has_control(STR("x\xE2\x80\xA8")));
    assert_true(utf8_has_control(STR("x\xE2\x80\xA9")));
}

static void test_utf8_has_edge_space(void **state)
{
    (void)state;
    static const char *const spaces[] = {"\t",           "\n",           "\v",
                                         "\f",           "\r",           " ",
                                         "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80",
                                         "\xE2\x80\x80", "\xE2\x80\x8A", "\xE2\x80\xA8",
                                         "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F",
                                         "\xE3\x80\x80"};
    for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
        char text[16];
        assert_true(utf8_has_edge_space(str_from(spaces[i])));
        snprintf(text, sizeof(text), "%sbar", spaces[i]);
        assert_true(utf8_has_edge_space(str_from(text)));
        snprintf(text, sizeof(text), "bar%s", spaces[i]);
        assert_true(utf8_has_edge_space(str_from(text)));
        snprintf(text, sizeof(text), "b%sr", spaces[i]);
        assert_false(utf8_has_edge_space(str_from(text)));
    }
    assert_false(utf8_has_edge_space(STR("")));
    assert_false(utf8_has_edge_space(STR("\xE2\x80\x8B"
                                         "bar\xE6\xB1\x89")));
    assert_false(utf8_has_edge_space(STR("\xF0\x9F\x98\x80")));
}

static void check_clean(struct str src, size_t cap, const char *expected)
{
    char dst[64];
    memset(dst, '#', sizeof(dst));
    assert_int_equal(utf8_clean(dst, cap, src), strlen(expected));
    assert_string_equal(dst, expected);
    for (size_t i = cap; i < sizeof(dst); i++)
        assert_int_equal(dst[i], '#');
}

static void test_utf8_clean(void **state)
{
    (void)state;
    check_clean(STR("plain \xE6\xB1\x89"), 60, "plain \xE6\xB1\x89");
    check_clean(STR("a\tb\nc\rd"), 60, "a b c d");
    check_clean(STR("a\0b\x1B[c\x7F"), 60,
                "a\xEF\xBF\xBD"
                "b\xEF\xBF\xBD[c\xEF\xBF\xBD");
    check_clean(STR("\xC2\x9B|\xE2\x80\xA8|\xC2\x85"), 60, "\xEF\xBF\xBD| | ");
    /* One replacement for each maximal part of a character. */
    check_clean(STR("\xF0\x9F\x98"
                    "a"),
                60,
                "\xEF\xBF\xBD"
                "a");
    check_clean(STR("\xED\xA0\x80"), 60, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    check_clean(STR("\xFF\xFE"), 60, "\xEF\xBF\xBD\xEF\xBF\xBD");
    check_clean(STR("\xE2\x82"), 60, "\xEF\xBF\xBD");
    check_clean((struct str){0}, 60, "");
}

static void test_utf8_clean_cuts(void **state)
{
    (void)state;
    check_clean(STR("abc"), 1, "");
    check_clean(STR("abc"), 3, "ab");
    check_clean(STR("abc"), 4, "abc");
    check_clean(STR("a\xF0\x9F\x98\x80"), 5, "a");
    check_clean(STR("a\xF0\x9F\x98\x80"), 6, "a\xF0\x9F\x98\x80");
    check_clean(STR("a\xFF"), 4, "a");
    check_clean(STR("a\xFF"), 5, "a\xEF\xBF\xBD");
    /* What comes behind the cut is left out even if it would fit. */
    check_clean(STR("ab\xF0\x9F\x98\x80"
                    "c"),
                6, "ab");
}

static void test_name_valid(void **state)
{
    (void)state;
    assert_true(name_valid(STR("order-service_2.v1"), 128));
    assert_true(name_valid(STR("AZaz09"), 6));
    assert_false(name_valid(STR("AZaz09"), 5));
    assert_false(name_valid(STR(""), 128));
    assert_false(name_valid((struct str){0}, 128));
    assert_false(name_valid(STR("a b"), 128));
    assert_false(name_valid(STR("a/b"), 128));
    assert_false(name_valid(STR("a\0"), 128));
    assert_false(name_valid(STR("\xC3\xA4"), 128));
    assert_false(name_valid(STR("."), 128));
    assert_false(name_valid(STR(".."), 128));
    assert_true(name_valid(STR("..."), 128));
    assert_true(name_valid(STR(".a"), 128));
    assert_true(name_valid(STR("a."), 128));
}

static void test_characters(void **state)
{
    static const char name_chars[] =
        "-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    (void)state;
    for (int c = 0; c < 256; c++) {
        const char *at = c ? strchr(digits, c) : NULL;
        assert_int_equal(hex_digit((char)c), at ? (at - digits) % 16 : -1);
        assert_int_equal(name_char_valid((char)c), c && strchr(name_chars, c));
    }
}

static void test_to_i64(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"007", true, 7},
        {"42", true, 42},
        {"-42", true, -42},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"18446744073709551616", false, 0},
        {"99999999999999999999999999", false, 0},
        {"", false, 0},
        {"-", false, 0},
        {"+1", false, 0},
        {" 1", false, 0},
        {"1 ", false, 0},
        {"1.0", false, 0},
        {"0x10", false, 0},
        {"--1", false, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t v = 12345;
        bool ok = str_to_i64(str_from(cases[i].text), &v);
        if (ok != cases[i].ok || v != (ok ? cases[i].value : 12345))
            fail_msg("\"%s\"", cases[i].text);
    }
    int64_t v = 5;
    assert_false(str_to_i64((struct str){0}, &v));
    assert_int_equal(v, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equality),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_utf8_valid),
        cmocka_unit_test(test_utf8_step_on_all_code_points),
        cmocka_unit_test(test_utf8_cut),
        cmocka_unit_test(test_utf8_has_control),
        cmocka_unit_test(test_utf8_has_edge_space),
        cmocka_unit_test(test_utf8_clean),
        cmocka_unit_test(test_utf8_clean_cuts),
        cmocka_unit_test(test_name_valid),
        cmocka_unit_test(test_characters),
        cmocka_unit_test(test_to_i64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
