/* SPDX-License-Identifier: Apache-2.0 */
/* What an executor tells a node that answers from a script: that it is there, and that it leaves.
 */
#include "jobflow_executor.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "executor_internal.h"
#include "rig.h"
#include "task.h"

#define LOG_SIZE 8192

int __wrap_gethostname(char *name, size_t cap);

static const char *host_name = "pod-7";

int __wrap_gethostname(char *name, size_t cap)
{
    if (!host_name)
        return -1;
    (void)snprintf(name, cap, "%s", host_name);
    return 0;
}

struct world {
    struct rig_node *node;
    struct jobflow_executor *ex;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t lock;
    char log[LOG_SIZE]; /* under the lock: lines, one behind the other */
};

static void on_log(void *ctx, const char *text)
{
    struct world *w = ctx;

    pthread_mutex_lock(&w->lock);
    size_t len = strlen(w->log);
    (void)snprintf(w->log + len, sizeof(w->log) - len, "%s\n", text);
    pthread_mutex_unlock(&w->lock);
}

static unsigned n_logged(struct world *w, const char *what)
{
    unsigned n = 0;

    pthread_mutex_lock(&w->lock);
    for (const char *p = w->log; (p = strstr(p, what)); p++)
        n++;
    pthread_mutex_unlock(&w->lock);
    return n;
}

static struct jobflow_answer on_greet(const struct jobflow_task *task, void *ctx)
{
    (void)ctx;
    return jobflow_success("of %s", task->service);
}

static void *run(void *ctx)
{
    struct world *w = ctx;

    return (void *)(intptr_t)jobflow_executor_run(w->ex);
}

/* Takes the node. */
static void begin(struct world *w, struct rig_node *node, struct jobflow_config config)
{
    *w = (struct world){.node = node};
    assert_int_equal(pthread_mutex_init(&w->lock, NULL), 0);
    config.service = "shop";
    config.node_url = rig_node_url(node);
    config.on_log = on_log;
    config.log_ctx = w;
    assert_int_equal(jobflow_executor_new(&config, &w->ex), 0);
    assert_int_equal(jobflow_executor_handle(w->ex, "greet", on_greet, NULL), 0);
    w->port = jobflow_executor_port(w->ex);
    assert_int_equal(jobflow_executor_registration(w->ex), JOBFLOW_REGISTERING);
    assert_int_equal(pthread_create(&w->thread, NULL, run, w), 0);
}

/* The node stays, so that what it got can be looked at. */
static void stop(struct world *w)
{
    void *rc;

    jobflow_executor_stop(w->ex);
    assert_int_equal(pthread_join(w->thread, &rc), 0);
    assert_null(rc);
    assert_int_equal(jobflow_executor_registration(w->ex), JOBFLOW_LEFT);
    jobflow_executor_free(w->ex);
}

static void end(struct world *w)
{
    rig_node_free(w->node);
    pthread_mutex_destroy(&w->lock);
}

static bool is_registered(void *ctx)
{
    return jobflow_executor_registration(((struct world *)ctx)->ex) == JOBFLOW_REGISTERED;
}

static bool is_registering(void *ctx)
{
    return jobflow_executor_registration(((struct world *)ctx)->ex) == JOBFLOW_REGISTERING;
}

/* The n-th request is the registration of "shop" by this name and for this time. */
static void expect_beat(struct world *w, unsigned n, const char *instance, const char *ttl)
{
    char wanted[512];

    (void)snprintf(wanted, sizeof(wanted),
                   "POST /api/services/shop/instances {\"instance\":\"%s\","
                   "\"baseUrl\":\"http://127.0.0.1:%u/jobflow\",\"ttl\":\"%s\"}",
                   instance, (unsigned)w->port, ttl);
    assert_string_equal(rig_node_request(w->node, n), wanted);
}

static void expect_farewell(struct world *w, unsigned n, const char *service, const char *instance)
{
    char wanted[512];

    (void)snprintf(wanted, sizeof(wanted), "DELETE /api/services/%s/instances/%s ", service,
                   instance);
    assert_string_equal(rig_node_request(w->node, n), wanted);
}

/* A task is taken whatever the registration does; `n` is for a trace id of its own. */
static void expect_taken(struct world *w, unsigned n)
{
    char trace[33];

    (void)snprintf(trace, sizeof(trace), "%032x", n);
    struct reply r = rig_deliver(w->port, trace, 1, "greet", "1");
    assert_string_equal(r.body, "{\"success\":true,\"message\":\"of shop\"}");
    assert_int_equal(r.status, 200);
}

/* ---- Registering ------------------------------------------------------------------------- */

static void it_registers_beats_and_leaves(void **state)
{
    struct world w;
    char instance[64];
    (void)state;

    begin(&w, rig_node_new(SCRIPT("201", "200")), (struct jobflow_config){.ttl_s = 1});
    int64_t began_ms = jfx_now_ms();
    (void)snprintf(instance, sizeof(instance), "pod-7:%u", (unsigned)w.port);
    rig_wait(is_registered, &w);
    rig_node_wait(w.node, 5);
    unsigned n = rig_node_count(w.node);
    /* A third of a second less a tenth of that: never more often, however slow the machine. */
    assert_true(n <= 2 + (jfx_now_ms() - began_ms) / 300);
    stop(&w);
    n = rig_node_count(w.node) - 1;
    for (unsigned i = 0; i < n; i++)
        expect_beat(&w, i, instance, "1s");
    expect_farewell(&w, n, "shop", instance);
    assert_int_equal(n_logged(&w, "shop is registered at JobFlow: pod-7:"), 1);
    assert_int_equal(n_logged(&w, "shop has left JobFlow: pod-7:"), 1);
    end(&w);
}

static void beats_come_at_a_third_of_the_ttl(void **state)
{
    int64_t least = INT64_MAX;
    int64_t most = 0;
    (void)state;

    for (int i = 0; i < 10000; i++) {
        int64_t wait = jfx_beat_wait_ms(15000);
        assert_true(wait >= 4500 && wait <= 5000);
        least = wait < least ? wait : least;
        most = wait > most ? wait : most;
    }
    assert_true(most > least); /* chance has a part in it */
    assert_true(jfx_beat_wait_ms(1000) >= 300 && jfx_beat_wait_ms(1000) <= 333);
}

static void a_node_that_goes_away_is_found_again(void **state)
{
    struct world w;
    (void)state;

    /* The waits between make more than the ttl. */
    begin(&w, rig_node_new(SCRIPT("201", "503", "drop", "500", "503", "503", "503", "200")),
          (struct jobflow_config){.ttl_s = 1});
    rig_wait(is_registered, &w);
    rig_wait(is_registering, &w);
    expect_taken(&w, 1);
    rig_wait(is_registered, &w);
    assert_true(rig_node_count(w.node) >= 8);
    assert_int_equal(n_logged(&w, "shop is registered"), 2);
    assert_int_equal(n_logged(&w, "shop is not registered any more, or not for long: HTTP"), 4);
    stop(&w);
    end(&w);
}

static void a_node_may_come_later_and_restart(void **state)
{
    static const char *const ok[] = {"200"};
    struct world w;
    struct rig_node *node = rig_node_new(ok, 1);
    uint16_t port = rig_node_port(node);
    (void)state;

    begin(&w, node, (struct jobflow_config){.ttl_s = 1});
    for (int i = 0; i < 2; i++) {
        rig_wait(is_registered, &w);
        rig_node_free(w.node);
        rig_wait(is_registering, &w);
        expect_taken(&w, (unsigned)i + 1);
        w.node = rig_node_new_on(port, ok, 1);
    }
    rig_wait(is_registered, &w);
    stop(&w);
    end(&w);
}

/* Nothing but 200 and 201 is a registration, and none of it stops the trying. */
static void bad_answers_are_no_registration(void **state)
{
    struct world w;
    (void)state;

    begin(&w, rig_node_new(SCRIPT("404", "302", "204", "201")), (struct jobflow_config){0});
    rig_wait(is_registered, &w);
    assert_int_equal(rig_node_count(w.node), 4);
    assert_int_equal(n_logged(&w, "shop is not registered yet: HTTP 404 {\"said\":404}"), 1);
    assert_int_equal(n_logged(&w, "shop is not registered yet: HTTP 302"), 1);
    assert_int_equal(n_logged(&w, "shop is not registered yet: HTTP 204"), 1);
    stop(&w);
    end(&w);
}

static void a_lasting_refusal_is_logged_once(void **state)
{
    struct world w;
    (void)state;

    begin(&w, rig_node_new(SCRIPT("404")), (struct jobflow_config){0});
    rig_node_wait(w.node, 4);
    expect_taken(&w, 1);
    assert_true(is_registering(&w));
    stop(&w);
    assert_int_equal(n_logged(&w, "shop is not registered yet"), 1);
    end(&w);
}

static void a_node_that_asks_to_wait_is_heeded(void **state)
{
    struct world w;
    (void)state;

    begin(&w, rig_node_new(SCRIPT("503 1", "201")), (struct jobflow_config){0});
    rig_node_wait(w.node, 1);
    int64_t asked_ms = jfx_now_ms();
    rig_node_wait(w.node, 2);
    assert_true(jfx_now_ms() - asked_ms >= 900); /* by itself it comes again after 200 */
    stop(&w);
    end(&w);
}

/* The first task has to be signed already. */
static void settings_come_first(void **state)
{
    struct world w;
    char wanted[256];
    char instance[64];
    (void)state;

    begin(&w, rig_node_new(SCRIPT("drop", "503", "201", "201", "200")),
          (struct jobflow_config){.secrets = {"a secret of the shop"},
                                  .concurrency = 7,
                                  .timeout = "30s",
                                  .instance = "A.b_c:d-9",
                                  .ttl_s = 600});
    (void)snprintf(instance, sizeof(instance), "pod-7:%u", (unsigned)w.port);
    (void)snprintf(wanted, sizeof(wanted),
                   "PUT /api/services/shop {\"baseUrl\":\"http://127.0.0.1:%u/jobflow\","
                   "\"secret\":\"a secret of the shop\",\"concurrency\":7,\"timeout\":\"30s\"}",
                   (unsigned)w.port);
    rig_wait(is_registered, &w);
    assert_int_equal(rig_node_count(w.node), 4);
    for (unsigned i = 0; i < 3; i++)
        assert_string_equal(rig_node_request(w.node, i), wanted);
    expect_beat(&w, 3, "A.b_c:d-9", "600s");
    stop(&w);
    expect_farewell(&w, 4, "shop", "A.b_c:d-9");
    end(&w);
}

/* Requests of the node that begin so. */
static unsigned n_requests(struct rig_node *node, const char *start)
{
    unsigned n = 0;

    for (unsigned i = 0; i < rig_node_count(node); i++)
        n += strncmp(rig_node_request(node, i), start, strlen(start)) == 0;
    return n;
}

static void several_services(void **state)
{
    struct world w;
    char body[2048];
    (void)state;

    begin(&w, rig_node_new(SCRIPT("201")),
          (struct jobflow_config){.more_services = {NULL, "ship"}, .timeout = "9s"});
    rig_wait(is_registered, &w);
    assert_int_equal(rig_node_count(w.node), 4);
    assert_int_equal(n_requests(w.node, "PUT /api/services/shop {"), 1);
    assert_int_equal(n_requests(w.node, "PUT /api/services/ship {"), 1);
    assert_int_equal(n_requests(w.node, "POST /api/services/shop/instances {"), 1);
    assert_int_equal(n_requests(w.node, "POST /api/services/ship/instances {"), 1);
    expect_taken(&w, 1);
    rig_envelope(body, sizeof(body), RIG_TRACE, 1, "greet", "1");
    char *service = strstr(body, "shop");
    memcpy(service, "ship", 4);
    struct reply r = rig_post(w.port, "/jobflow/greet", "", body);
    assert_string_equal(r.body, "{\"success\":true,\"message\":\"of ship\"}");
    memcpy(service, "slip", 4);
    assert_int_equal(rig_post(w.port, "/jobflow/greet", "", body).status, 421);
    stop(&w);
    assert_int_equal(n_requests(w.node, "DELETE /api/services/shop/instances/pod-7:"), 1);
    assert_int_equal(n_requests(w.node, "DELETE /api/services/ship/instances/pod-7:"), 1);
    end(&w);
}

/* One service that the node refuses keeps the others neither from registering nor from beating. */
static void one_service_is_refused(void **state)
{
    struct world w;
    (void)state;

    begin(&w, rig_node_new(SCRIPT("400", "200")),
          (struct jobflow_config){.more_services = {"ship"}, .ttl_s = 1});
    rig_node_wait(w.node, 3);
    assert_true(n_requests(w.node, "POST /api/services/ship/instances {") >= 1);
    rig_wait(is_registered, &w);
    stop(&w);
    end(&w);
}

/* ---- Leaving ----------------------------------------------------------------------------- */

static void leaving_is_tried_again(void **state)
{
    struct world w;
    (void)state;

    begin(&w, rig_node_new(SCRIPT("201", "500", "drop", "404")), (struct jobflow_config){0});
    rig_wait(is_registered, &w);
    stop(&w);
    assert_int_equal(rig_node_count(w.node), 4);
    assert_int_equal(n_requests(w.node, "DELETE /api/services/shop/instances/pod-7:"), 3);
    assert_int_equal(n_logged(&w, "shop has left"), 1);
    end(&w);
}

/* Until the node knows, it sends tasks: they are taken. A node that does not answer is not waited
 * for for ever. */
static void tasks_are_taken_until_it_has_left(void **state)
{
    struct world w;
    void *rc;
    (void)state;

    begin(&w, rig_node_new(SCRIPT("201", "hang")), (struct jobflow_config){.n_threads = 1});
    rig_wait(is_registered, &w);
    jobflow_executor_stop(w.ex);
    rig_node_wait(w.node, 2);
    assert_true(jobflow_executor_is_stopping(w.ex));
    expect_taken(&w, 1);
    assert_int_equal(pthread_join(w.thread, &rc), 0);
    assert_null(rc);
    assert_int_equal(jobflow_executor_registration(w.ex), JOBFLOW_LEFT);
    assert_int_equal(n_logged(&w, "could not leave JobFlow, which forgets it in 15 s"), 1);
    jobflow_executor_free(w.ex);
    end(&w);
}

/* What the node may have heard is taken back, though its answer never came; and the hanging call
 * holds up no task. */
static void an_unanswered_registration_is_taken_back(void **state)
{
    struct world w;
    (void)state;

    begin(&w, rig_node_new(SCRIPT("hang", "404")), (struct jobflow_config){0});
    rig_node_wait(w.node, 1);
    expect_taken(&w, 1);
    assert_true(is_registering(&w));
    stop(&w);
    assert_int_equal(rig_node_count(w.node), 2);
    assert_int_equal(n_requests(w.node, "DELETE "), 1);
    end(&w);
}

static void who_never_registered_does_not_leave(void **state)
{
    static const char *const bad[] = {"hang", "400"};
    (void)state;

    for (size_t i = 0; i < 2; i++) {
        struct world w;
        begin(&w, rig_node_new(&bad[i], 1), (struct jobflow_config){.timeout = "30s"});
        rig_node_wait(w.node, 1);
        stop(&w);
        assert_int_equal(n_requests(w.node, "PUT "), rig_node_count(w.node));
        end(&w);
    }
}

/* ---- Configuration ----------------------------------------------------------------------- */

static void names_are_made_and_checked(void **state)
{
    static char long_host[200];
    static char long_name[130];
    const char *const hosts[] = {"my host/\xc3\xa4", NULL, "", long_host};
    const char *const starts[] = {"my-host---:", "localhost:", "localhost:", "hhhhhhhh"};
    const struct jobflow_config bad[] = {{.instance = ""},           {.instance = "a/b"},
                                         {.instance = ".."},         {.instance = "a b"},
                                         {.instance = long_name},    {.ttl_s = 601},
                                         {.more_services = {"a b"}}, {.more_services = {"shop"}}};
    struct jobflow_executor *ex = NULL;
    struct world w = {0};
    (void)state;

    assert_int_equal(pthread_mutex_init(&w.lock, NULL), 0);
    memset(long_host, 'h', sizeof(long_host) - 1);
    memset(long_name, 'n', sizeof(long_name) - 1);
    struct jobflow_config config = {.service = "shop", .node_url = "http://127.0.0.1:1"};
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        host_name = hosts[i];
        assert_int_equal(jobflow_executor_new(&config, &ex), 0);
        assert_memory_equal(ex->instance, starts[i], strlen(starts[i]));
        assert_true(strlen(ex->instance) <= 128 && strchr(ex->instance, ':'));
        jobflow_executor_free(ex);
    }
    host_name = "pod-7";
    ex = NULL;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        config = bad[i];
        config.service = "shop";
        config.node_url = "http://127.0.0.1:1";
        config.on_log = on_log;
        config.log_ctx = &w;
        assert_int_equal(jobflow_executor_new(&config, &ex), JOBFLOW_EINVAL);
        assert_null(ex);
        assert_int_equal(n_logged(&w, "configuration: "), i + 1);
    }
    pthread_mutex_destroy(&w.lock);
}

static void without_registration_there_is_no_word(void **state)
{
    struct jobflow_config config = {.service = "shop", .skip_registration = true};
    struct rig_node *node = rig_node_new(SCRIPT("200"));
    struct world w = {.node = node};
    (void)state;

    config.node_url = rig_node_url(node);
    assert_int_equal(jobflow_executor_new(&config, &w.ex), 0);
    assert_int_equal(jobflow_executor_handle(w.ex, "greet", on_greet, NULL), 0);
    w.port = jobflow_executor_port(w.ex);
    assert_int_equal(pthread_create(&w.thread, NULL, run, &w), 0);
    expect_taken(&w, 1);
    assert_int_equal(jobflow_executor_registration(w.ex), JOBFLOW_NOT_REGISTERING);
    jobflow_executor_stop(w.ex);
    assert_int_equal(pthread_join(w.thread, NULL), 0);
    jobflow_executor_free(w.ex);
    assert_int_equal(rig_node_count(node), 0);
    rig_node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_registers_beats_and_leaves),
        cmocka_unit_test(beats_come_at_a_third_of_the_ttl),
        cmocka_unit_test(a_node_that_goes_away_is_found_again),
        cmocka_unit_test(a_node_may_come_later_and_restart),
        cmocka_unit_test(bad_answers_are_no_registration),
        cmocka_unit_test(a_lasting_refusal_is_logged_once),
        cmocka_unit_test(a_node_that_asks_to_wait_is_heeded),
        cmocka_unit_test(settings_come_first),
        cmocka_unit_test(several_services),
        cmocka_unit_test(one_service_is_refused),
        cmocka_unit_test(leaving_is_tried_again),
        cmocka_unit_test(tasks_are_taken_until_it_has_left),
        cmocka_unit_test(an_unanswered_registration_is_taken_back),
        cmocka_unit_test(who_never_registered_does_not_leave),
        cmocka_unit_test(names_are_made_and_checked),
        cmocka_unit_test(without_registration_there_is_no_word),
    };

    return cmocka_run_group_tests_name("clients/register", tests, NULL, NULL);
}
