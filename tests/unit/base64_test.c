/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base64.h"

static void check_pair(struct str bytes, const char *text)
{
    struct buf b = BUF_INIT;

    base64_encode(bytes, &b);
    assert_true(buf_ok(&b));
    assert_true(str_eqz(buf_str(&b), text));
    buf_clear(&b);
    assert_true(base64_decode(str_from(text), &b));
    assert_int_equal(str_cmp(buf_str(&b), bytes), 0);
    buf_fini(&b);
}

/* RFC 4648, section 10, and what takes the last two digits. */
static void test_vectors(void **state)
{
    (void)state;
    check_pair(STR(""), "");
    check_pair(STR("f"), "Zg==");
    check_pair(STR("fo"), "Zm8=");
    check_pair(STR("foo"), "Zm9v");
    check_pair(STR("foob"), "Zm9vYg==");
    check_pair(STR("fooba"), "Zm9vYmE=");
    check_pair(STR("foobar"), "Zm9vYmFy");
    check_pair(STR("\xFB\xFF\xFE"), "+//+");
    check_pair(STR("\0\0"), "AAA=");
}

static void test_all_bytes_come_back(void **state)
{
    char bytes[256];
    struct buf text = BUF_INIT;
    struct buf back = BUF_INIT;

    (void)state;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)i;
    for (size_t len = 0; len <= sizeof(bytes); len++) {
        buf_clear(&text);
        buf_clear(&back);
        base64_encode((struct str){bytes, len}, &text);
        assert_int_equal(text.len, (len + 2) / 3 * 4);
        assert_true(base64_decode(buf_str(&text), &back));
        assert_int_equal(back.len, len);
        assert_true(len == 0 || !memcmp(back.data, bytes, len));
    }
    buf_fini(&text);
    buf_fini(&back);
}

static void test_ill_formed_is_refused(void **state)
{
    static const char *const bad[] = {
        "Z",    "Zg",       "Zg=",      "Zm9",      "====",    "=m9v", "Z===",
        "Zg=v", "Zg==Zg==", "Zm9v\n",   " Zm9",     "Zm9-",    "Zm_v", "Zh==",
        "Zm9=", "Zm9vZg=",  "Zm9v Zm9", "Zm9vZm9=", "\xFFm9v",
    };
    struct buf b = BUF_INIT;

    (void)state;
    buf_addz(&b, "kept");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(base64_decode(str_from(bad[i]), &b));
    assert_true(str_eqz(buf_str(&b), "kept"));
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_all_bytes_come_back),
        cmocka_unit_test(test_ill_formed_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
