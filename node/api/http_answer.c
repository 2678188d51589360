/* SPDX-License-Identifier: Apache-2.0 */
/* Answers: the head is built beside the body and both leave in one system call. Only what the
 * socket does not take at once is copied, counted, and sent when it is writable. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "node/api/http_impl.h"

static const struct {
    int status;
    const char *reason;
} reasons[] = {
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {400, "Bad Request"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {503, "Service Unavailable"},
    {505, "HTTP Version Not Supported"},
};

const char *http_reason(int status)
{
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        if (reasons[i].status == status)
            return reasons[i].reason;
    }
    return "Status";
}

/* Formatted once a second: strftime would be locale's, so the names are spelled out. */
static const char *date_text(struct http_loop *loop)
{
    static const char days[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t now = (time_t)(clock_wall() / 1000);
    if (now != loop->date_second) {
        struct tm tm;
        gmtime_r(&now, &tm);
        (void)snprintf(loop->date, sizeof(loop->date), "%s, %02d %s %04d %02d:%02d:%02d GMT",
                       days[tm.tm_wday], tm.tm_mday, months[tm.tm_mon], tm.tm_year + 1900,
                       tm.tm_hour, tm.tm_min, tm.tm_sec); /* fits */
        loop->date_second = now;
    }
    return loop->date;
}

static void put_head(struct conn *c, const struct http_answer *a)
{
    struct buf *b = &c->loop->head;
    buf_clear(b);
    buf_addz(b, "HTTP/1.1 ");
    buf_addi(b, a->status);
    buf_addc(b, ' ');
    buf_addz(b, http_reason(a->status));
    buf_addz(b, "\r\nDate: ");
    buf_addz(b, date_text(c->loop));
    if (a->content_type) {
        buf_addz(b, "\r\nContent-Type: ");
        buf_addz(b, a->content_type);
    }
    if (a->status != 204) {
        buf_addz(b, "\r\nContent-Length: ");
        buf_addi(b, (int64_t)a->body.len);
    }
    buf_addz(b, "\r\n");
    if (a->headers.len > 0)
        buf_adds(b, a->headers);
    if (c->close_after)
        buf_addz(b, "Connection: close\r\n");
    else if (c->parser.http_minor == 0)
        buf_addz(b, "Connection: keep-alive\r\n");
    buf_addz(b, "\r\n");
}

/* Keeps what was not sent. False when there is no memory for it. */
static bool keep_rest(struct conn *c, struct str head, struct str body, size_t sent)
{
    buf_clear(&c->out);
    c->out_pos = 0;
    if (sent < head.len) {
        buf_add(&c->out, head.p + sent, head.len - sent);
        sent = head.len;
    }
    buf_add(&c->out, body.p + (sent - head.len), body.len - (sent - head.len));
    return buf_ok(&c->out) && conn_charge(c, c->out.cap);
}

static bool watch_writable(struct conn *c)
{
    if (!c->writable)
        c->writable = event_new(c->loop->base, c->fd, EV_WRITE | EV_PERSIST, http_on_writable, c);
    return c->writable && event_add(c->writable, NULL) == 0;
}

void http_send(struct conn *c, const struct http_answer *a)
{
    put_head(c, a);
    struct str head = buf_str(&c->loop->head);
    struct str body = c->is_head || !a->body.p ? STR("") : a->body;
    if (!buf_ok(&c->loop->head)) {
        conn_close(c);
        return;
    }
    struct iovec iov[2] = {{(void *)head.p, head.len}, {(void *)body.p, body.len}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = body.len > 0 ? 2 : 1};
    ssize_t n = sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        conn_close(c);
        return;
    }
    size_t sent = n < 0 ? 0 : (size_t)n;
    if (sent == head.len + body.len) {
        conn_answered(c);
        return;
    }
    if (!keep_rest(c, head, body, sent) || !watch_writable(c))
        conn_close(c);
    else
        conn_set(c, CONN_WRITING);
}

void http_on_writable(int fd, short what, void *arg)
{
    struct conn *c = arg;
    (void)what;
    if (c->state != CONN_WRITING)
        return;
    ssize_t n =
        send(fd, c->out.data + c->out_pos, c->out.len - c->out_pos, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            conn_close(c);
        return;
    }
    c->out_pos += (size_t)n;
    if (c->out_pos < c->out.len)
        return;
    event_del(c->writable);
    buf_fini(&c->out);
    conn_answered(c);
}

void http_send_fault(struct conn *c)
{
    struct problem p;
    problem_set(&p, c->fault, NULL, "%s", c->fault_text);
    struct buf body = BUF_INIT;
    problem_put(&body, &p);
    c->close_after = true;
    struct http_answer a = {
        .status = problem_status(c->fault),
        .content_type = PROBLEM_CONTENT_TYPE,
        .headers = c->fault == PROBLEM_OVERLOADED ? STR("Retry-After: 1\r\n") : STR(""),
        .body = buf_str(&body),
    };
    if (buf_ok(&body))
        http_send(c, &a);
    else
        conn_close(c);
    buf_fini(&body);
}

void http_answer(struct http_request *req, const struct http_answer *a)
{
    struct conn *c = (struct conn *)req;
    assert(c->busy);
    c->busy = false;
    c->loop->n_busy--;
    atomic_fetch_sub(&c->loop->server->n_requests, 1);
    c->on_end = a->on_end;
    c->end_ctx = a->ctx;
    if (c->state == CONN_CLOSED) {
        conn_close(c);
        return;
    }
    assert(c->state == CONN_HANDLING);
    bool last = c->eof && c->ahead.len == c->ahead_pos;
    c->close_after =
        a->close || last || c->loop->is_draining || !http_should_keep_alive(&c->parser);
    http_send(c, a);
}

void http_peer(const struct http_request *req, char dst[INET6_ADDRSTRLEN])
{
    const struct conn *c = (const struct conn *)req;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } peer;
    socklen_t len = sizeof(peer);
    memcpy(dst, "unknown", sizeof("unknown"));
    if (c->fd < 0 || getpeername(c->fd, &peer.any, &len) != 0)
        return;
    if (peer.any.sa_family == AF_INET)
        inet_ntop(AF_INET, &peer.v4.sin_addr, dst, INET6_ADDRSTRLEN);
    else if (peer.any.sa_family == AF_INET6)
        inet_ntop(AF_INET6, &peer.v6.sin6_addr, dst, INET6_ADDRSTRLEN);
}
