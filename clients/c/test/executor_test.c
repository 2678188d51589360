/* SPDX-License-Identifier: Apache-2.0 */
/* An executor from outside, over real connections: on the loop's thread and with a pool. */
#include "jobflow_executor.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <event2/buffer.h>
#include <event2/http.h>

#include "rig.h"

#define SECRET "a secret of the shop"
#define OLD_SECRET "its secret before"

struct world {
    struct jobflow_executor *ex;
    uint16_t port;
    pthread_t thread;
    atomic_int n_calls;   /* of any handler */
    atomic_int n_inside;  /* in "hold" now */
    atomic_bool released; /* lets "hold" return */
    atomic_int n_logs;
};

static void on_log(void *ctx, const char *text)
{
    struct world *w = ctx;
    (void)text;

    atomic_fetch_add(&w->n_logs, 1);
}

/* ---- Handlers ---------------------------------------------------------------------------- */

/* Answers what the payload says. */
static struct jobflow_answer on_say(const struct jobflow_task *task, void *ctx)
{
    struct world *w = ctx;

    atomic_fetch_add(&w->n_calls, 1);
    if (strcmp(task->payload_text, "\"fail\"") == 0)
        return jobflow_fail("never");
    if (strcmp(task->payload_text, "\"retry\"") == 0)
        return jobflow_retry(1200, "attempt %d", task->attempt);
    if (strcmp(task->payload_text, "\"snooze\"") == 0)
        return jobflow_snooze(5000, "closed");
    if (strcmp(task->payload_text, "\"later\"") == 0)
        return jobflow_later();
    return jobflow_success("%s", task->payload_text);
}

static bool is_released(void *ctx)
{
    struct world *w = ctx;

    return atomic_load(&w->released);
}

static struct jobflow_answer on_hold(const struct jobflow_task *task, void *ctx)
{
    struct world *w = ctx;
    (void)task;

    atomic_fetch_add(&w->n_calls, 1);
    atomic_fetch_add(&w->n_inside, 1);
    rig_wait(is_released, w);
    atomic_fetch_sub(&w->n_inside, 1);
    return jobflow_success("held");
}

static bool is_stopping(void *ctx)
{
    struct world *w = ctx;

    return jobflow_executor_is_stopping(w->ex);
}

static struct jobflow_answer on_until_stop(const struct jobflow_task *task, void *ctx)
{
    struct world *w = ctx;
    (void)task;

    atomic_fetch_add(&w->n_inside, 1);
    rig_wait(is_stopping, w);
    return jobflow_success("ended early");
}

/* ---- World ------------------------------------------------------------------------------- */

static void *run(void *ctx)
{
    struct world *w = ctx;

    return (void *)(intptr_t)jobflow_executor_run(w->ex);
}

static void begin(struct world *w, struct jobflow_config config)
{
    *w = (struct world){0};
    config.service = "shop";
    config.on_log = on_log;
    config.log_ctx = w;
    assert_int_equal(jobflow_executor_new(&config, &w->ex), 0);
    assert_int_equal(jobflow_executor_handle(w->ex, "say", on_say, w), 0);
    assert_int_equal(jobflow_executor_handle(w->ex, "hold", on_hold, w), 0);
    assert_int_equal(jobflow_executor_handle(w->ex, "until-stop", on_until_stop, w), 0);
    w->port = jobflow_executor_port(w->ex);
    assert_int_equal(pthread_create(&w->thread, NULL, run, w), 0);
}

static void join(struct world *w)
{
    void *rc;

    assert_int_equal(pthread_join(w->thread, &rc), 0);
    assert_null(rc);
    jobflow_executor_free(w->ex);
}

static void end(struct world *w)
{
    jobflow_executor_stop(w->ex);
    join(w);
}

static const char *trace(unsigned n)
{
    static char text[33];

    (void)snprintf(text, sizeof(text), "%032x", n);
    return text;
}

/* Sends a delivery whose answer is read later. */
static int deliver_async(struct world *w, unsigned n, int attempt, const char *handler)
{
    char path[64];
    char body[2048];

    (void)snprintf(path, sizeof(path), "/jobflow/%s", handler);
    rig_envelope(body, sizeof(body), trace(n), attempt, handler, "1");
    return rig_send(w->port, "POST", path, "", body);
}

static bool one_is_inside(void *ctx)
{
    return atomic_load(&((struct world *)ctx)->n_inside) == 1;
}

static bool two_are_inside(void *ctx)
{
    return atomic_load(&((struct world *)ctx)->n_inside) == 2;
}

/* ---- Answers ----------------------------------------------------------------------------- */

static void expect(struct reply r, int status, const char *body)
{
    assert_string_equal(r.body, body);
    assert_int_equal(r.status, status);
}

static void each_answer(unsigned n_threads)
{
    struct world w;

    begin(&w, (struct jobflow_config){.n_threads = n_threads});
    expect(rig_deliver(w.port, trace(1), 1, "say", "[1.10]"), 200,
           "{\"success\":true,\"message\":\"[1.10]\"}");
    expect(rig_deliver(w.port, trace(2), 1, "say", "\"fail\""), 422,
           "{\"success\":false,\"retryable\":false,\"message\":\"never\"}");
    struct reply r = rig_deliver(w.port, trace(3), 4, "say", "\"retry\"");
    expect(r, 500,
           "{\"success\":false,\"retryable\":true,\"retryAfter\":\"1200ms\","
           "\"message\":\"attempt 4\"}");
    assert_non_null(strstr(r.head, "Retry-After: 2")); /* whole seconds, never too early */
    assert_non_null(strstr(r.head, "Content-Type: application/json"));
    expect(rig_deliver(w.port, trace(4), 1, "say", "\"snooze\""), 200,
           "{\"snooze\":\"5000ms\",\"message\":\"closed\"}");
    expect(rig_deliver(w.port, trace(5), 1, "say", "\"later\""), 202, "{\"success\":true}");
    assert_int_equal(atomic_load(&w.n_calls), 5);
    end(&w);
}

static void each_answer_on_the_loop(void **state)
{
    (void)state;
    each_answer(0);
}

static void each_answer_with_a_pool(void **state)
{
    (void)state;
    each_answer(4);
}

static void bad_requests_are_refused(void **state)
{
    struct world w;
    char body[2048];
    static char large[70000];
    (void)state;

    begin(&w, (struct jobflow_config){.max_body = 65536});
    rig_envelope(body, sizeof(body), RIG_TRACE, 1, "say", "1");
    assert_int_equal(rig_read(rig_send(w.port, "PUT", "/jobflow/say", "", body)).status, 405);
    assert_int_equal(rig_post(w.port, "/jobflow/unheard-of", "", body).status, 404);
    assert_int_equal(rig_post(w.port, "/say", "", body).status, 404);
    assert_int_equal(rig_post(w.port, "/jobflow/hold", "", body).status, 400);
    assert_int_equal(rig_post(w.port, "/jobflow/say", "", "").status, 400);
    expect(rig_post(w.port, "/jobflow/say", "", "[]"), 400,
           "{\"success\":false,\"retryable\":true,\"message\":\"the body is no JSON object\"}");
    assert_int_equal(rig_deliver(w.port, "XYZ", 1, "say", "1").status, 400);
    char *service = strstr(body, "shop");
    memcpy(service, "ship", 4);
    assert_int_equal(rig_post(w.port, "/jobflow/say", "", body).status, 421);
    memset(large, 'x', sizeof(large) - 1);
    struct reply r = rig_post(w.port, "/jobflow/say", "", large);
    assert_true(r.status == 413 || r.status == 0); /* 0: its answer met our unsent bytes */
    assert_int_equal(atomic_load(&w.n_calls), 0);
    int n_logs = atomic_load(&w.n_logs);
    assert_true(n_logs >= 1 && n_logs <= 5); /* at most one a second */
    assert_int_equal(rig_deliver(w.port, RIG_TRACE, 1, "say", "1").status, 200);
    end(&w);
}

/* ---- Signatures -------------------------------------------------------------------------- */

static struct reply signed_by(struct world *w, const char *secret, int64_t age_s, unsigned n)
{
    char body[2048];
    char timestamp[32];
    char signature[128];
    char headers[512];

    rig_envelope(body, sizeof(body), trace(n), 1, "say", "1");
    (void)snprintf(timestamp, sizeof(timestamp), "%lld", (long long)(time(NULL) - age_s));
    rig_sign(signature, sizeof(signature), secret, strlen(secret), trace(n), timestamp, body);
    (void)snprintf(headers, sizeof(headers),
                   "webhook-id: %s\r\nWebhook-Timestamp: %s\r\nwebhook-signature: %s\r\n", trace(n),
                   timestamp, signature);
    return rig_post(w->port, "/jobflow/say", headers, body);
}

static void signatures_are_demanded(void **state)
{
    struct world w;
    (void)state;

    begin(&w, (struct jobflow_config){.secrets = {SECRET, OLD_SECRET}, .tolerance_s = 60});
    assert_int_equal(signed_by(&w, SECRET, 0, 1).status, 200);
    assert_int_equal(signed_by(&w, OLD_SECRET, 0, 2).status, 200);
    assert_int_equal(atomic_load(&w.n_calls), 2);
    assert_int_equal(signed_by(&w, "somebody else's..", 0, 3).status, 401);
    assert_int_equal(signed_by(&w, SECRET, 120, 3).status, 401);
    assert_int_equal(signed_by(&w, SECRET, -120, 3).status, 401);
    assert_int_equal(rig_deliver(w.port, trace(3), 1, "say", "1").status, 401);
    assert_int_equal(atomic_load(&w.n_calls), 2);
    end(&w);
}

/* ---- Repeats ----------------------------------------------------------------------------- */

static void repeats(unsigned n_threads)
{
    struct world w;

    begin(&w, (struct jobflow_config){.n_threads = n_threads});
    assert_int_equal(rig_deliver(w.port, trace(1), 1, "say", "1").status, 200);
    for (int attempt = 1; attempt <= 3; attempt++)
        expect(rig_deliver(w.port, trace(1), attempt, "say", "1"), 200,
               "{\"success\":true,\"message\":\"done by an earlier delivery\"}");
    assert_int_equal(atomic_load(&w.n_calls), 1);

    /* What did not succeed is called again. */
    assert_int_equal(rig_deliver(w.port, trace(2), 1, "say", "\"retry\"").status, 500);
    assert_int_equal(rig_deliver(w.port, trace(2), 2, "say", "1").status, 200);
    assert_int_equal(atomic_load(&w.n_calls), 3);

    /* The same attempt again is not; the next one is, since the first was given up. */
    assert_int_equal(rig_deliver(w.port, trace(3), 1, "say", "\"later\"").status, 202);
    assert_int_equal(rig_deliver(w.port, trace(3), 1, "say", "\"later\"").status, 202);
    assert_int_equal(atomic_load(&w.n_calls), 4);
    assert_int_equal(rig_deliver(w.port, trace(3), 2, "say", "\"later\"").status, 202);
    assert_int_equal(atomic_load(&w.n_calls), 5);
    end(&w);
}

static void repeats_on_the_loop(void **state)
{
    (void)state;
    repeats(0);
}

static void repeats_with_a_pool(void **state)
{
    (void)state;
    repeats(4);
}

static void what_is_running_is_put_off(void **state)
{
    struct world w;
    (void)state;

    begin(&w, (struct jobflow_config){.n_threads = 2});
    int first = deliver_async(&w, 1, 1, "hold");
    rig_wait(one_is_inside, &w);
    for (int attempt = 1; attempt <= 2; attempt++)
        expect(rig_deliver(w.port, trace(1), attempt, "hold", "1"), 200,
               "{\"snooze\":\"5000ms\",\"message\":\"an earlier delivery is still being worked "
               "on\"}");
    atomic_store(&w.released, true);
    assert_int_equal(rig_read(first).status, 200);
    expect(rig_deliver(w.port, trace(1), 2, "hold", "1"), 200,
           "{\"success\":true,\"message\":\"done by an earlier delivery\"}");
    assert_int_equal(atomic_load(&w.n_calls), 1);
    end(&w);
}

/* The success of an asynchronous attempt counts even if the node refuses to hear of it. */
static void a_result_is_remembered(void **state)
{
    static const char *const stale[] = {"409"};
    struct rig_node *node = rig_node_new(stale, 1);
    struct jobflow_answer done = jobflow_success("done");
    struct jobflow_answer failed = jobflow_retry(0, "broken");
    struct world w;
    (void)state;

    begin(&w, (struct jobflow_config){.node_url = rig_node_url(node), .skip_registration = true});
    assert_int_equal(rig_deliver(w.port, trace(1), 1, "say", "\"later\"").status, 202);
    assert_int_equal(jobflow_result_send(w.ex, trace(1), 1, &done), JOBFLOW_ESTALE);
    assert_int_equal(rig_deliver(w.port, trace(1), 2, "say", "\"later\"").status, 200);
    assert_int_equal(atomic_load(&w.n_calls), 1);
    assert_int_equal(rig_deliver(w.port, trace(2), 1, "say", "\"later\"").status, 202);
    assert_int_equal(jobflow_result_send(w.ex, trace(2), 1, &failed), JOBFLOW_ESTALE);
    assert_int_equal(rig_deliver(w.port, trace(2), 2, "say", "1").status, 200);
    assert_int_equal(atomic_load(&w.n_calls), 3);
    end(&w);
    rig_node_free(node);
}

/* ---- Load and the end -------------------------------------------------------------------- */

static void too_many_are_given_back(void **state)
{
    struct world w;
    int held[3];
    (void)state;

    begin(&w, (struct jobflow_config){.n_threads = 2, .max_waiting = 1});
    held[0] = deliver_async(&w, 1, 1, "hold");
    held[1] = deliver_async(&w, 2, 1, "hold");
    rig_wait(two_are_inside, &w);
    held[2] = deliver_async(&w, 3, 1, "hold");
    /* Its place in the queue cannot be seen from outside; what is not there is. */
    struct reply r;
    do
        r = rig_deliver(w.port, trace(3), 1, "hold", "1");
    while (!strstr(r.body, "still being worked on") && r.status == 200);
    r = rig_deliver(w.port, trace(4), 1, "hold", "1");
    expect(r, 503,
           "{\"success\":false,\"retryable\":true,\"retryAfter\":\"1000ms\","
           "\"message\":\"too many tasks wait\"}");
    assert_non_null(strstr(r.head, "Retry-After: 1"));
    atomic_store(&w.released, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(rig_read(held[i]).status, 200);
    /* What was given back is not taken for one that is running. */
    expect(rig_deliver(w.port, trace(4), 2, "hold", "1"), 200,
           "{\"success\":true,\"message\":\"held\"}");
    assert_int_equal(atomic_load(&w.n_calls), 4);
    end(&w);
}

static void many_at_once(void **state)
{
    struct world w;
    int sockets[60];
    (void)state;

    begin(&w, (struct jobflow_config){.n_threads = 4, .max_seen = 100});
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 60; i++)
            sockets[i] = deliver_async(&w, (unsigned)round * 60 + i, 1, "say");
        for (unsigned i = 0; i < 60; i++)
            expect(rig_read(sockets[i]), 200, "{\"success\":true,\"message\":\"1\"}");
    }
    assert_int_equal(atomic_load(&w.n_calls), 180);
    end(&w);
}

static void a_caller_that_leaves_does_no_harm(void **state)
{
    struct world w;
    (void)state;

    begin(&w, (struct jobflow_config){.n_threads = 2});
    int fd = deliver_async(&w, 1, 1, "hold");
    rig_wait(one_is_inside, &w);
    struct linger now = {1, 0};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
    close(fd);
    atomic_store(&w.released, true);
    struct reply r;
    do
        r = rig_deliver(w.port, trace(1), 2, "hold", "1");
    while (strstr(r.body, "snooze"));
    expect(r, 200, "{\"success\":true,\"message\":\"done by an earlier delivery\"}");
    end(&w);
}

static void a_stop_lets_handlers_end(void **state)
{
    struct world w;
    (void)state;

    begin(&w, (struct jobflow_config){.n_threads = 1});
    int running = deliver_async(&w, 1, 1, "until-stop");
    rig_wait(one_is_inside, &w);
    int waiting = deliver_async(&w, 2, 1, "until-stop");
    while (rig_deliver(w.port, trace(2), 1, "until-stop", "1").status != 200)
        ;
    jobflow_executor_stop(w.ex);
    struct reply r = rig_read(running);
    expect(r, 200, "{\"success\":true,\"message\":\"ended early\"}");
    assert_non_null(strstr(r.head, "Connection: close"));
    struct reply back = rig_read(waiting);
    assert_int_equal(back.status, 503);
    assert_non_null(strstr(back.body, "stopping"));
    uint16_t port = w.port;
    join(&w);
    assert_int_equal(rig_deliver(port, trace(3), 1, "say", "1").status, 0);
}

/* An attempt that is over when its turn comes is not begun. */
static void a_deadline_is_looked_at(void **state)
{
    struct world w;
    char body[2048];
    (void)state;

    begin(&w, (struct jobflow_config){0});
    rig_envelope(body, sizeof(body), trace(1), 1, "say", "1");
    memcpy(strstr(body, "12:01:00.007Z"), "12:00:00.007Z", 13);
    assert_int_equal(rig_post(w.port, "/jobflow/say", "", body).status, 503);
    assert_int_equal(atomic_load(&w.n_calls), 0);
    assert_int_equal(rig_deliver(w.port, trace(1), 2, "say", "1").status, 200);
    end(&w);
}

static void a_stop_before_the_start(void **state)
{
    struct jobflow_config config = {.service = "shop", .n_threads = 2};
    struct jobflow_executor *ex = NULL;
    (void)state;

    assert_int_equal(jobflow_executor_new(&config, &ex), 0);
    jobflow_executor_stop(ex);
    assert_int_equal(jobflow_executor_run(ex), 0);
    jobflow_executor_free(ex);
    jobflow_executor_free(NULL);
}

/* ---- Configuration, and the program's own paths ------------------------------------------ */

static void bad_configurations(void **state)
{
    struct world w = {0};
    const struct jobflow_config bad[] = {
        {.service = NULL},
        {.service = ""},
        {.service = "a/b"},
        {.service = "shop", .path = "jobflow"},
        {.service = "shop", .path = "/"},
        {.service = "shop", .path = "/jobflow/"},
        {.service = "shop", .n_threads = 65},
        {.service = "shop", .node_url = "file:///etc/passwd"},
        {.service = "shop", .secrets = {"short"}},
        {.service = "shop", .secrets = {NULL, SECRET}},
        {.service = "shop", .address = "0.0.0.0", .node_url = "http://127.0.0.1:1"},
    };
    struct jobflow_executor *ex = NULL;
    (void)state;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct jobflow_config config = bad[i];
        config.on_log = on_log;
        config.log_ctx = &w;
        assert_int_equal(jobflow_executor_new(&config, &ex), JOBFLOW_EINVAL);
        assert_int_equal(atomic_load(&w.n_logs), i + 1);
        assert_null(ex);
    }
}

static void a_taken_port(void **state)
{
    struct world w;
    struct jobflow_executor *ex = NULL;
    (void)state;

    begin(&w, (struct jobflow_config){0});
    struct jobflow_config config = {
        .service = "shop", .port = w.port, .on_log = on_log, .log_ctx = &w};
    assert_int_equal(jobflow_executor_new(&config, &ex), JOBFLOW_EIO);
    end(&w);
}

static void handlers_are_checked(void **state)
{
    struct world w = {0};
    struct jobflow_config config = {.service = "shop", .on_log = on_log, .log_ctx = &w};
    struct jobflow_executor *ex = NULL;
    char name[32];
    (void)state;

    assert_int_equal(jobflow_executor_new(&config, &ex), 0);
    assert_int_equal(jobflow_executor_handle(ex, "a b", on_say, &w), JOBFLOW_EINVAL);
    assert_int_equal(jobflow_executor_handle(ex, "", on_say, &w), JOBFLOW_EINVAL);
    assert_int_equal(jobflow_executor_handle(ex, "a", NULL, &w), JOBFLOW_EINVAL);
    for (int i = 0; i < JOBFLOW_HANDLERS_MAX; i++) {
        (void)snprintf(name, sizeof(name), "h-%d", i);
        assert_int_equal(jobflow_executor_handle(ex, name, on_say, &w), 0);
        if (i == 0)
            assert_int_equal(jobflow_executor_handle(ex, name, on_say, &w), JOBFLOW_EINVAL);
    }
    assert_int_equal(jobflow_executor_handle(ex, "more", on_say, &w), JOBFLOW_EINVAL);
    jobflow_executor_free(ex);
}

static void on_own_path(struct evhttp_request *req, void *ctx)
{
    (void)ctx;
    evhttp_send_reply(req, 204, NULL, NULL);
}

static void the_program_has_paths_of_its_own(void **state)
{
    struct world w = {0};
    struct jobflow_config config = {.service = "shop", .path = "/tasks/of", .n_threads = 1};
    char body[2048];
    (void)state;

    assert_int_equal(jobflow_executor_new(&config, &w.ex), 0);
    assert_int_equal(jobflow_executor_handle(w.ex, "say", on_say, &w), 0);
    evhttp_set_gencb(jobflow_executor_http(w.ex), on_own_path, NULL);
    w.port = jobflow_executor_port(w.ex);
    assert_int_equal(pthread_create(&w.thread, NULL, run, &w), 0);
    rig_envelope(body, sizeof(body), RIG_TRACE, 1, "say", "1");
    assert_int_equal(rig_post(w.port, "/tasks/of/say", "", body).status, 200);
    assert_int_equal(rig_read(rig_send(w.port, "GET", "/orders", "", "")).status, 204);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_answer_on_the_loop),
        cmocka_unit_test(each_answer_with_a_pool),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(signatures_are_demanded),
        cmocka_unit_test(repeats_on_the_loop),
        cmocka_unit_test(repeats_with_a_pool),
        cmocka_unit_test(what_is_running_is_put_off),
        cmocka_unit_test(a_result_is_remembered),
        cmocka_unit_test(too_many_are_given_back),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(a_caller_that_leaves_does_no_harm),
        cmocka_unit_test(a_stop_lets_handlers_end),
        cmocka_unit_test(a_deadline_is_looked_at),
        cmocka_unit_test(a_stop_before_the_start),
        cmocka_unit_test(bad_configurations),
        cmocka_unit_test(a_taken_port),
        cmocka_unit_test(handlers_are_checked),
        cmocka_unit_test(the_program_has_paths_of_its_own),
    };

    return cmocka_run_group_tests_name("clients/executor", tests, NULL, NULL);
}
