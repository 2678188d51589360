/* SPDX-License-Identifier: Apache-2.0 */
/* One thread's event loop: its connections, its mailbox, the sweep over deadlines. Loop 0 also
 * accepts for all and deals the connections out in turn: one listening socket, without
 * SO_REUSEPORT, so that a second process on the same port fails to start instead of taking half the
 * requests. */
#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/api/http_impl.h"

#define ACCEPTS_PER_PASS 64
#define SWEEP_MS 100
#define TRIM_MS 5000 /* between two looks for memory that may go back */
#define TRIM_BYTES ((size_t)16 * 1024 * 1024)

struct handover {
    struct mail mail;
    struct http_loop *loop;
    int fd;
    bool refuse;
};

static void on_handover(struct mail *m)
{
    struct handover *h = (struct handover *)m;
    conn_open(h->loop, h->fd, h->refuse);
    free(h);
}

/* Gives a connection to the next loop in turn. */
static void deal(struct http_loop *acceptor, int fd, bool refuse)
{
    struct http_server *s = acceptor->server;
    struct http_loop *loop = &s->loops[acceptor->next_loop];
    acceptor->next_loop = (acceptor->next_loop + 1) % s->cfg.threads;
    if (loop == acceptor) {
        conn_open(loop, fd, refuse);
        return;
    }
    struct handover *h = malloc(sizeof(*h));
    if (!h) {
        close(fd);
        atomic_fetch_sub(&s->n_conns, 1);
        return;
    }
    *h = (struct handover){
        .mail.on_delivery = on_handover, .loop = loop, .fd = fd, .refuse = refuse};
    mailbox_post(loop->mailbox, &h->mail);
}

/* Returns false when there is nothing more to accept now. */
static bool accept_one(struct http_loop *loop)
{
    struct http_server *s = loop->server;
    int fd = accept4(s->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            event_del(loop->listen_event);
            loop->accept_paused = true;
        }
        return errno == ECONNABORTED || errno == EINTR;
    }
    uint32_t n = atomic_fetch_add(&s->n_conns, 1);
    if (n >= s->cfg.max_connections && n - s->cfg.max_connections >= HTTP_REFUSE_SLACK) {
        close(fd);
        atomic_fetch_sub(&s->n_conns, 1);
        return true;
    }
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* only slower without */
    deal(loop, fd, n >= s->cfg.max_connections);
    return true;
}

static void on_acceptable(int fd, short what, void *arg)
{
    struct http_loop *loop = arg;
    (void)fd;
    (void)what;
    for (int i = 0; i < ACCEPTS_PER_PASS; i++) {
        if (!accept_one(loop))
            return;
    }
}

static void on_mail(int fd, short what, void *arg)
{
    struct http_loop *loop = arg;
    (void)fd;
    (void)what;
    mailbox_deliver(loop->mailbox);
}

static void close_all(struct http_loop *loop)
{
    for (struct conn *c = loop->conns, *next; c; c = next) {
        next = c->next;
        if (c->state != CONN_CLOSED)
            conn_close(c);
    }
}

static void sweep(struct http_loop *loop, mono_ms now)
{
    for (enum conn_state state = 0; state < CONN_N_STATES; state++) {
        struct conn_queue *q = &loop->queues[state];
        if (state == CONN_HANDLING || state == CONN_CLOSED)
            continue;
        while (q->first && q->first->deadline <= now)
            conn_on_deadline(q->first);
    }
}

/* What clients took lies free between blocks that live on, and the allocator keeps it until it is
 * asked. One loop asks for all, and only when connections have gone. */
static void give_memory_back(struct http_loop *loop, mono_ms now)
{
    if (loop->index > 0 || !loop->has_reclaimed || now < loop->trim_at)
        return;
    loop->has_reclaimed = false;
    loop->trim_at = now + TRIM_MS;
    if (mallinfo2().fordblks > TRIM_BYTES)
        (void)malloc_trim(0); /* says only whether there was any */
}

static void on_sweep(int fd, short what, void *arg)
{
    struct http_loop *loop = arg;
    (void)fd;
    (void)what;
    mono_ms now = clock_mono();
    sweep(loop, now);
    give_memory_back(loop, now);
    if (loop->is_draining && now >= loop->drain_deadline)
        close_all(loop);
    if (loop->accept_paused && loop->listen_event) {
        loop->accept_paused = event_add(loop->listen_event, NULL) != 0;
    }
}

static void close_quiet(const struct conn_queue *q)
{
    for (struct conn *c = q->first, *next; c; c = next) {
        next = c->wait_next;
        if (conn_is_quiet(c))
            conn_close(c);
    }
}

static void on_drain(struct mail *m)
{
    struct http_loop *loop = ((struct loop_mail *)m)->loop;
    loop->is_draining = true;
    loop->drain_deadline = clock_mono() + loop->server->drain_grace_ms;
    if (loop->listen_event) {
        on_acceptable(loop->server->listen_fd, 0, loop); /* they would be reset otherwise */
        event_free(loop->listen_event);
        loop->listen_event = NULL;
        close(loop->server->listen_fd);
        loop->server->listen_fd = -1;
    }
    close_quiet(&loop->queues[CONN_IDLE]);
    close_quiet(&loop->queues[CONN_HEAD]);
    atomic_fetch_add(&loop->server->n_draining, 1);
}

static void on_stop(struct mail *m)
{
    struct http_loop *loop = ((struct loop_mail *)m)->loop;
    loop->is_stopping = true;
}

static void *run(void *arg)
{
    struct http_loop *loop = arg;
    while (!loop->is_stopping || loop->n_busy > 0) {
        event_base_loop(loop->base, EVLOOP_ONCE);
        conn_reclaim(loop);
    }
    close_all(loop);
    conn_reclaim(loop);
    assert(!loop->conns);
    return NULL;
}

/* Short waits, as tests have them, are kept to a quarter. */
static int64_t sweep_interval(const struct http_config *cfg)
{
    const int64_t waits[] = {cfg->header_timeout_ms, cfg->body_timeout_ms, cfg->idle_timeout_ms,
                             cfg->write_timeout_ms};
    int64_t ms = SWEEP_MS;
    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        if (waits[i] / 4 < ms)
            ms = waits[i] / 4;
    }
    return ms < 10 ? 10 : ms;
}

static struct event_base *base_new(void)
{
    struct event_config *cfg = event_config_new();
    if (!cfg)
        return NULL;
    /* One thread uses it; others only write to the mailbox. */
    event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
    struct event_base *base = event_base_new_with_config(cfg);
    event_config_free(cfg);
    return base;
}

int http_loop_init(struct http_loop *loop, struct http_server *server, unsigned index)
{
    loop->server = server;
    loop->index = index;
    loop->date_second = -1;
    loop->drain_mail = (struct loop_mail){.mail.on_delivery = on_drain, .loop = loop};
    loop->stop_mail = (struct loop_mail){.mail.on_delivery = on_stop, .loop = loop};
    loop->scratch = malloc(HTTP_BODY_READ_SIZE);
    loop->base = base_new();
    if (!loop->scratch || !loop->base)
        return ERR_NOMEM;
    int rc = mailbox_new(&loop->mailbox);
    if (rc)
        return rc;
    loop->mail_event =
        event_new(loop->base, mailbox_fd(loop->mailbox), EV_READ | EV_PERSIST, on_mail, loop);
    loop->sweep_event = event_new(loop->base, -1, EV_PERSIST, on_sweep, loop);
    int64_t ms = sweep_interval(&server->cfg);
    struct timeval interval = {ms / 1000, ms % 1000 * 1000};
    if (!loop->mail_event || !loop->sweep_event || event_add(loop->mail_event, NULL) != 0 ||
        event_add(loop->sweep_event, &interval) != 0)
        return ERR_NOMEM;
    if (index > 0)
        return 0;
    loop->listen_event =
        event_new(loop->base, server->listen_fd, EV_READ | EV_PERSIST, on_acceptable, loop);
    return loop->listen_event && event_add(loop->listen_event, NULL) == 0 ? 0 : ERR_NOMEM;
}

int http_loop_run(struct http_loop *loop)
{
    if (pthread_create(&loop->thread, NULL, run, loop) != 0)
        return ERR_NOMEM;
    loop->is_started = true;
    return 0;
}

void http_loop_fini(struct http_loop *loop)
{
    if (loop->listen_event)
        event_free(loop->listen_event);
    if (loop->sweep_event)
        event_free(loop->sweep_event);
    if (loop->mail_event)
        event_free(loop->mail_event);
    if (loop->base)
        event_base_free(loop->base);
    mailbox_free(loop->mailbox);
    buf_fini(&loop->head);
    free(loop->scratch);
}
