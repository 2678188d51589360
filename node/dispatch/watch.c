/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets that libcurl wants watched, by descriptor.
 *
 * Between two requests on a connection libcurl ends the watch and begins a new one. Here the event
 * stays in the loop meanwhile, which saves two system calls per request: if something happens that
 * nobody wants, or when the socket is closed, it goes. This needs to know of the close, so it is
 * done only for sockets that on_open_socket made and that a request has gone out on: the
 * resolver's, and those on which connecting failed or took too long, are closed behind our back
 * (7.88). */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <event2/event.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/dispatch/dispatch_internal.h"

#define WATCHES_MIN 64

struct watch {
    struct event event;
    struct dispatch *d;
    short events; /* 0 = the event is not added */
    bool is_ours; /* closed by watch_on_close */
    bool is_wanted;
};

static bool reach(struct dispatch *d, int fd)
{
    size_t n = d->n_watches ? d->n_watches : WATCHES_MIN;

    assert(fd >= 0);
    if ((size_t)fd < d->n_watches)
        return true;
    while (n <= (size_t)fd)
        n *= 2;
    struct watch **grown = realloc(d->watches, n * sizeof(struct watch *));
    if (!grown)
        return false;
    memset(grown + d->n_watches, 0, (n - d->n_watches) * sizeof(struct watch *));
    d->watches = grown;
    d->n_watches = n;
    return true;
}

/* NULL when out of memory. */
static struct watch *watch_get(struct dispatch *d, int fd)
{
    if (!reach(d, fd))
        return NULL;
    if (!d->watches[fd]) {
        d->watches[fd] = calloc(1, sizeof(struct watch));
        if (d->watches[fd])
            d->watches[fd]->d = d;
    }
    return d->watches[fd];
}

static void watch_end(struct watch *w)
{
    if (w->events)
        (void)event_del(&w->event); /* fails only for an event that was never assigned */
    w->events = 0;
}

/* Something came while no request is on the connection: its end, or what nobody asked for, which
 * the next request would take for its answer. libcurl 7.88 would send on a connection with bytes
 * waiting on it, so it gets the end of a stream under the same number. */
static void idle_end(struct watch *w, int fd)
{
    int pair[2];

    watch_end(w);
    if (!w->is_ours)
        return;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
        (void)shutdown(fd, SHUT_RDWR); /* too many open files: at least the peer's end is seen */
        return;
    }
    (void)close(pair[1]);
    (void)dup3(pair[0], fd, O_CLOEXEC); /* both are open: it cannot fail */
    (void)close(pair[0]);
}

static void on_ready(evutil_socket_t fd, short events, void *ctx)
{
    struct watch *w = ctx;
    int what =
        (events & EV_READ ? CURL_CSELECT_IN : 0) | (events & EV_WRITE ? CURL_CSELECT_OUT : 0);

    if (w->is_wanted)
        dispatch_advance(w->d, fd, what);
    else
        idle_end(w, fd);
}

bool watch_open(struct dispatch *d, int fd)
{
    struct watch *w = watch_get(d, fd);

    if (!w)
        return false;
    watch_end(w);
    w->is_ours = true;
    return true;
}

int watch_on_close(void *ctx, curl_socket_t fd)
{
    struct dispatch *d = ctx;
    struct watch *w = d->watches[fd];

    assert(w->is_ours);
    watch_end(w);
    w->is_ours = false;
    w->is_wanted = false;
    return close(fd);
}

/* A socket that cannot be watched, for want of memory, is left to its request's time-out: an error
 * from here would end all the others as well. */
int watch_on_change(CURL *easy, curl_socket_t fd, int what, void *ctx, void *unused)
{
    struct dispatch *d = ctx;
    struct dispatch_slot *s = NULL;
    struct watch *w = watch_get(d, fd);
    short events =
        (short)((what & CURL_POLL_IN ? EV_READ : 0) | (what & CURL_POLL_OUT ? EV_WRITE : 0));

    (void)unused;
    if (!w)
        return 0;
    (void)curl_easy_getinfo(easy, CURLINFO_PRIVATE, &s); /* NULL: libcurl's own handle */
    w->is_wanted = what != CURL_POLL_REMOVE;
    if (w->is_wanted ? w->events == events : w->is_ours && s && s->left_us)
        return 0;
    watch_end(w);
    if (!w->is_wanted)
        return 0;
    (void)event_assign(&w->event, d->base, fd, (short)(events | EV_PERSIST), on_ready, w);
    if (!event_add(&w->event, NULL))
        w->events = events;
    return 0;
}

void watches_fini(struct dispatch *d)
{
    for (size_t fd = 0; fd < d->n_watches; fd++) {
        assert(!d->watches[fd] || !d->watches[fd]->events);
        free(d->watches[fd]);
    }
    free(d->watches);
}
