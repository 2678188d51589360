/* SPDX-License-Identifier: Apache-2.0 */
/* Migrations, ids, and the queries that people run by hand. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/rig.h"
#include "tests/store/world.h"

#define MAX_BUSY 1000
#define N_EXTRA 2 /* migrations that a case may add */

static const struct driver_options options = {.statement_timeout_ms = 30000,
                                              .named_statements = true};

/* The schema's migrations with room for more behind them. */
static struct migration *list_of(struct world *w, size_t *ret_n)
{
    const struct migration *m = w->backend->migrations(w->backend, ret_n);
    struct migration *copy = world_keep(w, calloc(*ret_n + N_EXTRA, sizeof(*copy)));

    assert_non_null(copy);
    memcpy(copy, m, *ret_n * sizeof(*copy));
    return copy;
}

static int migrate(struct world *w, struct driver_conn *conn, const struct migration *m, size_t n,
                   bool check_only, int *ret_from, int *ret_to, struct err *err)
{
    *ret_from = *ret_to = -1;
    err->text[0] = '\0';
    return w->d->migrate(conn, m, n, check_only, ret_from, ret_to, err);
}

static void test_migrate_twice(struct world *w)
{
    size_t n;
    const struct migration *m = list_of(w, &n);
    struct driver_conn *conn = world_connect_to(w, world_empty(w), &options, NULL);
    int last = m[n - 1].version;
    struct err err;
    int from;
    int to;

    assert_int_equal(migrate(w, conn, m, n, false, &from, &to, &err), 0);
    assert_int_equal(from, 0);
    assert_int_equal(to, last);
    assert_int_equal(migrate(w, conn, m, n, false, &from, &to, &err), 0);
    assert_int_equal(from, last);
    assert_int_equal(to, last);
}

static void test_check_only_changes_nothing(struct world *w)
{
    size_t n;
    const struct migration *m = list_of(w, &n);
    struct driver_conn *conn = world_connect_to(w, world_empty(w), &options, NULL);
    struct err err;
    int from;
    int to;

    assert_int_equal(migrate(w, conn, m, n, true, &from, &to, &err), ERR_NOT_FOUND);
    assert_true(err.text[0] != '\0');
    assert_int_equal(migrate(w, conn, m, n, true, &from, &to, &err), ERR_NOT_FOUND);
    assert_int_equal(migrate(w, conn, m, n, false, &from, &to, &err), 0);
    assert_int_equal(from, 0);
    assert_int_equal(migrate(w, conn, m, n, true, &from, &to, &err), 0);
    assert_int_equal(from, m[n - 1].version);
    assert_int_equal(to, m[n - 1].version);
}

static void test_a_newer_schema_is_refused(struct world *w)
{
    size_t n;
    struct migration *m = list_of(w, &n);
    struct err err;
    int from;
    int to;

    m[n] = (struct migration){987, "from the future", "CREATE TABLE job_future (id integer)"};
    assert_int_equal(migrate(w, w->conn, m, n + 1, false, &from, &to, &err), 0);
    assert_int_equal(to, 987);
    assert_int_equal(migrate(w, w->conn, m, n, false, &from, &to, &err), ERR_CONFLICT);
    assert_non_null(strstr(err.text, "987"));
    assert_non_null(strstr(err.text, world_text(w, "%d", m[n - 1].version).p));
    assert_int_equal(migrate(w, w->conn, m, n, true, &from, &to, &err), ERR_CONFLICT);
}

/* Each migration commits with its version, and one that fails leaves nothing of itself. */
static void test_a_migration_that_fails(struct world *w)
{
    size_t n;
    struct migration *m = list_of(w, &n);
    struct driver_conn *conn = world_connect_to(w, world_empty(w), &options, NULL);
    int last = m[n - 1].version;
    struct err err;
    int from;
    int to;

    m[n] = (struct migration){last + 1, "good", "CREATE TABLE job_good (id integer)"};
    m[n + 1] = (struct migration){last + 2, "bad",
                                  "CREATE TABLE job_bad (id integer); INSERT INTO job_missing "
                                  "VALUES (1)"};
    assert_true(migrate(w, conn, m, n + 2, false, &from, &to, &err) < 0);
    assert_int_equal(migrate(w, conn, m, n + 1, true, &from, &to, &err), 0);
    assert_int_equal(to, last + 1);
    m[n + 1].sql = "CREATE TABLE job_bad (id integer)";
    assert_int_equal(migrate(w, conn, m, n + 2, false, &from, &to, &err), 0);
    assert_int_equal(from, last + 1);
    assert_int_equal(to, last + 2);
}

struct migrator {
    pthread_t thread;
    struct world *w;
    const char *url;
    const struct migration *m;
    size_t n;
    int rc;
    int to;
    struct err err;
};

static void *run_migrator(void *arg)
{
    struct migrator *g = arg;
    struct driver_conn *conn = NULL;
    char *warning = NULL;
    int left = MAX_BUSY;
    int from;

    do {
        g->rc = g->w->d->open(g->url, &options, &conn, &warning, &g->err);
        free(warning);
    } while (g->rc == ERR_BUSY && left--);
    if (g->rc)
        return NULL;
    for (int i = 0; i < MAX_BUSY; i++) {
        g->rc = g->w->d->migrate(conn, g->m, g->n, false, &from, &g->to, &g->err);
        if (g->rc != ERR_BUSY)
            break;
    }
    g->w->d->close(conn);
    return NULL;
}

static void test_four_migrate_at_once(struct world *w)
{
    enum { N = 4 };
    struct migrator g[N];
    size_t n;
    const struct migration *m = list_of(w, &n);

    for (int round = 0; round < 5; round++) {
        const char *url = world_empty(w);

        for (size_t i = 0; i < N; i++) {
            g[i] = (struct migrator){.w = w, .url = url, .m = m, .n = n};
            assert_int_equal(pthread_create(&g[i].thread, NULL, run_migrator, &g[i]), 0);
        }
        for (size_t i = 0; i < N; i++)
            assert_int_equal(pthread_join(g[i].thread, NULL), 0);
        for (size_t i = 0; i < N; i++) {
            if (g[i].rc)
                fail_msg("%s: %s", err_name(g[i].rc), g[i].err.text);
            assert_int_equal(g[i].to, m[n - 1].version);
        }
    }
}

static void test_the_store_refuses_a_newer_schema(struct world *w)
{
    size_t n;
    struct migration *m = list_of(w, &n);
    mono_ms until = clock_mono() + DEADLINE_MS;
    struct rig *r;
    struct err err;
    int from;
    int to;

    m[n] = (struct migration){987, "from the future", "CREATE TABLE job_future (id integer)"};
    assert_int_equal(migrate(w, w->conn, m, n + 1, false, &from, &to, &err), 0);
    r = rig_start(w, rig_config(w), false);
    while (!store_is_fatal(r->store) || !atomic_load(&r->n_down)) {
        assert_true(clock_mono() < until);
        nap();
    }
    assert_non_null(strstr(r->down_text, "987"));
    assert_false(store_is_up(r->store));
    assert_int_equal(atomic_load(&r->n_up), 0);
    assert_true(rig_try(r, rig_submit_job(r, 1)) < 0);
}

static void test_migrate_for_its_own_sake(struct world *w)
{
    const char *url = world_empty(w);
    struct err err = {0};
    size_t n;
    const struct migration *m = list_of(w, &n);
    int from = -1;
    int to = -1;

    assert_int_equal(store_migrate(url, &options, &from, &to, &err), 0);
    assert_int_equal(from, 0);
    assert_int_equal(to, m[n - 1].version);
    assert_int_equal(store_migrate(url, &options, &from, &to, &err), 0);
    assert_int_equal(from, m[n - 1].version);
}

static void test_blocks_of_ids_do_not_overlap(struct world *w)
{
    enum { N = 20 };
    struct driver_conn *other = world_connect(w);
    struct {
        int64_t first;
        int64_t n;
    } blocks[N];
    struct err err;

    for (size_t i = 0; i < N; i++) {
        struct driver_conn *conn = i % 2 ? other : w->conn;

        assert_int_equal(w->d->take_ids(conn, &blocks[i].first, &blocks[i].n, &err), 0);
        assert_true(blocks[i].first > 0 && blocks[i].n > 0);
        for (size_t k = 0; k < i; k++)
            assert_true(blocks[k].first + blocks[k].n <= blocks[i].first ||
                        blocks[i].first + blocks[i].n <= blocks[k].first);
    }
}

/* The queries of the articles that people know, as they stand. */
static void test_the_four_questions(struct world *w)
{
    const struct backend *b = w->backend;
    char old[128];
    const struct task *t;
    struct task late = draft(w, "later");

    (void)bring(w, "failed1", TASK_FAILED);
    (void)bring(w, "failed2", TASK_FAILED);
    (void)bring(w, "done", TASK_SUCCESS);
    (void)bring(w, "due", TASK_PENDING);
    late.execute_time = late.next_attempt_time = late.created_at + 600000;
    (void)put(w, &late);
    (void)bring(w, "sending", TASK_SENDING);
    t = bring(w, "stuck", TASK_SENDING);
    (void)snprintf(old, sizeof(old), b->seconds_ago, 130);
    (void)sql_value(w, "UPDATE job_delay_task SET updated_at = %s WHERE id = %" PRId64, old, t->id);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task WHERE status = 'FAILED'"),
                     2);
    assert_int_equal(sql_value(w,
                               "SELECT count(*) FROM job_delay_task WHERE status = 'PENDING' AND "
                               "execute_time < %s",
                               b->now_sql),
                     1);
    (void)snprintf(old, sizeof(old), b->seconds_ago, 120);
    assert_int_equal(sql_value(w,
                               "SELECT count(*) FROM job_delay_task WHERE status = 'SENDING' AND "
                               "updated_at < %s",
                               old),
                     1);
    assert_int_equal(sql_value(w, "SELECT count(*) FROM (SELECT biz_uuid FROM job_delay_task "
                                  "GROUP BY biz_uuid HAVING count(*) > 1) AS d"),
                     0);
}

static const struct test_case cases[] = {
    {"schema: migrate twice", test_migrate_twice, 0},
    {"schema: check only", test_check_only_changes_nothing, 0},
    {"schema: a newer one is refused", test_a_newer_schema_is_refused, 0},
    {"schema: a migration that fails", test_a_migration_that_fails, NEEDS_SQL},
    {"schema: four migrate at once", test_four_migrate_at_once, NEEDS_THREADS},
    {"schema: the store refuses a newer one", test_the_store_refuses_a_newer_schema, NEEDS_THREADS},
    {"schema: migrate for its own sake", test_migrate_for_its_own_sake, NEEDS_SQL},
    {"schema: blocks of ids do not overlap", test_blocks_of_ids_do_not_overlap, 0},
    {"schema: the four questions", test_the_four_questions, NEEDS_SQL},
};

const struct case_list schema_cases = CASE_LIST(cases);
