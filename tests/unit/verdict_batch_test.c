/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/core/verdict_batch.h"

#define NOW INT64_C(1767225600000)
#define HOUR INT64_C(3600000)
#define N 4

/* The trace ids of a request with four tasks. */
#define A "000000000000000a00000000000000aa"
#define B "000000000000000b00000000000000bb"
#define C "000000000000000c00000000000000cc"
#define D "000000000000000d00000000000000dd"
#define PART(id, more) "{\"traceId\":\"" id "\"" more "}"
#define RESULTS(parts) "{\"results\":[" parts "]}"

static const char *const ids[N] = {A, B, C, D};
static const struct verdict_limits limits = {.retry_after_cap_ms = HOUR,
                                             .snooze_cap_ms = 24 * HOUR};

/* One letter a task: s success, a accepted, r retry, f final, z snooze, u unsent. */
static void verdicts(struct verdict_batch *b, const struct answer *a, size_t n, char *ret)
{
    verdict_batch_read(b, a, ids, n, &limits, NOW);
    for (size_t i = 0; i < n; i++)
        ret[i] = "sarfzu"[verdict_batch_get(b, i)->kind];
    ret[n] = '\0';
}

struct batch_case {
    int32_t status;
    const char *body;
    const char *kinds;
};

static void check_all(const struct batch_case *cases, size_t n)
{
    struct verdict_batch b = VERDICT_BATCH_INIT; /* used again and again */
    char kinds[N + 1];

    for (size_t i = 0; i < n; i++) {
        struct answer a = {
            .http_status = cases[i].status, .body = str_from(cases[i].body), .sent = true};

        verdicts(&b, &a, N, kinds);
        if (strcmp(kinds, cases[i].kinds) != 0)
            fail_msg("%d %s: %s instead of %s", cases[i].status, cases[i].body, kinds,
                     cases[i].kinds);
    }
    verdict_batch_fini(&b);
}
#define CHECK_ALL(cases) check_all((cases), sizeof(cases) / sizeof((cases)[0]))

static void test_results(void **state)
{
    static const struct batch_case cases[] = {
        {200, RESULTS(PART(A, "") "," PART(B, "") "," PART(C, "") "," PART(D, "")), "ssss"},
        {200,
         RESULTS(PART(D, ",\"success\":true") "," PART(C, ",\"success\":false") "," PART(
             B, ",\"success\":false,\"retryable\":false") "," PART(A, ",\"snooze\":\"1m\"")),
         "zfrs"},
        {207, RESULTS(PART(B, ",\"accepted\":true") "," PART(C, ",\"accepted\":false")), "rasr"},
        {202, RESULTS(PART(A, "") "," PART(B, ",\"success\":false")), "arrr"},
        {200,
         RESULTS(PART(A, ",\"status\":202") "," PART(B, ",\"status\":500") "," PART(
             C, ",\"status\":422") "," PART(D, ",\"status\":204")),
         "arfs"},
        {200, RESULTS(PART(A, ",\"status\":500,\"accepted\":true") "," PART(B, ",\"status\":302")),
         "rrrr"},
        {200, "{\"more\":[{\"results\":1}],\"results\":[" PART(A, ",\"data\":{\"x\":[1,2]}") "]}",
         "srrr"},
        {200, "\xEF\xBB\xBF " RESULTS(PART(A, "")), "srrr"},
        {200, RESULTS(PART(A, ",\"message\":\"\xff \\ud800\"") "," PART(B, "")), "ssrr"},
    };

    (void)state;
    CHECK_ALL(cases);
}

static void test_what_is_no_result(void **state)
{
    static const struct batch_case cases[] = {
        {200, "", "rrrr"},
        {200, "ok", "rrrr"},
        {200, "{}", "rrrr"},
        {202, "", "rrrr"},
        {204, "", "rrrr"},
        {200, "{\"success\":true}", "rrrr"},
        {200, "{\"results\":{}}", "rrrr"},
        {200, "{\"results\":null}", "rrrr"},
        {200, "{\"Results\":[" PART(A, "") "]}", "rrrr"},
        {200, "[" PART(A, "") "]", "rrrr"},
        {200, RESULTS(""), "rrrr"},
        {200, RESULTS("1,null,\"" A "\",[" PART(A, "") "]"), "rrrr"},
        {200, RESULTS("{\"traceId\":1},{\"id\":\"" A "\"},{}"), "rrrr"},
        {200, RESULTS(PART("000000000000000A00000000000000AA", "")), "rrrr"},
        {200, RESULTS(PART(A " ", "") "," PART("", "")), "rrrr"},
        {200, RESULTS(PART(A, "") "," PART(B, "") ","), "rrrr"},
        {200, "{\"results\":[" PART(A, ""), "rrrr"},
        {200, RESULTS(PART(A, "")) RESULTS(PART(A, "")), "rrrr"},
        {200, RESULTS(PART(A, ",\"success\":1") "," PART(B, ",\"success\":null")), "rrrr"},
        {200, RESULTS(PART(A, ",\"status\":\"200\"") "," PART(B, ",\"status\":100")), "rrrr"},
        {200, RESULTS(PART(A, ",\"status\":600") "," PART(B, ",\"status\":200.5")), "rrrr"},
        {200, RESULTS(PART(A, ",\"accepted\":\"yes\"") "," PART(B, ",\"snooze\":true")), "rrrr"},
        {200, RESULTS(PART(A, ",\"success\":true,\"success\":false")), "rrrr"},
    };

    (void)state;
    CHECK_ALL(cases);
}

static void test_twice(void **state)
{
    static const struct batch_case cases[] = {
        {200, RESULTS(PART(A, "") "," PART(A, "")), "srrr"},
        {200,
         RESULTS("{\"traceId\":\"" A "\",\"success\":true}, {\"success\" : true, \"traceId\":\"" A
                 "\"}"),
         "srrr"},
        {200, RESULTS(PART(A, ",\"success\":true") "," PART(A, ",\"success\":false")), "rrrr"},
        {200, RESULTS(PART(A, ",\"success\":false,\"retryable\":false") "," PART(A, "")), "rrrr"},
        {200, RESULTS(PART(A, "") "," PART(A, ",\"success\":true") "," PART(A, "")), "rrrr"},
        {200, RESULTS(PART(B, "") "," PART(A, "") "," PART(B, "")), "ssrr"},
    };

    (void)state;
    CHECK_ALL(cases);
}

static void test_for_all(void **state)
{
    static const struct batch_case cases[] = {
        {500, "", "rrrr"},
        {500, RESULTS(PART(A, "") "," PART(B, "")), "rrrr"},
        {302, "", "rrrr"},
        {404, "", "rrrr"},
        {410, "", "ffff"},
        {500, "{\"success\":false,\"retryable\":false}", "ffff"},
        {400, "", "zzzz"},
        {413, "{\"success\":false,\"retryable\":false}", "zzzz"},
        {422, "{\"retryable\":true}", "zzzz"},
    };

    (void)state;
    CHECK_ALL(cases);
}

static void test_one_alone(void **state)
{
    static const int32_t statuses[] = {400, 413, 422};
    struct verdict_batch b = VERDICT_BATCH_INIT;
    char kinds[N + 1];

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const struct answer a = {.http_status = statuses[i], .sent = true};

        verdicts(&b, &a, 1, kinds);
        assert_string_equal(kinds, "f");
        assert_true(verdict_wants_fewer(statuses[i]));
    }
    assert_false(verdict_wants_fewer(500) || verdict_wants_fewer(410) || verdict_wants_fewer(200));
    verdict_batch_fini(&b);
}

static void test_no_answer(void **state)
{
    const struct answer unsent = {.failure = STR("too late")};
    const struct answer failed = {.failure = STR("connection refused"), .sent = true};
    struct answer cut = {.http_status = 200,
                         .body = STR(RESULTS(PART(A, "") "," PART(B, ""))),
                         .body_cut = true,
                         .sent = true};
    struct verdict_batch b = VERDICT_BATCH_INIT;
    char kinds[N + 1];

    (void)state;
    verdicts(&b, &unsent, N, kinds);
    assert_string_equal(kinds, "uuuu");
    verdicts(&b, &failed, N, kinds);
    assert_string_equal(kinds, "rrrr");
    assert_string_equal(verdict_batch_get(&b, 3)->error, "connection refused");
    verdicts(&b, &cut, N, kinds);
    assert_string_equal(kinds, "rrrr");
    assert_non_null(strstr(verdict_batch_get(&b, 0)->error, "longer"));
    verdict_batch_fini(&b);
}

static void check_error(struct verdict_batch *b, size_t i, int32_t status, int64_t retry_after_ms,
                        const char *error)
{
    const struct verdict *v = verdict_batch_get(b, i);

    assert_int_equal(v->http_status, status);
    assert_int_equal(v->retry_after_ms, retry_after_ms);
    assert_string_equal(v->error, error);
}

static void test_words(void **state)
{
    struct answer a = {.http_status = 200,
                       .body = STR(RESULTS(PART("ffffffffffffffff00000000000000aa", "") "," PART(
                           D, ",\"status\":503,\"retryAfter\":\"2h\",\"message\":"
                              "\"busy\"") "," PART(A, ",\"success\":false,\"message\":"
                                                      "\"no stock\",\"retryAfter\":90"))),
                       .sent = true};
    struct verdict_batch b = VERDICT_BATCH_INIT;

    (void)state;
    verdict_batch_read(&b, &a, ids, N, &limits, NOW);
    check_error(&b, 0, 200, 90000, "no stock");
    check_error(&b, 1, 200, -1, "the answer has no result for this task");
    check_error(&b, 3, 503, HOUR, "HTTP 503: busy");
    assert_int_equal(b.n_alien, 1);
    a = (struct answer){.http_status = 429, .retry_after = STR("7"), .sent = true};
    verdict_batch_read(&b, &a, ids, N, &limits, NOW);
    check_error(&b, 2, 429, 7000, "HTTP 429");
    assert_int_equal(b.n_alien, 0);
    a = (struct answer){.http_status = 413, .body = STR("too big"), .sent = true};
    verdict_batch_read(&b, &a, ids, N, &limits, NOW);
    check_error(&b, 2, 413, 1, "HTTP 413: too big");
    a = (struct answer){.http_status = 200, .body = STR("<html>"), .sent = true};
    verdict_batch_read(&b, &a, ids, N, &limits, NOW);
    check_error(&b, 0, 200, -1,
                "the answer to a batch has to be a JSON object with \"results\", not: <html>");
    verdict_batch_fini(&b);
}

/* As many as there may be, in any order, each found. */
static void test_many(void **state)
{
    enum { MANY = SERVICE_BATCH_MAX };
    static char text[MANY][TRACE_ID_LEN + 1];
    static const char *many[MANY];
    struct rng rng = {.state = 7};
    struct buf body = BUF_INIT;
    struct verdict_batch b = VERDICT_BATCH_INIT;

    (void)state;
    buf_addz(&body, "{\"results\":[");
    for (size_t i = 0; i < MANY; i++) {
        trace_id_make((int64_t)i + 1, rng_next(&rng), text[i]);
        many[i] = text[i];
    }
    for (size_t i = 0; i < MANY; i++) {
        size_t k = i * 7 % MANY; /* 7 and 1,000 have no common divisor: each once */

        buf_addf(&body, "%s{\"traceId\":\"%s\",\"success\":%s}", i ? "," : "", text[k],
                 k % 3 ? "true" : "false");
    }
    buf_addz(&body, "]}");
    struct answer a = {.http_status = 200, .body = buf_str(&body), .sent = true};
    verdict_batch_read(&b, &a, many, MANY, &limits, NOW);
    assert_int_equal(b.n_alien, 0);
    for (size_t i = 0; i < MANY; i++)
        assert_int_equal(verdict_batch_get(&b, i)->kind, i % 3 ? VERDICT_SUCCESS : VERDICT_RETRY);
    verdict_batch_fini(&b);
    buf_fini(&body);
}

static void test_too_much(void **state)
{
    struct buf body = BUF_INIT;
    struct verdict_batch b = VERDICT_BATCH_INIT;
    char kinds[N + 1];

    (void)state;
    buf_addz(&body, "{\"results\":[" PART(A, "") ",[");
    for (int i = 0; i < 40000; i++)
        buf_addz(&body, "1,");
    buf_addz(&body, "1]]}");
    struct answer a = {.http_status = 200, .body = buf_str(&body), .sent = true};
    verdicts(&b, &a, N, kinds);
    assert_string_equal(kinds, "rrrr");
    assert_non_null(strstr(verdict_batch_get(&b, 0)->error, "too much"));
    verdict_batch_fini(&b);
    buf_fini(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results),   cmocka_unit_test(test_what_is_no_result),
        cmocka_unit_test(test_twice),     cmocka_unit_test(test_for_all),
        cmocka_unit_test(test_one_alone), cmocka_unit_test(test_no_answer),
        cmocka_unit_test(test_words),     cmocka_unit_test(test_many),
        cmocka_unit_test(test_too_much),
    };
    return cmocka_run_group_tests_name("verdict_batch", tests, NULL, NULL);
}
