/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/dispatch/sign.h"

/* Expected signatures come from the reference library of Standard Webhooks for Python, except that
 * of the plain text, which is `openssl dgst -sha256 -hmac`. */
static void test_known_signatures(void **state)
{
    (void)state;
    static const struct {
        struct str secret;
        const char *signature;
    } cases[] = {
        {STR("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
         "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
        {STR("whsec_AAECAwQFBgcICQoLDA0ODw=="), "v1,YA6MmMhwztQQnjVT5s7VnIJrrIpIRYrxFLdJ8TxT/KM="},
        {STR("whsec_AAECAwQFBgcICQoLDA0ODw"), "v1,YA6MmMhwztQQnjVT5s7VnIJrrIpIRYrxFLdJ8TxT/KM="},
        {STR("correct horse battery"), "v1,pPIgdJy3CDuBs0MgnEyBkix5Cq5/cjjYGhSIhiEF8eM="},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[SIGN_TEXT_MAX];
        assert_int_equal(sign_check_secret(cases[i].secret, NULL), 0);
        assert_int_equal(sign_webhook(cases[i].secret, STR("msg_p5jXN8AQM9LWM0D4loKWxJek"),
                                      1614265330, STR("{\"test\": 2432232314}"), text),
                         0);
        assert_string_equal(text, cases[i].signature);
    }
}

static void test_every_part_counts(void **state)
{
    (void)state;
    static const struct str secret = STR("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    char text[5][SIGN_TEXT_MAX];

    assert_int_equal(sign_webhook(secret, STR("a"), 1, STR("b"), text[0]), 0);
    assert_int_equal(sign_webhook(secret, STR("x"), 1, STR("b"), text[1]), 0);
    assert_int_equal(sign_webhook(secret, STR("a"), 2, STR("b"), text[2]), 0);
    assert_int_equal(sign_webhook(secret, STR("a"), 1, STR("x"), text[3]), 0);
    assert_int_equal(sign_webhook(secret, STR("a"), 1, STR(""), text[4]), 0);
    for (int i = 1; i < 5; i++)
        assert_string_not_equal(text[0], text[i]);
}

static void check(const char *prefix, char fill, size_t n, bool allowed)
{
    char secret[512];
    struct err err = {0};
    size_t len = strlen(prefix);

    memcpy(secret, prefix, len);
    memset(secret + len, fill, n);
    int rc = sign_check_secret((struct str){secret, len + n}, &err);
    assert_int_equal(rc, allowed ? 0 : ERR_INVALID);
    assert_int_equal(strstr(err.text, "16 to 64 bytes") != NULL, !allowed);
}

static void test_lengths(void **state)
{
    (void)state;
    check("", 'x', 15, false);
    check("", 'x', 16, true);
    check("", 'x', 128, true);
    check("", 'x', 129, false);
    check("whsec_", 'A', 20, false); /* 15 bytes */
    check("whsec_", 'A', 21, false); /* no length of base64 */
    check("whsec_", 'A', 22, true);
    check("whsec_", 'A', 86, true); /* 64 bytes */
    check("whsec_", 'A', 87, false);
    check("whsec_", 'A', 300, false);
}

static void test_refused_secrets(void **state)
{
    (void)state;
    static const struct str bad[] = {
        STR(""),
        STR("whsec_"),
        STR("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS=="),  /* wrong padding */
        STR("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw=="), /* padding too many */
        STR("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaL-_w"),   /* base64url */
        STR("whsec_MfKQ9r8GKYqr TwjUPD8ILPZIo2LaLaSw"),
        STR("whsec_MfKQ9r8G=YqrTwjUPD8ILPZIo2LaLaSw"),
        STR("a line end \n in a secret"),
        STR(" a space before the secret"),
        STR("not UTF-8: \xFF\xFE\xFD\xFC\xFB"),
    };
    char text[SIGN_TEXT_MAX] = "untouched";

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(sign_check_secret(bad[i], NULL), ERR_INVALID);
        assert_int_equal(sign_webhook(bad[i], STR("a"), 1, STR("b"), text), ERR_INVALID);
    }
    assert_string_equal(text, "untouched");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_signatures),
        cmocka_unit_test(test_every_part_counts),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_refused_secrets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
