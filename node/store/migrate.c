/* SPDX-License-Identifier: Apache-2.0 */
/* The version is read without a lock first, so that a start on a current schema takes none. A
 * migration reads it again under the lock: whoever waited for another node's migration then goes
 * on from there. */
#include "node/store/migrate.h"

#include <stdlib.h>

static int on_exists(void *ctx, const struct sql_value *row)
{
    bool *exists = ctx;

    *exists |= !row[0].null;
    return 0;
}

static int on_version(void *ctx, const struct sql_value *row)
{
    int *version = ctx;

    *version = (int)row[0].i;
    return 0;
}

static int read_version(struct sql *db, int *ret, struct err *err)
{
    bool exists = false;
    int rc = sql_run(db,
                     &(struct sql_query){.text = db->d->table_exists,
                                         SQL_PARAMS(sql_textz("job_schema")),
                                         .on_row = on_exists,
                                         .ctx = &exists},
                     err);

    *ret = 0;
    if (rc || !exists)
        return rc;
    return sql_run(db,
                   &(struct sql_query){.text = "SELECT max(version) FROM job_schema",
                                       .on_row = on_version,
                                       .ctx = ret},
                   err);
}

/* In the transaction: the next missing migration, if any is still missing. */
static int apply_next(struct sql *db, const struct migration *m, size_t n, int *ret_version,
                      struct err *err)
{
    size_t next = 0;
    int version;
    int rc = 0;

    if (db->d->migration_lock)
        rc = sql_run(db, &(struct sql_query){.text = db->d->migration_lock}, err);
    if (!rc)
        rc = read_version(db, &version, err);
    if (rc)
        return rc;
    *ret_version = version;
    while (next < n && m[next].version <= version)
        next++;
    if (next == n)
        return 0;
    if (!version)
        rc = db->d->script(db,
                           "CREATE TABLE job_schema (version integer NOT NULL PRIMARY KEY, "
                           "name text NOT NULL, applied_at bigint NOT NULL)",
                           err);
    if (!rc)
        rc = db->d->script(db, m[next].sql, err);
    if (!rc)
        rc = sql_run(
            db,
            &(struct sql_query){
                .text = "INSERT INTO job_schema (version, name, applied_at) VALUES (?, ?, ?)",
                SQL_PARAMS(sql_int(m[next].version), sql_textz(m[next].name),
                           sql_int(clock_wall()))},
            err);
    if (!rc)
        *ret_version = m[next].version;
    return rc;
}

static int migrate_step(struct sql *db, const struct migration *m, size_t n, int *ret_version,
                        struct err *err)
{
    int rc = db->d->begin(db, err);

    if (!rc)
        rc = apply_next(db, m, n, ret_version, err);
    if (!rc)
        rc = db->d->commit(db, err);
    if (rc)
        db->d->rollback(db);
    return rc;
}

int migrate_run(struct sql *db, const struct migration *m, size_t n, bool check_only, int *ret_from,
                int *ret_to, struct err *err)
{
    int last = n ? m[n - 1].version : 0;
    int from;
    int version;
    int rc = read_version(db, &from, err);

    if (rc)
        return rc;
    version = from;
    if (check_only && version < last)
        return err_set(err, ERR_NOT_FOUND, "the schema has version %d, version %d is needed",
                       version, last);
    while (version < last) {
        rc = migrate_step(db, m, n, &version, err);
        if (rc)
            return rc;
    }
    if (version > last)
        return err_set(err, ERR_CONFLICT,
                       "the schema has version %d and this program knows versions up to %d: "
                       "run a newer jobflowd",
                       version, last);
    *ret_from = from;
    *ret_to = version;
    return 0;
}
