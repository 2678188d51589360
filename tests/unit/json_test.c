/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/json.h"

/* Parses a copy that ends exactly where the text does, so that a read beyond it is noticed. */
static int parse_exact(struct str text, size_t *ret_offset, struct err *err)
{
    char *copy = malloc(text.len ? text.len : 1);
    assert_non_null(copy);
    memcpy(copy, text.p, text.len);
    struct json_doc doc = JSON_DOC_INIT;
    int rc = json_parse(&doc, (struct str){copy, text.len}, 100000, err);
    assert_true((rc == 0) == (doc.n_tokens > 0));
    if (rc == 0)
        assert_int_equal(doc.tokens[0].next, doc.n_tokens);
    *ret_offset = doc.err_offset;
    json_doc_fini(&doc);
    free(copy);
    return rc;
}

static void test_accepts(void **state)
{
    (void)state;
    static const struct str texts[] = {
        /* Any value may stand alone. */
        STR("null"),
        STR("true"),
        STR("false"),
        STR("0"),
        STR("\"\""),
        STR("[]"),
        STR("{}"),
        /* White space. */
        STR(" \t\r\n[ ]\n"),
        STR("[1 , 2]"),
        STR(" { } "),
        STR("{ \"a\" : 1 , \"b\" : 2 }"),
        STR("\n1\n"),
        /* Numbers. */
        STR("-0"),
        STR("-1"),
        STR("0.0"),
        STR("-0.0e-0"),
        STR("10"),
        STR("1.10"),
        STR("1e400"),
        STR("1E+400"),
        STR("1e-400"),
        STR("0e1"),
        STR("0E01"),
        STR("18446744073709551615"),
        STR("123456789012345678901234567890.12345e+99999999"),
        STR("9007199254740993"),
        STR("-9223372036854775809"),
        STR("1.0000000000000000000000000001"),
        /* Strings. */
        STR("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""),
        STR("\"\\u0061\\u30EA\\u30ea\""),
        STR("\"\\uD834\\uDD1E\""),
        STR("\"\\udbff\\udfff\""),
        STR("\"\\ud7ff\\ue000\\uffff\""),
        STR("\"\\u0001\\u001f\""),
        STR("\"\x7F\""),
        STR("\"\xC2\x80\""),
        STR("\"\xE6\xB1\x89\xE5\xAD\x97\""),
        STR("\"\xF4\x8F\xBF\xBF\""),
        STR("\"\xEF\xBF\xBF\""),
        STR("\"\xE2\x80\xA8\xE2\x80\xA9\""),
        STR("\"\xEF\xBB\xBF\""),
        STR("\"a/*b*/c\""),
        STR("\"\\\\u0000\""),
        STR("\"\\\\\\u0041\""),
        STR("\"asd \""),
        STR("\"'\""),
        /* Containers. */
        STR("[[]]"),
        STR("[{}]"),
        STR("{\"\":0}"),
        STR("{\"a\":[]}"),
        STR("[1,[2,[3]],{\"a\":{}}]"),
        STR("{\"a\":{\"a\":{\"a\":1}}}"),
        STR("[{\"a\":1},{\"a\":1}]"),
        STR("{\"a\":1,\"A\":1}"),
        STR("{\"a\":1,\"a \":1}"),
        STR("{\"__proto__\":1,\"\\u0001\":2}"),
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct err err = {0};
        size_t offset;
        if (parse_exact(texts[i], &offset, &err) != 0)
            fail_msg("\"%.*s\": %s", (int)texts[i].len, texts[i].p, err.text);
    }
}

struct refusal {
    struct str text;
    size_t offset;
};

static void check_refusals(const struct refusal *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct err err = {0};
        size_t offset;
        int rc = parse_exact(cases[i].text, &offset, &err);
        char place[32];
        snprintf(place, sizeof(place), "at byte %zu", cases[i].offset);
        if (rc != ERR_INVALID || offset != cases[i].offset || !strstr(err.text, place))
            fail_msg("case %zu \"%.*s\": rc %d, offset %zu, %s", i, (int)cases[i].text.len,
                     cases[i].text.p, rc, offset, err.text);
        assert_true(utf8_valid(str_from(err.text)));
    }
}

static void test_refuses_wrong_structure(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {STR(""), 0},
        {STR(" "), 1},
        {STR("\xEF\xBB\xBF{}"), 0},
        {STR("\xFE\xFF"), 0},
        {STR("\0"), 0},
        {STR("[1]\0"), 3},
        {STR("nul"), 0},
        {STR("nulL"), 0},
        {STR("True"), 0},
        {STR("truee"), 4},
        {STR("NaN"), 0},
        {STR("Infinity"), 0},
        {STR("undefined"), 0},
        {STR("'a'"), 0},
        {STR("a"), 0},
        {STR("\xE2\x81\xA0[]"), 0},
        {STR("\f[]"), 0},
        {STR("[\v]"), 1},
        {STR("[\xC2\xA0]"), 1},
        {STR("[]]"), 2},
        {STR("{}}"), 2},
        {STR("1 2"), 2},
        {STR("[1]x"), 3},
        {STR("{}#"), 2},
        {STR("[]//"), 2},
        {STR("/**/[]"), 0},
        {STR("["), 1},
        {STR("[1"), 2},
        {STR("[1,"), 3},
        {STR("[,1]"), 1},
        {STR("[1,,2]"), 3},
        {STR("[1,]"), 3},
        {STR("[1 2]"), 3},
        {STR("[1;2]"), 2},
        {STR("[\"a\":1]"), 4},
        {STR("[}"), 1},
        {STR("{]"), 1},
        {STR("[1}"), 2},
        {STR("{\"a\":1]"), 6},
        {STR("{"), 1},
        {STR("{\"a\""), 4},
        {STR("{\"a\":"), 5},
        {STR("{\"a\":}"), 5},
        {STR("{\"a\":1"), 6},
        {STR("{\"a\":1,"), 7},
        {STR("{\"a\":1,}"), 7},
        {STR("{,}"), 1},
        {STR("{\"a\" 1}"), 5},
        {STR("{\"a\"::1}"), 5},
        {STR("{\"a\",1}"), 4},
        {STR("{a:1}"), 1},
        {STR("{'a':1}"), 1},
        {STR("{1:1}"), 1},
        {STR("{null:1}"), 1},
        {STR("{\"a\":1 \"b\":2}"), 7},
        {STR("{\"a\":1,,\"b\":2}"), 7},
        {STR("{\"a\":1,\"b\"}"), 10},
        {STR("{[]:1}"), 1},
        {STR("*"), 0},
        {STR("[*]"), 1},
        {STR("<.>"), 0},
        {STR(":"), 0},
        {STR(","), 0},
        {STR("]"), 0},
        {STR("}"), 0},
        {STR("\\u005b\\u005d"), 0},
    };
    check_refusals(cases, sizeof(cases) / sizeof(cases[0]));
}

static void test_refuses_wrong_numbers(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {STR("-"), 1},     {STR("+1"), 0},    {STR("01"), 0},           {STR("-01"), 1},
        {STR("00"), 0},    {STR("-00.0"), 1}, {STR("1."), 2},           {STR("1.e1"), 2},
        {STR(".5"), 0},    {STR("-.5"), 1},   {STR("1e"), 2},           {STR("1e+"), 3},
        {STR("1e-x"), 3},  {STR("1eE2"), 2},  {STR("1.2.3"), 3},        {STR("0x1"), 1},
        {STR("1_000"), 1}, {STR("-Inf"), 1},  {STR("--1"), 1},          {STR("- 1"), 1},
        {STR("1+2"), 1},   {STR("[1.]"), 3},  {STR("[-]"), 2},          {STR("1e1.5"), 3},
        {STR("1 000"), 2}, {STR("[012]"), 1}, {STR("0e"), 2},           {STR("1\xC2\xA0"), 1},
        {STR("1\0"), 1},   {STR("[1e"), 3},   {STR("\xEF\xBC\x91"), 0}, {STR("1ea"), 2},
    };
    check_refusals(cases, sizeof(cases) / sizeof(cases[0]));
}

static void test_refuses_wrong_strings(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {STR("\""), 1},
        {STR("\"a"), 2},
        {STR("\"a\\"), 3},
        {STR("\"a\\\""), 4},
        {STR("\"\\x41\""), 2},
        {STR("\"\\a\""), 2},
        {STR("\"\\'\""), 2},
        {STR("\"\\\0\""), 2},
        {STR("\"\\U0041\""), 2},
        {STR("\"\\u\""), 3},
        {STR("\"\\u00A\""), 6},
        {STR("\"\\u00G0\""), 5},
        {STR("\"\\u 041\""), 3},
        {STR("\"\\u004"), 6},
        {STR("\"\\u-041\""), 3},
        /* U+0000 and surrogates on their own. */
        {STR("\"a\\u0000\""), 2},
        {STR("{\"\\u0000\":1}"), 2},
        {STR("\"\0\""), 1},
        {STR("\"\\uD800\""), 1},
        {STR("\"\\uDC00\""), 1},
        {STR("\"\\uD800a\""), 1},
        {STR("\"\\uD800\\n\""), 1},
        {STR("\"\\uD800\\uD800\""), 1},
        {STR("\"\\uDC00\\uD800\""), 1},
        {STR("\"\\uD800\\u0041\""), 1},
        {STR("\"\\uD800\\u"), 9},
        {STR("\"\\uD800\\uDC0\""), 12},
        {STR("\"\\uD834\\uDD1E\\uD834\""), 13},
        {STR("\"\xED\xA0\x80\""), 1},
        /* Control characters at every place of an eight-byte word. */
        {STR("\"\n\""), 1},
        {STR("\"a\tb\""), 2},
        {STR("\"1234567\x1F\""), 8},
        {STR("\"12345678\x01"
             "9012345\""),
         9},
        {STR("\"12\x10"
             "45678901234\""),
         3},
        {STR("\"12345678901234\r\""), 15},
        /* Ill-formed UTF-8. */
        {STR("\"\x80\""), 1},
        {STR("\"a\xFF\""), 2},
        {STR("\"\xC0\x80\""), 1},
        {STR("\"\xC3\""), 1},
        {STR("\"\xE2\x82\""), 1},
        {STR("\"\xE2\x82"), 1},
        {STR("\"\xF0\x9F\x98\x80\xF0\x9F\x98\""), 5},
        {STR("\"1234567\xC3(\""), 8},
        {STR("\"\xF4\x90\x80\x80\""), 1},
        {STR("\"\xF8\x88\x80\x80\x80\""), 1},
        {STR("{\"\xFF\":1}"), 2},
    };
    check_refusals(cases, sizeof(cases) / sizeof(cases[0]));
}

static void test_refuses_duplicate_keys(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {STR("{\"a\":1,\"a\":1}"), 7},
        {STR("{\"a\":1,\"b\":2,\"a\":3}"), 13},
        {STR("{\"\":1,\"\":2}"), 6},
        {STR("{\"a\":1,\"\\u0061\":2}"), 7},
        {STR("{\"\\u0061\":1,\"a\":2}"), 12},
        {STR("{\"\\u00e4\":1,\"\xC3\xA4\":2}"), 12},
        {STR("{\"\xF0\x9D\x84\x9E\":1,\"\\uD834\\udd1e\":2}"), 10},
        {STR("{\"\\/\":1,\"/\":2}"), 8},
        {STR("[{\"x\":{\"a\":{},\"a\":[]}}]"), 14},
        {STR("{\"a\":{\"b\":1,\"c\":2},\"a\":0}"), 19},
    };
    check_refusals(cases, sizeof(cases) / sizeof(cases[0]));
    struct err err;
    size_t offset;
    (void)parse_exact(STR("{\"key\":1,\"key\":1}"), &offset, &err);
    assert_string_equal(err.text, "duplicate key \"key\" at byte 9");
}

/* An object of n members, k0, k1, …; the last key is `last` if that is not NULL. */
static void put_members(struct buf *b, unsigned n, const char *last)
{
    buf_addc(b, '{');
    for (unsigned i = 0; i < n; i++) {
        if (i + 1 == n && last)
            buf_addf(b, "\"%s\":%u", last, i);
        else
            buf_addf(b, "\"k%u\":%u,", i, i);
    }
    if (!last)
        b->len--;
    buf_addc(b, '}');
    assert_true(buf_ok(b));
}

static void test_many_keys(void **state)
{
    (void)state;
    static const unsigned sizes[] = {1, 2, 15, 16, 17, 18, 100, 10000, 45000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        unsigned n = sizes[i];
        struct buf b = BUF_INIT;
        size_t offset;
        put_members(&b, n, NULL);
        assert_int_equal(parse_exact(buf_str(&b), &offset, NULL), 0);
        buf_clear(&b);
        put_members(&b, n, "k");
        assert_int_equal(parse_exact(buf_str(&b), &offset, NULL), 0);
        buf_clear(&b);
        put_members(&b, n, "\\u006b0"); /* k0 */
        assert_int_equal(parse_exact(buf_str(&b), &offset, NULL), n == 1 ? 0 : ERR_INVALID);
        if (n > 1)
            assert_memory_equal(b.data + offset, "\"\\u006b0\"", 9);
        buf_fini(&b);
    }
}

static void put_repeated(struct buf *b, const char *text, unsigned n)
{
    while (n-- > 0)
        buf_addz(b, text);
}

static void test_depth(void **state)
{
    (void)state;
    static const struct {
        const char *open, *middle, *close;
    } shapes[] = {{"[", "", "]"}, {"{\"a\":", "1", "}"}, {"[{\"a\":", "[]", "}]"}};
    for (size_t i = 0; i < 3; i++) {
        unsigned levels = i == 2 ? 2 : 1; /* of one repetition */
        unsigned fits = (JSON_MAX_DEPTH - (i == 2 ? 1 : 0)) / levels;
        for (unsigned n = fits - 1; n <= fits + 1; n++) {
            struct buf b = BUF_INIT;
            size_t offset;
            put_repeated(&b, shapes[i].open, n);
            buf_addz(&b, shapes[i].middle);
            put_repeated(&b, shapes[i].close, n);
            int expected = n <= fits ? 0 : ERR_TOO_BIG;
            assert_int_equal(parse_exact(buf_str(&b), &offset, NULL), expected);
            buf_fini(&b);
        }
        struct buf b = BUF_INIT;
        struct err err;
        size_t offset;
        put_repeated(&b, shapes[i].open, 10000);
        assert_int_equal(parse_exact(buf_str(&b), &offset, &err), ERR_TOO_BIG);
        assert_non_null(strstr(err.text, "at most 64 levels"));
        buf_fini(&b);
    }
}

static void test_too_many_tokens(void **state)
{
    (void)state;
    struct json_doc doc = JSON_DOC_INIT;
    struct err err;
    assert_int_equal(json_parse(&doc, STR("[1,2,3]"), 4, &err), 0);
    assert_int_equal(json_parse(&doc, STR("[1,2,3]"), 3, &err), ERR_TOO_BIG);
    assert_int_equal(doc.n_tokens, 0);
    assert_int_equal(doc.err_offset, 5);
    assert_non_null(strstr(err.text, "at most 3"));
    assert_int_equal(json_parse(&doc, STR("{\"a\":1}"), 2, &err), ERR_TOO_BIG);
    assert_int_equal(json_parse(&doc, STR("1"), 0, NULL), ERR_TOO_BIG);
    json_doc_fini(&doc);
    json_doc_fini(NULL);
}

static void test_tokens(void **state)
{
    (void)state;
    static const struct {
        enum json_type type;
        uint32_t n, next;
        const char *raw;
    } expected[] = {
        {JSON_OBJECT, 3, 12, "{\"a\": [1e400, {\"b\":null}],\"c\\n\":true , \"d\":{}}"},
        {JSON_STRING, 0, 2, "\"a\""},
        {JSON_ARRAY, 2, 7, "[1e400, {\"b\":null}]"},
        {JSON_NUMBER, 0, 4, "1e400"},
        {JSON_OBJECT, 1, 7, "{\"b\":null}"},
        {JSON_STRING, 0, 6, "\"b\""},
        {JSON_NULL, 0, 7, "null"},
        {JSON_STRING, 0, 8, "\"c\\n\""},
        {JSON_TRUE, 0, 9, "true"},
        {JSON_STRING, 0, 10, "\"d\""},
        {JSON_OBJECT, 0, 11, "{}"},
    };
    struct json_doc doc = JSON_DOC_INIT;
    struct str text = STR(" {\"a\": [1e400, {\"b\":null}],\"c\\n\":true , \"d\":{}} ");
    /* The same memory serves a second parse. */
    for (int round = 0; round < 2; round++) {
        assert_int_equal(json_parse(&doc, text, 100, NULL), 0);
        assert_int_equal(doc.n_tokens, sizeof(expected) / sizeof(expected[0]));
        for (uint32_t i = 0; i < doc.n_tokens; i++) {
            const struct json_token *t = &doc.tokens[i];
            assert_int_equal(t->type, expected[i].type);
            assert_int_equal(t->n, expected[i].n);
            assert_int_equal(t->next, i == 0 ? doc.n_tokens : expected[i].next);
            assert_true(str_eqz(t->raw, expected[i].raw));
            assert_int_equal(t->has_escape, i == 7);
            assert_true(t->raw.p >= text.p && t->raw.p < text.p + text.len);
        }
    }
    assert_int_equal(json_parse(&doc, STR("["), 100, NULL), ERR_INVALID);
    assert_int_equal(doc.n_tokens, 0);
    json_doc_fini(&doc);
}

static void test_growing_token_array(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_addc(&b, '[');
    for (int i = 0; i < 50000; i++)
        buf_addf(&b, "%s%d", i ? "," : "", i);
    buf_addc(&b, ']');
    struct json_doc doc = JSON_DOC_INIT;
    assert_int_equal(json_parse(&doc, buf_str(&b), UINT32_MAX, NULL), 0);
    assert_int_equal(doc.tokens[0].n, 50000);
    for (int i = 0; i < 50000; i++) {
        int64_t v;
        assert_true(json_to_i64(&doc.tokens[1 + i], &v));
        assert_int_equal(v, i);
    }
    json_doc_fini(&doc);
    buf_fini(&b);
}

/* Every prefix of a valid document is refused or, where it is a whole value, accepted; none of
 * them, nor any single changed byte, leads astray (the sanitizers watch). */
static void test_every_prefix_and_changed_byte(void **state)
{
    (void)state;
    struct str text =
        STR("{\"bizUuid\":\"o-1\\u00e4\",\"n\":[-1.5e+3,true,null,{\"x\":\"\xE6\xB1\x89\"}],"
            "\"p\":\"\\uD834\\uDD1E\"}");
    size_t offset;
    for (size_t len = 0; len < text.len; len++)
        assert_int_equal(parse_exact((struct str){text.p, len}, &offset, NULL), ERR_INVALID);
    char copy[128];
    for (size_t i = 0; i < text.len; i++) {
        memcpy(copy, text.p, text.len);
        for (int c = 0; c < 256; c++) {
            copy[i] = (char)c;
            int rc = parse_exact((struct str){copy, text.len}, &offset, NULL);
            assert_true(rc == 0 || rc == ERR_INVALID);
            assert_true(offset <= text.len);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_refuses_wrong_structure),
        cmocka_unit_test(test_refuses_wrong_numbers),
        cmocka_unit_test(test_refuses_wrong_strings),
        cmocka_unit_test(test_refuses_duplicate_keys),
        cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_too_many_tokens),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_growing_token_array),
        cmocka_unit_test(test_every_prefix_and_changed_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
