/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a connection. It stays registered for reading while a request is under way, since
 * most clients send nothing meanwhile and two system calls a request are saved; what does come is
 * kept up to a limit, then the registration ends until the answer is out. */
#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/api/http_impl.h"

#define BIT(state) (1u << (state))
static const unsigned next_states[CONN_N_STATES] = {
    [CONN_IDLE] = BIT(CONN_HEAD) | BIT(CONN_CLOSED),
    [CONN_HEAD] = BIT(CONN_BODY) | BIT(CONN_HANDLING) | BIT(CONN_WRITING) | BIT(CONN_LINGER) |
                  BIT(CONN_CLOSED),
    [CONN_BODY] = BIT(CONN_HANDLING) | BIT(CONN_WRITING) | BIT(CONN_LINGER) | BIT(CONN_CLOSED),
    [CONN_HANDLING] = BIT(CONN_WRITING) | BIT(CONN_IDLE) | BIT(CONN_LINGER) | BIT(CONN_CLOSED),
    [CONN_WRITING] = BIT(CONN_IDLE) | BIT(CONN_LINGER) | BIT(CONN_CLOSED),
    [CONN_LINGER] = BIT(CONN_CLOSED),
    [CONN_CLOSED] = 0,
};

static int64_t state_timeout(const struct http_config *cfg, enum conn_state state)
{
    switch (state) {
    case CONN_IDLE:
        return cfg->idle_timeout_ms;
    case CONN_HEAD:
        return cfg->header_timeout_ms;
    case CONN_BODY:
        return cfg->body_timeout_ms;
    case CONN_WRITING:
        return cfg->write_timeout_ms;
    default:
        return HTTP_LINGER_MS;
    }
}

static void queue_remove(struct conn_queue *q, struct conn *c)
{
    *(c->wait_prev ? &c->wait_prev->wait_next : &q->first) = c->wait_next;
    *(c->wait_next ? &c->wait_next->wait_prev : &q->last) = c->wait_prev;
}

static void queue_append(struct conn_queue *q, struct conn *c)
{
    c->wait_next = NULL;
    c->wait_prev = q->last;
    *(q->last ? &q->last->wait_next : &q->first) = c;
    q->last = c;
}

static void wait_in(struct conn *c, enum conn_state state)
{
    c->state = state;
    c->deadline = clock_mono() + state_timeout(&c->loop->server->cfg, state);
    queue_append(&c->loop->queues[state], c);
}

void conn_set(struct conn *c, enum conn_state state)
{
    assert(next_states[c->state] & BIT(state));
    queue_remove(&c->loop->queues[c->state], c);
    wait_in(c, state);
}

bool conn_charge(struct conn *c, size_t n)
{
    struct http_server *s = c->loop->server;
    size_t held = c->held + n;
    size_t more = held > HTTP_UNCOUNTED ? held - HTTP_UNCOUNTED - c->charged : 0;
    if (more > 0) {
        size_t before = atomic_fetch_add_explicit(&s->memory, more, memory_order_relaxed);
        if (before + more > s->cfg.max_memory) {
            atomic_fetch_sub_explicit(&s->memory, more, memory_order_relaxed);
            return false;
        }
    }
    c->held = held;
    c->charged += more;
    return true;
}

static void uncharge(struct conn *c)
{
    if (c->charged > 0)
        atomic_fetch_sub_explicit(&c->loop->server->memory, c->charged, memory_order_relaxed);
    c->held = c->charged = 0;
}

/* ---- The end ----------------------------------------------------------------------------- */

static void bury(struct conn *c)
{
    struct http_loop *loop = c->loop;
    *(c->prev ? &c->prev->next : &loop->conns) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->next = loop->dead;
    loop->dead = c;
}

/* Whoever has the request hears that nobody waits for its answer any more. */
static void tell_hangup(struct conn *c)
{
    void (*on_hangup)(struct http_request * req) = c->req.on_hangup;

    c->req.on_hangup = NULL;
    if (c->busy && on_hangup)
        on_hangup(&c->req);
}

void conn_tell_end(struct conn *c, bool sent)
{
    void (*on_end)(void *ctx, bool sent) = c->on_end;

    c->on_end = NULL;
    if (on_end)
        on_end(c->end_ctx, sent);
}

void conn_close(struct conn *c)
{
    tell_hangup(c);
    conn_tell_end(c, false);
    if (c->state != CONN_CLOSED) {
        conn_set(c, CONN_CLOSED);
        if (c->readable)
            event_free(c->readable);
        if (c->writable)
            event_free(c->writable);
        c->readable = c->writable = NULL;
        close(c->fd);
        c->fd = -1;
        atomic_fetch_sub(&c->loop->server->n_conns, 1);
    }
    if (!c->busy)
        bury(c);
}

void conn_reclaim(struct http_loop *loop)
{
    loop->has_reclaimed |= loop->dead != NULL;
    while (loop->dead) {
        struct conn *c = loop->dead;
        loop->dead = c->next;
        queue_remove(&loop->queues[CONN_CLOSED], c);
        uncharge(c);
        buf_fini(&c->target);
        buf_fini(&c->body);
        buf_fini(&c->ahead);
        buf_fini(&c->out);
        free(c);
    }
}

/* No more answers. While the other side still sends, closing would reset the connection, and the
 * last answer could be lost with it; so this side stops sending first. */
static void conn_finish(struct conn *c)
{
    bool has_more = c->faulted || c->ahead.len > c->ahead_pos;
    if (!has_more || c->eof || shutdown(c->fd, SHUT_WR) != 0) {
        conn_close(c);
        return;
    }
    if (!c->reading && event_add(c->readable, NULL) != 0) {
        conn_close(c);
        return;
    }
    c->reading = true;
    conn_set(c, CONN_LINGER);
}

/* ---- Input ------------------------------------------------------------------------------- */

static bool wants_input(const struct conn *c)
{
    return c->state == CONN_IDLE || c->state == CONN_HEAD || c->state == CONN_BODY;
}

static void hand_over(struct conn *c)
{
    struct http_server *s = c->loop->server;
    conn_set(c, CONN_HANDLING);
    c->req.loop = c->loop->index;
    c->req.mailbox = c->loop->mailbox;
    c->req.on_hangup = NULL;
    c->busy = true;
    c->loop->n_busy++;
    atomic_fetch_add(&s->n_requests, 1);
    s->cfg.handler(s->cfg.ctx, &c->req);
}

/* Feeds input to the parser until a request is under way or the connection ends. Returns how much
 * was used. */
static size_t conn_take(struct conn *c, struct str in)
{
    size_t total = in.len;
    assert(!c->running);
    c->running = true;
    while (in.len > 0 && wants_input(c)) {
        if (c->state == CONN_IDLE)
            conn_set(c, CONN_HEAD);
        size_t used = http_parse_feed(c, in);
        in.p += used;
        in.len -= used;
        if (c->faulted)
            http_send_fault(c);
        else if (c->message_done)
            hand_over(c);
        else if (c->head.done && c->state == CONN_HEAD)
            conn_set(c, CONN_BODY);
    }
    c->running = false;
    return total - in.len;
}

static bool is_between_requests(const struct conn *c)
{
    return c->state == CONN_IDLE || (c->state == CONN_HEAD && c->head.n_bytes == 0);
}

bool conn_is_quiet(const struct conn *c)
{
    char byte;
    return is_between_requests(c) && recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

static void end_of_input(struct conn *c)
{
    if (!wants_input(c))
        return;
    if (is_between_requests(c)) {
        conn_close(c);
        return;
    }
    http_fault(c, PROBLEM_BAD_REQUEST, "the request ends early");
    http_send_fault(c);
}

/* Goes on with the input that came while a request was under way. */
static void conn_resume(struct conn *c)
{
    if (c->ahead.len > c->ahead_pos) {
        struct str in = {c->ahead.data + c->ahead_pos, c->ahead.len - c->ahead_pos};
        c->ahead_pos += conn_take(c, in);
        if (c->ahead_pos == c->ahead.len) {
            buf_fini(&c->ahead);
            c->ahead_pos = 0;
        }
    }
    if (!wants_input(c))
        return;
    if (c->eof) {
        end_of_input(c);
    } else if (!c->reading) {
        if (event_add(c->readable, NULL) != 0)
            conn_close(c);
        else
            c->reading = true;
    }
}

void conn_answered(struct conn *c)
{
    conn_tell_end(c, true);
    if (c->close_after) {
        /* It may linger: what is not charged any more must not stay either. */
        buf_fini(&c->body);
        uncharge(c);
        conn_finish(c);
        return;
    }
    conn_set(c, CONN_IDLE);
    http_parse_begin(c);
    uncharge(c);
    if (!c->running)
        conn_resume(c);
}

static void stop_reading(struct conn *c)
{
    event_del(c->readable);
    c->reading = false;
}

static bool keep_ahead(struct conn *c, struct str rest)
{
    if (c->ahead_pos > 0) {
        c->ahead.len -= c->ahead_pos;
        memmove(c->ahead.data, c->ahead.data + c->ahead_pos, c->ahead.len);
        c->ahead_pos = 0;
    }
    buf_adds(&c->ahead, rest);
    return buf_ok(&c->ahead);
}

/* How much may be read now: of a body with a known length never more than it still lacks, so
 * that what is left over is always small. */
static size_t read_room(const struct conn *c)
{
    if (c->state == CONN_LINGER)
        return HTTP_BODY_READ_SIZE;
    if (c->state == CONN_BODY && c->head.n_length > 0 && c->parser.content_length > HTTP_READ_SIZE)
        return c->parser.content_length < HTTP_BODY_READ_SIZE ? (size_t)c->parser.content_length
                                                              : HTTP_BODY_READ_SIZE;
    if (wants_input(c))
        return HTTP_READ_SIZE;
    size_t kept = c->ahead.len - c->ahead_pos;
    return kept < HTTP_READ_SIZE ? HTTP_READ_SIZE - kept : 0;
}

static void on_input(struct conn *c, struct str in)
{
    size_t used = 0;
    if (c->state == CONN_LINGER)
        return;
    if (wants_input(c))
        used = conn_take(c, in);
    if (used == in.len || c->state == CONN_CLOSED || c->state == CONN_LINGER || c->close_after)
        return;
    if (!keep_ahead(c, (struct str){in.p + used, in.len - used}))
        conn_close(c);
}

static void on_readable(int fd, short what, void *arg)
{
    struct conn *c = arg;
    (void)what;
    size_t room = read_room(c);
    if (room == 0) {
        stop_reading(c);
        return;
    }
    ssize_t n = recv(fd, c->loop->scratch, room, MSG_DONTWAIT);
    if (n > 0) {
        on_input(c, (struct str){c->loop->scratch, (size_t)n});
    } else if (n == 0) {
        c->eof = true;
        stop_reading(c);
        if (c->state == CONN_LINGER)
            conn_close(c);
        else if (c->busy)
            tell_hangup(c);
        else
            end_of_input(c);
    } else if (errno != EAGAIN && errno != EINTR) {
        conn_close(c);
    }
}

/* What the other side does not read would stay in the kernel's buffers for minutes, megabytes of
 * it, if the connection ended in order. */
static void conn_reset(struct conn *c)
{
    const struct linger at_once = {.l_onoff = 1};
    (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)); /* only later then */
    conn_close(c);
}

void conn_on_deadline(struct conn *c)
{
    if (c->state == CONN_WRITING) {
        conn_reset(c);
    } else if (wants_input(c) && !is_between_requests(c)) {
        http_fault(c, PROBLEM_REQUEST_TIMEOUT, "the request was not complete in time");
        http_send_fault(c);
    } else {
        conn_close(c);
    }
}

/* ---- The beginning ----------------------------------------------------------------------- */

void conn_open(struct http_loop *loop, int fd, bool refuse)
{
    struct conn *c = calloc(1, sizeof(*c));
    struct event *readable =
        c ? event_new(loop->base, fd, EV_READ | EV_PERSIST, on_readable, c) : NULL;
    if (!readable || event_add(readable, NULL) != 0) {
        if (readable)
            event_free(readable);
        free(c);
        close(fd);
        atomic_fetch_sub(&loop->server->n_conns, 1);
        return;
    }
    c->loop = loop;
    c->fd = fd;
    c->readable = readable;
    c->reading = true;
    c->next = loop->conns;
    if (c->next)
        c->next->prev = c;
    loop->conns = c;
    http_parse_begin(c);
    wait_in(c, CONN_HEAD);
    if (refuse) {
        http_fault(c, PROBLEM_OVERLOADED, "this server has as many connections as it may");
        http_send_fault(c);
    }
}
