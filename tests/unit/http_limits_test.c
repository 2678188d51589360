/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines, limits, pipelines, dying clients, draining. */
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <cmocka.h>

#include "common/clock.h"
#include "tests/unit/http_client.h"
#include "tests/unit/http_fixture.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: h\r\n\r\n"

static void expect_answer(struct client *c, int status, const char *body)
{
    struct answer_text a;
    client_read(c, &a);
    assert_int_equal(a.status, status);
    if (body)
        assert_string_equal(a.body, body);
    answer_free(&a);
}

/* ---- Deadlines --------------------------------------------------------------------------- */

/* Sends a byte every few milliseconds, for ever, and expects to be cut off with 408 all the same.
 */
static void drip(struct fixture *f, const char *begin)
{
    struct client c;
    struct answer_text a;
    mono_ms give_up = clock_mono() + CLIENT_DEADLINE_MS;
    client_open(&c, f->address);
    client_send(&c, begin);
    while (!client_readable(&c, 20)) {
        assert_true(clock_mono() < give_up);
        if (!client_try_send(&c, "x", 1))
            break;
    }
    client_read(&c, &a);
    assert_int_equal(a.status, 408);
    answer_free(&a);
    client_expect_end(&c);
    client_close(&c);
}

static void test_dripping(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    (void)state;
    cfg.header_timeout_ms = 200;
    cfg.body_timeout_ms = 200;
    fixture_start(&f, &cfg);
    drip(&f, "GET /echo HTTP/1.1\r\nX: ");
    drip(&f, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n\r\n");
    fixture_wait_connections(&f, 0);
    fixture_stop(&f);
}

static void test_silent(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client never, between, handled;
    (void)state;
    cfg.header_timeout_ms = 200;
    cfg.idle_timeout_ms = 200;
    fixture_start(&f, &cfg);
    client_open(&never, f.address);
    client_open(&between, f.address);
    client_open(&handled, f.address);
    client_send(&handled, GET("/held"));
    client_send(&between, GET("/echo"));
    expect_answer(&between, 200, "");
    client_expect_end(&never);
    client_expect_end(&between);
    /* A request that the handler has is under no deadline of the connection's. */
    fixture_wait_held(&f, 1);
    fixture_release(&f);
    expect_answer(&handled, 200, "held");
    client_close(&never);
    client_close(&between);
    client_close(&handled);
    fixture_stop(&f);
}

static void test_slow_reader(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client slow, quick;
    (void)state;
    cfg.write_timeout_ms = 300;
    fixture_start(&f, &cfg);
    client_open(&slow, f.address);
    client_send(&slow, GET("/big"));
    fixture_wait_connections(&f, 1);
    fixture_wait_connections(&f, 0); /* cut while it read nothing */
    /* Reset: what it did not read does not stay in the kernel. */
    static char rest[65536];
    ssize_t n;
    while ((n = recv(slow.fd, rest, sizeof(rest), 0)) > 0)
        ;
    assert_true(n < 0 && errno == ECONNRESET);
    cfg.write_timeout_ms = 20000;
    fixture_stop(&f);
    fixture_start(&f, &cfg);
    client_open(&quick, f.address);
    client_send(&quick, GET("/big"));
    struct answer_text a;
    client_read(&quick, &a);
    assert_int_equal(a.body_len, BIG_ANSWER);
    answer_free(&a);
    client_send(&quick, GET("/echo"));
    expect_answer(&quick, 200, "");
    client_close(&slow);
    client_close(&quick);
    fixture_stop(&f);
}

/* ---- Order and bounds -------------------------------------------------------------------- */

static void test_pipeline(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client c;
    char body[32];
    (void)state;
    fixture_start(&f, &cfg);
    client_open(&c, f.address);
    /* Held ones between quick ones: nothing overtakes. */
    for (int i = 0; i < 60; i++) {
        char request[200];
        snprintf(body, sizeof(body), "%04d", i);
        snprintf(request, sizeof(request),
                 "POST /%s HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n%s",
                 i % 3 == 0 ? "held" : "echo", body);
        client_send(&c, request);
    }
    for (int i = 0; i < 60; i++) {
        if (i % 3 == 0) {
            fixture_wait_held(&f, 1);
            assert_int_equal(atomic_load(&f.n_requests), i + 1);
            fixture_release(&f);
        }
        snprintf(body, sizeof(body), "%04d", i);
        expect_answer(&c, 200, body);
    }
    client_close(&c);
    fixture_stop(&f);
}

/* While a request is under way only so much is read ahead of its answer: the sender is held back.
 */
static void test_read_ahead_is_bounded(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client c;
    static const char request[] = GET("/echo");
    const size_t most = (size_t)256 * 1024 * 1024 / (sizeof(request) - 1);
    size_t n = 0;
    (void)state;
    fixture_start(&f, &cfg);
    client_open(&c, f.address);
    client_send(&c, GET("/held"));
    fixture_wait_held(&f, 1);
    struct timeval patience = {0, 300000};
    assert_int_equal(setsockopt(c.fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)), 0);
    while (n < most && send(c.fd, request, sizeof(request) - 1, MSG_NOSIGNAL) > 0)
        n++;
    assert_true(n < most);
    assert_int_equal(atomic_load(&f.n_requests), 1);
    fixture_release(&f);
    expect_answer(&c, 200, "held");
    expect_answer(&c, 200, "");
    client_close(&c);
    fixture_stop(&f);
}

static void test_half_close(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client c;
    (void)state;
    fixture_start(&f, &cfg);
    client_open(&c, f.address);
    client_send(&c, GET("/held") GET("/echo") GET("/held"));
    assert_int_equal(shutdown(c.fd, SHUT_WR), 0);
    fixture_wait_held(&f, 1);
    fixture_release(&f);
    expect_answer(&c, 200, "held");
    expect_answer(&c, 200, "");
    fixture_wait_held(&f, 1);
    fixture_release(&f);
    expect_answer(&c, 200, "held");
    client_expect_end(&c);
    client_close(&c);
    client_open(&c, f.address);
    client_send(&c, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nonly");
    assert_int_equal(shutdown(c.fd, SHUT_WR), 0);
    expect_answer(&c, 400, NULL);
    client_expect_end(&c);
    client_close(&c);
    fixture_stop(&f);
}

static void test_connection_limit(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client a, b, extra;
    struct answer_text text;
    char value[16];
    (void)state;
    cfg.max_connections = 2;
    fixture_start(&f, &cfg);
    client_open(&a, f.address);
    client_open(&b, f.address);
    fixture_wait_connections(&f, 2);
    client_open(&extra, f.address);
    client_send(&extra, GET("/echo"));
    client_read(&extra, &text);
    assert_int_equal(text.status, 503);
    assert_string_equal(answer_header(&text, "Retry-After", value, sizeof(value)), "1");
    answer_free(&text);
    client_expect_end(&extra);
    client_close(&extra);
    client_send(&a, GET("/echo"));
    expect_answer(&a, 200, "");
    client_close(&b);
    fixture_wait_connections(&f, 1);
    client_open(&b, f.address);
    client_send(&b, GET("/echo"));
    expect_answer(&b, 200, "");
    client_close(&a);
    client_close(&b);
    fixture_stop(&f);
}

static void test_memory_limit(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client clients[4];
    static char request[100200];
    (void)state;
    /* Two buffers of 100,000 bytes, which take up 128 KiB each, fill it to the last byte. */
    cfg.max_memory = (size_t)2 * (128 * 1024 - 4096);
    fixture_start(&f, &cfg);
    int n =
        snprintf(request, sizeof(request),
                 "POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n%0100000d", 0);
    for (unsigned i = 0; i < 2; i++) {
        client_open(&clients[i], f.address);
        assert_true(client_try_send(&clients[i], request, (size_t)n));
        fixture_wait_held(&f, i + 1);
    }
    client_open(&clients[2], f.address);
    (void)client_try_send(&clients[2], request, (size_t)n);
    expect_answer(&clients[2], 503, NULL);
    /* An ordinary request has its place all the same. */
    client_open(&clients[3], f.address);
    char body[1001], text[1100];
    snprintf(body, sizeof(body), "%01000d", 0);
    snprintf(text, sizeof(text), "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n%s",
             body);
    for (int i = 0; i < 500; i++) {
        client_send(&clients[3], text);
        expect_answer(&clients[3], 200, body);
    }
    client_close(&clients[3]);
    fixture_release(&f);
    fixture_release(&f);
    expect_answer(&clients[0], 200, NULL);
    expect_answer(&clients[1], 200, NULL);
    client_open(&clients[3], f.address);
    assert_true(client_try_send(&clients[3], request, (size_t)n));
    fixture_wait_held(&f, 1);
    fixture_release(&f);
    expect_answer(&clients[3], 200, NULL);
    for (unsigned i = 0; i < 4; i++)
        client_close(&clients[i]);
    fixture_stop(&f);
}

/* All allocations of the program's own code, as the linker wraps them. */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);

static atomic_llong memory_now, memory_peak;

static void *taken(void *p, long long before)
{
    long long change = (long long)malloc_usable_size(p) - before;
    long long now = atomic_fetch_add(&memory_now, change) + change;
    long long peak = atomic_load(&memory_peak);
    while (now > peak && !atomic_compare_exchange_weak(&memory_peak, &peak, now))
        ;
    return p;
}

void *__wrap_malloc(size_t n)
{
    return taken(__real_malloc(n), 0);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return taken(__real_calloc(n, size), 0);
}

void *__wrap_realloc(void *p, size_t n)
{
    long long before = (long long)malloc_usable_size(p);
    void *moved = __real_realloc(p, n);
    return moved ? taken(moved, before) : NULL;
}

void __wrap_free(void *p)
{
    atomic_fetch_sub(&memory_now, (long long)malloc_usable_size(p));
    __real_free(p);
}

#define MIB ((size_t)1024 * 1024)
#define N_WITHHOLDING 20
#define N_FIT 4

static bool all_but_fitting_are_answered(void *ctx)
{
    struct client *clients = ctx;
    unsigned n = 0;
    for (unsigned i = 0; i < N_WITHHOLDING; i++)
        n += client_readable(&clients[i], 0);
    return n >= N_WITHHOLDING - N_FIT;
}

/* Many who all withhold the end of a large body: as many as fit are waited for, the others are
 * refused, and what they had sent is given back although their connections linger. */
static void test_memory_of_withheld_bodies(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client clients[N_WITHHOLDING];
    static char piece[32768];
    unsigned n_refused = 0, n_taken = 0;
    (void)state;
    cfg.threads = 1;
    cfg.max_body = MIB;
    cfg.max_memory = N_FIT * MIB;
    fixture_start(&f, &cfg);
    for (unsigned i = 0; i < N_WITHHOLDING; i++) {
        client_open(&clients[i], f.address);
        client_send(&clients[i],
                    "POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 1048576\r\n\r\n");
    }
    long long before = atomic_load(&memory_now);
    atomic_store(&memory_peak, before);
    for (size_t sent = 0; sent < MIB; sent += sizeof(piece)) {
        size_t n = sent + sizeof(piece) < MIB ? sizeof(piece) : sizeof(piece) - 1;
        for (unsigned i = 0; i < N_WITHHOLDING; i++)
            (void)client_try_send(&clients[i], piece, n);
    }
    wait_until(all_but_fitting_are_answered, clients);
    /* One more than fits has grown before it was refused. */
    assert_true(atomic_load(&memory_peak) - before < (long long)((N_FIT + 1) * MIB + MIB / 2));
    for (unsigned i = 0; i < N_WITHHOLDING; i++) {
        if (client_readable(&clients[i], 0)) {
            n_refused++;
            expect_answer(&clients[i], 503, NULL);
            client_close(&clients[i]);
        } else {
            client_send(&clients[i], "x");
            fixture_wait_held(&f, 1);
            fixture_release(&f);
            expect_answer(&clients[i], 200, NULL);
            client_close(&clients[i]);
            n_taken++;
        }
    }
    assert_int_equal(n_taken, N_FIT);
    assert_int_equal(n_refused, N_WITHHOLDING - N_FIT);
    fixture_stop(&f);
}

/* ---- Ends -------------------------------------------------------------------------------- */

static void test_client_dies_while_held(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client c;
    (void)state;
    fixture_start(&f, &cfg);
    for (int i = 0; i < 20; i++) {
        client_open(&c, f.address);
        client_send(&c, "POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
        fixture_wait_held(&f, 1);
        client_reset(&c);
        if (i % 2 == 0)
            fixture_wait_connections(&f, 0);
        fixture_release(&f);
        fixture_wait_connections(&f, 0);
    }
    fixture_stop(&f);
}

static void test_drain(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client idle, fresh, held, partial, late;
    struct answer_text a;
    char value[16];
    (void)state;
    fixture_start(&f, &cfg);
    client_open(&idle, f.address);
    client_send(&idle, GET("/echo"));
    expect_answer(&idle, 200, "");
    client_open(&partial, f.address);
    client_send(&partial, GET("/echo") "GET /echo HT");
    expect_answer(&partial, 200, "");
    client_open(&held, f.address);
    client_send(&held, GET("/held"));
    fixture_wait_held(&f, 1);
    client_open(&fresh, f.address);
    fixture_wait_connections(&f, 4);
    http_server_drain(f.server, 20000);
    client_expect_end(&idle);
    client_expect_end(&fresh);
    assert_false(client_try_open(&late, f.address));
    client_send(&partial, "TP/1.1\r\nHost: h\r\n\r\n");
    expect_answer(&partial, 200, "");
    client_expect_end(&partial);
    fixture_release(&f);
    client_read(&held, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_header(&a, "Connection", value, sizeof(value)), "close");
    answer_free(&a);
    client_expect_end(&held);
    fixture_wait_connections(&f, 0);
    client_close(&idle);
    client_close(&fresh);
    client_close(&held);
    client_close(&partial);
    fixture_stop(&f);
}

static bool is_drained(void *ctx)
{
    return http_server_is_drained(((struct fixture *)ctx)->server);
}

/* A request whose client has gone is still under way. */
static void test_drained(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client c;
    (void)state;
    fixture_start(&f, &cfg);
    assert_false(http_server_is_drained(f.server)); /* nothing is under way, but it still may */
    client_open(&c, f.address);
    client_send(&c, GET("/held"));
    fixture_wait_held(&f, 1);
    http_server_drain(f.server, 20000);
    client_reset(&c);
    fixture_wait_connections(&f, 0);
    assert_false(http_server_is_drained(f.server));
    fixture_release(&f);
    wait_until(is_drained, &f);
    fixture_stop(&f);
}

static void test_drain_cuts_after_grace(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client held;
    (void)state;
    fixture_start(&f, &cfg);
    client_open(&held, f.address);
    client_send(&held, GET("/held"));
    fixture_wait_held(&f, 1);
    http_server_drain(f.server, 100);
    client_expect_end(&held);
    fixture_release(&f); /* the answer is dropped */
    client_close(&held);
    fixture_stop(&f);
}

static void *stop_thread(void *arg)
{
    fixture_stop(arg);
    return NULL;
}

/* A stop waits for the requests that the handler has, and their answers still go out. */
static void test_stop_waits(void **state)
{
    struct fixture f;
    struct http_config cfg = fixture_config();
    struct client held[4], refused;
    pthread_t thread;
    (void)state;
    fixture_start(&f, &cfg);
    for (unsigned i = 0; i < 4; i++) {
        client_open(&held[i], f.address);
        client_send(&held[i], GET("/held"));
        fixture_wait_held(&f, i + 1);
    }
    char address[80];
    snprintf(address, sizeof(address), "%s", f.address);
    assert_int_equal(pthread_create(&thread, NULL, stop_thread, &f), 0);
    while (client_try_open(&refused, address))
        client_close(&refused);
    for (unsigned i = 0; i < 4; i++)
        fixture_release(&f);
    for (unsigned i = 0; i < 4; i++) {
        expect_answer(&held[i], 200, "held");
        client_close(&held[i]);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dripping),
        cmocka_unit_test(test_silent),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_read_ahead_is_bounded),
        cmocka_unit_test(test_half_close),
        cmocka_unit_test(test_connection_limit),
        cmocka_unit_test(test_memory_limit),
        cmocka_unit_test(test_memory_of_withheld_bodies),
        cmocka_unit_test(test_client_dies_while_held),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_drained),
        cmocka_unit_test(test_drain_cuts_after_grace),
        cmocka_unit_test(test_stop_waits),
    };
    return cmocka_run_group_tests_name("http_limits", tests, NULL, NULL);
}
