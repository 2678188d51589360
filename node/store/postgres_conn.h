/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to PostgreSQL, and how statements run on it: for the driver's files. */
#ifndef JF_STORE_POSTGRES_CONN_H
#define JF_STORE_POSTGRES_CONN_H

#include "node/store/postgres.h"

#define PG_STATEMENTS_MAX 128

struct pg_conn;
struct pg_result; /* libpq's PGresult */

struct driver_conn {
    struct sql sql;     /* first */
    struct pg_conn *pg; /* libpq's PGconn */
    struct driver_options opt;
    char *pooled; /* behind a pooler: the statement that sets a transaction up; else NULL */
    const char *prepared[PG_STATEMENTS_MAX]; /* texts; the name is the index */
    size_t n_prepared;
    bool in_transaction;
    bool begin_pending;  /* BEGIN goes out together with the next statement */
    bool is_patient;     /* and with it the patience for keys */
    bool waits_for_keys; /* which has been set: what it waits for are rows of tasks */
    uint32_t n_guarded;  /* submissions to come that do not go bare: postgres_submit.c */
    uint32_t guard;      /* how many the next one that fails brings, if more than the least */
    bool silent;         /* an answer did not come: the connection is of no use any more */
};

static inline struct driver_conn *conn_of(struct sql *db)
{
    return (struct driver_conn *)db;
}

#define PG_BEGIN "BEGIN ISOLATION LEVEL READ COMMITTED"

/* How long an answer may take, above the time that the server gives a statement. */
static inline int64_t pg_patience_ms(const struct driver_conn *c)
{
    int64_t limit = c->opt.statement_timeout_ms;

    return limit + (limit > 1000 ? limit : 1000);
}

/* A wait for a lock. It ends before the statement's time is over, so that one knows which it was.
 */
static inline int64_t pg_lock_ms(const struct driver_conn *c)
{
    int64_t limit = c->opt.statement_timeout_ms;

    return limit > 9 ? limit - limit / 10 : limit;
}

/* A patience, likewise. */
static inline int64_t pg_key_ms(const struct driver_conn *c, int64_t ms)
{
    return ms < pg_lock_ms(c) ? ms : pg_lock_ms(c);
}

/* One line of libpq's text. */
int pg_fail_text(struct err *err, int code, const char *text);
/* By the result's SQLSTATE and the connection's state; r may be NULL. */
int pg_fail(struct driver_conn *c, const struct pg_result *r, struct err *err);

/* Runs a text of one or more statements. */
MUST_CHECK int pg_exec(struct driver_conn *c, const char *text, struct err *err);
/* Likewise; the last one's result, or NULL; to be cleared. */
struct pg_result *pg_exec_result(struct driver_conn *c, const char *text);

/* As sql_dialect.run. */
int pg_sql_run(struct sql *db, const struct sql_query *q, struct err *err);

#endif
