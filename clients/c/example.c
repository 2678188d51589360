/* SPDX-License-Identifier: Apache-2.0 */
/* A service with two handlers: executor-example PORT NODE_URL [SECRET]. It registers itself and is
 * called from then on; SIGTERM makes it leave and ends it. */
#include <cjson/cJSON.h>
#include <jobflow_executor.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct jobflow_executor *executor;
static atomic_bool is_reporting;
static char trace_id[33]; /* of the report that is being made */
static int32_t attempt;

static struct jobflow_answer greet(const struct jobflow_task *task, void *ctx)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(task->payload, "name"));
    (void)ctx;

    if (!name)
        return jobflow_fail("a greeting needs a name"); /* a person is told, nothing is retried */
    return strlen(name) > 20 && task->attempt == 1 ? jobflow_retry(100, "what a long name")
                                                   : jobflow_success("hello %s", name);
}

/* Takes longer than an attempt may: heartbeats keep it alive, a result ends it. */
static void *make_report(void *unused)
{
    struct jobflow_answer done = jobflow_success("the report is ready");

    pthread_detach(pthread_self());
    for (int i = 0; i < 8 && jobflow_heartbeat(executor, trace_id, attempt, 3000) == 0; i++)
        usleep(500000); /* a part of the work */
    (void)jobflow_result_send(executor, trace_id, attempt, &done);
    atomic_store(&is_reporting, false);
    return unused;
}

static struct jobflow_answer report(const struct jobflow_task *task, void *ctx)
{
    if (atomic_exchange(&is_reporting, true))
        return jobflow_snooze(1000, "one report at a time");
    memcpy(trace_id, task->trace_id, sizeof(trace_id)); /* the task is ours only until we return */
    attempt = task->attempt;
    if (pthread_create(ctx, NULL, make_report, NULL) == 0)
        return jobflow_later();
    atomic_store(&is_reporting, false);
    return jobflow_retry(0, "no thread");
}

static void on_signal(int number)
{
    (void)number;
    jobflow_executor_stop(executor);
}

int main(int argc, char **argv)
{
    struct jobflow_config config = {.service = "example", .n_threads = 4, .timeout = "2s"};
    pthread_t thread;

    if (argc < 3 || argc > 4)
        return 2;
    config.port = (uint16_t)atoi(argv[1]);
    config.node_url = argv[2];
    config.secrets[0] = argv[3]; /* NULL when there is none */
    if (jobflow_executor_new(&config, &executor))
        return 1;
    signal(SIGTERM, on_signal);
    int rc = jobflow_executor_handle(executor, "greet", greet, NULL) ||
             jobflow_executor_handle(executor, "report", report, &thread) ||
             jobflow_executor_run(executor);
    while (atomic_load(&is_reporting))
        usleep(10000);
    jobflow_executor_free(executor);
    return rc;
}
