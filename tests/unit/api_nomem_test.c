/* SPDX-License-Identifier: Apache-2.0 */
/* Each allocation of the server's threads fails once: the request at hand may be lost, nothing
 * else. Together with a leak check this holds every error path to account. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/api/api.h"
#include "tests/unit/http_client.h"

#define JSON_REQUEST(line, len) line " HTTP/1.1\r\nHost: h\r\nContent-Length: " len "\r\n\r\n"
#define KEY "\"serviceName\":\"s\",\"handler\":\"h\""
#define MAX_ALLOCATIONS 100

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_reallocarray(void *p, size_t n, size_t size);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_reallocarray(void *p, size_t n, size_t size);

static _Thread_local bool is_exempt; /* the test's own thread */
static atomic_int countdown;         /* the allocation that makes it 0 fails */

static bool fails(void)
{
    return !is_exempt && atomic_fetch_sub(&countdown, 1) == 1;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
    return fails() ? NULL : __real_reallocarray(p, n, size);
}

/* Answers on the spot, without memory of its own. */
static int post(void *impl, struct store_op *op)
{
    (void)impl;
    op->rc = ERR_NOT_FOUND;
    if (op->kind == STORE_SUBMIT) {
        struct submit_op *s = (struct submit_op *)op;
        op->rc = 0;
        for (size_t i = 0; i < s->n; i++) {
            s->items[i].result = SUBMIT_CREATED;
            s->items[i].task->id = 1;
            trace_id_make(1, 1, s->items[i].task->trace_id);
        }
    } else if (((struct store_call *)op)->what == CALL_SERVICE_LIST) {
        op->rc = 0;
    }
    mailbox_post(op->reply, &op->mail);
    return 0;
}

static int32_t shards_of(void *ctx, struct str service_name)
{
    (void)ctx;
    (void)service_name;
    return 1;
}

static struct counters counters;
static struct store_clock store_clock;

static struct api *start(void)
{
    static const struct retry_policy policy = {"default", {1000, 60000, 2.0, 0.0}, 10};
    static const struct retry_policies policies = {.policies = &policy, .n = 1};
    const struct api_config cfg = {
        .listen = "127.0.0.1:0",
        .threads = 2,
        .max_connections = 100,
        .max_header = 8192,
        .max_body = 100000,
        .header_timeout_ms = 20000,
        .body_timeout_ms = 20000,
        .idle_timeout_ms = 20000,
        .write_timeout_ms = 20000,
        .max_payload = 65536,
        .max_ahead_ms = INT64_C(3650) * 86400000,
        .default_timeout_ms = 60000,
        .max_timeout_ms = 86400000,
    };
    const struct api_env env = {
        .store = {post, NULL},
        .clock = &store_clock,
        .counters = &counters,
        .policies = &policies,
        .node_name = "n1",
        .shards_of = shards_of,
    };
    struct api *a = NULL;
    assert_int_equal(api_start(&cfg, &env, &a, NULL), 0);
    return a;
}

/* Returns the status, or 0 when the connection ended instead. */
static int ask(const char *address, const char *request)
{
    struct client c;
    struct answer_text a;
    int status = 0;
    client_open(&c, address);
    if (client_try_send(&c, request, strlen(request)) && client_try_read(&c, false, &a)) {
        status = a.status;
        answer_free(&a);
    }
    client_close(&c);
    return status;
}

static bool is_drained(void *a)
{
    return api_is_drained(a);
}

static const struct {
    const char *request;
    int status;
} requests[] = {
    {"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n", 200},
    {"GET /openapi.yaml HTTP/1.1\r\nHost: h\r\n\r\n", 200},
    {"GET /nothing HTTP/1.1\r\nHost: h\r\n\r\n", 404},
    {"GET /api/services HTTP/1.1\r\nHost: h\r\n\r\n", 200},
    {"GET /api/delay-tasks/a%2Fb HTTP/1.1\r\nHost: h\r\n\r\n", 404},
    {"GET /api/delay-tasks?status=%46AILED HTTP/1.1\r\nHost: h\r\n\r\n", 500},
    {JSON_REQUEST("POST /api/delay-tasks", "47") "{\"bizUuid\":\"b\"," KEY "}", 201},
    {JSON_REQUEST("POST /api/delay-tasks", "52") "{\"bizUuid\":\"\\u0062\"," KEY "}", 201},
    {"POST /api/delay-tasks HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
     "2f\r\n{\"bizUuid\":\"b\"," KEY "}\r\n0\r\n\r\n",
     201},
    {JSON_REQUEST("POST /api/delay-tasks/batch", "107") "{\"tasks\":[{\"bizUuid\":\"b\"," KEY
                                                        "},{\"bizUuid\":\"b\"," KEY "}]}",
     200},
    {JSON_REQUEST("POST /api/delay-tasks", "2") "{}", 400},
    {"bad\r\n\r\n", 400},
};

static void test_each_allocation(void **state)
{
    struct api *a = start();
    (void)state;
    is_exempt = true;
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        int n = 1;
        for (;; n++) {
            assert_in_range(n, 1, MAX_ALLOCATIONS);
            atomic_store(&countdown, n);
            int status = ask(api_address(a), requests[i].request);
            bool has_failed = atomic_exchange(&countdown, 0) <= 0;
            if (status != 0 && status != 500 && status != 503)
                assert_int_equal(status, requests[i].status);
            if (!has_failed) {
                assert_int_equal(status, requests[i].status);
                break;
            }
        }
        assert_true(n > 1); /* something was allocated, so something failed */
        assert_int_equal(ask(api_address(a), requests[0].request), 200);
    }
    api_drain(a, 20000);
    wait_until(is_drained, a);
    api_stop(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation)};
    return cmocka_run_group_tests_name("api_nomem", tests, NULL, NULL);
}
