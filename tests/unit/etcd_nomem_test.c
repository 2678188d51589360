/* SPDX-License-Identifier: Apache-2.0 */
/* The etcd client when memory runs out: each allocation of ours fails in turn. What was not done is
 * said, nothing is called back, nothing is left behind (which the address sanitizer sees). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <event2/event.h>

#include "node/cluster/etcd_json.h"
#include "node/cluster/etcd_stream.h"

#define HEADER "\"header\":{\"revision\":\"7\"}"

static long fail_at; /* the n-th allocation from now fails; 0 = none */

static bool is_failing(void)
{
    return fail_at > 0 && --fail_at == 0;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_reallocarray(void *p, size_t n, size_t size);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

void *__wrap_malloc(size_t n)
{
    return is_failing() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return is_failing() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return is_failing() ? NULL : __real_realloc(p, n);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
    return is_failing() ? NULL : __real_reallocarray(p, n, size);
}

char *__wrap_strdup(const char *s)
{
    return is_failing() ? NULL : __real_strdup(s);
}

char *__wrap_strndup(const char *s, size_t n)
{
    return is_failing() ? NULL : __real_strndup(s, n);
}

/* Calls it with the first, second, … allocation failing until it succeeds. */
static void check(int (*run)(void))
{
    long n = 0;
    int rc;

    do {
        fail_at = ++n;
        rc = run();
        assert_true(rc == 0 || rc == ERR_NOMEM);
        assert_true(rc == 0 || fail_at == 0);
    } while (rc);
    assert_true(n > 1 && fail_at > 0);
    fail_at = 0;
}

static int run_range(void)
{
    static const struct etcd_call c = {.op = ETCD_RANGE, .key = STR("a")};
    struct etcd_decoder d = {0};
    struct etcd_answer a = {0};
    struct etcd_fault fault = {0};
    int rc = etcd_decode_answer(
        &d, &c, 200, STR("{" HEADER ",\"kvs\":[{\"key\":\"YQ==\",\"value\":\"\\/g==\"}]}"), &a,
        &fault);

    assert_int_equal(rc, fault.rc);
    assert_true(rc || a.n_kvs == 1);
    etcd_decoder_fini(&d);
    return rc;
}

static int run_message(void)
{
    struct etcd_decoder d = {0};
    struct etcd_message m;
    struct etcd_fault fault = {0};
    int rc = etcd_decode_message(&d,
                                 STR("{\"result\":{" HEADER ",\"events\":[{\"kv\":{\"key\":"
                                     "\"YQ==\",\"mod_revision\":\"7\"}}]}}"),
                                 &m, &fault);

    assert_true(rc || m.n_events == 1);
    etcd_decoder_fini(&d);
    return rc;
}

static int run_encode(void)
{
    struct etcd_call c = {
        .op = ETCD_RANGE, .key = STR("a-prefix-that-needs-memory"), .is_prefix = true};
    struct buf b = BUF_INIT;

    etcd_encode_call(&c, &b);
    int rc = buf_ok(&b) ? 0 : ERR_NOMEM;
    buf_fini(&b);
    return rc;
}

static int run_stream(void)
{
    struct etcd_stream s = {0};
    int rc = etcd_stream_push(&s, STR("{}"));

    etcd_stream_fini(&s);
    return rc;
}

static struct event_base *base;

static int new_client(struct etcd **ret)
{
    static const char *const endpoints[] = {"http://127.0.0.1:1", "http://127.0.0.1:2"};
    struct err err = {0};
    int rc = etcd_new(base,
                      &(struct etcd_config){.endpoints = endpoints,
                                            .n_endpoints = 2,
                                            .user = "u",
                                            .password = "p",
                                            .ca_file = "/ca",
                                            .cert_file = "/cert",
                                            .key_file = "/key",
                                            .request_timeout_ms = 1000,
                                            .watch_idle_ms = 1000},
                      ret, &err);

    assert_true(!rc == !err.text[0]);
    return rc;
}

static int run_client(void)
{
    struct etcd *e = NULL;
    int rc = new_client(&e);

    etcd_free(e);
    return rc;
}

static void on_never(struct etcd_call *c)
{
    (void)c;
    fail_msg("on_done of a call that did not start");
}

static int run_call(void)
{
    struct etcd_call c = {.op = ETCD_PUT, .key = STR("k"), .on_done = on_never};
    struct etcd *e = NULL;
    long n = fail_at;

    fail_at = 0;
    assert_int_equal(new_client(&e), 0);
    fail_at = n;
    int rc = etcd_start(e, &c);
    n = fail_at;
    fail_at = 0;
    assert_true(!rc == !!c.flight);
    etcd_free(e);
    fail_at = n;
    return rc;
}

static void on_events(void *ctx, int64_t revision, const struct etcd_event *events, size_t n)
{
    (void)ctx;
    (void)revision;
    (void)events;
    (void)n;
}

static void on_broken(void *ctx, int rc, int64_t compact_revision, const struct err *err)
{
    (void)ctx;
    (void)rc;
    (void)compact_revision;
    (void)err;
}

static int run_watch(void)
{
    const struct etcd_watch_config cfg = {
        .prefix = STR("/w/"), .on_events = on_events, .on_broken = on_broken};
    struct etcd_watch *w = NULL;
    struct etcd *e = NULL;
    long n = fail_at;

    fail_at = 0;
    assert_int_equal(new_client(&e), 0);
    fail_at = n;
    int rc = etcd_watch_start(e, &cfg, &w);
    etcd_watch_stop(w);
    etcd_free(e);
    return rc;
}

static void test_decoding(void **state)
{
    (void)state;
    check(run_range);
    check(run_message);
}

static void test_encoding(void **state)
{
    (void)state;
    check(run_encode);
    check(run_stream);
}

static void test_client(void **state)
{
    (void)state;
    base = event_base_new();
    assert_non_null(base);
    check(run_client);
    check(run_call);
    check(run_watch);
    event_base_free(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoding),
        cmocka_unit_test(test_encoding),
        cmocka_unit_test(test_client),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
