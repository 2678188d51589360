/* SPDX-License-Identifier: Apache-2.0 */
/* What a submission stores, and what it answers when the key is taken. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

static void test_all_fields_are_stored(struct world *w)
{
    struct task t = draft(w, "full");

    t.service_name = STR("orders.v2_x-1");
    t.handler = STR("closeOrder");
    t.payload = STR("{\"orderId\": 18446744073709551615}");
    t.policy = STR("patient");
    t.execute_time = t.next_attempt_time = t.created_at + 123457;
    t.shard = 7;
    t.priority = 9;
    t.lane = task_lane(9, false);
    t.max_retry = 1000;
    t.timeout_ms = 1234;
    assert_int_equal(put(w, &t), t.id);
    assert_same_task(look(w, "full"), &t);
    assert_same_task(look_id(w, t.id), &t);
}

static void test_what_is_absent_stays_absent(struct world *w)
{
    struct task t = draft(w, "bare");

    t.payload = (struct str){0};
    (void)put(w, &t);
    assert_same_task(look(w, "bare"), &t);
    assert_null(look(w, "bare")->payload.p);
    assert_null(look(w, "bare")->policy.p);
    assert_null(look(w, "bare")->claimed_by.p);
    assert_null(look(w, "bare")->last_error.p);
}

static void test_times_pass_2038_and_keep_milliseconds(struct world *w)
{
    struct task t = draft(w, "late");

    t.execute_time = t.next_attempt_time = INT64_C(4102444800789); /* 2100 */
    (void)put(w, &t);
    assert_true(look(w, "late")->execute_time == INT64_C(4102444800789));
    assert_true(look(w, "late")->next_attempt_time == INT64_C(4102444800789));
}

static void test_payloads_are_kept_byte_for_byte(struct world *w)
{
    static const char *const payloads[] = {
        "18446744073709551615",
        "1e400",
        "1.10",
        "  { \"b\" : 1 ,\n\t\"a\":-0 } ",
        "\"\\u00e9\\\\ \\\"quoted\\\" 'single' %s $1 ? ; --\"",
        "\"\xf0\x9f\x90\x98 \xe4\xb8\xad\xe6\x96\x87\"",
        "null",
        "\"\"",
        "[\"{1,2}\",\"\\\\N\",\"NULL\"]",
    };
    const size_t n = sizeof(payloads) / sizeof(payloads[0]);

    for (size_t i = 0; i < n; i++) {
        struct str key = world_text(w, "p%zu", i);
        struct task t = draft_key(w, key);

        t.payload = str_from(payloads[i]);
        (void)put(w, &t);
        assert_str(look_key(w, key)->payload, payloads[i]);
    }
}

static void test_a_large_payload_and_the_longest_names(struct world *w)
{
    struct task t = draft_key(w, world_fill(w, "\xf0\x9f\x90\x98", TASK_BIZ_UUID_MAX));

    t.service_name = world_fill(w, "s", TASK_NAME_MAX);
    t.handler = world_fill(w, "h", TASK_NAME_MAX);
    t.policy = world_fill(w, "p", TASK_POLICY_MAX);
    t.payload = world_fill(w, "\xf0\x9f\x90\x98", 65536);
    (void)put(w, &t);
    assert_same_task(look_key(w, t.biz_uuid), &t);
}

static void test_a_repeat_returns_the_first(struct world *w)
{
    struct task first = draft(w, "k");
    struct task again = draft(w, "k");
    struct submit_item item;

    (void)put(w, &first);
    item = submit_one(w, &again, ON_CONFLICT_RETURN, false);
    assert_int_equal(item.result, SUBMIT_DUPLICATE);
    assert_int_equal(item.mismatch, 0);
    assert_same_task(item.existing, &first);
    assert_same_task(look(w, "k"), &first);
    assert_null(look_id(w, again.id));
}

static void check_mismatch(struct world *w, const char *key, struct str payload, wall_ms later,
                           bool absolute, unsigned expected)
{
    struct task again = draft(w, key);
    struct submit_item item;

    again.payload = payload;
    again.execute_time = again.next_attempt_time = look(w, key)->execute_time + later;
    item = submit_one(w, &again, ON_CONFLICT_RETURN, absolute);
    assert_int_equal(item.result, SUBMIT_DUPLICATE);
    assert_int_equal(item.mismatch, expected);
}

static void test_mismatches_are_told(struct world *w)
{
    const struct str same = STR(" {\"b\":[1, 2],\"a\":\"\\u0078\"} ");
    const struct str other = STR("{\"a\":\"x\",\"b\":[2,1]}");
    struct task t = draft(w, "k");

    t.payload = STR("{\"a\":\"x\",\"b\":[1,2]}");
    (void)put(w, &t);
    check_mismatch(w, "k", t.payload, 0, true, 0);
    check_mismatch(w, "k", same, 0, true, 0);
    check_mismatch(w, "k", other, 0, true, MISMATCH_PAYLOAD);
    check_mismatch(w, "k", (struct str){0}, 0, true, MISMATCH_PAYLOAD);
    check_mismatch(w, "k", same, 1, true, MISMATCH_EXECUTE_TIME);
    check_mismatch(w, "k", same, 1, false, 0);
    check_mismatch(w, "k", other, -1, true, MISMATCH_EXECUTE_TIME | MISMATCH_PAYLOAD);
    assert_same_task(look(w, "k"), &t);
}

static void test_absent_payload_differs_from_null(struct world *w)
{
    struct task t = draft(w, "k");

    t.payload = (struct str){0};
    (void)put(w, &t);
    check_mismatch(w, "k", (struct str){0}, 0, false, 0);
    check_mismatch(w, "k", STR("null"), 0, false, MISMATCH_PAYLOAD);
}

static void check_foreign(struct world *w, const struct task *owner, struct str service,
                          struct str handler)
{
    for (int how = ON_CONFLICT_RETURN; how <= ON_CONFLICT_REPLACE; how++) {
        struct task t = draft_key(w, owner->biz_uuid);
        struct submit_item item;

        t.service_name = service;
        t.handler = handler;
        t.payload = STR("\"mine\"");
        item = submit_one(w, &t, (enum on_conflict)how, true);
        assert_int_equal(item.result, SUBMIT_FOREIGN);
        assert_same_task(item.existing, owner);
        assert_same_task(look_key(w, owner->biz_uuid), owner);
        assert_null(look_id(w, t.id));
    }
}

static void test_a_key_of_another_service_or_handler_is_foreign(struct world *w)
{
    const struct task *ended = bring(w, "ended", TASK_SUCCESS);
    const struct task *live = bring(w, "live", TASK_PENDING);

    check_foreign(w, live, STR("svc2"), STR("h"));
    check_foreign(w, live, STR("svc"), STR("H"));
    check_foreign(w, ended, STR("svc2"), STR("h"));
    check_foreign(w, ended, STR("svc"), STR("h2"));
}

static void test_reject_refuses_a_repeat(struct world *w)
{
    static const enum task_status statuses[] = {TASK_PENDING, TASK_SENDING, TASK_FAILED,
                                                TASK_SUCCESS, TASK_CANCELLED};

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        const char *key = task_status_name(statuses[i]);
        const struct task *first = bring(w, key, statuses[i]);
        struct task again = draft(w, key);
        struct submit_item item = submit_one(w, &again, ON_CONFLICT_REJECT, false);

        assert_int_equal(item.result, SUBMIT_REFUSED);
        assert_same_task(item.existing, first);
        assert_same_task(look(w, key), first);
    }
}

static void check_replaced(struct world *w, enum task_status status, struct str payload)
{
    const char *key = task_status_name(status);
    const struct task *first = bring(w, key, status);
    struct task again = draft(w, key);
    const struct task *now;
    struct submit_item item;

    again.payload = payload;
    again.execute_time = again.next_attempt_time = again.created_at + 777777;
    item = submit_one(w, &again, ON_CONFLICT_REPLACE, true);
    assert_int_equal(item.result, SUBMIT_REPLACED);
    now = look(w, key);
    assert_same_task(item.existing, now);
    assert_true(now->id == first->id);
    assert_string_equal(now->trace_id, first->trace_id);
    assert_true(now->execute_time == again.execute_time);
    assert_true(now->next_attempt_time == again.execute_time);
    assert_true(str_eq(now->payload, payload));
    assert_true(now->created_at == first->created_at);
    assert_int_equal(now->attempt, first->attempt);
    assert_int_equal(now->status, first->status);
    assert_null(look_id(w, again.id));
}

static void test_replace_of_a_waiting_task(struct world *w)
{
    check_replaced(w, TASK_PENDING, STR("{\"new\" : 1.10}"));
    check_replaced(w, TASK_RETRYING, (struct str){0});
}

static void test_replace_is_refused_in_flight_and_after_the_end(struct world *w)
{
    static const enum task_status statuses[] = {TASK_SENDING, TASK_SENT, TASK_FAILED, TASK_SUCCESS,
                                                TASK_CANCELLED};

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        const char *key = task_status_name(statuses[i]);
        const struct task *first = bring(w, key, statuses[i]);
        struct task again = draft(w, key);
        struct submit_item item;

        again.payload = STR("\"new\"");
        item = submit_one(w, &again, ON_CONFLICT_REPLACE, true);
        assert_int_equal(item.result, SUBMIT_REFUSED);
        assert_same_task(item.existing, first);
        assert_same_task(look(w, key), first);
    }
}

/* A delayed copy of a request may arrive when its task has run already. */
static void test_history_answers_for_its_keys(struct world *w)
{
    static const enum task_status statuses[] = {TASK_SUCCESS, TASK_CANCELLED};

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        const char *key = task_status_name(statuses[i]);
        const struct task *first = bring(w, key, statuses[i]);
        struct task again = draft(w, key);
        struct submit_item item;

        again.payload = STR("2");
        item = submit_one(w, &again, ON_CONFLICT_RETURN, false);
        assert_int_equal(item.result, SUBMIT_DUPLICATE);
        assert_int_equal(item.mismatch, MISMATCH_PAYLOAD);
        assert_same_task(item.existing, first);
        assert_null(look_id(w, again.id));
        if (has_sql(w))
            assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), 0);
    }
}

static void test_keys_compare_byte_for_byte(struct world *w)
{
    static const char *const keys[] = {
        "A4qD329",  "A4qd329", "a4qd329", "e",   "\xc3\xa9",     "e\xcc\x81", "\xc3\x89", "ss",
        "\xc3\x9f", "bar",     "bar%",    "ba_", "\xef\xbd\x81", "0",         "00",
    };
    const size_t n = sizeof(keys) / sizeof(keys[0]);
    int64_t ids[sizeof(keys) / sizeof(keys[0])];

    for (size_t i = 0; i < n; i++)
        ids[i] = put_key(w, keys[i]);
    for (size_t i = 0; i < n; i++)
        assert_true(look(w, keys[i])->id == ids[i]);
    assert_null(look(w, "bar "));
    assert_null(look(w, " bar"));
    assert_null(look(w, "BAR"));
    assert_int_equal(cancel(w, "a4QD329", NULL), CANCEL_NOT_FOUND);
}

/* Collations that pad would take them for the same. */
static void test_trailing_blanks_differ(struct world *w)
{
    struct task blank = draft(w, "bar ");
    struct task other = draft(w, "bar");

    (void)put_key(w, "bar");
    assert_null(look(w, "bar "));
    assert_int_equal(cancel(w, "bar ", NULL), CANCEL_NOT_FOUND);
    (void)put(w, &blank);
    assert_int_equal(look(w, "bar ")->id, blank.id);
    assert_int_equal(submit_one(w, &other, ON_CONFLICT_RETURN, false).result, SUBMIT_DUPLICATE);
    assert_int_equal(cancel(w, "bar ", NULL), CANCEL_DONE);
    assert_status(w, "bar", TASK_PENDING);
}

/* No store takes it for the end of the text, or breaks on it: it refuses the row or keeps it.
 * Escaped, it is a text like any other. */
static void test_a_zero_character(struct world *w)
{
    const struct str escaped = STR("\"a\\u0000b\"");
    const struct str raw = STR("\"a\0b\"");
    struct task t = draft(w, "raw");
    struct submit_item item = {.task = &t};
    struct submit_item *list[] = {&item};
    struct finish_item f;
    struct err err = {0};
    int rc;

    t.payload = raw;
    rc = w->d->submit(w->conn, list, 1, &err);
    assert_true(rc == ERR_INVALID || (!rc && str_eq(look(w, "raw")->payload, raw)));
    t = draft(w, "escaped");
    t.payload = escaped;
    (void)put(w, &t);
    assert_true(str_eq(claim_won(w, t.id, 0)->payload, escaped));
    f = finish_of(w, t.id, 1, FINISH_RETRY);
    f.error = raw;
    rc = w->d->finish(w->conn, (struct finish_item *[]){&f}, 1, &err);
    assert_true(rc == ERR_INVALID || (!rc && str_eq(look(w, "escaped")->last_error, raw)));
    f.error = escaped;
    if (rc)
        assert_int_equal(finish_one(w, f), FINISH_DONE);
    assert_status(w, "escaped", TASK_RETRYING);
}

static void test_handlers_and_services_compare_byte_for_byte(struct world *w)
{
    struct task t = draft(w, "k");
    struct submit_item item;

    (void)put(w, &t);
    t = draft(w, "k");
    t.service_name = STR("SVC");
    item = submit_one(w, &t, ON_CONFLICT_RETURN, false);
    assert_int_equal(item.result, SUBMIT_FOREIGN);
}

static void test_a_mixed_batch(struct world *w)
{
    struct task tasks[6];
    struct submit_item items[6];

    (void)bring(w, "ended", TASK_SUCCESS);
    (void)bring(w, "live", TASK_PENDING);
    (void)bring(w, "flying", TASK_SENDING);
    (void)bring(w, "waiting", TASK_RETRYING);
    tasks[0] = draft(w, "new2");
    tasks[1] = draft(w, "ended");
    tasks[2] = draft(w, "live");
    tasks[2].service_name = STR("other");
    tasks[3] = draft(w, "flying");
    tasks[4] = draft(w, "waiting");
    tasks[5] = draft(w, "new1");
    for (size_t i = 0; i < 6; i++)
        items[i] = (struct submit_item){.task = &tasks[i]};
    items[3].on_conflict = items[4].on_conflict = ON_CONFLICT_REPLACE;
    submit(w, items, 6);
    assert_int_equal(items[0].result, SUBMIT_CREATED);
    assert_int_equal(items[1].result, SUBMIT_DUPLICATE);
    assert_int_equal(items[2].result, SUBMIT_FOREIGN);
    assert_int_equal(items[3].result, SUBMIT_REFUSED);
    assert_int_equal(items[4].result, SUBMIT_REPLACED);
    assert_int_equal(items[5].result, SUBMIT_CREATED);
    assert_same_task(look(w, "new1"), &tasks[5]);
    assert_same_task(look(w, "new2"), &tasks[0]);
}

static void test_five_hundred_rows_at_once(struct world *w)
{
    int64_t ids[500];
    struct task like = draft(w, "like");
    struct task other = draft(w, "o0100");
    struct submit_item item;

    like.payload = world_fill(w, "\"abc\"", 1000);
    put_many(w, "o", 500, &like, ids);
    item = submit_one(w, &other, ON_CONFLICT_RETURN, false);
    assert_int_equal(item.result, SUBMIT_DUPLICATE);
    assert_true(item.existing->id == ids[100]);
    for (size_t i = 0; i < 500; i += 83)
        assert_true(str_eq(look_id(w, ids[i])->payload, like.payload));
}

/* The call fails as a whole and stores nothing; who calls it finds the row by bisection. */
static void test_an_input_that_cannot_be_written(struct world *w)
{
    struct err err = {0};
    struct task good = draft(w, "good");
    struct task bad = draft(w, "bad");
    struct submit_item items[2] = {{.task = &bad}, {.task = &good}};
    struct submit_item *list[2] = {&items[0], &items[1]};
    unsigned n = 0;

    while (w->backend->spoil(&bad, n)) {
        assert_int_equal(w->d->submit(w->conn, list, 2, &err), ERR_INVALID);
        assert_true(err.text[0] != '\0');
        assert_null(look(w, "good"));
        assert_null(look_id(w, bad.id));
        bad = draft(w, "bad");
        n++;
    }
    assert_true(n > 0);
    assert_int_equal(w->d->submit(w->conn, list, 2, &err), 0);
    assert_int_equal(items[0].result, SUBMIT_CREATED);
    assert_int_equal(items[1].result, SUBMIT_CREATED);
}

static const struct test_case cases[] = {
    {"submit: all fields are stored", test_all_fields_are_stored, 0},
    {"submit: what is absent stays absent", test_what_is_absent_stays_absent, 0},
    {"submit: times pass 2038 and keep milliseconds", test_times_pass_2038_and_keep_milliseconds,
     0},
    {"submit: payloads are kept byte for byte", test_payloads_are_kept_byte_for_byte, 0},
    {"submit: a large payload and the longest names", test_a_large_payload_and_the_longest_names,
     0},
    {"submit: a repeat returns the first", test_a_repeat_returns_the_first, 0},
    {"submit: mismatches are told", test_mismatches_are_told, 0},
    {"submit: an absent payload differs from null", test_absent_payload_differs_from_null, 0},
    {"submit: a key of another service or handler",
     test_a_key_of_another_service_or_handler_is_foreign, 0},
    {"submit: reject refuses a repeat", test_reject_refuses_a_repeat, 0},
    {"submit: replace of a waiting task", test_replace_of_a_waiting_task, 0},
    {"submit: replace in flight and after the end",
     test_replace_is_refused_in_flight_and_after_the_end, 0},
    {"idempotency-20: history answers for its keys", test_history_answers_for_its_keys, 0},
    {"idempotency-21: keys compare byte for byte", test_keys_compare_byte_for_byte, 0},
    {"idempotency-22: trailing blanks differ", test_trailing_blanks_differ, 0},
    {"database-52: a zero character", test_a_zero_character, 0},
    {"submit: services compare byte for byte", test_handlers_and_services_compare_byte_for_byte, 0},
    {"submit: a mixed batch", test_a_mixed_batch, 0},
    {"submit: 500 rows at once", test_five_hundred_rows_at_once, 0},
    {"submit: an input that cannot be written", test_an_input_that_cannot_be_written, 0},
};

const struct case_list submit_cases = CASE_LIST(cases);
