/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/receiver.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/timefmt.h"

struct receiver {
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *stop_event;
    int stop_fd;
    pthread_t thread;
    uint16_t port;
    atomic_uint_fast64_t count;
    int32_t *lateness; /* owned; written by the thread, read while it is quiet */
    size_t cap;
};

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "bench: receiver: %s\n", what);
    exit(1);
}

static void note_task(struct receiver *r, const char *head, size_t len)
{
    static const char mark[] = "\"executeTime\":\"";
    const char *at = memmem(head, len, mark, sizeof(mark) - 1);
    uint64_t i = atomic_load_explicit(&r->count, memory_order_relaxed);
    wall_ms due;

    if (at && i < r->cap &&
        !time_parse((struct str){at + sizeof(mark) - 1, TIME_TEXT_LEN}, &due, NULL))
        r->lateness[i] = (int32_t)(clock_wall() - due);
    atomic_store_explicit(&r->count, i + 1, memory_order_release);
}

/* Takes one request off the input; false while it is incomplete. */
static bool take_request(struct receiver *r, struct bufferevent *bev)
{
    static const char mark[] = "Content-Length:";
    static const char answer[] =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    struct evbuffer *in = bufferevent_get_input(bev);
    size_t len = evbuffer_get_length(in);
    const char *data = len ? (const char *)evbuffer_pullup(in, -1) : NULL;
    const char *end = data ? memmem(data, len, "\r\n\r\n", 4) : NULL;

    if (!end)
        return false;
    size_t head = (size_t)(end - data) + 4;
    const char *at = memmem(data, head, mark, sizeof(mark) - 1);
    size_t body = at ? strtoul(at + sizeof(mark) - 1, NULL, 10) : 0;
    if (len < head + body)
        return false;
    note_task(r, data + head, body);
    (void)evbuffer_drain(in, head + body);
    if (bufferevent_write(bev, answer, sizeof(answer) - 1))
        die("cannot write");
    return true;
}

static void on_read(struct bufferevent *bev, void *arg)
{
    while (take_request(arg, bev))
        ;
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)what;
    (void)arg;
    bufferevent_free(bev);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *sa, int len,
                      void *arg)
{
    struct receiver *r = arg;
    struct bufferevent *bev = bufferevent_socket_new(r->base, fd, BEV_OPT_CLOSE_ON_FREE);
    int one = 1;

    (void)l;
    (void)sa;
    (void)len;
    if (!bev)
        die("no memory");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    bufferevent_setcb(bev, on_read, NULL, on_event, r);
    if (bufferevent_enable(bev, EV_READ | EV_WRITE))
        die("cannot read");
}

static void on_stop(evutil_socket_t fd, short what, void *arg)
{
    struct receiver *r = arg;

    (void)fd;
    (void)what;
    (void)event_base_loopbreak(r->base);
}

static void *receiver_main(void *arg)
{
    struct receiver *r = arg;

    (void)event_base_dispatch(r->base);
    return NULL;
}

struct receiver *receiver_start(size_t cap)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    struct receiver *r = calloc(1, sizeof(*r));

    if (!r || !(r->lateness = calloc(cap, sizeof(*r->lateness))))
        die("no memory");
    r->cap = cap;
    r->base = event_base_new();
    r->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!r->base || r->stop_fd < 0)
        die("no loop");
    r->listener =
        evconnlistener_new_bind(r->base, on_accept, r, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE,
                                1024, (struct sockaddr *)&at, sizeof(at));
    r->stop_event = event_new(r->base, r->stop_fd, EV_READ, on_stop, r);
    if (!r->listener || !r->stop_event || event_add(r->stop_event, NULL) ||
        getsockname(evconnlistener_get_fd(r->listener), (struct sockaddr *)&at, &len))
        die("cannot listen");
    r->port = ntohs(at.sin_port);
    if (pthread_create(&r->thread, NULL, receiver_main, r))
        die("no thread");
    return r;
}

void receiver_stop(struct receiver *r)
{
    const uint64_t one = 1;

    if (write(r->stop_fd, &one, sizeof(one)) != sizeof(one))
        die("cannot stop");
    (void)pthread_join(r->thread, NULL);
    event_free(r->stop_event);
    evconnlistener_free(r->listener);
    event_base_free(r->base);
    (void)close(r->stop_fd);
    free(r->lateness);
    free(r);
}

uint16_t receiver_port(const struct receiver *r)
{
    return r->port;
}

uint64_t receiver_count(const struct receiver *r)
{
    return atomic_load_explicit(&r->count, memory_order_acquire);
}

void receiver_reset(struct receiver *r)
{
    atomic_store(&r->count, 0);
}

static int compare(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a;
    int32_t y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

const int32_t *receiver_lateness(struct receiver *r, size_t *ret_n)
{
    uint64_t n = receiver_count(r);

    *ret_n = n < r->cap ? (size_t)n : r->cap;
    qsort(r->lateness, *ret_n, sizeof(*r->lateness), compare);
    return r->lateness;
}
