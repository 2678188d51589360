/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of tasks over both tables. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/world.h"

static struct call_list query(void)
{
    return (struct call_list){.from = WALL_NONE,
                              .to = WALL_NONE,
                              .before_id = INT64_MAX,
                              .limit = 100,
                              .look_limit = 1000};
}

static void list(struct world *w, struct call_list *c)
{
    assert_int_equal(call(w, &c->call, CALL_LIST), 0);
    (void)world_keep(w, c->tasks);
    for (size_t i = 0; i < c->n; i++)
        (void)world_keep_task(w, c->tasks[i]);
    assert_true(c->n <= c->limit);
    for (size_t i = 0; i < c->n; i++) {
        assert_true(c->tasks[i]->id < c->before_id);
        if (i)
            assert_true(c->tasks[i]->id < c->tasks[i - 1]->id);
    }
}

/* Reads all pages; returns how many tasks, with their ids. */
static size_t list_all(struct world *w, struct call_list c, int64_t *ids, size_t cap,
                       size_t *ret_pages)
{
    size_t n = 0;
    size_t pages = 0;

    do {
        list(w, &c);
        for (size_t i = 0; i < c.n; i++) {
            assert_true(n < cap);
            ids[n++] = c.tasks[i]->id;
        }
        assert_true(c.next_before_id >= 0 && c.next_before_id < c.before_id);
        c.before_id = c.next_before_id;
        assert_true(++pages < 1000);
    } while (c.before_id);
    if (ret_pages)
        *ret_pages = pages;
    return n;
}

static size_t count(struct world *w, struct call_list c)
{
    int64_t ids[200];

    return list_all(w, c, ids, 200, NULL);
}

static void test_nothing(struct world *w)
{
    struct call_list c = query();

    list(w, &c);
    assert_int_equal(c.n, 0);
    assert_true(c.next_before_id == 0);
}

/* Live and finished in turns, so that each page needs both tables. */
static void put_mixed(struct world *w, int64_t *ids, size_t n)
{
    struct task like = draft(w, "like");

    put_many(w, "l", n, &like, ids);
    for (size_t i = 0; i < n; i++) {
        if (i % 2)
            assert_int_equal(cancel(w, world_text(w, "l%04zu", i).p, NULL), CANCEL_DONE);
    }
}

static void test_pages_go_over_both_tables(struct world *w)
{
    enum { N = 50 };
    int64_t ids[N];
    int64_t seen[N];
    size_t pages;

    put_mixed(w, ids, N);
    for (uint32_t limit = 1; limit <= 51; limit += 10) {
        struct call_list c = query();

        c.limit = limit;
        assert_int_equal(list_all(w, c, seen, N, &pages), N);
        for (size_t i = 0; i < N; i++)
            assert_true(seen[i] == ids[N - 1 - i]);
        assert_true(pages <= N / limit + 1);
    }
}

static void test_rows_are_whole(struct world *w)
{
    const struct task *live = bring(w, "live", TASK_RETRYING);
    const struct task *ended = bring(w, "ended", TASK_SUCCESS);
    struct call_list c = query();

    list(w, &c);
    assert_int_equal(c.n, 2);
    assert_same_task(c.tasks[0], ended);
    assert_same_task(c.tasks[1], live);
}

static void test_filter_by_status(struct world *w)
{
    static const enum task_status statuses[] = {TASK_PENDING,  TASK_SENDING, TASK_SENT,
                                                TASK_RETRYING, TASK_SUCCESS, TASK_FAILED,
                                                TASK_CANCELLED};

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        (void)bring(w, task_status_name(statuses[i]), statuses[i]);
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        struct call_list c = query();

        c.statuses = task_status_bit(statuses[i]);
        list(w, &c);
        assert_int_equal(c.n, 1);
        assert_int_equal(c.tasks[0]->status, statuses[i]);
    }
    struct call_list c = query();
    c.statuses = TASK_IN_FLIGHT | TASK_ENDED;
    assert_int_equal(count(w, c), 4);
    c.statuses = TASK_WAITING | task_status_bit(TASK_SUCCESS);
    c.limit = 1;
    assert_int_equal(count(w, c), 3);
    c.statuses = 0;
    assert_int_equal(count(w, c), 7);
}

static void test_filter_by_service_handler_and_time(struct world *w)
{
    wall_ms base = world_now(w) - 100000;
    struct call_list c;

    for (int i = 0; i < 24; i++) {
        struct task t = draft_key(w, world_text(w, "k%d", i));

        t.service_name = i % 2 ? STR("svc") : STR("SVC");
        t.handler = i % 3 ? STR("h") : STR("h2");
        t.execute_time = base + i;
        (void)put(w, &t);
        if (i % 4 == 0)
            assert_int_equal(cancel(w, t.biz_uuid.p, NULL), CANCEL_DONE);
    }
    c = query();
    c.service_name = STR("svc");
    assert_int_equal(count(w, c), 12);
    c.handler = STR("h2");
    assert_int_equal(count(w, c), 4);
    c.service_name = (struct str){0};
    assert_int_equal(count(w, c), 8);
    c = query();
    c.from = base + 5; /* inclusive */
    assert_int_equal(count(w, c), 19);
    c.to = base + 7; /* exclusive */
    assert_int_equal(count(w, c), 2);
    c.statuses = task_status_bit(TASK_CANCELLED);
    assert_int_equal(count(w, c), 0);
    c.to = base + 9;
    assert_int_equal(count(w, c), 1);
    c.service_name = STR("s%");
    assert_int_equal(count(w, c), 0);
}

/* A page looks at a bounded number of rows, and says where to go on although nothing matched. */
static void test_a_bounded_look(struct world *w)
{
    enum { N = 60 };
    int64_t ids[N];
    int64_t seen[4];
    struct call_list c = query();
    struct task needle = draft(w, "needle");
    size_t pages;

    needle.service_name = STR("rare");
    (void)put(w, &needle);
    put_mixed(w, ids, N);
    c.service_name = STR("rare");
    c.look_limit = 5;
    list(w, &c);
    assert_int_equal(c.n, 0);
    assert_true(c.next_before_id > 0 && c.next_before_id <= ids[N - 1]);
    c.before_id = INT64_MAX;
    assert_int_equal(list_all(w, c, seen, 4, &pages), 1);
    assert_true(seen[0] == needle.id);
    assert_true(pages >= N / 10 && pages <= N + 2);
}

/* Nothing is left out when the two tables' looks end at different ids. */
static void test_a_bounded_look_misses_nothing(struct world *w)
{
    enum { N = 40 };
    int64_t ids[N];
    int64_t seen[N];
    struct task like = draft(w, "like");

    put_many(w, "l", N, &like, ids);
    for (size_t i = 0; i < 10; i++) /* the oldest are in history */
        assert_int_equal(cancel(w, world_text(w, "l%04zu", i).p, NULL), CANCEL_DONE);
    for (uint32_t look_limit = 1; look_limit <= 13; look_limit += 3) {
        for (uint32_t limit = 1; limit <= 9; limit += 4) {
            struct call_list c = query();

            c.limit = limit;
            c.look_limit = look_limit;
            assert_int_equal(list_all(w, c, seen, N, NULL), N);
            for (size_t i = 0; i < N; i++)
                assert_true(seen[i] == ids[N - 1 - i]);
        }
    }
}

/* Tasks end while somebody turns the pages: each is seen once. */
static void test_tasks_that_move_between_pages(struct world *w)
{
    enum { N = 30 };
    int64_t ids[N];
    struct task like = draft(w, "like");
    struct call_list c = query();
    size_t n = 0;

    put_many(w, "l", N, &like, ids);
    c.limit = 4;
    do {
        list(w, &c);
        for (size_t i = 0; i < c.n; i++, n++)
            assert_true(c.tasks[i]->id == ids[N - 1 - n]);
        c.before_id = c.next_before_id;
        if (n < N)
            (void)cancel(w, world_text(w, "l%04zu", N - 1 - n).p, NULL);
        (void)cancel(w, world_text(w, "l%04zu", n % N).p, NULL);
    } while (c.before_id);
    assert_int_equal(n, N);
}

static const struct test_case cases[] = {
    {"list: nothing", test_nothing, 0},
    {"list: pages go over both tables", test_pages_go_over_both_tables, 0},
    {"list: rows are whole", test_rows_are_whole, 0},
    {"list: by status", test_filter_by_status, 0},
    {"list: by service, handler and time", test_filter_by_service_handler_and_time, 0},
    {"list: a bounded look", test_a_bounded_look, 0},
    {"list: a bounded look misses nothing", test_a_bounded_look_misses_nothing, 0},
    {"list: tasks that move between pages", test_tasks_that_move_between_pages, 0},
};

const struct case_list list_cases = CASE_LIST(cases);
