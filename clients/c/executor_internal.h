/* SPDX-License-Identifier: Apache-2.0 */
/* What the executor's files share: executor.c is its life, serve.c its requests, report.c its calls
 * to the node, register.c what the node knows of it. */
#ifndef JFX_EXECUTOR_INTERNAL_H
#define JFX_EXECUTOR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "jobflow_executor.h"
#include "node.h"
#include "pool.h"
#include "seen.h"
#include "signature.h"

struct event;
struct jfx_job;

struct jfx_handler {
    struct jobflow_executor *ex;
    char *name;
    jobflow_handler *run;
    void *ctx;
};

/* The registrar's, but for the name. */
struct jfx_service {
    char *name;
    bool is_settled;    /* its settings are stored, or there are none */
    bool may_be_known;  /* it was told to the node, heard or not: there is something to leave */
    bool is_failing;    /* the last try did not work, */
    int failing_status; /* for this reason, which was logged */
    unsigned n_failed;  /* tries in a row */
    int64_t next_ms;    /* when it is told again */
    int64_t lives_until_ms;
};

struct jobflow_executor {
    struct jfx_service services[1 + JOBFLOW_MORE_SERVICES_MAX];
    size_t n_services;
    char *path;
    char *base_url;
    char *instance;
    char *settings; /* of the services; NULL = none */
    char *beat;     /* a registration's body */
    int64_t ttl_ms;
    struct jfx_key keys[JOBFLOW_SECRETS_MAX];
    size_t n_keys;
    unsigned tolerance_s;
    unsigned n_threads;
    unsigned max_waiting;
    unsigned tries;
    bool registers;
    void (*on_log)(void *ctx, const char *text);
    void *log_ctx;

    struct jfx_handler *handlers[JOBFLOW_HANDLERS_MAX];
    size_t n_handlers;
    struct jfx_seen *seen;
    struct jfx_node *node; /* NULL without node_url */
    struct jfx_pool *pool; /* NULL with n_threads = 0 */

    struct event_base *base;
    struct evhttp *http;
    struct evhttp_bound_socket *listener; /* NULL when closed */
    struct event *on_wake;
    struct event *on_flushed;
    uint16_t port;
    int wake[2]; /* a pipe: anything that the loop has to look at */
    int halt[2]; /* a pipe: `stop`, for the registrar */

    /* The loop's. */
    size_t n_jobs;   /* taken and not answered yet */
    size_t n_unsent; /* answered, but still on their way out */
    bool is_stopping;
    bool is_over;
    unsigned n_refused; /* since the last line about it */
    int64_t refusal_logged_ms;
    bool is_registrar_started;
    pthread_t registrar;

    atomic_bool stop;                    /* asked for */
    atomic_bool has_left;                /* the registrar has nothing to do any more */
    atomic_bool is_closed;               /* no handler is called any more */
    atomic_int_least64_t lives_until_ms; /* the registration of all services; monotonic */
    pthread_mutex_t lock;
    struct jfx_work *done; /* under the lock: what the pool has finished, the last first */
};

void jfx_log(struct jobflow_executor *ex, const char *fmt, ...) JOBFLOW_PRINTF(2, 3);

/* Makes the loop look at `stop` and `done`. Safe in signal handlers. */
void jfx_wake(struct jobflow_executor *ex);

/* The loop's thread: evhttp's callback for a handler's path, with a struct jfx_handler. */
struct evhttp_request;
void jfx_on_task(struct evhttp_request *req, void *ctx);

/* For all other paths. */
void jfx_on_unknown_path(struct evhttp_request *req, void *ctx);

/* The pool's. */
void jfx_run_job(struct jfx_work *work);

/* The loop's: answers what the pool has finished. */
void jfx_answer_done(struct jobflow_executor *ex);

/* The loop's: gives back what no thread has begun. */
void jfx_refuse_waiting(struct jobflow_executor *ex);

/* The loop's: ends it when it is stopping and nothing is left to do. */
void jfx_end_if_idle(struct jobflow_executor *ex);

/* Checks and builds what is registered; the port is known. Errors: ENOMEM, EINVAL. */
int jfx_registration_init(struct jobflow_executor *ex, const struct jobflow_config *config);
void jfx_registration_fini(struct jobflow_executor *ex);

/* Until the next beat: a third of the ttl less up to a tenth of that by chance, so that what was
 * started together does not beat together. */
int64_t jfx_beat_wait_ms(int64_t ttl_ms);

/* A thread's function: registers and renews until `stop`, then leaves. ctx is the executor. */
void *jfx_register(void *ctx);

#endif
