/* SPDX-License-Identifier: Apache-2.0 */
/* Workers at the interface: what they ask for, what they are told, what becomes of tasks when they
 * have gone; and what they report in bulk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/api_fixture.h"

#define LEASE "/api/services/s/lease"
#define MEMBERS "/internal/lease?stamp=7&signature=v1,a%2B/%3D"
#define RESULTS "/api/attempts/results"
#define BEATS "/api/attempts/heartbeats"
#define TRACE_A "00000000000000010000000000001234"
#define TRACE_B "00000000000000020000000000001234"

static struct api_fixture f;

static struct task *leased_task(const char *payload)
{
    struct task t = task_empty();
    trace_id_make(7, 9, t.trace_id);
    t.id = 7;
    t.status = TASK_SENDING;
    t.biz_uuid = STR("order-7");
    t.service_name = STR("s");
    t.handler = STR("h");
    t.payload = str_from(payload);
    t.attempt = 2;
    t.retry_count = 1;
    t.execute_time = 1000;
    t.claimed_at = 100000;
    t.deadline_at = 100000 + 30000 + 60000;
    return task_dup(&t);
}

static int start(void **state)
{
    struct api_config cfg = api_fixture_config();
    (void)state;
    api_fixture_start(&f, &cfg);
    f.last_lease.hand_by = INT64_MAX;
    f.leased[0] = leased_task("{\"n\":1.10}");
    f.leased[1] = leased_task(NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    task_free(f.leased[0]);
    task_free(f.leased[1]);
    api_fixture_stop(&f);
    return 0;
}

static char *call(const char *path, const char *body, int status)
{
    return expect_call(&f, "POST", path, body, status);
}

static void expect_in(const char *text, const char *part)
{
    assert_non_null(text);
    if (!strstr(text, part))
        print_error("not in the answer: %s\n", part);
    assert_non_null(strstr(text, part));
}

/* ---- Lease ------------------------------------------------------------------------------- */

static void test_defaults(void **state)
{
    (void)state;
    char *text = call(LEASE, NULL, 200);
    assert_string_equal(text, "{\"tasks\":[]}");
    free(text);
    assert_int_equal(f.last_lease.max_tasks, 1);
    assert_int_equal(f.last_lease.wait_ms, 20000);
    assert_int_equal(f.last_lease.visibility_ms, 0);
    free(call(LEASE,
              "{\"maxTasks\":1000,\"wait\":\"1m\",\"visibility\":\"24h\",\"worker\":\"w-1\"}",
              200));
    assert_int_equal(f.last_lease.max_tasks, 1000);
    assert_int_equal(f.last_lease.wait_ms, 60000);
    assert_int_equal(f.last_lease.visibility_ms, 86400000);
}

static void test_tasks(void **state)
{
    (void)state;
    f.n_leased = 2;
    char *text = call(LEASE, "{\"maxTasks\":2}", 200);
    expect_in(text, "{\"tasks\":[{\"traceId\":\"00000000000000070000000000000009\",\"bizUuid\":"
                    "\"order-7\",\"serviceName\":\"s\",\"handler\":\"h\",\"attempt\":2,"
                    "\"retryCount\":1,\"executeTime\":\"1970-01-01T00:00:01.000Z\"");
    expect_in(text, "\"deadline\":\"1970-01-01T00:02:10.000Z\",\"payload\":{\"n\":1.10},"
                    "\"leaseUntil\":\"1970-01-01T00:03:10.000Z\"},{\"traceId\":");
    expect_in(text, "\"payload\":null,\"leaseUntil\"");
    assert_int_equal(atomic_load(&f.n_given_back), 0);
    free(text);
}

static void test_too_late_to_hand_out(void **state)
{
    (void)state;
    f.n_leased = 2;
    f.last_lease.hand_by = clock_mono();
    char *text = call(LEASE, NULL, 200);
    assert_string_equal(text, "{\"tasks\":[]}");
    assert_int_equal(atomic_load(&f.n_given_back), 2);
    free(text);
}

static void test_an_answer_has_its_size(void **state)
{
    (void)state;
    char *payload = malloc(LEASE_BYTES_MAX + 3);
    memset(payload, 'x', LEASE_BYTES_MAX + 2);
    payload[0] = payload[LEASE_BYTES_MAX + 1] = '"';
    payload[LEASE_BYTES_MAX + 2] = '\0';
    task_free(f.leased[0]);
    f.leased[0] = leased_task(payload);
    f.n_leased = 2;
    char *text = call(LEASE, "{\"maxTasks\":2}", 200);
    assert_true(strlen(text) > LEASE_BYTES_MAX);
    assert_int_equal(atomic_load(&f.n_given_back), 1);
    free(text);
    free(payload);
}

static void test_refusals(void **state)
{
    static const struct {
        enum lease_outcome outcome;
        int status;
        const char *part;
    } rows[] = {
        {LEASE_UNKNOWN, 404, "not-found"},
        {LEASE_NOT_PULL, 409, "\\\"delivery\\\":{\\\"mode\\\":\\\"pull\\\"}"},
        {LEASE_TOO_MANY, 503, "as many workers wait here as may"},
        {LEASE_STOPPING, 503, "stopping"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        f.last_lease.outcome = rows[i].outcome;
        char *text = call(LEASE, NULL, rows[i].status);
        expect_in(text, rows[i].part);
        free(text);
    }
    atomic_store(&f.knows_services, false);
    free(call(LEASE, NULL, 503));
}

static void test_bad_leases(void **state)
{
    static const struct {
        const char *body, *field;
    } rows[] = {
        {"{\"maxTasks\":0}", "maxTasks"},     {"{\"maxTasks\":1001}", "maxTasks"},
        {"{\"maxTasks\":\"1\"}", "maxTasks"}, {"{\"wait\":\"61s\"}", "wait"},
        {"{\"wait\":\"-1s\"}", "wait"},       {"{\"wait\":null}", "wait"},
        {"{\"visibility\":0}", "visibility"}, {"{\"visibility\":\"25h\"}", "visibility"},
        {"{\"worker\":\"a b\"}", "worker"},   {"{\"worker\":\"\"}", "worker"},
        {"{\"tasks\":1}", "tasks"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char part[64];
        char *text = call(LEASE, rows[i].body, 400);
        (void)snprintf(part, sizeof(part), "\"field\":\"%s\"", rows[i].field);
        expect_in(text, part);
        free(text);
    }
    free(call("/api/services/a%20b/lease", NULL, 400));
    free(call(LEASE, "[]", 400));
}

static bool was_given_back(void *ctx)
{
    (void)ctx;
    return atomic_load(&f.n_given_back) == 2;
}

static void send_post(struct client *c, const char *path, const char *body)
{
    char text[256];
    (void)snprintf(text, sizeof(text),
                   "POST %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n\r\n%s",
                   path, strlen(body), body);
    client_open(c, f.address);
    client_send(c, text);
}

static bool is_held(void *ctx)
{
    (void)ctx;
    return atomic_load(&f.n_held) == 1;
}

/* Gone while the node has the query. */
static void hang_up(const char *path, const char *body, bool reset)
{
    struct client c;
    atomic_store(&f.n_given_back, 0);
    atomic_store(&f.n_cancelled, 0);
    atomic_store(&f.n_held, 0);
    atomic_store(&f.holds_leases, true);
    send_post(&c, path, body);
    wait_until(is_held, NULL);
    if (reset)
        client_reset(&c);
    else
        client_close(&c);
}

/* The client has gone: what comes for it all the same goes back, whoever it is and whoever claimed
 * it. */
static void test_hang_up(void **state)
{
    (void)state;
    f.n_leased = 2;
    for (int reset = 0; reset < 2; reset++) {
        hang_up(LEASE, "{}", reset);
        wait_until(was_given_back, NULL);
        assert_int_equal(atomic_load(&f.n_cancelled), 1);
        hang_up(MEMBERS, "{\"service\":\"s\"}", reset);
        wait_until(was_given_back, NULL);
        assert_int_equal(f.last_given_back.id, 7);
        assert_int_equal(f.last_given_back.attempt, 2);
        assert_int_equal(f.last_given_back.retry_count, 1);
    }
}

static bool one_was_given_back(void *ctx)
{
    (void)ctx;
    return atomic_load(&f.n_given_back) == 1;
}

static void test_what_another_member_claimed(void **state)
{
    (void)state;
    f.forwarded = "{\"tasks\":[{\"n\":1.10}]}";
    char *text = call(LEASE, NULL, 200);
    assert_string_equal(text, f.forwarded);
    assert_int_equal(atomic_load(&f.n_given_back), 0);
    free(text);
    f.last_lease.hand_by = clock_mono();
    text = call(LEASE, NULL, 200);
    assert_string_equal(text, "{\"tasks\":[]}");
    assert_int_equal(atomic_load(&f.n_given_back), 1);
    free(text);
    f.last_lease.hand_by = INT64_MAX;
    hang_up(LEASE, "{}", false);
    wait_until(one_was_given_back, NULL);
    assert_int_equal(f.last_given_back.id, 8);
    assert_int_equal(f.last_given_back.shard, 1);
}

/* More than sockets hold, and it is not read. */
static void test_an_answer_that_does_not_get_out(void **state)
{
    const struct {
        const char *path, *body;
    } rows[] = {{LEASE, "{\"maxTasks\":2}"}, {MEMBERS, "{\"service\":\"s\",\"maxTasks\":2}"}};
    struct client c;
    (void)state;
    char *payload = malloc(LEASE_BYTES_MAX);
    memset(payload, 'x', LEASE_BYTES_MAX - 1);
    payload[0] = payload[LEASE_BYTES_MAX - 2048] = '"';
    payload[LEASE_BYTES_MAX - 2047] = '\0';
    for (int i = 0; i < 2; i++) {
        task_free(f.leased[i]);
        f.leased[i] = leased_task(payload);
    }
    free(payload);
    f.n_leased = 2;
    for (size_t i = 0; i < 2; i++) {
        atomic_store(&f.n_given_back, 0);
        send_post(&c, rows[i].path, rows[i].body);
        assert_true(client_readable(&c, 5000));
        assert_int_equal(atomic_load(&f.n_given_back), 0);
        client_reset(&c);
        wait_until(was_given_back, NULL);
    }
}

static void test_members_ask(void **state)
{
    (void)state;
    free(call("/internal/lease", "{\"service\":\"s\"}", 404));
    f.n_leased = 1;
    char *text = call(MEMBERS, "{\"service\":\"s\",\"maxTasks\":5,\"visibility\":3000}", 200);
    char *claims = strchr(text, '\n');
    assert_non_null(claims);
    *claims++ = '\0';
    expect_in(text, "order-7");
    char line[64];
    (void)snprintf(line, sizeof(line), "{\"service\":\"s\",\"claims\":[[7,2,1,%d,0]]}",
                   (int)f.leased[0]->priority);
    char want[128];
    (void)snprintf(want, sizeof(want), "%s\n7 signed-%zu", line,
                   strlen(text) + 1 + strlen(line)); /* the tasks, too */
    assert_string_equal(claims, want);
    assert_int_equal(f.last_lease.max_tasks, 5);
    assert_int_equal(f.last_lease.visibility_ms, 3000);
    free(text);
    f.n_leased = 0;
    text = call(MEMBERS, "{\"service\":\"s\"}", 200);
    assert_string_equal(text, LEASE_NO_TASKS);
    free(text);
    text = call(MEMBERS, "{\"service\":\"s\",\"watch\":5000}", 200);
    assert_string_equal(text, "{\"ready\":0}");
    assert_int_equal(f.last_lease.wait_ms, 5000);
    free(text);
    free(call(MEMBERS, "{\"hints\":[]}", 400));
}

/* ---- Reports ----------------------------------------------------------------------------- */

static void submit(const char *key)
{
    char body[128];
    (void)snprintf(body, sizeof(body),
                   "{\"bizUuid\":\"%s\",\"serviceName\":\"s\",\"handler\":\"h\"}", key);
    free(call("/api/delay-tasks", body, 201));
    fake_put(&f.store, key, TASK_SENDING, 1);
}

static void expect_status(const char *key, enum task_status status)
{
    struct task *t = fake_get(&f.store, key);
    assert_int_equal(t->status, status);
    task_free(t);
}

static void test_results(void **state)
{
    (void)state;
    submit("a");
    submit("b");
    char *text = call(RESULTS,
                      "{\"results\":[{\"traceId\":\"" TRACE_B "\",\"attempt\":1,\"success\":false,"
                      "\"retryable\":false,\"message\":\"no\"},"
                      "{\"traceId\":\"" TRACE_A "\",\"attempt\":1,\"success\":true},"
                      "{\"traceId\":\"" TRACE_A "\",\"attempt\":9,\"success\":true},"
                      "{\"traceId\":\"00000000000000010000000000001235\",\"attempt\":1,"
                      "\"success\":true},{\"traceId\":\"" TRACE_A "\",\"attempt\":1}]}",
                      200);
    expect_in(text, "{\"results\":[{\"status\":200,\"taskStatus\":\"FAILED\"},"
                    "{\"status\":200,\"taskStatus\":\"SUCCESS\"},{\"status\":409,\"problem\":{");
    expect_in(text, "the live one is 1");
    expect_in(text, "{\"status\":404,\"problem\":{");
    expect_in(text, "{\"status\":400,\"problem\":{");
    free(text);
    expect_status("a", TASK_SUCCESS);
    expect_status("b", TASK_FAILED);
    unsigned before = atomic_load(&f.store.n_posts);
    text = call(RESULTS,
                "{\"results\":[{\"traceId\":\"" TRACE_A "\",\"attempt\":1,\"success\":true},"
                "{\"traceId\":\"" TRACE_B "\",\"attempt\":1,\"success\":true}]}",
                200);
    expect_in(text, "{\"results\":[{\"status\":200,\"taskStatus\":\"SUCCESS\"},{\"status\":409");
    free(text);
    assert_int_equal(atomic_load(&f.store.n_posts), before + 1); /* there was nothing to write */
}

static void test_lost_and_failing(void **state)
{
    (void)state;
    submit("a");
    atomic_store(&f.store.lose_finish, true);
    char *text =
        call(RESULTS,
             "{\"results\":[{\"traceId\":\"" TRACE_A "\",\"attempt\":1,\"success\":true}]}", 200);
    expect_in(text, "{\"results\":[{\"status\":409");
    free(text);
    atomic_store(&f.store.fail, ERR_UNAVAILABLE);
    text =
        call(RESULTS,
             "{\"results\":[{\"traceId\":\"" TRACE_A "\",\"attempt\":1,\"success\":true}]}", 503);
    expect_in(text, "\"effect\":\"none\"");
    free(text);
    text = call(BEATS, "{\"attempts\":[{\"traceId\":\"" TRACE_A "\",\"attempt\":1}]}", 503);
    expect_in(text, "\"effect\":\"unknown\"");
    free(text);
    atomic_store(&f.store.fail, 0);
    atomic_store(&f.store.refuse, ERR_BUSY);
    free(call(BEATS, "{\"attempts\":[{\"traceId\":\"" TRACE_A "\",\"attempt\":1}]}", 503));
}

static void test_beats(void **state)
{
    (void)state;
    submit("a");
    submit("b");
    char *text =
        call(BEATS,
             "{\"attempts\":[{\"traceId\":\"" TRACE_B "\",\"attempt\":1,\"extend\":\"5m\"},"
             "{\"traceId\":\"" TRACE_A "\",\"attempt\":1},"
             "{\"traceId\":\"" TRACE_A "\",\"attempt\":2},"
             "{\"traceId\":\"7000000000000000000000000000abcd\",\"attempt\":1},7]}",
             200);
    assert_true(strstr(text, "{\"results\":[{\"status\":200,\"deadline\":\""
                             "1970-01-01T00:21:40.000Z\"},{\"status\":200,\"deadline\":\""
                             "1970-01-01T00:18:40.000Z\"},{\"status\":409,\"problem\":{") == text);
    expect_in(text, "{\"status\":404,\"problem\":{");
    expect_in(text, "each of attempts has to be an object");
    free(text);
}

static void test_bad_reports(void **state)
{
    static const struct {
        const char *path, *body, *field;
    } rows[] = {
        {RESULTS, "{}", "results"},
        {RESULTS, "{\"results\":[]}", "results"},
        {RESULTS, "{\"results\":{}}", "results"},
        {RESULTS, "{\"results\":[1],\"more\":1}", "more"},
        {RESULTS, "{\"more\":1,\"results\":[1]}", "more"},
        {BEATS, "{\"attempts\":7}", "attempts"},
        {BEATS, "{\"results\":[]}", "results"},
    };
    static const struct {
        const char *path, *body, *field;
    } parts[] = {
        {RESULTS, "{\"results\":[{\"attempt\":1,\"success\":true}]}", "traceId"},
        {RESULTS, "{\"results\":[{\"traceId\":\"x\",\"attempt\":1,\"success\":true}]}", "traceId"},
        {RESULTS, "{\"results\":[{\"traceId\":\"" TRACE_A "\",\"success\":true}]}", "attempt"},
        {RESULTS, "{\"results\":[{\"traceId\":\"" TRACE_A "\",\"attempt\":0,\"success\":true}]}",
         "attempt"},
        {RESULTS, "{\"results\":[{\"traceId\":\"" TRACE_A "\",\"attempt\":1,\"success\":1}]}",
         "success"},
        {RESULTS, "{\"results\":[{\"traceId\":\"" TRACE_A "\",\"attempt\":1,\"x\":true}]}", "x"},
        {RESULTS, "{\"results\":[{\"traceId\":\"" TRACE_A "\",\"attempt\":1,\"snooze\":\"x\"}]}",
         "snooze"},
        {BEATS, "{\"attempts\":[{\"traceId\":\"" TRACE_A "\",\"attempt\":1,\"extend\":0}]}",
         "extend"},
        {BEATS, "{\"attempts\":[{\"traceId\":\"" TRACE_A "\",\"attempt\":1,\"extend\":\"25h\"}]}",
         "extend"},
    };
    char want[64];
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *text = call(rows[i].path, rows[i].body, 400);
        (void)snprintf(want, sizeof(want), "\"field\":\"%s\"", rows[i].field);
        expect_in(text, want);
        free(text);
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char *text = call(parts[i].path, parts[i].body, 200);
        (void)snprintf(want, sizeof(want), "\"field\":\"%s\"", parts[i].field);
        expect_in(text, "{\"results\":[{\"status\":400,\"problem\":{");
        expect_in(text, want);
        free(text);
    }
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_defaults),
        CASE(test_tasks),
        CASE(test_too_late_to_hand_out),
        CASE(test_an_answer_has_its_size),
        CASE(test_refusals),
        CASE(test_bad_leases),
        CASE(test_hang_up),
        CASE(test_what_another_member_claimed),
        CASE(test_an_answer_that_does_not_get_out),
        CASE(test_members_ask),
        CASE(test_results),
        CASE(test_lost_and_failing),
        CASE(test_beats),
        CASE(test_bad_reports),
    };
    return cmocka_run_group_tests_name("api_lease", tests, NULL, NULL);
}
