/* SPDX-License-Identifier: Apache-2.0 */
/* What the executor's files share: executor.c is its life, serve.c its requests, report.c its calls
 * to the node. */
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

struct jobflow_executor {
    char *service;
    char *path;
    char *base_url;
    char *settings; /* the registration's body */
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

    /* The loop's. */
    size_t n_jobs;   /* taken and not answered yet */
    size_t n_unsent; /* answered, but still on their way out */
    bool is_stopping;
    bool is_over;
    unsigned n_refused; /* since the last line about it */
    int64_t refusal_logged_ms;
    bool is_registrar_started;
    pthread_t registrar;

    atomic_bool stop; /* asked for */
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

/* Checks and builds what is registered. Errors: ENOMEM, EINVAL. */
int jfx_registration_init(struct jobflow_executor *ex, const struct jobflow_config *config);

/* A thread's function: registers until that works, or `stop`. ctx is the executor. */
void *jfx_register(void *ctx);

#endif
