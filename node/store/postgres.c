/* SPDX-License-Identifier: Apache-2.0 */
/* PostgreSQL by libpq. Parameters and results are binary; statements are prepared once per
 * connection, under names unless a transaction pooler stands in between (named_statements = false).
 * READ COMMITTED, said explicitly. No session state but the time limits, and none at all behind a
 * pooler. */
#include "node/store/postgres.h"

#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/store/calls.h"
#include "node/store/migrate.h"
#include "node/store/postgres_conn.h"

#define ID_BLOCK 1000
#define SERVER_VERSION_MIN 130000

static int exec_plain(struct driver_conn *c, const char *text, struct err *err)
{
    PGresult *r = PQexec(c->pg, text);
    ExecStatusType status = PQresultStatus(r);
    int rc = status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK ? 0 : pg_fail(c, r, err);

    PQclear(r);
    return rc;
}

static int pg_script(struct sql *db, const char *text, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    int rc = c->begin_pending ? exec_plain(c, PG_BEGIN, err) : 0;

    c->begin_pending = false;
    return rc ? rc : exec_plain(c, text, err);
}

/* The limits of time, and: every statement here goes by an index. A table that has not been
 * analysed since it was small must not talk the planner into reading all of it. */
static void put_settings(struct buf *b, const struct driver_conn *c, const char *set)
{
    static const char *const off[] = {"enable_seqscan", "enable_hashjoin", "enable_mergejoin"};

    buf_addf(b, "%sdefault_transaction_isolation = 'read committed'", set);
    buf_addf(b, "%sstatement_timeout = %lld", set, (long long)c->opt.statement_timeout_ms);
    buf_addf(b, "%slock_timeout = %lld", set, (long long)c->opt.statement_timeout_ms);
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++)
        buf_addf(b, "%s%s = off", set, off[i]);
}

/* Behind a pooler the settings belong to the transaction, else to the session. */
static int begin_pooled(struct driver_conn *c, struct err *err)
{
    struct buf b = BUF_INIT;
    int rc;

    buf_addz(&b, PG_BEGIN);
    put_settings(&b, c, "; SET LOCAL ");
    buf_addc(&b, '\0');
    rc = buf_ok(&b) ? pg_script(&c->sql, b.data, err) : err_set(err, ERR_NOMEM, "no memory");
    buf_fini(&b);
    return rc;
}

static int pg_begin(struct sql *db, struct err *err)
{
    struct driver_conn *c = conn_of(db);

    c->in_transaction = true;
    c->begin_pending = c->opt.named_statements;
    return c->begin_pending ? 0 : begin_pooled(c, err);
}

int pg_begin_single(struct sql *db, struct err *err)
{
    struct driver_conn *c = conn_of(db);

    if (c->opt.named_statements)
        return 0;
    c->in_transaction = true;
    return begin_pooled(c, err);
}

static int pg_commit(struct sql *db, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    PGresult *r;
    int rc;

    if (!c->in_transaction || c->begin_pending) { /* nothing was run, or it has committed itself */
        c->in_transaction = c->begin_pending = false;
        return 0;
    }
    r = PQexec(c->pg, "COMMIT");
    rc = PQresultStatus(r) == PGRES_COMMAND_OK ? 0 : pg_fail(c, r, err);
    /* COMMIT of a failed transaction answers ROLLBACK. */
    if (!rc && strcmp(PQcmdStatus(r), "COMMIT") != 0)
        rc = err_set(err, ERR_BUSY, "PostgreSQL: the transaction was rolled back");
    c->in_transaction = rc != 0;
    PQclear(r);
    return rc;
}

static void pg_rollback(struct sql *db)
{
    struct driver_conn *c = conn_of(db);

    if (c->in_transaction && !c->begin_pending)
        PQclear(PQexec(c->pg, "ROLLBACK"));
    c->in_transaction = c->begin_pending = false;
}

static const struct sql_dialect pg_dialect = {
    .now = "date_trunc('milliseconds', clock_timestamp())",
    .for_update = "FOR UPDATE",
    .skip_locked = "FOR UPDATE SKIP LOCKED",
    /* By a query: what to_regclass found missing before the wait for the lock stays cached. */
    .table_exists = "SELECT relname::text FROM pg_class WHERE relname = ? AND "
                    "pg_table_is_visible(oid)",
    .migration_lock = "SELECT pg_advisory_xact_lock(7815302117260401)",
    .services_lock = "LOCK TABLE job_service IN ACCESS EXCLUSIVE MODE",
    .begin = pg_begin,
    .commit = pg_commit,
    .rollback = pg_rollback,
    .run = pg_sql_run,
    .script = pg_script,
};

/* ---- Connection --------------------------------------------------------------------------- */

static int on_setting(void *ctx, const struct sql_value *row)
{
    struct buf *b = ctx;

    buf_addf(b, "%s" STR_FMT " = " STR_FMT, b->len ? ", " : "", STR_ARG(row[0].s),
             STR_ARG(row[1].s));
    return 0;
}

/* What weakens "accepted means durable". */
static int check_durability(struct driver_conn *c, char **ret_warning, struct err *err)
{
    struct buf b = BUF_INIT;
    int rc =
        sql_run(&c->sql,
                &(struct sql_query){.text = "SELECT name, setting FROM pg_settings WHERE "
                                            "(name = 'fsync' AND setting = 'off') OR "
                                            "(name = 'full_page_writes' AND setting = 'off') OR "
                                            "(name = 'synchronous_commit' AND setting = 'off')",
                                    .on_row = on_setting,
                                    .ctx = &b},
                err);

    if (!rc && b.len)
        *ret_warning = buf_steal(&b);
    buf_fini(&b);
    return rc;
}

static int set_up(struct driver_conn *c, char **ret_warning, struct err *err)
{
    struct buf b = BUF_INIT;
    int version = PQserverVersion(c->pg);
    int rc = 0;

    if (version < SERVER_VERSION_MIN)
        return err_set(err, ERR_UNAVAILABLE, "PostgreSQL %d is too old: 13 or newer is needed",
                       version / 10000);
    if (c->opt.named_statements) {
        put_settings(&b, c, "; SET SESSION ");
        buf_addc(&b, '\0');
        rc = buf_ok(&b) ? pg_script(&c->sql, b.data, err) : err_set(err, ERR_NOMEM, "no memory");
        buf_fini(&b);
    }
    return rc ? rc : check_durability(c, ret_warning, err);
}

static void pg_close(struct driver_conn *c)
{
    if (!c)
        return;
    PQfinish(c->pg);
    free(c);
}

/* Notices would go to stderr; what matters comes as an error, too. */
static void on_notice(void *ctx, const char *text)
{
    (void)ctx;
    (void)text;
}

static int pg_open(const char *url, const struct driver_options *opt, struct driver_conn **ret,
                   char **ret_warning, struct err *err)
{
    /* A server that has gone without a word is noticed by the keep-alives, one that became
     * read-only by the session's attribute. What the URL says stands behind these and overrides
     * them. */
    static const char *const keys[] = {"application_name",
                                       "client_encoding",
                                       "connect_timeout",
                                       "keepalives_idle",
                                       "keepalives_interval",
                                       "keepalives_count",
                                       "tcp_user_timeout",
                                       "target_session_attrs",
                                       "dbname",
                                       NULL};
    const char *values[] = {"jobflowd", "UTF8",  "5",          "5", "2",
                            "3",        "10000", "read-write", url, NULL};
    struct driver_conn *c = calloc(1, sizeof(*c));
    int rc;

    *ret_warning = NULL;
    if (!c)
        return err_set(err, ERR_NOMEM, "no memory for a connection");
    c->sql.d = &pg_dialect;
    c->opt = *opt;
    c->pg = PQconnectdbParams(keys, values, 1);
    if (c->pg)
        (void)PQsetNoticeProcessor(c->pg, on_notice, NULL);
    if (!c->pg)
        rc = err_set(err, ERR_NOMEM, "no memory for a connection");
    else if (PQstatus(c->pg) != CONNECTION_OK)
        rc = pg_fail_text(err, ERR_UNAVAILABLE, PQerrorMessage(c->pg));
    else
        rc = set_up(c, ret_warning, err);
    if (rc) {
        pg_close(c);
        return rc;
    }
    *ret = c;
    return 0;
}

static int pg_migrate(struct driver_conn *c, const struct migration *m, size_t n, bool check_only,
                      int *ret_from, int *ret_to, struct err *err)
{
    return migrate_run(&c->sql, m, n, check_only, ret_from, ret_to, err);
}

/* ---- Operations --------------------------------------------------------------------------- */

static int pg_take_ids(struct driver_conn *c, int64_t *ret_first, int64_t *ret_n, struct err *err)
{
    int rc = sql_run(&c->sql,
                     &(struct sql_query){.text = "SELECT nextval('job_id_block')",
                                         .on_row = sql_on_int,
                                         .ctx = ret_first},
                     err);

    *ret_n = ID_BLOCK;
    return rc;
}

static int pg_submit(struct driver_conn *c, struct submit_item **items, size_t n, struct err *err)
{
    return submit_batch(&c->sql, &pg_submit_ops, items, n, err);
}

static int pg_claim_batch(struct driver_conn *c, struct claim_item **items, size_t n,
                          struct str claimed_by, int64_t margin_ms, struct err *err)
{
    return pg_claim(&c->sql, items, n, claimed_by, margin_ms, err);
}

static int pg_finish_batch(struct driver_conn *c, struct finish_item **items, size_t n,
                           struct err *err)
{
    return pg_finish(&c->sql, items, n, err);
}

static int pg_cancel_batch(struct driver_conn *c, struct cancel_op **items, size_t n,
                           struct err *err)
{
    return pg_cancel(&c->sql, items, n, err);
}

static int pg_scan_all(struct driver_conn *c, struct scan_op *op, struct err *err)
{
    return pg_scan(&c->sql, op, err);
}

static int pg_call(struct driver_conn *c, struct store_call *call, struct err *err)
{
    return calls_run(&c->sql, call, err);
}

const struct driver postgres_driver = {
    .scheme = "postgres",
    .open = pg_open,
    .close = pg_close,
    .migrate = pg_migrate,
    .take_ids = pg_take_ids,
    .submit = pg_submit,
    .claim = pg_claim_batch,
    .finish = pg_finish_batch,
    .cancel = pg_cancel_batch,
    .scan = pg_scan_all,
    .call = pg_call,
};
