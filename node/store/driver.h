/* SPDX-License-Identifier: Apache-2.0 */
/* One database behind the store: blocking functions on one connection, called by one thread at a
 * time. SQLite, PostgreSQL and MySQL/MariaDB implement this table, and so does the
 * simulation's fake; tests/store holds all of them to the same behaviour.
 *
 * Each function is one complete transaction (READ COMMITTED; SQLite: BEGIN IMMEDIATE): it returns 0
 * after the commit, or a negative code with nothing done:
 *   ERR_BUSY         deadlock, lock wait or serialization failure: run it again at once
 *   ERR_EXISTS       a unique key is taken: by another since it was looked for (run it again), or,
 * when that goes on, by a row that should not be there: as ERR_INVALID
 *   ERR_UNAVAILABLE  the connection is lost, or the server refuses (starting, read-only, full):
 * open a new one; the effect of the call is unknown. Every function may be run again with the same
 * arguments after that, and then reports what really holds. ERR_CORRUPT, ERR_NOMEM, ERR_INVALID
 * (this input can never be written) Functions of the calls answer in the call's own fields and
 * return its rc. */
#ifndef JF_STORE_DRIVER_H
#define JF_STORE_DRIVER_H

#include "node/core/storecall.h"

struct driver_conn; /* each driver's own */

/* How long one row that asks for a key, or several that do, wait for the end of another transaction
 * that has it, which may stay open for long after jobflow_submit(). */
#define KEY_PATIENCE_ONE_MS 1000
#define KEY_PATIENCE_MANY_MS 25

struct driver_options {
    int64_t statement_timeout_ms; /* no statement and no lock wait runs longer */
    bool named_statements;        /* false: for poolers; one that is noticed counts as false */
};

struct migration {
    int version;
    const char *name;
    const char *sql; /* one or more statements */
};

struct driver {
    const char *scheme; /* of its store URLs: "sqlite", "postgres", "mysql" */
    bool one_writer;    /* one connection does all the writing (SQLite) */

    /* Opens; does not look at the schema. Warns through `ret_warning` (owned by the caller, may be
     * set to NULL) about settings that weaken durability, and about a pooler. */
    int (*open)(const char *url, const struct driver_options *opt, struct driver_conn **ret,
                char **ret_warning, struct err *err);
    void (*close)(struct driver_conn *c);

    /* Brings the schema up to the last of `m` under a lock that excludes other nodes; each
     * migration commits with its version. Sets *ret_from and *ret_to to the versions before and
     * after. ERR_CONFLICT: the schema is newer than `m` knows (err says both versions). With
     * check_only it changes nothing and returns ERR_NOT_FOUND when migrations are missing. */
    int (*migrate)(struct driver_conn *c, const struct migration *m, size_t n, bool check_only,
                   int *ret_from, int *ret_to, struct err *err);

    /* Did the last ERR_BUSY come of what one other transaction holds, and not of the database? A
     * deadlock and a lock's wait that was too long did. A statement whose own time is over is taken
     * to have: it may have waited for several locks, or for one whose wait has no other end. NULL:
     * there is no telling. */
    bool (*met_lock)(const struct driver_conn *c);

    /* For all that follows on this connection: for how long submissions, cancels and calls about
     * one key wait for keys that others' transactions have. At least 1, in what the database counts
     * in: MariaDB takes less than half a second for no wait, MySQL for a second. 0, as in the
     * beginning: as for any lock; submissions for KEY_PATIENCE_…. NULL: there are no such waits. */
    void (*set_key_patience)(struct driver_conn *c, int32_t ms);

    int (*take_ids)(struct driver_conn *c, int64_t *ret_first, int64_t *ret_n, struct err *err);

    /* The batches. A row that cannot be written fails the call with ERR_INVALID: the caller
     * bisects. So it does after ERR_TIMEOUT of a submission or a cancel: somebody's open
     * transaction has one of the keys, and had it for as long as set_key_patience says. So
     * does a call about one key. Items carry ids; keys are distinct; sorted by biz_uuid. */
    int (*submit)(struct driver_conn *c, struct submit_item **items, size_t n, struct err *err);
    int (*claim)(struct driver_conn *c, struct claim_item **items, size_t n, struct str claimed_by,
                 int64_t margin_ms, struct err *err); /* sorted by id, ids distinct */
    int (*finish)(struct driver_conn *c, struct finish_item **items, size_t n,
                  struct err *err); /* sorted by id, ids distinct */
    int (*cancel)(struct driver_conn *c, struct cancel_op **items, size_t n,
                  struct err *err); /* sorted by biz_uuid, keys distinct */
    int (*scan)(struct driver_conn *c, struct scan_op *op, struct err *err);
    int (*call)(struct driver_conn *c, struct store_call *call, struct err *err);
};

/* The drivers. */
extern const struct driver sqlite_driver;
extern const struct driver postgres_driver;
extern const struct driver mysql_driver; /* and MariaDB */

/* By the scheme of a store URL; NULL when none fits. */
const struct driver *driver_find(const char *url);

/* The migrations built in from proto/sql/<scheme>/, ascending. */
const struct migration *driver_migrations(const struct driver *d, size_t *ret_n);

#endif
