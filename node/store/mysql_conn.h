/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to MySQL or MariaDB: for mysql.c and mysql_run.c. */
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
    bool begin_pending; /* START TRANSACTION goes out together with the next statement */
    bool goes_on;       /* migrating: passes over what an earlier try has made */
    bool met_foreign;   /* migrating: something that no earlier try has made stands in the way */
};

static inline struct driver_conn *conn_of(struct sql *db)
{
    return (struct driver_conn *)db;
}

/* By the connection's last error. */
int my_fail(struct driver_conn *c, struct err *err);

/* As sql_dialect.run. */
int my_sql_run(struct sql *db, const struct sql_query *q, struct err *err);

#endif
