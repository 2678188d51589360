/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/json.h"

static void test_find(void **state)
{
    (void)state;
    struct json_doc doc = JSON_DOC_INIT;
    struct str text = STR("{\"a\":{\"b\":1},\"b\":[{\"c\":2}],\"\\u0063\\\\\":3,\"\":4}");
    assert_int_equal(json_parse(&doc, text, 100, NULL), 0);
    uint32_t a = json_find(&doc, 0, "a");
    assert_true(str_eqz(doc.tokens[a].raw, "{\"b\":1}"));
    assert_true(str_eqz(doc.tokens[json_find(&doc, a, "b")].raw, "1"));
    assert_true(str_eqz(doc.tokens[json_find(&doc, 0, "b")].raw, "[{\"c\":2}]"));
    assert_true(str_eqz(doc.tokens[json_find(&doc, 0, "c\\")].raw, "3"));
    assert_true(str_eqz(doc.tokens[json_find(&doc, 0, "")].raw, "4"));
    assert_int_equal(json_find(&doc, 0, "c"), 0);
    assert_int_equal(json_find(&doc, 0, "A"), 0);
    assert_int_equal(json_find(&doc, a, "a"), 0);
    json_doc_fini(&doc);
}

static void test_unescape(void **state)
{
    (void)state;
    static const struct {
        const char *text, *plain;
    } cases[] = {
        {"\"\"", ""},
        {"\"abc\"", "abc"},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
        {"\"x\\u0041y\"", "xAy"},
        {"\"\\u00e4\\u00FF\\u07ff\"", "\xC3\xA4\xC3\xBF\xDF\xBF"},
        {"\"\\u0800\\u20ac\\uFFFF\"", "\xE0\xA0\x80\xE2\x82\xAC\xEF\xBF\xBF"},
        {"\"\\ud834\\uDD1E!\"", "\xF0\x9D\x84\x9E!"},
        {"\"\\uD800\\uDC00\\uDBFF\\uDFFF\"", "\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"},
        {"\"\\\\u0041\"", "\\u0041"},
        {"\"\xE6\xB1\x89\\n\"", "\xE6\xB1\x89\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct json_doc doc = JSON_DOC_INIT;
        struct buf b = BUF_INIT;
        assert_int_equal(json_parse(&doc, str_from(cases[i].text), 1, NULL), 0);
        assert_true(json_unescape(&doc.tokens[0], &b));
        assert_true(str_eqz(buf_str(&b), cases[i].plain));
        struct str plain = json_plain(&doc.tokens[0]);
        assert_true(strchr(cases[i].text, '\\') ? !plain.p : str_eqz(plain, cases[i].plain));
        buf_fini(&b);
        json_doc_fini(&doc);
    }
}

static void test_plain_of_other_types(void **state)
{
    (void)state;
    struct json_doc doc = JSON_DOC_INIT;
    assert_int_equal(json_parse(&doc, STR("123"), 1, NULL), 0);
    assert_null(json_plain(&doc.tokens[0]).p);
    json_doc_fini(&doc);
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
        {"-17", true, -17},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"18446744073709551615", false, 0},
        {"1.0", false, 0},
        {"1e3", false, 0},
        {"\"1\"", false, 0},
        {"null", false, 0},
        {"[]", false, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct json_doc doc = JSON_DOC_INIT;
        int64_t v = 99;
        assert_int_equal(json_parse(&doc, str_from(cases[i].text), 1, NULL), 0);
        assert_int_equal(json_to_i64(&doc.tokens[0], &v), cases[i].ok);
        assert_int_equal(v, cases[i].ok ? cases[i].value : 99);
        json_doc_fini(&doc);
    }
}

static void test_same_value(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"{}", " { } ", true},
        {"[1,2]", "[1, 2]", true},
        {"[1,2]", "[2,1]", false},
        {"[1,2]", "[1,2,3]", false},
        {"{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}", true},
        {"{\"a\":1,\"b\":2}", "{\"b\":1,\"a\":2}", false},
        {"{\"a\":1}", "{\"b\":1}", false},
        {"{\"a\":1}", "{\"a\":1,\"b\":1}", false},
        {"{\"a\":1}", "[\"a\",1]", false},
        {"[]", "{}", false},
        {"null", "false", false},
        {"true", " true", true},
        {"\"\\u0041\"", "\"A\"", true},
        {"\"\\u0041\"", "\"B\"", false},
        {"\"a\"", "\"ab\"", false},
        {"\"\\n\"", "\"\\u000a\"", true},
        {"{\"\\u0061\":1,\"b\":2}", "{\"b\":2,\"a\":1}", true},
        {"1", "1 ", true},
        {"1", "1.0", false},
        {"1e2", "100", false},
        {"-0", "0", true},
        {"-0.00", "0.00", true},
        {"-0e5", "0e5", true},
        {"-0.01", "0.01", false},
        {"-1", "1", false},
        {"9007199254740993", "9007199254740992", false},
        {"{\"x\":[{\"b\":[],\"a\":{}}],\"y\":{\"q\":1,\"p\":[2]}}",
         "{\"y\":{\"p\":[2],\"q\":1},\"x\":[{\"a\":{},\"b\":[]}]}", true},
        {"{\"x\":[{\"b\":[],\"a\":{}}],\"y\":{\"q\":1,\"p\":[2]}}",
         "{\"y\":{\"p\":[2],\"q\":0},\"x\":[{\"a\":{},\"b\":[]}]}", false},
        {"[{\"a\":1},{\"b\":2}]", "[{\"a\":1}, {\"b\":2}]", true},
        {"[[1],2]", "[[1,2]]", false},
        /* Ill-formed texts: byte by byte. */
        {"{", "{", true},
        {"{", "{ ", false},
        {"{}", "{", false},
        {"", "", true},
        {"", " ", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct str a = str_from(cases[i].a);
        struct str b = str_from(cases[i].b);
        if (json_same_value(a, b) != cases[i].same || json_same_value(b, a) != cases[i].same)
            fail_msg("%s and %s", cases[i].a, cases[i].b);
    }
}

static void test_same_value_of_big_objects(void **state)
{
    (void)state;
    struct buf a = BUF_INIT;
    struct buf b = BUF_INIT;
    buf_addc(&a, '{');
    buf_addc(&b, '{');
    for (int i = 0; i < 10000; i++) {
        buf_addf(&a, "%s\"k%d\":{\"v\":[%d]}", i ? "," : "", i, i);
        buf_addf(&b, "%s\"k%d\":{\"v\":[%d]}", i ? "," : "", 9999 - i, 9999 - i);
    }
    buf_addc(&a, '}');
    buf_addc(&b, '}');
    assert_true(json_same_value(buf_str(&a), buf_str(&b)));
    b.data[b.len - 4] = '7'; /* the value of k0 */
    assert_false(json_same_value(buf_str(&a), buf_str(&b)));
    buf_fini(&a);
    buf_fini(&b);
}

static void test_same_value_at_full_depth(void **state)
{
    (void)state;
    struct buf a = BUF_INIT;
    for (int i = 0; i < JSON_MAX_DEPTH; i++)
        buf_addz(&a, "{\"a\":");
    buf_addz(&a, "1");
    for (int i = 0; i < JSON_MAX_DEPTH; i++)
        buf_addc(&a, '}');
    struct buf b = BUF_INIT;
    buf_adds(&b, buf_str(&a));
    buf_addc(&b, '\n');
    assert_true(json_same_value(buf_str(&a), buf_str(&b)));
    buf_fini(&a);
    buf_fini(&b);
}

static void test_writing(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    bool first = true;
    buf_addc(&b, '{');
    json_put_key(&b, &first, "a");
    json_put_string(&b, STR("q\" b\\ n\n \b\f\r\t \x01\x1F \0 /\x7F\xE6\xB1\x89\xE2\x80\xA8"));
    json_put_key(&b, &first, "b");
    json_put_string(&b, (struct str){0});
    json_put_key(&b, &first, "c");
    json_put_stringz(&b, "");
    json_put_key(&b, &first, "d");
    json_put_stringz(&b, NULL);
    buf_addc(&b, '}');
    assert_true(str_eqz(
        buf_str(&b), "{\"a\":\"q\\\" b\\\\ n\\n \\b\\f\\r\\t \\u0001\\u001f \\u0000 /\x7F\xE6\xB1"
                     "\x89\xE2\x80\xA8\",\"b\":null,\"c\":\"\",\"d\":null}"));
    buf_fini(&b);
}

/* Writing and reading again gives the same text, for each character below U+0800 but NUL. */
static void test_write_read_round_trip(void **state)
{
    (void)state;
    struct buf plain = BUF_INIT;
    for (unsigned c = 1; c < 0x800; c++) {
        if (c >= 0x80)
            buf_addc(&plain, (char)(0xC0 | c >> 6));
        buf_addc(&plain, (char)(c >= 0x80 ? 0x80 | (c & 0x3F) : c));
    }
    struct buf text = BUF_INIT;
    json_put_string(&text, buf_str(&plain));
    struct json_doc doc = JSON_DOC_INIT;
    struct buf back = BUF_INIT;
    assert_int_equal(json_parse(&doc, buf_str(&text), 1, NULL), 0);
    assert_true(json_unescape(&doc.tokens[0], &back));
    assert_true(str_eq(buf_str(&plain), buf_str(&back)));
    json_doc_fini(&doc);
    buf_fini(&plain);
    buf_fini(&text);
    buf_fini(&back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_unescape),
        cmocka_unit_test(test_plain_of_other_types),
        cmocka_unit_test(test_to_i64),
        cmocka_unit_test(test_same_value),
        cmocka_unit_test(test_same_value_of_big_objects),
        cmocka_unit_test(test_same_value_at_full_depth),
        cmocka_unit_test(test_writing),
        cmocka_unit_test(test_write_read_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
