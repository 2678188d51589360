/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of the short way: how long they are kept, who waits for one and in what order, and
 * the bytes that go over them. */
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

#include "node/dispatch/plain_internal.h"

#define SHORT_WAY(name) cmocka_unit_test_setup_teardown(name, setup_short_way, teardown)

/* ---- Small helpers -------------------------------------------------------------------------- */

static void use_limits(struct fixture *f, uint32_t max_connections, uint32_t max_per_host)
{
    struct dispatch_config cfg = usual_config();

    cfg.max_connections = max_connections;
    cfg.max_per_host = max_per_host;
    use_config(f, &cfg);
}

static void use_refresh(struct fixture *f, int64_t ms, uint32_t max_per_host)
{
    struct dispatch_config cfg = usual_config();

    cfg.refresh_ms = ms;
    cfg.max_per_host = max_per_host;
    use_config(f, &cfg);
}

/* The same server by another name is another origin. */
static void prepare_at(struct call *c, struct fixture *f, const char *host, const char *path)
{
    char url[128];

    (void)snprintf(url, sizeof(url), "%s://%s:%u%s", f->scheme, host,
                   (unsigned)scripted_server_port(f->server), path);
    prepare_url(c, f, url);
}

static void run_at(struct call *c, struct fixture *f, const char *host, const char *path)
{
    prepare_at(c, f, host, path);
    run(c);
    assert_int_equal(c->status, 200);
}

static void start_path(struct call *c, struct fixture *f, const char *path)
{
    prepare(c, f, path);
    start(c);
}

static void run_until_requests(struct fixture *f, unsigned n)
{
    mono_ms give_up = clock_mono() + DEADLINE_MS;

    while (counts_of(f).requests < n) {
        (void)event_base_loop(f->base, EVLOOP_NONBLOCK);
        assert_true(clock_mono() < give_up);
    }
}

static unsigned count_text(const char *in, const char *text)
{
    unsigned n = 0;

    for (; (in = strcasestr(in, text)); in++)
        n++;
    return n;
}

/* ---- Age ------------------------------------------------------------------------------------ */

/* A name that has moved must not be held on to by a service that is asked seldom. */
static void test_idle_connection_that_has_grown_old_is_closed(void **state)
{
    struct fixture *f = *state;
    mono_ms began = clock_mono();
    struct call c;

    use_refresh(f, 1000, 0);
    run_path(&c, f, "/ok");
    run_at(&c, f, "localhost", "/ok");
    run_until_closed(f, 2);
    assert_true(clock_mono() - began >= 1000);
    run_path(&c, f, "/ok");
    assert_int_equal(c.status, 200);
    assert_int_equal(counts_of(f).connections, 3);
}

/* Nor is it used when the loop had no time to close it. */
static void test_old_connection_is_not_used(void **state)
{
    struct fixture *f = *state;
    struct call c;

    use_refresh(f, 1000, 0);
    run_path(&c, f, "/ok");
    mono_ms old_at = clock_mono() + 1000;
    while (clock_mono() < old_at)
        ;
    run_path(&c, f, "/ok");
    assert_int_equal(c.status, 200);
    assert_int_equal(counts_of(f).connections, 2);
    assert_int_equal(counts_of(f).requests, 2);
}

#define LATE_ONES 6

/* With a line that never ends it is not idle once, and grows old all the same. */
static void test_busy_connection_grows_old(void **state)
{
    struct fixture *f = *state;
    struct call calls[LATE_ONES];

    use_refresh(f, 1000, 1);
    for (size_t i = 0; i < LATE_ONES; i++)
        start_path(&calls[i], f, "/late"); /* 300 ms each */
    run_until_done(f, LATE_ONES);
    for (size_t i = 0; i < LATE_ONES; i++)
        assert_int_equal(calls[i].status, 200);
    assert_in_range(counts_of(f).connections, 2, LATE_ONES);
}

/* ---- In line -------------------------------------------------------------------------------- */

static void test_line_is_served_in_order(void **state)
{
    static const char *const paths[] = {"/late", "/ok", "/chunked", "/status/503", "/ok"};
    struct fixture *f = *state;
    struct call calls[5];

    use_limits(f, 256, 1);
    for (size_t i = 0; i < 5; i++)
        start_path(&calls[i], f, paths[i]);
    for (size_t i = 0; i < 5; i++) {
        run_until_done(f, 1);
        assert_true(calls[i].status);
        assert_true(i == 4 || !calls[i + 1].done);
    }
    assert_int_equal(counts_of(f).connections, 1);
}

static void test_time_out_in_line(void **state)
{
    struct fixture *f = *state;
    struct call first;
    struct call c;

    use_limits(f, 256, 1);
    start_path(&first, f, "/hang");
    prepare(&c, f, "/ok");
    c.r.timeout_ms = 100;
    start(&c);
    run_until_done(f, 1);
    assert_failed(&c, "in line");
    assert_false(c.r.is_unsent);
    assert_false(first.done);
    assert_int_equal(dispatch_in_flight(f->d), 1);
    run_until_requests(f, 1);
    assert_int_equal(counts_of(f).connections, 1);
}

static void test_fence_that_passes_in_line(void **state)
{
    struct fixture *f = *state;
    struct call first;
    struct call fenced;
    struct call last;

    use_limits(f, 256, 1);
    start_path(&first, f, "/late"); /* 300 ms */
    prepare(&fenced, f, "/status/503");
    fenced.r.send_by = clock_mono() + 100;
    start(&fenced);
    start_path(&last, f, "/ok");
    run_until_done(f, 3);
    assert_int_equal(first.status, 200);
    assert_false(fenced.sent);
    assert_false(fenced.r.is_unsent);
    assert_int_equal(fenced.status, 0);
    assert_non_null(strstr(fenced.failure, "too late"));
    assert_int_equal(last.status, 200);
    assert_int_equal(counts_of(f).requests, 2);
    assert_int_equal(counts_of(f).connections, 1);
}

/* Whoever is behind one whose connection is lost gets another one. */
static void test_line_behind_a_lost_connection(void **state)
{
    static const char *const paths[] = {"/rst", "/short", "/close", "/garbage", "/lengths"};
    struct fixture *f = *state;
    struct call first;
    struct call second;

    use_limits(f, 256, 1);
    for (unsigned i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        start_path(&first, f, paths[i]);
        start_path(&second, f, "/close");
        run_until_done(f, 2);
        assert_int_equal(first.status, strcmp(paths[i], "/close") ? 0 : 200);
        assert_int_equal(second.status, 200);
        assert_int_equal(counts_of(f).connections, 2 * (i + 1));
    }
}

/* Its end is seen before the next request is given to it. */
static void test_line_behind_a_closed_connection(void **state)
{
    struct fixture *f = *state;
    struct call first;
    struct call second;

    use_limits(f, 256, 1);
    for (unsigned i = 0; i < 5; i++) {
        start_path(&first, f, "/bye-at-once");
        start_path(&second, f, "/bye-at-once"); /* in line */
        run_until_done(f, 2);
        assert_string_equal(first.failure, "");
        assert_string_equal(second.failure, "");
        prepare(&first, f, "/bye-at-once");
        prepare(&second, f, "/bye-at-once");
        first.then = &second; /* or started when the first one ends */
        start(&first);
        run_until_done(f, 2);
        assert_string_equal(first.failure, "");
        assert_string_equal(second.failure, "");
    }
    assert_int_equal(counts_of(f).bodies, 20);
    assert_int_equal(counts_of(f).connections, 20);
}

static void test_line_behind_a_refused_connection(void **state)
{
    struct fixture *f = *state;
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);
    struct call calls[3];
    char url[64];
    int fd = socket(AF_INET, SOCK_STREAM, 0); /* bound, and nobody listens */

    use_limits(f, 1, 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&in, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &len), 0);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u/", (unsigned)ntohs(in.sin_port));
    prepare_url(&calls[0], f, url);
    prepare_url(&calls[1], f, url);
    prepare(&calls[2], f, "/ok");
    for (size_t i = 0; i < 3; i++)
        start(&calls[i]);
    run_until_done(f, 3);
    for (size_t i = 0; i < 2; i++) {
        assert_failed(&calls[i], "connect");
        assert_true(calls[i].r.is_unsent);
    }
    assert_int_equal(calls[2].status, 200);
    close(fd);
}

/* ---- Origins -------------------------------------------------------------------------------- */

static void test_names_of_one_server_are_kept_apart(void **state)
{
    struct fixture *f = *state;
    struct call c;

    for (int i = 0; i < 3; i++) {
        run_at(&c, f, "127.0.0.1", "/ok");
        run_at(&c, f, "localhost", "/ok");
        assert_non_null(strstr(counts_of(f).last_headers, "\r\nHost: localhost:"));
    }
    assert_int_equal(counts_of(f).connections, 2);
    assert_int_equal(counts_of(f).closed, 0);
}

/* The only connection that may be open is the other's, and idle: it gives way. */
static void test_idle_connection_gives_way(void **state)
{
    struct fixture *f = *state;
    struct call c;

    use_limits(f, 1, 0);
    for (unsigned i = 0; i < 3; i++) {
        run_at(&c, f, "127.0.0.1", "/ok");
        run_at(&c, f, "localhost", "/ok");
    }
    run_until_closed(f, 5);
    assert_int_equal(counts_of(f).connections, 6);
}

static void test_origins_in_line(void **state)
{
    static const char *const hosts[] = {"127.0.0.1", "localhost", "LOCALHOST"};
    struct fixture *f = *state;
    struct call calls[12];

    use_limits(f, 1, 0);
    for (size_t i = 0; i < 12; i++) {
        prepare_at(&calls[i], f, hosts[i % 3], i < 6 ? "/ok" : "/close");
        start(&calls[i]);
    }
    run_until_done(f, 12);
    for (size_t i = 0; i < 12; i++)
        assert_int_equal(calls[i].status, 200);
    assert_int_equal(counts_of(f).requests, 12);
}

/* One that always has a request in line does not keep the others from their turn. */
static void test_busy_origin_leaves_room_to_others(void **state)
{
    struct fixture *f = *state;
    struct call busy[3] = {0};
    bool is_started = false;
    struct call other;

    use_limits(f, 1, 0);
    for (size_t i = 0; i < 3; i++)
        busy[i].done = true;
    prepare_at(&other, f, "localhost", "/ok");
    do {
        for (size_t i = 0; i < 3; i++) {
            if (!busy[i].done)
                continue;
            prepare(&busy[i], f, "/ok");
            start(&busy[i]);
        }
        if (!is_started)
            start(&other);
        is_started = true;
        run_until_done(f, 1);
    } while (!other.done);
    assert_int_equal(other.status, 200);
}

/* ---- Bytes ---------------------------------------------------------------------------------- */

static char *large_body(size_t len)
{
    char *body = malloc(len);

    assert_non_null(body);
    for (size_t i = 0; i < len; i++)
        body[i] = (char)('a' + i * 31 % 26 + i / 4096 % 7);
    return body;
}

static void run_body(struct call *c, struct fixture *f, const char *path, struct str body)
{
    prepare(c, f, path);
    c->r.body = body;
    run(c);
}

/* It fits into no buffer, so it leaves in many pieces. */
static void test_large_body_to_a_slow_reader(void **state)
{
    struct fixture *f = *state;
    const size_t len = 8 * 1024 * 1024 + 1;
    char *body = large_body(len);
    struct call c;

    for (int i = 0; i < 2; i++) {
        run_body(&c, f, "/slow", (struct str){body, len});
        assert_int_equal(c.status, 200);
        assert_int_equal(counts_of(f).last_body_len, len);
        assert_true(counts_of(f).last_body_sum == scripted_sum(0, body, len));
    }
    assert_int_equal(counts_of(f).connections, 1);
    free(body);
}

/* Around the size up to which a body is sent in one piece with its head. */
static void test_bodies_of_each_size(void **state)
{
    static const size_t sizes[] = {1, 8191, 8192, 8193, 16384, 65536, 100000, 0};
    struct fixture *f = *state;
    char *body = large_body(100000);
    struct call c;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        run_body(&c, f, "/ok", (struct str){body, sizes[i]});
        assert_int_equal(c.status, 200);
        assert_int_equal(counts_of(f).last_body_len, sizes[i]);
        assert_true(counts_of(f).last_body_sum == scripted_sum(0, body, sizes[i]));
    }
    assert_int_equal(counts_of(f).connections, 1);
    free(body);
}

/* It counts, and the rest of the request would be taken for the next one. */
static void test_answer_before_the_request_was_read(void **state)
{
    struct fixture *f = *state;
    const size_t len = 16 * 1024 * 1024;
    char *body = large_body(len);
    struct call c;

    run_body(&c, f, "/early", (struct str){body, len});
    assert_int_equal(c.status, 413);
    assert_string_equal(c.body, "early");
    assert_true(c.sent);
    assert_string_equal(c.failure, "");
    run_path(&c, f, "/ok");
    assert_int_equal(c.status, 200);
    assert_int_equal(counts_of(f).connections, 2);
    run_until_closed(f, 1);
    free(body);
}

/* What is left of an answer that was cut would be taken for the next one. */
static void test_answer_that_was_cut_behind_a_1xx(void **state)
{
    struct fixture *f = *state;
    struct call c;

    prepare(&c, f, "/continue-long");
    c.r.max_answer = 5;
    run(&c);
    assert_int_equal(c.status, 200);
    assert_true(c.cut);
    assert_string_equal(c.body, "01234");
    prepare(&c, f, "/ok");
    c.r.timeout_ms = 2000;
    run(&c);
    assert_string_equal(c.failure, "");
    assert_string_equal(c.body, "ok");
    assert_int_equal(counts_of(f).connections, 2);
}

static void test_head_of_a_request(void **state)
{
    struct fixture *f = *state;
    struct scripted_counts counts;
    struct call c;
    char host[64];

    run_path(&c, f, "/ok?a=b&c=%20/..");
    counts = counts_of(f);
    (void)snprintf(host, sizeof(host), "\r\nHost: 127.0.0.1:%u\r\n",
                   (unsigned)scripted_server_port(f->server));
    assert_ptr_equal(strstr(counts.last_headers, "POST /ok?a=b&c=%20/.. HTTP/1.1\r\n"),
                     counts.last_headers);
    assert_int_equal(count_text(counts.last_headers, "\r\nHost:"), 1);
    assert_non_null(strstr(counts.last_headers, host));
    assert_int_equal(count_text(counts.last_headers, "\r\nContent-Length:"), 1);
    assert_non_null(strstr(counts.last_headers, "\r\nContent-Length: 7\r\n"));
    assert_int_equal(count_text(counts.last_headers, "\r\nContent-Type:"), 1);
    assert_int_equal(count_text(counts.last_headers, "\r\nTransfer-Encoding:"), 0);
    assert_int_equal(count_text(counts.last_headers, "\r\nExpect:"), 0);
}

/* ---- URLs ----------------------------------------------------------------------------------- */

static void test_what_is_asked_for(void **state)
{
    static const struct {
        const char *url; /* behind the port */
        const char *line;
    } cases[] = {
        {"", "POST / HTTP/1.1\r\n"},
        {"/", "POST / HTTP/1.1\r\n"},
        {"?a=b", "POST /?a=b HTTP/1.1\r\n"},
        {"/ok#top", "POST /ok HTTP/1.1\r\n"},
        {"/ok?a=b#top", "POST /ok?a=b HTTP/1.1\r\n"},
        {"#top", "POST / HTTP/1.1\r\n"},
        {"/a/./../b//c", "POST /a/./../b//c HTTP/1.1\r\n"},
    };
    struct fixture *f = *state;
    struct call c;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        run_path(&c, f, cases[i].url);
        assert_true(c.status == 200 || c.status == 404);
        struct scripted_counts counts = counts_of(f);
        if (strncmp(counts.last_headers, cases[i].line, strlen(cases[i].line)) != 0)
            fail_msg("%s: %s", c.url, counts.last_headers);
    }
}

static void test_which_urls_are_plain(void **state)
{
    static const struct {
        const char *url;
        const char *origin; /* NULL: it is not plain */
        const char *path;
    } cases[] = {
        {"http://a", "a", ""},
        {"http://a/", "a", "/"},
        {"http://a:80/b?c=d", "a:80", "/b?c=d"},
        {"http://[::1]:8080/b", "[::1]:8080", "/b"},
        {"http://a_b.C-d/%20", "a_b.C-d", "/%20"},
        {"http://a/\xC3\xA9", "a", "/\xC3\xA9"},
        {"HTTP://a/", NULL, NULL},
        {"https://a/", NULL, NULL},
        {"http:/a/", NULL, NULL},
        {"http://", NULL, NULL},
        {"http:///b", NULL, NULL},
        {"http://a?b", NULL, NULL},
        {"http://a#b", NULL, NULL},
        {"http://a/b#c", NULL, NULL},
        {"http://a@b/", NULL, NULL},
        {"http://a:b@c/", NULL, NULL},
        {"http://a/b c", NULL, NULL},
        {"http://a/b\r\nX: y", NULL, NULL},
        {"http://a/\x7F", NULL, NULL},
        {"http://a\\b/", NULL, NULL},
        {"http://%61/", NULL, NULL},
        {"http://\xC3\xA9/", NULL, NULL},
        {"http://[fe80::1%25eth0]/", NULL, NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plain_target to;
        bool is_plain = plain_split(cases[i].url, &to);

        if (is_plain != (cases[i].origin != NULL))
            fail_msg("%s: %d", cases[i].url, is_plain);
        if (is_plain) {
            assert_true(str_eqz(to.origin, cases[i].origin));
            assert_true(str_eqz(to.path, cases[i].path));
        }
    }
}

/* ---- The end -------------------------------------------------------------------------------- */

/* Sent, in line, connecting, and about to end; and an idle connection. */
static void test_free_with_calls_in_each_state(void **state)
{
    struct fixture *f = *state;
    struct call calls[6];
    struct call c;

    use_limits(f, 256, 1);
    run_at(&c, f, "LOCALHOST", "/ok");
    start_path(&calls[0], f, "/stall");
    run_until_requests(f, 2);
    start_path(&calls[1], f, "/ok");
    start_path(&calls[2], f, "/ok");
    prepare_at(&calls[3], f, "localhost", "/ok");
    start(&calls[3]);
    prepare_at(&calls[4], f, "localhost", "/ok"); /* in line for what is not open yet */
    start(&calls[4]);
    prepare(&calls[5], f, "/ok");
    calls[5].r.send_by = clock_mono();
    start(&calls[5]);
    assert_int_equal(dispatch_in_flight(f->d), 6);
    dispatch_free(f->d);
    f->d = NULL;
    (void)event_base_loop(f->base, EVLOOP_NONBLOCK);
    for (size_t i = 0; i < 6; i++)
        assert_false(calls[i].done);
    run_until_closed(f, 2);
    assert_int_equal(counts_of(f).requests, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SHORT_WAY(test_idle_connection_that_has_grown_old_is_closed),
        SHORT_WAY(test_old_connection_is_not_used),
        SHORT_WAY(test_busy_connection_grows_old),
        SHORT_WAY(test_line_is_served_in_order),
        SHORT_WAY(test_time_out_in_line),
        SHORT_WAY(test_fence_that_passes_in_line),
        FIXTURE(test_line_behind_a_lost_connection),
        FIXTURE(test_line_behind_a_closed_connection),
        SHORT_WAY(test_line_behind_a_refused_connection),
        FIXTURE(test_names_of_one_server_are_kept_apart),
        FIXTURE(test_idle_connection_gives_way),
        FIXTURE(test_origins_in_line),
        FIXTURE(test_busy_origin_leaves_room_to_others),
        FIXTURE(test_large_body_to_a_slow_reader),
        FIXTURE(test_bodies_of_each_size),
        FIXTURE(test_answer_before_the_request_was_read),
        FIXTURE(test_answer_that_was_cut_behind_a_1xx),
        FIXTURE(test_head_of_a_request),
        FIXTURE(test_what_is_asked_for),
        cmocka_unit_test(test_which_urls_are_plain),
        FIXTURE(test_free_with_calls_in_each_state),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
