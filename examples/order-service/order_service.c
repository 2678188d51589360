/* SPDX-License-Identifier: Apache-2.0 */
/* A shop that cancels orders which are not paid in time, with JobFlow as its alarm clock.
 *
 * An order is stored first and its task submitted right after. If JobFlow cannot be reached just
 * then, a timer submits it later: the order's id is in the bizUuid, so a task that did arrive is
 * not made twice. When the time has come JobFlow calls POST /jobflow/cancel-order, perhaps more
 * than once; the order is cancelled only if it is still unpaid, so neither a repeat nor a payment
 * in the same instant does harm. */
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "examples/order-service/jobflow_client.h"
#include "examples/order-service/orders.h"

#define SERVICE "order-service"
#define DEFAULT_TIMEOUT "30m"

struct app {
    sqlite3 *db;
    struct jobflow *jobflow;
    struct event_base *base;
    char base_url[256];
    bool registered;
};

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

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

/* "2026-01-31T12:34:56.789Z" in milliseconds. */
static int64_t parse_time(const char *text)
{
    struct tm tm = {0};
    char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);

    return rest ? (int64_t)timegm(&tm) * 1000 + (*rest == '.' ? atoi(rest + 1) : 0) : 0;
}

static bool is_order_id(const char *id)
{
    size_t len = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_");

    return len > 0 && len <= ORDER_ID_MAX && id[len] == '\0';
}

/* ---- Answers ----------------------------------------------------------------------------- */

/* Takes `body`. */
static void answer(struct evhttp_request *req, int status, json_t *body)
{
    char *text = json_dumps(body, JSON_COMPACT);
    struct evbuffer *out = evbuffer_new();

    json_decref(body);
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
    answer(req, status, json_pack("{s:s}", "error", detail));
}

static json_t *read_body(struct evhttp_request *req)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    size_t len = evbuffer_get_length(in);

    return json_loadb((const char *)evbuffer_pullup(in, -1), len, 0, NULL);
}

/* ---- Orders ------------------------------------------------------------------------------ */

static void biz_uuid_of(const char *id, char dst[ORDER_ID_MAX + 16])
{
    snprintf(dst, ORDER_ID_MAX + 16, "order-timeout:%s", id);
}

/* Gives JobFlow the task that cancels the order. */
static long schedule(struct app *app, const struct order *o, json_t **ret)
{
    char biz_uuid[ORDER_ID_MAX + 16];

    biz_uuid_of(o->id, biz_uuid);
    json_t *task =
        json_pack("{s:s, s:s, s:s, s:s, s:{s:s}}", "bizUuid", biz_uuid, "serviceName", SERVICE,
                  "handler", "cancel-order", "delay", o->timeout, "payload", "orderId", o->id);
    long status = jobflow_submit(app->jobflow, task, ret);
    if (status == 200 || status == 201)
        orders_set_scheduled(app->db, o->id);
    return status;
}

/* POST /orders {"orderId": …, "timeout": "30m"}, both optional. */
static void place_order(struct app *app, struct evhttp_request *req)
{
    char id[ORDER_ID_MAX + 1];
    const char *given = NULL;
    const char *timeout = DEFAULT_TIMEOUT;
    struct order o;
    json_t *task = NULL;
    json_t *body = read_body(req);

    snprintf(id, sizeof(id), "o-%08x%08x", (unsigned)time(NULL), (unsigned)random());
    if (json_unpack(body, "{s?s, s?s}", "orderId", &given, "timeout", &timeout) != 0 ||
        (given && !is_order_id(given)) || strlen(timeout) >= sizeof(o.timeout)) {
        refuse(req, 400,
               "expected {\"orderId\": \"letters, digits, - and _\", \"timeout\": \"30m\"}");
        goto out;
    }
    if (!orders_add(app->db, given ? given : id, timeout) ||
        !orders_find(app->db, given ? given : id, &o)) {
        refuse(req, 500, "the order could not be stored");
        goto out;
    }
    long status = schedule(app, &o, &task);
    if (status >= 400 && status < 500 && !o.scheduled) {
        orders_remove(app->db, o.id);
        answer(req, 400, json_pack("{s:s, s:O*}", "error", "JobFlow refused", "reason", task));
        goto out;
    }
    say("order=%s placed, to be paid within %s", o.id, o.timeout);
    answer(req, status == 200 ? 200 : 201,
           json_pack("{s:s, s:s, s:O*, s:O*}", "orderId", o.id, "status", o.status, "traceId",
                     json_object_get(task, "traceId"), "payUntil",
                     json_object_get(task, "executeTime")));
out:
    json_decref(task);
    json_decref(body);
}

/* POST /orders/{id}/pay */
static void pay_order(struct app *app, struct evhttp_request *req, const char *id)
{
    char biz_uuid[ORDER_ID_MAX + 16];
    struct order o;
    json_t *ignored;
    bool changed;

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
    long status = jobflow_cancel(app->jobflow, biz_uuid, &ignored);
    json_decref(ignored);
    say("order=%s paid, its task: %s", id, status == 200 ? "cancelled" : "left to find it paid");
    answer(req, 200,
           json_pack("{s:s, s:s, s:b}", "orderId", id, "status", o.status, "taskCancelled",
                     status == 200));
}

static void show_order(struct app *app, struct evhttp_request *req, const char *id)
{
    struct order o;

    if (!orders_find(app->db, id, &o))
        refuse(req, 404, "no such order");
    else
        answer(req, 200, json_pack("{s:s, s:s}", "orderId", o.id, "status", o.status));
}

/* POST /jobflow/cancel-order: what JobFlow calls when the time has come. */
static void handle_cancel_order(struct app *app, struct evhttp_request *req)
{
    const char *id;
    const char *execute_time;
    int attempt;
    bool changed;
    json_t *envelope = read_body(req);

    if (json_unpack(envelope, "{s:s, s:i, s:{s:s}}", "executeTime", &execute_time, "attempt",
                    &attempt, "payload", "orderId", &id) != 0) {
        refuse(req, 400, "not a task of ours"); /* 400 tells JobFlow not to retry */
    } else if (!orders_end(app->db, id, "cancelled", &changed)) {
        refuse(req, 503, "the database is away"); /* and this one to retry */
    } else {
        const char *did = changed ? "cancelled" : "left alone, it is not unpaid";
        int64_t late_ms = now_ms() - parse_time(execute_time);
        say("order=%s %s attempt=%d late_ms=%lld", id, did, attempt, (long long)late_ms);
        answer(req, 200, json_pack("{s:b, s:s}", "success", 1, "message", did));
    }
    json_decref(envelope);
}

/* ---- The program ------------------------------------------------------------------------- */

static void on_request(struct evhttp_request *req, void *ctx)
{
    struct app *app = ctx;
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(req));
    bool post = evhttp_request_get_command(req) == EVHTTP_REQ_POST;
    bool get = evhttp_request_get_command(req) == EVHTTP_REQ_GET;
    char id[ORDER_ID_MAX + 1];
    int end = 0;

    if (post && strcmp(path, "/orders") == 0)
        place_order(app, req);
    else if (post && strcmp(path, "/jobflow/cancel-order") == 0)
        handle_cancel_order(app, req);
    else if (post && sscanf(path, "/orders/%64[^/]/pay%n", id, &end) == 1 && end > 0 && !path[end])
        pay_order(app, req, id);
    else if (get && sscanf(path, "/orders/%64[^/]%n", id, &end) == 1 && !path[end])
        show_order(app, req, id);
    else
        refuse(req, 404, "no such path");
}

/* Twice a second: registers until that has worked, then submits what could not be before. */
static void on_timer(evutil_socket_t fd, short what, void *ctx)
{
    struct app *app = ctx;
    struct order o;
    json_t *ret = NULL;
    (void)fd;
    (void)what;

    if (!app->registered) {
        long status = jobflow_register(app->jobflow, SERVICE, app->base_url, &ret);
        app->registered = status == 200 || status == 201;
        if (app->registered)
            say("registered at JobFlow as %s", app->base_url);
    } else if (orders_find_unscheduled(app->db, &o)) {
        long status = schedule(app, &o, &ret);
        bool changed;
        if (status >= 400 && status < 500 && orders_end(app->db, o.id, "cancelled", &changed))
            say("order=%s cancelled: JobFlow refused its time-out", o.id);
    }
    json_decref(ret);
}

static void on_signal(evutil_socket_t fd, short what, void *ctx)
{
    struct app *app = ctx;
    (void)fd;
    (void)what;

    event_base_loopbreak(app->base);
}

static int serve(struct app *app, const char *address, int port)
{
    struct timeval half_second = {0, 500000};
    int rc = 1;
    struct evhttp *http = evhttp_new(app->base);
    struct event *stop = evsignal_new(app->base, SIGTERM, on_signal, app);
    struct event *interrupt = evsignal_new(app->base, SIGINT, on_signal, app);
    struct event *timer = event_new(app->base, -1, EV_PERSIST, on_timer, app);

    if (http && stop && interrupt && timer && event_add(stop, NULL) == 0 &&
        event_add(interrupt, NULL) == 0 && event_add(timer, &half_second) == 0) {
        evhttp_set_max_body_size(http, 65536);
        evhttp_set_gencb(http, on_request, app);
        if (evhttp_bind_socket(http, address, (ev_uint16_t)port) == 0) {
            say("listens on http://%s:%d", address, port);
            event_active(timer, EV_TIMEOUT, 0);
            rc = event_base_dispatch(app->base) < 0;
        } else {
            perror("listen");
        }
    }
    for (size_t i = 0; i < 3; i++) {
        struct event *e = (struct event *[]){stop, interrupt, timer}[i];
        if (e)
            event_free(e);
    }
    if (http)
        evhttp_free(http);
    return rc;
}

int main(int argc, char **argv)
{
    struct app app = {0};
    int rc = 1;

    if (argc != 5) {
        fprintf(stderr, "Usage: order-service ADDRESS PORT JOBFLOW_URL DATABASE\n"
                        "e.g.   order-service 127.0.0.1 9090 http://127.0.0.1:8080 orders.db\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    srandom((unsigned)now_ms());
    snprintf(app.base_url, sizeof(app.base_url), "http://%s:%s/jobflow", argv[1], argv[2]);
    app.db = orders_open(argv[4]);
    app.jobflow = jobflow_new(argv[3]);
    app.base = event_base_new();
    if (app.db && app.jobflow && app.base)
        rc = serve(&app, argv[1], atoi(argv[2]));
    if (app.base)
        event_base_free(app.base);
    jobflow_free(app.jobflow);
    sqlite3_close(app.db);
    return rc;
}
