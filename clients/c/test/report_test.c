/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to a node that answers from a script. */
#include "jobflow_executor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node.h"
#include "rig.h"

static void on_log(void *ctx, const char *text)
{
    (void)ctx;
    (void)text;
}

static struct jobflow_executor *new_executor(struct rig_node *node, unsigned tries)
{
    struct jobflow_executor *ex = NULL;
    struct jobflow_config config = {.service = "shop",
                                    .node_url = rig_node_url(node),
                                    .skip_registration = true,
                                    .tries = tries,
                                    .on_log = on_log};

    assert_int_equal(jobflow_executor_new(&config, &ex), 0);
    return ex;
}

static int send_success(struct jobflow_executor *ex, int32_t attempt)
{
    struct jobflow_answer a = jobflow_success("done");

    return jobflow_result_send(ex, RIG_TRACE, attempt, &a);
}

static void a_result_is_sent(void **state)
{
    struct rig_node *node = rig_node_new(SCRIPT("200"));
    struct jobflow_executor *ex = new_executor(node, 0);
    struct jobflow_answer retry = jobflow_retry(2000, "not yet");
    (void)state;

    assert_int_equal(send_success(ex, 2), 0);
    assert_int_equal(jobflow_result_send(ex, RIG_TRACE, 3, &retry), 0);
    assert_int_equal(rig_node_count(node), 2);
    assert_string_equal(rig_node_request(node, 0),
                        "POST /api/attempts/" RIG_TRACE
                        "/2/result {\"success\":true,\"message\":\"done\"}");
    assert_string_equal(rig_node_request(node, 1),
                        "POST /api/attempts/" RIG_TRACE
                        "/3/result {\"success\":false,\"retryable\":true,"
                        "\"retryAfter\":\"2000ms\",\"message\":\"not yet\"}");
    jobflow_executor_free(ex);
    rig_node_free(node);
}

static void passing_trouble_is_tried_again(void **state)
{
    struct rig_node *node = rig_node_new(SCRIPT("drop", "503 1", "500", "429", "408", "200"));
    struct jobflow_executor *ex = new_executor(node, 0);
    (void)state;

    assert_int_equal(send_success(ex, 1), 0);
    assert_int_equal(rig_node_count(node), 6);
    assert_string_equal(rig_node_request(node, 0), rig_node_request(node, 5));
    jobflow_executor_free(ex);
    rig_node_free(node);
}

static void tries_are_bounded(void **state)
{
    struct rig_node *node = rig_node_new(SCRIPT("503"));
    struct jobflow_executor *ex = new_executor(node, 2);
    (void)state;

    assert_int_equal(send_success(ex, 1), JOBFLOW_EUNREACHABLE);
    assert_int_equal(rig_node_count(node), 2);
    assert_int_equal(jobflow_heartbeat(ex, RIG_TRACE, 1, 0), JOBFLOW_EUNREACHABLE);
    assert_int_equal(rig_node_count(node), 5);
    jobflow_executor_free(ex);
    rig_node_free(node);
}

static void nobody_listens(void **state)
{
    struct jobflow_executor *ex = NULL;
    struct jobflow_config config = {.service = "shop",
                                    .node_url = "http://127.0.0.1:1/",
                                    .skip_registration = true,
                                    .tries = 2,
                                    .on_log = on_log};
    int status = -7;
    char *answer = NULL;
    (void)state;

    assert_int_equal(jobflow_executor_new(&config, &ex), 0);
    assert_int_equal(send_success(ex, 1), JOBFLOW_EUNREACHABLE);
    assert_int_equal(jobflow_call(ex, "GET", "/x", NULL, &status, &answer), JOBFLOW_EUNREACHABLE);
    assert_int_equal(status, -7);
    assert_null(answer);
    jobflow_executor_free(ex);
}

static void refusals_are_told_apart(void **state)
{
    struct rig_node *node = rig_node_new(SCRIPT("409", "404", "400", "302"));
    struct jobflow_executor *ex = new_executor(node, 0);
    struct jobflow_answer later = jobflow_later();
    (void)state;

    assert_int_equal(send_success(ex, 1), JOBFLOW_ESTALE);
    assert_int_equal(send_success(ex, 1), JOBFLOW_EREFUSED);
    assert_int_equal(jobflow_heartbeat(ex, RIG_TRACE, 1, 1), JOBFLOW_EREFUSED);
    assert_int_equal(send_success(ex, 1), JOBFLOW_EREFUSED);
    assert_int_equal(rig_node_count(node), 4);
    assert_int_equal(jobflow_result_send(ex, "xyz", 1, &later), JOBFLOW_EINVAL);
    assert_int_equal(jobflow_result_send(ex, RIG_TRACE, 0, &later), JOBFLOW_EINVAL);
    assert_int_equal(jobflow_result_send(ex, RIG_TRACE, 1, &later), JOBFLOW_EINVAL);
    assert_int_equal(jobflow_heartbeat(ex, RIG_TRACE, 1, -1), JOBFLOW_EINVAL);
    assert_int_equal(rig_node_count(node), 4);
    jobflow_executor_free(ex);
    rig_node_free(node);
}

static void heartbeats(void **state)
{
    struct rig_node *node = rig_node_new(SCRIPT("503", "200"));
    struct jobflow_executor *ex = new_executor(node, 0);
    (void)state;

    assert_int_equal(jobflow_heartbeat(ex, RIG_TRACE, 9, 1500), 0);
    assert_int_equal(jobflow_heartbeat(ex, RIG_TRACE, 9, 0), 0);
    assert_string_equal(rig_node_request(node, 1),
                        "POST /api/attempts/" RIG_TRACE "/9/heartbeat {\"extend\":\"1500ms\"}");
    assert_string_equal(rig_node_request(node, 2),
                        "POST /api/attempts/" RIG_TRACE "/9/heartbeat {}");
    jobflow_executor_free(ex);
    rig_node_free(node);
}

static void any_call(void **state)
{
    struct rig_node *node = rig_node_new(SCRIPT("201", "503", "404"));
    struct jobflow_executor *ex = new_executor(node, 0);
    int status = 0;
    char *answer = NULL;
    (void)state;

    assert_int_equal(jobflow_call(ex, "POST", "/api/delay-tasks", "{\"a\":1}", &status, &answer),
                     0);
    assert_int_equal(status, 201);
    assert_string_equal(answer, "{\"said\":201}");
    free(answer);
    assert_int_equal(jobflow_call(ex, "DELETE", "/api/delay-tasks/b", NULL, &status, NULL), 0);
    assert_int_equal(status, 503);
    assert_int_equal(jobflow_call(ex, "GET", "/api/delay-tasks/b", NULL, &status, &answer), 0);
    assert_int_equal(status, 404);
    free(answer);
    assert_int_equal(jobflow_call(ex, "GET", "api", NULL, &status, NULL), JOBFLOW_EINVAL);
    assert_string_equal(rig_node_request(node, 0), "POST /api/delay-tasks {\"a\":1}");
    assert_string_equal(rig_node_request(node, 1), "DELETE /api/delay-tasks/b ");
    jobflow_executor_free(ex);
    rig_node_free(node);
}

static void waits_grow_and_are_bounded(void **state)
{
    (void)state;
    for (unsigned n = 1; n < 100; n++) {
        long least = n > 6 ? 7500 : 150L << (n - 1);
        long most = n > 6 ? 10000 : 200L << (n - 1);
        for (int i = 0; i < 20; i++) {
            long wait = jfx_node_wait_ms(n, 0);
            assert_true(wait >= least && wait <= most);
        }
    }
    assert_int_equal(jfx_node_wait_ms(1, 7000), 7000);
    assert_int_equal(jfx_node_wait_ms(1, 1000000), 30000);
}

static void without_a_node_there_are_no_calls(void **state)
{
    struct jobflow_config config = {.service = "shop", .on_log = on_log};
    struct jobflow_executor *ex = NULL;
    int status;
    (void)state;

    assert_int_equal(jobflow_executor_new(&config, &ex), 0);
    assert_int_equal(send_success(ex, 1), JOBFLOW_EINVAL);
    assert_int_equal(jobflow_heartbeat(ex, RIG_TRACE, 1, 0), JOBFLOW_EINVAL);
    assert_int_equal(jobflow_call(ex, "GET", "/", NULL, &status, NULL), JOBFLOW_EINVAL);
    jobflow_executor_free(ex);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_result_is_sent),
        cmocka_unit_test(passing_trouble_is_tried_again),
        cmocka_unit_test(tries_are_bounded),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(refusals_are_told_apart),
        cmocka_unit_test(heartbeats),
        cmocka_unit_test(any_call),
        cmocka_unit_test(waits_grow_and_are_bounded),
        cmocka_unit_test(without_a_node_there_are_no_calls),
    };

    return cmocka_run_group_tests_name("clients/report", tests, NULL, NULL);
}
