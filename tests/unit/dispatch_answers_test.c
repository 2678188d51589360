/* SPDX-License-Identifier: Apache-2.0 */
/* What a service may answer, say without being asked, or leave out. */
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

static void test_interim_answers_are_passed_over(void **state)
{
    struct fixture *f = *state;
    struct call c;

    run_path(&c, f, "/continue");
    assert_int_equal(c.status, 503);
    assert_string_equal(c.body, "busy");
    assert_string_equal(c.retry_after, "(none)");
}

static void test_interim_answer_is_no_beginning(void **state)
{
    struct fixture *f = *state;
    struct dispatch_config cfg = usual_config();
    struct call c;

    cfg.low_speed_ms = 100;
    use_config(f, &cfg);
    run_path(&c, f, "/think"); /* for longer than that, behind a 102 */
    assert_string_equal(c.failure, "");
    assert_int_equal(c.status, 200);
}

static void test_total_time(void **state)
{
    static const char *const paths[] = {"/hang", "/drip", "/stall"};
    struct fixture *f = *state;
    struct call c;

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        prepare(&c, f, paths[i]);
        c.r.timeout_ms = 100;
        run(&c);
        assert_failed(&c, "timed out");
    }
}

/* The timer moves to an earlier time, and one that has become too early leads to the next. */
static void test_total_times_of_several(void **state)
{
    struct fixture *f = *state;
    struct call last;
    struct call quick;
    struct call c;

    prepare(&last, f, "/hang");
    start(&last);
    prepare(&c, f, "/hang");
    c.r.timeout_ms = 100;
    start(&c);
    run_until_done(f, 1);
    assert_failed(&c, "timed out");
    prepare(&quick, f, "/ok");
    prepare(&c, f, "/hang");
    c.r.timeout_ms = 400;
    start(&quick);
    start(&c);
    run_until_done(f, 2);
    assert_int_equal(quick.status, 200);
    assert_failed(&c, "timed out");
    assert_false(last.done);
}

static void test_answer_that_stands_still(void **state)
{
    struct fixture *f = *state;
    struct dispatch_config cfg = usual_config();
    struct call c;

    cfg.low_speed_ms = 100;
    use_config(f, &cfg);
    run_path(&c, f, "/stall");
    assert_failed(&c, "stood still");
    /* A handler that thinks for longer than that before it answers is none. */
    run_path(&c, f, "/late");
    assert_int_equal(c.status, 200);
}

static void test_redirect_is_not_followed(void **state)
{
    struct fixture *f = *state;
    struct call c;

    run_path(&c, f, "/redirect");
    assert_int_equal(c.status, 302);
    assert_int_equal(counts_of(f).requests, 1);
}

static void test_answer_limit(void **state)
{
    struct fixture *f = *state;
    struct dispatch_config cfg = usual_config();
    struct call c;

    run_path(&c, f, "/endless");
    assert_int_equal(c.status, 200);
    assert_true(c.cut);
    assert_int_equal(c.body_len, 64 * 1024);
    assert_string_equal(c.failure, "");

    cfg.max_answer = 1;
    use_config(f, &cfg);
    run_path(&c, f, "/ok");
    assert_true(c.cut);
    assert_string_equal(c.body, "o");
    cfg.max_answer = 2;
    use_config(f, &cfg);
    run_path(&c, f, "/ok");
    assert_false(c.cut);
    assert_string_equal(c.body, "ok");
}

static void test_broken_answers(void **state)
{
    struct fixture *f = *state;
    struct call c;

    run_path(&c, f, "/flood");
    assert_failed(&c, "headers are above");
    run_path(&c, f, "/short");
    assert_failed(&c, "8 bytes remaining");
    run_path(&c, f, "/garbage");
    assert_failed(&c, "");
    assert_true(strlen(c.failure) > 0);
}

static void test_two_lengths(void **state)
{
    struct fixture *f = *state;
    struct call c;

    run_path(&c, f, "/lengths");
    assert_failed(&c, "Content-Lengths");
}

/* The next request on that connection would take it for its answer. */
static void test_words_that_nobody_asked_for(void **state)
{
    struct fixture *f = *state;
    struct call c;

    run_path(&c, f, "/stray");
    assert_string_equal(c.body, "ok");
    run_until_closed(f, 1);
    run_path(&c, f, "/status/503");
    assert_int_equal(c.status, 503);
    assert_int_equal(counts_of(f).connections, 2);
    assert_int_equal(counts_of(f).bodies, 2);
}

#define FILLERS 4

/* Connects until the listener's queue is full: from then on it takes nobody. */
static void fill(const struct sockaddr_in *to, int fds[FILLERS])
{
    for (size_t i = 0; i < FILLERS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(fds[i], (const struct sockaddr *)to, sizeof(*to));
    }
}

static void on_make_room(evutil_socket_t listener, short events, void *ctx)
{
    (void)events;
    (void)ctx;
    for (int fd = 0; fd >= 0;) {
        fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd >= 0)
            close(fd);
    }
}

/* A listener that no more connections get to. */
struct full_listener {
    int fd;
    int fds[FILLERS];
    char url[64];
};

static void full_listener_open(struct full_listener *l, const char *scheme)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);

    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(l->fd, (struct sockaddr *)&in, len), 0);
    assert_int_equal(listen(l->fd, 0), 0);
    assert_int_equal(getsockname(l->fd, (struct sockaddr *)&in, &len), 0);
    fill(&in, l->fds);
    (void)snprintf(l->url, sizeof(l->url), "%s://127.0.0.1:%u/", scheme,
                   (unsigned)ntohs(in.sin_port));
}

static void full_listener_close(struct full_listener *l)
{
    for (size_t i = 0; i < FILLERS; i++)
        close(l->fds[i]);
    close(l->fd);
}

/* Given back without a try used up, it would be the same again for ever. */
static void test_fence_that_passes_while_connecting(void **state)
{
    struct fixture *f = *state;
    struct timeval soon = {.tv_usec = 200000};
    struct full_listener l;
    struct call c;

    full_listener_open(&l, f->scheme);
    prepare_url(&c, f, l.url);
    c.r.send_by = clock_mono() + 100;
    struct event *room = event_new(f->base, l.fd, EV_TIMEOUT, on_make_room, NULL);
    assert_int_equal(event_add(room, &soon), 0);
    run(&c);
    assert_failed(&c, "in time for its claim");
    event_free(room);
    full_listener_close(&l);
}

static void on_byte(evutil_socket_t fd, short what, void *ctx)
{
    char byte;

    (void)what;
    assert_int_equal(read(fd, &byte, 1), 1);
    (void)event_base_loopbreak(ctx);
}

/* libcurl closes such a socket without a word. Who gets its number next must not meet the watch
 * that was kept on it. */
static void test_connecting_that_takes_too_long_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct full_listener l;
    struct call c;
    int pair[2];

    full_listener_open(&l, f->scheme);
    prepare_url(&c, f, l.url);
    c.r.timeout_ms = 100;
    run(&c);
    full_listener_close(&l);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    for (int i = 0; i < 2; i++) {
        struct event *e = event_new(f->base, pair[i], EV_READ, on_byte, f->base);

        assert_int_equal(event_add(e, NULL), 0);
        assert_int_equal(write(pair[1 - i], "x", 1), 1);
        assert_int_equal(event_base_dispatch(f->base), 0);
        event_free(e);
    }
    close(pair[0]);
    close(pair[1]);
    dispatch_free(f->d);
    f->d = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE(test_interim_answers_are_passed_over),
        FIXTURE(test_interim_answer_is_no_beginning),
        FIXTURE(test_total_time),
        FIXTURE(test_total_times_of_several),
        FIXTURE(test_answer_that_stands_still),
        FIXTURE(test_redirect_is_not_followed),
        FIXTURE(test_answer_limit),
        FIXTURE(test_broken_answers),
        FIXTURE(test_two_lengths),
        FIXTURE(test_words_that_nobody_asked_for),
        FIXTURE(test_fence_that_passes_while_connecting),
        FIXTURE(test_connecting_that_takes_too_long_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
