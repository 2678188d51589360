/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/scripted_server.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS_MAX 512
#define HEAD_MAX 4095

struct connection {
    struct scripted_server *server;
    pthread_t thread;
    int fd;
    bool is_over;            /* under the server's lock; fd is closed */
    char head[HEAD_MAX + 1]; /* request line and headers, then what of the body came with them */
    size_t len;
};

struct scripted_server {
    int fd;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t lock;
    struct scripted_counts counts;
    struct connection *connections[CONNECTIONS_MAX];
    bool is_stopping;
};

/* False when the peer is gone. */
static bool put(struct connection *c, const char *text)
{
    size_t len = strlen(text);

    return send(c->fd, text, len, MSG_NOSIGNAL) == (ssize_t)len;
}

/* True when the peer has closed, or the server stops, within that time. */
static bool gone_within(struct connection *c, int ms)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    char byte;

    return poll(&p, 1, ms) > 0 && recv(c->fd, &byte, 1, MSG_PEEK) <= 0;
}

static void wait_for_close(struct connection *c)
{
    char bytes[256];

    while (recv(c->fd, bytes, sizeof(bytes), 0) > 0)
        ;
}

static bool reset(struct connection *c)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};

    (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    return false;
}

static bool answer(struct connection *c, const char *status, const char *headers, const char *body)
{
    char text[512];

    (void)snprintf(text, sizeof(text), "HTTP/1.1 %s\r\nContent-Length: %zu\r\n%s\r\n%s", status,
                   strlen(body), headers, body);
    return put(c, text);
}

#define OK_HEAD "HTTP/1.1 200 OK\r\n"

/* Each of these returns whether the connection goes on. */

static bool do_ok(struct connection *c)
{
    return answer(c, "200 OK", "", "ok");
}

static bool do_bye(struct connection *c)
{
    (void)answer(c, "200 OK", "", "ok");
    return false;
}

/* What is not sent at once leaves with the end of the connection. */
static bool do_bye_at_once(struct connection *c)
{
    static const char text[] = OK_HEAD "Content-Length: 2\r\n\r\nok";

    (void)send(c->fd, text, sizeof(text) - 1, MSG_NOSIGNAL | MSG_MORE);
    return false;
}

static bool do_close(struct connection *c)
{
    if (answer(c, "200 OK", "Connection: close\r\n", "ok"))
        wait_for_close(c);
    return false;
}

static bool do_redirect(struct connection *c)
{
    return answer(c, "302 Found", "Location: /ok\r\n", "");
}

static bool do_continue(struct connection *c)
{
    return put(c, "HTTP/1.1 100 Continue\r\n\r\n") &&
           put(c, "HTTP/1.1 103 Early Hints\r\nRetry-After: 9\r\n\r\n") &&
           answer(c, "503 Service Unavailable", "", "busy");
}

static bool do_continue_long(struct connection *c)
{
    if (put(c, "HTTP/1.1 100 Continue\r\n\r\n") &&
        put(c, OK_HEAD "Content-Length: 1000\r\n\r\n0123456789"))
        wait_for_close(c);
    return false;
}

static bool do_chunked(struct connection *c)
{
    return put(c, OK_HEAD "Transfer-Encoding: chunked\r\n\r\n1\r\no\r\n") &&
           put(c, "1\r\nk\r\n0\r\n\r\n");
}

static bool do_short(struct connection *c)
{
    (void)put(c, OK_HEAD "Content-Length: 10\r\n\r\nok");
    return false;
}

static bool do_late(struct connection *c)
{
    return !gone_within(c, 300) && do_ok(c);
}

static bool do_think(struct connection *c)
{
    return put(c, "HTTP/1.1 102 Processing\r\n\r\n") && do_late(c);
}

static bool do_lengths(struct connection *c)
{
    return put(c, OK_HEAD "Content-Length: 1\r\nContent-Length: 2\r\n\r\nok");
}

static bool do_stray(struct connection *c)
{
    return do_ok(c) && !gone_within(c, 20) && answer(c, "200 OK", "", "stray");
}

static bool do_hang(struct connection *c)
{
    wait_for_close(c);
    return false;
}

static bool do_stall(struct connection *c)
{
    if (put(c, OK_HEAD "Content-Length: 10\r\n\r\nok"))
        wait_for_close(c);
    return false;
}

static bool do_drip(struct connection *c)
{
    bool there = put(c, OK_HEAD "\r\n");

    while (there && !gone_within(c, 10))
        there = put(c, "x");
    return false;
}

static bool do_endless(struct connection *c)
{
    bool there = put(c, OK_HEAD "\r\n");

    while (there)
        there = put(c, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    return false;
}

static bool do_flood(struct connection *c)
{
    bool there = put(c, OK_HEAD);

    while (there)
        there = put(c, "X-Flood: 0123456789abcdef0123456789abcdef0123456789abcdef\r\n");
    return false;
}

static bool do_garbage(struct connection *c)
{
    (void)put(c, "SSH-2.0-OpenSSH_9.2\r\n");
    return false;
}

static const struct {
    const char *path;
    bool (*act)(struct connection *c);
} scripts[] = {
    {"/ok", do_ok},
    {"/bye", do_bye},
    {"/bye-at-once", do_bye_at_once},
    {"/close", do_close},
    {"/redirect", do_redirect},
    {"/continue", do_continue},
    {"/continue-long", do_continue_long},
    {"/chunked", do_chunked},
    {"/short", do_short},
    {"/slow", do_ok},
    {"/late", do_late},
    {"/think", do_think},
    {"/lengths", do_lengths},
    {"/stray", do_stray},
    {"/hang", do_hang},
    {"/stall", do_stall},
    {"/drip", do_drip},
    {"/endless", do_endless},
    {"/flood", do_flood},
    {"/rst", reset},
    {"/garbage", do_garbage},
};

/* Returns the length of the head, or 0 when the peer is gone. */
static size_t read_head(struct connection *c)
{
    char *end;

    c->head[c->len] = '\0';
    while (!(end = strstr(c->head, "\r\n\r\n"))) {
        ssize_t n = c->len < HEAD_MAX ? recv(c->fd, c->head + c->len, HEAD_MAX - c->len, 0) : 0;
        if (n <= 0)
            return 0;
        c->len += (size_t)n;
        c->head[c->len] = '\0';
    }
    return (size_t)(end - c->head) + 4;
}

uint64_t scripted_sum(uint64_t sum, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001B3) + 1;
    return sum;
}

/* Reads the rest of the body, and keeps its first bytes. */
static bool read_body(struct connection *c, size_t head_len, size_t body_len, char first[256],
                      uint64_t *sum)
{
    size_t got = c->len - head_len;
    size_t kept = got < 255 ? got : 255;
    char bytes[16384];

    assert(got <= body_len); /* requests are not pipelined */
    memcpy(first, c->head + head_len, kept);
    *sum = scripted_sum(0, c->head + head_len, got);
    while (got < body_len) {
        ssize_t n = recv(c->fd, bytes, sizeof(bytes), 0);
        if (n <= 0)
            return false;
        size_t more = (size_t)n < 255 - kept ? (size_t)n : 255 - kept;
        memcpy(first + kept, bytes, more);
        *sum = scripted_sum(*sum, bytes, (size_t)n);
        kept += more;
        got += (size_t)n;
    }
    first[kept] = '\0';
    return true;
}

static bool act(struct connection *c, const char *path)
{
    char status[32];

    if (sscanf(path, "/status/%31[0-9]", status) == 1)
        return answer(c, status, "Retry-After: 7\r\n", "status");
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        if (!strcmp(path, scripts[i].path))
            return scripts[i].act(c);
    }
    return answer(c, "404 Not Found", "", "");
}

/* What happens between the headers and the body. False when that is all. */
static bool act_early(struct connection *c, const char *path)
{
    bool is_early = !strcmp(path, "/early");

    if (!strcmp(path, "/rst-early"))
        return reset(c);
    if (is_early)
        (void)answer(c, "413 Content Too Large", "", "early");
    if (is_early || !strcmp(path, "/slow"))
        (void)poll(NULL, 0, 200);
    if (is_early)
        wait_for_close(c);
    return !is_early;
}

static bool serve_one(struct connection *c)
{
    struct scripted_counts *counts = &c->server->counts;
    size_t head_len = read_head(c);
    char path[128] = "";
    char first[256] = "";
    size_t body_len = 0;
    uint64_t sum = 0;

    if (head_len == 0)
        return false;
    c->head[head_len - 1] = '\0';
    const char *length = strcasestr(c->head, "\r\nContent-Length:");
    if (length)
        body_len = strtoul(length + 17, NULL, 10);
    (void)sscanf(c->head, "%*s %127s", path);
    pthread_mutex_lock(&c->server->lock);
    counts->requests++;
    counts->expects += strcasestr(c->head, "\r\nExpect:") != NULL;
    (void)snprintf(counts->last_headers, sizeof(counts->last_headers), "%s", c->head);
    pthread_mutex_unlock(&c->server->lock);
    if (!act_early(c, path) || !read_body(c, head_len, body_len, first, &sum))
        return false;
    c->len = 0;
    pthread_mutex_lock(&c->server->lock);
    counts->bodies++;
    memcpy(counts->last_body, first, sizeof(first));
    counts->last_body_len = body_len;
    counts->last_body_sum = sum;
    pthread_mutex_unlock(&c->server->lock);
    return act(c, path);
}

static void *connection_run(void *arg)
{
    struct connection *c = arg;
    int one = 1;

    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    while (serve_one(c))
        ;
    pthread_mutex_lock(&c->server->lock);
    c->is_over = true;
    c->server->counts.closed++;
    (void)close(c->fd);
    pthread_mutex_unlock(&c->server->lock);
    return NULL;
}

static void connection_start(struct scripted_server *s, int fd)
{
    struct connection *c = calloc(1, sizeof(*c));

    pthread_mutex_lock(&s->lock);
    if (!c || s->is_stopping || s->counts.connections == CONNECTIONS_MAX) {
        (void)close(fd);
        free(c);
    } else {
        c->server = s;
        c->fd = fd;
        if (pthread_create(&c->thread, NULL, connection_run, c))
            abort();
        s->connections[s->counts.connections++] = c;
    }
    pthread_mutex_unlock(&s->lock);
}

static void *server_run(void *arg)
{
    struct scripted_server *s = arg;
    int fd;

    while ((fd = accept(s->fd, NULL, NULL)) >= 0)
        connection_start(s, fd);
    return NULL;
}

struct scripted_server *scripted_server_new(void)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);
    struct scripted_server *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0 || bind(s->fd, (struct sockaddr *)&in, len) || listen(s->fd, 512) ||
        getsockname(s->fd, (struct sockaddr *)&in, &len) || pthread_mutex_init(&s->lock, NULL) ||
        pthread_create(&s->thread, NULL, server_run, s)) {
        if (s->fd >= 0)
            (void)close(s->fd);
        free(s);
        return NULL;
    }
    s->port = ntohs(in.sin_port);
    return s;
}

void scripted_server_free(struct scripted_server *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    for (unsigned i = 0; i < s->counts.connections; i++) {
        if (!s->connections[i]->is_over)
            (void)shutdown(s->connections[i]->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&s->lock);
    (void)shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    for (unsigned i = 0; i < s->counts.connections; i++) {
        pthread_join(s->connections[i]->thread, NULL);
        free(s->connections[i]);
    }
    (void)close(s->fd);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

uint16_t scripted_server_port(const struct scripted_server *s)
{
    return s->port;
}

void scripted_server_counts(struct scripted_server *s, struct scripted_counts *ret)
{
    pthread_mutex_lock(&s->lock);
    *ret = s->counts;
    pthread_mutex_unlock(&s->lock);
}
