/* SPDX-License-Identifier: Apache-2.0 */
/* PostgreSQL by libpq. Parameters and results are binary; statements are prepared once per
 * connection, under names unless a transaction pooler stands in between (named_statements = false).
 * READ COMMITTED, said explicitly. No session state but the time limits, and none at all behind a
 * pooler. */
#include "node/store/postgres.h"

#include <assert.h>
#include <endian.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/store/calls.h"
#include "node/store/migrate.h"

#define STATEMENTS_MAX 96
#define PARAMS_MAX 32
#define COLUMNS_MAX 32
#define ID_BLOCK 1000
#define SERVER_VERSION_MIN 130000

struct driver_conn {
    struct sql sql; /* first */
    PGconn *pg;
    struct driver_options opt;
    const char *prepared[STATEMENTS_MAX]; /* texts; the name is the index */
    size_t n_prepared;
    bool in_transaction;
};

static struct driver_conn *conn_of(struct sql *db)
{
    return (struct driver_conn *)db;
}

/* ---- Errors ------------------------------------------------------------------------------- */

static bool state_is(const char *state, const char *const *list)
{
    for (; *list; list++) {
        if (strncmp(state, *list, strlen(*list)) == 0)
            return true;
    }
    return false;
}

/* By SQLSTATE or its class. */
static int code_of(const char *state)
{
    /* Deadlock, serialization, lock not available, a time limit; a key that another wrote
     * meanwhile. */
    static const char *const busy[] = {"40", "55P03", "57014", "23505", NULL};
    /* Connection, out of resources, shut down, read-only, and "the database is starting up". */
    static const char *const away[] = {"08", "53", "57P", "25006", "58", NULL};
    static const char *const invalid[] = {"22", "23", "54000", NULL};

    if (!state)
        return ERR_UNAVAILABLE;
    if (state_is(state, busy))
        return ERR_BUSY;
    if (state_is(state, away))
        return ERR_UNAVAILABLE;
    return state_is(state, invalid) ? ERR_INVALID : ERR_CORRUPT;
}

/* One line of libpq's text. */
static int fail_text(struct err *err, int code, const char *text)
{
    size_t len = strcspn(text, "\n");

    return err_set(err, code, "PostgreSQL: %.*s", (int)len, text);
}

static int fail(struct driver_conn *c, const PGresult *r, struct err *err)
{
    const char *state = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;

    if (PQstatus(c->pg) == CONNECTION_BAD)
        return fail_text(err, ERR_UNAVAILABLE, PQerrorMessage(c->pg));
    return fail_text(err, code_of(state), r ? PQresultErrorMessage(r) : PQerrorMessage(c->pg));
}

/* ---- Running a statement ------------------------------------------------------------------ */

struct params {
    Oid types[PARAMS_MAX];
    const char *values[PARAMS_MAX];
    int lengths[PARAMS_MAX];
    int formats[PARAMS_MAX];
    uint64_t numbers[PARAMS_MAX]; /* big-endian */
    int n;
};

static Oid array_oid(enum pg_array_type type)
{
    return type == PG_INT8 ? 1016 : type == PG_TEXT ? 1009 : 1185;
}

static void add_array(struct params *p, struct pg_array *a)
{
    struct str whole = pg_array_end(a);

    assert(p->n < PARAMS_MAX);
    p->types[p->n] = array_oid(a->type);
    p->values[p->n] = whole.p;
    p->lengths[p->n] = (int)whole.len;
    p->formats[p->n++] = 1;
}

static void add_value(struct params *p, const struct sql_value *v)
{
    int i = p->n++;

    assert(i < PARAMS_MAX);
    p->types[i] = v->type == SQL_TEXT ? PG_TEXT : v->type == SQL_TIME ? PG_TIMESTAMPTZ : PG_INT8;
    p->formats[i] = 1;
    if (v->null) {
        p->values[i] = NULL;
        p->lengths[i] = 0;
    } else if (v->type == SQL_TEXT) {
        p->values[i] = v->s.p;
        p->lengths[i] = (int)v->s.len;
    } else {
        p->numbers[i] = htobe64((uint64_t)(v->type == SQL_TIME ? pg_time_of(v->i) : v->i));
        p->values[i] = (const char *)&p->numbers[i];
        p->lengths[i] = sizeof(p->numbers[i]);
    }
}

static int64_t read_number(const char *p, int len)
{
    uint64_t v = 0;

    for (int i = 0; i < len; i++)
        v = v << 8 | (unsigned char)p[i];
    return len == 2 ? (int16_t)v : len == 4 ? (int32_t)v : len == 1 ? (int64_t)v : (int64_t)v;
}

static void read_row(const PGresult *r, int row, int n_columns, struct sql_value *values)
{
    for (int i = 0; i < n_columns; i++) {
        const char *p = PQgetvalue(r, row, i);
        int len = PQgetlength(r, row, i);

        values[i] = (struct sql_value){.null = PQgetisnull(r, row, i)};
        if (values[i].null)
            continue;
        switch (PQftype(r, i)) {
        case 16:      /* bool */
        case PG_INT8: /* and the smaller integers */
        case 21:
        case 23:
            values[i].i = read_number(p, len);
            break;
        case PG_TIMESTAMPTZ:
            values[i].i = pg_time_to(read_number(p, len));
            break;
        default:
            values[i].s = (struct str){p, (size_t)len};
        }
    }
}

static int give_rows(const PGresult *r, sql_row_fn *on_row, void *ctx, struct err *err)
{
    struct sql_value values[COLUMNS_MAX];
    int n_columns = PQnfields(r);
    int n = PQntuples(r);

    if (n_columns > COLUMNS_MAX)
        return err_set(err, ERR_CORRUPT, "a row has too many columns");
    for (int i = 0; i < n; i++) {
        int rc;

        read_row(r, i, n_columns, values);
        rc = on_row(ctx, values);
        if (rc)
            return err_set(err, rc, "a row could not be read: %s", err_name(rc));
    }
    return 0;
}

/* The name under which the text is prepared; prepares it when it is new. */
static int prepare(struct driver_conn *c, const char *text, const struct params *p, char name[16],
                   struct err *err)
{
    struct buf b = BUF_INIT;
    size_t i = 0;
    PGresult *r;
    int rc;

    while (i < c->n_prepared && c->prepared[i] != text)
        i++;
    (void)snprintf(name, 16, "s%zu", i);
    if (i < c->n_prepared)
        return 0;
    if (i == STATEMENTS_MAX)
        return err_set(err, ERR_NOMEM, "too many different statements");
    sql_expand(&b, c->sql.d, '$', text);
    buf_addc(&b, '\0');
    if (!buf_ok(&b)) {
        buf_fini(&b);
        return err_set(err, ERR_NOMEM, "no memory for a statement");
    }
    r = PQprepare(c->pg, name, b.data, p->n, p->types);
    rc = PQresultStatus(r) == PGRES_COMMAND_OK ? 0 : fail(c, r, err);
    PQclear(r);
    buf_fini(&b);
    if (!rc)
        c->prepared[c->n_prepared++] = text;
    return rc;
}

static int exec(struct driver_conn *c, const char *text, bool once, const struct params *p,
                PGresult **ret, struct err *err)
{
    struct buf b = BUF_INIT;
    char name[16];
    int rc;

    if (!once && c->opt.named_statements) {
        rc = prepare(c, text, p, name, err);
        if (rc)
            return rc;
        *ret = PQexecPrepared(c->pg, name, p->n, p->values, p->lengths, p->formats, 1);
    } else {
        sql_expand(&b, c->sql.d, '$', text);
        buf_addc(&b, '\0');
        if (!buf_ok(&b)) {
            buf_fini(&b);
            return err_set(err, ERR_NOMEM, "no memory for a statement");
        }
        *ret = PQexecParams(c->pg, b.data, p->n, p->types, p->values, p->lengths, p->formats, 1);
        buf_fini(&b);
    }
    switch (PQresultStatus(*ret)) {
    case PGRES_COMMAND_OK:
    case PGRES_TUPLES_OK:
        return 0;
    default:
        rc = fail(c, *ret, err);
        PQclear(*ret);
        return rc;
    }
}

static int pg_sql_run(struct sql *db, const struct sql_query *q, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    struct params p = {.n = 0};
    PGresult *r;
    int rc;

    for (size_t i = 0; i < q->n_params; i++)
        add_value(&p, &q->params[i]);
    rc = exec(c, q->text, q->once, &p, &r, err);
    if (rc)
        return rc;
    if (q->on_row)
        rc = give_rows(r, q->on_row, q->ctx, err);
    if (q->ret_changed)
        *q->ret_changed = strtoll(PQcmdTuples(r), NULL, 10);
    PQclear(r);
    return rc;
}

int pg_run(struct sql *db, const struct pg_query *q, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    struct params p = {.n = 0};
    PGresult *r;
    int rc;

    for (size_t i = 0; i < q->n_arrays; i++) {
        if (!buf_ok(&q->arrays[i].data))
            return err_set(err, ERR_NOMEM, "no memory for a batch");
        add_array(&p, &q->arrays[i]);
    }
    for (size_t i = 0; i < q->n_scalars; i++)
        add_value(&p, &q->scalars[i]);
    rc = exec(c, q->text, false, &p, &r, err);
    if (rc)
        return rc;
    if (q->on_row)
        rc = give_rows(r, q->on_row, q->ctx, err);
    PQclear(r);
    return rc;
}

static int pg_script(struct sql *db, const char *text, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    PGresult *r = PQexec(c->pg, text);
    ExecStatusType status = PQresultStatus(r);
    int rc = status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK ? 0 : fail(c, r, err);

    PQclear(r);
    return rc;
}

/* The limits of time, and: every statement here goes by an index. A table that has not been
 * analysed since it was small must not talk the planner into reading all of it. */
static void put_settings(struct buf *b, const struct driver_conn *c, const char *set)
{
    static const char *const off[] = {"enable_seqscan", "enable_hashjoin", "enable_mergejoin"};

    buf_addf(b, "%sstatement_timeout = %lld", set, (long long)c->opt.statement_timeout_ms);
    buf_addf(b, "%slock_timeout = %lld", set, (long long)c->opt.statement_timeout_ms);
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++)
        buf_addf(b, "%s%s = off", set, off[i]);
}

static int pg_begin(struct sql *db, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    struct buf b = BUF_INIT;
    int rc;

    /* Behind a pooler the settings belong to the transaction, else to the session. */
    buf_addz(&b, "BEGIN ISOLATION LEVEL READ COMMITTED");
    if (!c->opt.named_statements)
        put_settings(&b, c, "; SET LOCAL ");
    buf_addc(&b, '\0');
    c->in_transaction = true;
    rc = buf_ok(&b) ? pg_script(db, b.data, err) : err_set(err, ERR_NOMEM, "no memory");
    buf_fini(&b);
    return rc;
}

static int pg_commit(struct sql *db, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    PGresult *r = PQexec(c->pg, "COMMIT");
    int rc = PQresultStatus(r) == PGRES_COMMAND_OK ? 0 : fail(c, r, err);

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

    if (c->in_transaction)
        PQclear(PQexec(c->pg, "ROLLBACK"));
    c->in_transaction = false;
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
        put_settings(&b, c, "; SET ");
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
        rc = fail_text(err, ERR_UNAVAILABLE, PQerrorMessage(c->pg));
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

static int on_int(void *ctx, const struct sql_value *row)
{
    *(int64_t *)ctx = row[0].i;
    return 0;
}

static int pg_take_ids(struct driver_conn *c, int64_t *ret_first, int64_t *ret_n, struct err *err)
{
    int rc =
        sql_run(&c->sql,
                &(struct sql_query){
                    .text = "SELECT nextval('job_id_block')", .on_row = on_int, .ctx = ret_first},
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
