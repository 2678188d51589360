/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to MySQL or MariaDB: for mysql.c, mysql_run.c and mysql_session.c. */
#ifndef JF_STORE_MYSQL_CONN_H
#define JF_STORE_MYSQL_CONN_H

#include "node/store/mysql_packet.h"

struct driver_conn {
    struct sql sql; /* first */
    struct st_mysql *my;
    struct driver_options opt;
    bool is_mariadb;
    size_t max_packet; /* bytes that the server takes at once */
    bool in_transaction;
    bool begin_pending;      /* START TRANSACTION goes out together with the next statement */
    int64_t lock_wait_s;     /* how long the transaction waits for a row's lock */
    int64_t lock_wait_set_s; /* what the server has been told */
    bool waits_for_keys;     /* and what it waits for are rows of tasks */
    bool goes_on;            /* migrating: passes over what an earlier try has made */
    bool met_foreign; /* migrating: something that no earlier try has made stands in the way */
};

static inline struct driver_conn *conn_of(struct sql *db)
{
    return (struct driver_conn *)db;
}

/* How long an ordinary transaction waits for a row's lock. */
static inline int64_t my_lock_wait_usual_s(struct driver_conn *c)
{
    int64_t s = my_lock_wait_s(&c->sql, c->opt.statement_timeout_ms);

    return s ? s : 1;
}

/* By the connection's last error. */
int my_fail(struct driver_conn *c, struct err *err);

/* mysql_session.c. Connects, and sets the session up; warns as driver.open does. c has its options
 * and its dialect. Errors: ERR_NOMEM, ERR_UNAVAILABLE, ERR_CORRUPT. */
struct mysql_url;
MUST_CHECK int my_session_open(struct driver_conn *c, const struct mysql_url *u, char **ret_warning,
                               struct err *err);
void my_session_close(struct driver_conn *c); /* and frees it; NULL is accepted */
/* The limits of time. Migrations take their time: these lift that of statements. */
int my_session_limits(struct driver_conn *c, bool migrating, struct err *err);

/* A statement without parameters and rows. */
int my_run_text(struct driver_conn *c, const char *text, struct err *err);

/* As sql_dialect.run. */
int my_sql_run(struct sql *db, const struct sql_query *q, struct err *err);

#endif
