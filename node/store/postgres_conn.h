/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to PostgreSQL, and how statements run on it: for postgres.c and postgres_run.c. */
#ifndef JF_STORE_POSTGRES_CONN_H
#define JF_STORE_POSTGRES_CONN_H

#include "node/store/postgres.h"

#define PG_STATEMENTS_MAX 96

struct pg_conn;
struct pg_result; /* libpq's PGresult */

struct driver_conn {
    struct sql sql;     /* first */
    struct pg_conn *pg; /* libpq's PGconn */
    struct driver_options opt;
    const char *prepared[PG_STATEMENTS_MAX]; /* texts; the name is the index */
    size_t n_prepared;
    bool in_transaction;
    bool begin_pending; /* BEGIN goes out together with the next statement */
};

static inline struct driver_conn *conn_of(struct sql *db)
{
    return (struct driver_conn *)db;
}

#define PG_BEGIN "BEGIN ISOLATION LEVEL READ COMMITTED"

/* One line of libpq's text. */
int pg_fail_text(struct err *err, int code, const char *text);
/* By the result's SQLSTATE and the connection's state; r may be NULL. */
int pg_fail(struct driver_conn *c, const struct pg_result *r, struct err *err);

/* As sql_dialect.run. */
int pg_sql_run(struct sql *db, const struct sql_query *q, struct err *err);

#endif
