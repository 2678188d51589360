/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"

static void test_empty(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    assert_true(buf_ok(&b));
    assert_true(str_eq(buf_str(&b), STR("")));
    buf_add(&b, NULL, 0);
    buf_adds(&b, (struct str){0});
    assert_null(b.data);
    buf_fini(&b);
    buf_fini(NULL);
}

static void test_append(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_add(&b, "a\0b", 3);
    buf_adds(&b, STR("cd"));
    buf_addz(&b, "ef");
    buf_addc(&b, 'g');
    buf_addf(&b, "%d-%s", 7, "h");
    assert_true(str_eq(buf_str(&b), STR("a\0bcdefg7-h")));
    buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_non_null(b.data);
    buf_fini(&b);
    assert_null(b.data);
}

static void test_growth_keeps_content(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    for (int i = 0; i < 100000; i++)
        buf_addc(&b, (char)(i % 251));
    assert_true(buf_ok(&b));
    assert_int_equal(b.len, 100000);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(b.data[i], (char)(i % 251));
    buf_fini(&b);
}

static void test_format_longer_than_room(void **state)
{
    (void)state;
    /* All lengths around the first capacity, so that the text just fits and just does not. */
    for (int len = 0; len < 200; len++) {
        struct buf b = BUF_INIT;
        buf_addc(&b, '[');
        buf_addf(&b, "%*s", len, "");
        buf_addc(&b, ']');
        assert_int_equal(b.len, len + 2);
        assert_int_equal(b.data[len], len ? ' ' : '[');
        assert_int_equal(b.data[len + 1], ']');
        buf_fini(&b);
    }
}

static void test_integers(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    static const int64_t values[] = {0, 7, -7, 10, 1000000007, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        buf_addi(&b, values[i]);
        buf_addc(&b, ' ');
    }
    assert_true(str_eqz(buf_str(&b), "0 7 -7 10 1000000007 9223372036854775807 "
                                     "-9223372036854775808 "));
    buf_fini(&b);
}

static void test_failure_sticks(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_addz(&b, "kept");
    assert_null(buf_room(&b, SIZE_MAX));
    assert_false(buf_ok(&b));
    buf_addz(&b, "lost");
    buf_addc(&b, 'x');
    buf_addf(&b, "%d", 1);
    buf_addi(&b, 1);
    assert_null(buf_room(&b, 1));
    assert_true(str_eqz(buf_str(&b), "kept"));
    buf_clear(&b);
    assert_true(buf_ok(&b));
    buf_addz(&b, "new");
    assert_true(str_eqz(buf_str(&b), "new"));
    buf_fini(&b);
}

static void test_room(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    for (size_t n = 0; n < 300; n++) {
        char *p = buf_room(&b, n);
        assert_non_null(p);
        memset(p, 'r', n);
        b.len += n;
        assert_true(b.len <= b.cap);
    }
    assert_int_equal(b.len, 299 * 300 / 2);
    buf_fini(&b);
}

static void test_steal(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    char *z = buf_steal(&b);
    assert_string_equal(z, "");
    free(z);
    buf_addz(&b, "mine");
    z = buf_steal(&b);
    assert_string_equal(z, "mine");
    free(z);
    assert_null(b.data);
    assert_int_equal(b.len, 0);
    buf_addz(&b, "gone");
    assert_null(buf_room(&b, SIZE_MAX));
    assert_null(buf_steal(&b));
    assert_null(b.data);
    assert_true(buf_ok(&b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_growth_keeps_content),
        cmocka_unit_test(test_format_longer_than_room),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_failure_sticks),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_steal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
