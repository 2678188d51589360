/* SPDX-License-Identifier: Apache-2.0 */
/* What only MySQL and MariaDB have. */
#include <inttypes.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/timefmt.h"
#include "node/store/mysql_url.h"
#include "tests/store/world.h"

static const struct driver_options options = {.statement_timeout_ms = 10000,
                                              .named_statements = true};

static void set_global(struct world *w, const char *what)
{
    w->backend->run_on_server(w->backend, world_text(w, "SET GLOBAL %s", what).p);
}

/* A server-wide default must not change what the statements rely on. */
static void test_other_defaults_of_the_server(struct world *w)
{
    static const char *const settings[] = {
        "sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
        "time_zone = '-05:00'",
        "tx_isolation = 'SERIALIZABLE'",
        "autocommit = 0",
        "completion_type = 1",
        "sql_select_limit = 1",
        "character_set_client = latin1",
        "collation_connection = latin1_german1_ci",
    };
    struct task t = draft(w, "full");
    const struct task *won;

    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        set_global(w, settings[i]);
    w->conn = world_connect(w);
    t.payload = STR("\"\\\\ ' \\u0000 \xf0\x9f\x90\x98 \xe4\xb8\xad\"");
    t.execute_time = t.next_attempt_time = INT64_C(1741503600123); /* a gap in New York */
    (void)put(w, &t);
    assert_same_task(look(w, "full"), &t);
    won = claim_won(w, t.id, 0);
    assert_true(won->claimed_at >= t.created_at && won->claimed_at <= world_now(w));
    assert_true(won->deadline_at == won->claimed_at + TIMEOUT_MS + MARGIN_MS);
    assert_str(won->payload, t.payload.p);
    finish_done(w, t.id, 1, FINISH_FAIL);
    assert_int_equal(cancel(w, "full", NULL), CANCEL_DONE);
}

static void test_weak_durability_is_told(struct world *w)
{
    const char *warning = NULL;

    (void)world_connect_to(w, w->url, &options, &warning);
    assert_null(warning);
    set_global(w, "innodb_flush_log_at_trx_commit = 2");
    (void)world_connect_to(w, w->url, &options, &warning);
    assert_non_null(warning);
    assert_non_null(strstr(warning, "innodb_flush_log_at_trx_commit = 2"));
}

static void assert_not_opened(struct world *w, const char *url, int wanted, const char *reason)
{
    struct driver_conn *conn = NULL;
    char *warning = NULL;
    struct err err = {0};

    assert_int_equal(w->d->open(url, &options, &conn, &warning, &err), wanted);
    assert_null(warning);
    assert_null(strstr(err.text, "wr0ng"));
    if (!strstr(err.text, reason))
        fail_msg("\"%s\" does not say \"%s\"", err.text, reason);
}

static void test_what_cannot_be_opened(struct world *w)
{
    const char *at = strrchr(w->url, '@') + 1;

    assert_not_opened(w, world_text(w, "mysql://jobflow:wr0ng@%s", at).p, ERR_UNAVAILABLE,
                      "Access denied");
    assert_not_opened(w, world_text(w, "%s?compress=1", w->url).p, ERR_INVALID, "sslmode");
    assert_not_opened(w, world_text(w, "%s?sslmode=verify-full", w->url).p, ERR_UNAVAILABLE,
                      "SSL"); /* the server has no TLS: no word goes in the clear */
    set_global(w, "read_only = 1");
    assert_not_opened(w, w->url, ERR_UNAVAILABLE, "read-only");
}

/* A batch that does not fit the server's packet fails as an input, so that a smaller one is tried;
 * the connection stays. */
static void test_a_batch_for_a_smaller_packet(struct world *w)
{
    struct task big = draft(w, "big");
    struct submit_item item = {.task = &big};
    struct submit_item *list[] = {&item};
    const char *warning = NULL;
    struct err err = {0};

    set_global(w, "max_allowed_packet = 1048576");
    w->conn = world_connect_to(w, w->url, &options, &warning);
    assert_non_null(strstr(warning, "max_allowed_packet"));
    big.payload = world_fill(w, "\"", 600 * 1024); /* twice as much when it is escaped */
    assert_int_equal(w->d->submit(w->conn, list, 1, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "max_allowed_packet"));
    big.payload = world_fill(w, "\"", 400 * 1024);
    assert_int_equal(w->d->submit(w->conn, list, 1, &err), 0);
    assert_str_at(look(w, "big")->payload, big.payload.p, __FILE__, __LINE__);
}

/* All that have a text (common/timefmt.h), also before the year that the type is documented from.
 */
static void test_the_ends_of_time(struct world *w)
{
    static const wall_ms times[] = {TIME_MIN,     TIME_MIN + 1, -INT64_C(46388332800001), -1, 0,
                                    TIME_MAX - 1, TIME_MAX};

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        struct task t = draft_key(w, world_text(w, "k%zu", i));

        t.execute_time = t.next_attempt_time = times[i];
        (void)put(w, &t);
        assert_int_equal(look_key(w, t.biz_uuid)->execute_time, times[i]);
        assert_int_equal(look_key(w, t.biz_uuid)->next_attempt_time, times[i]);
    }
}

static int migrate_to(struct world *w, const char *url, int version, struct err *err)
{
    struct driver_conn *conn = world_connect_to(w, url, &options, NULL);
    size_t n;
    const struct migration *m = w->backend->migrations(w->backend, &n);
    int from;
    int to;

    while (n && m[n - 1].version > version)
        n--;
    return w->d->migrate(conn, m, n, false, &from, &to, err);
}

static int migrate(struct world *w, const char *url, struct err *err)
{
    return migrate_to(w, url, INT_MAX, err);
}

static void query(struct world *w, const char *url, const char *sql, int64_t *ret)
{
    struct err err = {0};

    if (!w->backend->query(url, sql, ret, &err))
        fail_msg("%s: %s", sql, err.text);
}

/* DDL commits by itself: a node that is killed in between leaves a part. */
static void test_a_migration_that_was_cut_off(struct world *w)
{
    const char *url = world_empty(w);
    struct err err = {0};
    int64_t v;

    assert_int_equal(migrate(w, url, &err), 0);
    query(w, url, "DELETE FROM job_schema; DROP TABLE job_alert, job_id_block", &v);
    assert_int_equal(migrate(w, url, &err), 0);
    query(w, url, "SELECT next_id FROM job_id_block", &v);
    assert_int_equal(v, 1);
    query(w, url, "DELETE FROM job_schema; UPDATE job_id_block SET next_id = 5001", &v);
    assert_int_equal(migrate(w, url, &err), 0);
    query(w, url, "SELECT next_id FROM job_id_block", &v);
    assert_int_equal(v, 5001);
    query(w, url,
          "DELETE FROM job_schema WHERE version >= 5; "
          "INSERT INTO job_id_step (id) VALUES (5001 DIV 1000 + 1000000)",
          &v);
    assert_int_equal(migrate(w, url, &err), 0);
    query(w, url, "SELECT count(*) FROM job_id_step", &v);
    assert_int_equal(v, 0);
}

/* A table of that name that somebody had before is not taken for ours, however often it is
 * tried. */
static void test_a_table_of_somebody_else(struct world *w)
{
    const char *url = world_empty(w);
    struct err err = {0};
    int64_t v;

    query(w, url, "CREATE TABLE job_delay_task (id bigint)", &v);
    for (int i = 0; i < 2; i++) {
        assert_true(migrate(w, url, &err) < 0);
        assert_non_null(strstr(err.text, "job_delay_task"));
    }
    query(w, url, "DROP TABLE job_delay_task", &v);
    assert_int_equal(migrate(w, url, &err), 0);
}

/* A list of ids with gaps, runs and several values of one field. */
static void test_lists_of_ids(struct world *w)
{
    enum { N = 60 };
    struct claim_item items[N];
    struct task like = draft(w, "like");
    struct finish_item ends[N];
    int64_t ids[N];
    size_t n = 0;

    put_many(w, "k", N, &like, ids);
    for (size_t i = 0; i < N; i++) {
        if (i % 7 == 3 || (i > 20 && i < 24))
            continue;
        items[n] = claim_of(ids[i], 0);
        items[n].timeout_ms = 1000 * (int32_t)(1 + i / 2 % 5);
        n++;
    }
    claim(w, items, n, NODE);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(items[i].result, CLAIM_WON);
        assert_int_equal(items[i].task->deadline_at - items[i].task->claimed_at,
                         items[i].timeout_ms + MARGIN_MS);
        ends[i] = finish_of(w, items[i].id, 1, FINISH_SUCCESS);
        ends[i].http_status = 200 + (int32_t)(i / 3 % 4);
    }
    finish(w, ends, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(ends[i].result, FINISH_DONE);
        assert_int_equal(look_id(w, ends[i].id)->last_http_status, ends[i].http_status);
    }
    assert_int_equal(sql_value(w, "SELECT count(*) FROM job_delay_task"), N - n);
}

static void test_urls(struct world *w)
{
    static const char *const bad[] = {
        "mysql://",          "mysql:u@h/d",         "mysql://h/d",
        "mysql://u@h",       "mysql://u@h/",        "mysql://u@/d",
        "mysql://u@h:0/d",   "mysql://u@h:65536/d", "mysql://u@h:x/d",
        "mysql://@h/d",      "mysql://u@h/d?a=b",   "mysql://u@h/d?sslmode",
        "mysql://u:%zz@h/d", "mysql://u%00@h/d",    "mysql://u@[::1/d",
        "mysql://u@h/d/e",   "mysql://u@h/d%",      "mysql://u@h/d?sslmode=prefer",
    };
    struct mysql_url u;
    struct err err = {0};

    (void)w;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (mysql_url_parse(bad[i], &u, &err) != ERR_INVALID)
            fail_msg("%s is accepted", bad[i]);
        assert_null(u.block);
    }
    assert_int_equal(mysql_url_parse("mariadb://u%40x:p%2F%3a@[::1]:33/d%20b?sslmode=verify-full&"
                                     "sslrootcert=%2Fetc/ca",
                                     &u, &err),
                     0);
    assert_string_equal(u.user, "u@x");
    assert_string_equal(u.password, "p/:");
    assert_string_equal(u.host, "::1");
    assert_int_equal(u.port, 33);
    assert_string_equal(u.database, "d b");
    assert_int_equal(u.tls, MYSQL_TLS_VERIFIED);
    assert_string_equal(u.ca_file, "/etc/ca");
    mysql_url_fini(&u);
    assert_int_equal(mysql_url_parse("mysql://u@h/d", &u, &err), 0);
    assert_null(u.password);
    assert_int_equal(u.port, 3306);
    assert_int_equal(u.tls, MYSQL_TLS_OFF);
    mysql_url_fini(&u);
}

static int64_t n_page_splits(struct world *w)
{
    return w->backend->ask_server(w->backend, "SELECT count FROM information_schema.INNODB_METRICS "
                                              "WHERE name = 'index_page_splits'");
}

/* Claims leave each row as long as it was: pages that were filled by inserts stay whole. Also of a
 * table that had rows before it had the column. */
static void test_claims_split_no_pages(struct world *w)
{
    enum { N = 5000 };
    const char *url = world_empty(w);
    struct err err = {0};
    struct task like;
    const int64_t *ids;
    int64_t before;
    int64_t filled;

    assert_int_equal(migrate_to(w, url, 5, &err), 0);
    w->conn = world_connect_to(w, url, &options, NULL);
    like = draft(w, "like"); /* with an id of that database */
    put_many(w, "old", 100, &like, NULL);
    assert_int_equal(migrate(w, url, &err), 0);
    set_global(w, "innodb_monitor_enable = 'index_page_splits'");
    before = n_page_splits(w);
    ids = put_crowd(w, N, STR("{\"orderId\":123456789}")); /* many rows in a page */
    filled = n_page_splits(w);
    claim_crowd(w, ids, N);
    assert_true(filled - before > N / 100); /* they are counted, and are many */
    assert_in_range(n_page_splits(w) - filled, 0, 2);
}

static const struct test_case cases[] = {
    {"mysql: URLs", test_urls, NEEDS_MYSQL},
    {"mysql: other defaults of the server", test_other_defaults_of_the_server, NEEDS_MYSQL},
    {"mysql: weak durability is told", test_weak_durability_is_told, NEEDS_MYSQL},
    {"mysql: what cannot be opened", test_what_cannot_be_opened, NEEDS_MYSQL},
    {"mysql: a batch for a smaller packet", test_a_batch_for_a_smaller_packet, NEEDS_MYSQL},
    {"mysql: the ends of time", test_the_ends_of_time, NEEDS_MYSQL},
    {"mysql: a migration that was cut off", test_a_migration_that_was_cut_off, NEEDS_MYSQL},
    {"mysql: a table of somebody else", test_a_table_of_somebody_else, NEEDS_MYSQL},
    {"mysql: lists of ids", test_lists_of_ids, NEEDS_MYSQL},
    {"mysql: claims split no pages", test_claims_split_no_pages, NEEDS_MYSQL},
};

const struct case_list mysql_cases = CASE_LIST(cases);
