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

#include "tests/bench/message.h"

#define READ_MAX (256 * 1024)

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

static void on_read(struct bufferevent *bev, void *arg)
{
    struct client *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    size_t len = evbuffer_get_length(in);
    const char *data = (const char *)evbuffer_pullup(in, -1);
    size_t head = 0;
    size_t whole = message_length(data, len, &head);

    /* A long answer is looked at again when it is all there. */
    bufferevent_setwatermark(bev, EV_READ, len < whole ? whole : 0, 0);
    if (!whole || len < whole)
        return;
    send_next(c, atoi(data + strlen("HTTP/1.1 ")), (struct str){data + head, whole - head});
    (void)evbuffer_drain(in, whole);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct client *c = arg;

    (void)bev;
    if (what & BEV_EVENT_CONNECTED)
        send_next(c, 0, (struct str){0});
    else if (c->idle && what & BEV_EVENT_EOF)
        c->idle = false; /* the server does not wait for ever: it is not used any more */
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
    c->bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (!c->bev)
        die("no memory");
    bufferevent_setcb(c->bev, on_read, NULL, on_event, c);
    (void)bufferevent_set_max_single_read(c->bev, READ_MAX);
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

void client_put_request(struct buf *out, const char *method, const char *path, struct str body)
{
    buf_addf(out,
             "%s %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n",
             method, path, body.len);
    buf_adds(out, body);
}
