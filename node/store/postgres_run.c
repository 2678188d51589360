/* SPDX-License-Identifier: Apache-2.0 */
/* How statements run: parameters and rows in binary, texts prepared once, several statements in one
 * round trip. */
#include "node/store/postgres_conn.h"

#include <assert.h>
#include <endian.h>
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAMS_MAX 32
#define COLUMNS_MAX 32

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
    /* Deadlock, serialization, lock not available, a time limit. */
    static const char *const busy[] = {"40", "55P03", "57014", NULL};
    static const char *const exists[] = {"23505", NULL};
    /* Connection, out of resources, shut down, read-only, and "the database is starting up"; a
     * transaction that was idle for too long. */
    static const char *const away[] = {"08", "53", "57P", "25006", "25P03", "58", NULL};
    /* Data, constraints, limits, and what a trigger raises. */
    static const char *const invalid[] = {"22", "23", "54000", "P0", NULL};

    if (!state)
        return ERR_UNAVAILABLE;
    if (state_is(state, busy))
        return ERR_BUSY;
    if (state_is(state, exists))
        return ERR_EXISTS;
    if (state_is(state, away))
        return ERR_UNAVAILABLE;
    return state_is(state, invalid) ? ERR_INVALID : ERR_CORRUPT;
}

/* One line of libpq's text. */
int pg_fail_text(struct err *err, int code, const char *text)
{
    size_t len = strcspn(text, "\n");

    return err_set(err, code, "PostgreSQL: %.*s", (int)len, text);
}

/* Of a row, then: a wait for the lock of a table has no such context. (Nor has the one for a row of
 * whoever comes third.) */
static bool is_of_a_task(const PGresult *r)
{
    const char *context = PQresultErrorField(r, PG_DIAG_CONTEXT);

    return context && strstr(context, "job_delay_task");
}

int pg_fail(struct driver_conn *c, const PGresult *r, struct err *err)
{
    static const char *const lost_name[] = {"26000", "42P05", NULL};
    static const char *const lock[] = {"40P01", "55P03", "57014", NULL};
    const char *state = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;

    c->sql.met_lock = state && state_is(state, lock);
    if (c->silent)
        return err_set(err, ERR_UNAVAILABLE, "PostgreSQL: no answer within %lld ms",
                       (long long)pg_patience_ms(c));
    if (state && state_is(state, lost_name)) /* by a new connection, and by the hint */
        return err_set(err, ERR_UNAVAILABLE,
                       "PostgreSQL: prepared statements get lost: a pooler? Set "
                       "store.named_statements to false");
    if (PQstatus(c->pg) == CONNECTION_BAD)
        return pg_fail_text(err, ERR_UNAVAILABLE, PQerrorMessage(c->pg));
    c->sql.lock_timed_out |=
        state && strcmp(state, "55P03") == 0 && (c->waits_for_keys || is_of_a_task(r));
    return pg_fail_text(err, code_of(state), r ? PQresultErrorMessage(r) : PQerrorMessage(c->pg));
}

/* ---- Waiting ------------------------------------------------------------------------------ */

/* PQgetResult, but a server that says nothing does not keep us: the next one sets c->silent. Only
 * the time without a sign of life counts. */
static PGresult *next_result(struct driver_conn *c)
{
    mono_ms until = clock_mono() + pg_patience_ms(c);

    while (!c->silent && PQisBusy(c->pg)) {
        struct pollfd fd = {.fd = PQsocket(c->pg), .events = POLLIN};
        mono_ms now = clock_mono();

        if (now >= until)
            c->silent = true;
        else if (poll(&fd, 1, (int)(until - now < 1000 ? until - now : 1000)) > 0) {
            if (!PQconsumeInput(c->pg))
                break; /* lost: PQgetResult says so */
            until = clock_mono() + pg_patience_ms(c);
        }
    }
    return c->silent ? NULL : PQgetResult(c->pg);
}

/* What PQexec… return, after what PQsend… has sent. */
static PGresult *last_result(struct driver_conn *c)
{
    PGresult *last = NULL;
    PGresult *r;

    while ((r = next_result(c))) {
        PQclear(last);
        last = r;
    }
    return last;
}

PGresult *pg_exec_result(struct driver_conn *c, const char *text)
{
    return !c->silent && PQsendQuery(c->pg, text) ? last_result(c) : NULL;
}

int pg_exec(struct driver_conn *c, const char *text, struct err *err)
{
    PGresult *r = pg_exec_result(c, text);
    ExecStatusType status = PQresultStatus(r);
    bool ok = !c->silent && (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK);
    int rc = ok ? 0 : pg_fail(c, r, err);

    PQclear(r);
    return rc;
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
    return len == 2 ? (int16_t)v : len == 4 ? (int32_t)v : (int64_t)v;
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
    if (i == PG_STATEMENTS_MAX)
        return err_set(err, ERR_NOMEM, "too many different statements");
    sql_expand(&b, c->sql.d, '$', text);
    buf_addc(&b, '\0');
    if (!buf_ok(&b)) {
        buf_fini(&b);
        return err_set(err, ERR_NOMEM, "no memory for a statement");
    }
    r = PQsendPrepare(c->pg, name, b.data, p->n, p->types) ? last_result(c) : NULL;
    rc = PQresultStatus(r) == PGRES_COMMAND_OK ? 0 : pg_fail(c, r, err);
    PQclear(r);
    buf_fini(&b);
    if (!rc)
        c->prepared[c->n_prepared++] = text;
    return rc;
}

/* ---- Running statements ------------------------------------------------------------------- */

/* A statement with its parameters, ready to go. */
struct request {
    struct params params;
    char name[16];   /* prepared; or */
    struct buf text; /* in PostgreSQL's words */
    sql_row_fn *on_row;
    void *ctx;
    int64_t *ret_changed;
};

static int request_ready(struct driver_conn *c, struct request *r, const char *text, bool once,
                         struct err *err)
{
    if (!once && !c->pooled)
        return prepare(c, text, &r->params, r->name, err);
    sql_expand(&r->text, c->sql.d, '$', text);
    buf_addc(&r->text, '\0');
    return buf_ok(&r->text) ? 0 : err_set(err, ERR_NOMEM, "no memory for a statement");
}

static int take_result(struct driver_conn *c, const struct request *r, const PGresult *result,
                       struct err *err)
{
    ExecStatusType status = PQresultStatus(result);

    if (c->silent || (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK))
        return pg_fail(c, result, err);
    if (r->ret_changed)
        *r->ret_changed = strtoll(PQcmdTuples((PGresult *)result), NULL, 10);
    return r->on_row ? give_rows(result, r->on_row, r->ctx, err) : 0;
}

static bool send_one(struct driver_conn *c, const struct request *r)
{
    const struct params *p = &r->params;

    return r->text.len
               ? PQsendQueryParams(c->pg, r->text.data, p->n, p->types, p->values, p->lengths,
                                   p->formats, 1)
               : PQsendQueryPrepared(c->pg, r->name, p->n, p->values, p->lengths, p->formats, 1);
}

/* One statement, one round trip. */
static int run_one(struct driver_conn *c, const struct request *r, struct err *err)
{
    PGresult *result = send_one(c, r) ? last_result(c) : NULL;
    int rc = take_result(c, r, result, err);

    PQclear(result);
    return rc;
}

/* Takes the results in order: of n_before statements without rows, the requests, and n_after such
 * statements. After an error the rest comes as aborted, and is dropped. */
static int take_all(struct driver_conn *c, const struct request *r, size_t n, size_t n_before,
                    size_t n_after, struct err *err)
{
    const struct request plain = {0};
    int rc = 0;

    for (size_t i = 0; !c->silent && i < n_before + n + n_after; i++) {
        bool is_mine = i >= n_before && i < n_before + n;
        PGresult *result = next_result(c);

        c->waits_for_keys |= c->is_patient && is_mine;
        if (!rc)
            rc = take_result(c, is_mine ? &r[i - n_before] : &plain, result, err);
        PQclear(result);
        if (result)
            PQclear(next_result(c)); /* the NULL that ends a statement */
    }
    PQclear(next_result(c)); /* the synchronisation */
    return rc || !c->silent ? rc : pg_fail(c, NULL, err);
}

static bool send_plain(struct driver_conn *c, const char *text)
{
    return PQsendQueryParams(c->pg, text, 0, NULL, NULL, NULL, NULL, 1);
}

/* What comes before a transaction's first statement; returns how many statements that is, or 0 when
 * they could not be sent. A patience is one for rows: the tables' locks are waited for as ever, and
 * therefore taken before. */
static size_t send_begin(struct driver_conn *c)
{
    char patience[64];
    const char *texts[4] = {PG_BEGIN};
    size_t n = 1;

    if (c->pooled)
        texts[n++] = c->pooled;
    if (c->in_transaction && c->is_patient) {
        (void)snprintf(patience, sizeof(patience), "SET LOCAL lock_timeout = %lld",
                       (long long)pg_key_ms(c, c->sql.patience_ms));
        texts[n++] = "LOCK TABLE job_delay_task, job_delay_task_history IN ROW EXCLUSIVE MODE";
        texts[n++] = patience;
    }
    for (size_t i = 0; i < n; i++) {
        if (!send_plain(c, texts[i]))
            return 0;
    }
    return n;
}

/* Several statements, one round trip. What comes back of the first ones fits the sockets' buffers
 * long before the last one is sent. `whole`: they end the transaction, which is theirs alone. */
static int run_pipeline(struct driver_conn *c, const struct request *r, size_t n, bool whole,
                        struct err *err)
{
    bool begins = whole || c->begin_pending;
    bool sent = PQenterPipelineMode(c->pg);
    size_t n_before = 0;
    int rc;

    c->begin_pending = false;
    if (sent && begins) {
        n_before = send_begin(c);
        sent = n_before > 0;
    }
    for (size_t i = 0; sent && i < n; i++)
        sent = send_one(c, &r[i]);
    if (sent && whole)
        sent = send_plain(c, "COMMIT");
    if (!sent || !PQpipelineSync(c->pg))
        return pg_fail_text(err, ERR_UNAVAILABLE, PQerrorMessage(c->pg));
    rc = take_all(c, r, n, n_before, whole, err);
    if (!PQexitPipelineMode(c->pg) && !rc)
        rc = pg_fail_text(err, ERR_UNAVAILABLE, PQerrorMessage(c->pg));
    if (rc && whole)
        PQclear(pg_exec_result(c, "ROLLBACK")); /* else the connection is lost, and with it all */
    c->in_transaction &= !whole;
    return rc;
}

/* Behind a pooler every statement needs a transaction, for its settings. */
static int run_requests(struct driver_conn *c, const struct request *r, size_t n, bool commits,
                        struct err *err)
{
    bool whole = commits || (c->pooled && !c->in_transaction);

    if (n == 1 && !whole && !c->begin_pending)
        return run_one(c, r, err);
    return run_pipeline(c, r, n, whole, err);
}

int pg_sql_run(struct sql *db, const struct sql_query *q, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    struct request r = {.on_row = q->on_row, .ctx = q->ctx, .ret_changed = q->ret_changed};
    int rc;

    for (size_t i = 0; i < q->n_params; i++)
        add_value(&r.params, &q->params[i]);
    rc = request_ready(c, &r, q->text, q->once, err);
    if (!rc)
        rc = run_requests(c, &r, 1, false, err);
    buf_fini(&r.text);
    return rc;
}

static int add_query(struct driver_conn *c, struct request *r, const struct pg_query *q,
                     struct err *err)
{
    r->on_row = q->on_row;
    r->ctx = q->ctx;
    for (size_t i = 0; i < q->n_arrays; i++) {
        if (!buf_ok(&q->arrays[i].data))
            return err_set(err, ERR_NOMEM, "no memory for a batch");
        add_array(&r->params, &q->arrays[i]);
    }
    for (size_t i = 0; i < q->n_scalars; i++)
        add_value(&r->params, &q->scalars[i]);
    return request_ready(c, r, q->text, false, err);
}

static int run_all(struct sql *db, const struct pg_query *q, size_t n, bool commits,
                   struct err *err)
{
    struct driver_conn *c = conn_of(db);
    struct request r[PG_PIPELINE_MAX] = {0};
    int rc = 0;

    assert(n > 0 && n <= PG_PIPELINE_MAX);
    for (size_t i = 0; !rc && i < n; i++)
        rc = add_query(c, &r[i], &q[i], err);
    if (!rc)
        rc = run_requests(c, r, n, commits, err);
    for (size_t i = 0; i < n; i++)
        buf_fini(&r[i].text);
    return rc;
}

int pg_run_all(struct sql *db, const struct pg_query *q, size_t n, struct err *err)
{
    return run_all(db, q, n, false, err);
}

int pg_run_and_commit(struct sql *db, const struct pg_query *q, size_t n, struct err *err)
{
    assert(conn_of(db)->begin_pending);
    return run_all(db, q, n, true, err);
}

int pg_run(struct sql *db, const struct pg_query *q, struct err *err)
{
    return pg_run_all(db, q, 1, err);
}
