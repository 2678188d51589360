/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the short way share: calls (plain.c), which are requests under way, and
 * connections with the origins that they lead to (pool.c). */
#ifndef JF_DISPATCH_PLAIN_INTERNAL_H
#define JF_DISPATCH_PLAIN_INTERNAL_H

#include <event2/event_struct.h>
#include <sys/queue.h>

#include "common/hash.h"
#include "common/heap.h"
#include "node/dispatch/dispatch_internal.h"
#include "node/dispatch/plain.h"
#include "node/dispatch/reply_internal.h"

#define PLAIN_READ_SIZE (64 * 1024)

struct plain_conn {
    struct plain *p;
    struct plain_origin *origin;
    struct plain_call *call;           /* NULL while idle */
    TAILQ_ENTRY(plain_conn) link;      /* while idle: in the origin's, the last used first */
    TAILQ_ENTRY(plain_conn) pool_link; /* while idle: in the pool's, the first used first */
    struct event readable;             /* added as long as it lives */
    struct event writable;             /* added while a request does not fit */
    int fd;
    bool is_idle; /* in both lists */
    mono_ms opened_at;
};

TAILQ_HEAD(plain_conns, plain_conn);
TAILQ_HEAD(plain_calls, plain_call);

struct plain_origin {
    char *name; /* owned: "host:port" as in the URL */
    uint64_t hash;
    struct plain_origin *next; /* of the same hash */
    struct plain_conns idle;
    struct plain_calls waiting;             /* first come, first served */
    TAILQ_ENTRY(plain_origin) waiting_link; /* while a call waits */
    uint32_t n_conns;                       /* with those that are being opened */
    uint32_t n_held;                        /* by functions that look at it */
};

TAILQ_HEAD(plain_origins, plain_origin);

enum call_state { CALL_NEW, CALL_WAITING, CALL_CONNECTING, CALL_SENT, CALL_ENDED };

struct plain_call {
    struct plain *p;
    struct dispatch_request *r;
    struct plain_origin *origin;
    struct plain_conn *conn; /* while it is sent */
    enum call_state state;
    TAILQ_ENTRY(plain_call) link; /* waiting, sent or idle */
    struct heap_node deadline;    /* while it waits, is sent, or is to end */
    struct buf out;               /* the request's head, and its body if that is short */
    struct str body;              /* the rest of it; borrowed from the request */
    size_t n_written;             /* of both */
    struct reply reply;
    int64_t started_us;
    int64_t left_us; /* 0 = not one byte has left */
    mono_ms heard_at;
    bool is_heard; /* something came since the last look */
    bool is_tried; /* a connection was opened for it */
    char failure[96];
};

struct plain {
    struct dispatch *d;
    struct map64 origins; /* by hash; of those with the same, the first */
    struct plain_conns idle;
    struct plain_origins waiting;
    struct plain_calls sent;
    struct plain_calls spare; /* for the next requests */
    struct heap deadlines;
    struct event timer; /* the first deadline, or earlier */
    struct event idle_timer;
    mono_ms timer_at;
    uint32_t n_conns; /* with those that are being opened */
    uint32_t n_spare;
    uint32_t max_conns;
    uint32_t max_per_host;
    int64_t refresh_ms;
    char in[PLAIN_READ_SIZE];
};

/* ---- pool.c ---- */

/* The origin of that name; made if there is none. NULL when out of memory. */
struct plain_origin *origin_get(struct plain *p, struct str name);
/* Keeps it until origin_release, whatever becomes of its connections. */
void origin_hold(struct plain_origin *o);
void origin_release(struct plain *p, struct plain_origin *o);
/* Forgets it if nothing of it is left. */
void origin_drop_unused(struct plain *p, struct plain_origin *o);

/* An idle connection that may be used, taken out of the pool; NULL if there is none. */
struct plain_conn *pool_take(struct plain_origin *o);
/* Whether one more may be opened; an idle one of another origin is closed for it if need be. */
bool pool_has_room(struct plain *p, struct plain_origin *o);
/* Counts one that is to be opened, and one that is gone. */
void pool_count(struct plain *p, struct plain_origin *o);
void pool_discount(struct plain *p, struct plain_origin *o);
/* A connection out of a descriptor, which it owns from then on, and which was counted. NULL when
 * out of memory; the descriptor is closed and discounted then. */
struct plain_conn *pool_open(struct plain *p, struct plain_origin *o, int fd);
/* Ends it, idle or not; the call, if any, is let go of. Its origin may be gone then. */
void pool_close(struct plain_conn *c);
/* Whether the origin may have one more, whatever all have. */
bool origin_may_grow(const struct plain *p, const struct plain_origin *o);
/* Whether it was opened too long ago to be used again. */
bool pool_is_old(const struct plain_conn *c);
/* Whether nothing has come on it since its last answer, and it is not too old. */
bool pool_is_usable(const struct plain_conn *c);
/* Keeps it for the next request. */
void pool_keep(struct plain_conn *c);
/* Closes what is idle, and forgets the origins. */
void pool_fini(struct plain *p);
void pool_init(struct plain *p);

/* ---- plain.c, called by a connection's events ---- */

void call_writable(struct plain_call *c);
/* len < 0: an error, in errno; 0: the end. */
void call_read(struct plain_call *c, ssize_t len);

#endif
