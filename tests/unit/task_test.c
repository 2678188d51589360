/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/json.h"
#include "proto/task.h"

#define T0 INT64_C(1767225600000) /* 2026-01-01T00:00:00.000Z */
#define TRACE "00000000000004d20123456789abcdef"

static struct task example(void)
{
    struct task t = task_empty();

    t.id = 1234;
    strcpy(t.trace_id, TRACE);
    t.biz_uuid = STR("order-\"7\"");
    t.service_name = STR("orders");
    t.handler = STR("cancel");
    t.execute_time = T0;
    t.next_attempt_time = T0 + 1;
    t.created_at = T0 - 1000;
    t.updated_at = T0 - 999;
    t.max_retry = 3;
    return t;
}

static struct task finished(void)
{
    struct task t = example();

    t.status = TASK_SUCCESS;
    t.payload = STR("{\"n\": 18446744073709551615,\t\"x\":1e400, \"y\":1.10}");
    t.policy = STR("slow");
    t.claimed_by = STR("node-1");
    t.last_error = STR("HTTP 500: \xC3\xA4");
    t.next_attempt_time = WALL_NONE;
    t.claimed_at = T0 + 10;
    t.finished_at = T0 + 52;
    t.attempt = 2;
    t.retry_count = 1;
    t.priority = 9;
    t.timeout_ms = 60000;
    t.last_http_status = 500;
    return t;
}

static void assert_text(struct buf *b, const char *expected)
{
    assert_true(buf_ok(b));
    buf_addc(b, '\0');
    assert_string_equal(b->data, expected);
    buf_fini(b);
}

static void test_statuses_have_their_names(void **state)
{
    (void)state;
    enum task_status s;

    for (int i = 0; i < TASK_N_STATUSES; i++) {
        s = TASK_N_STATUSES;
        assert_true(task_status_parse(str_from(task_status_name((enum task_status)i)), &s));
        assert_int_equal(s, i);
    }
    assert_string_equal(task_status_name(TASK_MANUAL_REQUIRED), "MANUAL_REQUIRED");
    s = TASK_SENT;
    assert_false(task_status_parse(STR("pending"), &s));
    assert_false(task_status_parse(STR("PENDING "), &s));
    assert_false(task_status_parse(STR(""), &s));
    assert_false(task_status_parse((struct str){0}, &s));
    assert_int_equal(s, TASK_SENT);
}

/* Rows are where a task is, columns where it may go. */
static void test_moves(void **state)
{
    (void)state;
    static const char *const allowed[TASK_N_STATUSES] = {
        /*                        PSSRSFMC */
        [TASK_PENDING] = /*    */ ".x.....x", [TASK_SENDING] = /*    */ "x.xxxx..",
        [TASK_SENT] = /*       */ "x..xxx..", [TASK_RETRYING] = /*   */ ".x.....x",
        [TASK_SUCCESS] = /*    */ "........", [TASK_FAILED] = /*     */ "x.....xx",
        [TASK_MANUAL_REQUIRED] = "x......x",  [TASK_CANCELLED] = /*  */ "........",
    };

    for (int from = 0; from < TASK_N_STATUSES; from++) {
        for (int to = 0; to < TASK_N_STATUSES; to++) {
            if (task_status_can((enum task_status)from, (enum task_status)to) !=
                (allowed[from][to] == 'x'))
                fail_msg("%s to %s", task_status_name((enum task_status)from),
                         task_status_name((enum task_status)to));
        }
    }
}

static void test_sets_agree_with_the_moves(void **state)
{
    (void)state;
    for (int i = 0; i < TASK_N_STATUSES; i++) {
        enum task_status s = (enum task_status)i;
        unsigned bit = task_status_bit(s);
        assert_int_equal(task_status_can(s, TASK_CANCELLED), !!(bit & TASK_CANCELLABLE));
        assert_int_equal(task_status_can(s, TASK_SENDING), !!(bit & TASK_WAITING));
        assert_int_equal(task_status_can(s, TASK_SUCCESS), !!(bit & TASK_IN_FLIGHT));
    }
}

static void test_lanes(void **state)
{
    (void)state;
    assert_int_equal(task_lane(9, false), 0);
    assert_int_equal(task_lane(0, false), 9);
    assert_int_equal(task_lane(9, true), TASK_RETRY_LANES);
    assert_int_equal(task_lane(0, true), TASK_LANES - 1);
}

static void test_dup_owns_its_texts(void **state)
{
    (void)state;
    char biz_uuid[] = "order-7";
    struct task t = finished();
    t.biz_uuid = str_from(biz_uuid);
    t.last_error = STR("");
    t.policy = (struct str){0};

    struct task *copy = task_dup(&t);
    assert_non_null(copy);
    memset(biz_uuid, 'x', sizeof(biz_uuid) - 1);
    assert_true(str_eqz(copy->biz_uuid, "order-7"));
    assert_true(str_eq(copy->service_name, t.service_name));
    assert_true(str_eq(copy->handler, t.handler));
    assert_true(str_eq(copy->payload, t.payload));
    assert_ptr_not_equal(copy->payload.p, t.payload.p);
    assert_true(str_eq(copy->claimed_by, t.claimed_by));
    assert_true(str_eq(copy->last_error, STR("")));
    assert_null(copy->policy.p);
    assert_string_equal(copy->trace_id, TRACE);
    assert_int_equal(copy->finished_at, t.finished_at);
    assert_int_equal(copy->status, TASK_SUCCESS);

    struct task *again = task_dup(copy);
    task_free(copy);
    assert_true(str_eqz(again->biz_uuid, "order-7"));
    task_free(again);
    task_free(NULL);
}

static void test_record_of_a_new_task(void **state)
{
    (void)state;
    struct task t = example();
    struct buf b = BUF_INIT;

    task_put_record(&b, &t);
    assert_text(&b, "{\"id\":1234,\"traceId\":\"" TRACE "\",\"bizUuid\":\"order-\\\"7\\\"\","
                    "\"serviceName\":\"orders\",\"handler\":\"cancel\","
                    "\"executeTime\":\"2026-01-01T00:00:00.000Z\","
                    "\"nextAttemptTime\":\"2026-01-01T00:00:00.001Z\",\"payload\":null,"
                    "\"status\":\"PENDING\",\"retryCount\":0,\"maxRetry\":3,\"attempt\":0,"
                    "\"priority\":5,\"policy\":null,\"timeout\":null,"
                    "\"createdAt\":\"2025-12-31T23:59:59.000Z\","
                    "\"updatedAt\":\"2025-12-31T23:59:59.001Z\"");
}

static void test_record_of_a_finished_task(void **state)
{
    (void)state;
    struct task t = finished();
    struct buf b = BUF_INIT;

    task_put_record(&b, &t);
    assert_text(&b, "{\"id\":1234,\"traceId\":\"" TRACE "\",\"bizUuid\":\"order-\\\"7\\\"\","
                    "\"serviceName\":\"orders\",\"handler\":\"cancel\","
                    "\"executeTime\":\"2026-01-01T00:00:00.000Z\",\"nextAttemptTime\":null,"
                    "\"payload\":{\"n\": 18446744073709551615,\t\"x\":1e400, \"y\":1.10},"
                    "\"status\":\"SUCCESS\",\"retryCount\":1,\"maxRetry\":3,\"attempt\":2,"
                    "\"priority\":9,\"policy\":\"slow\",\"timeout\":\"1m\","
                    "\"createdAt\":\"2025-12-31T23:59:59.000Z\","
                    "\"updatedAt\":\"2025-12-31T23:59:59.001Z\","
                    "\"finishedAt\":\"2026-01-01T00:00:00.052Z\",\"durationMs\":42,"
                    "\"lastError\":\"HTTP 500: \xC3\xA4\",\"lastHttpStatus\":500,"
                    "\"claimedBy\":\"node-1\"");
}

static void test_duration_needs_a_claim(void **state)
{
    (void)state;
    struct task t = example();
    struct buf b = BUF_INIT;

    t.status = TASK_CANCELLED;
    t.finished_at = T0;
    task_put_record(&b, &t);
    buf_addc(&b, '\0');
    assert_non_null(strstr(b.data, "\"finishedAt\":\"2026-01-01T00:00:00.000Z\""));
    assert_null(strstr(b.data, "durationMs"));
    buf_fini(&b);
}

static void test_record_takes_more_members(void **state)
{
    (void)state;
    struct task t = finished();
    struct buf b = BUF_INIT;
    struct json_doc doc = JSON_DOC_INIT;

    task_put_record(&b, &t);
    buf_adds(&b, STR(",\"duplicate\":true}"));
    assert_int_equal(json_parse(&doc, buf_str(&b), 100, NULL), 0);
    assert_int_equal(doc.tokens[json_find(&doc, 0, "duplicate")].type, JSON_TRUE);
    assert_true(str_eq(doc.tokens[json_find(&doc, 0, "payload")].raw, t.payload));
    json_doc_fini(&doc);
    buf_fini(&b);
}

static void test_attempt_records(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct attempt a = {
        .attempt = 2,
        .started_at = T0,
        .ended_at = T0 + 5,
        .http_status = 503,
        .outcome = STR("retry"),
        .error = STR("HTTP 503"),
        .node = STR("node-1"),
    };

    attempt_put_record(&b, &a);
    assert_text(&b, "{\"attempt\":2,\"startedAt\":\"2026-01-01T00:00:00.000Z\","
                    "\"endedAt\":\"2026-01-01T00:00:00.005Z\",\"outcome\":\"retry\","
                    "\"httpStatus\":503,\"error\":\"HTTP 503\",\"node\":\"node-1\"}");
    a.http_status = 0;
    a.error = (struct str){0};
    a.outcome = STR("ghost");
    attempt_put_record(&b, &a);
    assert_text(&b, "{\"attempt\":2,\"startedAt\":\"2026-01-01T00:00:00.000Z\","
                    "\"endedAt\":\"2026-01-01T00:00:00.005Z\",\"outcome\":\"ghost\","
                    "\"node\":\"node-1\"}");
}

static void test_envelope(void **state)
{
    (void)state;
    struct task t = finished();
    struct buf b = BUF_INIT;

    task_put_envelope(&b, &t, T0 + 20, T0 + 60020);
    assert_text(&b, "{\"traceId\":\"" TRACE "\",\"bizUuid\":\"order-\\\"7\\\"\","
                    "\"serviceName\":\"orders\",\"handler\":\"cancel\",\"attempt\":2,"
                    "\"retryCount\":1,\"executeTime\":\"2026-01-01T00:00:00.000Z\","
                    "\"sentTime\":\"2026-01-01T00:00:00.020Z\","
                    "\"deadline\":\"2026-01-01T00:01:00.020Z\","
                    "\"payload\":{\"n\": 18446744073709551615,\t\"x\":1e400, \"y\":1.10}}");
    t.payload = (struct str){0};
    task_put_envelope(&b, &t, T0, T0);
    buf_addc(&b, '\0');
    assert_non_null(strstr(b.data, "\"payload\":null}"));
    buf_fini(&b);
}

/* As alone, but for one member more. */
static void test_envelopes(void **state)
{
    (void)state;
    struct task tasks[3] = {finished(), finished(), finished()};
    struct envelopes e;

    tasks[1].execute_time = T0 - 86400000;
    tasks[1].payload = (struct str){0};
    tasks[2].biz_uuid = STR("another");
    tasks[2].attempt = 1;
    tasks[2].retry_count = 0;
    envelopes_init(&e, &tasks[0], T0 + 20, T0 + 60020);
    for (size_t i = 0; i < 3; i++) {
        struct buf alone = BUF_INIT;
        struct buf b = BUF_INIT;

        task_put_envelope(&alone, &tasks[i], T0 + 20, T0 + 60020);
        alone.len--;
        buf_addz(&alone, ",\"traceparent\":\"00-x-1-01\"}");
        envelopes_put(&e, &b, &tasks[i], STR("00-x-1-01"));
        assert_true(buf_ok(&b) && str_eq(buf_str(&b), buf_str(&alone)));
        buf_fini(&alone);
        buf_fini(&b);
    }
    envelopes_fini(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statuses_have_their_names),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_sets_agree_with_the_moves),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_dup_owns_its_texts),
        cmocka_unit_test(test_record_of_a_new_task),
        cmocka_unit_test(test_record_of_a_finished_task),
        cmocka_unit_test(test_duration_needs_a_claim),
        cmocka_unit_test(test_record_takes_more_members),
        cmocka_unit_test(test_attempt_records),
        cmocka_unit_test(test_envelope),
        cmocka_unit_test(test_envelopes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
