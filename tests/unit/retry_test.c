/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "node/core/retry.h"

#define NOW INT64_C(1700000000000)

static const struct retry_policy policies[] = {
    {"default", {.initial_ms = 1000, .cap_ms = 600000, .multiplier = 2.0, .jitter = 0.0}, 5},
    {"gentle", {.initial_ms = 5000, .cap_ms = 86400000, .multiplier = 10.0, .jitter = 0.5}, 3},
};
static const struct retry_policies set = {
    .policies = policies,
    .n = 2,
    .retry_after_cap_ms = 3600000,
    .snooze_cap_ms = 7200000,
    .max_snoozes = 2,
};

static struct retry_facts facts_default(void)
{
    return (struct retry_facts){
        .id = 7,
        .attempt = 4,
        .retry_count = 2,
        .max_retry = 5,
        .snooze_count = 1,
        .priority = 6,
        .result_wait_ms = 120000,
    };
}

static struct verdict verdict_of(enum verdict_kind kind, int64_t retry_after_ms)
{
    return (struct verdict){.kind = kind, .http_status = 503, .retry_after_ms = retry_after_ms};
}

/* Decides on a finish_item full of rubbish, so that a field left unset shows. */
static struct finish_item decide(const struct retry_facts *f, const struct verdict *v)
{
    struct rng rng = {11};
    struct finish_item item;

    memset(&item, 0xA5, sizeof(item));
    retry_decide(&set, f, v, NOW, &rng, &item);
    assert_int_equal(item.id, f->id);
    assert_int_equal(item.attempt, f->attempt);
    assert_int_equal(item.from, TASK_IN_FLIGHT);
    assert_int_equal(item.priority, f->priority);
    assert_int_equal(item.http_status, v->http_status);
    return item;
}

static void test_find(void **state)
{
    (void)state;
    assert_ptr_equal(retry_policy_find(&set, (struct str){0}), &policies[0]);
    assert_ptr_equal(retry_policy_find(&set, STR("")), &policies[0]);
    assert_ptr_equal(retry_policy_find(&set, STR("default")), &policies[0]);
    assert_ptr_equal(retry_policy_find(&set, STR("gentle")), &policies[1]);
    assert_null(retry_policy_find(&set, STR("gentl")));
    assert_null(retry_policy_find(&set, STR("gentle2")));
}

static void test_success_and_accepted(void **state)
{
    (void)state;
    struct retry_facts f = facts_default();
    struct verdict v = verdict_of(VERDICT_SUCCESS, -1);
    struct finish_item item = decide(&f, &v);

    assert_int_equal(item.kind, FINISH_SUCCESS);
    assert_string_equal(item.outcome, "success");
    assert_int_equal(item.retry_count, 2);
    assert_int_equal(item.next_attempt_time, WALL_NONE);
    assert_int_equal(item.error.len, 0);

    v = verdict_of(VERDICT_ACCEPTED, -1);
    item = decide(&f, &v);
    assert_int_equal(item.kind, FINISH_SENT);
    assert_string_equal(item.outcome, "accepted");
    assert_int_equal(item.next_attempt_time, NOW + 120000);
    assert_int_equal(item.retry_count, 2);
    assert_false(item.snoozed);
}

static void test_retry(void **state)
{
    (void)state;
    struct retry_facts f = facts_default();
    struct verdict v = verdict_of(VERDICT_RETRY, -1);

    strcpy(v.error, "connection refused");
    struct finish_item item = decide(&f, &v);
    assert_int_equal(item.kind, FINISH_RETRY);
    assert_string_equal(item.outcome, "retry");
    assert_int_equal(item.retry_count, 3);
    assert_int_equal(item.next_attempt_time, NOW + 4000); /* the third retry: 1 s * 2^2 */
    assert_ptr_equal(item.error.p, v.error);
    assert_int_equal(item.error.len, strlen("connection refused"));
    assert_false(item.snoozed);
}

static void test_retry_uses_the_policy_of_the_task(void **state)
{
    (void)state;
    struct retry_facts f = facts_default();
    struct verdict v = verdict_of(VERDICT_RETRY, -1);

    f.retry_count = 0;
    f.policy = STR("gentle");
    struct finish_item item = decide(&f, &v);
    assert_in_range(item.next_attempt_time, NOW + 2500, NOW + 5000);
    f.policy = STR("no-longer-there"); /* falls back to the default */
    item = decide(&f, &v);
    assert_int_equal(item.next_attempt_time, NOW + 1000);
}

static void test_tries_run_out(void **state)
{
    (void)state;
    struct retry_facts f = facts_default();
    struct verdict v = verdict_of(VERDICT_RETRY, 1000);

    for (f.retry_count = 5; f.retry_count < 8; f.retry_count++) {
        struct finish_item item = decide(&f, &v);
        assert_int_equal(item.kind, FINISH_FAIL);
        assert_string_equal(item.outcome, "failed");
        assert_int_equal(item.retry_count, f.retry_count);
        assert_int_equal(item.next_attempt_time, WALL_NONE);
    }
    f.retry_count = 0;
    f.max_retry = 0; /* a task that asks for a single try */
    assert_int_equal(decide(&f, &v).kind, FINISH_FAIL);
}

static void test_final(void **state)
{
    (void)state;
    struct retry_facts f = facts_default();
    struct verdict v = verdict_of(VERDICT_FINAL, 1000);

    strcpy(v.error, "no such order");
    struct finish_item item = decide(&f, &v);
    assert_int_equal(item.kind, FINISH_FAIL);
    assert_int_equal(item.retry_count, 2);
    assert_int_equal(item.next_attempt_time, WALL_NONE);
    assert_ptr_equal(item.error.p, v.error);
}

static void test_retry_after(void **state)
{
    (void)state;
    static const struct {
        int64_t retry_after_ms;
        int64_t wait_ms;
    } cases[] = {
        {-1, 4000},           {0, 4000},
        {3999, 4000},                             /* never earlier than the back-off */
        {4001, 4001},         {120000, 120000},   /* later: as the service wishes */
        {3600000, 3600000},   {3600001, 3600000}, /* never above its cap */
        {INT64_MAX, 3600000}, {INT64_MIN, 4000},
    };
    struct retry_facts f = facts_default();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct verdict v = verdict_of(VERDICT_RETRY, cases[i].retry_after_ms);
        assert_int_equal(decide(&f, &v).next_attempt_time, NOW + cases[i].wait_ms);
    }
}

static void test_snooze(void **state)
{
    (void)state;
    static const struct {
        int64_t asked_ms;
        int64_t wait_ms;
    } cases[] = {{600000, 600000},    {1, 1}, {0, 1}, {-1, 1}, {7200001, 7200000},
                 {INT64_MAX, 7200000}};
    struct retry_facts f = facts_default();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct verdict v = verdict_of(VERDICT_SNOOZE, cases[i].asked_ms);
        struct finish_item item = decide(&f, &v);
        assert_int_equal(item.kind, FINISH_PUT_BACK);
        assert_true(item.snoozed);
        assert_string_equal(item.outcome, "snooze");
        assert_int_equal(item.retry_count, 2); /* uses up no try */
        assert_int_equal(item.next_attempt_time, NOW + cases[i].wait_ms);
    }
}

static void test_too_many_snoozes(void **state)
{
    (void)state;
    struct retry_facts f = facts_default();
    struct verdict v = verdict_of(VERDICT_SNOOZE, 600000);

    f.snooze_count = 2;
    struct finish_item item = decide(&f, &v);
    assert_int_equal(item.kind, FINISH_RETRY);
    assert_int_equal(item.retry_count, 3);
    assert_false(item.snoozed);
    assert_int_equal(item.next_attempt_time, NOW + 600000);
    assert_true(item.error.len > 0); /* says why */
    f.retry_count = 5;
    item = decide(&f, &v);
    assert_int_equal(item.kind, FINISH_FAIL);
    assert_false(item.snoozed);
}

static void test_unsent_goes_back(void **state)
{
    (void)state;
    struct retry_facts f = facts_default();
    struct verdict v = verdict_of(VERDICT_UNSENT, -1);

    f.retry_count = 5; /* even when no try is left: none was used */
    struct finish_item item = decide(&f, &v);
    assert_int_equal(item.kind, FINISH_PUT_BACK);
    assert_false(item.snoozed);
    assert_string_equal(item.outcome, "unsent");
    assert_int_equal(item.retry_count, 5);
    assert_int_equal(item.next_attempt_time, NOW + 1);
}

/* 0 < delay <= cap, and not before the back-off's shortest, whatever the numbers. */
static void test_bounds_hold_for_any_number(void **state)
{
    (void)state;
    static const int32_t counts[] = {0, 1, 2, 18, 30, 31, 32, 62, 63, 64, 999, INT32_MAX - 1};
    struct rng rng = {3};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        for (int turn = 0; turn < 500; turn++) {
            struct retry_facts f = facts_default();
            struct verdict v = verdict_of(VERDICT_RETRY, (int64_t)rng_next(&rng));
            struct finish_item item = {0};

            f.retry_count = counts[i];
            f.max_retry = INT32_MAX;
            f.policy = turn % 2 ? STR("gentle") : STR("");
            if (turn % 3 == 0)
                v.retry_after_ms = -1;
            retry_decide(&set, &f, &v, NOW, &rng, &item);
            int64_t cap = policies[turn % 2].backoff.cap_ms;
            int64_t base = backoff_base(&policies[turn % 2].backoff, (int64_t)counts[i] + 1);
            int64_t wait = item.next_attempt_time - NOW;
            assert_int_equal(item.kind, FINISH_RETRY);
            assert_true(wait > 0);
            assert_true(wait <= (cap > set.retry_after_cap_ms ? cap : set.retry_after_cap_ms));
            assert_true(wait >= base - base * (turn % 2) / 2);
            assert_int_equal(item.retry_count, counts[i] + 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_success_and_accepted),
        cmocka_unit_test(test_retry),
        cmocka_unit_test(test_retry_uses_the_policy_of_the_task),
        {.name = "retry-43: tries run out", .test_func = test_tries_run_out},
        cmocka_unit_test(test_final),
        {.name = "retry-42: Retry-After is heeded", .test_func = test_retry_after},
        cmocka_unit_test(test_snooze),
        cmocka_unit_test(test_too_many_snoozes),
        cmocka_unit_test(test_unsent_goes_back),
        cmocka_unit_test(test_bounds_hold_for_any_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
