/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/client.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct client {
    struct bufferevent *bev;
    client_next *next;
    void *ctx;
    struct buf out;
    bool idle;
};

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static void send_next(struct client *c, int status, struct str body)
{
    buf_clear(&c->out);
    c->next(c->ctx, status, body, &c->out);
    c->idle = c->out.len == 0;
    if (!c->idle && bufferevent_write(c->bev, c->out.data, c->out.len))
        die("cannot write");
}

/* Returns the length of the whole answer in `data`, or 0 while it is incomplete. */
static size_t answer_parse(const char *data, size_t len, int *ret_status, struct str *ret_body)
{
    static const char mark[] = "Content-Length:";
    const char *end = memmem(data, len, "\r\n\r\n", 4);
    const char *at;
    size_t body_len = 0;

    if (!end)
        return 0;
    size_t head = (size_t)(end - data) + 4;
    *ret_status = atoi(data + strlen("HTTP/1.1 "));
    at = memmem(data, head, mark, sizeof(mark) - 1);
    if (at)
        body_len = strtoul(at + sizeof(mark) - 1, NULL, 10);
    if (len < head + body_len)
        return 0;
    *ret_body = (struct str){data + head, body_len};
    return head + body_len;
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct client *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    size_t len = evbuffer_get_length(in);
    const char *data = (const char *)evbuffer_pullup(in, -1);
    struct str body;
    int status;
    size_t used = answer_parse(data, len, &status, &body);

    if (!used)
        return;
    send_next(c, status, body);
    (void)evbuffer_drain(in, used);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct client *c = arg;

    (void)bev;
    if (what & BEV_EVENT_CONNECTED)
        send_next(c, 0, (struct str){0});
    else
        die("a connection broke");
}

struct client *client_open(struct event_base *base, uint16_t port, client_next *next, void *ctx)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct client *c = calloc(1, sizeof(*c));
    int one = 1;

    if (!c)
        die("no memory");
    c->next = next;
    c->ctx = ctx;
    c->idle = true;
    c->bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (!c->bev)
        die("no memory");
    bufferevent_setcb(c->bev, on_read, NULL, on_event, c);
    if (bufferevent_enable(c->bev, EV_READ | EV_WRITE) ||
        bufferevent_socket_connect(c->bev, (struct sockaddr *)&to, sizeof(to)))
        die("cannot connect");
    (void)setsockopt(bufferevent_getfd(c->bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return c;
}

void client_free(struct client *c)
{
    if (!c)
        return;
    bufferevent_free(c->bev);
    buf_fini(&c->out);
    free(c);
}

void client_kick(struct client *c)
{
    if (c->idle)
        send_next(c, 0, (struct str){0});
}

bool client_is_idle(const struct client *c)
{
    return c->idle;
}

void client_put_request(struct buf *out, const char *method, const char *path, struct str body)
{
    buf_addf(out,
             "%s %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n",
             method, path, body.len);
    buf_adds(out, body);
}
