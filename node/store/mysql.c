/* SPDX-License-Identifier: Apache-2.0 */
/* MySQL and MariaDB by MariaDB's client library, in SQL that both understand. Statements go as
 * text, several in one round trip. DDL commits by itself, so migrations run under a lock by name
 * and may be run again from the middle. */
#include "node/store/mysql_conn.h"

#include <assert.h>
#include <mysql.h>
#include <mysqld_error.h>
#include <stdlib.h>
#include <string.h>

#include "node/store/calls.h"
#include "node/store/migrate.h"
#include "node/store/mysql_url.h"

#define ID_BLOCK 1000

/* ---- The dialect --------------------------------------------------------------------------- */

/* What an earlier try of the same migration can have left. */
static bool is_made_already(unsigned number)
{
    return number == ER_TABLE_EXISTS_ERROR || number == ER_DUP_KEYNAME ||
           number == ER_DUP_FIELDNAME || number == ER_CANT_DROP_FIELD_OR_KEY ||
           number == ER_SP_ALREADY_EXISTS;
}

/* Ends at its semicolon; a procedure, which has some inside, at the END that begins a line. */
static size_t statement_len(const char *at)
{
    static const char procedure[] = "CREATE PROCEDURE";
    static const char end[] = "\nEND;";
    const char *last = NULL;

    if (strncmp(at, procedure, sizeof(procedure) - 1) == 0)
        last = strstr(at, end);
    return last ? (size_t)(last - at) + sizeof(end) - 2 : strcspn(at, ";");
}

/* As it stands: what looks like a parameter or a mark of ours may be a text in a procedure. */
static int run_raw(struct driver_conn *c, const char *text, size_t len, struct err *err)
{
    struct my_packet p;
    int rc;

    my_packet_start(&p, &c->sql);
    my_statement(&p, NULL, NULL, NULL);
    buf_add(&p.text, text, len);
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    return rc;
}

static int my_script(struct sql *db, const char *text, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    int rc = 0;

    for (const char *at = text + strspn(text, " \n;"); !rc && *at; at += strspn(at, " \n;")) {
        size_t len = statement_len(at);

        rc = run_raw(c, at, len, err);
        if (rc && is_made_already(mysql_errno(c->my))) {
            c->met_foreign = !c->goes_on;
            rc = c->goes_on ? 0 : rc;
        }
        at += len;
    }
    return rc;
}

static int my_begin(struct sql *db, struct err *err)
{
    struct driver_conn *c = conn_of(db);

    (void)err;
    db->lock_timed_out = db->met_lock = false;
    c->in_transaction = c->begin_pending = true;
    c->waits_for_keys = false;
    c->lock_wait_s = my_lock_wait_usual_s(c);
    return 0;
}

/* The session's setting goes out with what begins the transaction. */
static void my_set_patience(struct sql *db)
{
    struct driver_conn *c = conn_of(db);

    assert(c->begin_pending);
    c->waits_for_keys = true;
    c->lock_wait_s = my_lock_wait_s(db, db->patience_ms);
}

static int my_commit(struct sql *db, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    int rc = 0;

    if (c->in_transaction && !c->begin_pending)
        rc = my_run_text(c, "COMMIT", err);
    c->begin_pending = false;
    c->in_transaction = rc != 0;
    return rc;
}

static void my_rollback(struct sql *db)
{
    struct driver_conn *c = conn_of(db);

    if (c->in_transaction && !c->begin_pending)
        (void)my_run_text(c, "ROLLBACK", NULL); /* else the connection is lost, and with it all */
    c->in_transaction = c->begin_pending = false;
}

static const struct sql_dialect my_dialect = {
    .now = "UTC_TIMESTAMP(3)",
    .now_us = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))",
    .for_update = "FOR UPDATE",
    .skip_locked = "FOR UPDATE SKIP LOCKED",
    .on_duplicate_key = true,
    .has_submit = true,
    .table_exists = "SELECT table_name FROM information_schema.tables "
                    "WHERE table_schema = DATABASE() AND table_name = ?",
    /* Submissions lock the rows of job_service that they read. */
    .services_lock = NULL,
    .begin = my_begin,
    .commit = my_commit,
    .rollback = my_rollback,
    .set_patience = my_set_patience,
    .run = my_sql_run,
    .script = my_script,
};

/* ---- Connection ---------------------------------------------------------------------------- */

static int my_open(const char *url, const struct driver_options *opt, struct driver_conn **ret,
                   char **ret_warning, struct err *err)
{
    struct mysql_url u;
    struct driver_conn *c;
    int rc = mysql_url_parse(url, &u, err);

    *ret_warning = NULL;
    if (rc)
        return rc;
    c = calloc(1, sizeof(*c));
    if (c) {
        c->sql.d = &my_dialect;
        c->opt = *opt;
        rc = my_session_open(c, &u, ret_warning, err);
    } else {
        rc = err_set(err, ERR_NOMEM, "no memory for a connection");
    }
    mysql_url_fini(&u);
    if (rc) {
        my_session_close(c);
        return rc;
    }
    *ret = c;
    return 0;
}

/* ---- Migrations ---------------------------------------------------------------------------- */

#define LOCK_NAME "CONCAT('jobflow:', MD5(DATABASE()))"

static int on_any(void *ctx, const struct sql_value *row)
{
    bool *any = ctx;

    (void)row;
    *any = true;
    return 0;
}

/* Of other nodes; what a killed one began is gone on with. */
static int lock_schema(struct driver_conn *c, struct err *err)
{
    int64_t got = 0;
    int rc = my_session_limits(c, true, err);

    if (!rc)
        rc = sql_run(&c->sql,
                     &(struct sql_query){.text = "SELECT GET_LOCK(" LOCK_NAME ", ?)",
                                         SQL_PARAMS(sql_int(c->opt.statement_timeout_ms / 1000)),
                                         .on_row = sql_on_int,
                                         .ctx = &got},
                     err);
    if (!rc && got != 1)
        rc = err_set(err, ERR_BUSY, "another node changes the schema");
    return rc;
}

/* A table of somebody else under one of our names is not passed over, now or at the next try. */
static int run_migrations(struct driver_conn *c, const struct migration *m, size_t n, int *ret_from,
                          int *ret_to, struct err *err)
{
    int rc;

    c->goes_on = c->met_foreign = false;
    rc = sql_run(&c->sql,
                 &(struct sql_query){.text = my_dialect.table_exists,
                                     SQL_PARAMS(sql_textz("job_schema")),
                                     .on_row = on_any,
                                     .ctx = &c->goes_on},
                 err);
    if (!rc)
        rc = migrate_run(&c->sql, m, n, false, ret_from, ret_to, err);
    if (rc && c->met_foreign)
        (void)my_run_text(c, "DROP TABLE IF EXISTS job_schema", NULL);
    c->goes_on = false;
    return rc;
}

static int my_migrate(struct driver_conn *c, const struct migration *m, size_t n, bool check_only,
                      int *ret_from, int *ret_to, struct err *err)
{
    int rc = migrate_run(&c->sql, m, n, true, ret_from, ret_to, err);

    if (check_only || rc != ERR_NOT_FOUND)
        return rc;
    if (err)
        err->text[0] = '\0';
    rc = lock_schema(c, err);
    if (!rc) {
        rc = run_migrations(c, m, n, ret_from, ret_to, err);
        (void)my_run_text(c, "SELECT RELEASE_LOCK(" LOCK_NAME ")", NULL); /* or the session's end */
    }
    if (!rc)
        return my_session_limits(c, false, err);
    (void)my_session_limits(c, false, NULL); /* the first error is the one to tell */
    return rc;
}

/* ---- Operations ---------------------------------------------------------------------------- */

/* The row need not stay; its number is used up once this is committed. */
static int my_take_ids(struct driver_conn *c, int64_t *ret_first, int64_t *ret_n, struct err *err)
{
    struct my_packet p;
    int64_t step = 0;
    int rc = my_begin(&c->sql, err);

    if (!rc) {
        my_packet_start(&p, &c->sql);
        my_statement(&p, NULL, NULL, NULL);
        my_put(&p, "INSERT INTO job_id_step () VALUES ()");
        my_statement(&p, sql_on_int, &step, NULL);
        my_put(&p, "SELECT LAST_INSERT_ID()");
        my_statement(&p, NULL, NULL, NULL);
        my_put(&p, "DELETE FROM job_id_step WHERE id = LAST_INSERT_ID()");
        my_put_commit(&p);
        rc = my_packet_run(&p, err);
        my_packet_fini(&p);
    }
    rc = sql_end(&c->sql, rc, err);
    if (rc)
        return rc;
    if (step < 1)
        return err_set(err, ERR_CORRUPT, "job_id_step gives no ids");
    *ret_first = step * ID_BLOCK;
    *ret_n = ID_BLOCK;
    return 0;
}

static int my_submit(struct driver_conn *c, struct submit_item **items, size_t n, struct err *err)
{
    return submit_batch(&c->sql, &my_submit_ops, items, n, err);
}

static int my_claim_batch(struct driver_conn *c, struct claim_item **items, size_t n,
                          struct str claimed_by, int64_t margin_ms, struct err *err)
{
    return my_claim(&c->sql, items, n, claimed_by, margin_ms, err);
}

static int my_finish_batch(struct driver_conn *c, struct finish_item **items, size_t n,
                           struct err *err)
{
    return my_finish(&c->sql, items, n, err);
}

static int my_cancel_batch(struct driver_conn *c, struct cancel_op **items, size_t n,
                           struct err *err)
{
    return my_cancel(&c->sql, items, n, err);
}

static int my_scan_all(struct driver_conn *c, struct scan_op *op, struct err *err)
{
    return my_scan(&c->sql, op, err);
}

static int my_call(struct driver_conn *c, struct store_call *call, struct err *err)
{
    return calls_run(&c->sql, call, err);
}

static void my_set_key_patience(struct driver_conn *c, int32_t ms)
{
    c->sql.patience_ms = ms;
}

static bool my_met_lock(const struct driver_conn *c)
{
    return c->sql.met_lock;
}

const struct driver mysql_driver = {
    .scheme = "mysql",
    .open = my_open,
    .close = my_session_close,
    .migrate = my_migrate,
    .met_lock = my_met_lock,
    .set_key_patience = my_set_key_patience,
    .take_ids = my_take_ids,
    .submit = my_submit,
    .claim = my_claim_batch,
    .finish = my_finish_batch,
    .cancel = my_cancel_batch,
    .scan = my_scan_all,
    .call = my_call,
};
