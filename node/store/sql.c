/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/sql.h"

#include <string.h>

int sql_begin_patient(struct sql *db, struct err *err)
{
    int rc = db->d->begin(db, err);

    if (!rc && db->patience_ms && db->d->set_patience)
        db->d->set_patience(db);
    return rc;
}

int sql_key_error(const struct sql *db, int rc, struct str key, struct err *err)
{
    if (rc != ERR_BUSY || !db->lock_timed_out)
        return rc;
    if (!key.p)
        return err_set(err, ERR_TIMEOUT, "another transaction has a bizUuid and has not ended");
    return err_set(err, ERR_TIMEOUT,
                   "another transaction has bizUuid \"" STR_FMT "\" and has not ended",
                   STR_ARG(key));
}

int sql_end(struct sql *db, int rc, struct err *err)
{
    if (!rc)
        rc = db->d->commit(db, err);
    if (rc)
        db->d->rollback(db);
    return rc;
}

int sql_on_int(void *ctx, const struct sql_value *row)
{
    *(int64_t *)ctx = row[0].i;
    return 0;
}

int sql_now(struct sql *db, wall_ms *ret, struct err *err)
{
    return sql_run(
        db, &(struct sql_query){.text = "SELECT {now}", .on_row = sql_on_int, .ctx = ret}, err);
}

/* If `p` begins with the mark, appends `with` and returns what follows it; else NULL. */
static const char *expand_mark(struct buf *b, const char *p, const char *mark, const char *with)
{
    size_t len = strlen(mark);

    if (strncmp(p, mark, len) != 0)
        return NULL;
    buf_addz(b, with);
    return p + len;
}

void sql_expand(struct buf *b, const struct sql_dialect *d, char mark, const char *text)
{
    static const char or_nothing[] = "{or nothing ";
    int n_params = 0;

    for (const char *p = text; *p;) {
        const char *after = NULL;

        if (*p == '?') {
            buf_addc(b, mark);
            buf_addi(b, ++n_params);
            after = p + 1;
        } else if (*p == '{') {
            after = expand_mark(b, p, "{now}", d->now);
            if (!after)
                after = expand_mark(b, p, "{now us}", d->now_us);
            if (!after)
                after = expand_mark(b, p, "{for update}", d->for_update);
            if (!after)
                after = expand_mark(b, p, "{skip locked}", d->skip_locked);
            if (!after && strncmp(p, or_nothing, sizeof(or_nothing) - 1) == 0) {
                const char *column = p + sizeof(or_nothing) - 1;
                size_t len = strcspn(column, "}");

                buf_addz(b, d->on_duplicate_key ? "ON DUPLICATE KEY UPDATE " : "ON CONFLICT (");
                buf_add(b, column, len);
                buf_addz(b, d->on_duplicate_key ? " = " : ") DO NOTHING");
                if (d->on_duplicate_key)
                    buf_add(b, column, len);
                after = column + len + (column[len] == '}');
            }
        }
        if (!after) {
            buf_addc(b, *p);
            after = p + 1;
        }
        p = after;
    }
}
