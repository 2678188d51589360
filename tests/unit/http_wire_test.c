/* SPDX-License-Identifier: Apache-2.0 */
/* What the server takes and refuses as HTTP, byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "common/ids.h"
#include "common/json.h"
#include "tests/unit/http_client.h"
#include "tests/unit/http_fixture.h"

#define GET_ECHO "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n"
#define POST_ECHO "POST /echo HTTP/1.1\r\nHost: h\r\n"

static struct fixture fixture;

static int start(void **state)
{
    struct http_config cfg = fixture_config();
    (void)state;
    fixture_start(&fixture, &cfg);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    fixture_stop(&fixture);
    return 0;
}

/* An error answer is a problem document whose status is that of the status line. */
static void check_problem(const struct answer_text *a, int status)
{
    char value[128];
    struct json_doc doc = JSON_DOC_INIT;
    int64_t number = 0;
    assert_string_equal(answer_header(a, "Content-Type", value, sizeof(value)),
                        "application/problem+json");
    assert_int_equal(json_parse(&doc, str_from(a->body), 1000, NULL), 0);
    uint32_t member = json_find(&doc, 0, "status");
    assert_true(member && json_to_i64(&doc.tokens[member], &number));
    assert_int_equal(number, status);
    assert_true(json_find(&doc, 0, "type") && json_find(&doc, 0, "title") &&
                json_find(&doc, 0, "detail"));
    json_doc_fini(&doc);
}

/* Sends bytes and expects that refusal, and the end of the connection. */
static void refuse(const char *name, const char *bytes, size_t len, int status)
{
    struct client c;
    struct answer_text a;
    char value[32];
    client_open(&c, fixture.address);
    (void)client_try_send(&c, bytes, len);
    if (!client_try_read(&c, false, &a))
        fail_msg("%s: no answer", name);
    if (a.status != status)
        fail_msg("%s: %d instead of %d", name, a.status, status);
    check_problem(&a, status);
    assert_string_equal(answer_header(&a, "Connection", value, sizeof(value)), "close");
    client_expect_end(&c);
    answer_free(&a);
    client_close(&c);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *name;
        const char *request;
        int status;
    } cases[] = {
        {"garbage", "\x01\x02\x03\xff\xfe garbage\r\n\r\n", 400},
        {"TLS", "\x16\x03\x01\x02\x05\x01\x03\x03", 400},
        {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
        {"HTTP/2 version", "GET /echo HTTP/2.0\r\nHost: h\r\n\r\n", 505},
        {"HTTP/0.9", "GET /echo\r\n\r\n", 505},
        {"unknown method", "BREW /echo HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"lower-case method", "get /echo HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"no target", "GET HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"CONNECT", "CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"asterisk", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"fragment", "GET /echo#x HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"no Host", "GET /echo HTTP/1.1\r\n\r\n", 400},
        {"two Hosts", "GET /echo HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", 400},
        {"both framings", POST_ECHO "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"both framings, other order",
         POST_ECHO "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400},
        {"two lengths", POST_ECHO "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400},
        {"two different lengths", POST_ECHO "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
         400},
        {"length list", POST_ECHO "Content-Length: 1, 1\r\n\r\nx", 400},
        {"length word", POST_ECHO "Content-Length: abc\r\n\r\n", 400},
        {"length with sign", POST_ECHO "Content-Length: +5\r\n\r\nxxxxx", 400},
        {"negative length", POST_ECHO "Content-Length: -1\r\n\r\n", 400},
        {"hexadecimal length", POST_ECHO "Content-Length: 0x5\r\n\r\nxxxxx", 400},
        {"length beyond 64 bits", POST_ECHO "Content-Length: 18446744073709551617\r\n\r\n", 400},
        {"space before colon", POST_ECHO "Content-Length : 5\r\n\r\nxxxxx", 400},
        {"space in a name", "GET /echo HTTP/1.1\r\nHost: h\r\nA B: c\r\n\r\n", 400},
        {"empty name", "GET /echo HTTP/1.1\r\nHost: h\r\n: c\r\n\r\n", 400},
        {"other coding", POST_ECHO "Transfer-Encoding: gzip\r\n\r\n", 400},
        {"codings", POST_ECHO "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
        {"chunked twice", POST_ECHO "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400},
        {"coding header twice",
         POST_ECHO "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         400},
        {"identity", POST_ECHO "Transfer-Encoding: identity\r\n\r\n", 400},
        {"misspelled coding", POST_ECHO "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400},
        {"chunked in HTTP/1.0",
         "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        {"bad chunk size", POST_ECHO "Transfer-Encoding: chunked\r\n\r\nzz\r\nxx\r\n0\r\n\r\n",
         400},
        {"huge chunk size",
         POST_ECHO "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nxx\r\n0\r\n\r\n", 413},
        {"chunk size above the limit",
         POST_ECHO "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n186a1", 413},
        {"chunk longer than said",
         POST_ECHO "Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n", 400},
        {"a bad chunk size before one above the limit",
         POST_ECHO "Transfer-Encoding: chunked\r\n\r\naH\r\n0123456789\r\nfffffffff\r\n", 400},
        {"a bad line end before a bad version", "GET /echo\n\r\n", 400},
        {"body too large", POST_ECHO "Content-Length: 100001\r\n\r\n", 413},
        {"body far too large", POST_ECHO "Content-Length: 9999999999999\r\n\r\n", 413},
        {"expects too large", POST_ECHO "Content-Length: 100001\r\nExpect: 100-continue\r\n\r\n",
         413},
        {"expectation", POST_ECHO "Content-Length: 1\r\nExpect: 200-ok\r\n\r\nx", 417},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        refuse(cases[i].name, cases[i].request, strlen(cases[i].request), cases[i].status);
    static const char with_nul[] = "GET /echo HTTP/1.1\r\nHost: h\r\nA: b\0c\r\n\r\n";
    refuse("NUL in a header", with_nul, sizeof(with_nul) - 1, 400);
    static const char nul_target[] = "GET /ec\0ho HTTP/1.1\r\nHost: h\r\n\r\n";
    refuse("NUL in the target", nul_target, sizeof(nul_target) - 1, 400);
}

/* Whole and byte by byte: what the parser sees of it at once makes no difference. */
static void test_line_ends(void **state)
{
#define CHUNKED POST_ECHO "Transfer-Encoding: chunked\r\n\r\n"
    static const char *const cases[] = {
        CHUNKED "2\r\n{}XX0\r\n\r\n",
        CHUNKED "2\r\n{}X\r0\r\n\r\n",
        CHUNKED "2\r\n{}\rX0\r\n\r\n",
        CHUNKED "2\r\n{}\n0\r\n\r\n",
        CHUNKED "2\r\n{}0\r\n\r\n",
        CHUNKED "1\r\n{\r\n1\r\n}\r\r0\r\n\r\n",
        CHUNKED "2\rX{}\r\n0\r\n\r\n",
        CHUNKED "2\n{}\r\n0\r\n\r\n",
        CHUNKED "2;a\n{}\r\n0\r\n\r\n",
        CHUNKED "2 \n{}\r\n0\r\n\r\n",
        CHUNKED "\r\n{}\r\n0\r\n\r\n",
        CHUNKED "2\r\n{}\r\n0\rX\r\n",
        CHUNKED "2\r\n{}\r\n0\r\n\rX",
        POST_ECHO "Transfer-Encoding: chunked\r\n\rX2\r\n{}\r\n0\r\n\r\n",
        POST_ECHO "Content-Length: 2\r\n\rX{}",
        "GET /echo HTTP/1.1\r\nHost: h\r\n\rX",
        "GET /echo HTTP/1.1\nHost: h\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: h\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: h\r\n\n",
        "GET /echo HTTP/1.1\nHost: h\n\n",
        "\n" GET_ECHO,
        "GET /echo HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: h\r\nX: a\r\n\tb\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: h\r\nX: a\r\n \r\n\r\n",
        POST_ECHO "Content-Length:\r\n 2\r\n\r\n{}",
        POST_ECHO "Transfer-Encoding: chu\r\n nked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        POST_ECHO "Expect: 100-continue\nContent-Length: 2\r\n\r\n{}",
    };
#undef CHUNKED
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct client c;
        struct answer_text a;
        refuse(cases[i], cases[i], strlen(cases[i]), 400);
        client_open(&c, fixture.address);
        for (const char *p = cases[i]; *p; p++)
            (void)client_try_send(&c, p, 1);
        client_read(&c, &a);
        assert_int_equal(a.status, 400);
        answer_free(&a);
        client_expect_end(&c);
        client_close(&c);
    }
}

static void test_header_too_large(void **state)
{
    static char request[70000];
    (void)state;
    size_t n = (size_t)sprintf(request, "GET /echo HTTP/1.1\r\nHost: h\r\nX: ");
    memset(request + n, 'x', sizeof(request) - n);
    refuse("long header", request, sizeof(request), 431);
    n = (size_t)sprintf(request, "GET /");
    memset(request + n, 'x', sizeof(request) - n);
    refuse("long target", request, sizeof(request), 431);
    n = (size_t)sprintf(request, "GET /echo HTTP/1.1\r\nHost: h\r\n");
    while (n < sizeof(request) - 10)
        n += (size_t)sprintf(request + n, "A: b\r\n");
    refuse("many headers", request, n, 431);
}

static void test_chunks_too_large(void **state)
{
    static char request[200000];
    (void)state;
    size_t n = (size_t)sprintf(request, POST_ECHO "Transfer-Encoding: chunked\r\n\r\n");
    while (n < sizeof(request) - 2000)
        n += (size_t)sprintf(request + n, "3e8\r\n%01000d\r\n", 0);
    refuse("chunks", request, n, 413);
}

/* Each is answered with 200 and this body, and the connection goes on or not. */
static void test_accepted(void **state)
{
    static const struct {
        const char *name;
        const char *request;
        const char *body;
        bool closes;
    } cases[] = {
        {"plain", GET_ECHO, "", false},
        {"body", POST_ECHO "Content-Length: 3\r\n\r\nabc", "abc", false},
        {"empty body", POST_ECHO "Content-Length: 0\r\n\r\n", "", false},
        {"no body", POST_ECHO "\r\n", "", false},
        {"chunks", POST_ECHO "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
         "abc", false},
        {"chunks in capitals",
         POST_ECHO "transfer-encoding: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n", "0123456789",
         false},
        {"chunk sizes with zeros, space, as large as may be",
         POST_ECHO "Transfer-Encoding: chunked\r\n\r\n000000000000000000001 \r\na\r\n00\r\n\r\n",
         "a", false},
        {"chunk extension", POST_ECHO "Transfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n0\r\n\r\n",
         "a", false},
        {"trailer",
         POST_ECHO "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nContent-Length: 9\r\n\r\n",
         "a", false},
        {"absolute URI", "GET http://h/echo HTTP/1.1\r\nHost: h\r\n\r\n", "", false},
        {"absolute URI, other case", "GET HTTPS://h:1/echo?x HTTP/1.1\r\nHost: h\r\n\r\n", "",
         false},
        {"empty line before", "\r\n" GET_ECHO, "", false},
        {"upgrade to h2c",
         POST_ECHO "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n"
                   "Content-Length: 1\r\n\r\nx",
         "x", false},
        {"upgrade without body",
         "GET /echo HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "", false},
        {"empty Host", "GET /echo HTTP/1.1\r\nHost:\r\n\r\n", "", false},
        {"connection close", "GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "",
         true},
        {"HTTP/1.0", "GET /echo HTTP/1.0\r\n\r\n", "", true},
        {"HTTP/1.0 kept", "GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "", false},
        {"HTTP/1.0 expect",
         "POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx", "x", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct client c;
        struct answer_text a;
        char value[32];
        client_open(&c, fixture.address);
        client_send(&c, cases[i].request);
        if (!client_try_read(&c, false, &a) || a.status != 200)
            fail_msg("%s: not answered with 200", cases[i].name);
        assert_string_equal(a.body, cases[i].body);
        answer_header(&a, "Connection", value, sizeof(value));
        assert_int_equal(strcmp(value, "close") == 0, cases[i].closes);
        answer_free(&a);
        if (cases[i].closes) {
            client_expect_end(&c);
        } else {
            client_send(&c, POST_ECHO "Content-Length: 5\r\n\r\nagain");
            client_read(&c, &a);
            assert_string_equal(a.body, "again");
            answer_free(&a);
        }
        client_close(&c);
    }
}

static void test_head(void **state)
{
    struct client c;
    struct answer_text a;
    char value[32];
    (void)state;
    client_open(&c, fixture.address);
    client_send(&c, "HEAD /nothing HTTP/1.1\r\nHost: h\r\n\r\n" GET_ECHO);
    assert_true(client_try_read(&c, true, &a));
    assert_int_equal(a.status, 404);
    assert_string_equal(answer_header(&a, "Content-Length", value, sizeof(value)), "8");
    answer_free(&a);
    client_read(&c, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    client_close(&c);
}

static void test_expect_continue(void **state)
{
    struct client c;
    struct answer_text a;
    (void)state;
    client_open(&c, fixture.address);
    client_send(&c, POST_ECHO "Content-Length: 4\r\nExpect: 100-Continue\r\n\r\n");
    client_read(&c, &a);
    assert_int_equal(a.status, 100);
    answer_free(&a);
    client_send(&c, "body");
    client_read(&c, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, "body");
    answer_free(&a);
    /* Nothing to wait for: no interim answer. */
    client_send(&c, "GET /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n");
    client_read(&c, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    client_close(&c);
}

static void test_byte_by_byte(void **state)
{
    static const char request[] =
        POST_ECHO "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n" GET_ECHO;
    struct client c;
    struct answer_text a;
    (void)state;
    client_open(&c, fixture.address);
    for (size_t i = 0; i < sizeof(request) - 1; i++)
        assert_true(client_try_send(&c, request + i, 1));
    client_read(&c, &a);
    assert_string_equal(a.body, "abcd");
    answer_free(&a);
    client_read(&c, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    client_close(&c);
}

/* Requests of random sizes in random pieces: the answers come whole and in order. */
static void test_random_pieces(void **state)
{
    struct rng rng = {42};
    static char request[300000], body[40000];
    (void)state;
    for (int round = 0; round < 40; round++) {
        struct client c;
        size_t lens[8], n = 0;
        client_open(&c, fixture.address);
        for (size_t i = 0; i < 8; i++) {
            lens[i] = (size_t)rng_below(&rng, i % 2 ? 200 : 30000);
            n += (size_t)sprintf(request + n, POST_ECHO "Content-Length: %zu\r\n\r\n", lens[i]);
            memset(request + n, 'a' + (int)i, lens[i]);
            n += lens[i];
        }
        for (size_t at = 0; at < n;) {
            size_t piece = 1 + (size_t)rng_below(&rng, round % 2 ? 500 : 60000);
            piece = piece < n - at ? piece : n - at;
            assert_true(client_try_send(&c, request + at, piece));
            at += piece;
        }
        for (size_t i = 0; i < 8; i++) {
            struct answer_text a;
            client_read(&c, &a);
            assert_int_equal(a.body_len, lens[i]);
            memset(body, 'a' + (int)i, lens[i]);
            assert_memory_equal(a.body, body, lens[i]);
            answer_free(&a);
        }
        client_close(&c);
    }
}

/* Damaged requests: whatever comes back, the server goes on. */
static void test_random_damage(void **state)
{
    static const char whole[] =
        POST_ECHO "Transfer-Encoding: chunked\r\nX-Y: z\r\n\r\n3\r\nabc\r\n0\r\n\r\n" GET_ECHO;
    struct rng rng = {7};
    struct answer_text a;
    (void)state;
    for (int round = 0; round < 500; round++) {
        char request[sizeof(whole)];
        struct client c;
        memcpy(request, whole, sizeof(whole));
        for (int i = 0; i < 3; i++)
            request[rng_below(&rng, sizeof(whole) - 1)] = (char)rng_next(&rng);
        client_open(&c, fixture.address);
        (void)client_try_send(&c, request, sizeof(whole) - 1);
        assert_true(shutdown(c.fd, SHUT_WR) == 0);
        while (client_try_read(&c, false, &a))
            answer_free(&a);
        client_close(&c);
    }
    client_ask(fixture.address, GET_ECHO, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    fixture_wait_connections(&fixture, 0);
}

static void test_bad_address(void **state)
{
    static const char *const bad[] = {"",        "8080",        ":8080",      "127.0.0.1",
                                      "[::1]",   "::1:80",      "host:80",    "127.0.0.1:65536",
                                      "[::1:80", "127.0.0.1:x", "127.0.0.1:", "127.0.0.1:-1"};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct http_config cfg = fixture_config();
        struct http_server *server = NULL;
        struct err err = {0};
        cfg.listen = bad[i];
        assert_int_equal(http_server_start(&cfg, &server, &err), ERR_INVALID);
        assert_null(server);
        assert_true(err.text[0]);
    }
    struct http_config cfg = fixture_config();
    struct http_server *server = NULL;
    struct err err = {0};
    cfg.listen = fixture.address; /* taken */
    assert_int_equal(http_server_start(&cfg, &server, &err), ERR_IO);
    assert_non_null(strstr(err.text, fixture.address));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),         cmocka_unit_test(test_line_ends),
        cmocka_unit_test(test_header_too_large), cmocka_unit_test(test_chunks_too_large),
        cmocka_unit_test(test_accepted),         cmocka_unit_test(test_head),
        cmocka_unit_test(test_expect_continue),  cmocka_unit_test(test_byte_by_byte),
        cmocka_unit_test(test_random_pieces),    cmocka_unit_test(test_random_damage),
        cmocka_unit_test(test_bad_address),
    };
    return cmocka_run_group_tests_name("http_wire", tests, start, stop);
}
