/* SPDX-License-Identifier: Apache-2.0 */
#include "node/api/http.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/api/http_impl.h"

#define LISTEN_BACKLOG 1024
#define STOP_GRACE_MS INT64_C(86400000) /* a stop ends with the last request, not by time */

/* "host:port" or "[host]:port" into addresses that getaddrinfo understands without a resolver. */
static int parse_listen(const char *listen, struct addrinfo **ret, struct err *err)
{
    const char *colon = listen ? strrchr(listen, ':') : NULL;
    char host[INET6_ADDRSTRLEN + 1];
    int64_t port;
    size_t len = colon ? (size_t)(colon - listen) : 0;
    const char *start = listen;
    if (len > 2 && listen[0] == '[' && listen[len - 1] == ']') {
        start++;
        len -= 2;
    } else if (memchr(listen ? listen : "", ':', len)) {
        len = 0; /* an IPv6 address needs its brackets, or the port cannot be told */
    }
    if (len == 0 || len >= sizeof(host) || !str_to_i64(str_from(colon + 1), &port) || port < 0 ||
        port > 65535)
        return err_set(err, ERR_INVALID,
                       "\"%s\" is no address to listen on, such as 127.0.0.1:8080 or [::]:8080",
                       listen ? listen : "");
    memcpy(host, start, len);
    host[len] = '\0';
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    if (getaddrinfo(host, colon + 1, &hints, ret) != 0)
        return err_set(err, ERR_INVALID, "\"%s\" is no IP address", host);
    return 0;
}

static int name_address(struct http_server *s, struct err *err)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof(addr);
    char host[INET6_ADDRSTRLEN], port[8];
    if (getsockname(s->listen_fd, (struct sockaddr *)&addr, &len) != 0 ||
        getnameinfo((struct sockaddr *)&addr, len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return err_set(err, ERR_IO, "cannot read the listening address: %s", strerror(errno));
    const char *fmt = addr.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s";
    (void)snprintf(s->address, sizeof(s->address), fmt, host, port); /* fits */
    return 0;
}

static int open_listener(struct http_server *s, struct err *err)
{
    struct addrinfo *ai;
    int rc = parse_listen(s->cfg.listen, &ai, err);
    if (rc)
        return rc;
    const int on = 1;
    s->listen_fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->listen_fd < 0 ||
        setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(s->listen_fd, ai->ai_addr, ai->ai_addrlen) != 0 ||
        listen(s->listen_fd, LISTEN_BACKLOG) != 0)
        rc = err_set(err, ERR_IO, "cannot listen on %s: %s", s->cfg.listen, strerror(errno));
    freeaddrinfo(ai);
    return rc ? rc : name_address(s, err);
}

/* Signals are the main thread's. */
static int run_loops(struct http_server *s)
{
    sigset_t all, old;
    sigfillset(&all);
    int rc = 0;
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (uint32_t i = 0; i < s->cfg.threads && rc == 0; i++)
        rc = http_loop_run(&s->loops[i]);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static int check_config(const struct http_config *cfg, struct err *err)
{
    if (cfg->threads == 0 || cfg->max_connections == 0 || cfg->max_header == 0 ||
        cfg->max_body == 0 || cfg->max_body > SIZE_MAX / 16 || cfg->max_memory < cfg->max_body ||
        cfg->header_timeout_ms <= 0 || cfg->body_timeout_ms <= 0 || cfg->idle_timeout_ms <= 0 ||
        cfg->write_timeout_ms <= 0)
        return err_set(err, ERR_INVALID, "a limit of the HTTP server is 0 or contradicts another");
    return 0;
}

int http_server_start(const struct http_config *cfg, struct http_server **ret, struct err *err)
{
    int rc = check_config(cfg, err);
    if (rc)
        return rc;
    struct http_server *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(err, ERR_NOMEM, "out of memory");
    s->cfg = *cfg;
    s->listen_fd = -1;
    s->loops = calloc(cfg->threads, sizeof(s->loops[0]));
    rc = s->loops ? open_listener(s, err) : err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < cfg->threads && rc == 0; i++) {
        rc = http_loop_init(&s->loops[i], s, i);
        if (rc)
            err_set(err, rc, "cannot make an event loop");
    }
    if (rc == 0) {
        rc = run_loops(s);
        if (rc)
            err_set(err, rc, "cannot start a thread");
    }
    if (rc) {
        http_server_stop(s);
        return rc;
    }
    *ret = s;
    return 0;
}

const char *http_server_address(const struct http_server *s)
{
    return s->address;
}

uint32_t http_server_connections(const struct http_server *s)
{
    return atomic_load(&s->n_conns);
}

bool http_server_is_drained(const struct http_server *s)
{
    /* In this order: once all loops drain no connection comes any more, and without a connection no
     * request does. A request whose connection has died is still under way. */
    return atomic_load(&s->n_draining) == s->cfg.threads && atomic_load(&s->n_conns) == 0 &&
           atomic_load(&s->n_requests) == 0;
}

void http_server_drain(struct http_server *s, int64_t grace_ms)
{
    if (atomic_exchange(&s->drain_begun, true))
        return;
    s->drain_grace_ms = grace_ms;
    for (uint32_t i = 0; i < s->cfg.threads; i++)
        mailbox_post(s->loops[i].mailbox, &s->loops[i].drain_mail.mail);
}

void http_server_stop(struct http_server *s)
{
    if (!s)
        return;
    if (s->loops && s->loops[0].is_started)
        http_server_drain(s, STOP_GRACE_MS);
    /* Loop 0 first: once it has ended nobody hands connections to the others. */
    for (uint32_t i = 0; s->loops && i < s->cfg.threads; i++) {
        struct http_loop *loop = &s->loops[i];
        if (loop->is_started) {
            mailbox_post(loop->mailbox, &loop->stop_mail.mail);
            pthread_join(loop->thread, NULL);
        }
    }
    for (uint32_t i = 0; s->loops && i < s->cfg.threads; i++)
        http_loop_fini(&s->loops[i]);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    free(s->loops);
    free(s);
}
