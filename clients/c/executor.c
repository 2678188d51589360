/* SPDX-License-Identifier: Apache-2.0 */
/* Three kinds of threads: the loop's (run's caller) has evhttp and all that is not marked
 * otherwise; the pool's run handlers and hand the job back through `done` and the pipe; one
 * registers. Before any of them ends, run has seen to it that its work has been answered.
 *
 * The end: `stop` is set and both pipes are written. The registrar leaves the node, while tasks are
 * still taken; then it sets `has_left` and wakes the loop, which closes the listener, gives back
 * what waits, and ends when the last answer is out. Without a registrar the loop begins at once. */
#include "jobflow_executor.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <openssl/crypto.h>

#include "executor_internal.h"
#include "task.h"

#define HEADERS_MAX (16 * 1024)
#define THREADS_MAX 64
#define SEEN_MAX 10000000
#define FLUSH_MS 1000 /* at the end, for answers on their way */

const char *jobflow_strerror(int error)
{
    switch (error) {
    case JOBFLOW_ENOMEM:
        return "out of memory";
    case JOBFLOW_EINVAL:
        return "invalid argument";
    case JOBFLOW_EIO:
        return "the system refused a socket, pipe or thread";
    case JOBFLOW_EUNREACHABLE:
        return "the node cannot be reached";
    case JOBFLOW_ESTALE:
        return "the attempt is not the live one any more";
    case JOBFLOW_EREFUSED:
        return "the node refuses the call";
    default:
        return error == 0 ? "no error" : "unknown error";
    }
}

void jfx_log(struct jobflow_executor *ex, const char *fmt, ...)
{
    char line[1024];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    if (ex->on_log)
        ex->on_log(ex->log_ctx, line);
    else
        (void)fprintf(stderr, "jobflow: %s\n", line);
}

/* ---- Waking and ending the loop ---------------------------------------------------------- */

void jfx_wake(struct jobflow_executor *ex)
{
    int saved = errno;

    /* A full pipe will wake the loop as well. */
    (void)!write(ex->wake[1], "", 1);
    errno = saved;
}

static void end_loop(struct jobflow_executor *ex)
{
    ex->is_over = true;
    (void)event_base_loopbreak(ex->base);
}

void jfx_end_if_idle(struct jobflow_executor *ex)
{
    struct timeval soon = {FLUSH_MS / 1000, FLUSH_MS % 1000 * 1000};

    if (!ex->is_stopping || ex->n_jobs > 0)
        return;
    if (ex->n_unsent == 0 || event_add(ex->on_flushed, &soon))
        end_loop(ex);
}

static void begin_stop(struct jobflow_executor *ex)
{
    ex->is_stopping = true;
    atomic_store(&ex->is_closed, true);
    if (ex->listener)
        evhttp_del_accept_socket(ex->http, ex->listener);
    ex->listener = NULL;
    if (ex->pool)
        jfx_refuse_waiting(ex);
    jfx_end_if_idle(ex);
}

static void on_wake(evutil_socket_t fd, short what, void *ctx)
{
    struct jobflow_executor *ex = ctx;
    char bytes[256];
    (void)what;

    while (read(fd, bytes, sizeof(bytes)) == (ssize_t)sizeof(bytes))
        ;
    jfx_answer_done(ex);
    bool has_left = !ex->is_registrar_started || atomic_load(&ex->has_left);
    if (atomic_load(&ex->stop) && has_left && !ex->is_stopping)
        begin_stop(ex);
}

/* Somebody does not read the answer. */
static void on_flushed(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;

    end_loop(ctx);
}

/* ---- New and free ------------------------------------------------------------------------ */

static unsigned or_default(unsigned value, unsigned usual)
{
    return value > 0 ? value : usual;
}

static int invalid(struct jobflow_executor *ex, const char *what)
{
    jfx_log(ex, "configuration: %s", what);
    return JOBFLOW_EINVAL;
}

static int read_secrets(struct jobflow_executor *ex, const struct jobflow_config *c)
{
    for (size_t i = 0; i < JOBFLOW_SECRETS_MAX; i++) {
        if (!c->secrets[i])
            continue;
        if (!jfx_key_read(c->secrets[i], &ex->keys[ex->n_keys]))
            return invalid(ex, "a secret is \"whsec_\" and base64 of 16 to 64 bytes, or 16 to 128 "
                               "bytes of plain text");
        ex->n_keys++;
    }
    return ex->n_keys > 0 && !c->secrets[0] ? invalid(ex, "the first secret is missing") : 0;
}

static bool is_url(const char *url)
{
    return strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0;
}

static int add_service(struct jobflow_executor *ex, const char *name)
{
    if (!name || !jfx_name_valid(name))
        return invalid(ex, "a service is letters, digits and ._- , 1 to 128 of them");
    for (size_t i = 0; i < ex->n_services; i++) {
        if (strcmp(ex->services[i].name, name) == 0)
            return invalid(ex, "a service is there twice");
    }
    char *copy = strdup(name);
    if (!copy)
        return JOBFLOW_ENOMEM;
    ex->services[ex->n_services++].name = copy;
    return 0;
}

static int read_services(struct jobflow_executor *ex, const struct jobflow_config *c)
{
    int rc = add_service(ex, c->service);

    for (size_t i = 0; rc == 0 && i < JOBFLOW_MORE_SERVICES_MAX; i++) {
        if (c->more_services[i])
            rc = add_service(ex, c->more_services[i]);
    }
    return rc;
}

/* Errors: EINVAL, ENOMEM. */
static int read_config(struct jobflow_executor *ex, const struct jobflow_config *c)
{
    int rc = read_services(ex, c);

    if (rc)
        return rc;
    if (c->path[0] != '/' || !c->path[1] || c->path[strlen(c->path) - 1] == '/')
        return invalid(ex, "path begins with / and does not end with it");
    if (c->n_threads > THREADS_MAX || c->max_seen > SEEN_MAX)
        return invalid(ex, "n_threads is at most 64, max_seen at most 10,000,000");
    if (c->node_url && !is_url(c->node_url))
        return invalid(ex, "node_url begins with http:// or https://");
    ex->tolerance_s = or_default(c->tolerance_s, 300);
    ex->n_threads = c->n_threads;
    ex->max_waiting = or_default(c->max_waiting, 64);
    ex->tries = or_default(c->tries, 6);
    ex->path = strdup(c->path);
    ex->seen = jfx_seen_new(or_default(c->max_seen, 10000));
    if (c->node_url)
        ex->node = jfx_node_new(c->node_url);
    if (!ex->path || !ex->seen || (c->node_url && !ex->node))
        return JOBFLOW_ENOMEM;
    return read_secrets(ex, c);
}

static int open_pipe(struct jobflow_executor *ex, int fds[2])
{
    if (pipe(fds)) {
        fds[0] = fds[1] = -1;
        jfx_log(ex, "pipe: %s", strerror(errno));
        return JOBFLOW_EIO;
    }
    for (int i = 0; i < 2; i++) {
        (void)evutil_make_socket_nonblocking(fds[i]);
        (void)evutil_make_socket_closeonexec(fds[i]);
    }
    return 0;
}

/* Otherwise evhttp closes a socket first and takes it out of the loop's epoll set afterwards, when
 * its number may be another thread's already. */
static struct bufferevent *on_connection(struct event_base *base, void *ctx)
{
    (void)ctx;

    return bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
}

static int open_loop(struct jobflow_executor *ex, const struct jobflow_config *c)
{
    int rc = open_pipe(ex, ex->wake);

    if (rc == 0)
        rc = open_pipe(ex, ex->halt);
    if (rc)
        return rc;
    ex->base = event_base_new();
    if (ex->base)
        ex->http = evhttp_new(ex->base);
    if (!ex->http)
        return JOBFLOW_ENOMEM;
    ex->on_wake = event_new(ex->base, ex->wake[0], EV_READ | EV_PERSIST, on_wake, ex);
    ex->on_flushed = event_new(ex->base, -1, 0, on_flushed, ex);
    if (!ex->on_wake || !ex->on_flushed || event_add(ex->on_wake, NULL))
        return JOBFLOW_ENOMEM;
    evhttp_set_max_headers_size(ex->http, HEADERS_MAX);
    evhttp_set_max_body_size(ex->http, (ev_ssize_t)(c->max_body > 0 ? c->max_body : 1024 * 1024));
    evhttp_set_timeout(ex->http, (int)or_default(c->timeout_s, 120));
    evhttp_set_gencb(ex->http, jfx_on_unknown_path, ex);
    evhttp_set_bevcb(ex->http, on_connection, NULL);
    return 0;
}

/* Errors: EIO. */
static int listen_on(struct jobflow_executor *ex, const char *address, uint16_t port)
{
    struct sockaddr_storage sa;
    socklen_t len = sizeof(sa);

    ex->listener = evhttp_bind_socket_with_handle(ex->http, address, port);
    if (!ex->listener ||
        getsockname(evhttp_bound_socket_get_fd(ex->listener), (struct sockaddr *)&sa, &len)) {
        jfx_log(ex, "listen on %s, port %u: %s", address, (unsigned)port, strerror(errno));
        return JOBFLOW_EIO;
    }
    ex->port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                              : ((struct sockaddr_in *)&sa)->sin_port);
    return 0;
}

int jobflow_executor_new(const struct jobflow_config *config, struct jobflow_executor **ret)
{
    struct jobflow_config c = *config;
    struct jobflow_executor *ex = calloc(1, sizeof(*ex));

    if (!ex)
        return JOBFLOW_ENOMEM;
    if (pthread_mutex_init(&ex->lock, NULL)) {
        free(ex);
        return JOBFLOW_EIO;
    }
    ex->wake[0] = ex->wake[1] = ex->halt[0] = ex->halt[1] = -1;
    ex->on_log = c.on_log;
    ex->log_ctx = c.log_ctx;
    c.address = c.address ? c.address : "127.0.0.1";
    c.path = c.path ? c.path : "/jobflow";
    int rc = read_config(ex, &c);
    if (rc == 0)
        rc = open_loop(ex, &c);
    if (rc == 0)
        rc = listen_on(ex, c.address, c.port);
    if (rc == 0)
        rc = jfx_registration_init(ex, &c);
    if (rc)
        jobflow_executor_free(ex);
    else
        *ret = ex;
    return rc;
}

void jobflow_executor_free(struct jobflow_executor *ex)
{
    if (!ex)
        return;
    assert(ex->n_jobs == 0 && !ex->pool);
    if (ex->http)
        evhttp_free(ex->http);
    if (ex->on_wake)
        event_free(ex->on_wake);
    if (ex->on_flushed)
        event_free(ex->on_flushed);
    if (ex->base)
        event_base_free(ex->base);
    for (int i = 0; i < 2; i++) {
        if (ex->wake[i] >= 0)
            close(ex->wake[i]);
        if (ex->halt[i] >= 0)
            close(ex->halt[i]);
    }
    for (size_t i = 0; i < ex->n_handlers; i++) {
        free(ex->handlers[i]->name);
        free(ex->handlers[i]);
    }
    jfx_node_free(ex->node);
    jfx_seen_free(ex->seen);
    OPENSSL_cleanse(ex->keys, sizeof(ex->keys));
    jfx_registration_fini(ex);
    for (size_t i = 0; i < ex->n_services; i++)
        free(ex->services[i].name);
    free(ex->path);
    pthread_mutex_destroy(&ex->lock);
    free(ex);
}

int jobflow_executor_handle(struct jobflow_executor *ex, const char *name, jobflow_handler *handler,
                            void *ctx)
{
    if (!jfx_name_valid(name) || !handler || ex->n_handlers == JOBFLOW_HANDLERS_MAX)
        return invalid(ex, "a handler's name is letters, digits and ._- ; 256 handlers at most");
    size_t len = strlen(ex->path) + strlen(name) + 2;
    struct jfx_handler *h = calloc(1, sizeof(*h));
    char *path = malloc(len);
    char *copy = strdup(name);
    int rc = JOBFLOW_ENOMEM;

    if (h && path && copy) {
        *h = (struct jfx_handler){ex, copy, handler, ctx};
        (void)snprintf(path, len, "%s/%s", ex->path, name);
        int added = evhttp_set_cb(ex->http, path, jfx_on_task, h);
        rc = added == 0 ? 0 : added == -1 ? invalid(ex, "a handler is there already") : rc;
    }
    free(path);
    if (rc) {
        free(copy);
        free(h);
    } else {
        ex->handlers[ex->n_handlers++] = h;
    }
    return rc;
}

/* ---- Running ----------------------------------------------------------------------------- */

static int start_threads(struct jobflow_executor *ex)
{
    if (ex->n_threads > 0) {
        ex->pool = jfx_pool_new(ex->n_threads, ex->max_waiting, jfx_run_job);
        if (!ex->pool)
            return JOBFLOW_EIO;
    }
    if (ex->registers) {
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        ex->is_registrar_started = pthread_create(&ex->registrar, NULL, jfx_register, ex) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (!ex->is_registrar_started)
            return JOBFLOW_EIO;
    }
    return 0;
}

/* A program that breaks the loop by itself means stop. Errors: EIO. */
static int run_loop(struct jobflow_executor *ex)
{
    while (!ex->is_over) {
        if (event_base_loop(ex->base, EVLOOP_NO_EXIT_ON_EMPTY) < 0) {
            jfx_log(ex, "the event loop failed: %s", strerror(errno));
            return JOBFLOW_EIO;
        }
        jobflow_executor_stop(ex);
    }
    return 0;
}

int jobflow_executor_run(struct jobflow_executor *ex)
{
    struct jfx_no_sigpipe no_sigpipe;
    int rc = start_threads(ex);

    jfx_no_sigpipe_begin(&no_sigpipe);
    if (rc)
        jfx_log(ex, "no thread could be started");
    else
        rc = run_loop(ex);
    jobflow_executor_stop(ex);
    if (ex->is_registrar_started)
        pthread_join(ex->registrar, NULL);
    ex->is_registrar_started = false;
    /* Only after a failure is there anything left to give back and to answer. */
    if (ex->pool)
        jfx_refuse_waiting(ex);
    jfx_pool_free(ex->pool);
    ex->pool = NULL;
    jfx_answer_done(ex);
    jfx_no_sigpipe_end(&no_sigpipe);
    return rc;
}

void jobflow_executor_stop(struct jobflow_executor *ex)
{
    int saved = errno;

    atomic_store(&ex->stop, true);
    if (!ex->registers)
        atomic_store(&ex->is_closed, true);
    (void)!write(ex->halt[1], "", 1);
    errno = saved;
    jfx_wake(ex);
}

bool jobflow_executor_is_stopping(const struct jobflow_executor *ex)
{
    return atomic_load(&ex->stop);
}

uint16_t jobflow_executor_port(const struct jobflow_executor *ex)
{
    return ex->port;
}

struct event_base *jobflow_executor_base(struct jobflow_executor *ex)
{
    return ex->base;
}

struct evhttp *jobflow_executor_http(struct jobflow_executor *ex)
{
    return ex->http;
}
