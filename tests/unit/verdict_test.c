/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/core/verdict.h"

#define NOW INT64_C(1767225600000) /* Thu, 01 Jan 2026 00:00:00 GMT */
#define HOUR INT64_C(3600000)
#define REPLACEMENT "\xEF\xBF\xBD"

static const struct verdict_limits limits = {.retry_after_cap_ms = HOUR,
                                             .snooze_cap_ms = 24 * HOUR};

struct answer_case {
    const char *name;
    int32_t status;
    const char *body;
    const char *retry_after;
    enum verdict_kind kind;
    int64_t retry_after_ms;
    const char *error;
};

static void check(const struct answer_case *c)
{
    struct answer a = {
        .http_status = c->status,
        .body = str_from(c->body),
        .retry_after = str_from(c->retry_after),
        .sent = true,
    };
    struct verdict v;

    memset(&v, 0xA5, sizeof(v));
    verdict_read(&a, &limits, NOW, &v);
    if (v.kind != c->kind || v.retry_after_ms != c->retry_after_ms || strcmp(v.error, c->error) ||
        v.http_status != c->status)
        fail_msg("%s: got %s, wait %lld, error '%s'", c->name, verdict_name(v.kind),
                 (long long)v.retry_after_ms, v.error);
}

static void check_all(const struct answer_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check(&cases[i]);
}
#define CHECK_ALL(cases) check_all((cases), sizeof(cases) / sizeof((cases)[0]))

static void test_success(void **state)
{
    (void)state;
    static const struct answer_case cases[] = {
        {"empty", 200, "", NULL, VERDICT_SUCCESS, -1, ""},
        {"text", 200, "ok", NULL, VERDICT_SUCCESS, -1, ""},
        {"204", 204, "", NULL, VERDICT_SUCCESS, -1, ""},
        {"299", 299, "", NULL, VERDICT_SUCCESS, -1, ""},
        {"object", 200, "{}", NULL, VERDICT_SUCCESS, -1, ""},
        {"true", 200, "{\"success\":true}", NULL, VERDICT_SUCCESS, -1, ""},
        {"foreign words", 200, "{\"code\":0,\"data\":{\"success\":false}}", NULL, VERDICT_SUCCESS,
         -1, ""},
        {"array", 200, "[{\"success\":false}]", NULL, VERDICT_SUCCESS, -1, ""},
        {"broken", 200, "{\"success\":fal", NULL, VERDICT_SUCCESS, -1, ""},
        {"only retryable", 200, "{\"retryable\":false}", NULL, VERDICT_SUCCESS, -1, ""},
        {"Retry-After means nothing here", 200, "", "120", VERDICT_SUCCESS, -1, ""},
        {"accepted", 202, "", NULL, VERDICT_ACCEPTED, -1, ""},
        {"accepted with a body", 202, "{\"success\":true}", NULL, VERDICT_ACCEPTED, -1, ""},
    };
    CHECK_ALL(cases);
}

static void test_failure_in_the_body(void **state)
{
    (void)state;
    static const struct answer_case cases[] = {
        {"bare", 200, "{\"success\":false}", NULL, VERDICT_RETRY, -1,
         "the handler's \"success\" is not true"},
        {"a text", 200, "{\"success\":\"false\"}", NULL, VERDICT_RETRY, -1,
         "the handler's \"success\" is not true"},
        {"a number", 200, "{\"success\":0}", NULL, VERDICT_RETRY, -1,
         "the handler's \"success\" is not true"},
        {"null", 200, "{\"success\":null}", NULL, VERDICT_RETRY, -1,
         "the handler's \"success\" is not true"},
        {"message", 200, " \r\n\t{\"message\":\"no\\nstock\",\"success\":false} ", NULL,
         VERDICT_RETRY, -1, "no stock"},
        {"202", 202, "{\"success\":false,\"message\":\"full\"}", NULL, VERDICT_RETRY, -1, "full"},
        {"final", 200, "{\"success\":false,\"retryable\":false,\"message\":\"gone\"}", NULL,
         VERDICT_FINAL, -1, "gone"},
        {"seconds", 200, "{\"success\":false,\"message\":\"m\",\"retryAfter\":90}", NULL,
         VERDICT_RETRY, 90000, "m"},
        {"text", 200, "{\"success\":false,\"message\":\"m\",\"retryAfter\":\"1m30s\"}", NULL,
         VERDICT_RETRY, 90000, "m"},
        {"above the cap", 200, "{\"success\":false,\"message\":\"m\",\"retryAfter\":\"2d\"}", NULL,
         VERDICT_RETRY, HOUR, "m"},
        {"bad wait", 200, "{\"success\":false,\"message\":\"m\",\"retryAfter\":\"soon\"}", NULL,
         VERDICT_RETRY, -1, "m"},
        {"negative wait", 200, "{\"success\":false,\"message\":\"m\",\"retryAfter\":-5}", NULL,
         VERDICT_RETRY, -1, "m"},
        {"message of a wrong type", 200, "{\"success\":false,\"message\":{}}", NULL, VERDICT_RETRY,
         -1, "the handler's \"success\" is not true"},
        {"byte-order mark", 200, "\xEF\xBB\xBF{\"success\":false,\"message\":\"m\"}", NULL,
         VERDICT_RETRY, -1, "m"},
        /* What the store cannot keep is replaced; what the handler said still counts. */
        {"U+0000", 200, "{\"success\":false,\"retryable\":false,\"message\":\"a\\u0000b\"}", NULL,
         VERDICT_FINAL, -1, "a" REPLACEMENT "b"},
        {"not U+0000", 200, "{\"success\":false,\"message\":\"a\\\\u0000b\"}", NULL, VERDICT_RETRY,
         -1, "a\\u0000b"},
        {"lone surrogates", 200,
         "{\"success\":false,\"message\":\"\\ud800x\\uDC00\\ud83d\\ude00\\u0000\"}", NULL,
         VERDICT_RETRY, -1, REPLACEMENT "x" REPLACEMENT "\xF0\x9F\x98\x80" REPLACEMENT},
        {"Latin-1", 200, "{\"success\":false,\"message\":\"caf\xE9\"}", NULL, VERDICT_RETRY, -1,
         "caf" REPLACEMENT},
        {"blank message", 200, "{\"success\":false,\"message\":\" \\n\"}", NULL, VERDICT_RETRY, -1,
         "the handler's \"success\" is not true"},
        {"raw line end", 200, "{\"success\":false,\n\"message\":\"a\nb\"}", NULL, VERDICT_RETRY, -1,
         "a b"},
    };
    CHECK_ALL(cases);
}

static void test_snooze(void **state)
{
    (void)state;
    static const struct answer_case cases[] = {
        {"text", 200, "{\"snooze\":\"10m\"}", NULL, VERDICT_SNOOZE, 600000, ""},
        {"seconds", 200, "{\"snooze\":1.5}", NULL, VERDICT_SNOOZE, 1500, ""},
        {"202", 202, "{\"snooze\":\"PT10M\"}", NULL, VERDICT_SNOOZE, 600000, ""},
        {"above the cap", 200, "{\"snooze\":\"30d\"}", NULL, VERDICT_SNOOZE, 24 * HOUR, ""},
        {"with success", 200, "{\"success\":true,\"snooze\":\"1s\",\"message\":\"not yet\"}", NULL,
         VERDICT_SNOOZE, 1000, "not yet"},
        {"no duration", 200, "{\"snooze\":\"later\"}", NULL, VERDICT_RETRY, -1,
         "the handler's \"snooze\" is no duration such as \"10m\""},
        {"of a failure", 500, "{\"snooze\":\"10m\",\"message\":\"m\"}", NULL, VERDICT_RETRY, -1,
         "HTTP 500: m"},
    };
    CHECK_ALL(cases);
}

static void test_statuses(void **state)
{
    (void)state;
    static const struct answer_case cases[] = {
        {"100", 100, "", NULL, VERDICT_RETRY, -1, "HTTP 100"},
        {"302", 302, "", NULL, VERDICT_RETRY, -1, "HTTP 302"},
        {"400", 400, "no such field", NULL, VERDICT_FINAL, -1, "HTTP 400: no such field"},
        {"401", 401, "", NULL, VERDICT_RETRY, -1, "HTTP 401"},
        {"404", 404, "", NULL, VERDICT_RETRY, -1, "HTTP 404"},
        {"410", 410, "", NULL, VERDICT_FINAL, -1, "HTTP 410"},
        {"413", 413, "", NULL, VERDICT_FINAL, -1, "HTTP 413"},
        {"422", 422, "{\"message\":\"bad\"}", NULL, VERDICT_FINAL, -1, "HTTP 422: bad"},
        {"422, but", 422, "{\"retryable\":true}", NULL, VERDICT_RETRY, -1,
         "HTTP 422: {\"retryable\":true}"},
        {"500", 500, "\n <html>\n\t<b>oops</b>", NULL, VERDICT_RETRY, -1,
         "HTTP 500: <html>  <b>oops</b>"},
        {"500, but", 500, "{\"retryable\":false,\"message\":\"gone\"}", NULL, VERDICT_FINAL, -1,
         "HTTP 500: gone"},
        {"empty message", 500, "{\"message\":\"\"}", NULL, VERDICT_RETRY, -1,
         "HTTP 500: {\"message\":\"\"}"},
        {"success in a failure", 500, "{\"success\":true}", NULL, VERDICT_RETRY, -1,
         "HTTP 500: {\"success\":true}"},
    };
    CHECK_ALL(cases);
}

static void test_retry_after(void **state)
{
    (void)state;
    static const struct answer_case cases[] = {
        {"seconds", 429, "", "120", VERDICT_RETRY, 120000, "HTTP 429"},
        {"503", 503, "", "120", VERDICT_RETRY, 120000, "HTTP 503"},
        {"spaces", 503, "", " 120 ", VERDICT_RETRY, 120000, "HTTP 503"},
        {"zero", 503, "", "0", VERDICT_RETRY, 0, "HTTP 503"},
        {"date", 503, "", "Thu, 01 Jan 2026 00:02:00 GMT", VERDICT_RETRY, 120000, "HTTP 503"},
        {"RFC 850", 503, "", "Thursday, 01-Jan-26 00:02:00 GMT", VERDICT_RETRY, 120000, "HTTP 503"},
        {"date gone by", 503, "", "Wed, 31 Dec 2025 00:00:00 GMT", VERDICT_RETRY, 0, "HTTP 503"},
        {"far date", 503, "", "Fri, 01 Jan 2027 00:00:00 GMT", VERDICT_RETRY, HOUR, "HTTP 503"},
        {"above the cap", 429, "", "86400", VERDICT_RETRY, HOUR, "HTTP 429"},
        {"near overflow", 429, "", "9223372036854775807", VERDICT_RETRY, HOUR, "HTTP 429"},
        {"overflow", 429, "", "99999999999999999999999", VERDICT_RETRY, HOUR, "HTTP 429"},
        {"negative", 429, "", "-1", VERDICT_RETRY, -1, "HTTP 429"},
        {"word", 429, "", "abc", VERDICT_RETRY, -1, "HTTP 429"},
        {"fraction", 429, "", "1.5", VERDICT_RETRY, -1, "HTTP 429"},
        {"empty", 429, "", "", VERDICT_RETRY, -1, "HTTP 429"},
        {"other status", 500, "", "120", VERDICT_RETRY, -1, "HTTP 500"},
        {"final", 410, "", "120", VERDICT_FINAL, -1, "HTTP 410"},
        {"body first", 429, "{\"retryAfter\":5,\"message\":\"m\"}", "120", VERDICT_RETRY, 5000,
         "HTTP 429: m"},
        {"body bad", 429, "{\"retryAfter\":\"x\",\"message\":\"m\"}", "120", VERDICT_RETRY, 120000,
         "HTTP 429: m"},
    };
    CHECK_ALL(cases);
}

static void test_no_answer(void **state)
{
    (void)state;
    struct answer a = {.failure = STR("connection refused\n"), .sent = true};
    struct verdict v;

    verdict_read(&a, &limits, NOW, &v);
    assert_int_equal(v.kind, VERDICT_RETRY);
    assert_int_equal(v.http_status, 0);
    assert_int_equal(v.retry_after_ms, -1);
    assert_string_equal(v.error, "connection refused ");

    a.failure = (struct str){0};
    verdict_read(&a, &limits, NOW, &v);
    assert_int_equal(v.kind, VERDICT_RETRY);
    assert_string_equal(v.error, "no answer");

    a.failure = STR(" \n");
    verdict_read(&a, &limits, NOW, &v);
    assert_string_equal(v.error, "no answer");

    /* An answer that broke off is none, whatever its status was. */
    a.http_status = 200;
    a.failure = STR("connection reset");
    verdict_read(&a, &limits, NOW, &v);
    assert_int_equal(v.kind, VERDICT_RETRY);
    assert_string_equal(v.error, "connection reset");
}

static void test_unsent(void **state)
{
    (void)state;
    struct answer a = {.failure = STR("too late"), .sent = false};
    struct verdict v;

    verdict_read(&a, &limits, NOW, &v);
    assert_int_equal(v.kind, VERDICT_UNSENT);
    assert_int_equal(v.retry_after_ms, -1);
    assert_string_equal(v.error, "too late");
}

/* Whatever the length, the error fits and does not end inside a character. */
static void test_long_error_texts(void **state)
{
    (void)state;
    const size_t len = 100 * 1024;
    char *body = malloc(len);
    struct verdict v;

    assert_non_null(body);
    for (size_t shift = 0; shift < 4; shift++) {
        memset(body, 'x', len);
        for (size_t i = shift; i + 4 <= len; i += 4)
            memcpy(body + i, "\xF0\x9F\x98\x80", 4);
        struct answer a = {.http_status = 500, .body = {body, len}, .body_cut = true, .sent = true};
        verdict_read(&a, &limits, NOW, &v);
        assert_int_equal(v.kind, VERDICT_RETRY);
        assert_in_range(strlen(v.error), TASK_ERROR_MAX - 4, TASK_ERROR_MAX - 1);
        assert_true(utf8_valid(str_from(v.error)));
        assert_null(strstr(v.error, REPLACEMENT));
    }
    free(body);
}

static void test_binary_error_text(void **state)
{
    (void)state;
    struct answer a = {.http_status = 502, .body = STR("\x1F\x8B\0a\x80z"), .sent = true};
    struct verdict v;

    verdict_read(&a, &limits, NOW, &v);
    assert_string_equal(v.error,
                        "HTTP 502: " REPLACEMENT REPLACEMENT REPLACEMENT "a" REPLACEMENT "z");
}

/* Of a cut answer, what stands whole before the cut counts. */
static void test_cut_answer(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        enum verdict_kind kind;
        const char *error;
    } cases[] = {
        {"{\"success\":false,\"retryable\":false,\"message\":\"m\",\"stack\":[\"a\",\"b",
         VERDICT_FINAL, "m"},
        {"{\"success\":false,\"message\":\"a,b", VERDICT_RETRY,
         "the handler's \"success\" is not true"},
        {"{\"data\":[{\"success\":false,\"x\":1},{", VERDICT_SUCCESS, ""},
        {"{\"message\":\"abc", VERDICT_SUCCESS, ""},
        {"{", VERDICT_SUCCESS, ""},
        {"{}}}},", VERDICT_SUCCESS, ""},
        {"{\"success\":false,\"message\":\"\\", VERDICT_RETRY,
         "the handler's \"success\" is not true"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct answer a = {
            .http_status = 200,
            .body = str_from(cases[i].body),
            .body_cut = true,
            .sent = true,
        };
        struct verdict v;
        verdict_read(&a, &limits, NOW, &v);
        assert_int_equal(v.kind, cases[i].kind);
        assert_string_equal(v.error, cases[i].error);
    }
}

/* As many values as 64 KiB hold do not hide what was said. */
static void test_many_values(void **state)
{
    (void)state;
    const size_t len = 64 * 1024;
    static const char tail[] = "1],\"success\":false }";
    char *body = malloc(len);

    assert_non_null(body);
    for (size_t i = 0; i < len; i += 2)
        memcpy(body + i, "1,", 2);
    memcpy(body, "{\"a\":[1,", 8);
    memcpy(body + len - (sizeof(tail) - 1), tail, sizeof(tail) - 1);
    struct answer a = {.http_status = 200, .body = {body, len}, .sent = true};
    struct verdict v;
    verdict_read(&a, &limits, NOW, &v);
    assert_int_equal(v.kind, VERDICT_RETRY);
    free(body);
}

/* What is nested deeper than the tokenizer goes hides nothing that the handler says. */
static void test_deep_answer(void **state)
{
    (void)state;
#define TEN(text) text text text text text text text text text text
#define DEEP TEN("[{\"a\\\"]\":[") "\"]}\"" TEN("]}]")
#define DEEPER TEN("[[[[[[[") TEN("]]]]]]]")
    static const struct answer_case cases[] = {
        {"before", 200, "{\"success\":false,\"message\":\"m\",\"trace\":" DEEPER "}", NULL,
         VERDICT_RETRY, -1, "m"},
        {"behind", 200, "{\"trace\":[" DEEPER "," DEEP "],\"success\":false,\"retryable\":false}",
         NULL, VERDICT_FINAL, -1, "the handler's \"success\" is not true"},
        {"and a character to mend", 200,
         "{\"trace\":" DEEPER ",\"success\":false,\"message\":\"a\\u0000\"}", NULL, VERDICT_RETRY,
         -1, "a" REPLACEMENT},
        {"snooze", 200, "{\"trace\":" DEEPER ",\"snooze\":\"10m\"}", NULL, VERDICT_SNOOZE, 600000,
         ""},
        {"nested words", 200, "{\"trace\":{\"success\":false,\"a\":" DEEPER "}}", NULL,
         VERDICT_SUCCESS, -1, ""},
        {"unbalanced", 200, "{\"trace\":" DEEPER "]]],\"success\":false}", NULL, VERDICT_SUCCESS,
         -1, ""},
    };
    CHECK_ALL(cases);
}

static void test_results(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        enum verdict_kind kind;
        int64_t wait;
        const char *error;
    } cases[] = {
        {"{\"success\":true}", VERDICT_SUCCESS, -1, ""},
        {"{\"success\":true,\"message\":\"done\"}", VERDICT_SUCCESS, -1, ""},
        {"{\"success\":false,\"message\":\"m\",\"retryAfter\":\"2m\"}", VERDICT_RETRY, 120000, "m"},
        {"{\"success\":false,\"message\":\"m\",\"retryAfter\":7200}", VERDICT_RETRY, HOUR, "m"},
        {"{\"success\":false,\"retryable\":false}", VERDICT_FINAL, -1,
         "the handler's \"success\" is not true"},
        {"{\"snooze\":\"10m\"}", VERDICT_SNOOZE, 600000, ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct verdict v;
        assert_int_equal(verdict_read_result(str_from(cases[i].body), &limits, NOW, &v, NULL), 0);
        assert_int_equal(v.kind, cases[i].kind);
        assert_int_equal(v.retry_after_ms, cases[i].wait);
        assert_int_equal(v.http_status, 0);
        assert_string_equal(v.error, cases[i].error);
    }
}

static void test_refused_results(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        const char *says;
    } cases[] = {
        {"", ""},
        {"true", "a JSON object"},
        {"{}", "\"success\""},
        {"{\"message\":\"m\"}", "\"success\""},
        {"{\"success\":1}", "\"success\" must be true or false"},
        {"{\"success\":true,\"retryable\":\"no\"}", "\"retryable\" must be true or false"},
        {"{\"success\":false,\"message\":5}", "\"message\" must be a text"},
        {"{\"success\":false,\"retryAfter\":true}", "\"retryAfter\" must be a duration"},
        {"{\"success\":false,\"retryAfter\":\"soon\"}", "\"retryAfter\""},
        {"{\"success\":true,\"snooze\":-1}", "\"snooze\""},
        {"{\"success\":true,\"colour\":\"red\"}", "unknown member \"colour\""},
        {"{\"success\":true,\"success\":false}", "success"},
        {"{\"success\":false,\"message\":\"\\u0000\"}", ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct verdict v = {.kind = VERDICT_UNSENT};
        struct err err = {0};
        int rc = verdict_read_result(str_from(cases[i].body), &limits, NOW, &v, &err);
        if (rc != ERR_INVALID || !strstr(err.text, cases[i].says) || !err.text[0])
            fail_msg("%s: %s", cases[i].body, err.text);
        assert_int_equal(v.kind, VERDICT_UNSENT);
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(verdict_name(VERDICT_SUCCESS), "success");
    assert_string_equal(verdict_name(VERDICT_ACCEPTED), "accepted");
    assert_string_equal(verdict_name(VERDICT_RETRY), "retry");
    assert_string_equal(verdict_name(VERDICT_FINAL), "final");
    assert_string_equal(verdict_name(VERDICT_SNOOZE), "snooze");
    assert_string_equal(verdict_name(VERDICT_UNSENT), "unsent");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_success),
        cmocka_unit_test(test_failure_in_the_body),
        cmocka_unit_test(test_snooze),
        cmocka_unit_test(test_statuses),
        {.name = "retry-42: Retry-After is read", .test_func = test_retry_after},
        cmocka_unit_test(test_no_answer),
        cmocka_unit_test(test_unsent),
        {.name = "retry-44: long error texts", .test_func = test_long_error_texts},
        cmocka_unit_test(test_binary_error_text),
        cmocka_unit_test(test_cut_answer),
        cmocka_unit_test(test_many_values),
        cmocka_unit_test(test_deep_answer),
        cmocka_unit_test(test_results),
        cmocka_unit_test(test_refused_results),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
