/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <mysql.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/store/mysql_url.h"
#include "tests/lib/dbserver.h"
#include "tests/store/backends.h"

#define USER "jobflow"
#define PASSWORD "p:a/s@s?%"
#define PASSWORD_IN_URL "p%3Aa%2Fs%40s%3F%25"

struct mysql_place {
    struct dbserver *server;
    unsigned n; /* databases made so far */
};

static MYSQL *open_db(const char *url)
{
    const unsigned tcp = MYSQL_PROTOCOL_TCP;
    MYSQL *db = mysql_init(NULL);
    struct mysql_url u;
    struct err err = {0};

    if (!db || mysql_optionsv(db, MYSQL_OPT_PROTOCOL, &tcp) ||
        mysql_optionsv(db, MYSQL_SET_CHARSET_NAME, "utf8mb4") || mysql_url_parse(url, &u, &err))
        abort();
    if (!mysql_real_connect(db, u.host, u.user, u.password, u.database, u.port, NULL,
                            CLIENT_MULTI_STATEMENTS)) {
        (void)fprintf(stderr, "%s: %s\n", u.database, mysql_error(db));
        abort();
    }
    mysql_url_fini(&u);
    return db;
}

/* Runs all; *ret is the first value of the last result, as a number. */
static bool run(MYSQL *db, const char *sql, int64_t *ret)
{
    int next = mysql_query(db, sql) ? 1 : 0;

    while (next == 0) {
        MYSQL_RES *res = mysql_store_result(db);
        MYSQL_ROW row = res ? mysql_fetch_row(res) : NULL;

        *ret = row && row[0] ? strtoll(row[0], NULL, 10) : 0;
        mysql_free_result(res);
        next = mysql_next_result(db);
    }
    return next < 0;
}

static void must_run(MYSQL *db, const char *sql)
{
    int64_t v;

    if (!run(db, sql, &v)) {
        (void)fprintf(stderr, "%s: %s\n", sql, mysql_error(db));
        abort();
    }
}

static bool query(const char *url, const char *sql, int64_t *ret, struct err *err)
{
    MYSQL *db = open_db(url);
    bool ok;

    *ret = 0;
    ok = run(db, sql, ret);
    if (!ok)
        (void)err_set(err, ERR_INVALID, "%s", mysql_error(db));
    mysql_close(db);
    return ok;
}

static void *hold(const char *url, const char *sql)
{
    MYSQL *db = open_db(url);

    must_run(db, "START TRANSACTION");
    must_run(db, sql);
    return db;
}

static bool run_held(void *held, const char *sql)
{
    int64_t v;

    return run(held, sql, &v);
}

static void release(void *held, bool commit)
{
    must_run(held, commit ? "COMMIT; UNLOCK TABLES" : "ROLLBACK; UNLOCK TABLES");
    mysql_close(held);
}

static void must(int rc, const struct err *err)
{
    if (rc) {
        (void)fprintf(stderr, "the server: %s\n", err->text);
        abort();
    }
}

static void stop(const struct backend *b, bool crash)
{
    const struct mysql_place *place = b->ctx;
    struct err err = {0};

    must(dbserver_stop(place->server, crash, &err), &err);
}

static void start(const struct backend *b)
{
    const struct mysql_place *place = b->ctx;
    struct err err = {0};

    must(dbserver_start(place->server, &err), &err);
}

static MYSQL *open_server(const struct backend *b)
{
    const struct mysql_place *place = b->ctx;
    char url[DBSERVER_URL_MAX];

    if (!dbserver_is_running(place->server)) /* a case failed before it started it again */
        start(b);
    dbserver_url(place->server, "mysql", url);
    return open_db(url);
}

static void run_on_server(const struct backend *b, const char *sql)
{
    MYSQL *db = open_server(b);

    must_run(db, sql);
    mysql_close(db);
}

static int64_t ask_server(const struct backend *b, const char *sql)
{
    MYSQL *db = open_server(b);
    int64_t v = 0;

    if (!run(db, sql, &v))
        abort();
    mysql_close(db);
    return v;
}

static void create(const struct backend *b, char url[URL_SIZE])
{
    struct mysql_place *place = b->ctx;
    char root[DBSERVER_URL_MAX];
    char sql[64];
    char name[16];

    (void)snprintf(name, sizeof(name), "t%u", place->n++);
    (void)snprintf(sql, sizeof(sql), "CREATE DATABASE %s", name);
    run_on_server(b, sql);
    dbserver_url(place->server, name, root);
    (void)snprintf(url, URL_SIZE, "mysql://%s:%s%s", USER, PASSWORD_IN_URL, strchr(root, '@'));
}

static void drop(const struct backend *b, const char *url)
{
    char sql[768];

    (void)snprintf(sql, sizeof(sql),
                   "SET GLOBAL sql_mode = DEFAULT, GLOBAL time_zone = DEFAULT, "
                   "GLOBAL tx_isolation = DEFAULT, GLOBAL max_allowed_packet = DEFAULT, "
                   "GLOBAL autocommit = DEFAULT, GLOBAL completion_type = DEFAULT, "
                   "GLOBAL sql_select_limit = DEFAULT, GLOBAL character_set_client = DEFAULT, "
                   "GLOBAL collation_connection = DEFAULT, "
                   "GLOBAL innodb_flush_log_at_trx_commit = 1, GLOBAL read_only = 0; "
                   "DROP DATABASE %s",
                   strrchr(url, '/') + 1);
    run_on_server(b, sql);
}

/* Ends the other sessions on the database. */
static void disconnect(const struct backend *b, const char *url)
{
    MYSQL *db = open_server(b);
    char sql[160];
    MYSQL_RES *res;
    MYSQL_ROW row;

    (void)snprintf(sql, sizeof(sql),
                   "SELECT id FROM information_schema.processlist WHERE db = '%s'",
                   strrchr(url, '/') + 1);
    if (mysql_query(db, sql))
        abort();
    res = mysql_store_result(db);
    if (!res)
        abort();
    while ((row = mysql_fetch_row(res))) {
        (void)snprintf(sql, sizeof(sql), "KILL %s", row[0]);
        must_run(db, sql);
    }
    mysql_free_result(res);
    mysql_close(db);
}

static void set_read_only(const struct backend *b, const char *url, bool on)
{
    (void)url;
    run_on_server(b, on ? "SET GLOBAL read_only = 1" : "SET GLOBAL read_only = 0");
}

static const struct migration *migrations(const struct backend *b, size_t *ret_n)
{
    return driver_migrations(b->driver, ret_n);
}

static bool spoil(struct task *t, unsigned i)
{
    if (i == 0)
        t->handler = (struct str){0};
    else if (i == 1)
        t->payload = STR("\"\xff\"");
    else if (i == 2)
        t->handler = STR("\xe4\xb8");
    return i < 3;
}

struct backend *mysql_backend_new(struct err *err)
{
    struct backend *b = calloc(1, sizeof(*b));
    struct mysql_place *place = calloc(1, sizeof(*place));
    int rc;

    if (!b || !place)
        abort();
    rc = dbserver_new(&dbserver_mariadb, &place->server, err);
    if (rc) {
        free(b);
        free(place);
        if (rc != ERR_NOT_FOUND)
            must(rc, err);
        return NULL;
    }
    *b = (struct backend){
        .name = "mysql",
        .driver = &mysql_driver,
        .has = NEEDS_SQL | NEEDS_THREADS | NEEDS_SERVER | NEEDS_MYSQL,
        .ctx = place,
        .create = create,
        .drop = drop,
        .migrations = migrations,
        .spoil = spoil,
        .query = query,
        .hold = hold,
        .run_held = run_held,
        .release = release,
        .refuse = "CREATE TRIGGER refuse_%2$s BEFORE %1$s ON %2$s FOR EACH ROW IF %3$s THEN "
                  "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a trigger refuses it'; END IF",
        .allow = "DROP TRIGGER refuse_%2$s",
        .old_snapshot = "ROLLBACK; SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; "
                        "START TRANSACTION WITH CONSISTENT SNAPSHOT; "
                        "SELECT count(*) FROM job_delay_task",
        .lock_tasks = "LOCK TABLES job_delay_task WRITE",
        .now_sql = "UTC_TIMESTAMP(3)",
        .seconds_ago = "(UTC_TIMESTAMP(3) - INTERVAL %d SECOND)",
        .stop = stop,
        .start = start,
        .run_on_server = run_on_server,
        .ask_server = ask_server,
        .n_waiting = "SELECT variable_value FROM information_schema.global_status "
                     "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
        .n_deadlocks = "SELECT variable_value FROM information_schema.global_status "
                       "WHERE variable_name = 'INNODB_DEADLOCKS'",
        .disconnect = disconnect,
        .set_read_only = set_read_only,
    };
    run_on_server(b, "CREATE USER '" USER "'@'127.0.0.1' IDENTIFIED BY '" PASSWORD "'; "
                     "GRANT ALL PRIVILEGES ON `t%`.* TO '" USER "'@'127.0.0.1'");
    return b;
}

void mysql_backend_free(struct backend *b)
{
    struct mysql_place *place = b->ctx;

    dbserver_free(place->server);
    free(place);
    free(b);
}
