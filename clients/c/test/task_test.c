/* SPDX-License-Identifier: Apache-2.0 */
#include "task.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "answer.h"
#include "rig.h"

static char text[200000];

static int read_text(struct jfx_task *ret)
{
    const char *why = "";

    return jfx_task_read(text, strlen(text), ret, &why);
}

static void all_members_are_read(void **state)
{
    struct jfx_task t;
    (void)state;

    rig_envelope(text, sizeof(text), RIG_TRACE, 3, "close", "{\"orderId\":\"o-1\"}");
    assert_int_equal(read_text(&t), 0);
    assert_string_equal(t.task.trace_id, RIG_TRACE);
    assert_string_equal(t.task.biz_uuid, "order-1");
    assert_string_equal(t.task.service, "shop");
    assert_string_equal(t.task.handler, "close");
    assert_int_equal(t.task.attempt, 3);
    assert_int_equal(t.task.retry_count, 2);
    assert_true(t.task.execute_time_ms == INT64_C(1769860800000));
    assert_true(t.task.sent_time_ms == INT64_C(1769860800007));
    assert_true(t.task.deadline_ms == INT64_C(1769860860007));
    assert_string_equal(t.task.payload_text, "{\"orderId\":\"o-1\"}");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(t.task.payload, "orderId")),
                        "o-1");
    int64_t left = jobflow_task_remaining_ms(&t.task);
    assert_true(left > 0 && left <= 60000);
    t.received_ms -= 60001;
    assert_int_equal(jobflow_task_remaining_ms(&t.task), 0);
    jfx_task_fini(&t);
}

static void the_payload_stays_byte_for_byte(void **state)
{
    static const char *const payloads[] = {
        "null",
        "\"\"",
        "[]",
        "{}",
        "-1.10",
        "18446744073709551615",
        "1e400",
        "{ \"payload\" : [1, {\"a\":\"}]\\\"\"}] , \"x\":\"\\\\\" }",
        "[77,null,1.10,\"\\u00e4 \xc3\xa4\",{\"traceId\":\"x\"}]"};
    (void)state;

    for (size_t i = 0; i < sizeof(payloads) / sizeof(payloads[0]); i++) {
        struct jfx_task t;
        rig_envelope(text, sizeof(text), RIG_TRACE, 1, "close", payloads[i]);
        assert_int_equal(read_text(&t), 0);
        assert_string_equal(t.task.payload_text, payloads[i]);
        assert_int_equal(t.task.payload_len, strlen(payloads[i]));
        assert_non_null(t.task.payload);
        assert_string_equal(t.task.trace_id, RIG_TRACE);
        jfx_task_fini(&t);
    }
}

/* What cJSON cannot represent reaches the handler as text. */
static void no_payload_is_too_odd(void **state)
{
    char digits[201] = "";
    static char deep[50001];
    struct jfx_task t;
    (void)state;

    memset(digits, '7', 200);
    rig_envelope(text, sizeof(text), RIG_TRACE, 1, "close", digits);
    assert_int_equal(read_text(&t), 0);
    assert_string_equal(t.task.payload_text, digits); /* older versions of cJSON refuse it */
    jfx_task_fini(&t);

    memset(deep, '[', 25000);
    memset(deep + 25000, ']', 25000);
    rig_envelope(text, sizeof(text), RIG_TRACE, 1, "close", deep);
    assert_int_equal(read_text(&t), 0);
    assert_int_equal(t.task.payload_len, 50000);
    assert_null(t.task.payload);
    jfx_task_fini(&t);
}

static void a_payload_may_be_missing_and_stand_anywhere(void **state)
{
    static const char head[] = "\"traceId\":\"" RIG_TRACE "\",\"bizUuid\":\"b\",\"serviceName\":"
                               "\"shop\",\"handler\":\"h\",\"attempt\":1,\"retryCount\":0,"
                               "\"executeTime\":\"2026-01-31T12:00:00.000Z\",\"sentTime\":"
                               "\"2026-01-31T12:00:00.000Z\",\"deadline\":"
                               "\"2026-01-31T12:00:00.000Z\"";
    struct jfx_task t;
    (void)state;

    (void)snprintf(text, sizeof(text), " {%s}\n", head);
    assert_int_equal(read_text(&t), 0);
    assert_string_equal(t.task.payload_text, "null");
    assert_true(cJSON_IsNull(t.task.payload));
    jfx_task_fini(&t);
    (void)snprintf(text, sizeof(text), "{ \"payload\" : [ 1 ] \n, \"new\":{\"payload\":2}, %s}",
                   head);
    assert_int_equal(read_text(&t), 0);
    assert_string_equal(t.task.payload_text, "[ 1 ]");
    jfx_task_fini(&t);
    (void)snprintf(text, sizeof(text), "{\"payload\":1,\"payload\":2,%s}", head);
    assert_int_equal(read_text(&t), JOBFLOW_EINVAL);
}

/* Every beginning of an envelope, and every envelope with one byte changed, is read or refused. */
static void damaged_envelopes_do_no_harm(void **state)
{
    static const char bytes[] = {'\0', '"', '\\', '{', '}', '[', ']', ',', ':', ' ', '\xff', '9'};
    char whole[1024];
    struct jfx_task t;
    const char *why;
    size_t n_refused = 0;
    (void)state;

    rig_envelope(whole, sizeof(whole), RIG_TRACE, 1, "close", "{\"a\":[1,\"\\\"\"]}");
    size_t len = strlen(whole);
    for (size_t i = 0; i < len; i++) {
        char *part = malloc(i + 1); /* of this very size, for the sanitizer */
        memcpy(part, whole, i);
        assert_int_equal(jfx_task_read(part, i, &t, &why), JOBFLOW_EINVAL);
        assert_non_null(why);
        free(part);
        for (size_t k = 0; k < sizeof(bytes); k++) {
            char *copy = malloc(len);
            memcpy(copy, whole, len);
            copy[i] = bytes[k];
            if (jfx_task_read(copy, len, &t, &why) == 0)
                jfx_task_fini(&t);
            else
                n_refused++;
            free(copy);
        }
    }
    assert_true(n_refused > len);
}

static void wrong_members_are_named(void **state)
{
    static const struct {
        const char *what;
        const char *with;
        const char *why;
    } cases[] = {
        {"\"traceId\":\"", "\"traceid\":\"", "traceId is missing"},
        {"\"order-1\"", "7", "bizUuid is missing"},
        {"\"shop\"", "null", "serviceName is missing"},
        {"\"handler\"", "\"Handler\"", "handler is missing"},
        {"\"attempt\":1", "\"attempt\":0", "attempt is no number from 1 on"},
        {"\"attempt\":1", "\"attempt\":1.5", "attempt is no number from 1 on"},
        {"\"attempt\":1", "\"attempt\":1e99", "attempt is no number from 1 on"},
        {"\"attempt\":1", "\"attempt\":\"1\"", "attempt is no number from 1 on"},
        {"\"retryCount\":0", "\"retryCount\":-1", "retryCount is no number from 0 on"},
        {"12:00:00.000Z", "12:00:00Z",
         "executeTime, sentTime or deadline is no time in UTC with milliseconds"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char whole[1024];
        struct jfx_task t;
        const char *why = "";
        rig_envelope(whole, sizeof(whole), RIG_TRACE, 1, "close", "1");
        const char *at = strstr(whole, cases[i].what);
        assert_non_null(at);
        (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - whole), whole, cases[i].with,
                       at + strlen(cases[i].what));
        assert_int_equal(jfx_task_read(text, strlen(text), &t, &why), JOBFLOW_EINVAL);
        assert_string_equal(why, cases[i].why);
    }
}

/* ---- Answers ----------------------------------------------------------------------------- */

static void expect_encoded(struct jobflow_answer a, int status, const char *wanted)
{
    jfx_answer_mend(&a);
    char *got = jfx_answer_encode(&a);

    assert_string_equal(got, wanted);
    assert_int_equal(jfx_answer_status(&a), status);
    free(got);
}

static void answers_are_encoded(void **state)
{
    (void)state;
    expect_encoded(jobflow_success("done %d", 7), 200, "{\"success\":true,\"message\":\"done 7\"}");
    expect_encoded(jobflow_success(NULL), 200, "{\"success\":true}");
    expect_encoded(jobflow_later(), 202, "{\"success\":true}");
    expect_encoded(jobflow_retry(0, "no"), 500,
                   "{\"success\":false,\"retryable\":true,\"message\":\"no\"}");
    expect_encoded(
        jobflow_retry(1500, "no"), 500,
        "{\"success\":false,\"retryable\":true,\"retryAfter\":\"1500ms\",\"message\":\"no\"}");
    expect_encoded(jobflow_fail("never"), 422,
                   "{\"success\":false,\"retryable\":false,\"message\":\"never\"}");
    expect_encoded(jobflow_snooze(600000, "closed"), 200,
                   "{\"snooze\":\"600000ms\",\"message\":\"closed\"}");
}

static void answers_are_mended(void **state)
{
    struct jobflow_answer a = {.outcome = (enum jobflow_outcome)77, .wait_ms = -5};
    (void)state;

    memset(a.message, 'x', sizeof(a.message)); /* without an end */
    jfx_answer_mend(&a);
    assert_int_equal(a.outcome, JOBFLOW_RETRY);
    assert_int_equal(a.wait_ms, 0);
    assert_int_equal(strlen(a.message), JOBFLOW_MESSAGE_MAX - 1);
    expect_encoded(jobflow_snooze(0, "\xff\xc3\xa4\xc3"), 200,
                   "{\"snooze\":\"1ms\",\"message\":\"?\xc3\xa4?\"}");
    expect_encoded(jobflow_fail("\xed\xa0\x80\xf0\x9f\x98\x80\xe0\x80\x80\xf4\x90\x80\x80"), 422,
                   "{\"success\":false,\"retryable\":false,"
                   "\"message\":\"???\xf0\x9f\x98\x80???????\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_members_are_read),
        cmocka_unit_test(the_payload_stays_byte_for_byte),
        cmocka_unit_test(no_payload_is_too_odd),
        cmocka_unit_test(a_payload_may_be_missing_and_stand_anywhere),
        cmocka_unit_test(damaged_envelopes_do_no_harm),
        cmocka_unit_test(wrong_members_are_named),
        cmocka_unit_test(answers_are_encoded),
        cmocka_unit_test(answers_are_mended),
    };

    return cmocka_run_group_tests_name("clients/task", tests, NULL, NULL);
}
