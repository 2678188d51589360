/* SPDX-License-Identifier: Apache-2.0 */
/* The calls about a service's instances: what they answer, and all that they refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/api_fixture.h"

#define INSTANCES "/api/services/s/instances"
#define POD(more) "{\"instance\":\"pod-7\",\"baseUrl\":\"http://10.0.0.7:8080/jobflow\"" more "}"
#define NAMED(name) "{\"instance\":" name ",\"baseUrl\":\"http://h\"}"
#define LEN32 "abcdefghijklmnopqrstuvwxyz012345"
#define LEN128 LEN32 LEN32 LEN32 LEN32

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

static void test_register_and_prolong(void **state)
{
    (void)state;
    char *text = expect_call(&f, "POST", INSTANCES, POD(",\"ttl\":\"1m30s\""), 201);
    assert_string_equal(text, "{\"serviceName\":\"s\",\"instance\":\"pod-7\","
                              "\"baseUrl\":\"http://10.0.0.7:8080/jobflow\",\"ttl\":\"1m30s\","
                              "\"registeredAt\":\"1970-01-01T00:00:01.000Z\","
                              "\"expiresAt\":\"1970-01-01T00:01:31.000Z\"}");
    free(text);
    text = expect_call(&f, "POST", INSTANCES, POD(""), 200);
    expect_json(text, "ttl", "\"15s\"");
    expect_json(text, "registeredAt", "\"1970-01-01T00:00:01.000Z\"");
    expect_json(text, "expiresAt", "\"1970-01-01T00:00:17.000Z\"");
    free(text);
    assert_int_equal(atomic_load(&f.n_instances_put), 2);
    assert_int_equal(f.store.instances[0].in.ttl_ms, 15000);
    text = expect_call(&f, "POST", INSTANCES, POD(",\"ttl\":1"), 200);
    expect_json(text, "ttl", "\"1s\"");
    free(text);
    text = expect_call(&f, "POST", INSTANCES, POD(",\"ttl\":\"PT10M\""), 200);
    expect_json(text, "ttl", "\"10m\"");
    free(text);
    call("POST", INSTANCES, NAMED("\"" LEN128 "\""), 201);
    text = expect_call(&f, "POST", INSTANCES, NAMED("\"10.0.0.7:80\\u0038_A-z\""), 201);
    expect_json(text, "instance", "\"10.0.0.7:808_A-z\"");
    free(text);
}

static void test_list_and_leave(void **state)
{
    (void)state;
    char *text = expect_call(&f, "GET", INSTANCES, NULL, 200);
    assert_string_equal(text, "{\"instances\":[]}");
    free(text);
    call("POST", INSTANCES, POD(""), 201);
    call("POST", INSTANCES, NAMED("\"broken\""), 201);
    call("POST", "/api/services/t/instances", POD(""), 201);
    text = expect_call(&f, "GET", INSTANCES, NULL, 200);
    expect_json(text, "instances.0.serviceName", "\"s\"");
    expect_json(text, "instances.0.instance", "\"pod-7\"");
    expect_json(text, "instances.0.ttl", "\"15s\"");
    expect_json(text, "instances.0.expiresAt", "\"1970-01-01T00:00:16.000Z\"");
    expect_json(text, "instances.1.setAsideUntil", "\"1970-01-01T00:00:05.000Z\"");
    char none[8];
    assert_false(json_at(text, "instances.0.setAsideUntil", none, sizeof(none)));
    assert_false(json_at(text, "instances.2", none, sizeof(none)));
    free(text);
    expect_problem(&f, "DELETE", INSTANCES "/pod-8", NULL, 404, "instance");
    expect_problem(&f, "DELETE", "/api/services/u/instances/pod-7", NULL, 404, "instance");
    assert_int_equal(atomic_load(&f.n_instances_removed), 0);
    text = expect_call(&f, "DELETE", INSTANCES "/pod%2D7", NULL, 204);
    assert_string_equal(text, "");
    free(text);
    assert_int_equal(atomic_load(&f.n_instances_removed), 1);
    expect_problem(&f, "DELETE", INSTANCES "/pod-7", NULL, 404, "instance");
    text = expect_call(&f, "GET", "/api/services/t/instances", NULL, 200);
    expect_json(text, "instances.0.instance", "\"pod-7\"");
    free(text);
}

static void test_the_limit(void **state)
{
    (void)state;
    call("POST", INSTANCES, NAMED("\"a\""), 201);
    call("POST", INSTANCES, NAMED("\"b\""), 201);
    call("POST", INSTANCES, NAMED("\"c\""), 201);
    call("POST", INSTANCES, NAMED("\"d\""), 201);
    char *text = expect_call(&f, "POST", INSTANCES, NAMED("\"e\""), 409);
    expect_json(text, "type", "\"urn:jobflow:problem:limit-reached\"");
    expect_json(text, "field", "\"instance\"");
    free(text);
    call("POST", INSTANCES, NAMED("\"d\""), 200);
    assert_int_equal(atomic_load(&f.n_instances_put), 5);
}

/* Nothing of it reaches the store. */
static void test_bad_bodies(void **state)
{
    static const struct {
        const char *body;
        const char *field;
    } cases[] = {
        {"", NULL},
        {"[]", NULL},
        {"{", NULL},
        {"{}", "instance"},
        {"{\"baseUrl\":\"http://h\"}", "instance"},
        {"{\"instance\":\"a\"}", "baseUrl"},
        {POD(",\"ttl\":\"15s\",\"ttl\":\"15s\""), "ttl"},
        {POD(",\"inst\\u0061nce\":\"b\""), "inst\\\\u0061nce"},
        {POD(",\"url\":\"http://h\""), "url"},
        {POD(",\"secret\":\"whsec_abc\""), "secret"},
        {POD(",\"serviceName\":\"s\""), "serviceName"},
        {POD(",\"Ttl\":\"15s\""), "Ttl"},
        {NAMED("null"), "instance"},
        {NAMED("7"), "instance"},
        {NAMED("\"\""), "instance"},
        {NAMED("\".\""), "instance"},
        {NAMED("\"..\""), "instance"},
        {NAMED("\"a b\""), "instance"},
        {NAMED("\"a/b\""), "instance"},
        {NAMED("\"a%b\""), "instance"},
        {NAMED("\"a\\u0000\""), "instance"},
        {NAMED("\"p\xc3\xb6"
               "d\""),
         "instance"},
        {NAMED("\"" LEN128 "x\""), "instance"},
        {"{\"instance\":\"a\",\"baseUrl\":null}", "baseUrl"},
        {"{\"instance\":\"a\",\"baseUrl\":8080}", "baseUrl"},
        {"{\"instance\":\"a\",\"baseUrl\":\"http://169.254.169.254/\"}", "baseUrl"},
        {POD(",\"ttl\":null"), "ttl"},
        {POD(",\"ttl\":true"), "ttl"},
        {POD(",\"ttl\":\"soon\""), "ttl"},
        {POD(",\"ttl\":0"), "ttl"},
        {POD(",\"ttl\":-15"), "ttl"},
        {POD(",\"ttl\":\"999ms\""), "ttl"},
        {POD(",\"ttl\":0.999"), "ttl"},
        {POD(",\"ttl\":\"10m1ms\""), "ttl"},
        {POD(",\"ttl\":99999999999999999999"), "ttl"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_problem(&f, "POST", INSTANCES, cases[i].body, 400, cases[i].field);
    assert_int_equal(atomic_load(&f.store.n_posts), 0);
    assert_int_equal(atomic_load(&f.n_instances_put), 0);
}

static void test_bad_paths(void **state)
{
    (void)state;
    expect_problem(&f, "POST", "/api/services/a%20b/instances", POD(""), 400, "name");
    expect_problem(&f, "GET", "/api/services/../instances", NULL, 400, "name");
    expect_problem(&f, "GET", "/api/services/" LEN128 "x/instances", NULL, 400, "name");
    expect_problem(&f, "DELETE", "/api/services/a%3Ab/instances/x", NULL, 400, "name");
    expect_problem(&f, "DELETE", INSTANCES "/a%2Fb", NULL, 400, "instance");
    expect_problem(&f, "DELETE", INSTANCES "/..", NULL, 400, "instance");
    expect_problem(&f, "DELETE", INSTANCES "/" LEN128 "x", NULL, 400, "instance");
    expect_problem(&f, "DELETE", INSTANCES "/%ff", NULL, 400, "path");
    expect_problem(&f, "DELETE", INSTANCES "/", NULL, 404, NULL);
    expect_problem(&f, "PUT", INSTANCES, POD(""), 405, NULL);
    expect_problem(&f, "DELETE", INSTANCES, NULL, 405, NULL);
    expect_problem(&f, "GET", INSTANCES "/pod-7", NULL, 405, NULL);
    assert_int_equal(atomic_load(&f.store.n_posts), 0);
}

static void expect_effect(const char *method, const char *path, const char *body,
                          const char *effect)
{
    char *text = expect_call(&f, method, path, body, 503);
    if (effect)
        expect_json(text, "effect", effect);
    free(text);
    atomic_store(&f.store.refuse, 0);
    atomic_store(&f.store.fail, 0);
}

/* What may not be stored is not told to the node either. */
static void test_without_a_database(void **state)
{
    (void)state;
    atomic_store(&f.store.refuse, ERR_UNAVAILABLE);
    expect_effect("POST", INSTANCES, POD(""), "\"none\"");
    atomic_store(&f.store.fail, ERR_UNAVAILABLE);
    expect_effect("POST", INSTANCES, POD(""), "\"unknown\"");
    atomic_store(&f.store.fail, ERR_UNAVAILABLE);
    expect_effect("DELETE", INSTANCES "/pod-7", NULL, "\"unknown\"");
    atomic_store(&f.store.fail, ERR_TIMEOUT);
    expect_effect("GET", INSTANCES, NULL, "\"none\"");
    expect_effect("POST", INSTANCES, "{\"instance\":\"a\",\"baseUrl\":\"http://starting\"}", NULL);
    assert_int_equal(atomic_load(&f.n_instances_put), 0);
    assert_int_equal(atomic_load(&f.n_instances_removed), 0);
    call("POST", INSTANCES, POD(""), 201);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_register_and_prolong), TEST(test_list_and_leave), TEST(test_the_limit),
        TEST(test_bad_bodies),           TEST(test_bad_paths),      TEST(test_without_a_database),
    };
    return cmocka_run_group_tests_name("api_instances", tests, NULL, NULL);
}
