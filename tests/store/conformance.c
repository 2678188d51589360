/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/conformance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/store/world.h"

static const struct case_list *const all_lists[] = {
    &submit_cases,    &repeat_cases, &claim_cases,     &finish_cases,   &rescue_cases,
    &cancel_cases,    &scan_cases,   &task_call_cases, &list_cases,     &service_cases,
    &instance_cases,  &alert_cases,  &schema_cases,    &race_cases,     &duel_cases,
    &refusal_cases,   &lock_cases,   &bulk_cases,      &upkeep_cases,   &churn_cases,
    &sqlsubmit_cases, &store_cases,  &outage_cases,    &postgres_cases, &sqlite_cases,
    &mysql_cases,     &lease_cases,  &line_cases,
};

#define N_LISTS (sizeof(all_lists) / sizeof(all_lists[0]))

/* What one cmocka test knows: first the case and its backend, and between set-up and tear-down the
 * world. */
struct running_case {
    const struct backend *backend;
    const struct test_case *test;
    struct world *world;
};

static int on_setup(void **state)
{
    struct running_case *r = *state;

    r->world = world_new(r->backend);
    return 0;
}

static int on_teardown(void **state)
{
    struct running_case *r = *state;

    world_free(r->world);
    r->world = NULL;
    return 0;
}

static void run_case(void **state)
{
    struct running_case *r = *state;

    r->test->run(r->world);
}

static size_t count_cases(void)
{
    size_t n = 0;

    for (size_t i = 0; i < N_LISTS; i++)
        n += all_lists[i]->n;
    return n;
}

int conformance_run(const struct backend *b, const char *pattern)
{
    size_t n = count_cases();
    struct CMUnitTest *tests = calloc(n, sizeof(*tests));
    struct running_case *running = calloc(n, sizeof(*running));
    size_t k = 0;
    int failed;

    if (!tests || !running)
        abort();
    for (size_t i = 0; i < N_LISTS; i++) {
        for (size_t j = 0; j < all_lists[i]->n; j++) {
            const struct test_case *test = &all_lists[i]->cases[j];

            if (test->needs & ~b->has)
                continue;
            running[k] = (struct running_case){.backend = b, .test = test};
            tests[k] = (struct CMUnitTest){
                .name = test->name,
                .test_func = run_case,
                .setup_func = on_setup,
                .teardown_func = on_teardown,
                .initial_state = &running[k],
            };
            k++;
        }
    }
    if (pattern)
        cmocka_set_test_filter(pattern);
    failed = _cmocka_run_group_tests(b->name, tests, k, NULL, NULL);
    free(tests);
    free(running);
    return failed;
}
