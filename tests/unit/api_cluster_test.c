/* SPDX-License-Identifier: Apache-2.0 */
/* The calls about the cluster, and the one that only members may make. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/api_fixture.h"

#define SIGNED "/internal/hints?stamp=7&signature=v1,a%2B%2F%3D"
#define HINT(more)                                                                                 \
    "{\"serviceName\":\"s\",\"shard\":1,\"lane\":4,\"id\":9007199254740993,\"attempt\":2,"         \
    "\"time\":1900000000000" more "}"
#define HINTS(list) "{\"hints\":[" list "]}"

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

static void test_view(void **state)
{
    (void)state;
    char *text = expect_call(&f, "GET", "/api/cluster", NULL, 200);
    expect_json(text, "service", "null");
    free(text);
    text = expect_call(&f, "GET", "/api/cluster?service=ord%65rs", NULL, 200);
    expect_json(text, "service", "\"orders\"");
    free(text);
    expect_problem(&f, "GET", "/api/cluster?service=nobody", NULL, 404, "service");
    expect_problem(&f, "GET", "/api/cluster?service=a%20b", NULL, 400, "service");
    expect_problem(&f, "GET", "/api/cluster?service=", NULL, 400, "service");
    expect_problem(&f, "GET", "/api/cluster?service", NULL, 400, "service");
    expect_problem(&f, "GET", "/api/cluster?service=a&service=b", NULL, 400, "service");
    expect_problem(&f, "GET", "/api/cluster?limit=3", NULL, 400, "limit");
}

static void test_drain(void **state)
{
    (void)state;
    char *text = expect_call(&f, "POST", "/api/cluster/drain", NULL, 202);
    expect_json(text, "drain", "true");
    expect_json(text, "node", "\"n1\"");
    free(text);
    assert_true(atomic_load(&f.drains));
    free(expect_call(&f, "POST", "/api/cluster/resume", "{}", 202));
    assert_false(atomic_load(&f.drains));
    expect_problem(&f, "POST", "/api/cluster/drain", "{\"x\":1}", 400, "x");
    assert_false(atomic_load(&f.drains));
    atomic_store(&f.is_ready, false);
    free(expect_call(&f, "POST", "/api/cluster/drain", NULL, 503));
    atomic_store(&f.is_ready, true);
}

/* Nobody but a member gets to know that there is such a call. */
static void test_hints_need_a_signature(void **state)
{
    static const char *const paths[] = {"/internal/hints",
                                        "/internal/hints?stamp=7",
                                        "/internal/hints?stamp=7&signature=v1,b",
                                        "/internal/hints?stamp=8&signature=v1,a%2B%2F%3D",
                                        SIGNED "&more=1",
                                        SIGNED "&stamp"};
    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        free(expect_call(&f, "POST", paths[i], HINTS(HINT("")), 404));
    assert_int_equal(atomic_load(&f.n_hints), 0);
}

static void test_hints(void **state)
{
    (void)state;
    free(expect_call(&f, "POST", SIGNED, HINTS(""), 204));
    free(expect_call(&f, "POST", SIGNED, HINTS(HINT("") "," HINT("")), 204));
    assert_int_equal(atomic_load(&f.n_hints), 2);
    assert_int_equal(f.last_hint.shard, 1);
    assert_int_equal(f.last_hint.lane, 4);
    assert_int_equal(f.last_hint.attempt, 2);
    assert_true(f.last_hint.id == INT64_C(9007199254740993));
    assert_true(f.last_hint.next_attempt_time == INT64_C(1900000000000));
    assert_int_equal(atomic_load(&f.n_services_hints), 0);
    free(expect_call(&f, "POST", SIGNED, "{\"hints\":[],\"services\":true}", 204));
    assert_int_equal(atomic_load(&f.n_hints), 2);
    assert_int_equal(atomic_load(&f.n_services_hints), 1);
}

static void test_bad_hints(void **state)
{
    static const struct {
        const char *body;
        const char *field;
    } cases[] = {
        {"{}", "hints"},
        {"{\"hints\":{}}", "hints"},
        {HINTS("7"), "hints"},
        {"{\"hints\":[],\"services\":false}", "services"},
        {"{\"hints\":[],\"services\":1}", "services"},
        {HINTS("{}"), "serviceName"},
        {HINTS(HINT(",\"lane\":5")), "hints"}, /* twice */
        {HINTS(HINT(",\"x\":5")), "x"},
        {HINTS("{\"serviceName\":\"a b\"}"), "serviceName"},
        {HINTS("{\"shard\":256}"), "shard"},
        {HINTS("{\"shard\":-1}"), "shard"},
        {HINTS("{\"lane\":20}"), "lane"},
        {HINTS("{\"id\":0}"), "id"},
        {HINTS("{\"attempt\":2147483648}"), "attempt"},
        {HINTS("{\"time\":1e3}"), "time"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_problem(&f, "POST", SIGNED, cases[i].body, 400, cases[i].field);
    assert_int_equal(atomic_load(&f.n_hints), 0);
}

static void test_too_many_hints(void **state)
{
    size_t n = 1001;
    char *body = malloc(n * sizeof(HINT("")) + 32);
    char *p = body + sprintf(body, "{\"hints\":[");

    (void)state;
    for (size_t i = 0; i < n; i++)
        p += sprintf(p, "%s%s", i ? "," : "", HINT(""));
    strcpy(p, "]}");
    expect_problem(&f, "POST", SIGNED, body, 400, "hints");
    strcpy(p - sizeof(HINT("")), "]}");
    free(expect_call(&f, "POST", SIGNED, body, 503)); /* as the fixture answers 1,000 */
    free(body);
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(test_view),  TEST(test_drain),     TEST(test_hints_need_a_signature),
        TEST(test_hints), TEST(test_bad_hints), TEST(test_too_many_hints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
