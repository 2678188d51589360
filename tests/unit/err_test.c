/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/str.h"

static void test_set_returns_code(void **state)
{
    (void)state;
    struct err err = {0};
    assert_int_equal(err_set(&err, ERR_INVALID, "field %s is %d", "a", 7), ERR_INVALID);
    assert_string_equal(err.text, "field a is 7");
    assert_int_equal(err_set(NULL, ERR_BUSY, "%s", "ignored"), ERR_BUSY);
}

static void test_set_may_use_its_own_text(void **state)
{
    (void)state;
    struct err err = {0};
    err_set(&err, ERR_IO, "inner");
    err_set(&err, ERR_IO, "outer %s again %s", err.text, err.text);
    assert_string_equal(err.text, "outer inner again inner");
}

static void test_long_text_is_cut_on_a_character(void **state)
{
    (void)state;
    /* Each shift puts the limit at another byte of a character. */
    for (int shift = 0; shift < 4; shift++) {
        char text[1024] = "";
        memset(text, 'x', (size_t)shift);
        for (int i = 0; i < 200; i++)
            strcat(text, "\xF0\x9F\x98\x80");
        struct err err;
        err_set(&err, ERR_INVALID, "%s", text);
        size_t len = strlen(err.text);
        assert_true(utf8_valid(str_from(err.text)));
        assert_in_range(len, sizeof(err.text) - 4, sizeof(err.text) - 1);
        assert_memory_equal(err.text, text, len);
    }
}

static void test_wrap_prefixes(void **state)
{
    (void)state;
    struct err err = {0};
    err_set(&err, ERR_INVALID, "no digits");
    err_wrap(&err, "field %s", "delay");
    err_wrap(&err, "task %d", 3);
    assert_string_equal(err.text, "task 3: field delay: no digits");
    err_wrap(NULL, "ignored");
}

static void test_wrap_cuts(void **state)
{
    (void)state;
    struct err err = {0};
    for (int i = 0; i < 100; i++) {
        err_wrap(&err, "\xE6\xB1\x89\xE5\xAD\x97");
        assert_true(utf8_valid(str_from(err.text)));
    }
    assert_in_range(strlen(err.text), sizeof(err.text) - 4, sizeof(err.text) - 1);
}

static void test_names(void **state)
{
    (void)state;
    for (int a = 0; a >= ERR_SHUTDOWN; a--) {
        assert_string_not_equal(err_name(a), "unknown");
        for (int b = 0; b > a; b--)
            assert_string_not_equal(err_name(a), err_name(b));
    }
    assert_string_equal(err_name(0), "ok");
    assert_string_equal(err_name(ERR_UNAVAILABLE), "unavailable");
    assert_string_equal(err_name(ERR_SHUTDOWN - 1), "unknown");
    assert_string_equal(err_name(1), "unknown");
    assert_string_equal(err_name(INT32_MIN), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_returns_code),
        cmocka_unit_test(test_set_may_use_its_own_text),
        cmocka_unit_test(test_long_text_is_cut_on_a_character),
        cmocka_unit_test(test_wrap_prefixes),
        cmocka_unit_test(test_wrap_cuts),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
