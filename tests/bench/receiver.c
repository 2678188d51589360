/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/receiver.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <event2/listener.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/ids.h"
#include "tests/bench/message.h"

#define READ_SIZE (64 * 1024)

struct connection {
    LIST_ENTRY(connection) link;
    struct receiver *receiver;
    struct event readable;
    struct buf in; /* what a read left of a request that is not whole */
    int fd;
};

struct receiver {
    LIST_HEAD(, connection) connections;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *stop_event;
    int stop_fd;
    pthread_t thread;
    uint16_t port;
    struct tally *tally; /* borrowed; may be NULL */
    struct str fixed;    /* borrowed; the answer to everything */
    struct buf body;     /* of the answer to a request with many tasks */
    struct buf answer;   /* the same with its head */
    char read[READ_SIZE];
};

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "bench: receiver: %s\n", what);
    exit(1);
}

/* All that the request names is done. */
static void put_results(struct receiver *r, struct str tasks)
{
    static const char mark[] = "{\"traceId\":\"";
    const char *end = tasks.p + tasks.len;
    const char *at = tasks.p;
    const char *before = "{\"results\":[";

    buf_clear(&r->body);
    while ((at = memmem(at, (size_t)(end - at), mark, sizeof(mark) - 1))) {
        if ((size_t)(end - at) < sizeof(mark) - 1 + TRACE_ID_LEN)
            die("a trace id is cut");
        buf_addz(&r->body, before);
        buf_add(&r->body, at, sizeof(mark) - 1 + TRACE_ID_LEN);
        buf_addz(&r->body, "\",\"success\":true}");
        at += sizeof(mark) - 1;
        before = ",";
    }
    buf_addz(&r->body, "]}");
    buf_clear(&r->answer);
    buf_addf(&r->answer,
             "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
             r->body.len);
    buf_adds(&r->answer, buf_str(&r->body));
    if (!buf_ok(&r->answer))
        die("no memory");
}

static struct str answer_to(struct receiver *r, struct str body)
{
    static const char many[] = "{\"tasks\":[";

    if (r->fixed.p)
        return r->fixed;
    if (body.len < sizeof(many) - 1 || memcmp(body.p, many, sizeof(many) - 1) != 0)
        return STR("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                   "Content-Length: 2\r\n\r\n{}");
    put_results(r, body);
    return buf_str(&r->answer);
}

/* Waits where the other side is slow to read: it has asked for all of it. */
static void send_all(int fd, struct str text)
{
    while (text.len > 0) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        ssize_t n = send(fd, text.p, text.len, MSG_NOSIGNAL);

        if (n < 0 && errno == EAGAIN)
            (void)poll(&ready, 1, -1);
        else if (n < 0 && errno != EINTR)
            return; /* its end is read next */
        text.p += n > 0 ? n : 0;
        text.len -= n > 0 ? (size_t)n : 0;
    }
}

/* Answers the whole requests in `in`; returns how many bytes they have. */
static size_t take_requests(struct connection *c, struct str in)
{
    struct receiver *r = c->receiver;
    size_t at = 0;
    size_t head;
    size_t whole;

    while ((whole = message_length(in.p + at, in.len - at, &head)) && in.len - at >= whole) {
        struct str body = {in.p + at + head, whole - head};

        if (r->tally)
            (void)tally_note(r->tally, body);
        send_all(c->fd, answer_to(r, body));
        at += whole;
    }
    return at;
}

static void connection_free(struct connection *c)
{
    LIST_REMOVE(c, link);
    (void)event_del(&c->readable);
    (void)close(c->fd);
    buf_fini(&c->in);
    free(c);
}

static void on_read(evutil_socket_t fd, short what, void *arg)
{
    struct connection *c = arg;
    char *read = c->receiver->read;
    ssize_t n = recv(fd, read, READ_SIZE, 0);
    size_t used;

    (void)what;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        connection_free(c);
        return;
    }
    if (!c->in.len) {
        used = take_requests(c, (struct str){read, (size_t)n});
        buf_add(&c->in, read + used, (size_t)n - used);
    } else {
        buf_add(&c->in, read, (size_t)n);
        used = take_requests(c, buf_str(&c->in));
        memmove(c->in.data, c->in.data + used, c->in.len - used);
        c->in.len -= used;
    }
    if (!buf_ok(&c->in))
        die("no memory");
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *sa, int len,
                      void *arg)
{
    struct receiver *r = arg;
    struct connection *c = calloc(1, sizeof(*c));
    int one = 1;

    (void)l;
    (void)sa;
    (void)len;
    if (!c)
        die("no memory");
    c->receiver = r;
    c->fd = fd;
    LIST_INSERT_HEAD(&r->connections, c, link);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (event_assign(&c->readable, r->base, fd, EV_READ | EV_PERSIST, on_read, c) ||
        event_add(&c->readable, NULL))
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

struct receiver *receiver_start(uint16_t port, struct tally *tally, struct str fixed)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    struct receiver *r = calloc(1, sizeof(*r));

    if (!r)
        die("no memory");
    r->tally = tally;
    r->fixed = fixed;
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
    while (!LIST_EMPTY(&r->connections))
        connection_free(LIST_FIRST(&r->connections));
    event_free(r->stop_event);
    evconnlistener_free(r->listener);
    event_base_free(r->base);
    (void)close(r->stop_fd);
    buf_fini(&r->body);
    buf_fini(&r->answer);
    free(r);
}

uint16_t receiver_port(const struct receiver *r)
{
    return r->port;
}
