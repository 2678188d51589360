/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite: one file, one process. WAL with synchronous=FULL, so that a commit is on the disk when it
 * returns; one connection writes, others may read. A lock beside the file keeps a second process
 * out: its scheduler would believe that all orphans are its own. The sqlite3 tool may read
 * meanwhile. */
#include <pthread.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "node/store/calls.h"
#include "node/store/driver.h"
#include "node/store/migrate.h"
#include "node/store/rowops.h"
#include "node/store/sql.h"
#include "node/store/sqlite_lock.h"

#define STATEMENTS_MAX 96
#define COLUMNS_MAX 32
#define ID_BLOCK 1000

struct statement {
    const char *text; /* its address is the key */
    sqlite3_stmt *stmt;
};

struct driver_conn {
    struct sql sql; /* first */
    sqlite3 *db;
    struct sqlite_lock *lock;
    struct statement statements[STATEMENTS_MAX];
    size_t n_statements;
};

static struct driver_conn *conn_of(struct sql *db)
{
    return (struct driver_conn *)db;
}

static int code_of(int sqlite_rc)
{
    switch (sqlite_rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return 0;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return ERR_BUSY;
    case SQLITE_CONSTRAINT:
        return ERR_EXISTS;
    case SQLITE_NOMEM:
        return ERR_NOMEM;
    case SQLITE_TOOBIG:
    case SQLITE_MISMATCH:
    case SQLITE_RANGE:
        return ERR_INVALID;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return ERR_CORRUPT;
    default: /* disk full, I/O, read-only, cannot open: may pass */
        return ERR_UNAVAILABLE;
    }
}

/* This row breaks the schema's rules, or a trigger's. */
static bool is_bad_row(struct driver_conn *c)
{
    int extended = c->db ? sqlite3_extended_errcode(c->db) : 0;

    return extended == SQLITE_CONSTRAINT_NOTNULL || extended == SQLITE_CONSTRAINT_CHECK ||
           extended == SQLITE_CONSTRAINT_TRIGGER;
}

static int fail(struct driver_conn *c, int sqlite_rc, struct err *err)
{
    return err_set(err, is_bad_row(c) ? ERR_INVALID : code_of(sqlite_rc), "SQLite: %s",
                   c->db ? sqlite3_errmsg(c->db) : sqlite3_errstr(sqlite_rc));
}

/* ---- Statements --------------------------------------------------------------------------- */

static int prepare(struct driver_conn *c, const char *text, sqlite3_stmt **ret, struct err *err)
{
    struct buf b = BUF_INIT;
    int rc;

    sql_expand(&b, c->sql.d, '?', text);
    if (!buf_ok(&b)) {
        buf_fini(&b);
        return err_set(err, ERR_NOMEM, "no memory for a statement");
    }
    rc = sqlite3_prepare_v3(c->db, b.data, (int)b.len, SQLITE_PREPARE_PERSISTENT, ret, NULL);
    buf_fini(&b);
    return rc ? fail(c, rc, err) : 0;
}

static int find_statement(struct driver_conn *c, const struct sql_query *q, sqlite3_stmt **ret,
                          struct err *err)
{
    int rc;

    if (q->once)
        return prepare(c, q->text, ret, err);
    for (size_t i = 0; i < c->n_statements; i++) {
        if (c->statements[i].text == q->text) {
            *ret = c->statements[i].stmt;
            return 0;
        }
    }
    if (c->n_statements == STATEMENTS_MAX)
        return err_set(err, ERR_NOMEM, "too many different statements");
    rc = prepare(c, q->text, ret, err);
    if (!rc)
        c->statements[c->n_statements++] = (struct statement){q->text, *ret};
    return rc;
}

static int bind(sqlite3_stmt *stmt, const struct sql_query *q)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < q->n_params; i++) {
        const struct sql_value *v = &q->params[i];
        int at = (int)i + 1;

        if (v->null)
            rc = sqlite3_bind_null(stmt, at);
        else if (v->type == SQL_TEXT)
            rc = sqlite3_bind_text64(stmt, at, v->s.p, v->s.len, SQLITE_STATIC, SQLITE_UTF8);
        else
            rc = sqlite3_bind_int64(stmt, at, v->i);
    }
    return rc;
}

static void read_row(sqlite3_stmt *stmt, struct sql_value *row, int n)
{
    for (int i = 0; i < n; i++) {
        row[i] = (struct sql_value){0};
        switch (sqlite3_column_type(stmt, i)) {
        case SQLITE_NULL:
            row[i].null = true;
            break;
        case SQLITE_TEXT:
            row[i].s.p = (const char *)sqlite3_column_text(stmt, i);
            row[i].s.len = (size_t)sqlite3_column_bytes(stmt, i);
            break;
        default:
            row[i].i = sqlite3_column_int64(stmt, i);
        }
    }
}

static int step_all(struct driver_conn *c, sqlite3_stmt *stmt, const struct sql_query *q,
                    struct err *err)
{
    struct sql_value row[COLUMNS_MAX];
    int n = sqlite3_column_count(stmt);
    int rc;

    if (n > COLUMNS_MAX)
        return err_set(err, ERR_CORRUPT, "a row has too many columns");
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        int stop;

        if (!q->on_row)
            continue;
        read_row(stmt, row, n);
        stop = q->on_row(q->ctx, row);
        if (stop)
            return err_set(err, stop, "a row could not be read: %s", err_name(stop));
    }
    if (rc != SQLITE_DONE)
        return fail(c, rc, err);
    if (q->ret_changed)
        *q->ret_changed = sqlite3_changes64(c->db);
    return 0;
}

static int sqlite_run(struct sql *db, const struct sql_query *q, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    sqlite3_stmt *stmt;
    int rc = find_statement(c, q, &stmt, err);

    if (rc)
        return rc;
    rc = bind(stmt, q);
    rc = rc ? fail(c, rc, err) : step_all(c, stmt, q, err);
    if (q->once) {
        (void)sqlite3_finalize(stmt);
    } else {
        (void)sqlite3_reset(stmt); /* its result repeats the step's */
        (void)sqlite3_clear_bindings(stmt);
    }
    return rc;
}

static int sqlite_script(struct sql *db, const char *text, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    int rc = sqlite3_exec(c->db, text, NULL, NULL, NULL);

    return rc ? fail(c, rc, err) : 0;
}

static int sqlite_begin(struct sql *db, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    int moved = 0;

    /* What is written into a file that has no name any more is gone at the next start. */
    if (sqlite3_file_control(c->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && moved)
        return err_set(err, ERR_UNAVAILABLE,
                       "SQLite: the file was moved or removed while in use; put it back");
    return sqlite_run(db, &(struct sql_query){.text = "BEGIN IMMEDIATE"}, err);
}

static int sqlite_commit(struct sql *db, struct err *err)
{
    return sqlite_run(db, &(struct sql_query){.text = "COMMIT"}, err);
}

static void sqlite_rollback(struct sql *db)
{
    if (!sqlite3_get_autocommit(conn_of(db)->db))
        (void)sqlite_run(db, &(struct sql_query){.text = "ROLLBACK"}, NULL);
}

static const struct sql_dialect sqlite_dialect = {
    .now = "(jobflow_now_us() / 1000)",
    .now_us = "jobflow_now_us()",
    .for_update = "",
    .skip_locked = "",
    .table_exists = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?",
    .begin = sqlite_begin,
    .commit = sqlite_commit,
    .rollback = sqlite_rollback,
    .run = sqlite_run,
    .script = sqlite_script,
};

/* ---- Connection --------------------------------------------------------------------------- */

static void on_jobflow_now_us(sqlite3_context *ctx, int argc, sqlite3_value **argv)
{
    (void)argc;
    (void)argv;
    sqlite3_result_int64(ctx, clock_wall_us());
}

static int configure(struct driver_conn *c, const struct driver_options *opt, struct err *err)
{
    static const char settings[] = "PRAGMA journal_mode = WAL;"
                                   "PRAGMA synchronous = FULL;"
                                   "PRAGMA cache_size = -1024;"
                                   "PRAGMA temp_store = MEMORY;"
                                   "PRAGMA wal_autocheckpoint = 2000;";
    int rc = sqlite3_busy_timeout(c->db, (int)opt->statement_timeout_ms);

    if (!rc)
        rc = sqlite3_create_function(c->db, "jobflow_now_us", 0, SQLITE_UTF8, NULL,
                                     on_jobflow_now_us, NULL, NULL);
    return rc ? fail(c, rc, err) : sqlite_script(&c->sql, settings, err);
}

static void sqlite_close(struct driver_conn *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_statements; i++)
        (void)sqlite3_finalize(c->statements[i].stmt);
    (void)sqlite3_close(c->db);
    sqlite_lock_drop(c->lock);
    free(c);
}

/* Nobody reads SQLite's statistics of memory, which take a process-wide lock at each allocation. */
static void set_up_library(void)
{
    (void)sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0); /* too late if it is in use already */
}

static int sqlite_open(const char *url, const struct driver_options *opt, struct driver_conn **ret,
                       char **ret_warning, struct err *err)
{
    const char *path = url + strlen("sqlite:");
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct driver_conn *c;
    int rc;

    *ret_warning = NULL;
    (void)pthread_once(&once, set_up_library);
    if (!*path || *path == ':' || !strncmp(path, "file:", 5))
        return err_set(err, ERR_INVALID, "the store's URL names no file: sqlite:FILE is allowed");
    c = calloc(1, sizeof(*c));
    if (!c)
        return err_set(err, ERR_NOMEM, "no memory for a connection");
    c->sql.d = &sqlite_dialect;
    rc = sqlite_lock_take(path, &c->lock, err);
    if (!rc) {
        int sqlite_rc = sqlite3_open_v2(
            path, &c->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);

        rc = sqlite_rc ? fail(c, sqlite_rc, err) : configure(c, opt, err);
    }
    if (rc) {
        sqlite_close(c);
        return rc;
    }
    *ret = c;
    return 0;
}

static int sqlite_migrate(struct driver_conn *c, const struct migration *m, size_t n,
                          bool check_only, int *ret_from, int *ret_to, struct err *err)
{
    return migrate_run(&c->sql, m, n, check_only, ret_from, ret_to, err);
}

/* ---- Operations --------------------------------------------------------------------------- */

static int sqlite_take_ids(struct driver_conn *c, int64_t *ret_first, int64_t *ret_n,
                           struct err *err)
{
    int64_t first = 0;
    int rc = sql_run(&c->sql,
                     &(struct sql_query){.text = "UPDATE job_id_block SET next_id = next_id + ? "
                                                 "RETURNING next_id - ?",
                                         SQL_PARAMS(sql_int(ID_BLOCK), sql_int(ID_BLOCK)),
                                         .on_row = sql_on_int,
                                         .ctx = &first},
                     err);

    if (rc)
        return rc;
    if (first < 1)
        return err_set(err, ERR_CORRUPT, "job_id_block is empty");
    *ret_first = first;
    *ret_n = ID_BLOCK;
    return 0;
}

static int sqlite_submit(struct driver_conn *c, struct submit_item **items, size_t n,
                         struct err *err)
{
    return submit_batch(&c->sql, &row_submit_ops, items, n, err);
}

static int sqlite_claim(struct driver_conn *c, struct claim_item **items, size_t n,
                        struct str claimed_by, int64_t margin_ms, struct err *err)
{
    return row_claim(&c->sql, items, n, claimed_by, margin_ms, err);
}

static int sqlite_finish(struct driver_conn *c, struct finish_item **items, size_t n,
                         struct err *err)
{
    return row_finish(&c->sql, items, n, err);
}

static int sqlite_cancel(struct driver_conn *c, struct cancel_op **items, size_t n, struct err *err)
{
    return row_cancel(&c->sql, items, n, err);
}

static int sqlite_scan(struct driver_conn *c, struct scan_op *op, struct err *err)
{
    return row_scan(&c->sql, op, err);
}

static int sqlite_call(struct driver_conn *c, struct store_call *call, struct err *err)
{
    return calls_run(&c->sql, call, err);
}

const struct driver sqlite_driver = {
    .scheme = "sqlite",
    .one_writer = true,
    .open = sqlite_open,
    .close = sqlite_close,
    .migrate = sqlite_migrate,
    .take_ids = sqlite_take_ids,
    .submit = sqlite_submit,
    .claim = sqlite_claim,
    .finish = sqlite_finish,
    .cancel = sqlite_cancel,
    .scan = sqlite_scan,
    .call = sqlite_call,
};
