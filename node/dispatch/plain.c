/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on the short way.
 *
 * A call stands in the heap of deadlines from its beginning to its end, so nothing can fail for
 * want of memory once it was taken: with NEVER as its key while libcurl, which keeps the time
 * then, connects for it. */
#include "node/dispatch/plain.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <event2/event.h>
#include <sys/socket.h>

#include "node/dispatch/plain_internal.h"

#define SCHEME "http://"
#define SCHEME_LEN (sizeof(SCHEME) - 1)
#define SPARE_MAX 512
#define TURN_MS 20 /* connecting for each turn would cost more than the request */
#define NEVER INT64_MAX
#define OUT_KEEP_MAX 16384
#define BODY_COPY_MAX 8192 /* above that, copying costs more than a second piece */

/* ---- URLs ----------------------------------------------------------------------------------- */

/* What a name or an address has; all else, as user parts and other scripts, libcurl knows better.
 */
static bool is_origin_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr(".-:[]_", c));
}

static bool is_path_char(char c)
{
    return (unsigned char)c > ' ' && c != 0x7F && c != '#';
}

bool plain_split(const char *url, struct plain_target *ret)
{
    const char *at = url + SCHEME_LEN;

    if (strncmp(url, SCHEME, SCHEME_LEN) != 0)
        return false;
    ret->origin.p = at;
    while (is_origin_char(*at))
        at++;
    ret->origin.len = (size_t)(at - ret->origin.p);
    ret->path.p = at;
    while (is_path_char(*at))
        at++;
    ret->path.len = (size_t)(at - ret->path.p);
    return ret->origin.len > 0 && !*at && (!ret->path.len || *ret->path.p == '/');
}

/* ---- Calls ---------------------------------------------------------------------------------- */

static void call_free(struct plain_call *c)
{
    buf_fini(&c->out);
    reply_fini(&c->reply);
    free(c);
}

static struct plain_call *call_take(struct plain *p)
{
    struct plain_call *c = TAILQ_FIRST(&p->spare);

    if (!c)
        return calloc(1, sizeof(*c));
    TAILQ_REMOVE(&p->spare, c, link);
    p->n_spare--;
    return c;
}

static void call_put(struct plain *p, struct plain_call *c)
{
    if (p->n_spare >= SPARE_MAX) {
        call_free(c);
        return;
    }
    if (c->out.cap > OUT_KEEP_MAX)
        buf_fini(&c->out);
    if (c->reply.body.cap > REPLY_KEEP_MAX)
        buf_fini(&c->reply.body);
    TAILQ_INSERT_HEAD(&p->spare, c, link);
    p->n_spare++;
}

static void set_failure(struct plain_call *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void set_failure(struct plain_call *c, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(c->failure, sizeof(c->failure), fmt, args);
    va_end(args);
    c->r->answer = (struct answer){.sent = true, .failure = str_from(c->failure)};
    c->r->is_unsent = !c->left_us;
}

static bool is_past_fence(const struct plain_call *c)
{
    return clock_mono() >= c->r->send_by;
}

static void set_fenced(struct plain_call *c)
{
    if (c->is_tried) { /* given back, it would fare the same for ever */
        set_failure(c, "no connection stood in time for its claim");
        return;
    }
    set_failure(c, "too late to be sent within its claim");
    c->r->answer.sent = false;
    c->r->is_unsent = false;
}

static mono_ms deadline_of(const struct plain_call *c)
{
    return c->started_us / 1000 + c->r->timeout_ms;
}

static void timer_set(struct plain *p)
{
    struct heap_node *first = heap_first(&p->deadlines);
    mono_ms now = clock_mono();
    int64_t ms;

    /* Early enough, it looks again when it comes. But libevent's clock stands still while the
     * machine sleeps, and ours does not. */
    if (!first || (first->key >= p->timer_at && p->timer_at >= now - DISPATCH_OVERDUE_MS))
        return;
    if (first->key == NEVER)
        return;
    ms = first->key > now ? first->key - now : 0;
    p->timer_at = first->key;
    dispatch_timer_set(&p->timer, ms);
}

static void call_move(struct plain_call *c, enum call_state state, mono_ms deadline)
{
    c->state = state;
    heap_move(&c->p->deadlines, &c->deadline, deadline);
    timer_set(c->p);
}

/* Gives the request back; what became of it stands in its answer. The call leads to no connection
 * and waits for none. */
static void call_end(struct plain_call *c)
{
    struct plain *p = c->p;
    struct dispatch_request *r = c->r;
    int64_t since = c->left_us ? c->left_us : c->started_us;

    assert(!c->conn && c->state != CALL_WAITING);
    heap_remove(&p->deadlines, &c->deadline);
    r->elapsed_us = clock_mono_us() - since;
    dispatch_ended(p->d, r); /* r may be gone now */
    call_put(p, c);
}

/* The same, but from the timer. A millisecond later, so that it is not met by the timer's present
 * round, which might then never end. */
static void call_end_soon(struct plain_call *c)
{
    call_move(c, CALL_ENDED, clock_mono() + 1);
}

/* ---- Sending -------------------------------------------------------------------------------- */

static int put_request(struct plain_call *c, struct str origin, struct str path)
{
    static const struct str default_port = {":80", 3};
    const struct dispatch_request *r = c->r;
    struct buf *b = &c->out;

    if (origin.len > default_port.len &&
        !memcmp(origin.p + origin.len - default_port.len, default_port.p, default_port.len))
        origin.len -= default_port.len;
    buf_clear(b);
    buf_adds(b, STR("POST "));
    buf_adds(b, path.len ? path : STR("/"));
    buf_adds(b, STR(" HTTP/1.1\r\nHost: "));
    buf_adds(b, origin);
    for (size_t i = 0; i < r->n_headers; i++) {
        buf_adds(b, STR("\r\n"));
        buf_addz(b, r->headers[i]);
    }
    buf_adds(b, STR("\r\nContent-Length: "));
    buf_addi(b, (int64_t)r->body.len);
    buf_adds(b, STR("\r\n\r\n"));
    c->body = r->body;
    if (r->body.len <= BODY_COPY_MAX) {
        buf_adds(b, r->body);
        c->body.len = 0;
    }
    return buf_ok(b) ? 0 : ERR_NOMEM;
}

static bool is_written(const struct plain_call *c)
{
    return c->n_written == c->out.len + c->body.len;
}

static ssize_t write_some(const struct plain_call *c)
{
    size_t n_body = c->n_written > c->out.len ? c->n_written - c->out.len : 0;
    size_t n_out = c->n_written - n_body;
    struct iovec parts[2] = {{c->out.data + n_out, c->out.len - n_out},
                             {(char *)c->body.p + n_body, c->body.len - n_body}};
    struct msghdr msg = {.msg_iov = parts, .msg_iovlen = c->body.len ? 2 : 1};

    return sendmsg(c->conn->fd, &msg, MSG_NOSIGNAL);
}

/* On a connection that is broken there may still be an answer to read, so that side says what
 * became of the request. */
static void call_write(struct plain_call *c)
{
    while (!is_written(c)) {
        ssize_t n = write_some(c);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM))
            (void)event_add(&c->conn->writable, NULL); /* else the time-out ends it */
        if (n < 0)
            return;
        c->n_written += (size_t)n;
    }
}

/* On a connection that stands. The fence is looked at right before the first byte leaves. */
static void call_send(struct plain_call *c, struct plain_conn *conn)
{
    struct plain *p = c->p;

    c->conn = conn;
    conn->call = c;
    c->left_us = clock_mono_us();
    c->heard_at = c->left_us / 1000;
    c->is_heard = false;
    TAILQ_INSERT_TAIL(&p->sent, c, link);
    call_move(c, CALL_SENT, deadline_of(c));
    call_write(c);
}

static void wait_remove(struct plain_call *c)
{
    struct plain_origin *o = c->origin;

    TAILQ_REMOVE(&o->waiting, c, link);
    TAILQ_REMOVE(&c->p->waiting, o, waiting_link);
    if (!TAILQ_EMPTY(&o->waiting)) /* at the end: the origins take turns */
        TAILQ_INSERT_TAIL(&c->p->waiting, o, waiting_link);
    c->state = CALL_NEW;
}

static void wait_add(struct plain_call *c)
{
    struct plain_origin *o = c->origin;
    mono_ms deadline = deadline_of(c);

    if (TAILQ_EMPTY(&o->waiting))
        TAILQ_INSERT_TAIL(&c->p->waiting, o, waiting_link);
    TAILQ_INSERT_TAIL(&o->waiting, c, link);
    call_move(c, CALL_WAITING, c->r->send_by < deadline ? c->r->send_by : deadline);
}

static int call_connect(struct plain_call *c)
{
    int64_t left_ms = deadline_of(c) - clock_mono();
    int rc;

    pool_count(c->p, c->origin);
    call_move(c, CALL_CONNECTING, NEVER);
    rc = dispatch_by_libcurl(c->p->d, c->r, c, left_ms);
    if (rc)
        pool_discount(c->p, c->origin);
    return rc;
}

/* The first in line that is not too late; NULL when nobody waits. */
static struct plain_call *next_waiting(struct plain_origin *o)
{
    struct plain_call *c;

    while ((c = TAILQ_FIRST(&o->waiting))) {
        wait_remove(c);
        if (!is_past_fence(c))
            return c;
        set_fenced(c);
        call_end_soon(c);
    }
    return NULL;
}

/* Opens connections for those in line as far as there is room. */
static void serve_waiting(struct plain *p)
{
    struct plain_origin *next;

    for (struct plain_origin *o = TAILQ_FIRST(&p->waiting); o; o = next) {
        struct plain_call *c = NULL;

        next = TAILQ_NEXT(o, waiting_link);
        origin_hold(o);
        while (pool_has_room(p, o) && (c = next_waiting(o))) {
            if (call_connect(c)) {
                set_failure(c, "out of memory");
                call_end_soon(c);
            }
        }
        origin_release(p, o);
    }
}

/* Whether another origin has been in line for so long, and could open a connection in the place of
 * this one, that a busy origin must not keep it. */
static bool must_give_way(const struct plain_conn *conn)
{
    const struct plain *p = conn->p;
    mono_ms since = clock_mono() - TURN_MS;
    struct plain_origin *o;

    if (p->n_conns < p->max_conns)
        return false;
    TAILQ_FOREACH(o, &p->waiting, waiting_link)
    {
        if (o != conn->origin && TAILQ_FIRST(&o->waiting)->started_us / 1000 <= since &&
            origin_may_grow(p, o))
            return true;
    }
    return false;
}

/* A connection has become free. */
static void conn_next(struct plain_conn *conn)
{
    struct plain *p = conn->p;
    struct plain_call *c = NULL;

    if (TAILQ_EMPTY(&p->waiting)) {
        pool_keep(conn);
        return;
    }
    if (!pool_is_usable(conn) || must_give_way(conn))
        pool_close(conn);
    else if ((c = next_waiting(conn->origin)))
        call_send(c, conn);
    else
        pool_keep(conn);
    serve_waiting(p);
}

/* ---- Answers -------------------------------------------------------------------------------- */

/* Parts the call from its connection, which is used again or ends. */
static void call_part(struct plain_call *c, bool keep)
{
    struct plain_conn *conn = c->conn;
    struct plain *p = c->p;

    TAILQ_REMOVE(&p->sent, c, link);
    c->state = CALL_ENDED;
    c->conn = NULL;
    if (keep && !pool_is_old(conn)) {
        conn_next(conn);
        return;
    }
    pool_close(conn);
    serve_waiting(p);
}

static void call_answered(struct plain_call *c, bool keep)
{
    struct answer *a = &c->r->answer;
    const struct reply *reply = &c->reply;

    *a = (struct answer){.sent = true, .http_status = (int32_t)reply->parser.status_code};
    a->body = buf_str(&reply->body);
    a->body_cut = reply->is_cut;
    if (reply->has_retry_after)
        a->retry_after = (struct str){reply->retry_after, reply->retry_after_len};
    c->r->is_unsent = false;
    call_part(c, keep);
    call_end(c);
}

static void call_failed(struct plain_call *c)
{
    call_part(c, false);
    call_end(c);
}

/* error: 0 = the connection was ended in order. */
static void call_read_end(struct plain_call *c, int error)
{
    const char *when =
        reply_is_empty(&c->reply) ? "before an answer came" : "in the middle of the answer";

    if (error) {
        set_failure(c, "the connection broke %s: %s", when, strerror(error));
    } else if (reply_is_empty(&c->reply)) {
        set_failure(c, "the connection broke %s", when);
    } else if (reply_end(&c->reply) == REPLY_DONE) {
        call_answered(c, false);
        return;
    } else {
        set_failure(c, "%s", c->reply.failure);
    }
    call_failed(c);
}

void call_read(struct plain_call *c, ssize_t len)
{
    size_t used = 0;

    if (len <= 0) {
        call_read_end(c, len < 0 ? errno : 0);
        return;
    }
    c->is_heard = true;
    switch (reply_feed(&c->reply, (struct str){c->p->in, (size_t)len}, &used)) {
    case REPLY_MORE:
        return;
    case REPLY_DONE:
        /* More than the answer is what nobody asked for: the next request would take it for its
         * own. */
        call_answered(c, c->reply.keep_alive && used == (size_t)len && is_written(c));
        return;
    case REPLY_BAD:
        set_failure(c, "%s", c->reply.failure);
        call_failed(c);
        return;
    }
}

/* ---- Time ----------------------------------------------------------------------------------- */

static struct plain_call *call_of(struct heap_node *node)
{
    return (struct plain_call *)((char *)node - offsetof(struct plain_call, deadline));
}

static void call_timed_out(struct plain_call *c)
{
    long long ms = (long long)c->r->timeout_ms;

    if (c->state == CALL_WAITING) {
        struct plain_origin *o = c->origin;

        wait_remove(c);
        set_failure(c, "timed out after %lld ms in line for a connection", ms);
        c->r->is_unsent = false; /* that says nothing about the service */
        if (is_past_fence(c))
            set_fenced(c);
        origin_drop_unused(c->p, o);
        call_end(c);
        return;
    }
    assert(c->state == CALL_SENT);
    set_failure(c, "timed out after %lld ms %s", ms,
                c->reply.is_begun ? "in the middle of the answer" : "without an answer");
    call_failed(c);
}

static void on_timer(evutil_socket_t fd, short events, void *ctx)
{
    struct plain *p = ctx;
    mono_ms now = clock_mono();
    struct heap_node *first;

    (void)fd;
    (void)events;
    p->timer_at = NEVER;
    while ((first = heap_first(&p->deadlines)) && first->key <= now) {
        struct plain_call *c = call_of(first);

        if (c->state == CALL_ENDED)
            call_end(c);
        else
            call_timed_out(c);
    }
    timer_set(p);
}

/* When the request did not fit behind the one before, its first byte leaves here. */
void call_writable(struct plain_call *c)
{
    if (c->n_written || !is_past_fence(c)) {
        call_write(c);
        return;
    }
    c->left_us = 0;
    set_fenced(c);
    call_failed(c);
}

void plain_check_stalls(struct plain *p, mono_ms now)
{
    struct plain_call *next;

    for (struct plain_call *c = TAILQ_FIRST(&p->sent); c; c = next) {
        next = TAILQ_NEXT(c, link);
        if (c->is_heard) {
            c->heard_at = now;
            c->is_heard = false;
        } else if (c->reply.is_begun && now - c->heard_at >= p->d->low_speed_ms) {
            set_failure(c, "the answer stood still for %lld ms", (long long)(now - c->heard_at));
            call_failed(c);
        }
    }
}

/* ---- Beginning and end ---------------------------------------------------------------------- */

/* On its way, in line, or about to end. */
static int call_begin(struct plain_call *c)
{
    struct plain *p = c->p;
    struct plain_origin *o = c->origin;
    struct plain_conn *conn;
    int rc = 0;

    origin_hold(o);
    if (is_past_fence(c)) {
        set_fenced(c);
        call_end_soon(c);
    } else if ((conn = pool_take(o))) {
        call_send(c, conn);
    } else if (pool_has_room(p, o)) {
        rc = call_connect(c);
    } else {
        wait_add(c);
    }
    origin_release(p, o);
    return rc;
}

int plain_start(struct plain *p, struct dispatch_request *r, const struct plain_target *to)
{
    struct plain_call *c = call_take(p);

    if (!c)
        return ERR_NOMEM;
    c->p = p;
    c->r = r;
    c->state = CALL_NEW;
    c->n_written = 0;
    c->left_us = 0;
    c->is_tried = false;
    c->started_us = clock_mono_us();
    reply_begin(&c->reply, r->max_answer ? r->max_answer : p->d->max_answer);
    c->origin = put_request(c, to->origin, to->path) ? NULL : origin_get(p, to->origin);
    if (!c->origin) {
        call_put(p, c);
        return ERR_NOMEM;
    }
    if (heap_add(&p->deadlines, &c->deadline, NEVER)) {
        origin_drop_unused(p, c->origin);
        call_put(p, c);
        return ERR_NOMEM;
    }
    if (call_begin(c)) {
        heap_remove(&p->deadlines, &c->deadline);
        call_put(p, c);
        return ERR_NOMEM;
    }
    return 0;
}

void plain_connected(struct plain_call *c, int fd)
{
    struct plain_conn *conn = pool_open(c->p, c->origin, fd);

    c->is_tried = true;
    c->state = CALL_ENDED;
    if (!conn) {
        set_failure(c, "out of memory");
        serve_waiting(c->p);
    } else if (is_past_fence(c)) {
        set_fenced(c);
        conn_next(conn);
    } else {
        call_send(c, conn);
        return;
    }
    call_end(c);
}

void plain_unconnected(struct plain_call *c)
{
    struct plain *p = c->p;

    c->state = CALL_ENDED;
    pool_discount(p, c->origin);
    serve_waiting(p);
    call_end(c);
}

struct plain *plain_new(struct dispatch *d, const struct dispatch_config *cfg)
{
    struct plain *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    p->d = d;
    p->max_conns = cfg->max_connections;
    p->max_per_host = cfg->max_per_host;
    p->refresh_ms = cfg->refresh_ms;
    p->timer_at = NEVER;
    TAILQ_INIT(&p->sent);
    TAILQ_INIT(&p->spare);
    pool_init(p);
    (void)evtimer_assign(&p->timer, d->base, on_timer, p); /* fails for a wrong event type only */
    return p;
}

static void call_forget(struct plain_call *c)
{
    struct plain *p = c->p;

    heap_remove(&p->deadlines, &c->deadline);
    if (c->state == CALL_WAITING) {
        wait_remove(c);
        origin_drop_unused(p, c->origin);
    } else if (c->state == CALL_CONNECTING) {
        pool_discount(p, c->origin);
    } else if (c->state == CALL_SENT) {
        pool_close(c->conn);
    }
    call_free(c);
}

void plain_free(struct plain *p)
{
    struct heap_node *first;
    struct plain_call *c;

    if (!p)
        return;
    while ((first = heap_first(&p->deadlines)))
        call_forget(call_of(first));
    while ((c = TAILQ_FIRST(&p->spare))) {
        TAILQ_REMOVE(&p->spare, c, link);
        call_free(c);
    }
    heap_fini(&p->deadlines);
    pool_fini(p);
    (void)evtimer_del(&p->timer);
    free(p);
}
