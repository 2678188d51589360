/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever is wrong with a request: a problem that names the field, and nothing reaches the store.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/api_fixture.h"

#define TRACE "0000000000000001a3c1d2e4f5061728"
#define KEY "\"bizUuid\":\"b\",\"serviceName\":\"s\",\"handler\":\"h\""
#define TASK(more) "{" KEY "," more "}"
#define SERVICE(more) "{\"baseUrl\":\"http://h/x\"," more "}"
#define LEN32 "abcdefghijklmnopqrstuvwxyz012345"
#define LEN128 LEN32 LEN32 LEN32 LEN32

static struct api_fixture fixture;

static int start(void **state)
{
    struct api_config cfg = api_fixture_config();
    (void)state;
    api_fixture_start(&fixture, &cfg);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    api_fixture_stop(&fixture);
    return 0;
}

struct bad {
    const char *body;
    const char *field;
};

static void refuse_all(const char *method, const char *path, const struct bad *cases, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect_problem(&fixture, method, path, cases[i].body, 400, cases[i].field);
    assert_int_equal(atomic_load(&fixture.store.n_posts), 0);
}
#define REFUSE_ALL(method, path, cases)                                                            \
    refuse_all((method), (path), (cases), sizeof(cases) / sizeof((cases)[0]))

static const struct bad bad_tasks[] = {
    /* Not acceptable as JSON. */
    {"", NULL},
    {" ", NULL},
    {"x", NULL},
    {"[]", NULL},
    {"null", NULL},
    {"\"text\"", NULL},
    {"{", NULL},
    {"{}}", NULL},
    {"\xEF\xBB\xBF{}", NULL},
    {"{\"bizUuid\":\"b\",}", "bizUuid"},
    {"{" KEY ",\"bizUuid\":\"c\"}", "bizUuid"},
    {"{" KEY ",\"biz\\u0055uid\":\"c\"}", "biz\\\\u0055uid"},
    {TASK("\"payload\":{\"a\":1,\"a\":2}"), "payload"},
    {TASK("\"payload\":\"\\u0000\""), "payload"},
    {TASK("\"payload\":[\"\\ud800\"]"), "payload"},
    {TASK("\"payload\":\"\\udc00\\ud800\""), "payload"},
    {TASK("\"payload\":\"\xff\""), "payload"},
    {TASK("\"payload\":\"\xc0\xaf\""), "payload"},
    {TASK("\"payload\":\"\xed\xa0\x80\""), "payload"},
    {TASK("\"payload\":01"), "payload"},
    {TASK("\"payload\":NaN"), "payload"},
    {TASK("\"payload\":\"a\nb\""), "payload"},
    /* Missing, unknown. */
    {"{}", "bizUuid"},
    {"{\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":\"b\",\"handler\":\"h\"}", "serviceName"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"s\"}", "handler"},
    {TASK("\"url\":\"http://evil\""), "url"},
    {TASK("\"BizUuid\":\"b\""), "BizUuid"},
    {TASK("\"\":1"), NULL},
    {TASK("\"id\":1"), "id"},
    /* bizUuid. */
    {"{\"bizUuid\":null,\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":1,\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":[],\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":\"\",\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":\"" LEN128 "x\",\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":\" b\",\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":\"b \",\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":\"b\\u3000\",\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":\"b\\u0001\",\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":\"b\\nc\",\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":\"b\\u0000\",\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    {"{\"bizUuid\":\"b\xff\",\"serviceName\":\"s\",\"handler\":\"h\"}", "bizUuid"},
    /* serviceName, handler. */
    {"{\"bizUuid\":\"b\",\"serviceName\":\"\",\"handler\":\"h\"}", "serviceName"},
    {"{\"bizUuid\":\"b\",\"serviceName\":null,\"handler\":\"h\"}", "serviceName"},
    {"{\"bizUuid\":\"b\",\"serviceName\":5,\"handler\":\"h\"}", "serviceName"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"a b\",\"handler\":\"h\"}", "serviceName"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"../s\",\"handler\":\"h\"}", "serviceName"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\".\",\"handler\":\"h\"}", "serviceName"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"é\",\"handler\":\"h\"}", "serviceName"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"" LEN128 "x\",\"handler\":\"h\"}", "serviceName"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"s\",\"handler\":\"\"}", "handler"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"s\",\"handler\":null}", "handler"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"s\",\"handler\":{}}", "handler"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"s\",\"handler\":\"a/b\"}", "handler"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"s\",\"handler\":\".\"}", "handler"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"s\",\"handler\":\"..\"}", "handler"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"s\",\"handler\":\"a?b\"}", "handler"},
    {"{\"bizUuid\":\"b\",\"serviceName\":\"s\",\"handler\":\"" LEN128 "x\"}", "handler"},
    /* executeTime, delay. */
    {TASK("\"executeTime\":null"), "executeTime"},
    {TASK("\"executeTime\":true"), "executeTime"},
    {TASK("\"executeTime\":\"\""), "executeTime"},
    {TASK("\"executeTime\":\"tomorrow\""), "executeTime"},
    {TASK("\"executeTime\":\"2030-01-31T12:00:00\""), "executeTime"},
    {TASK("\"executeTime\":\"2030-02-30T12:00:00Z\""), "executeTime"},
    {TASK("\"executeTime\":\"2030-01-31 \""), "executeTime"},
    {TASK("\"executeTime\":1.5"), "executeTime"},
    {TASK("\"executeTime\":1e12"), "executeTime"},
    {TASK("\"executeTime\":9007199254740993"), "executeTime"},
    {TASK("\"executeTime\":9223372036854775807"), "executeTime"},
    {TASK("\"executeTime\":9223372036854775808"), "executeTime"},
    {TASK("\"executeTime\":-9223372036854775808"), "executeTime"},
    {TASK("\"executeTime\":-62167219200001"), "executeTime"},
    {TASK("\"executeTime\":253402300800000"), "executeTime"},
    {TASK("\"executeTime\":\"0000-01-01T00:00:00+00:01\""), "executeTime"},
    {TASK("\"executeTime\":\"9999-12-31T23:59:59-00:01\""), "executeTime"},
    {TASK("\"executeTime\":\"9999-12-31T23:59:59Z\""), "executeTime"},
    {TASK("\"executeTime\":[]"), "executeTime"},
    {TASK("\"executeTime\":1900000000000,\"delay\":\"1s\""), "delay"},
    {TASK("\"delay\":null"), "delay"},
    {TASK("\"delay\":\"\""), "delay"},
    {TASK("\"delay\":\"soon\""), "delay"},
    {TASK("\"delay\":-1"), "delay"},
    {TASK("\"delay\":\"-1s\""), "delay"},
    {TASK("\"delay\":1e3"), "delay"},
    {TASK("\"delay\":true"), "delay"},
    {TASK("\"delay\":\"3651d\""), "delay"},
    {TASK("\"delay\":9007199254740993"), "delay"},
    {TASK("\"delay\":{}"), "delay"},
    /* The rest. */
    {TASK("\"maxRetry\":null"), "maxRetry"},
    {TASK("\"maxRetry\":-1"), "maxRetry"},
    {TASK("\"maxRetry\":1001"), "maxRetry"},
    {TASK("\"maxRetry\":1.0"), "maxRetry"},
    {TASK("\"maxRetry\":1e1"), "maxRetry"},
    {TASK("\"maxRetry\":9007199254740993"), "maxRetry"},
    {TASK("\"maxRetry\":99999999999999999999"), "maxRetry"},
    {TASK("\"maxRetry\":\"3\""), "maxRetry"},
    {TASK("\"policy\":null"), "policy"},
    {TASK("\"policy\":\"\""), "policy"},
    {TASK("\"policy\":\"none\""), "policy"},
    {TASK("\"policy\":7"), "policy"},
    {TASK("\"policy\":\"defaul\\u0074s\""), "policy"},
    {TASK("\"priority\":null"), "priority"},
    {TASK("\"priority\":-1"), "priority"},
    {TASK("\"priority\":10"), "priority"},
    {TASK("\"priority\":\"5\""), "priority"},
    {TASK("\"priority\":5.5"), "priority"},
    {TASK("\"timeout\":null"), "timeout"},
    {TASK("\"timeout\":0"), "timeout"},
    {TASK("\"timeout\":\"0s\""), "timeout"},
    {TASK("\"timeout\":\"25h\""), "timeout"},
    {TASK("\"timeout\":-5"), "timeout"},
    {TASK("\"timeout\":\"x\""), "timeout"},
    {TASK("\"timeout\":false"), "timeout"},
    {TASK("\"onConflict\":null"), "onConflict"},
    {TASK("\"onConflict\":\"\""), "onConflict"},
    {TASK("\"onConflict\":\"RETURN\""), "onConflict"},
    {TASK("\"onConflict\":1"), "onConflict"},
};

static void test_submit(void **state)
{
    (void)state;
    size_t n = sizeof(bad_tasks) / sizeof(bad_tasks[0]);
    REFUSE_ALL("POST", "/api/delay-tasks", bad_tasks);
    assert_int_equal(counter_get(&fixture.counters.refused), n);
    assert_int_equal(counter_get(&fixture.counters.http_requests), n);
}

/* A task that is refused alone is refused in a batch, with the same field; what is no JSON fails
 * the batch as a whole. */
static void test_submit_in_batch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_tasks) / sizeof(bad_tasks[0]); i++) {
        char body[2000], value[300], alone[300];
        char *one = expect_call(&fixture, "POST", "/api/delay-tasks", bad_tasks[i].body, 400);
        bool is_json = !strstr(one, ":invalid-json");
        assert_true(json_at(one, "detail", alone, sizeof(alone)));
        free(one);
        snprintf(body, sizeof(body), "{\"tasks\":[%s]}", bad_tasks[i].body);
        if (!is_json) {
            if (bad_tasks[i].field)
                expect_problem(&fixture, "POST", "/api/delay-tasks/batch", body, 400, "tasks");
            continue;
        }
        char *text = expect_call(&fixture, "POST", "/api/delay-tasks/batch", body, 200);
        expect_json(text, "results.0.status", "400");
        assert_true(json_at(text, "results.0.problem.detail", value, sizeof(value)));
        assert_string_equal(value, alone);
        free(text);
    }
    assert_int_equal(atomic_load(&fixture.store.n_posts), 0);
}

static void test_batch(void **state)
{
    static const struct bad cases[] = {
        {"", NULL},
        {"[]", NULL},
        {"{}", "tasks"},
        {"{\"tasks\":null}", "tasks"},
        {"{\"tasks\":{}}", "tasks"},
        {"{\"tasks\":\"x\"}", "tasks"},
        {"{\"tasks\":[]}", "tasks"},
        {"{\"tasks\":[{" KEY "}],\"more\":1}", "more"},
        {"{\"more\":[1,2],\"tasks\":[{" KEY "}]}", "more"},
        {"{\"task\":[{" KEY "}]}", "task"},
        {"{\"tasks\":[{" KEY "}],\"tasks\":[]}", "tasks"},
        {"{\"tasks\":[{" KEY "}", "tasks"},
    };
    (void)state;
    REFUSE_ALL("POST", "/api/delay-tasks/batch", cases);
    static char body[200000];
    size_t n = (size_t)sprintf(body, "{\"tasks\":[1");
    for (int i = 1; i <= 1000; i++)
        n += (size_t)sprintf(body + n, ",1");
    sprintf(body + n, "]}");
    expect_problem(&fixture, "POST", "/api/delay-tasks/batch", body, 400, "tasks");
    sprintf(body + n - 2, "]}"); /* 1,000 of them */
    char *text = expect_call(&fixture, "POST", "/api/delay-tasks/batch", body, 200);
    expect_json(text, "results.0.problem.field", "\"tasks\"");
    expect_json(text, "results.999.status", "400");
    free(text);
    assert_int_equal(atomic_load(&fixture.store.n_posts), 0);
}

/* Deep nesting and sizes that do not fit into a table. */
static void test_deep_and_large(void **state)
{
    static char body[200000];
    (void)state;
    for (int close = 0; close < 2; close++) {
        size_t n = (size_t)sprintf(body, "{" KEY ",\"payload\":");
        memset(body + n, '[', 10000);
        n += 10000;
        if (close)
            memset(body + n, ']', 10000), n += 10000;
        strcpy(body + n, "}");
        expect_problem(&fixture, "POST", "/api/delay-tasks", body, 400, "payload");
    }
    size_t n = (size_t)sprintf(body, "{" KEY ",\"payload\":\"");
    memset(body + n, 'x', 65536);
    strcpy(body + n + 65536, "\"}");
    expect_problem(&fixture, "POST", "/api/delay-tasks", body, 413, "payload");
    expect_problem(&fixture, "PATCH", "/api/delay-tasks/b", body, 400, "bizUuid");
    n = (size_t)sprintf(body, "{\"payload\":\"");
    memset(body + n, 'x', 65536);
    strcpy(body + n + 65536, "\"}");
    expect_problem(&fixture, "PATCH", "/api/delay-tasks/b", body, 413, "payload");
    n = (size_t)sprintf(body, "{\"");
    memset(body + n, 'k', 100000);
    strcpy(body + n + 100000, "\":1}");
    char *text = expect_call(&fixture, "POST", "/api/delay-tasks", body, 400);
    expect_json(text, "type", "\"urn:jobflow:problem:unknown-field\"");
    assert_true(strlen(text) < 2000);
    free(text);
    assert_int_equal(atomic_load(&fixture.store.n_posts), 0);
}

static void test_change(void **state)
{
    static const struct bad cases[] = {
        {"", NULL},
        {"{}", "executeTime"},
        {"[]", NULL},
        {"{\"delay\":null}", "delay"},
        {"{\"delay\":\"x\"}", "delay"},
        {"{\"delay\":\"3651d\"}", "delay"},
        {"{\"executeTime\":\"x\"}", "executeTime"},
        {"{\"executeTime\":9007199254740993}", "executeTime"},
        {"{\"executeTime\":-62167219200001}", "executeTime"},
        {"{\"executeTime\":1,\"delay\":1}", "delay"},
        {"{\"payload\":1,\"priority\":1}", "priority"},
        {"{\"payload\":1,\"payload\":1}", "payload"},
        {"{\"payload\":\"\\u0000\"}", "payload"},
        {"{\"status\":\"SUCCESS\"}", "status"},
    };
    static const struct bad some_field[] = {{"{\"x\":1}", "x"}, {"[]", NULL}, {"{", NULL}};
    (void)state;
    REFUSE_ALL("PATCH", "/api/delay-tasks/b", cases);
    REFUSE_ALL("POST", "/api/delay-tasks/b/run", some_field);
    REFUSE_ALL("POST", "/api/delay-tasks/b/notify", some_field);
    REFUSE_ALL("POST", "/api/services/s/pause", some_field);
    REFUSE_ALL("POST", "/api/services/s/resume", some_field);
}

static void test_paths(void **state)
{
    static const struct {
        const char *method;
        const char *path;
        const char *field;
    } cases[] = {
        {"GET", "/api/delay-tasks/%", "path"},
        {"GET", "/api/delay-tasks/%4", "path"},
        {"GET", "/api/delay-tasks/%zz", "path"},
        {"GET", "/api/delay-tasks/a%00b", "path"},
        {"GET", "/api/delay-tasks/%ff", "path"},
        {"GET", "/api/delay-tasks/%c3", "path"},
        {"GET", "/api/delay-tasks/%ed%a0%80", "path"},
        {"GET", "/api/delay-tasks/%20b", "bizUuid"},
        {"GET", "/api/delay-tasks/b%20", "bizUuid"},
        {"GET", "/api/delay-tasks/b%0a", "bizUuid"},
        {"GET", "/api/delay-tasks/" LEN128 "x", "bizUuid"},
        {"DELETE", "/api/delay-tasks/" LEN128 "x", "bizUuid"},
        {"DELETE", "/api/delay-tasks/%ff", "path"},
        {"POST", "/api/delay-tasks/b%0a/run", "bizUuid"},
        {"POST", "/api/delay-tasks/b%0a/notify", "bizUuid"},
        {"GET", "/api/delay-tasks/b%0a/explain", "bizUuid"},
        {"GET", "/api/traces/x", "traceId"},
        {"GET", "/api/traces/0000000000000000a3c1d2e4f5061728", "traceId"},
        {"GET", "/api/traces/8000000000000000a3c1d2e4f5061728", "traceId"},
        {"GET", "/api/traces/000000000000000Aa3c1d2e4f5061728", "traceId"},
        {"GET", "/api/traces/" TRACE "0", "traceId"},
        {"GET", "/api/services/a%20b", "name"},
        {"GET", "/api/services/" LEN128 "x", "name"},
        {"DELETE", "/api/services/%2e%2e%2f", "name"},
        {"DELETE", "/api/services/..", "name"},
        {"GET", "/api/services/%2e", "name"},
        {"POST", "/api/services/%25/pause", "name"},
        {"POST", "/api/attempts/x/1/heartbeat", "traceId"},
        {"POST", "/api/attempts/" TRACE "/0/heartbeat", "attempt"},
        {"POST", "/api/attempts/" TRACE "/-1/heartbeat", "attempt"},
        {"POST", "/api/attempts/" TRACE "/1x/heartbeat", "attempt"},
        {"POST", "/api/attempts/" TRACE "/2147483648/heartbeat", "attempt"},
        {"POST", "/api/attempts/" TRACE "/%201/heartbeat", "attempt"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_problem(&fixture, cases[i].method, cases[i].path, NULL, 400, cases[i].field);
    assert_int_equal(atomic_load(&fixture.store.n_posts), 0);
}

static void test_list(void **state)
{
    static const struct bad cases[] = {
        {"x=1", "x"},
        {"Status=FAILED", "Status"},
        {"status=", "status"},
        {"status", "status"},
        {"status=failed", "status"},
        {"status=FAILED,", "status"},
        {"status=,", "status"},
        {"status=NOPE", "status"},
        {"status=FAILED&status=SENT", "status"},
        {"status=%ff", "status"},
        {"status=%0", "status"},
        {"service=", "service"},
        {"service=a%20b", "service"},
        {"service=" LEN128 "x", "service"},
        {"service=a&service=b", "service"},
        {"handler=a/b", "handler"},
        {"handler=", "handler"},
        {"from=x", "from"},
        {"from=2026-01-01", "from"},
        {"from=1.5", "from"},
        {"from=9223372036854775808", "from"},
        {"from=-9223372036854775808", "from"},
        {"from=-999999999999999", "from"},
        {"from=9000000000000000000", "from"},
        {"from=-253402300800000", "from"},
        {"from=-62167219200001", "from"},
        {"from=253402300800000", "from"},
        {"from=0000-01-01T00:00:00%2B00:01", "from"},
        {"to=-999999999999999", "to"},
        {"to=9000000000000000000", "to"},
        {"to=-62167219200001", "to"},
        {"to=253402300800000", "to"},
        {"to=9999-12-31T23:59:59-00:01", "to"},
        {"to=", "to"},
        {"to=2026-13-01T00:00:00Z", "to"},
        {"from=2000&to=1000", "to"},
        {"from=2000&to=2000", "to"},
        {"limit=0", "limit"},
        {"limit=201", "limit"},
        {"limit=-1", "limit"},
        {"limit=1.0", "limit"},
        {"limit=%2B1", "limit"},
        {"limit=", "limit"},
        {"limit=9007199254740993", "limit"},
        {"limit=1&limit=1", "limit"},
        {"cursor=", "cursor"},
        {"cursor=x", "cursor"},
        {"cursor=0000000000000000", "cursor"},
        {"cursor=ffffffffffffffff", "cursor"},
        {"cursor=000000000000000A", "cursor"},
        {"cursor=00000000000000010", "cursor"},
        {"%66rom=x", "from"},
        {"%ff=x", "query"},
        {"=1", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[400];
        snprintf(path, sizeof(path), "/api/delay-tasks?%s", cases[i].body);
        expect_problem(&fixture, "GET", path, NULL, 400, cases[i].field);
    }
    assert_int_equal(atomic_load(&fixture.store.n_posts), 0);
}

static void test_service(void **state)
{
    static const struct bad cases[] = {
        {"", NULL},
        {"{}", "baseUrl"},
        {"{\"baseUrl\":null}", "baseUrl"},
        {"{\"baseUrl\":1}", "baseUrl"},
        {"{\"baseUrl\":\"http://169.254.169.254/\"}", "baseUrl"},
        {SERVICE("\"url\":1"), "url"},
        {SERVICE("\"baseUrl\":\"http://h\""), "baseUrl"},
        {SERVICE("\"secret\":null"), "secret"},
        {SERVICE("\"secret\":\"\""), "secret"},
        {SERVICE("\"secret\":\"abc\""), "secret"},
        {SERVICE("\"secret\":5"), "secret"},
        {SERVICE("\"shards\":0"), "shards"},
        {SERVICE("\"shards\":257"), "shards"},
        {SERVICE("\"shards\":\"1\""), "shards"},
        {SERVICE("\"shards\":null"), "shards"},
        {SERVICE("\"shards\":1.5"), "shards"},
        {SERVICE("\"concurrency\":0"), "concurrency"},
        {SERVICE("\"concurrency\":10001"), "concurrency"},
        {SERVICE("\"concurrency\":-9007199254740993"), "concurrency"},
        {SERVICE("\"timeout\":0"), "timeout"},
        {SERVICE("\"timeout\":\"25h\""), "timeout"},
        {SERVICE("\"timeout\":[]"), "timeout"},
        {SERVICE("\"policy\":\"none\""), "policy"},
        {SERVICE("\"policy\":null"), "policy"},
        {SERVICE("\"paused\":true"), "paused"},
        {SERVICE("\"delivery\":\"batch\""), "delivery"},
        {SERVICE("\"delivery\":null"), "delivery"},
        {SERVICE("\"delivery\":[]"), "delivery"},
        {SERVICE("\"delivery\":{}"), "delivery.mode"},
        {SERVICE("\"delivery\":{\"mode\":\"both\"}"), "delivery.mode"},
        {SERVICE("\"delivery\":{\"mode\":null}"), "delivery.mode"},
        {SERVICE("\"delivery\":{\"mode\":\"batch\",\"maxSize\":0}"), "delivery.maxSize"},
        {SERVICE("\"delivery\":{\"mode\":\"batch\",\"maxSize\":1001}"), "delivery.maxSize"},
        {SERVICE("\"delivery\":{\"mode\":\"batch\",\"maxWait\":\"1001ms\"}"), "delivery.maxWait"},
        {SERVICE("\"delivery\":{\"mode\":\"push\",\"maxSize\":1}"), "delivery.maxSize"},
        {SERVICE("\"delivery\":{\"mode\":\"pull\",\"maxWait\":\"1ms\"}"), "delivery.maxWait"},
        {SERVICE("\"delivery\":{\"mode\":\"batch\",\"size\":1}"), "delivery.size"},
        {"{\"delivery\":{\"mode\":\"batch\"}}", "baseUrl"},
    };
    (void)state;
    REFUSE_ALL("PUT", "/api/services/s", cases);
    expect_problem(&fixture, "PUT", "/api/services/s", "{\"baseUrl\":\"http://starting\"}", 503,
                   NULL);
    expect_problem(&fixture, "PUT", "/api/services/s", "{\"baseUrl\":\"http://no-memory\"}", 503,
                   NULL);
    assert_int_equal(atomic_load(&fixture.n_services_changed), 0);
}

static void test_attempt(void **state)
{
    static const struct bad results[] = {
        {"", NULL},
        {"[]", NULL},
        {"{}", "success"},
        {"{\"retryable\":true}", "success"},
        {"{\"success\":null}", "success"},
        {"{\"success\":1}", "success"},
        {"{\"success\":\"true\"}", "success"},
        {"{\"success\":false,\"retryable\":\"no\"}", "retryable"},
        {"{\"success\":false,\"message\":5}", "message"},
        {"{\"success\":false,\"message\":null}", "message"},
        {"{\"success\":false,\"message\":\"\\u0000\"}", "message"},
        {"{\"success\":false,\"retryAfter\":\"soon\"}", "retryAfter"},
        {"{\"success\":false,\"retryAfter\":-1}", "retryAfter"},
        {"{\"success\":false,\"retryAfter\":true}", "retryAfter"},
        {"{\"snooze\":\"\"}", "snooze"},
        {"{\"snooze\":null}", "snooze"},
        {"{\"snooze\":[1]}", "snooze"},
        {"{\"success\":true,\"succes\":true}", "succes"},
        {"{\"success\":true,\"success\":true}", "success"},
    };
    static const struct bad beats[] = {
        {"[]", NULL},
        {"{\"extend\":null}", "extend"},
        {"{\"extend\":0}", "extend"},
        {"{\"extend\":\"x\"}", "extend"},
        {"{\"extend\":\"25h\"}", "extend"},
        {"{\"extend\":-1}", "extend"},
        {"{\"more\":1}", "more"},
    };
    (void)state;
    REFUSE_ALL("POST", "/api/attempts/" TRACE "/1/result", results);
    REFUSE_ALL("POST", "/api/attempts/" TRACE "/1/heartbeat", beats);
}

/* Content types, methods and paths. */
static void ask(const char *method, const char *path, const char *headers, const char *body,
                int status, const char *allow)
{
    char request[2000], value[100];
    struct answer_text a;
    struct client c;
    snprintf(request, sizeof(request),
             "%s %s HTTP/1.1\r\nHost: h\r\n%sContent-Length: %zu\r\n\r\n%s", method, path, headers,
             strlen(body), body);
    client_open(&c, fixture.address);
    client_send(&c, request);
    assert_true(client_try_read(&c, strcmp(method, "HEAD") == 0, &a));
    if (a.status != status)
        fail_msg("%s %s %s: %d instead of %d", method, path, headers, a.status, status);
    assert_string_equal(answer_header(&a, "Allow", value, sizeof(value)), allow);
    answer_free(&a);
    client_close(&c);
}

static void test_types_and_methods(void **state)
{
    (void)state;
    ask("POST", "/api/delay-tasks", "Content-Type: text/plain\r\n", "{}", 415, "");
    ask("POST", "/api/delay-tasks", "Content-Type: application/x-www-form-urlencoded\r\n", "a=b",
        415, "");
    ask("POST", "/api/delay-tasks", "Content-Type: application/jsonx\r\n", "{}", 415, "");
    ask("POST", "/api/delay-tasks", "Content-Type:\r\n", "{}", 415, "");
    ask("POST", "/api/delay-tasks", "", "{}", 400, "");
    ask("POST", "/api/delay-tasks", "Content-Type: application/json\r\n", "{}", 400, "");
    ask("POST", "/api/delay-tasks", "Content-Type: Application/JSON ; charset=utf-8\r\n", "{}", 400,
        "");
    ask("PUT", "/api/services/s", "Content-Type: text/xml\r\n", "<a/>", 415, "");
    ask("GET", "/", "", "", 404, "");
    ask("GET", "/api", "", "", 404, "");
    ask("GET", "/api/delay-tasks/", "", "", 404, "");
    ask("GET", "/api/delay-tasks/b/", "", "", 404, "");
    ask("GET", "/api/delay-tasks/b/c/d", "", "", 404, "");
    ask("GET", "//api/delay-tasks", "", "", 404, "");
    ask("GET", "/metrics/", "", "", 404, "");
    ask("POST", "/api/attempts/x/result", "", "", 404, "");
    ask("PUT", "/api/delay-tasks", "", "", 405, "GET, HEAD, POST");
    ask("OPTIONS", "/api/delay-tasks", "", "", 405, "GET, HEAD, POST");
    ask("POST", "/api/delay-tasks/b", "", "", 405, "GET, HEAD, PATCH, DELETE");
    ask("GET", "/api/delay-tasks/b/run", "", "", 405, "POST");
    ask("HEAD", "/api/delay-tasks/b/run", "", "", 405, "POST");
    ask("TRACE", "/api/services/s", "", "", 405, "GET, HEAD, PUT, DELETE");
    ask("POST", "/healthz", "", "", 405, "GET, HEAD");
    assert_int_equal(atomic_load(&fixture.store.n_posts), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_submit),  cmocka_unit_test(test_submit_in_batch),
        cmocka_unit_test(test_batch),   cmocka_unit_test(test_deep_and_large),
        cmocka_unit_test(test_change),  cmocka_unit_test(test_paths),
        cmocka_unit_test(test_list),    cmocka_unit_test(test_service),
        cmocka_unit_test(test_attempt), cmocka_unit_test(test_types_and_methods),
    };
    return cmocka_run_group_tests_name("api_bad", tests, start, stop);
}
