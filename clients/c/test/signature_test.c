/* SPDX-License-Identifier: Apache-2.0 */
#include "signature.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "rig.h"

#define NOW 1769860800
#define BODY "{\"a\":1}"

/* The specification's own example. */
static void the_reference_vector(void **state)
{
    static const char body[] = "{\"test\": 2432232314}";
    struct jfx_signature s = {"msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330",
                              "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="};
    struct jfx_key key;
    (void)state;

    assert_true(jfx_key_read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", &key));
    assert_int_equal(key.len, 24);
    assert_null(jfx_signature_refusal(&s, body, strlen(body), &key, 1, 1614265330, 300));
    assert_string_equal(jfx_signature_refusal(&s, body, strlen(body) - 1, &key, 1, 1614265330, 300),
                        "the signature is wrong");
}

/* With keys "…-1" and "…-2", a request signed by `secret` at NOW + age. */
static const char *refusal(const char *secret, int64_t age, const char *prefix)
{
    struct jfx_key keys[2];
    char timestamp[32];
    char right[128];
    char header[512];

    assert_true(jfx_key_read("the secret number-1", &keys[0]));
    assert_true(jfx_key_read("the secret number-2", &keys[1]));
    (void)snprintf(timestamp, sizeof(timestamp), "%lld", (long long)(NOW + age));
    rig_sign(right, sizeof(right), secret, strlen(secret), RIG_TRACE, timestamp, BODY);
    (void)snprintf(header, sizeof(header), "%s%s", prefix, right);
    struct jfx_signature s = {RIG_TRACE, timestamp, header};
    return jfx_signature_refusal(&s, BODY, strlen(BODY), keys, 2, NOW, 300);
}

static void either_key_will_do(void **state)
{
    (void)state;
    assert_null(refusal("the secret number-1", 0, ""));
    assert_null(refusal("the secret number-2", 0, ""));
    assert_string_equal(refusal("the secret number-3", 0, ""), "the signature is wrong");
}

static void any_signature_of_the_header_will_do(void **state)
{
    char long_one[512] = "";
    (void)state;

    assert_null(refusal("the secret number-2", 0, "v1a,AAAA  v1,AAAA v1, "));
    for (int i = 0; i < 16; i++)
        strcat(long_one, "v1,AAAA ");
    assert_string_equal(refusal("the secret number-2", 0, long_one), "the signature is wrong");
}

static void time_is_bounded_on_both_sides(void **state)
{
    static const char late[] = "the signature is too old, or from the future";
    (void)state;

    assert_null(refusal("the secret number-1", -300, ""));
    assert_null(refusal("the secret number-1", 300, ""));
    assert_string_equal(refusal("the secret number-1", -301, ""), late);
    assert_string_equal(refusal("the secret number-1", 301, ""), late);
}

static void each_header_is_needed_and_signed(void **state)
{
    struct jfx_key key;
    char right[128];
    (void)state;

    assert_true(jfx_key_read("the secret number-1", &key));
    rig_sign(right, sizeof(right), "the secret number-1", 19, RIG_TRACE, "1769860800", BODY);
    static const char *const bad_times[] = {
        "", "-1", "1769860801", "1769860800 ", "1e9", "99999999999999999999"};
    struct jfx_signature ok = {RIG_TRACE, "1769860800", right};
    assert_null(jfx_signature_refusal(&ok, BODY, strlen(BODY), &key, 1, NOW, 300));
    for (int missing = 0; missing < 3; missing++) {
        struct jfx_signature s = ok;
        *(const char **[]){&s.id, &s.timestamp, &s.signatures}[missing] = NULL;
        assert_string_equal(jfx_signature_refusal(&s, BODY, strlen(BODY), &key, 1, NOW, 300),
                            "the request is not signed");
    }
    for (size_t i = 0; i < sizeof(bad_times) / sizeof(bad_times[0]); i++) {
        struct jfx_signature s = ok;
        s.timestamp = bad_times[i];
        assert_non_null(jfx_signature_refusal(&s, BODY, strlen(BODY), &key, 1, NOW, 300));
    }
    struct jfx_signature other = ok;
    other.id = "00000000000000080123456789abcdef";
    assert_non_null(jfx_signature_refusal(&other, BODY, strlen(BODY), &key, 1, NOW, 300));
}

static void secrets_are_checked(void **state)
{
    struct jfx_key key;
    char text[JFX_KEY_MAX + 2] = "";
    (void)state;

    assert_false(jfx_key_read("", &key));
    assert_false(jfx_key_read("fifteen bytes..", &key));
    assert_true(jfx_key_read("sixteen bytes...", &key));
    memset(text, 'x', JFX_KEY_MAX);
    assert_true(jfx_key_read(text, &key));
    text[JFX_KEY_MAX] = 'x';
    assert_false(jfx_key_read(text, &key));
    assert_false(jfx_key_read("whsec_", &key));
    assert_false(jfx_key_read("whsec_AAAA", &key));
    assert_false(jfx_key_read("whsec_AAAAAAAAAAAAAAAAAAAAA*==", &key));
    assert_false(jfx_key_read("whsec_AAAAAAAAAAAAAAAAAAAAAA=", &key));
    assert_true(jfx_key_read("whsec_AAAAAAAAAAAAAAAAAAAAAA", &key)); /* without its padding */
    assert_true(jfx_key_read("whsec_AAAAAAAAAAAAAAAAAAAAAA==", &key));
    assert_int_equal(key.len, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_vector),
        cmocka_unit_test(either_key_will_do),
        cmocka_unit_test(any_signature_of_the_header_will_do),
        cmocka_unit_test(time_is_bounded_on_both_sides),
        cmocka_unit_test(each_header_is_needed_and_signed),
        cmocka_unit_test(secrets_are_checked),
    };

    return cmocka_run_group_tests_name("clients/signature", tests, NULL, NULL);
}
