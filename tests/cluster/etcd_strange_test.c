/* SPDX-License-Identifier: Apache-2.0 */
/* What no real etcd says when it is asked to: answers cut in pieces, too big, of something else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <event2/event.h>

#include "common/buf.h"
#include "common/clock.h"
#include "tests/cluster/etcd_fixture.h"
#include "tests/cluster/fake_etcd.h"

#define EVENT(revision)                                                                            \
    "{\"result\":{" FAKE_HEADER ",\"events\":[{\"kv\":{\"key\":\"L3cvYQ==\","                      \
    "\"mod_revision\":\"" revision "\",\"value\":\"dg==\"}}]}}\n"
#define RANGE_ANSWER "{" FAKE_HEADER ",\"count\":\"0\"}"

struct rig {
    struct fixture f;
    struct fake_etcd *servers[2];
    unsigned n_servers;
    struct fake_request *kept;
    char body[512]; /* of the last request */
    char head[1024];
    unsigned n_authenticate;
    const char *texts[4]; /* said to the first, second, … request; then the last one again */
    const char *status;
};

static int setup(void **state)
{
    struct rig *x = calloc(1, sizeof(*x));

    assert_non_null(x);
    fixture_open(&x->f);
    x->status = "200 OK";
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    struct rig *x = *state;

    for (unsigned i = 0; i < x->n_servers; i++)
        fake_etcd_free(x->servers[i]);
    fixture_close(&x->f);
    free(x);
    return 0;
}

/* A client of the fake servers, in the order of this function's calls. */
static void serve(struct rig *x, fake_answer *on_request, int64_t idle_ms, int64_t timeout_ms)
{
    char urls[2][FAKE_URL_MAX];
    const char *endpoints[2] = {urls[0], urls[1]};

    x->servers[x->n_servers++] = fake_etcd_new(x->f.base, on_request, x);
    for (unsigned i = 0; i < x->n_servers; i++)
        fake_etcd_url(x->servers[i], urls[i]);
    fixture_client(&x->f, &(struct etcd_config){.endpoints = endpoints,
                                                .n_endpoints = x->n_servers,
                                                .request_timeout_ms = timeout_ms,
                                                .watch_idle_ms = idle_ms});
}

static void note(struct rig *x, const char *head, const char *body)
{
    (void)snprintf(x->head, sizeof(x->head), "%s", head);
    (void)snprintf(x->body, sizeof(x->body), "%s", body);
}

/* Says the text whose turn it is and ends. */
static void say_and_end(struct fake_request *r, const char *head, const char *body, void *ctx)
{
    struct rig *x = ctx;
    unsigned i = 0;

    note(x, head, body);
    while (i + 1 < fake_etcd_count(x->servers[0]) && i < 3 && x->texts[i + 1])
        i++;
    fake_status(r, x->status);
    fake_say(r, str_from(x->texts[i]));
    fake_end(r);
}

/* The same without an end, which the test may say. */
static void say_and_keep(struct fake_request *r, const char *head, const char *body, void *ctx)
{
    struct rig *x = ctx;

    note(x, head, body);
    fake_status(r, x->status);
    fake_say(r, str_from(x->texts[0]));
    x->kept = r;
}

static void say_nothing(struct fake_request *r, const char *head, const char *body, void *ctx)
{
    (void)r;
    note(ctx, head, body);
}

static struct etcd_call range_call(void)
{
    return (struct etcd_call){.op = ETCD_RANGE, .key = STR("/w/"), .is_prefix = true};
}

/* ---- Calls --------------------------------------------------------------------------------- */

static void test_what_is_not_etcd(void **state)
{
    static const char *const texts[] = {"", "<html>hello</html>", "{}", "[]",
                                        "{\"header\":{\"revision\":\"x\"}}"};
    struct rig *x = *state;
    struct asked a;

    serve(x, say_and_end, 30000, 20000);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        x->texts[0] = texts[i];
        assert_int_equal(ask(&x->f, &a, range_call()), ERR_PROTOCOL);
    }
    assert_non_null(strstr(x->head, "POST /v3/kv/range HTTP/1.1"));
    assert_null(strstr(x->head, "Expect"));
    x->status = "502 Bad Gateway";
    assert_int_equal(ask(&x->f, &a, range_call()), ERR_UNAVAILABLE);
    assert_non_null(strstr(a.err, "502"));
    x->status = "302 Found\r\nLocation: /elsewhere";
    unsigned before = fake_etcd_count(x->servers[0]);
    assert_int_equal(ask(&x->f, &a, range_call()), ERR_PROTOCOL);
    assert_int_equal(fake_etcd_count(x->servers[0]), before + 1); /* not followed */
    x->status = "200 OK\r\nContent-Length: 100"; /* and the connection ends before */
    x->texts[0] = RANGE_ANSWER;
    assert_int_equal(ask(&x->f, &a, range_call()), ERR_UNAVAILABLE);
    x->status = "200 OK";
    assert_int_equal(ask(&x->f, &a, range_call()), 0);
    assert_true(a.a.revision == 7);
}

/* Whatever is wrong with one endpoint, the next one serves the call. */
static void test_next_endpoint(void **state)
{
    static const char *const statuses[] = {"200 OK", "502 Bad Gateway", "404 Not Found"};
    struct rig *x = *state;
    struct asked a;

    for (size_t i = 0; i < 3; i++) {
        struct rig good = {.status = "200 OK", .texts = {RANGE_ANSWER}};
        char urls[2][FAKE_URL_MAX];
        const char *endpoints[2] = {urls[0], urls[1]};
        good.servers[0] = fake_etcd_new(x->f.base, say_and_end, &good);
        x->status = statuses[i];
        x->texts[0] = "<html>nothing</html>";
        struct fake_etcd *bad = fake_etcd_new(x->f.base, say_and_end, x);
        x->servers[0] = bad; /* whose requests are counted */
        fake_etcd_url(bad, urls[0]);
        fake_etcd_url(good.servers[0], urls[1]);
        fixture_client(&x->f, &(struct etcd_config){.endpoints = endpoints,
                                                    .n_endpoints = 2,
                                                    .request_timeout_ms = 20000,
                                                    .watch_idle_ms = 30000});
        assert_int_equal(ask(&x->f, &a, range_call()), 0);
        assert_int_equal(ask(&x->f, &a, range_call()), 0); /* and stays there */
        assert_int_equal(fake_etcd_count(bad), 1);
        assert_int_equal(fake_etcd_count(good.servers[0]), 2);
        fake_etcd_free(bad);
        fake_etcd_free(good.servers[0]);
    }
}

static void say_endless(struct fake_request *r, const char *head, const char *body, void *ctx)
{
    struct buf b = BUF_INIT;

    (void)head;
    (void)body;
    (void)ctx;
    fake_status(r, "200 OK");
    buf_addz(&b, "{\"x\":\"");
    for (int i = 0; i < 10000; i++)
        buf_addz(&b, "0123456789012345678901234567890123456789012345678901234567890123"
                     "0123456789012345678901234567890123456789012345678901234567890123");
    for (int i = 0; i < 10; i++) /* 12.8 MB */
        fake_say(r, buf_str(&b));
    buf_fini(&b);
}

static void test_answer_too_big(void **state)
{
    struct rig *x = *state;
    struct asked a;

    serve(x, say_endless, 30000, 30000);
    assert_int_equal(ask(&x->f, &a, range_call()), ERR_PROTOCOL);
    assert_non_null(strstr(a.err, "too big"));
}

/* etcd-49: nothing comes back at all. */
static void test_etcd_49_black_hole(void **state)
{
    struct rig *x = *state;
    struct etcd_call c = range_call();
    struct asked a;

    serve(x, say_nothing, 30000, 30000);
    c.timeout_ms = 200;
    assert_int_equal(ask(&x->f, &a, c), ERR_TIMEOUT);
}

/* A server that calls every token stale: one more try, then the caller is told. */
static void never_content(struct fake_request *r, const char *head, const char *body, void *ctx)
{
    struct rig *x = ctx;

    note(x, head, body);
    if (strstr(head, "/v3/auth/authenticate")) {
        x->n_authenticate++;
        fake_status(r, "200 OK");
        fake_say(r, STR("{" FAKE_HEADER ",\"token\":\"t.1\"}"));
    } else {
        assert_non_null(strstr(head, "\r\nAuthorization: t.1"));
        fake_status(r, "401 Unauthorized");
        fake_say(r, STR("{\"error\":\"etcdserver: invalid auth token\",\"code\":16}"));
    }
    fake_end(r);
}

static void test_tokens_that_never_work(void **state)
{
    struct rig *x = *state;
    char url[FAKE_URL_MAX];
    const char *endpoint = url;
    struct asked a;

    x->servers[x->n_servers++] = fake_etcd_new(x->f.base, never_content, x);
    fake_etcd_url(x->servers[0], url);
    fixture_client(&x->f, &(struct etcd_config){.endpoints = &endpoint,
                                                .n_endpoints = 1,
                                                .user = "u",
                                                .password = "p",
                                                .request_timeout_ms = 20000,
                                                .watch_idle_ms = 30000});
    assert_int_equal(ask(&x->f, &a, range_call()), ERR_INVALID);
    assert_int_equal(x->n_authenticate, 2);
    assert_int_equal(fake_etcd_count(x->servers[0]), 4);
}

/* ---- Watches ------------------------------------------------------------------------------- */

static void check_broken(struct rig *x, const char *text, int rc, int64_t compact_revision)
{
    struct watched w;

    x->texts[0] = text;
    watch_start(&x->f, &w, "/w/", 5);
    wait_broken(&x->f, &w);
    assert_int_equal(w.rc, rc);
    assert_true(w.compact_revision == compact_revision);
    assert_true(w.err[0] != '\0');
    fixture_run(&x->f, 20); /* it does not come back */
    assert_int_equal(w.n_broken, 1);
    watch_stop(&w);
}

static void test_broken(void **state)
{
    struct rig *x = *state;

    serve(x, say_and_keep, 30000, 20000);
    /* etcd-47: without "canceled", with and without "created" before it. */
    check_broken(x, "{\"result\":{\"header\":{},\"compact_revision\":\"9007199254740993\"}}",
                 ERR_NOT_FOUND, INT64_C(9007199254740993));
    check_broken(x, FAKE_CREATED "{\"result\":{\"header\":{},\"compact_revision\":\"9\"}}",
                 ERR_NOT_FOUND, 9);
    check_broken(x, FAKE_CREATED "{\"result\":{\"header\":{},\"canceled\":true}}", ERR_CONFLICT, 0);
    check_broken(x, FAKE_CREATED "{\"result\":{\"header\":{},\"events\":1}}", ERR_PROTOCOL, 0);
    check_broken(x, FAKE_CREATED "{\"result\":{}}", ERR_PROTOCOL, 0);
    check_broken(x, FAKE_CREATED "<html>", ERR_PROTOCOL, 0);
    check_broken(x, FAKE_CREATED "{\"error\":{\"grpc_code\":7,\"message\":\"permission denied\"}}",
                 ERR_INVALID, 0);
}

/* 4 MiB of one message are the end, however they come. */
static void test_message_too_big(void **state)
{
    struct rig *x = *state;
    struct watched w;
    char *block = calloc(1, 1 << 20);

    assert_non_null(block);
    memset(block, 'x', 1 << 20);
    x->texts[0] = FAKE_CREATED;
    serve(x, say_and_keep, 30000, 20000);
    watch_start(&x->f, &w, "/w/", 0);
    wait_created(&x->f, &w, 1);
    fake_say(x->kept, STR("{\"result\":\""));
    for (int i = 0; i < 5; i++)
        fake_say(x->kept, (struct str){block, 1 << 20});
    wait_broken(&x->f, &w);
    assert_int_equal(w.rc, ERR_PROTOCOL);
    watch_stop(&w);
    free(block);
}

/* Messages arrive in any pieces; what came whole is told before the rest is there. */
static void test_pieces(void **state)
{
    static const char text[] = EVENT("8") EVENT("9") EVENT("10");
    struct rig *x = *state;
    struct watched w;

    x->texts[0] = FAKE_CREATED;
    serve(x, say_and_keep, 30000, 20000);
    watch_start(&x->f, &w, "/w/", 0);
    wait_created(&x->f, &w, 1);
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        fake_say(x->kept, (struct str){text + i, 1});
        assert_true(event_base_loop(x->f.base, EVLOOP_NONBLOCK) >= 0);
        if (i == sizeof(EVENT("8")))
            wait_events(&x->f, &w, 1);
    }
    wait_events(&x->f, &w, 3);
    assert_true(w.events[2].mod_revision == 10);
    fake_say(x->kept, STR(EVENT("11") "\n \n" EVENT("12")));
    wait_events(&x->f, &w, 5);
    assert_int_equal(w.n_created, 1);
    watch_stop(&w);
}

/* An error inside of the stream that another try may cure: it goes on behind the last event. */
static void test_error_in_stream(void **state)
{
    struct rig *x = *state;
    struct watched w;

    x->texts[0] = FAKE_CREATED EVENT("41") "{\"error\":{\"grpc_code\":14,\"http_code\":503,"
                                           "\"message\":\"etcdserver: no leader\"}}\n";
    x->texts[1] = FAKE_CREATED EVENT("42");
    x->texts[2] = "<html>from in between</html>";
    x->texts[3] = FAKE_CREATED;
    serve(x, say_and_end, 30000, 20000);
    watch_start(&x->f, &w, "/w/", 0);
    wait_events(&x->f, &w, 2);
    wait_created(&x->f, &w, 3);
    assert_non_null(strstr(x->body, "\"start_revision\":\"43\""));
    assert_int_equal(w.n_broken, 0);
    assert_int_equal(w.n_events, 2);
    watch_stop(&w);
}

/* etcd-49, for a watch: silence before it began, and after. */
static void test_etcd_49_silent_watch(void **state)
{
    struct rig *x = *state;
    struct watched w;

    serve(x, say_nothing, 100, 100);
    watch_start(&x->f, &w, "/w/", 0);
    fixture_run(&x->f, 1000);
    assert_int_equal(w.n_created, 0);
    assert_true(fake_etcd_count(x->servers[0]) >= 2);
    watch_stop(&w);
    fake_etcd_free(x->servers[0]);
    x->n_servers = 0;

    x->texts[0] = FAKE_CREATED;
    serve(x, say_and_keep, 100, 20000);
    watch_start(&x->f, &w, "/w/", 0);
    wait_created(&x->f, &w, 3);
    assert_non_null(strstr(w.why, "nothing was heard"));
    watch_stop(&w);
}

/* A stream that ends at once each time is not asked for as fast as the machine can. */
static void test_pauses(void **state)
{
    struct rig *x = *state;
    struct watched w;

    x->texts[0] = FAKE_CREATED;
    serve(x, say_and_end, 30000, 20000);
    watch_start(&x->f, &w, "/w/", 0);
    fixture_run(&x->f, 1500);
    /* 25, 50, 100, … ms at least: seven fit. */
    assert_true(w.n_created >= 1 && fake_etcd_count(x->servers[0]) <= 8);
    assert_int_equal(w.n_broken, 0);
    watch_stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_not_etcd, setup, teardown),
        cmocka_unit_test_setup_teardown(test_next_endpoint, setup, teardown),
        cmocka_unit_test_setup_teardown(test_answer_too_big, setup, teardown),
        cmocka_unit_test_setup_teardown(test_etcd_49_black_hole, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tokens_that_never_work, setup, teardown),
        cmocka_unit_test_setup_teardown(test_broken, setup, teardown),
        cmocka_unit_test_setup_teardown(test_message_too_big, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(test_error_in_stream, setup, teardown),
        cmocka_unit_test_setup_teardown(test_etcd_49_silent_watch, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pauses, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
