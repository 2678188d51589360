/* SPDX-License-Identifier: Apache-2.0 */
/* A task's way: checked on the loop (method, signature, envelope, service, seen before), run on a
 * thread of the pool or on the loop, answered on the loop. evhttp keeps a request until it is
 * answered, whatever becomes of its connection. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>

#include "answer.h"
#include "executor_internal.h"
#include "task.h"

#define RUNNING_SNOOZE_MS 5000
#define OVERLOAD_WAIT_MS 1000

struct jfx_job {
    struct jfx_work work;
    struct jfx_handler *handler;
    struct evhttp_request *req; /* evhttp's, until it is answered */
    struct jfx_task t;
    struct jobflow_answer answer;
    int status;
};

/* ---- Answering --------------------------------------------------------------------------- */

static void on_sent(struct evhttp_request *req, void *ctx)
{
    struct jobflow_executor *ex = ctx;
    (void)req;

    ex->n_unsent--;
    jfx_end_if_idle(ex);
}

static void send_answer(struct jobflow_executor *ex, struct evhttp_request *req, int status,
                        const struct jobflow_answer *a)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
    struct evbuffer *out = evbuffer_new();
    char *text = jfx_answer_encode(a);
    char seconds[32];

    (void)evhttp_add_header(headers, "Content-Type", "application/json");
    if (a->outcome == JOBFLOW_RETRY && a->wait_ms > 0) {
        (void)snprintf(seconds, sizeof(seconds), "%lld", (long long)(a->wait_ms + 999) / 1000);
        (void)evhttp_add_header(headers, "Retry-After", seconds);
    }
    if (jobflow_executor_is_stopping(ex))
        (void)evhttp_add_header(headers, "Connection", "close");
    /* Without its text a snooze would read as a success. */
    if (!out || !text || evbuffer_add(out, text, strlen(text)))
        status = 500;
    ex->n_unsent++;
    evhttp_request_set_on_complete_cb(req, on_sent, ex);
    evhttp_send_reply(req, status, NULL, out);
    if (out)
        evbuffer_free(out);
    free(text);
}

/* All of it may be tried again, even 400, which a node alone takes for final: what it sent and we
 * cannot read is a difference of versions, or our lack of memory. */
static void refuse(struct jobflow_executor *ex, struct evhttp_request *req, int status,
                   const char *why)
{
    struct jobflow_answer a = jobflow_retry(status == 503 ? OVERLOAD_WAIT_MS : 0, "%s", why);

    send_answer(ex, req, status, &a);
}

void jfx_on_unknown_path(struct evhttp_request *req, void *ctx)
{
    refuse(ctx, req, 404, "no such handler");
}

static void free_job(struct jfx_job *job)
{
    if (!job)
        return;
    jfx_task_fini(&job->t);
    free(job);
}

/* ---- Running ----------------------------------------------------------------------------- */

static void give_up(struct jfx_job *job, const char *why)
{
    job->answer = jobflow_retry(OVERLOAD_WAIT_MS, "%s", why);
    job->status = 503;
}

static void call_handler(struct jfx_job *job)
{
    const struct jobflow_task *task = &job->t.task;

    if (atomic_load(&job->handler->ex->is_closed)) {
        give_up(job, "stopping");
    } else if (jobflow_task_remaining_ms(task) == 0) {
        give_up(job, "the attempt's deadline passed before a thread was free");
    } else {
        job->answer = job->handler->run(task, job->handler->ctx);
        jfx_answer_mend(&job->answer);
        job->status = jfx_answer_status(&job->answer);
    }
}

static void finish(struct jfx_job *job)
{
    struct jobflow_executor *ex = job->handler->ex;
    const struct jobflow_task *task = &job->t.task;
    enum jfx_seen_state state = JFX_SEEN_NEW;

    if (job->answer.outcome == JOBFLOW_SUCCESS)
        state = JFX_SEEN_DONE;
    else if (job->answer.outcome == JOBFLOW_LATER)
        state = JFX_SEEN_LATER;
    jfx_seen_end(ex->seen, task->trace_id, task->attempt, state);
    send_answer(ex, job->req, job->status, &job->answer);
    ex->n_jobs--;
    free_job(job);
    jfx_end_if_idle(ex);
}

void jfx_run_job(struct jfx_work *work)
{
    struct jfx_job *job = (struct jfx_job *)work;
    struct jobflow_executor *ex = job->handler->ex;

    call_handler(job);
    pthread_mutex_lock(&ex->lock);
    work->next = ex->done;
    ex->done = work;
    pthread_mutex_unlock(&ex->lock);
    jfx_wake(ex);
}

void jfx_answer_done(struct jobflow_executor *ex)
{
    pthread_mutex_lock(&ex->lock);
    struct jfx_work *done = ex->done;
    ex->done = NULL;
    pthread_mutex_unlock(&ex->lock);
    while (done) {
        struct jfx_job *job = (struct jfx_job *)done;
        done = done->next;
        finish(job);
    }
}

void jfx_refuse_waiting(struct jobflow_executor *ex)
{
    struct jfx_work *work = jfx_pool_take_waiting(ex->pool);

    while (work) {
        struct jfx_job *job = (struct jfx_job *)work;
        work = work->next;
        give_up(job, "stopping");
        finish(job);
    }
}

/* Takes the job. */
static void start(struct jfx_job *job)
{
    struct jobflow_executor *ex = job->handler->ex;

    ex->n_jobs++;
    if (!ex->pool) {
        call_handler(job);
        finish(job);
    } else if (!jfx_pool_add(ex->pool, &job->work)) {
        give_up(job, "too many tasks wait");
        finish(job);
    }
}

/* ---- Checking ---------------------------------------------------------------------------- */

static const char *signature_refusal(const struct jobflow_executor *ex, struct evhttp_request *req,
                                     const void *body, size_t len)
{
    const struct evkeyvalq *headers = evhttp_request_get_input_headers(req);
    struct jfx_signature s = {
        .id = evhttp_find_header(headers, "webhook-id"),
        .timestamp = evhttp_find_header(headers, "webhook-timestamp"),
        .signatures = evhttp_find_header(headers, "webhook-signature"),
    };

    if (ex->n_keys == 0)
        return NULL;
    return jfx_signature_refusal(&s, body, len, ex->keys, ex->n_keys, (int64_t)time(NULL),
                                 ex->tolerance_s);
}

/* What is wrong with a task that could be read; *ret_status is set then. */
static const char *task_refusal(const struct jfx_handler *h, const struct jobflow_task *task,
                                int *ret_status)
{
    *ret_status = 400;
    if (!jfx_trace_valid(task->trace_id))
        return "traceId is not 32 hex digits";
    if (strcmp(task->handler, h->name) != 0)
        return "the envelope's handler is another one than the path's";
    /* Tried again: more likely a route in the middle of a change than a wrong task. */
    *ret_status = 421;
    for (size_t i = 0; i < h->ex->n_services; i++) {
        if (strcmp(task->service, h->ex->services[i].name) == 0)
            return NULL;
    }
    return "this is another service";
}

/* Takes the job. */
static void start_unless_seen(struct jfx_job *job)
{
    struct jobflow_executor *ex = job->handler->ex;
    const struct jobflow_task *task = &job->t.task;
    struct jobflow_answer a;

    switch (jfx_seen_begin(ex->seen, task->trace_id, task->attempt)) {
    case JFX_SEEN_NEW:
        start(job);
        return;
    case JFX_SEEN_RUNNING:
        a = jobflow_snooze(RUNNING_SNOOZE_MS, "an earlier delivery is still being worked on");
        break;
    case JFX_SEEN_LATER:
        a = jobflow_later();
        break;
    case JFX_SEEN_DONE:
        a = jobflow_success("done by an earlier delivery");
        break;
    case JFX_SEEN_FULL:
    default:
        refuse(ex, job->req, 503, "too many tasks are running");
        free_job(job);
        return;
    }
    send_answer(ex, job->req, jfx_answer_status(&a), &a);
    free_job(job);
}

/* At most one line a second: anybody can send what is refused. */
static void log_refusal(const struct jfx_handler *h, const char *why)
{
    struct jobflow_executor *ex = h->ex;
    int64_t now_ms = jfx_now_ms();

    ex->n_refused++;
    if (ex->refusal_logged_ms && now_ms - ex->refusal_logged_ms < 1000)
        return;
    jfx_log(ex, "refused %u request(s), the last one for %s: %s", ex->n_refused, h->name, why);
    ex->refusal_logged_ms = now_ms;
    ex->n_refused = 0;
}

static void take(struct jfx_handler *h, struct evhttp_request *req, const char *body, size_t len)
{
    struct jfx_job *job = calloc(1, sizeof(*job));
    const char *why = "out of memory";
    int status = 503;

    if (job) {
        job->handler = h;
        job->req = req;
        int rc = jfx_task_read(body, len, &job->t, &why);
        if (rc == 0)
            why = task_refusal(h, &job->t.task, &status);
        else if (rc == JOBFLOW_EINVAL)
            status = 400;
    }
    if (why) {
        log_refusal(h, why);
        refuse(h->ex, req, status, why);
        free_job(job);
    } else {
        start_unless_seen(job);
    }
}

void jfx_on_task(struct evhttp_request *req, void *ctx)
{
    struct jfx_handler *h = ctx;
    struct jobflow_executor *ex = h->ex;
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    size_t len = evbuffer_get_length(in);
    const char *body = (const char *)evbuffer_pullup(in, -1);

    if (evhttp_request_get_command(req) != EVHTTP_REQ_POST) {
        refuse(ex, req, 405, "tasks are posted");
    } else if (ex->is_stopping) {
        refuse(ex, req, 503, "stopping");
    } else if (len == 0 || !body) {
        refuse(ex, req, 400, "there is no body");
    } else {
        const char *why = signature_refusal(ex, req, body, len);
        if (why) {
            log_refusal(h, why);
            refuse(ex, req, 401, why);
        } else {
            take(h, req, body, len);
        }
    }
}
