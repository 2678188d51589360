/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/dispatch_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

static void test_answer(void **state)
{
    struct fixture *f = *state;
    struct call c;

    run_path(&c, f, "/ok");
    assert_int_equal(c.status, 200);
    assert_true(c.sent);
    assert_false(c.cut);
    assert_string_equal(c.body, "ok");
    assert_string_equal(c.retry_after, "(none)");
    assert_string_equal(c.failure, "");

    struct scripted_counts counts = counts_of(f);
    assert_string_equal(counts.last_body, "{\"n\":1}");
    assert_non_null(strstr(counts.last_headers, "POST /ok HTTP/1.1\r\n"));
    assert_non_null(strstr(counts.last_headers, "\r\nContent-Type: application/json\r\n"));
    assert_non_null(strstr(counts.last_headers, "\r\nContent-Length: 7\r\n"));
    assert_null(strcasestr(counts.last_headers, "accept-encoding"));
}

static void test_header_lines_in_one_text(void **state)
{
    static const char *const lines = "Content-Type: application/json\r\nX-A: 1\r\nX-B: 2";
    struct fixture *f = *state;
    struct call c;

    prepare(&c, f, "/ok");
    c.r.headers = &lines;
    run(&c);
    assert_int_equal(c.status, 200);

    struct scripted_counts counts = counts_of(f);
    const char *type = strstr(counts.last_headers, "\r\nContent-Type: application/json\r\nX-A: 1"
                                                   "\r\nX-B: 2\r\n");
    assert_non_null(type);
    assert_null(strcasestr(type + 4, "content-type"));
    assert_null(strcasestr(counts.last_headers, "expect"));
}

static void test_other_statuses_are_answers(void **state)
{
    struct fixture *f = *state;
    struct call c;

    run_path(&c, f, "/status/503");
    assert_int_equal(c.status, 503);
    assert_string_equal(c.retry_after, "7");
    assert_string_equal(c.body, "status");
    run_path(&c, f, "/status/404");
    assert_int_equal(c.status, 404);
    run_path(&c, f, "/chunked");
    assert_int_equal(c.status, 200);
    assert_string_equal(c.body, "ok");
    assert_string_equal(c.retry_after, "(none)");
}

static void test_connection_is_used_again(void **state)
{
    struct fixture *f = *state;
    struct call first;
    struct call second;

    prepare(&first, f, "/ok");
    prepare(&second, f, "/ok");
    first.then = &second; /* so a request may also be started from on_done */
    start(&first);
    run_until_done(f, 2);
    assert_int_equal(second.status, 200);
    assert_int_equal(counts_of(f).requests, 2);
    assert_int_equal(counts_of(f).connections, 1);
}

static void test_idle_connection_that_closed_costs_nothing(void **state)
{
    struct fixture *f = *state;
    mono_ms give_up = clock_mono() + DEADLINE_MS;
    struct call c;

    run_path(&c, f, "/bye");
    assert_int_equal(c.status, 200);
    while (counts_of(f).closed < 1)
        assert_true(clock_mono() < give_up);
    (void)event_base_loop(f->base, EVLOOP_NONBLOCK); /* the end of it is seen */
    run_path(&c, f, "/ok");
    assert_int_equal(c.status, 200);
    run_path(&c, f, "/bye");
    assert_int_equal(c.status, 200);
    while (counts_of(f).closed < 2)
        assert_true(clock_mono() < give_up);
    run_path(&c, f, "/ok"); /* or it is not */
    assert_int_equal(c.status, 200);
    assert_int_equal(counts_of(f).connections, 3);
    assert_int_equal(counts_of(f).bodies, 4);
}

static void test_refused_connection(void **state)
{
    struct fixture *f = *state;
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);
    char url[64];
    struct call c;
    int fd = socket(AF_INET, SOCK_STREAM, 0); /* bound, and nobody listens */

    assert_int_equal(bind(fd, (struct sockaddr *)&in, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &len), 0);
    (void)snprintf(url, sizeof(url), "%s://127.0.0.1:%u/", f->scheme, (unsigned)ntohs(in.sin_port));
    prepare_url(&c, f, url);
    run(&c);
    assert_failed(&c, "connect");
    assert_true(c.r.is_unsent);
    close(fd);
}

static void run_large(struct call *c, struct fixture *f, const char *path, size_t len)
{
    char *body = malloc(len);

    assert_non_null(body);
    memset(body, 'b', len);
    prepare(c, f, path);
    c->r.body = (struct str){body, len};
    run(c);
    free(body);
}

static void assert_counts(struct fixture *f, unsigned requests, unsigned bodies)
{
    struct scripted_counts counts = counts_of(f);

    assert_int_equal(counts.requests, requests);
    assert_int_equal(counts.bodies, bodies);
}

/* The receiver may have run the first one: a second body would be an attempt that nobody counted.
 */
static void test_broken_connection_sends_no_second_body(void **state)
{
    struct fixture *f = *state;
    struct call c;

    run_path(&c, f, "/ok");
    run_path(&c, f, "/rst");
    assert_counts(f, 2, 2);
    assert_failed(&c, "broke before an answer");
    assert_false(c.r.is_unsent);

    run_path(&c, f, "/ok");
    run_large(&c, f, "/rst", 1024 * 1024);
    assert_counts(f, 4, 4);
    assert_failed(&c, "broke before an answer");

    /* While the body is on its way. */
    run_path(&c, f, "/ok");
    run_large(&c, f, "/rst-early", 8 * 1024 * 1024);
    assert_counts(f, 6, 5);
    assert_failed(&c, "");

    /* On a fresh connection. */
    run_path(&c, f, "/rst");
    assert_counts(f, 7, 6);
    assert_failed(&c, "");
    assert_false(c.r.is_unsent);
}

static void test_fence(void **state)
{
    struct fixture *f = *state;
    struct call c;

    prepare(&c, f, "/ok");
    c.r.send_by = clock_mono();
    run(&c);
    assert_false(c.sent);
    assert_false(c.r.is_unsent);
    assert_int_equal(counts_of(f).connections, 0);

    /* With a connection that stands already, too. */
    run_path(&c, f, "/ok");
    assert_int_equal(c.status, 200);
    prepare(&c, f, "/ok");
    c.r.send_by = clock_mono() - 1;
    run(&c);
    assert_false(c.sent);
    assert_int_equal(counts_of(f).requests, 1);

    prepare(&c, f, "/ok");
    c.r.send_by = clock_mono() + 60000;
    run(&c);
    assert_true(c.sent);
    assert_int_equal(c.status, 200);
}

static void test_refused_addresses(void **state)
{
    static const char *const urls[] = {
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::169.254.169.254]/",
        "http://[2002:a9fe:a9fe::1]/",
        "http://2852039166/",
        "http://0xa9.0xfe.0xa9.0xfe/",
        "http://0.0.0.0:80/",
        "http://[::]:80/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://224.0.0.1/",
        "http://[ff02::1]/",
        "http://255.255.255.255/",
    };
    struct fixture *f = *state;
    struct call c;

    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        prepare_url(&c, f, urls[i]);
        run(&c);
        assert_failed(&c, "address is refused");
    }
}

static void forbid(struct fixture *f, const char *host)
{
    struct dispatch_config cfg = usual_config();
    char listener[64];
    const char *list[] = {"127.0.0.1:1", listener};

    (void)snprintf(listener, sizeof(listener), "%s:%u", host,
                   (unsigned)scripted_server_port(f->server));
    cfg.forbidden = list;
    cfg.n_forbidden = 2;
    use_config(f, &cfg);
}

static void test_own_listener(void **state)
{
    static const char *const listeners[] = {"127.0.0.1", "0.0.0.0", "[::]"};
    static const char *const targets[] = {"127.0.0.1", "localhost", "[::ffff:127.0.0.1]"};
    struct fixture *f = *state;
    struct call c;
    char url[128];

    for (size_t i = 0; i < 9; i++) {
        forbid(f, listeners[i / 3]);
        (void)snprintf(url, sizeof(url), "%s://%s:%u/ok", f->scheme, targets[i % 3],
                       (unsigned)scripted_server_port(f->server));
        prepare_url(&c, f, url);
        run(&c);
        assert_true(c.sent);
        assert_int_equal(c.status, 0);
    }
    assert_int_equal(counts_of(f).connections, 0);
    forbid(f, "127.0.0.2"); /* another address's listener */
    run_path(&c, f, "/ok");
    assert_int_equal(c.status, 200);
}

static void test_bad_listener(void **state)
{
    static const char *const bad[] = {"", "127.0.0.1", "localhost:80", "127.0.0.1:0", "[::1]"};
    struct fixture *f = *state;
    struct dispatch_config cfg = usual_config();

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct dispatch *d = NULL;
        struct err err = {0};
        cfg.forbidden = &bad[i];
        cfg.n_forbidden = 1;
        assert_int_equal(dispatch_new(f->base, &cfg, &d, &err), ERR_INVALID);
        assert_null(d);
        assert_non_null(strstr(err.text, "no address"));
    }
}

static void test_large_body(void **state)
{
    struct fixture *f = *state;
    const size_t len = 2 * 1024 * 1024;
    struct call c;

    run_large(&c, f, "/ok", len);
    assert_int_equal(c.status, 200);
    struct scripted_counts counts = counts_of(f);
    assert_int_equal(counts.expects, 0);
    assert_int_equal(counts.last_body_len, len);
}

static void test_empty_body(void **state)
{
    struct fixture *f = *state;
    struct call c;

    prepare(&c, f, "/ok");
    c.r.body = STR("");
    run(&c);
    assert_int_equal(c.status, 200);
    assert_non_null(strstr(counts_of(f).last_headers, "\r\nContent-Length: 0\r\n"));
}

#define PARALLEL 200

static void run_parallel(struct fixture *f)
{
    struct call *calls = calloc(PARALLEL, sizeof(*calls));

    assert_non_null(calls);
    for (size_t i = 0; i < PARALLEL; i++) {
        prepare(&calls[i], f, "/ok");
        start(&calls[i]);
    }
    assert_int_equal(dispatch_in_flight(f->d), PARALLEL);
    run_until_done(f, PARALLEL);
    for (size_t i = 0; i < PARALLEL; i++)
        assert_int_equal(calls[i].status, 200);
    assert_int_equal(dispatch_in_flight(f->d), 0);
    free(calls);
}

static void test_parallel(void **state)
{
    struct fixture *f = *state;
    struct dispatch_config cfg = usual_config();

    run_parallel(f);
    assert_int_equal(counts_of(f).bodies, PARALLEL);
    assert_true(counts_of(f).connections > 1);

    unsigned before = counts_of(f).connections;
    cfg.max_per_host = 3;
    use_config(f, &cfg);
    run_parallel(f);
    assert_in_range(counts_of(f).connections - before, 1, 3);

    before = counts_of(f).connections;
    cfg.max_per_host = 0;
    cfg.max_connections = 2;
    use_config(f, &cfg);
    run_parallel(f);
    assert_in_range(counts_of(f).connections - before, 1, 2);
    assert_int_equal(counts_of(f).bodies, 3 * PARALLEL);
}

static void test_free_with_requests_in_flight(void **state)
{
    static const char *const paths[] = {"/hang", "/drip", "/stall", "/ok"};
    struct fixture *f = *state;
    mono_ms give_up = clock_mono() + DEADLINE_MS;
    struct call calls[5];

    for (size_t i = 0; i < 4; i++) {
        prepare(&calls[i], f, paths[i]);
        start(&calls[i]);
    }
    while (counts_of(f).bodies < 4) {
        (void)event_base_loop(f->base, EVLOOP_NONBLOCK);
        assert_true(clock_mono() < give_up);
    }
    prepare(&calls[4], f, "/ok"); /* not a step taken yet */
    start(&calls[4]);
    dispatch_free(f->d);
    f->d = NULL;
    for (size_t i = 0; i < 5; i++)
        assert_true(!calls[i].done || i == 3);
    dispatch_free(NULL);
}

#define LABEL "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void test_refused_requests(void **state)
{
    struct fixture *f = *state;
    static const char *const urls[] = {"", "/ok", "ftp://127.0.0.1/", "file:///etc/passwd",
                                       "127.0.0.1/ok"};
    const char *headers[33] = {0};
    struct call c;

    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        prepare_url(&c, f, urls[i]);
        assert_int_equal(dispatch_start(f->d, &c.r, NULL), ERR_INVALID);
    }
    prepare(&c, f, "/ok");
    c.r.headers = headers;
    c.r.n_headers = 33;
    assert_int_equal(dispatch_start(f->d, &c.r, NULL), ERR_INVALID);
    assert_int_equal(dispatch_in_flight(f->d), 0);

    /* What only libcurl's parser sees, and a name that cannot be. */
    prepare_url(&c, f, "http://user:pass@127.0.0.1/");
    run(&c);
    assert_failed(&c, "");
    prepare_url(&c, f, "http://" LABEL ".test/"); /* longer than a label may be: nobody is asked */
    run(&c);
    assert_failed(&c, "resolve");
}

static void test_base_urls(void **state)
{
    static const struct {
        const char *url;
        const char *says; /* NULL = allowed */
    } cases[] = {
        {"http://orders", NULL},
        {"http://orders:8080/jobs/", NULL},
        {"https://orders.shop.svc.cluster.local/a%20b", NULL},
        {"HTTP://Orders/", NULL},
        {"http://127.0.0.1:8080", NULL},
        {"http://10.1.2.3/", NULL},
        {"http://192.168.0.1/", NULL},
        {"http://[::1]:8080/", NULL},
        {"http://[fd00::1]/", NULL},
        {"http://orders/.well-known/a..b/...", NULL},
        {"http://orders/.", "segments"},
        {"http://orders/..", "segments"},
        {"http://orders/jobs/../", "segments"},
        {"http://orders/./jobs", "segments"},
        {"http://orders/%2e%2E/jobs", "segments"},
        {"http://orders/jobs/.%2e", "segments"},
        {"http://orders//%2E", "segments"},
        {"", "1 to 2048"},
        {"orders:8080", "http://host"},
        {"//orders", "URL"},
        {"ftp://orders/", "http://host"},
        {"http://", "URL"},
        {"http:///jobs", "URL"},
        {"http://user@orders/", "user part"},
        {"http://user:secret@orders/", "user part"},
        {"http://orders/?a=b", "query"},
        {"http://orders?", "query"},
        {"http://orders/#top", "fragment"},
        {"http://orders/a b", "printable"},
        {"http://orders/\n", "printable"},
        {"http://orders/caf\xC3\xA9", "printable"},
        {"http:\\\\orders", "printable"},
        {"http://orders:0/", "port"},
        {"http://orders:65536/", "URL"},
        {"http://orders:http/", "URL"},
        {"http://169.254.169.254/", "link-local"},
        {"http://[::ffff:169.254.169.254]/", "link-local"},
        {"http://0xa9fea9fe/", "link-local"},
        {"http://0/", "unspecified"},
        {"http://[::]/", "unspecified"},
        {"http://[fe80::1%25eth0]/", "link-local"},
        {"http://239.1.1.1/", "multicast"},
        {"http://127.0.0.1:9/", "own listener"},
        {"http://127.1:9/jobs", "own listener"},
    };
    struct fixture *f = *state;
    struct dispatch_config cfg = usual_config();
    const char *own = "127.0.0.1:9";

    cfg.forbidden = &own;
    cfg.n_forbidden = 1;
    use_config(f, &cfg);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        int rc = dispatch_check_base_url(f->d, str_from(cases[i].url), &err);
        if (!cases[i].says && rc)
            fail_msg("%s: %s", cases[i].url, err.text);
        if (cases[i].says && (rc != ERR_INVALID || !strstr(err.text, cases[i].says)))
            fail_msg("%s: '%s' does not say '%s'", cases[i].url, err.text, cases[i].says);
    }
    assert_int_equal(dispatch_check_base_url(f->d, STR("http://a\0b/"), NULL), ERR_INVALID);
    char longest[2049] = "http://h/";
    memset(longest + 9, 'x', sizeof(longest) - 9);
    struct str url = {longest, 2048};
    assert_int_equal(dispatch_check_base_url(f->d, url, NULL), 0);
    url.len++;
    assert_int_equal(dispatch_check_base_url(f->d, url, NULL), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE(test_answer),
        FIXTURE(test_header_lines_in_one_text),
        FIXTURE(test_other_statuses_are_answers),
        FIXTURE(test_connection_is_used_again),
        FIXTURE(test_idle_connection_that_closed_costs_nothing),
        FIXTURE(test_refused_connection),
        FIXTURE(test_broken_connection_sends_no_second_body),
        FIXTURE(test_fence),
        FIXTURE(test_refused_addresses),
        FIXTURE(test_own_listener),
        FIXTURE(test_bad_listener),
        FIXTURE(test_large_body),
        FIXTURE(test_empty_body),
        FIXTURE(test_parallel),
        FIXTURE(test_free_with_requests_in_flight),
        FIXTURE(test_refused_requests),
        FIXTURE(test_base_urls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
