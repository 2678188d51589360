/* SPDX-License-Identifier: Apache-2.0 */
#include "examples/order-service/orders.h"

#include <stdio.h>
#include <string.h>

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS orders("
    " id TEXT PRIMARY KEY,"
    " status TEXT NOT NULL DEFAULT 'unpaid' CHECK (status IN ('unpaid', 'paid', 'cancelled')),"
    " timeout TEXT NOT NULL,"
    " scheduled INTEGER NOT NULL DEFAULT 0,"
    " created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))";

sqlite3 *orders_open(const char *file)
{
    sqlite3 *db = NULL;

    if (sqlite3_open(file, &db) != SQLITE_OK || sqlite3_busy_timeout(db, 5000) != SQLITE_OK ||
        sqlite3_exec(db, schema, NULL, NULL, NULL) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", file, sqlite3_errmsg(db));
        sqlite3_close(db);
        return NULL;
    }
    return db;
}

static bool failed(sqlite3 *db, sqlite3_stmt *s)
{
    fprintf(stderr, "database: %s\n", sqlite3_errmsg(db));
    sqlite3_finalize(s);
    return false;
}

/* Runs a statement that changes rows; b may be NULL. */
static bool change(sqlite3 *db, const char *sql, const char *a, const char *b)
{
    sqlite3_stmt *s = NULL;

    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK ||
        sqlite3_bind_text(s, 1, a, -1, SQLITE_STATIC) != SQLITE_OK ||
        (b && sqlite3_bind_text(s, 2, b, -1, SQLITE_STATIC) != SQLITE_OK) ||
        sqlite3_step(s) != SQLITE_DONE)
        return failed(db, s);
    sqlite3_finalize(s);
    return true;
}

bool orders_add(sqlite3 *db, const char *id, const char *timeout)
{
    return change(db, "INSERT OR IGNORE INTO orders(id, timeout) VALUES (?, ?)", id, timeout);
}

bool orders_remove(sqlite3 *db, const char *id)
{
    return change(db, "DELETE FROM orders WHERE id = ?", id, NULL);
}

bool orders_set_scheduled(sqlite3 *db, const char *id)
{
    return change(db, "UPDATE orders SET scheduled = 1 WHERE id = ?", id, NULL);
}

bool orders_end(sqlite3 *db, const char *id, const char *status, bool *ret_changed)
{
    if (!change(db, "UPDATE orders SET status = ?2 WHERE id = ?1 AND status = 'unpaid'", id,
                status))
        return false;
    *ret_changed = sqlite3_changes(db) == 1;
    return true;
}

/* The one row of a query with the columns of struct order; id may be NULL. */
static bool find(sqlite3 *db, const char *sql, const char *id, struct order *ret)
{
    sqlite3_stmt *s = NULL;

    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK ||
        (id && sqlite3_bind_text(s, 1, id, -1, SQLITE_STATIC) != SQLITE_OK))
        return failed(db, s);
    int rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        snprintf(ret->id, sizeof(ret->id), "%s", sqlite3_column_text(s, 0));
        snprintf(ret->status, sizeof(ret->status), "%s", sqlite3_column_text(s, 1));
        snprintf(ret->timeout, sizeof(ret->timeout), "%s", sqlite3_column_text(s, 2));
        ret->scheduled = sqlite3_column_int(s, 3) != 0;
    } else if (rc != SQLITE_DONE) {
        return failed(db, s);
    }
    sqlite3_finalize(s);
    return rc == SQLITE_ROW;
}

bool orders_find(sqlite3 *db, const char *id, struct order *ret)
{
    return find(db, "SELECT id, status, timeout, scheduled FROM orders WHERE id = ?", id, ret);
}

bool orders_find_unscheduled(sqlite3 *db, struct order *ret)
{
    return find(db,
                "SELECT id, status, timeout, scheduled FROM orders"
                " WHERE scheduled = 0 AND status = 'unpaid' ORDER BY created_at LIMIT 1",
                NULL, ret);
}
