/* SPDX-License-Identifier: Apache-2.0 */
/* Submitting tasks and looking after them, over real sockets and a store in memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "tests/unit/api_fixture.h"

#define TASKS "/api/delay-tasks"
#define KEY(key) "{\"bizUuid\":\"" key "\",\"serviceName\":\"s\",\"handler\":\"h\"}"
#define TASK(key, more) "{\"bizUuid\":\"" key "\",\"serviceName\":\"s\",\"handler\":\"h\"," more "}"

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

/* ---- Submission -------------------------------------------------------------------------- */

static void test_new_and_duplicate(void **state)
{
    (void)state;
    char *first = expect_call(&f, "POST", TASKS, TASK("a", "\"payload\":{\"x\":1}"), 201);
    expect_json(first, "bizUuid", "\"a\"");
    expect_json(first, "serviceName", "\"s\"");
    expect_json(first, "handler", "\"h\"");
    expect_json(first, "status", "\"PENDING\"");
    expect_json(first, "attempt", "0");
    expect_json(first, "maxRetry", "10");
    expect_json(first, "priority", "5");
    expect_json(first, "policy", "null");
    char trace[64], value[64];
    assert_true(json_at(first, "traceId", trace, sizeof(trace)));
    assert_false(json_at(first, "duplicate", value, sizeof(value)));
    char *again = expect_call(&f, "POST", TASKS, TASK("a", "\"payload\":{ \"x\":1 }"), 200);
    expect_json(again, "traceId", trace);
    expect_json(again, "duplicate", "true");
    assert_false(json_at(again, "mismatch", value, sizeof(value)));
    free(again);
    again = expect_call(&f, "POST", TASKS,
                        TASK("a", "\"payload\":2,\"executeTime\":\"2031-01-01T00:00:00Z\""), 200);
    expect_json(again, "mismatch", "[\"payload\",\"executeTime\"]");
    expect_json(again, "payload", "{\"x\":1}");
    free(again);
    free(first);
    assert_int_equal(counter_get(&f.counters.submitted), 1);
    assert_int_equal(counter_get(&f.counters.duplicates), 2);
    assert_int_equal(counter_get(&f.counters.refused), 0);
}

static void test_conflicts(void **state)
{
    (void)state;
    call("POST", TASKS, KEY("a"), 201);
    char *text = expect_call(
        &f, "POST", TASKS, "{\"bizUuid\":\"a\",\"serviceName\":\"other\",\"handler\":\"h\"}", 409);
    expect_json(text, "type", "\"urn:jobflow:problem:key-taken\"");
    expect_json(text, "field", "\"bizUuid\"");
    expect_json(text, "serviceName", "\"s\"");
    expect_json(text, "handler", "\"h\"");
    free(text);
    text = expect_call(&f, "POST", TASKS, TASK("a", "\"onConflict\":\"reject\""), 409);
    expect_json(text, "type", "\"urn:jobflow:problem:already-exists\"");
    expect_json(text, "traceId", "\"00000000000000010000000000001234\"");
    free(text);
    text =
        expect_call(&f, "POST", TASKS, TASK("a", "\"onConflict\":\"replace\",\"payload\":7"), 200);
    expect_json(text, "replaced", "true");
    expect_json(text, "payload", "7");
    free(text);
    fake_put(&f.store, "a", TASK_SENDING, 1);
    text = expect_call(&f, "POST", TASKS, TASK("a", "\"onConflict\":\"replace\""), 409);
    expect_json(text, "type", "\"urn:jobflow:problem:in-flight\"");
    free(text);
    fake_put(&f.store, "a", TASK_SUCCESS, 1);
    text = expect_call(&f, "POST", TASKS, TASK("a", "\"onConflict\":\"replace\""), 409);
    expect_json(text, "type", "\"urn:jobflow:problem:finished\"");
    free(text);
    text = expect_call(&f, "POST", TASKS, KEY("unstorable"), 422);
    expect_json(text, "type", "\"urn:jobflow:problem:not-storable\"");
    free(text);
    assert_int_equal(counter_get(&f.counters.refused), 5);
}

/* Payloads pass byte for byte, whatever JSON they are. */
static void test_payload_bytes(void **state)
{
    static const char *const payloads[] = {
        "null",
        "true",
        "\"\"",
        "[]",
        "{}",
        "18446744073709551615",
        "1e400",
        "1.10",
        "-0",
        "9007199254740993",
        "{\"ns\":1491926160718000000, \"a\" : [ 1,2 ]}",
        "\"\\u00e9\\ud83d\\ude00\\/\"",
        "\"\xc3\xa9\xf0\x9f\x98\x80\"",
        "\"\\u2028\"",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(payloads) / sizeof(payloads[0]); i++) {
        char body[300], key[16];
        snprintf(key, sizeof(key), "k%zu", i);
        snprintf(body, sizeof(body),
                 "{\"bizUuid\":\"%s\",\"serviceName\":\"s\",\"handler\":\"h\",\"payload\": %s }",
                 key, payloads[i]);
        char *text = expect_call(&f, "POST", TASKS, body, 201);
        expect_json(text, "payload", payloads[i]);
        free(text);
        struct task *t = fake_get(&f.store, key);
        assert_true(str_eqz(t->payload, payloads[i]));
        task_free(t);
    }
    call("POST", TASKS, KEY("none"), 201);
    struct task *t = fake_get(&f.store, "none");
    assert_null(t->payload.p);
    task_free(t);
}

static void test_fields(void **state)
{
    (void)state;
    call("POST", TASKS,
         "{\"bizUuid\":\"\\u00e9 "
         "\\\"\\/1\",\"serviceName\":\"shard\\u0065d\",\"handler\":\"x.y-z_1\","
         "\"executeTime\":\"2030-01-31T12:00:00.5+08:00\",\"maxRetry\":0,\"policy\":\"slow\","
         "\"priority\":9,\"timeout\":\"1m30s\"}",
         201);
    struct task *t = fake_get(&f.store, "\xc3\xa9 \"/1");
    assert_non_null(t);
    assert_true(str_eqz(t->service_name, "sharded"));
    assert_true(str_eqz(t->handler, "x.y-z_1"));
    assert_true(t->execute_time == INT64_C(1896062400500));
    assert_true(t->next_attempt_time == t->execute_time);
    assert_int_equal(t->max_retry, 0);
    assert_true(str_eqz(t->policy, "slow"));
    assert_int_equal(t->priority, 9);
    assert_int_equal(t->lane, 0);
    assert_int_equal(t->timeout_ms, 90000);
    assert_int_equal(t->shard, hash_shard(t->biz_uuid, 8));
    assert_int_equal(t->status, TASK_PENDING);
    task_free(t);
    call("POST", TASKS, TASK("slow", "\"policy\":\"slow\",\"timeout\":0.5"), 201);
    t = fake_get(&f.store, "slow");
    assert_int_equal(t->max_retry, 3);
    assert_int_equal(t->timeout_ms, 500);
    task_free(t);
    /* The service's own policy decides when the task names none. */
    call("POST", TASKS, "{\"bizUuid\":\"p\",\"serviceName\":\"patient\",\"handler\":\"h\"}", 201);
    t = fake_get(&f.store, "p");
    assert_int_equal(t->max_retry, 3);
    assert_null(t->policy.p);
    task_free(t);
}

static wall_ms time_of(const char *key, const char *member, wall_ms *ret_created)
{
    char body[300];
    snprintf(body, sizeof(body), "{\"bizUuid\":\"%s\",\"serviceName\":\"s\",\"handler\":\"h\"%s}",
             key, member);
    call("POST", TASKS, body, 201);
    struct task *t = fake_get(&f.store, key);
    wall_ms when = t->execute_time;
    *ret_created = t->created_at;
    task_free(t);
    return when;
}

static void test_times(void **state)
{
    wall_ms created;
    (void)state;
    assert_true(time_of("t1", "", &created) == created);
    assert_true(time_of("t2", ",\"delay\":\"1h30m\"", &created) == created + 5400000);
    assert_true(time_of("t3", ",\"delay\":\"PT30M\"", &created) == created + 1800000);
    assert_true(time_of("t4", ",\"delay\":90", &created) == created + 90000);
    assert_true(time_of("t5", ",\"delay\":0.25", &created) == created + 250);
    assert_true(time_of("t6", ",\"delay\":\"0.5\"", &created) == created + 500);
    assert_true(time_of("t7", ",\"delay\":0", &created) == created);
    assert_true(time_of("t8", ",\"delay\":\"3650d\"", &created) ==
                created + INT64_C(3650) * 86400000);
    assert_true(time_of("t9", ",\"executeTime\":1900000000123", &created) ==
                INT64_C(1900000000123));
    assert_true(time_of("t10", ",\"executeTime\":5", &created) == created);
    assert_true(time_of("t11", ",\"executeTime\":-5", &created) == created);
    assert_true(time_of("t13", ",\"executeTime\":-62167219200000", &created) == created);
    assert_true(time_of("t12", ",\"executeTime\":\"0001-01-01T00:00:00Z\"", &created) == created);
    /* A repeat whose time has passed since does not count as different. */
    char *text = expect_call(&f, "POST", TASKS, TASK("t9", "\"executeTime\":5"), 200);
    char value[64];
    assert_false(json_at(text, "mismatch", value, sizeof(value)));
    free(text);
}

static void test_location(void **state)
{
    struct answer_text a;
    char value[200];
    (void)state;
    client_call(f.address, "POST", TASKS, KEY("\xc3\xa9/a b%?"), &a);
    assert_int_equal(a.status, 201);
    answer_header(&a, "Location", value, sizeof(value));
    assert_string_equal(value, TASKS "/%C3%A9%2Fa%20b%25%3F");
    answer_free(&a);
    char *text = expect_call(&f, "GET", value, NULL, 200);
    expect_json(text, "bizUuid", "\"\xc3\xa9/a b%?\"");
    free(text);
}

static void test_batch(void **state)
{
    (void)state;
    call("POST", TASKS, KEY("old"), 201);
    char *text = expect_call(
        &f, "POST", TASKS "/batch",
        "{\"tasks\":[" KEY("b1") "," TASK("b2", "\"priority\":10") ",5," KEY("b1") "," KEY(
            "old") "," TASK("old", "\"onConflict\":\"reject\"") "," KEY("b\\u0033") "]}",
        200);
    expect_json(text, "results.0.status", "201");
    expect_json(text, "results.0.task.bizUuid", "\"b1\"");
    expect_json(text, "results.1.status", "400");
    expect_json(text, "results.1.problem.field", "\"priority\"");
    expect_json(text, "results.2.status", "400");
    expect_json(text, "results.3.status", "200");
    expect_json(text, "results.3.task.duplicate", "true");
    expect_json(text, "results.4.task.duplicate", "true");
    expect_json(text, "results.5.status", "409");
    expect_json(text, "results.5.problem.type", "\"urn:jobflow:problem:already-exists\"");
    expect_json(text, "results.6.task.bizUuid", "\"b3\"");
    char value[8];
    assert_false(json_at(text, "results.7", value, sizeof(value)));
    free(text);
    assert_int_equal(counter_get(&f.counters.submitted), 3);
    assert_int_equal(counter_get(&f.counters.duplicates), 2);
    assert_int_equal(counter_get(&f.counters.refused), 3);
    /* A thousand at once, in one operation. */
    static char body[200000];
    size_t n = (size_t)sprintf(body, "{\"tasks\":[");
    for (int i = 0; i < 1000; i++)
        n += (size_t)sprintf(body + n,
                             "%s{\"bizUuid\":\"m%d\",\"serviceName\":\"s\",\"handler\":\"h\"}",
                             i ? "," : "", i);
    sprintf(body + n, "]}");
    unsigned posts = atomic_load(&f.store.n_posts);
    text = expect_call(&f, "POST", TASKS "/batch", body, 200);
    assert_int_equal(atomic_load(&f.store.n_posts), posts + 1);
    for (int i = 0; i < 1000; i += 333) {
        char path[64], wanted[64];
        snprintf(path, sizeof(path), "results.%d.task.bizUuid", i);
        snprintf(wanted, sizeof(wanted), "\"m%d\"", i);
        expect_json(text, path, wanted);
    }
    free(text);
}

/* ---- One task ---------------------------------------------------------------------------- */

static void test_get(void **state)
{
    (void)state;
    call("POST", TASKS, KEY("a/b"), 201);
    char *text = expect_call(&f, "GET", TASKS "/a%2Fb", NULL, 200);
    expect_json(text, "bizUuid", "\"a/b\"");
    expect_json(text, "attempts", "[]");
    free(text);
    fake_put(&f.store, "a/b", TASK_RETRYING, 1);
    text = expect_call(&f, "GET", TASKS "/%61%2fb", NULL, 200);
    expect_json(text, "attempts.0.outcome", "\"retry\"");
    expect_json(text, "attempts.0.httpStatus", "500");
    free(text);
    text = expect_call(&f, "GET", "/api/traces/00000000000000010000000000001234", NULL, 200);
    expect_json(text, "bizUuid", "\"a/b\"");
    free(text);
    /* The id alone is not enough. */
    expect_problem(&f, "GET", "/api/traces/00000000000000010000000000001235", NULL, 404, "traceId");
    expect_problem(&f, "GET", "/api/traces/00000000000000020000000000001234", NULL, 404, "traceId");
    expect_problem(&f, "GET", TASKS "/a", NULL, 404, "bizUuid");
    expect_problem(&f, "GET", TASKS "/a+b", NULL, 404, "bizUuid");
    expect_problem(&f, "DELETE", TASKS "/a", NULL, 404, "bizUuid");
    expect_problem(&f, "PATCH", TASKS "/a", "{\"delay\":1}", 404, "bizUuid");
    expect_problem(&f, "POST", TASKS "/a/run", NULL, 404, "bizUuid");
    expect_problem(&f, "GET", TASKS "/a/explain", NULL, 404, "bizUuid");
}

static void test_cancel(void **state)
{
    (void)state;
    call("POST", TASKS, KEY("a"), 201);
    fake_put(&f.store, "a", TASK_SENT, 1);
    char *text = expect_call(&f, "DELETE", TASKS "/a", NULL, 409);
    expect_json(text, "type", "\"urn:jobflow:problem:in-flight\"");
    expect_json(text, "taskStatus", "\"SENT\"");
    expect_json(text, "attempt", "1");
    free(text);
    fake_put(&f.store, "a", TASK_SUCCESS, 1);
    text = expect_call(&f, "DELETE", TASKS "/a", NULL, 409);
    expect_json(text, "type", "\"urn:jobflow:problem:finished\"");
    free(text);
    fake_put(&f.store, "a", TASK_FAILED, 1);
    for (int i = 0; i < 2; i++) {
        text = expect_call(&f, "DELETE", TASKS "/a", NULL, 200);
        expect_json(text, "status", "\"CANCELLED\"");
        free(text);
    }
    assert_int_equal(counter_get(&f.counters.finished[TASK_CANCELLED]), 1);
}

static void test_change(void **state)
{
    (void)state;
    call("POST", TASKS, TASK("a", "\"delay\":\"1h\",\"payload\":1"), 201);
    struct task *before = fake_get(&f.store, "a");
    char *text = expect_call(&f, "PATCH", TASKS "/a", "{\"payload\":null}", 200);
    expect_json(text, "payload", "null");
    free(text);
    struct task *t = fake_get(&f.store, "a");
    assert_true(str_eqz(t->payload, "null"));
    assert_true(t->execute_time == before->execute_time);
    task_free(t);
    task_free(before);
    text = expect_call(&f, "PATCH", TASKS "/a", "{\"executeTime\":1900000000000}", 200);
    expect_json(text, "executeTime", "\"2030-03-17T17:46:40.000Z\"");
    expect_json(text, "payload", "null");
    free(text);
    call("PATCH", TASKS "/a", "{\"executeTime\":1}", 200);
    t = fake_get(&f.store, "a");
    assert_true(t->execute_time >= t->created_at); /* the past means now */
    task_free(t);
    fake_put(&f.store, "a", TASK_SENDING, 1);
    text = expect_call(&f, "PATCH", TASKS "/a", "{\"delay\":1}", 409);
    expect_json(text, "type", "\"urn:jobflow:problem:in-flight\"");
    free(text);
    fake_put(&f.store, "a", TASK_CANCELLED, 1);
    text = expect_call(&f, "PATCH", TASKS "/a", "{\"delay\":1}", 409);
    expect_json(text, "type", "\"urn:jobflow:problem:finished\"");
    free(text);
}

static void test_run(void **state)
{
    (void)state;
    call("POST", TASKS, TASK("a", "\"delay\":\"1h\""), 201);
    call("POST", TASKS "/a/run", NULL, 200);
    call("POST", TASKS "/a/run", "{}", 200);
    assert_string_equal(f.store.last_actor, "api 127.0.0.1");
    fake_put(&f.store, "a", TASK_FAILED, 3);
    char *text = expect_call(&f, "POST", TASKS "/a/run", NULL, 200);
    expect_json(text, "status", "\"PENDING\"");
    expect_json(text, "attempt", "3");
    free(text);
    fake_put(&f.store, "a", TASK_SENDING, 4);
    call("POST", TASKS "/a/run", NULL, 409);
}

static void test_notify(void **state)
{
    (void)state;
    expect_problem(&f, "POST", TASKS "/n/notify", NULL, 404, "bizUuid");
    call("POST", TASKS,
         "{\"bizUuid\":\"n\",\"serviceName\":\"s\",\"handler\":\"h\",\"priority\":7}", 201);
    call("POST", TASKS "/n/notify", NULL, 204);
    assert_int_equal(atomic_load(&f.n_notified), 1);
    assert_int_equal(f.last_hint.lane, 2);
    assert_int_equal(f.last_hint.attempt, 0);
    atomic_store(&f.takes_notices, false);
    expect_problem(&f, "POST", TASKS "/n/notify", NULL, 503, NULL);
    fake_put(&f.store, "n", TASK_SENDING, 1); /* nobody need hear of it */
    call("POST", TASKS "/n/notify", "{}", 204);
    assert_int_equal(atomic_load(&f.n_notified), 2);
}

static void test_explain(void **state)
{
    (void)state;
    call("POST", TASKS, TASK("a", "\"executeTime\":1900000000000"), 201);
    f.explanation = (struct sched_explanation){.gate = GATE_QUEUE,
                                               .owner = "n1",
                                               .place = 3,
                                               .n_ready = 7,
                                               .n_sending = 5,
                                               .concurrency = 64};
    char *text = expect_call(&f, "GET", TASKS "/a/explain", NULL, 200);
    expect_json(text, "owner", "\"n1\"");
    expect_json(text, "gate", "\"queue\"");
    expect_json(text, "place", "3");
    expect_json(text, "serviceReady", "7");
    expect_json(text, "serviceInFlight", "5");
    expect_json(text, "concurrency", "64");
    expect_json(text, "nextInstant", "\"2030-03-17T17:46:40.000Z\"");
    free(text);
    for (enum gate g = GATE_NONE; g <= GATE_FOREIGN; g++) {
        char wanted[32], reason[200];
        f.explanation.gate = g;
        text = expect_call(&f, "GET", TASKS "/a/explain", NULL, 200);
        snprintf(wanted, sizeof(wanted), "\"%s\"", gate_name(g));
        expect_json(text, "gate", wanted);
        assert_true(json_at(text, "reason", reason, sizeof(reason)) && strlen(reason) > 10);
        free(text);
    }
    static const struct {
        enum task_status status;
        const char *gate;
    } others[] = {{TASK_SENDING, "\"in-flight\""}, {TASK_SENT, "\"in-flight\""},
                  {TASK_FAILED, "\"failed\""},     {TASK_MANUAL_REQUIRED, "\"failed\""},
                  {TASK_SUCCESS, "\"finished\""},  {TASK_CANCELLED, "\"finished\""}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        fake_put(&f.store, "a", others[i].status, 1);
        text = expect_call(&f, "GET", TASKS "/a/explain", NULL, 200);
        expect_json(text, "gate", others[i].gate);
        expect_json(text, "place", "null");
        free(text);
    }
}

/* ---- List -------------------------------------------------------------------------------- */

static void test_list(void **state)
{
    (void)state;
    char *text = expect_call(&f, "GET", TASKS, NULL, 200);
    assert_string_equal(text, "{\"tasks\":[],\"nextCursor\":null}");
    free(text);
    for (int i = 0; i < 130; i++) {
        char body[200];
        snprintf(body, sizeof(body),
                 "{\"bizUuid\":\"k%d\",\"serviceName\":\"s%d\",\"handler\":\"h\","
                 "\"executeTime\":%lld}",
                 i, i % 2, 1900000000000LL + i);
        call("POST", TASKS, body, 201);
    }
    text = expect_call(&f, "GET", TASKS, NULL, 200);
    expect_json(text, "tasks.0.bizUuid", "\"k129\"");
    expect_json(text, "tasks.49.bizUuid", "\"k80\"");
    char cursor[64], value[4000], path[200];
    assert_false(json_at(text, "tasks.50", value, sizeof(value)));
    free(text);
    /* Pages of the odd ones, to the end: each once. */
    cursor[0] = '\0';
    int seen = 129;
    for (;;) {
        snprintf(path, sizeof(path), TASKS "?limit=20&service=s1%s%.*s",
                 cursor[0] ? "&cursor=" : "", cursor[0] ? 16 : 0, cursor + 1);
        text = expect_call(&f, "GET", path, NULL, 200);
        for (int i = 0; i < 20; i++, seen -= 2) {
            char at[64], wanted[32];
            snprintf(at, sizeof(at), "tasks.%d.bizUuid", i);
            if (!json_at(text, at, value, sizeof(value)))
                break;
            snprintf(wanted, sizeof(wanted), "\"k%d\"", seen);
            assert_string_equal(value, wanted);
        }
        assert_true(json_at(text, "nextCursor", cursor, sizeof(cursor)));
        free(text);
        if (strcmp(cursor, "null") == 0)
            break;
    }
    assert_int_equal(seen, -1);
    fake_put(&f.store, "k7", TASK_FAILED, 1);
    fake_put(&f.store, "k9", TASK_SENT, 1);
    text = expect_call(&f, "GET",
                       TASKS "?status=FAILED,SENT&handler=h&from=1900000000008"
                             "&to=2030-03-18T00:00:00%2B00:00",
                       NULL, 200);
    expect_json(text, "tasks.0.bizUuid", "\"k9\"");
    assert_false(json_at(text, "tasks.1", value, sizeof(value)));
    free(text);
    /* The first and the last time there is. */
    text = expect_call(&f, "GET", TASKS "?status=SENT&from=-62167219200000&to=253402300799999",
                       NULL, 200);
    expect_json(text, "tasks.0.bizUuid", "\"k9\"");
    free(text);
    text = expect_call(&f, "GET", TASKS "?status=FAILED&to=2030-03-18T00:00:00+00:00&&", NULL, 200);
    expect_json(text, "tasks.0.bizUuid", "\"k7\"");
    free(text);
}

/* ---- When the store cannot --------------------------------------------------------------- */

static void expect_unavailable(const char *method, const char *path, const char *body,
                               const char *type, const char *effect, const char *hint)
{
    struct answer_text a;
    char value[320];
    client_call(f.address, method, path, body, &a);
    assert_int_equal(a.status, 503);
    assert_string_equal(answer_header(&a, "Retry-After", value, sizeof(value)), "1");
    expect_json(a.body, "type", type);
    expect_json(a.body, "effect", effect);
    assert_true(json_at(a.body, "hint", value, sizeof(value)));
    if (!strstr(value, hint))
        fail_msg("%s %s: the hint is %s", method, path, value);
    answer_free(&a);
}

static void test_unavailable(void **state)
{
    static const struct {
        const char *method;
        const char *path;
        const char *body;
        const char *effect; /* when it comes back with an error */
        const char *hint;
    } calls[] = {
        {"POST", TASKS, KEY("a"), "\"unknown\"", "same bizUuid"},
        {"POST", TASKS "/batch", "{\"tasks\":[" KEY("a") "]}", "\"unknown\"", "same bizUuid"},
        {"GET", TASKS "/a", NULL, "\"none\"", "Try again"},
        {"GET", TASKS, NULL, "\"none\"", "Try again"},
        {"DELETE", TASKS "/a", NULL, "\"unknown\"", "same as once"},
        {"PATCH", TASKS "/a", "{\"delay\":1}", "\"unknown\"", "Look at the task"},
        {"PATCH", TASKS "/a", "{\"executeTime\":1}", "\"unknown\"", "same as once"},
        {"POST", TASKS "/a/run", NULL, "\"unknown\"", "Look at the task"},
        {"GET", TASKS "/a/explain", NULL, "\"none\"", "Try again"},
        {"GET", "/api/traces/00000000000000010000000000001234", NULL, "\"none\"", "Try again"},
        {"GET", "/api/services", NULL, "\"none\"", "Try again"},
        {"GET", "/api/services/s", NULL, "\"none\"", "Try again"},
        {"PUT", "/api/services/s", "{\"baseUrl\":\"http://h/\"}", "\"unknown\"", "same as once"},
        {"DELETE", "/api/services/s", NULL, "\"unknown\"", "same as once"},
        {"POST", "/api/services/s/pause", NULL, "\"unknown\"", "same as once"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        atomic_store(&f.store.refuse, ERR_BUSY);
        expect_unavailable(calls[i].method, calls[i].path, calls[i].body,
                           "\"urn:jobflow:problem:overloaded\"", "\"none\"", "Try again");
        atomic_store(&f.store.refuse, ERR_UNAVAILABLE);
        expect_unavailable(calls[i].method, calls[i].path, calls[i].body,
                           "\"urn:jobflow:problem:unavailable\"", "\"none\"", "Try again");
        atomic_store(&f.store.refuse, ERR_SHUTDOWN);
        expect_unavailable(calls[i].method, calls[i].path, calls[i].body,
                           "\"urn:jobflow:problem:unavailable\"", "\"none\"", "Try again");
        atomic_store(&f.store.refuse, 0);
        atomic_store(&f.store.fail, ERR_UNAVAILABLE);
        expect_unavailable(calls[i].method, calls[i].path, calls[i].body,
                           "\"urn:jobflow:problem:unavailable\"", calls[i].effect, calls[i].hint);
        atomic_store(&f.store.fail, ERR_CORRUPT);
        call(calls[i].method, calls[i].path, calls[i].body, 500);
        atomic_store(&f.store.fail, 0);
    }
    assert_int_equal(counter_get(&f.counters.refused), 10);
    assert_int_equal(f.store.n_tasks, 0);
}

/* A task's facts come from its service: none is taken before the services have been read. */
static bool both_refused(void *ctx)
{
    (void)ctx;
    return counter_get(&f.counters.refused) == 2;
}

static void test_services_unknown(void **state)
{
    static const char not_ready[] = "\"urn:jobflow:problem:not-ready\"";
    (void)state;
    atomic_store(&f.knows_services, false);
    expect_unavailable("POST", TASKS, KEY("a"), not_ready, "\"none\"", "Try again");
    expect_unavailable("POST", TASKS "/batch", "{\"tasks\":[" KEY("a") "]}", not_ready, "\"none\"",
                       "Try again");
    assert_int_equal(atomic_load(&f.store.n_posts), 0);
    wait_until(both_refused, NULL); /* counted behind the answer */
    call("GET", TASKS, NULL, 200);
    atomic_store(&f.knows_services, true);
    call("POST", TASKS, KEY("a"), 201);
}

static bool all_counted(void *ctx)
{
    (void)ctx;
    return counter_get(&f.counters.submitted) == 60;
}

/* Clients that are gone when the store answers: all answers are accounted for. */
static void test_clients_die(void **state)
{
    struct client clients[60];
    (void)state;
    fake_hold(&f.store, true);
    for (size_t i = 0; i < 60; i++) {
        char request[400], body[200];
        snprintf(body, sizeof(body),
                 "{\"bizUuid\":\"d%zu\",\"serviceName\":\"s\",\"handler\":\"h\"}", i);
        snprintf(request, sizeof(request),
                 "POST /api/delay-tasks HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n%s",
                 strlen(body), body);
        client_open(&clients[i], f.address);
        client_send(&clients[i], request);
    }
    while (atomic_load(&f.store.n_posts) < 60)
        (void)client_readable(&clients[0], 1);
    for (size_t i = 0; i < 60; i += 2)
        client_reset(&clients[i]);
    fake_hold(&f.store, false);
    for (size_t i = 1; i < 60; i += 2) {
        struct answer_text a;
        client_read(&clients[i], &a);
        assert_int_equal(a.status, 201);
        answer_free(&a);
        client_close(&clients[i]);
    }
    wait_until(all_counted, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_new_and_duplicate),
        TEST(test_conflicts),
        TEST(test_payload_bytes),
        TEST(test_fields),
        TEST(test_times),
        TEST(test_location),
        TEST(test_batch),
        TEST(test_get),
        TEST(test_cancel),
        TEST(test_change),
        TEST(test_run),
        TEST(test_notify),
        TEST(test_explain),
        TEST(test_list),
        TEST(test_unavailable),
        TEST(test_services_unknown),
        TEST(test_clients_die),
    };
    return cmocka_run_group_tests_name("api_tasks", tests, NULL, NULL);
}
