/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>

#include "tests/store/backends.h"

#define BUSY_MS 20000

struct sqlite_place {
    char dir[128];
    unsigned n; /* databases made so far */
};

static void create(const struct backend *b, char url[URL_SIZE])
{
    struct sqlite_place *place = b->ctx;

    (void)snprintf(url, URL_SIZE, "sqlite:%s/%u.db", place->dir, place->n++);
}

static const char *file_of(const char *url)
{
    return strchr(url, ':') + 1;
}

static void drop(const struct backend *b, const char *url)
{
    static const char *const ends[] = {"", "-wal", "-shm", "-journal", "-lock", ".lock"};
    char path[URL_SIZE + 16];

    (void)b;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", file_of(url), ends[i]);
        (void)unlink(path);
    }
}

static const struct migration *migrations(const struct backend *b, size_t *ret_n)
{
    return driver_migrations(b->driver, ret_n);
}

static bool spoil(struct task *t, unsigned i)
{
    if (i == 0)
        t->handler = (struct str){0};
    return i < 1;
}

static sqlite3 *open_file(const char *url)
{
    sqlite3 *db;

    if (sqlite3_open_v2(file_of(url), &db, SQLITE_OPEN_READWRITE, NULL))
        abort();
    (void)sqlite3_busy_timeout(db, BUSY_MS);
    return db;
}

static int on_row(void *ctx, int n, char **values, char **names)
{
    int64_t **ret = ctx;

    (void)names;
    if (*ret && n > 0 && values[0])
        **ret = strtoll(values[0], NULL, 10);
    *ret = NULL; /* the first row only */
    return 0;
}

static bool query(const char *url, const char *sql, int64_t *ret, struct err *err)
{
    sqlite3 *db = open_file(url);
    char *text = NULL;
    int rc;

    *ret = 0;
    rc = sqlite3_exec(db, sql, on_row, &ret, &text);
    if (rc)
        (void)err_set(err, ERR_INVALID, "%s", text ? text : sqlite3_errstr(rc));
    sqlite3_free(text);
    (void)sqlite3_close(db);
    return rc == SQLITE_OK;
}

static void *hold(const char *url, const char *sql)
{
    sqlite3 *db = open_file(url);

    if (sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) ||
        sqlite3_exec(db, sql, NULL, NULL, NULL))
        abort();
    return db;
}

static bool run_held(void *held, const char *sql)
{
    return sqlite3_exec(held, sql, NULL, NULL, NULL) == SQLITE_OK;
}

static void release(void *held, bool commit)
{
    if (sqlite3_exec(held, commit ? "COMMIT" : "ROLLBACK", NULL, NULL, NULL) || sqlite3_close(held))
        abort();
}

struct backend *sqlite_backend_new(void)
{
    struct backend *b = calloc(1, sizeof(*b));
    struct sqlite_place *place = calloc(1, sizeof(*place));
    const char *tmp = getenv("TMPDIR");

    if (!b || !place)
        abort();
    (void)snprintf(place->dir, sizeof(place->dir), "%s/conformance.XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(place->dir))
        abort();
    *b = (struct backend){
        .name = "sqlite",
        .driver = &sqlite_driver,
        .has = NEEDS_SQL | NEEDS_THREADS | NEEDS_FILE,
        .ctx = place,
        .create = create,
        .drop = drop,
        .migrations = migrations,
        .spoil = spoil,
        .query = query,
        .hold = hold,
        .run_held = run_held,
        .release = release,
        .refuse = "CREATE TRIGGER refuse_%2$s BEFORE %1$s ON %2$s WHEN %3$s "
                  "BEGIN SELECT RAISE(ABORT, 'a trigger refuses it'); END",
        .allow = "DROP TRIGGER refuse_%2$s",
        .old_snapshot = "ROLLBACK; BEGIN; SELECT count(*) FROM job_delay_task",
        .lock_tasks = "SELECT 1", /* BEGIN IMMEDIATE does it */
        .now_sql = "(unixepoch('subsec') * 1000)",
        .seconds_ago = "((unixepoch() - %d) * 1000)",
    };
    if (sqlite3_libversion_number() < 3042000)
        b->now_sql = "((unixepoch() + 1) * 1000)"; /* the second that is not over yet */
    return b;
}

void sqlite_backend_free(struct backend *b)
{
    struct sqlite_place *place = b->ctx;

    (void)rmdir(place->dir);
    free(place);
    free(b);
}
