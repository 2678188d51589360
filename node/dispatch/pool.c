/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that stand, by origin.
 *
 * Each is watched for reading as long as it lives, so a request costs no system call for its watch.
 * An idle one on which something comes is closed: that is its end, or words that nobody asked for.
 * Before one is used again it is looked at once more, since its end may have come in this very turn
 * of the loop. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <event2/event.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/dispatch/plain_internal.h"

#define IDLE_CHECK_S 1

/* ---- Origins -------------------------------------------------------------------------------- */

static bool has_name(const struct plain_origin *o, struct str name)
{
    return strlen(o->name) == name.len && !memcmp(o->name, name.p, name.len);
}

static struct plain_origin *origin_new(struct plain *p, struct str name, uint64_t hash,
                                       struct plain_origin *next)
{
    struct plain_origin *o = calloc(1, sizeof(*o));

    if (!o)
        return NULL;
    o->name = strndup(name.p, name.len);
    o->hash = hash;
    o->next = next;
    TAILQ_INIT(&o->idle);
    TAILQ_INIT(&o->waiting);
    if (!o->name || map64_put(&p->origins, hash, o)) {
        free(o->name);
        free(o);
        return NULL;
    }
    return o;
}

struct plain_origin *origin_get(struct plain *p, struct str name)
{
    uint64_t hash = hash_bytes(name, 0) | 1; /* a key of the map is not 0 */
    struct plain_origin *first = map64_find(&p->origins, hash);

    for (struct plain_origin *o = first; o; o = o->next) {
        if (has_name(o, name))
            return o;
    }
    return origin_new(p, name, hash, first);
}

static void origin_unlink(struct plain *p, const struct plain_origin *o)
{
    struct plain_origin *at = map64_find(&p->origins, o->hash);

    if (at != o) {
        while (at->next != o)
            at = at->next;
        at->next = o->next;
    } else if (!o->next) {
        (void)map64_remove(&p->origins, o->hash);
    } else if (map64_put(&p->origins, o->hash, o->next)) {
        abort(); /* it replaces what is there, which takes no memory */
    }
}

void origin_drop_unused(struct plain *p, struct plain_origin *o)
{
    if (o->n_conns || o->n_held || !TAILQ_EMPTY(&o->waiting))
        return;
    assert(TAILQ_EMPTY(&o->idle));
    origin_unlink(p, o);
    free(o->name);
    free(o);
}

void origin_hold(struct plain_origin *o)
{
    o->n_held++;
}

void origin_release(struct plain *p, struct plain_origin *o)
{
    assert(o->n_held > 0);
    o->n_held--;
    origin_drop_unused(p, o);
}

/* ---- The pool ------------------------------------------------------------------------------- */

static void pool_remove(struct plain_conn *c)
{
    TAILQ_REMOVE(&c->origin->idle, c, link);
    TAILQ_REMOVE(&c->p->idle, c, pool_link);
    c->is_idle = false;
}

bool pool_is_old(const struct plain_conn *c)
{
    return clock_mono() - c->opened_at >= c->p->refresh_ms;
}

bool pool_is_usable(const struct plain_conn *c)
{
    char byte;

    if (pool_is_old(c))
        return false;
    return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

struct plain_conn *pool_take(struct plain_origin *o)
{
    struct plain_conn *c;

    while ((c = TAILQ_FIRST(&o->idle)) && !pool_is_usable(c))
        pool_close(c);
    if (c)
        pool_remove(c);
    return c;
}

bool origin_may_grow(const struct plain *p, const struct plain_origin *o)
{
    return !p->max_per_host || o->n_conns < p->max_per_host;
}

bool pool_has_room(struct plain *p, struct plain_origin *o)
{
    struct plain_conn *c;

    if (!origin_may_grow(p, o))
        return false;
    c = TAILQ_FIRST(&p->idle);
    if (p->n_conns >= p->max_conns && c)
        pool_close(c);
    return p->n_conns < p->max_conns;
}

void pool_count(struct plain *p, struct plain_origin *o)
{
    o->n_conns++;
    p->n_conns++;
}

void pool_discount(struct plain *p, struct plain_origin *o)
{
    assert(o->n_conns > 0 && p->n_conns > 0);
    o->n_conns--;
    p->n_conns--;
    origin_drop_unused(p, o);
}

static void idle_timer_set(struct plain *p)
{
    struct timeval tv = {.tv_sec = IDLE_CHECK_S};

    if (!evtimer_pending(&p->idle_timer, NULL))
        (void)evtimer_add(&p->idle_timer, &tv); /* else they are closed when next looked at */
}

void pool_keep(struct plain_conn *c)
{
    c->call = NULL;
    c->is_idle = true;
    TAILQ_INSERT_HEAD(&c->origin->idle, c, link);
    TAILQ_INSERT_TAIL(&c->p->idle, c, pool_link);
    idle_timer_set(c->p);
}

/* Those that have grown old: they are not used any more, and the service need not keep them. */
static void on_idle_check(evutil_socket_t fd, short events, void *ctx)
{
    struct plain *p = ctx;
    struct plain_conn *next;

    (void)fd;
    (void)events;
    for (struct plain_conn *c = TAILQ_FIRST(&p->idle); c; c = next) {
        next = TAILQ_NEXT(c, pool_link);
        if (pool_is_old(c))
            pool_close(c);
    }
    if (!TAILQ_EMPTY(&p->idle))
        idle_timer_set(p);
}

void pool_init(struct plain *p)
{
    TAILQ_INIT(&p->idle);
    TAILQ_INIT(&p->waiting);
    (void)evtimer_assign(&p->idle_timer, p->d->base, on_idle_check, p); /* cannot fail */
}

void pool_fini(struct plain *p)
{
    struct plain_conn *c;

    while ((c = TAILQ_FIRST(&p->idle)))
        pool_close(c);
    (void)evtimer_del(&p->idle_timer);
    assert(p->origins.n == 0);
    map64_fini(&p->origins);
}

/* ---- Connections ---------------------------------------------------------------------------- */

static void on_readable(evutil_socket_t fd, short events, void *ctx)
{
    struct plain_conn *c = ctx;
    ssize_t len;

    (void)events;
    if (!c->call) {
        pool_close(c);
        return;
    }
    len = recv(fd, c->p->in, sizeof(c->p->in), 0);
    if (len >= 0 || (errno != EAGAIN && errno != EINTR))
        call_read(c->call, len);
}

static void on_writable(evutil_socket_t fd, short events, void *ctx)
{
    struct plain_conn *c = ctx;

    (void)fd;
    (void)events;
    assert(c->call);
    call_writable(c->call);
}

struct plain_conn *pool_open(struct plain *p, struct plain_origin *o, int fd)
{
    struct plain_conn *c = calloc(1, sizeof(*c));

    if (c) {
        c->p = p;
        c->origin = o;
        c->fd = fd;
        c->opened_at = clock_mono();
        (void)event_assign(&c->readable, p->d->base, fd, EV_READ | EV_PERSIST, on_readable, c);
        (void)event_assign(&c->writable, p->d->base, fd, EV_WRITE, on_writable, c);
        if (!event_add(&c->readable, NULL))
            return c;
        free(c);
    }
    (void)close(fd); /* nothing was written to it */
    pool_discount(p, o);
    return NULL;
}

void pool_close(struct plain_conn *c)
{
    if (c->is_idle)
        pool_remove(c);
    (void)event_del(&c->readable); /* these fail for one that was never assigned only */
    (void)event_del(&c->writable);
    (void)close(c->fd); /* what was written is with the kernel */
    pool_discount(c->p, c->origin);
    free(c);
}
