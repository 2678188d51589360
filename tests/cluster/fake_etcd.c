/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/fake_etcd.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>

struct fake_request {
    struct fake_etcd *s;
    struct bufferevent *be;
    bool is_read;
    struct fake_request *prev;
    struct fake_request *next;
};

struct fake_etcd {
    struct event_base *base;
    struct evconnlistener *listener;
    fake_answer *on_request;
    void *ctx;
    unsigned count;
    struct fake_request *requests;
};

static void request_free(struct fake_request *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        r->s->requests = r->next;
    if (r->next)
        r->next->prev = r->prev;
    bufferevent_free(r->be);
    free(r);
}

/* The request's head, NUL-terminated, when head and body are there; else NULL. */
static char *whole(struct evbuffer *in, const char **ret_body)
{
    struct evbuffer_ptr end = evbuffer_search(in, "\r\n\r\n", 4, NULL);
    size_t len = evbuffer_get_length(in);
    char *text = end.pos >= 0 ? calloc(1, len + 1) : NULL;
    size_t body_len = 0;

    if (!text)
        return NULL;
    (void)evbuffer_copyout(in, text, len);
    text[end.pos] = '\0';
    const char *length = strcasestr(text, "Content-Length:");
    if (length)
        body_len = strtoul(length + strlen("Content-Length:"), NULL, 10);
    *ret_body = text + end.pos + 4;
    if (len - (size_t)end.pos - 4 >= body_len)
        return text;
    free(text);
    return NULL;
}

static void on_read(struct bufferevent *be, void *ctx)
{
    struct fake_request *r = ctx;
    const char *body;
    char *head = r->is_read ? NULL : whole(bufferevent_get_input(be), &body);

    if (!head)
        return;
    r->is_read = true;
    r->s->count++;
    r->s->on_request(r, head, body, r->s->ctx); /* r may be gone now */
    free(head);
}

static void on_event(struct bufferevent *be, short what, void *ctx)
{
    (void)be;
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR))
        request_free(ctx);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int len,
                      void *ctx)
{
    struct fake_etcd *s = ctx;
    struct fake_request *r = calloc(1, sizeof(*r));

    (void)l;
    (void)a;
    (void)len;
    if (!r)
        abort();
    r->s = s;
    r->next = s->requests;
    if (r->next)
        r->next->prev = r;
    s->requests = r;
    r->be = bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!r->be)
        abort();
    bufferevent_setcb(r->be, on_read, NULL, on_event, r);
    if (bufferevent_enable(r->be, EV_READ | EV_WRITE))
        abort();
}

struct fake_etcd *fake_etcd_new(struct event_base *base, fake_answer *on_request, void *ctx)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct fake_etcd *s = calloc(1, sizeof(*s));

    if (!s)
        abort();
    s->base = base;
    s->on_request = on_request;
    s->ctx = ctx;
    s->listener = evconnlistener_new_bind(base, on_accept, s, LEV_OPT_CLOSE_ON_FREE, -1,
                                          (struct sockaddr *)&a, sizeof(a));
    if (!s->listener)
        abort();
    return s;
}

void fake_etcd_free(struct fake_etcd *s)
{
    if (!s)
        return;
    while (s->requests)
        request_free(s->requests);
    evconnlistener_free(s->listener);
    free(s);
}

void fake_etcd_url(const struct fake_etcd *s, char dst[FAKE_URL_MAX])
{
    struct sockaddr_in a;
    socklen_t len = sizeof(a);

    if (getsockname(evconnlistener_get_fd(s->listener), (struct sockaddr *)&a, &len))
        abort();
    (void)snprintf(dst, FAKE_URL_MAX, "http://127.0.0.1:%d", ntohs(a.sin_port));
}

unsigned fake_etcd_count(const struct fake_etcd *s)
{
    return s->count;
}

void fake_status(struct fake_request *r, const char *status)
{
    (void)evbuffer_add_printf(bufferevent_get_output(r->be),
                              "HTTP/1.1 %s\r\nConnection: close\r\n"
                              "Content-Type: application/json\r\n\r\n",
                              status);
}

void fake_say(struct fake_request *r, struct str bytes)
{
    if (bufferevent_write(r->be, bytes.p, bytes.len))
        abort();
}

static void on_sent(struct bufferevent *be, void *ctx)
{
    (void)be;
    request_free(ctx);
}

void fake_end(struct fake_request *r)
{
    if (evbuffer_get_length(bufferevent_get_output(r->be)) == 0)
        request_free(r);
    else
        bufferevent_setcb(r->be, NULL, on_sent, on_event, r);
}
