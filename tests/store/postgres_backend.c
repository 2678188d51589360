/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "tests/lib/dbserver.h"
#include "tests/store/backends.h"

#define DATABASES_MAX 32 /* at once */

/* Databases are emptied and used again: to create and drop one takes the server half a second. */
struct postgres_place {
    struct dbserver *server;
    bool exists[DATABASES_MAX];
    bool in_use[DATABASES_MAX];
};

static PGconn *open_db(const char *url)
{
    PGconn *db = PQconnectdb(url);

    if (PQstatus(db) != CONNECTION_OK) {
        (void)fprintf(stderr, "%s: %s", url, PQerrorMessage(db));
        abort();
    }
    return db;
}

static bool query(const char *url, const char *sql, int64_t *ret, struct err *err)
{
    PGconn *db = open_db(url);
    PGresult *res = PQexec(db, sql);
    ExecStatusType status = PQresultStatus(res);
    bool ok = status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK;

    *ret = 0;
    if (!ok)
        (void)err_set(err, ERR_INVALID, "%s", PQresultErrorMessage(res));
    else if (PQntuples(res) > 0 && PQnfields(res) > 0)
        *ret = strtoll(PQgetvalue(res, 0, 0), NULL, 10);
    PQclear(res);
    PQfinish(db);
    return ok;
}

static void must_run(PGconn *db, const char *sql)
{
    PGresult *res = PQexec(db, sql);
    ExecStatusType status = PQresultStatus(res);

    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) {
        (void)fprintf(stderr, "%s: %s", sql, PQresultErrorMessage(res));
        abort();
    }
    PQclear(res);
}

static void *hold(const char *url, const char *sql)
{
    PGconn *db = open_db(url);

    must_run(db, "BEGIN");
    must_run(db, sql);
    return db;
}

static bool run_held(void *held, const char *sql)
{
    PGresult *res = PQexec(held, sql);
    ExecStatusType status = PQresultStatus(res);

    PQclear(res);
    return status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK;
}

static void release(void *held, bool commit)
{
    must_run(held, commit ? "COMMIT" : "ROLLBACK");
    PQfinish(held);
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
    const struct postgres_place *place = b->ctx;
    struct err err = {0};

    must(dbserver_stop(place->server, crash, &err), &err);
}

static void start(const struct backend *b)
{
    const struct postgres_place *place = b->ctx;
    struct err err = {0};

    must(dbserver_start(place->server, &err), &err);
}

static void run_on_server(const struct backend *b, const char *sql)
{
    const struct postgres_place *place = b->ctx;
    char url[DBSERVER_URL_MAX];
    PGconn *db;

    dbserver_url(place->server, "postgres", url);
    db = open_db(url);
    must_run(db, sql);
    PQfinish(db);
}

static int64_t ask_server(const struct backend *b, const char *sql)
{
    const struct postgres_place *place = b->ctx;
    char url[DBSERVER_URL_MAX];
    struct err err = {0};
    int64_t v;

    dbserver_url(place->server, "postgres", url);
    must(query(url, sql, &v, &err) ? 0 : ERR_INVALID, &err);
    return v;
}

static void create(const struct backend *b, char url[URL_SIZE])
{
    struct postgres_place *place = b->ctx;
    unsigned i = 0;
    char name[16];
    char sql[64];

    _Static_assert(DBSERVER_URL_MAX <= URL_SIZE, "the URL fits");
    while (i < DATABASES_MAX && place->in_use[i])
        i++;
    if (i == DATABASES_MAX)
        abort();
    (void)snprintf(name, sizeof(name), "t%u", i);
    (void)snprintf(sql, sizeof(sql), "CREATE DATABASE %s", name);
    if (!place->exists[i])
        run_on_server(b, sql);
    place->exists[i] = place->in_use[i] = true;
    dbserver_url(place->server, name, url);
}

static void drop(const struct backend *b, const char *url)
{
    struct postgres_place *place = b->ctx;
    const char *name = strrchr(url, '/') + 1;
    char sql[128];
    PGconn *db;

    if (!dbserver_is_running(place->server)) /* a case failed before it started it again */
        start(b);
    db = open_db(url);
    (void)snprintf(sql, sizeof(sql), "ALTER DATABASE %s RESET ALL", name);
    must_run(db, "SET client_min_messages = error;"
                 "DROP SCHEMA IF EXISTS other CASCADE; DROP SCHEMA public CASCADE;"
                 "CREATE SCHEMA public");
    must_run(db, sql);
    PQfinish(db);
    place->in_use[strtoul(name + 1, NULL, 10)] = false;
}

static void run_on(const char *url, const char *sql)
{
    PGconn *db = open_db(url);

    must_run(db, sql);
    PQfinish(db);
}

static void disconnect(const struct backend *b, const char *url)
{
    (void)b;
    run_on(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()");
}

static void set_read_only(const struct backend *b, const char *url, bool on)
{
    (void)b;
    run_on(url, on ? "ALTER SYSTEM SET default_transaction_read_only = on"
                   : "ALTER SYSTEM RESET default_transaction_read_only");
    run_on(url, "SELECT pg_reload_conf()");
}

static const struct migration *migrations(const struct backend *b, size_t *ret_n)
{
    return driver_migrations(b->driver, ret_n);
}

static bool spoil(struct task *t, unsigned i)
{
    if (i == 0)
        t->biz_uuid = STR("bad\0key");
    else if (i == 1)
        t->handler = (struct str){0};
    else if (i == 2)
        t->payload = STR("\"\xff\"");
    else if (i == 3)
        t->payload = STR("\"a\0b\"");
    return i < 4;
}

struct backend *postgres_backend_new(struct err *err)
{
    struct backend *b = calloc(1, sizeof(*b));
    struct postgres_place *place = calloc(1, sizeof(*place));
    int rc;

    if (!b || !place)
        abort();
    rc = dbserver_new(&dbserver_postgres, &place->server, err);
    if (rc) {
        free(b);
        free(place);
        if (rc != ERR_NOT_FOUND)
            must(rc, err);
        return NULL;
    }
    *b = (struct backend){
        .name = "postgres",
        .driver = &postgres_driver,
        .has = NEEDS_SQL | NEEDS_THREADS | NEEDS_SERVER | NEEDS_POSTGRES,
        .ctx = place,
        .create = create,
        .drop = drop,
        .migrations = migrations,
        .spoil = spoil,
        .query = query,
        .hold = hold,
        .run_held = run_held,
        .release = release,
        .refuse = "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                  "$$ BEGIN RAISE EXCEPTION 'a trigger refuses it'; END $$; "
                  "CREATE TRIGGER refuse_%2$s BEFORE %1$s ON %2$s FOR EACH ROW WHEN (%3$s) "
                  "EXECUTE FUNCTION refuse()",
        .allow = "DROP TRIGGER refuse_%2$s ON %2$s",
        .old_snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; "
                        "SELECT count(*) FROM job_delay_task",
        .lock_tasks = "LOCK TABLE job_delay_task IN ACCESS EXCLUSIVE MODE",
        .now_sql = "now()",
        .seconds_ago = "(now() - interval '%d seconds')",
        .stop = stop,
        .start = start,
        .run_on_server = run_on_server,
        .ask_server = ask_server,
        .n_waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted",
        .n_deadlocks = "SELECT sum(deadlocks)::bigint FROM pg_stat_database",
        .disconnect = disconnect,
        .set_read_only = set_read_only,
    };
    return b;
}

void postgres_backend_free(struct backend *b)
{
    struct postgres_place *place = b->ctx;

    dbserver_free(place->server);
    free(place);
    free(b);
}
