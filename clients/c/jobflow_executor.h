/* SPDX-License-Identifier: Apache-2.0 */
/* Receives JobFlow's tasks in a C program: an HTTP server that checks, de-duplicates and runs them.
 *
 *   new → handle (once for each handler) → run, which returns after stop → free
 *
 * README.md has what it promises and what it asks of a handler. Functions that can fail return 0 or
 * one of the codes below; what they return through a pointer is untouched then. Strings are
 * NUL-terminated UTF-8. Every free accepts NULL. */
#ifndef JOBFLOW_EXECUTOR_H
#define JOBFLOW_EXECUTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define JOBFLOW_MORE_SERVICES_MAX 7
#define JOBFLOW_SECRETS_MAX 4
#define JOBFLOW_HANDLERS_MAX 256
#define JOBFLOW_MESSAGE_MAX 512 /* bytes with the NUL; longer messages are cut */
#define JOBFLOW_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

enum jobflow_error {
    JOBFLOW_ENOMEM = -1,
    JOBFLOW_EINVAL = -2,       /* an argument; a log line names it */
    JOBFLOW_EIO = -3,          /* no socket, pipe or thread could be had; a log line says why */
    JOBFLOW_EUNREACHABLE = -4, /* the node did not answer, or answered 5xx, until the last try */
    JOBFLOW_ESTALE = -5,       /* the attempt is not the live one any more: give its work up */
    JOBFLOW_EREFUSED = -6,     /* the node refuses the call for good; a log line has its answer */
};

const char *jobflow_strerror(int error);

/* ---- What a handler gets ----------------------------------------------------------------- */

struct cJSON;

/* One attempt of a task. Everything in it is borrowed until the handler returns. */
struct jobflow_task {
    const char *trace_id; /* 32 hex digits; the same for every attempt of the task */
    const char *biz_uuid; /* the submitter's own key */
    const char *service;
    const char *handler;
    int32_t attempt;     /* 1 for the first; only ever grows */
    int32_t retry_count; /* retries of the current series of tries */
    /* Epoch milliseconds by the node's clock. */
    int64_t execute_time_ms; /* when it was to run */
    int64_t sent_time_ms;
    int64_t deadline_ms; /* the node gives the attempt up; see jobflow_task_remaining_ms */
    /* Byte for byte as it was submitted; "null" if there was none. */
    const char *payload_text;
    size_t payload_len;
    /* The same as cJSON reads it: numbers are doubles. NULL when it cannot (nesting beyond 1,000;
     * in old versions numbers of 64 characters). */
    const struct cJSON *payload;
};

/* What the node gave the attempt, less the time since it arrived, whatever the clocks say; 0 = it
 * is over. Any thread, while the task is borrowed. */
int64_t jobflow_task_remaining_ms(const struct jobflow_task *task);

/* ---- What a handler answers -------------------------------------------------------------- */

enum jobflow_outcome {
    JOBFLOW_SUCCESS,
    JOBFLOW_RETRY,  /* it did not work: try again, as the task's retry policy says */
    JOBFLOW_FAIL,   /* it did not work and never will: a person is told */
    JOBFLOW_SNOOZE, /* not now: again after wait_ms, without using up a try (a bounded number) */
    JOBFLOW_LATER,  /* accepted; jobflow_result_send tells how it ended, before the deadline */
};

struct jobflow_answer {
    enum jobflow_outcome outcome;
    int64_t wait_ms; /* RETRY: not before that, 0 = as the policy says. SNOOZE: at least 1 */
    char message[JOBFLOW_MESSAGE_MAX]; /* for people; ill-formed UTF-8 becomes '?' */
};

struct jobflow_answer jobflow_success(const char *fmt, ...) JOBFLOW_PRINTF(1, 2);
struct jobflow_answer jobflow_retry(int64_t wait_ms, const char *fmt, ...) JOBFLOW_PRINTF(2, 3);
struct jobflow_answer jobflow_fail(const char *fmt, ...) JOBFLOW_PRINTF(1, 2);
struct jobflow_answer jobflow_snooze(int64_t wait_ms, const char *fmt, ...) JOBFLOW_PRINTF(2, 3);
struct jobflow_answer jobflow_later(void);

/* Runs on one of the pool's threads, several at a time; with n_threads = 0 on the loop's. */
typedef struct jobflow_answer jobflow_handler(const struct jobflow_task *task, void *ctx);

/* ---- The executor ------------------------------------------------------------------------ */

struct jobflow_executor;

/* Zero or NULL is the default. All of it is copied. */
struct jobflow_config {
    const char *service; /* required: letters, digits and ._- , 128 at most */
    /* Whose tasks are taken as well. */
    const char *more_services[JOBFLOW_MORE_SERVICES_MAX];
    const char *address; /* to listen on; "127.0.0.1" */
    uint16_t port;       /* 0 = any free one */
    const char *path;    /* tasks arrive at <path>/<handler>; "/jobflow" */

    /* Standard Webhooks: each is "whsec_" and base64 of 16 to 64 bytes, or 16 to 128 bytes of plain
     * text. With any, every request has to be signed by one of them; the first is the one that is
     * registered. None = unsigned requests are believed. */
    const char *secrets[JOBFLOW_SECRETS_MAX];
    unsigned tolerance_s; /* by how much a signature's time may be off; 300 */

    unsigned n_threads;   /* at most 64; 0 = handlers run on the loop, one at a time */
    unsigned max_waiting; /* tasks that wait for a thread, beyond which: 503; 64 */
    unsigned max_seen;    /* trace ids remembered against repeats; 10,000 */
    size_t max_body;      /* bytes of a request; 1 MiB */
    unsigned timeout_s;   /* of a connection that stands still; 120, longer than a node keeps one */

    const char *node_url; /* "http://127.0.0.1:8080"; NULL = no registration, no results */
    unsigned tries;       /* of a result; 6, which is about a minute when nobody answers */

    /* Registration: while run runs, this process is an instance of its services. Told anew every
     * third of ttl_s, and tried for as long as it does not work. */
    bool skip_registration;
    const char *instance; /* letters, digits and ._:- , 128 at most; "<host name>:<port>" */
    const char *base_url; /* of <path>; made from address and port, so needed with 0.0.0.0 or :: */
    unsigned ttl_s; /* nodes forget the instance so long after its last word; 15, at most 600 */

    /* With any of these, or a secret: PUT /api/services/<service> first, which replaces all. */
    unsigned concurrency; /* 0 and NULL: the node's default */
    unsigned shards;
    const char *timeout; /* "60s" */
    const char *policy;

    /* One line without a line end; from any of the executor's threads. NULL = standard error. */
    void (*on_log)(void *ctx, const char *text);
    void *log_ctx;
};

/* Listens; answers nothing before run. Errors: ENOMEM, EINVAL, EIO (the address is taken, …). */
int jobflow_executor_new(const struct jobflow_config *config, struct jobflow_executor **ret);

/* Not while run or a call of another thread is running. */
void jobflow_executor_free(struct jobflow_executor *ex);

/* Before run. `name` is the end of the path: letters, digits and ._- , 128 at most.
 * Errors: ENOMEM, EINVAL (the name, or it is there already, or there are too many). */
int jobflow_executor_handle(struct jobflow_executor *ex, const char *name, jobflow_handler *handler,
                            void *ctx);

uint16_t jobflow_executor_port(const struct jobflow_executor *ex);

enum jobflow_registration {
    JOBFLOW_NOT_REGISTERING, /* no node_url, or skip_registration */
    JOBFLOW_REGISTERING,     /* not yet, or not any more; a log line has the reason */
    JOBFLOW_REGISTERED,      /* with all services, less than ttl_s ago */
    JOBFLOW_LEFT,            /* stopping, or over */
};

/* Serves until jobflow_executor_stop. Leaves the node then (within seconds, answer or none). After
 * that no connection and no task is taken (503), tasks that wait for a thread are given back (503),
 * running handlers end and are answered, however long it takes. Once per executor.
 * Errors: EIO, ENOMEM. */
int jobflow_executor_run(struct jobflow_executor *ex);

/* Any thread; stop in signal handlers too. is_stopping is for handlers that can end early. */
void jobflow_executor_stop(struct jobflow_executor *ex);
bool jobflow_executor_is_stopping(const struct jobflow_executor *ex);
enum jobflow_registration jobflow_executor_registration(const struct jobflow_executor *ex);

/* For the program's own timers (event2/event.h) and paths (evhttp_set_cb, evhttp_set_gencb of
 * event2/http.h). Borrowed until free. Before run, or on the loop's thread. */
struct event_base;
struct evhttp;
struct event_base *jobflow_executor_base(struct jobflow_executor *ex);
struct evhttp *jobflow_executor_http(struct jobflow_executor *ex);

/* ---- Calls to the node ------------------------------------------------------------------- */
/* They block. Any thread, also within a handler and after run. EINVAL without node_url. */

/* The result of an attempt that was answered with LATER; any outcome but LATER itself. Tried again
 * with growing waits while the node cannot be reached. With SUCCESS the trace id counts as done
 * from the call on, even if the node never hears of it: a repeat is answered without the handler.
 * Errors: EINVAL, ENOMEM, EUNREACHABLE (the node calls again in time), ESTALE, EREFUSED. */
int jobflow_result_send(struct jobflow_executor *ex, const char *trace_id, int32_t attempt,
                        const struct jobflow_answer *answer);

/* A sign of life: moves the attempt's deadline to extend_ms from now, never closer; 0 = what the
 * node thinks right. Tried up to 3 times. Errors: as of jobflow_result_send. */
int jobflow_heartbeat(struct jobflow_executor *ex, const char *trace_id, int32_t attempt,
                      int64_t extend_ms);

/* Any other call of the node's interface, once. `body` is JSON or NULL. *ret_answer (ret_answer may
 * be NULL) becomes the answer's body, at most 1 MiB and to be freed by free(), or NULL. 4xx and 5xx
 * are no errors. Errors: EINVAL, ENOMEM, EUNREACHABLE (no whole answer: it may have had effect). */
int jobflow_call(struct jobflow_executor *ex, const char *method, const char *path,
                 const char *body, int *ret_status, char **ret_answer);

#ifdef __cplusplus
}
#endif

#endif
