/* SPDX-License-Identifier: Apache-2.0 */
/* Fails the first allocation, then the second, and so on, until all goes well: whatever was begun
 * has to be freed (the leak sanitizer looks) and told. */
#include "jobflow_executor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>
#include <event2/event.h>

#include "answer.h"
#include "pool.h"
#include "rig.h"
#include "seen.h"
#include "task.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
char *__wrap_strdup(const char *text);

static unsigned n_left; /* allocations until one fails; 0 = none does */

static bool fails(void)
{
    return n_left > 0 && --n_left == 0;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

static void on_log(void *ctx, const char *text)
{
    (void)ctx;
    (void)text;
}

static struct jobflow_answer on_task(const struct jobflow_task *task, void *ctx)
{
    (void)task;
    (void)ctx;
    return jobflow_later();
}

static int make_executor(void)
{
    static const struct jobflow_config config = {.service = "shop",
                                                 .node_url = "http://127.0.0.1:1",
                                                 .secrets = {"a secret of the shop"},
                                                 .concurrency = 4,
                                                 .timeout = "30s",
                                                 .policy = "default",
                                                 .max_seen = 10,
                                                 .on_log = on_log};
    struct jobflow_executor *ex = NULL;
    int rc = jobflow_executor_new(&config, &ex);

    if (rc == 0)
        rc = jobflow_executor_handle(ex, "h", on_task, NULL);
    jobflow_executor_free(ex);
    return rc;
}

static int read_task(void)
{
    char text[1024];
    struct jfx_task t;
    const char *why;

    rig_envelope(text, sizeof(text), RIG_TRACE, 1, "h", "{\"a\":[1,2,\"three\"]}");
    int rc = jfx_task_read(text, strlen(text), &t, &why);
    if (rc)
        return rc;
    /* A payload that could not be parsed is told by its absence. */
    rc = t.task.payload ? 0 : JOBFLOW_ENOMEM;
    jfx_task_fini(&t);
    return rc;
}

static int encode_answer(void)
{
    struct jobflow_answer a = jobflow_retry(1000, "not yet");
    char *text = jfx_answer_encode(&a);

    free(text);
    return text ? 0 : JOBFLOW_ENOMEM;
}

static int make_seen(void)
{
    struct jfx_seen *seen = jfx_seen_new(10);

    jfx_seen_free(seen);
    return seen ? 0 : JOBFLOW_ENOMEM;
}

static void run_nothing(struct jfx_work *work)
{
    (void)work;
}

static int make_pool(void)
{
    struct jfx_pool *pool = jfx_pool_new(2, 2, run_nothing);

    jfx_pool_free(pool);
    return pool ? 0 : JOBFLOW_ENOMEM;
}

/* At least `least` allocations, each of which fails once. */
static void survives(int (*what)(void), unsigned least)
{
    unsigned n = 0;
    int rc;

    do {
        n++;
        n_left = n;
        rc = what();
        bool came_so_far = n_left == 0;
        n_left = 0;
        if (!came_so_far)
            assert_int_equal(rc, 0);
        assert_true(n < 1000);
        if (!came_so_far)
            break;
    } while (true);
    assert_true(n > least);
}

static void executors(void **state)
{
    (void)state;
    survives(make_executor, 20);
}

static void tasks(void **state)
{
    (void)state;
    survives(read_task, 20);
}

static void answers(void **state)
{
    (void)state;
    survives(encode_answer, 5);
}

static void tables_and_pools(void **state)
{
    (void)state;
    survives(make_seen, 2);
    survives(make_pool, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(executors),
        cmocka_unit_test(tasks),
        cmocka_unit_test(answers),
        cmocka_unit_test(tables_and_pools),
    };
    cJSON_Hooks hooks = {__wrap_malloc, free};

    cJSON_InitHooks(&hooks);
    event_set_mem_functions(__wrap_malloc, realloc, free);
    return cmocka_run_group_tests_name("clients/nomem", tests, NULL, NULL);
}
