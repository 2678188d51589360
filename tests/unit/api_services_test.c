/* SPDX-License-Identifier: Apache-2.0 */
/* Services, what asynchronous handlers report, and the calls for machines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/api_fixture.h"

#define TASKS "/api/delay-tasks"
#define SERVICES "/api/services"
#define TRACE "00000000000000010000000000001234" /* of the first task */
#define RESULT(attempt) "/api/attempts/" TRACE "/" attempt "/result"
#define BEAT(attempt) "/api/attempts/" TRACE "/" attempt "/heartbeat"
#define BEAT_B "/api/attempts/00000000000000020000000000001234/1/heartbeat"
#define TASK(more) "{\"bizUuid\":\"a\",\"serviceName\":\"s\",\"handler\":\"h\"" more "}"

static struct api_fixture f;

static int start(void **state)
{
    struct api_config cfg = api_fixture_config();
    (void)state;
    api_fixture_start(&f, &cfg);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    api_fixture_stop(&f);
    return 0;
}

static void call(const char *method, const char *path, const char *body, int status)
{
    free(expect_call(&f, method, path, body, status));
}

/* ---- Services ---------------------------------------------------------------------------- */

static void test_services(void **state)
{
    (void)state;
    char *text = expect_call(&f, "GET", SERVICES, NULL, 200);
    assert_string_equal(text, "{\"services\":[]}");
    free(text);
    text = expect_call(&f, "PUT", SERVICES "/s", "{\"baseUrl\":\"http://h:1/x\"}", 201);
    expect_json(text, "name", "\"s\"");
    expect_json(text, "baseUrl", "\"http://h:1/x\"");
    expect_json(text, "hasSecret", "false");
    expect_json(text, "policy", "\"default\"");
    expect_json(text, "shards", "1");
    expect_json(text, "concurrency", "64");
    expect_json(text, "timeout", "\"1m\"");
    expect_json(text, "paused", "false");
    free(text);
    text = expect_call(&f, "PUT", SERVICES "/s",
                       "{\"baseUrl\":\"https:\\/\\/h\",\"secret\":\"whsec_abc\",\"shards\":256,"
                       "\"concurrency\":5,\"timeout\":1.5,\"policy\":\"slow\"}",
                       200);
    expect_json(text, "baseUrl", "\"https://h\"");
    expect_json(text, "hasSecret", "true");
    expect_json(text, "shards", "256");
    expect_json(text, "concurrency", "5");
    expect_json(text, "timeout", "\"1s500ms\"");
    expect_json(text, "policy", "\"slow\"");
    assert_null(strstr(text, "whsec"));
    free(text);
    assert_true(str_eqz(f.store.services[0].s.secret, "whsec_abc"));
    assert_int_equal(atomic_load(&f.n_services_changed), 2);
    call("PUT", SERVICES "/t", "{\"baseUrl\":\"http://t\"}", 201);
    text = expect_call(&f, "GET", SERVICES, NULL, 200);
    expect_json(text, "services.0.name", "\"s\"");
    expect_json(text, "services.1.name", "\"t\"");
    assert_null(strstr(text, "whsec"));
    free(text);
    text = expect_call(&f, "GET", SERVICES "/s", NULL, 200);
    expect_json(text, "hasSecret", "true");
    assert_null(strstr(text, "whsec"));
    free(text);
    expect_problem(&f, "GET", SERVICES "/u", NULL, 404, "name");
}

static void expect_delivery(const char *settings, const char *mode, const char *size,
                            const char *wait)
{
    char body[200];
    char found[32];

    snprintf(body, sizeof(body), "{\"baseUrl\":\"http://h\"%s}", settings);
    free(expect_call(&f, "PUT", SERVICES "/d", body, f.store.n_services ? 200 : 201));
    char *text = expect_call(&f, "GET", SERVICES "/d", NULL, 200);
    expect_json(text, "delivery.mode", mode);
    assert_int_equal(json_at(text, "delivery.maxSize", found, sizeof(found)), size != NULL);
    assert_int_equal(json_at(text, "delivery.maxWait", found, sizeof(found)), wait != NULL);
    if (size)
        expect_json(text, "delivery.maxSize", size);
    if (wait)
        expect_json(text, "delivery.maxWait", wait);
    free(text);
}

static void test_delivery(void **state)
{
    (void)state;
    expect_delivery("", "\"push\"", NULL, NULL);
    expect_delivery(",\"delivery\":{\"mode\":\"batch\"}", "\"batch\"", "100", "\"5ms\"");
    assert_int_equal(f.store.services[0].s.batch_wait_ms, 5);
    expect_delivery(",\"delivery\":{\"maxWait\":0,\"mode\":\"batch\",\"maxSize\":1000}",
                    "\"batch\"", "1000", "\"0s\"");
    expect_delivery(",\"delivery\":{\"mode\":\"push\"}", "\"push\"", NULL, NULL);
    assert_int_equal(f.store.services[0].s.batch_size, 0);
    char *text = expect_call(&f, "PUT", SERVICES "/d", "{\"delivery\":{\"mode\":\"pull\"}}", 200);
    expect_json(text, "delivery.mode", "\"pull\"");
    expect_json(text, "baseUrl", "null");
    free(text);
    assert_int_equal(f.store.services[0].s.delivery, DELIVERY_PULL);
}

static void test_pause_and_delete(void **state)
{
    (void)state;
    call("PUT", SERVICES "/s", "{\"baseUrl\":\"http://h\"}", 201);
    char *text = expect_call(&f, "POST", SERVICES "/s/pause", NULL, 200);
    expect_json(text, "paused", "true");
    free(text);
    text = expect_call(&f, "PUT", SERVICES "/s", "{\"baseUrl\":\"http://h\"}", 200);
    expect_json(text, "paused", "true");
    free(text);
    text = expect_call(&f, "POST", SERVICES "/s/resume", "{}", 200);
    expect_json(text, "paused", "false");
    free(text);
    assert_int_equal(atomic_load(&f.n_services_changed), 4);
    expect_problem(&f, "POST", SERVICES "/u/pause", NULL, 404, "name");
    call("POST", TASKS, TASK(""), 201);
    expect_problem(&f, "DELETE", SERVICES "/s", NULL, 409, "name");
    call("DELETE", TASKS "/a", NULL, 200);
    call("DELETE", SERVICES "/s", NULL, 204);
    expect_problem(&f, "DELETE", SERVICES "/s", NULL, 404, "name");
    assert_int_equal(atomic_load(&f.n_services_changed), 5);
}

/* ---- Results ----------------------------------------------------------------------------- */

static void accepted(enum task_status status, int32_t attempt, const char *more)
{
    char body[200];
    snprintf(body, sizeof(body), TASK("%s"), more);
    call("POST", TASKS, body, 201);
    fake_put(&f.store, "a", status, attempt);
}

static void test_success(void **state)
{
    (void)state;
    accepted(TASK_SENT, 2, "");
    char *text = expect_call(&f, "POST", RESULT("2"), "{\"success\":true}", 200);
    expect_json(text, "status", "\"SUCCESS\"");
    free(text);
    assert_int_equal(f.store.last_finish.from, TASK_IN_FLIGHT);
    assert_int_equal(f.store.last_finish.attempt, 2);
    assert_int_equal(counter_get(&f.counters.finished[TASK_SUCCESS]), 1);
    text = expect_call(&f, "POST", RESULT("2"), "{\"success\":true}", 200);
    expect_json(text, "status", "\"SUCCESS\"");
    free(text);
    assert_int_equal(counter_get(&f.counters.finished[TASK_SUCCESS]), 1);
    call("POST", RESULT("2"), "{\"success\":false}", 409);
    call("POST", RESULT("1"), "{\"success\":true}", 409);
}

static void test_failure(void **state)
{
    (void)state;
    accepted(TASK_SENDING, 1, ",\"maxRetry\":1");
    char *text = expect_call(&f, "POST", RESULT("1"),
                             "{\"success\":false,\"message\":\"stock\\n\\\"locked\\\"\"}", 200);
    expect_json(text, "status", "\"RETRYING\"");
    expect_json(text, "retryCount", "1");
    free(text);
    assert_false(f.store.last_finish.alert);
    assert_true(str_eqz(f.store.last_finish.node, "n1"));
    call("POST", RESULT("1"), "{\"success\":false}", 200); /* a repeat */
    call("POST", RESULT("1"), "{\"success\":true}", 409);
    assert_int_equal(counter_get(&f.counters.retries), 1);
    fake_put(&f.store, "a", TASK_SENT, 2);
    text = expect_call(&f, "POST", RESULT("2"), "{\"success\":false}", 200);
    expect_json(text, "status", "\"FAILED\"");
    free(text);
    assert_true(f.store.last_finish.alert);
    assert_int_equal(counter_get(&f.counters.finished[TASK_FAILED]), 1);
    call("POST", RESULT("2"), "{\"success\":false}", 200);
    assert_int_equal(counter_get(&f.counters.finished[TASK_FAILED]), 1);
}

static void test_final_and_snooze(void **state)
{
    (void)state;
    accepted(TASK_SENT, 1, "");
    wall_ms before = store_clock_now(&f.clock);
    char *text = expect_call(&f, "POST", RESULT("1"), "{\"snooze\":\"10m\"}", 200);
    expect_json(text, "status", "\"PENDING\"");
    free(text);
    assert_true(f.store.last_finish.snoozed);
    assert_true(f.store.last_finish.next_attempt_time >= before + 600000);
    call("POST", RESULT("1"), "{\"snooze\":\"10m\"}", 200);
    fake_put(&f.store, "a", TASK_SENT, 2);
    text = expect_call(&f, "POST", RESULT("2"), "{\"success\":false,\"retryable\":false}", 200);
    expect_json(text, "status", "\"FAILED\"");
    free(text);
    assert_true(f.store.last_finish.alert);
}

static void test_retry_after_and_policy(void **state)
{
    (void)state;
    call("POST", TASKS, "{\"bizUuid\":\"a\",\"serviceName\":\"patient\",\"handler\":\"h\"}", 201);
    fake_put(&f.store, "a", TASK_SENT, 1);
    wall_ms before = store_clock_now(&f.clock);
    call("POST", RESULT("1"), "{\"success\":false}", 200);
    /* The service's policy waits a minute; the default one a second. */
    assert_true(f.store.last_finish.next_attempt_time >= before + 60000);
    fake_put(&f.store, "a", TASK_SENT, 2);
    before = store_clock_now(&f.clock);
    call("POST", RESULT("2"), "{\"success\":false,\"retryAfter\":\"1h\"}", 200);
    assert_true(f.store.last_finish.next_attempt_time >= before + 3600000);
}

static void test_stale(void **state)
{
    (void)state;
    expect_problem(&f, "POST", RESULT("1"), "{\"success\":true}", 404, "traceId");
    accepted(TASK_SENDING, 3, "");
    char *text = expect_call(&f, "POST", RESULT("2"), "{\"success\":true}", 409);
    expect_json(text, "type", "\"urn:jobflow:problem:stale-attempt\"");
    expect_json(text, "attempt", "3");
    expect_json(text, "taskStatus", "\"SENDING\"");
    free(text);
    call("POST", RESULT("4"), "{\"success\":true}", 409);
    expect_problem(&f, "POST", "/api/attempts/00000000000000010000000000001235/3/result",
                   "{\"success\":true}", 404, "traceId");
    /* A rescue comes first. */
    atomic_store(&f.store.lose_finish, true);
    text = expect_call(&f, "POST", RESULT("3"), "{\"success\":true}", 409);
    expect_json(text, "attempt", "4");
    free(text);
    assert_int_equal(counter_get(&f.counters.finished[TASK_SUCCESS]), 0);
    fake_put(&f.store, "a", TASK_CANCELLED, 4);
    call("POST", RESULT("4"), "{\"success\":true}", 409);
}

static void expect_effect(const char *path, const char *body, const char *effect)
{
    char *text = expect_call(&f, "POST", path, body, 503);
    expect_json(text, "effect", effect);
    free(text);
    atomic_store(&f.store.refuse, 0);
    atomic_store(&f.store.fail, 0);
}

/* What is stored is not called undone when only the answer fails. */
static void test_effect(void **state)
{
    static const char body[] = "{\"success\":true}";
    (void)state;
    accepted(TASK_SENT, 1, "");
    atomic_store(&f.store.then_refuse, ERR_BUSY);
    expect_effect(RESULT("1"), body, "\"done\"");
    call("POST", RESULT("1"), body, 200);
    fake_put(&f.store, "a", TASK_SENT, 2);
    atomic_store(&f.store.then_fail, ERR_UNAVAILABLE);
    expect_effect(RESULT("2"), body, "\"done\"");
    call("POST", RESULT("2"), body, 200);
    assert_int_equal(counter_get(&f.counters.finished[TASK_SUCCESS]), 2);
    /* A rescue was first: this result did nothing. */
    fake_put(&f.store, "a", TASK_SENT, 3);
    atomic_store(&f.store.lose_finish, true);
    atomic_store(&f.store.then_refuse, ERR_BUSY);
    expect_effect(RESULT("3"), body, "\"none\"");
    /* Before the write. */
    atomic_store(&f.store.fail, ERR_UNAVAILABLE);
    expect_effect(RESULT("4"), body, "\"none\"");
    atomic_store(&f.store.fail, ERR_UNAVAILABLE);
    expect_effect(BEAT("4"), NULL, "\"none\"");
    atomic_store(&f.store.refuse, ERR_BUSY);
    expect_effect(RESULT("4"), body, "\"none\"");
}

static void test_heartbeat(void **state)
{
    (void)state;
    expect_problem(&f, "POST", BEAT("1"), NULL, 404, "traceId");
    accepted(TASK_SENT, 1, ",\"timeout\":\"10s\"");
    /* The store's answer is 1,000 s after the epoch, and the extension. */
    char *text = expect_call(&f, "POST", BEAT("1"), NULL, 200);
    expect_json(text, "traceId", "\"" TRACE "\"");
    expect_json(text, "attempt", "1");
    expect_json(text, "deadline", "\"1970-01-01T00:17:50.000Z\"");
    free(text);
    text = expect_call(&f, "POST", BEAT("1"), "{}", 200);
    expect_json(text, "deadline", "\"1970-01-01T00:17:50.000Z\"");
    free(text);
    text = expect_call(&f, "POST", BEAT("1"), "{\"extend\":\"2m\"}", 200);
    expect_json(text, "deadline", "\"1970-01-01T00:18:40.000Z\"");
    free(text);
    /* Another task, whose time-out is its service's, and then the node's. */
    call("POST", TASKS, "{\"bizUuid\":\"b\",\"serviceName\":\"t\",\"handler\":\"h\"}", 201);
    fake_put(&f.store, "b", TASK_SENT, 1);
    text = expect_call(&f, "POST", BEAT_B, NULL, 200);
    expect_json(text, "deadline", "\"1970-01-01T00:18:40.000Z\"");
    free(text);
    call("PUT", SERVICES "/t", "{\"baseUrl\":\"http://t\",\"timeout\":\"20s\"}", 201);
    text = expect_call(&f, "POST", BEAT_B, NULL, 200);
    expect_json(text, "deadline", "\"1970-01-01T00:18:00.000Z\"");
    free(text);
    text = expect_call(&f, "POST", BEAT("2"), NULL, 409);
    expect_json(text, "attempt", "1");
    free(text);
    fake_put(&f.store, "a", TASK_RETRYING, 1);
    call("POST", BEAT("1"), NULL, 409);
    expect_problem(&f, "POST", "/api/attempts/00000000000000010000000000001235/1/heartbeat", NULL,
                   404, "traceId");
}

/* ---- For machines ------------------------------------------------------------------------ */

static void test_meta(void **state)
{
    struct answer_text a;
    char value[100];
    (void)state;
    char *text = expect_call(&f, "GET", "/healthz", NULL, 200);
    assert_string_equal(text, "{\"status\":\"ok\"}");
    free(text);
    text = expect_call(&f, "GET", "/readyz", NULL, 200);
    assert_string_equal(text, "{\"status\":\"ready\"}");
    free(text);
    atomic_store(&f.is_ready, false);
    text = expect_call(&f, "GET", "/readyz", NULL, 503);
    expect_json(text, "detail", "\"the database \\\"is\\\" away\"");
    free(text);
    call("GET", "/healthz", NULL, 200);
    client_call(f.address, "GET", "/metrics", NULL, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_header(&a, "Content-Type", value, sizeof(value)),
                        "text/plain; version=0.0.4; charset=utf-8");
    assert_string_equal(a.body, "jobflow_up 1\n");
    answer_free(&a);
    client_call(f.address, "GET", "/openapi.yaml", NULL, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_header(&a, "Content-Type", value, sizeof(value)),
                        "application/yaml");
    assert_non_null(strstr(a.body, "\nopenapi: 3.1.0\n"));
    assert_non_null(strstr(a.body, "urn:jobflow:problem:http-version")); /* whole, to its end */
    answer_free(&a);
}

static void test_drain(void **state)
{
    struct client c;
    (void)state;
    client_open(&c, f.address);
    client_send(&c, "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n");
    struct answer_text a;
    client_read(&c, &a);
    answer_free(&a);
    assert_false(api_is_drained(f.api));
    api_drain(f.api, 10000);
    client_expect_end(&c);
    client_close(&c);
    while (!api_is_drained(f.api))
        ;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_services),
        TEST(test_delivery),
        TEST(test_pause_and_delete),
        TEST(test_success),
        TEST(test_failure),
        TEST(test_final_and_snooze),
        TEST(test_retry_after_and_policy),
        TEST(test_stale),
        TEST(test_effect),
        TEST(test_heartbeat),
        TEST(test_meta),
        TEST(test_drain),
    };
    return cmocka_run_group_tests_name("api_services", tests, NULL, NULL);
}
