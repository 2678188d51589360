/* SPDX-License-Identifier: Apache-2.0 */
/* What the http_*.c files share. Not for use outside of them.
 *
 * A connection serves one request at a time:
 *
 *   HEAD ──▶ BODY ──▶ HANDLING ──▶ (WRITING) ──▶ IDLE ──first byte──▶ HEAD
 *                                     └──▶ LINGER ──▶ CLOSED
 *
 * Input that comes while a request is under way is kept (`ahead`, bounded), then not read any more.
 * Each state but HANDLING has a deadline. All entries of one queue wait equally long, so a queue is
 * in order of its deadlines and a sweep looks at its front only.
 *
 * A connection is freed after the loop's pass, never inside a callback of its own; one whose
 * request a handler still has is freed after that request's answer. */
#ifndef JF_API_HTTP_IMPL_H
#define JF_API_HTTP_IMPL_H

#include "node/api/http.h"

#include <http_parser.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/clock.h"
#include "node/api/problem.h"

#define HTTP_READ_SIZE ((size_t)16 * 1024) /* at most this is read ahead of a request's answer */
#define HTTP_BODY_READ_SIZE ((size_t)64 * 1024)
#define HTTP_LINGER_MS 2000
#define HTTP_REFUSE_SLACK 64 /* connections above the limit that are told why before they close */
#define HTTP_VALUE_MAX 160   /* of the header values that matter here */
/* So much of each connection's is not counted: an ordinary request is taken, and answered, while
 * others hold all the memory that there is. */
#define HTTP_UNCOUNTED ((size_t)4096)

struct event;
struct event_base;

enum conn_state {
    CONN_IDLE,
    CONN_HEAD,
    CONN_BODY,
    CONN_HANDLING,
    CONN_WRITING,
    CONN_LINGER,
    CONN_CLOSED,
    CONN_N_STATES
};

/* What comes next behind a request's header; all but the first only in a chunked body. */
enum frame_state {
    FRAME_HEAD_LF,
    FRAME_SIZE,
    FRAME_EXTENSION,
    FRAME_SIZE_LF,
    FRAME_DATA,
    FRAME_DATA_CR,
    FRAME_DATA_LF,
    FRAME_TRAILER
};

/* Of a request's header, what is being read and what was seen. Up to `name` all is zero at first.
 */
struct http_head {
    size_t n_bytes; /* so far; not exact once `done` */
    size_t name_len;
    size_t value_len; /* may be more than fits */
    size_t type_len;
    unsigned n_host;
    unsigned n_length;
    unsigned n_encoding;
    enum frame_state frame;
    size_t chunk_left; /* of the chunk being read */
    char last;         /* byte that was read */
    bool done;
    bool in_value;
    bool is_chunked; /* Transfer-Encoding is just that */
    bool has_expect;
    bool expects_continue;
    bool has_type;
    char name[24]; /* lower case; a longer name is cut */
    char value[HTTP_VALUE_MAX];
    char type[HTTP_VALUE_MAX];
};

struct conn {
    struct http_request req; /* first: a request finds its connection */
    struct http_loop *loop;
    struct conn *next, *prev;           /* in loop->conns or loop->dead */
    struct conn *wait_next, *wait_prev; /* in the queue of the state */
    mono_ms deadline;
    enum conn_state state;
    int fd;
    struct event *readable;
    struct event *writable; /* NULL until it is needed */
    bool reading;           /* `readable` is added */
    bool eof;               /* the other side sends no more */
    bool running;           /* conn_take is on the stack */
    bool busy;              /* the handler has the request */
    bool close_after;       /* the answer under way is the last one */
    bool is_head;
    bool message_done;
    bool faulted;
    enum problem_kind fault;
    const char *fault_text; /* static */
    size_t held;            /* by `body` and `out` */
    size_t charged;         /* of that, of the server's max_memory */
    size_t ahead_pos, out_pos;
    void (*on_end)(void *ctx, bool sent); /* of the answer under way; NULL = nobody asks */
    void *end_ctx;
    struct buf target; /* the request's */
    struct buf body;   /* the request's */
    struct buf ahead;  /* input behind the request under way */
    struct buf out;    /* what the socket did not take yet */
    struct http_head head;
    http_parser parser;
};

struct conn_queue {
    struct conn *first, *last;
};

struct loop_mail {
    struct mail mail;
    struct http_loop *loop;
};

struct http_loop {
    struct http_server *server;
    unsigned index;
    pthread_t thread;
    bool is_started;
    struct event_base *base;
    struct mailbox *mailbox;
    struct event *mail_event;
    struct event *sweep_event;
    struct event *listen_event; /* of loop 0 */
    bool accept_paused;         /* out of descriptors: tried again at the next sweep */
    unsigned next_loop;         /* which one gets the next connection */
    char *scratch;              /* HTTP_BODY_READ_SIZE bytes that one callback uses at a time */
    struct buf head;            /* of the answer being built */
    struct conn *conns;
    struct conn *dead; /* to be freed after this pass */
    struct conn_queue queues[CONN_N_STATES];
    bool has_reclaimed; /* a connection, since the last look */
    mono_ms trim_at;
    uint32_t n_busy; /* requests that the handler has */
    bool is_draining;
    bool is_stopping;
    mono_ms drain_deadline;
    struct loop_mail drain_mail;
    struct loop_mail stop_mail;
    int64_t date_second;
    char date[80]; /* as the Date header has it */
};

struct http_server {
    struct http_config cfg;
    int listen_fd;
    char address[80];
    struct http_loop *loops;
    _Atomic uint32_t n_conns;
    _Atomic uint32_t n_requests; /* that the handler has */
    _Atomic uint32_t n_draining; /* loops */
    _Atomic size_t memory;
    _Atomic bool drain_begun;
    int64_t drain_grace_ms;
};

/* http_conn.c */
void conn_open(struct http_loop *loop, int fd, bool refuse); /* takes fd */
void conn_close(struct conn *c);
void conn_on_deadline(struct conn *c);
bool conn_is_quiet(const struct conn *c); /* between requests, and nothing has come */
void conn_set(struct conn *c, enum conn_state state);
void conn_tell_end(struct conn *c, bool sent); /* to whoever asked about the answer */
void conn_answered(struct conn *c);        /* it went out whole: to the next request, or the end */
void conn_reclaim(struct http_loop *loop); /* frees what has died */
/* Counts n more bytes that the connection holds, against the server's memory as far as they are
 * above HTTP_UNCOUNTED. False when there is no more. Buffers count by what they take up, which
 * growing by doubling makes up to twice of what they hold. */
bool conn_charge(struct conn *c, size_t n);

/* http_parse.c */
void http_parse_begin(struct conn *c);
/* Returns how many bytes were used. Afterwards `message_done` or `faulted` may be set. */
size_t http_parse_feed(struct conn *c, struct str in);
bool http_fault(struct conn *c, enum problem_kind kind, const char *text); /* returns false */

/* http_answer.c */
void http_send(struct conn *c, const struct http_answer *a);
void http_send_fault(struct conn *c);
void http_on_writable(int fd, short what, void *arg);

/* http_loop.c */
MUST_CHECK int http_loop_init(struct http_loop *loop, struct http_server *server, unsigned index);
MUST_CHECK int http_loop_run(struct http_loop *loop);
void http_loop_fini(struct http_loop *loop);

#endif
