/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/http_client.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"

bool client_try_open(struct client *c, const char *address)
{
    char host[64];
    const char *colon = strrchr(address, ':');
    bool brackets = address[0] == '[';
    int n = snprintf(host, sizeof(host), "%.*s", (int)(colon - address - 2 * brackets),
                     address + brackets);
    assert_in_range(n, 1, sizeof(host) - 1);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *ai;
    assert_int_equal(getaddrinfo(host, colon + 1, &hints, &ai), 0);
    *c = (struct client){.fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_true(c->fd >= 0);
    int rc = connect(c->fd, ai->ai_addr, ai->ai_addrlen);
    freeaddrinfo(ai);
    if (rc == 0)
        return true;
    client_close(c);
    return false;
}

void client_open(struct client *c, const char *address)
{
    if (!client_try_open(c, address))
        fail_msg("cannot connect to %s: %s", address, strerror(errno));
}

void client_close(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->data);
    *c = (struct client){.fd = -1};
}

void client_reset(struct client *c)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    assert_int_equal(setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
    client_close(c);
}

bool client_try_send(struct client *c, const void *p, size_t n)
{
    const char *at = p;
    while (n > 0) {
        ssize_t sent = send(c->fd, at, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return false;
        at += sent;
        n -= (size_t)sent;
    }
    return true;
}

void client_send(struct client *c, const char *text)
{
    assert_true(client_try_send(c, text, strlen(text)));
}

bool client_readable(struct client *c, int ms)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

/* Reads more; a reset counts as the end. */
static void receive(struct client *c)
{
    if (c->eof)
        return;
    if (!client_readable(c, CLIENT_DEADLINE_MS))
        fail_msg("no answer within %d ms", CLIENT_DEADLINE_MS);
    if (c->cap - c->len < 65536) {
        c->cap = c->cap * 2 + 65536;
        c->data = realloc(c->data, c->cap);
        assert_non_null(c->data);
    }
    ssize_t n = recv(c->fd, c->data + c->len, c->cap - c->len - 1, 0);
    if (n > 0)
        c->len += (size_t)n;
    else
        c->eof = true;
    c->data[c->len] = '\0';
}

const char *answer_header(const struct answer_text *a, const char *name, char *dst, size_t cap)
{
    size_t len = strlen(name);
    dst[0] = '\0';
    for (const char *line = a->head; *line; line = strstr(line, "\r\n") + 2) {
        if (strncasecmp(line, name, len) != 0 || line[len] != ':')
            continue;
        const char *value = line + len + 1;
        while (*value == ' ')
            value++;
        size_t n = (size_t)(strstr(value, "\r\n") - value);
        assert_true(n < cap);
        memcpy(dst, value, n);
        dst[n] = '\0';
    }
    return dst;
}

static size_t body_length(const struct answer_text *a, bool to_head)
{
    char text[32];
    answer_header(a, "Content-Length", text, sizeof(text));
    if (a->status == 204 || a->status / 100 == 1) {
        assert_string_equal(text, "");
        return 0;
    }
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    assert_true(text[0] && *end == '\0');
    return to_head ? 0 : (size_t)n;
}

static void use_up(struct client *c, size_t n)
{
    c->len -= n;
    memmove(c->data, c->data + n, c->len + 1);
}

static char *copy(const char *p, size_t n)
{
    char *text = malloc(n + 1);
    assert_non_null(text);
    memcpy(text, p, n);
    text[n] = '\0';
    return text;
}

bool client_try_read(struct client *c, bool to_head, struct answer_text *ret)
{
    char *end = NULL;
    while (!(end = c->data ? strstr(c->data, "\r\n\r\n") : NULL) && !c->eof)
        receive(c);
    if (!end && c->len == 0)
        return false;
    assert_non_null(end);
    assert_memory_equal(c->data, "HTTP/1.1 ", 9);
    size_t head_len = (size_t)(end - c->data) + 2;
    ret->status = atoi(c->data + 9);
    ret->head = copy(c->data, head_len);
    ret->body_len = body_length(ret, to_head);
    while (c->len < head_len + 2 + ret->body_len && !c->eof)
        receive(c);
    assert_true(c->len >= head_len + 2 + ret->body_len);
    ret->body = copy(c->data + head_len + 2, ret->body_len);
    use_up(c, head_len + 2 + ret->body_len);
    return true;
}

void client_read(struct client *c, struct answer_text *ret)
{
    if (!client_try_read(c, false, ret))
        fail_msg("the connection ended instead of an answer");
}

void answer_free(struct answer_text *a)
{
    free(a->head);
    free(a->body);
    *a = (struct answer_text){0};
}

void client_expect_end(struct client *c)
{
    while (!c->eof) {
        receive(c);
        if (c->len > 0)
            fail_msg("more came instead of the end: %.200s", c->data);
    }
}

void client_ask(const char *address, const char *request, struct answer_text *ret)
{
    struct client c;
    client_open(&c, address);
    client_send(&c, request);
    client_read(&c, ret);
    client_close(&c);
}

void client_call(const char *address, const char *method, const char *path, const char *body,
                 struct answer_text *ret)
{
    struct client c;
    char head[8192];
    int n = snprintf(head, sizeof(head), "%s %s HTTP/1.1\r\nHost: test\r\n", method, path);
    assert_in_range(n, 1, sizeof(head) - 200);
    if (body)
        n += snprintf(head + n, sizeof(head) - (size_t)n,
                      "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    client_open(&c, address);
    assert_true(client_try_send(&c, head, (size_t)n));
    client_send(&c, "\r\n");
    if (body)
        client_send(&c, body);
    client_read(&c, ret);
    client_close(&c);
}

void wait_until(bool (*holds)(void *ctx), void *ctx)
{
    mono_ms deadline = clock_mono() + CLIENT_DEADLINE_MS;
    while (!holds(ctx)) {
        if (clock_mono() > deadline)
            fail_msg("the condition did not hold within %d ms", CLIENT_DEADLINE_MS);
        const struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
}
