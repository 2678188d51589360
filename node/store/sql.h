/* SPDX-License-Identifier: Apache-2.0 */
/* A thin layer over the SQL client libraries, so that every statement that is not in a hurry is
 * written once for all databases. Texts are plain SQL with `?` for parameters and these marks:
 *
 *   {now}             the database's clock as a time, whole milliseconds
 *   {now us}          the same as a number: microseconds since 1970-01-01T00:00:00Z
 *   {for update}      locks the rows read, where there are row locks
 *   {skip locked}     likewise, and leaves out what others have locked
 *   {or nothing COL}  at the end of an INSERT: no row if COL's value exists
 *
 * Times are read and written as wall_ms, whatever the database keeps. */
#ifndef JF_STORE_SQL_H
#define JF_STORE_SQL_H

#include "common/buf.h"
#include "common/clock.h"

enum sql_type { SQL_INT, SQL_TEXT, SQL_TIME };

/* A parameter, or a value of a row (valid inside the callback). NULL: `null` is true, i is 0 and s
 * is absent. */
struct sql_value {
    enum sql_type type; /* of parameters only */
    bool null;
    int64_t i;
    struct str s;
};

static inline struct sql_value sql_int(int64_t v)
{
    return (struct sql_value){.type = SQL_INT, .i = v};
}
static inline struct sql_value sql_bool(bool v)
{
    return sql_int(v ? 1 : 0);
}
static inline struct sql_value sql_text(struct str s) /* absent: NULL */
{
    return (struct sql_value){.type = SQL_TEXT, .null = !s.p, .s = s};
}
static inline struct sql_value sql_textz(const char *z)
{
    return sql_text(str_from(z));
}
static inline struct sql_value sql_time(wall_ms t) /* WALL_NONE: NULL */
{
    return (struct sql_value){.type = SQL_TIME, .null = t == WALL_NONE, .i = t};
}
static inline wall_ms sql_wall(const struct sql_value *v)
{
    return v->null ? WALL_NONE : v->i;
}

/* Returns 0 to go on, or a negative code that becomes the statement's result. */
typedef int sql_row_fn(void *ctx, const struct sql_value *row);

struct sql_query {
    const char *text; /* kept prepared under its address, unless `once` */
    bool once;        /* the text was made for this call */
    const struct sql_value *params;
    size_t n_params;
    sql_row_fn *on_row; /* NULL: rows do not matter */
    void *ctx;
    int64_t *ret_changed; /* rows written; may be NULL */
};

#define SQL_PARAMS(...)                                                                            \
    .params = (const struct sql_value[]){__VA_ARGS__},                                             \
    .n_params = sizeof((const struct sql_value[]){__VA_ARGS__}) / sizeof(struct sql_value)

struct sql;

/* What a database's driver supplies. Errors as in driver.h. */
struct sql_dialect {
    const char *now;
    const char *now_us;
    const char *for_update;
    const char *skip_locked;
    bool on_duplicate_key;      /* "or nothing" in MySQL's words */
    bool has_submit;            /* others submit tasks by jobflow_submit() (seen.h) */
    const char *table_exists;   /* 1 parameter; gives a value if there is such a table */
    const char *migration_lock; /* run in the transaction; NULL: BEGIN excludes others already */
    const char *services_lock;  /* waits for all who read job_service; likewise */
    int (*begin)(struct sql *db, struct err *err); /* for writing */
    int (*commit)(struct sql *db, struct err *err);
    void (*rollback)(struct sql *db); /* does nothing outside a transaction */
    /* First thing in a transaction: for rows of tasks that others' transactions have it waits for
     * patience_ms, at least 1; then ERR_BUSY, and lock_timed_out. NULL: no such waits. */
    void (*set_patience)(struct sql *db);
    int (*run)(struct sql *db, const struct sql_query *q, struct err *err);
    int (*script)(struct sql *db, const char *text, struct err *err); /* several statements */
};

/* A connection: every driver's own struct begins with it. */
struct sql {
    const struct sql_dialect *d;
    bool lock_timed_out; /* since the last begin: a task's lock was not given in time */
    bool met_lock;       /* the last error: another transaction's lock, or a deadlock */
    int32_t patience_ms; /* as set by driver.set_key_patience */
};

MUST_CHECK static inline int sql_run(struct sql *db, const struct sql_query *q, struct err *err)
{
    return db->d->run(db, q, err);
}

/* Begins; the patience, if one is set, counts for rows of tasks. */
MUST_CHECK int sql_begin_patient(struct sql *db, struct err *err);
/* What a transaction about keys answers: ERR_TIMEOUT, with a text that names `key` (absent: there
 * are several), when another transaction has one of them; else rc. */
MUST_CHECK int sql_key_error(const struct sql *db, int rc, struct str key, struct err *err);

/* Commits when rc is 0, else (or when that fails) rolls back. Returns the first error. */
MUST_CHECK int sql_end(struct sql *db, int rc, struct err *err);

/* Keeps the first column of the last row: ctx is an int64_t *. */
sql_row_fn sql_on_int;

MUST_CHECK int sql_now(struct sql *db, wall_ms *ret, struct err *err);

/* Appends the text with `?` numbered ("$1", "?1": by `mark`) and the marks in a dialect's words. */
void sql_expand(struct buf *b, const struct sql_dialect *d, char mark, const char *text);

#endif
