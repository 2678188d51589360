/* SPDX-License-Identifier: Apache-2.0 */
/* PostgreSQL by libpq. Parameters and results are binary; statements are prepared once per
 * connection, under names unless a pooler stands in between, which is seen, or said by
 * named_statements = false. READ COMMITTED, said explicitly. The session's state is a few settings;
 * behind a pooler each transaction brings them along. */
#include "node/store/postgres.h"

#include <assert.h>
#include <libpq-fe.h>
#include <stdlib.h>
#include <string.h>

#include "node/store/calls.h"
#include "node/store/migrate.h"
#include "node/store/postgres_conn.h"

#define ID_BLOCK 1000
#define SERVER_VERSION_MIN 130000

static int pg_script(struct sql *db, const char *text, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    int rc = c->begin_pending ? pg_exec(c, PG_BEGIN, err) : 0;

    if (!rc && c->begin_pending && c->pooled)
        rc = pg_exec(c, c->pooled, err);
    c->begin_pending = false;
    return rc ? rc : pg_exec(c, text, err);
}

static int pg_begin(struct sql *db, struct err *err)
{
    struct driver_conn *c = conn_of(db);

    (void)err;
    db->lock_timed_out = db->met_lock = false;
    c->in_transaction = c->begin_pending = true;
    c->is_patient = c->waits_for_keys = false;
    return 0;
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
    r = pg_exec_result(c, "COMMIT");
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
        PQclear(pg_exec_result(c, "ROLLBACK")); /* else the connection is lost, and with it all */
    c->in_transaction = c->begin_pending = false;
}

/* Goes out with what begins the transaction. */
static void pg_set_patience(struct sql *db)
{
    struct driver_conn *c = conn_of(db);

    assert(c->begin_pending);
    c->is_patient = true;
}

static const struct sql_dialect pg_dialect = {
    .now = "date_trunc('milliseconds', clock_timestamp())",
    .now_us = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    .for_update = "FOR UPDATE",
    .skip_locked = "FOR UPDATE SKIP LOCKED",
    .has_submit = true,
    /* By a query: what to_regclass found missing before the wait for the lock stays cached. */
    .table_exists = "SELECT relname::text FROM pg_class WHERE relname = ? AND "
                    "pg_table_is_visible(oid)",
    .migration_lock = "SELECT pg_advisory_xact_lock(7815302117260401)",
    .services_lock = "LOCK TABLE job_service IN ACCESS EXCLUSIVE MODE",
    .begin = pg_begin,
    .commit = pg_commit,
    .rollback = pg_rollback,
    .set_patience = pg_set_patience,
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

/* The limits of time: the server ends what has lost its client, locks and all. And: every statement
 * here goes by an index. A table that has not been analysed since it was small must not talk the
 * planner into reading all of it. */
static char *make_settings(const struct driver_conn *c, bool local)
{
    const struct {
        const char *name;
        int64_t ms; /* -1: off */
    } settings[] = {
        {"statement_timeout", c->opt.statement_timeout_ms},
        {"lock_timeout", pg_lock_ms(c)},
        {"idle_in_transaction_session_timeout", pg_patience_ms(c)},
        {"enable_seqscan", -1},
        {"enable_hashjoin", -1},
        {"enable_mergejoin", -1},
        {"jit", -1}, /* a scan of a small table costs as much as the ban says: it is not worth it */
    };
    struct buf b = BUF_INIT;

    buf_addf(&b, "SELECT set_config('default_transaction_isolation', 'read committed', %s)",
             local ? "true" : "false");
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        buf_addf(&b, ", set_config('%s', '", settings[i].name);
        if (settings[i].ms < 0)
            buf_addz(&b, "off");
        else
            buf_addi(&b, settings[i].ms);
        buf_addf(&b, "', %s)", local ? "true" : "false");
    }
    buf_addc(&b, '\0');
    if (buf_ok(&b))
        return buf_steal(&b);
    buf_fini(&b);
    return NULL;
}

/* Whoever answers for the server makes up a process of its own: whether sessions or transactions
 * are pooled cannot be told. */
static int find_pooler(struct driver_conn *c, bool *ret, struct err *err)
{
    PGresult *r = pg_exec_result(c, "SELECT pg_backend_pid()");
    int rc = PQresultStatus(r) == PGRES_TUPLES_OK ? 0 : pg_fail(c, r, err);

    if (!rc)
        *ret = strtol(PQgetvalue(r, 0, 0), NULL, 10) != PQbackendPID(c->pg);
    PQclear(r);
    return rc;
}

/* The settings go with the session, or with each transaction. */
static int set_up_session(struct driver_conn *c, char **ret_warning, struct err *err)
{
    bool found = false;
    char *settings;
    int rc = c->opt.named_statements ? find_pooler(c, &found, err) : 0;

    if (rc)
        return rc;
    settings = make_settings(c, found || !c->opt.named_statements);
    if (!settings)
        return err_set(err, ERR_NOMEM, "no memory for a connection");
    if (!found && c->opt.named_statements) {
        rc = pg_exec(c, settings, err);
        free(settings);
        return rc;
    }
    c->pooled = settings;
    if (found) /* a copy that fails says nothing: the next connection does */
        *ret_warning = strdup("a pooler stands before PostgreSQL: no statement gets a name. Set "
                              "store.named_statements to false, or connect to the server itself");
    return 0;
}

static int set_up(struct driver_conn *c, char **ret_warning, struct err *err)
{
    char *pooler = NULL;
    int version = PQserverVersion(c->pg);
    int rc;

    if (version < SERVER_VERSION_MIN)
        return err_set(err, ERR_UNAVAILABLE, "PostgreSQL %d is too old: 13 or newer is needed",
                       version / 10000);
    rc = set_up_session(c, &pooler, err);
    if (!rc)
        rc = check_durability(c, ret_warning, err);
    if (!rc && !*ret_warning) {
        *ret_warning = pooler; /* the weightier one first, of two */
        return 0;
    }
    free(pooler);
    return rc;
}

static void pg_close(struct driver_conn *c)
{
    if (!c)
        return;
    PQfinish(c->pg);
    free(c->pooled);
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

static int pg_submit_batch(struct driver_conn *c, struct submit_item **items, size_t n,
                           struct err *err)
{
    return pg_submit(&c->sql, items, n, err);
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

static void pg_set_key_patience(struct driver_conn *c, int32_t ms)
{
    c->sql.patience_ms = ms;
}

static bool pg_met_lock(const struct driver_conn *c)
{
    return c->sql.met_lock;
}

const struct driver postgres_driver = {
    .scheme = "postgres",
    .open = pg_open,
    .close = pg_close,
    .migrate = pg_migrate,
    .met_lock = pg_met_lock,
    .set_key_patience = pg_set_key_patience,
    .take_ids = pg_take_ids,
    .submit = pg_submit_batch,
    .claim = pg_claim_batch,
    .finish = pg_finish_batch,
    .cancel = pg_cancel_batch,
    .scan = pg_scan_all,
    .call = pg_call,
};
