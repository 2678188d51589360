/* SPDX-License-Identifier: Apache-2.0 */
/* A shop that cancels orders which are not paid in time, with JobFlow as its alarm clock.
 *
 * An order is stored first and its task submitted right after. If JobFlow cannot be reached just
 * then, a timer submits it later: the order's id is in the bizUuid, so a task that did arrive is
 * not made twice. When the time has come JobFlow calls POST /jobflow/cancel-order, perhaps more
 * than once; the order is cancelled only if it is still unpaid, so neither a repeat nor a payment
 * in the same instant does harm.
 *
 * JobFlow knows where to call because the executor registers this process, over and over, and takes
 * that back at the end. Several such processes may share the database. */
#include <cjson/cJSON.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <jobflow_executor.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "examples/order-service/orders.h"

#define SERVICE "order-service"
#define DEFAULT_TIMEOUT "30m"
#define BIZ_UUID_SIZE (ORDER_ID_MAX + 16)

struct app {
    sqlite3 *db;
    struct jobflow_executor *executor;
};

static struct jobflow_executor *stopped_by_signals;

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    char line[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    printf("order-service %s\n", line);
    fflush(stdout);
}

static bool is_order_id(const char *id)
{
    size_t len = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_");

    return len > 0 && len <= ORDER_ID_MAX && id[len] == '\0';
}

/* ---- Answers ----------------------------------------------------------------------------- */

/* Takes `body`. */
static void answer(struct evhttp_request *req, int status, cJSON *body)
{
    char *text = cJSON_PrintUnformatted(body);
    struct evbuffer *out = evbuffer_new();

    cJSON_Delete(body);
    evhttp_add_header(evhttp_request_get_output_headers(req), "Content-Type", "application/json");
    if (out && text)
        evbuffer_add_printf(out, "%s\n", text);
    evhttp_send_reply(req, text ? status : 500, NULL, out);
    if (out)
        evbuffer_free(out);
    free(text);
}

static void refuse(struct evhttp_request *req, int status, const char *detail)
{
    cJSON *body = cJSON_CreateObject();

    cJSON_AddStringToObject(body, "error", detail);
    answer(req, status, body);
}

static cJSON *order_json(const struct order *o)
{
    cJSON *body = cJSON_CreateObject();

    cJSON_AddStringToObject(body, "orderId", o->id);
    cJSON_AddStringToObject(body, "status", o->status);
    return body;
}

/* ---- JobFlow ----------------------------------------------------------------------------- */

static void biz_uuid_of(const char *id, char dst[BIZ_UUID_SIZE])
{
    snprintf(dst, BIZ_UUID_SIZE, "order-timeout:%s", id);
}

/* Gives JobFlow the task that cancels the order. Returns the HTTP status, or 0 without an answer;
 * *ret is the answer's JSON or NULL. */
static int schedule(struct app *app, const struct order *o, cJSON **ret)
{
    char biz_uuid[BIZ_UUID_SIZE];
    char *text = NULL;
    int status = 0;
    cJSON *task = cJSON_CreateObject();

    biz_uuid_of(o->id, biz_uuid);
    cJSON_AddStringToObject(task, "bizUuid", biz_uuid);
    cJSON_AddStringToObject(task, "serviceName", SERVICE);
    cJSON_AddStringToObject(task, "handler", "cancel-order");
    cJSON_AddStringToObject(task, "delay", o->timeout);
    cJSON_AddStringToObject(cJSON_AddObjectToObject(task, "payload"), "orderId", o->id);
    char *body = cJSON_PrintUnformatted(task);
    if (body)
        jobflow_call(app->executor, "POST", "/api/delay-tasks", body, &status, &text);
    if (status == 200 || status == 201)
        orders_set_scheduled(app->db, o->id);
    *ret = cJSON_Parse(text);
    free(text);
    free(body);
    cJSON_Delete(task);
    return status;
}

/* What JobFlow calls when the time has come. */
static struct jobflow_answer cancel_order(const struct jobflow_task *task, void *ctx)
{
    struct app *app = ctx;
    const char *id = cJSON_GetStringValue(cJSON_GetObjectItem(task->payload, "orderId"));
    struct timespec now;
    bool changed;

    if (!id)
        return jobflow_fail("not a task of ours");
    if (!orders_end(app->db, id, "cancelled", &changed))
        return jobflow_retry(0, "the database is away");
    const char *did = changed ? "cancelled" : "left alone, it is not unpaid";
    clock_gettime(CLOCK_REALTIME, &now);
    say("order=%s %s attempt=%d late_ms=%lld", id, did, task->attempt,
        (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000 - task->execute_time_ms);
    return jobflow_success("%s", did);
}

/* ---- Orders ------------------------------------------------------------------------------ */

/* False when the member is there and is no text. */
static bool read_text(const cJSON *body, const char *name, const char **ret)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(body, name);

    if (member)
        *ret = cJSON_GetStringValue(member);
    return !member || *ret;
}

/* POST /orders {"orderId": …, "timeout": "30m"}, both optional. */
static void place_order(struct app *app, struct evhttp_request *req, const cJSON *body)
{
    char made[ORDER_ID_MAX + 1];
    const char *id = made;
    const char *timeout = DEFAULT_TIMEOUT;
    struct order o;
    cJSON *task;

    snprintf(made, sizeof(made), "o-%08x%08x", (unsigned)time(NULL), (unsigned)random());
    if (!cJSON_IsObject(body) || !read_text(body, "orderId", &id) || !is_order_id(id) ||
        !read_text(body, "timeout", &timeout) || strlen(timeout) >= sizeof(o.timeout)) {
        refuse(req, 400,
               "expected {\"orderId\": \"letters, digits, - and _\", \"timeout\": \"30m\"}");
        return;
    }
    if (!orders_add(app->db, id, timeout) || !orders_find(app->db, id, &o)) {
        refuse(req, 500, "the order could not be stored");
        return;
    }
    int status = schedule(app, &o, &task);
    if (status >= 400 && status < 500 && !o.scheduled) {
        orders_remove(app->db, o.id);
        cJSON *said = cJSON_CreateObject();
        cJSON_AddStringToObject(said, "error", "JobFlow refused");
        cJSON_AddItemToObject(said, "reason", task);
        answer(req, 400, said);
        return;
    }
    say("order=%s placed, to be paid within %s", o.id, o.timeout);
    cJSON *said = order_json(&o);
    cJSON_AddItemToObject(said, "traceId", cJSON_DetachItemFromObject(task, "traceId"));
    cJSON_AddItemToObject(said, "payUntil", cJSON_DetachItemFromObject(task, "executeTime"));
    answer(req, status == 200 ? 200 : 201, said);
    cJSON_Delete(task);
}

/* POST /orders/{id}/pay */
static void pay_order(struct app *app, struct evhttp_request *req, const char *id)
{
    char biz_uuid[BIZ_UUID_SIZE];
    char path[BIZ_UUID_SIZE + 32];
    struct order o;
    bool changed;
    int status = 0;

    if (!orders_end(app->db, id, "paid", &changed) || !orders_find(app->db, id, &o)) {
        refuse(req, 404, "no such order");
        return;
    }
    if (strcmp(o.status, "paid") != 0) {
        refuse(req, 409, "the order was cancelled before");
        return;
    }
    /* A task that is under way already finds the order paid: nothing depends on this answer. */
    biz_uuid_of(id, biz_uuid);
    snprintf(path, sizeof(path), "/api/delay-tasks/%s", biz_uuid);
    jobflow_call(app->executor, "DELETE", path, NULL, &status, NULL);
    say("order=%s paid, its task: %s", id, status == 200 ? "cancelled" : "left to find it paid");
    cJSON *said = order_json(&o);
    cJSON_AddBoolToObject(said, "taskCancelled", status == 200);
    answer(req, 200, said);
}

static void show_order(struct app *app, struct evhttp_request *req, const char *id)
{
    struct order o;

    if (orders_find(app->db, id, &o))
        answer(req, 200, order_json(&o));
    else
        refuse(req, 404, "no such order");
}

/* ---- The program ------------------------------------------------------------------------- */

/* All paths but those of tasks. */
static void on_request(struct evhttp_request *req, void *ctx)
{
    struct app *app = ctx;
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(req));
    bool post = evhttp_request_get_command(req) == EVHTTP_REQ_POST;
    bool get = evhttp_request_get_command(req) == EVHTTP_REQ_GET;
    char id[ORDER_ID_MAX + 1];
    int end = 0;

    if (post && strcmp(path, "/orders") == 0) {
        struct evbuffer *in = evhttp_request_get_input_buffer(req);
        size_t len = evbuffer_get_length(in);
        cJSON *body = cJSON_ParseWithLength((const char *)evbuffer_pullup(in, -1), len);
        place_order(app, req, body);
        cJSON_Delete(body);
    } else if (post && sscanf(path, "/orders/%64[^/]/pay%n", id, &end) == 1 && end > 0 &&
               !path[end]) {
        pay_order(app, req, id);
    } else if (get && sscanf(path, "/orders/%64[^/]%n", id, &end) == 1 && !path[end]) {
        show_order(app, req, id);
    } else {
        refuse(req, 404, "no such path");
    }
}

/* Twice a second: submits what could not be before. */
static void on_timer(evutil_socket_t fd, short what, void *ctx)
{
    struct app *app = ctx;
    struct order o;
    cJSON *answered;
    bool changed;
    (void)fd;
    (void)what;

    if (!orders_find_unscheduled(app->db, &o))
        return;
    int status = schedule(app, &o, &answered);
    cJSON_Delete(answered);
    if (status >= 400 && status < 500 && orders_end(app->db, o.id, "cancelled", &changed))
        say("order=%s cancelled: JobFlow refused its time-out", o.id);
}

static void on_log(void *ctx, const char *text)
{
    (void)ctx;
    say("%s", text);
}

static void on_signal(int number)
{
    (void)number;
    jobflow_executor_stop(stopped_by_signals);
}

static int serve(struct app *app)
{
    struct timeval half_second = {0, 500000};
    struct event *timer =
        event_new(jobflow_executor_base(app->executor), -1, EV_PERSIST, on_timer, app);
    int rc = -1;

    stopped_by_signals = app->executor;
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    evhttp_set_gencb(jobflow_executor_http(app->executor), on_request, app);
    if (timer && event_add(timer, &half_second) == 0)
        rc = jobflow_executor_handle(app->executor, "cancel-order", cancel_order, app);
    if (rc == 0)
        rc = jobflow_executor_run(app->executor);
    if (timer)
        event_free(timer);
    return rc;
}

int main(int argc, char **argv)
{
    struct app app = {0};
    int rc = -1;

    if (argc != 5) {
        fprintf(stderr, "Usage: order-service ADDRESS PORT JOBFLOW_URL DATABASE\n"
                        "e.g.   order-service 127.0.0.1 9090 http://127.0.0.1:8080 orders.db\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    srandom((unsigned)(time(NULL) ^ getpid()));
    /* One database connection, so handlers run on the loop, one at a time. Who listens on all
     * addresses has to say as base_url at which one JobFlow finds it. */
    struct jobflow_config config = {.service = SERVICE,
                                    .address = argv[1],
                                    .port = (uint16_t)atoi(argv[2]),
                                    .node_url = argv[3],
                                    .on_log = on_log};
    app.db = orders_open(argv[4]);
    if (app.db && jobflow_executor_new(&config, &app.executor) == 0) {
        say("listens on http://%s:%d", argv[1], jobflow_executor_port(app.executor));
        rc = serve(&app);
    }
    jobflow_executor_free(app.executor);
    sqlite3_close(app.db);
    return rc != 0;
}
