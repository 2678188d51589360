/* SPDX-License-Identifier: Apache-2.0 */
/* How statements run: as text, several in one round trip, rows read as they come. */
#include "node/store/mysql_conn.h"

#include <assert.h>
#include <errmsg.h>
#include <mysql.h>
#include <mysqld_error.h>
#include <stdlib.h>
#include <string.h>

#include "common/timefmt.h"

#define COLUMNS_MAX 32
#define PARAM_MARK '\1'

/* Names that not all versions of the client library have. */
#define MARIADB_STATEMENT_TIMEOUT 1969
#define MARIADB_CONNECTION_KILLED 1927
#define MYSQL_IDLE_FOR_TOO_LONG 4031
#define MYSQL_STATEMENT_TIMEOUT 3024
#define MYSQL_CHECK_VIOLATED 3819
#define MARIADB_CHECK_VIOLATED 4025

/* ---- Errors ------------------------------------------------------------------------------- */

static int code_of(unsigned number)
{
    switch (number) {
    case ER_LOCK_DEADLOCK:
    case ER_LOCK_WAIT_TIMEOUT:
    case ER_LOCK_TABLE_FULL:
    case ER_CHECKREAD: /* changed since it was read */
    case ER_QUERY_INTERRUPTED:
    case ER_TOO_MANY_CONCURRENT_TRXS:
    case MARIADB_STATEMENT_TIMEOUT:
    case MYSQL_STATEMENT_TIMEOUT:
        return ERR_BUSY;
    case ER_DUP_ENTRY:
        return ERR_EXISTS;
    case CR_OUT_OF_MEMORY:
        return ERR_NOMEM;
    case ER_BAD_NULL_ERROR:
    case ER_WARN_DATA_OUT_OF_RANGE:
    case WARN_DATA_TRUNCATED:
    case ER_TRUNCATED_WRONG_VALUE:
    case ER_INVALID_CHARACTER_STRING:
    case ER_TRUNCATED_WRONG_VALUE_FOR_FIELD:
    case ER_DATA_TOO_LONG:
    case ER_TOO_BIG_ROWSIZE:
    case ER_SIGNAL_EXCEPTION: /* a trigger's */
    case ER_NO_REFERENCED_ROW_2:
    case ER_ROW_IS_REFERENCED_2:
    case MYSQL_CHECK_VIOLATED:
    case MARIADB_CHECK_VIOLATED:
        return ERR_INVALID;
    case ER_CON_COUNT_ERROR:
    case ER_OUT_OF_RESOURCES:
    case ER_OUTOFMEMORY:
    case ER_OUT_OF_SORTMEMORY:
    case ER_DISK_FULL:
    case ER_RECORD_FILE_FULL:
    case ER_UNKNOWN_COM_ERROR: /* Galera: the node is not ready */
    case ER_SERVER_SHUTDOWN:
    case ER_NORMAL_SHUTDOWN:
    case ER_SHUTDOWN_COMPLETE:
    case ER_FORCING_CLOSE:
    case ER_NET_PACKET_TOO_LARGE: /* the server closes the connection then */
    case ER_NET_READ_ERROR:
    case ER_NET_READ_INTERRUPTED:
    case ER_NET_ERROR_ON_WRITE:
    case ER_NET_WRITE_INTERRUPTED:
    case ER_NEW_ABORTING_CONNECTION:
    case ER_ERROR_DURING_COMMIT:
    case ER_OPTION_PREVENTS_STATEMENT: /* read-only */
    case ER_INNODB_READ_ONLY:
    case ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION:
    case ER_USER_LIMIT_REACHED:
    case MARIADB_CONNECTION_KILLED:
    case MYSQL_IDLE_FOR_TOO_LONG:
        return ERR_UNAVAILABLE;
    default:
        return number >= CR_MIN_ERROR && number <= CR_MAX_ERROR ? ERR_UNAVAILABLE : ERR_CORRUPT;
    }
}

/* A statement that was ended in its time has most likely waited for a lock. */
static bool is_of_a_lock(unsigned number)
{
    return number == ER_LOCK_WAIT_TIMEOUT || number == ER_LOCK_DEADLOCK ||
           number == MARIADB_STATEMENT_TIMEOUT || number == MYSQL_STATEMENT_TIMEOUT;
}

int my_fail(struct driver_conn *c, struct err *err)
{
    unsigned number = mysql_errno(c->my);

    c->sql.met_lock = is_of_a_lock(number);
    return err_set(err, code_of(number), "%s: %s", c->is_mariadb ? "MariaDB" : "MySQL",
                   mysql_error(c->my));
}

/* ---- Putting a packet together ------------------------------------------------------------- */

struct my_reader {
    sql_row_fn *on_row;
    void *ctx;
    int64_t *ret_changed;
};

void my_packet_start(struct my_packet *p, struct sql *db)
{
    const struct driver_conn *c = conn_of(db);

    *p = (struct my_packet){.db = db};
    if (!c->begin_pending)
        return;
    if (c->lock_wait_s != c->lock_wait_set_s) {
        my_statement(p, NULL, NULL, NULL);
        my_put(p, "SET SESSION innodb_lock_wait_timeout = ");
        my_put_int(p, c->lock_wait_s);
    }
    my_statement(p, NULL, NULL, NULL);
    my_put(p, "START TRANSACTION");
}

void my_packet_fini(struct my_packet *p)
{
    buf_fini(&p->text);
    buf_fini(&p->readers);
}

void my_statement(struct my_packet *p, sql_row_fn *on_row, void *ctx, int64_t *ret_changed)
{
    const struct my_reader r = {on_row, ctx, ret_changed};

    if (p->readers.len)
        buf_addc(&p->text, ';');
    buf_add(&p->readers, &r, sizeof(r));
}

void my_waits_for_keys(struct my_packet *p)
{
    p->key_wait = p->readers.len / sizeof(struct my_reader);
}

void my_put(struct my_packet *p, const char *text)
{
    sql_expand(&p->text, p->db->d, PARAM_MARK, text);
}

void my_put_int(struct my_packet *p, int64_t v)
{
    buf_addi(&p->text, v);
}

void my_put_text(struct my_packet *p, struct str s)
{
    char *room;
    unsigned long len;

    if (!s.p) {
        buf_addz(&p->text, "NULL");
        return;
    }
    room = buf_room(&p->text, 2 * s.len + 3);
    if (!room)
        return;
    room[0] = '\'';
    len = mysql_real_escape_string(conn_of(p->db)->my, room + 1, s.p, s.len);
    assert(len <= 2 * s.len);
    room[len + 1] = '\'';
    p->text.len += len + 2;
}

void my_put_time(struct my_packet *p, wall_ms t)
{
    char text[TIME_TEXT_LEN + 1];

    if (t == WALL_NONE) {
        buf_addz(&p->text, "NULL");
        return;
    }
    time_format(t, text);
    text[10] = ' ';
    text[TIME_TEXT_LEN - 1] = '\''; /* instead of the Z */
    buf_addz(&p->text, "TIMESTAMP'");
    buf_add(&p->text, text, TIME_TEXT_LEN);
}

static void put_value(struct my_packet *p, const struct sql_value *v)
{
    if (v->null)
        buf_addz(&p->text, "NULL");
    else if (v->type == SQL_TEXT)
        my_put_text(p, v->s);
    else if (v->type == SQL_TIME)
        my_put_time(p, v->i);
    else
        my_put_int(p, v->i);
}

void my_put_row(struct my_packet *p, const struct sql_value *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        buf_addc(&p->text, i ? ',' : '(');
        put_value(p, &values[i]);
    }
    buf_addc(&p->text, ')');
}

void my_put_query(struct my_packet *p, const char *text, const struct sql_value *params, size_t n)
{
    struct buf b = BUF_INIT;
    const char *next;
    size_t used = 0;

    sql_expand(&b, p->db->d, PARAM_MARK, text);
    buf_addc(&b, '\0');
    p->text.failed |= !buf_ok(&b);
    for (const char *at = b.data; buf_ok(&b); at = next) {
        const char *mark = strchr(at, PARAM_MARK);

        if (!mark) {
            buf_addz(&p->text, at);
            break;
        }
        buf_add(&p->text, at, (size_t)(mark - at));
        assert(used < n);
        put_value(p, &params[used++]);
        next = mark + 1 + strspn(mark + 1, "0123456789");
    }
    buf_fini(&b);
}

void my_put_commit(struct my_packet *p)
{
    my_statement(p, NULL, NULL, NULL);
    my_put(p, "COMMIT");
    p->commits = true;
}

/* ---- Reading ------------------------------------------------------------------------------- */

enum column { COLUMN_INT, COLUMN_TIME, COLUMN_TEXT };

static enum column column_of(const MYSQL_FIELD *f)
{
    switch (f->type) {
    case MYSQL_TYPE_TINY:
    case MYSQL_TYPE_SHORT:
    case MYSQL_TYPE_INT24:
    case MYSQL_TYPE_LONG:
    case MYSQL_TYPE_LONGLONG:
    case MYSQL_TYPE_NEWDECIMAL:
        return COLUMN_INT;
    case MYSQL_TYPE_DATETIME:
    case MYSQL_TYPE_TIMESTAMP:
        return COLUMN_TIME;
    default:
        return COLUMN_TEXT;
    }
}

/* "2026-01-31 12:34:56.789" */
static int read_time(const char *p, size_t len, wall_ms *ret)
{
    char text[TIME_TEXT_LEN + 1];

    if (len < 19 || len >= TIME_TEXT_LEN)
        return ERR_CORRUPT;
    memcpy(text, p, len);
    text[10] = 'T';
    text[len] = 'Z';
    return time_parse((struct str){text, len + 1}, ret, NULL) ? ERR_CORRUPT : 0;
}

static int read_row(MYSQL_RES *res, MYSQL_ROW row, const enum column *columns, unsigned n,
                    struct sql_value *values)
{
    const unsigned long *lens = mysql_fetch_lengths(res);
    int rc = 0;

    for (unsigned i = 0; !rc && i < n; i++) {
        values[i] = (struct sql_value){.null = !row[i]};
        if (!row[i])
            continue;
        if (columns[i] == COLUMN_INT)
            values[i].i = strtoll(row[i], NULL, 10);
        else if (columns[i] == COLUMN_TIME)
            rc = read_time(row[i], lens[i], &values[i].i);
        else
            values[i].s = (struct str){row[i], lens[i]};
    }
    return rc;
}

/* Reads to the end, whatever happens: the connection is of no use before. */
static int read_rows(struct driver_conn *c, MYSQL_RES *res, const struct my_reader *r,
                     struct err *err)
{
    struct sql_value values[COLUMNS_MAX];
    enum column columns[COLUMNS_MAX];
    const MYSQL_FIELD *fields = mysql_fetch_fields(res);
    unsigned n = mysql_num_fields(res);
    MYSQL_ROW row;
    int rc = 0;

    if (n > COLUMNS_MAX)
        return err_set(err, ERR_CORRUPT, "a row has too many columns");
    for (unsigned i = 0; i < n; i++)
        columns[i] = column_of(&fields[i]);
    while ((row = mysql_fetch_row(res))) {
        if (rc || !r->on_row)
            continue;
        rc = read_row(res, row, columns, n, values);
        if (!rc)
            rc = r->on_row(r->ctx, values);
    }
    if (mysql_errno(c->my))
        return my_fail(c, err);
    return rc ? err_set(err, rc, "a row could not be read: %s", err_name(rc)) : 0;
}

/* Rows that a statement wrote. Of an UPDATE the rows found: others count only what became
 * different. */
static int64_t changed_of(struct driver_conn *c)
{
    static const char found[] = "Rows matched: ";
    const char *info = mysql_info(c->my);

    if (info && strncmp(info, found, sizeof(found) - 1) == 0)
        return strtoll(info + sizeof(found) - 1, NULL, 10);
    return (int64_t)mysql_affected_rows(c->my);
}

static int take_result(struct driver_conn *c, const struct my_reader *r, struct err *err)
{
    MYSQL_RES *res = mysql_use_result(c->my);
    int rc;

    if (res) {
        rc = read_rows(c, res, r, err);
        mysql_free_result(res);
        return rc;
    }
    if (mysql_field_count(c->my))
        return my_fail(c, err);
    if (r->ret_changed)
        *r->ret_changed = changed_of(c);
    return 0;
}

/* ---- Running ------------------------------------------------------------------------------- */

static int take_results(struct driver_conn *c, struct my_packet *p, struct err *err)
{
    const struct my_reader *readers = (const struct my_reader *)p->readers.data;
    size_t n = p->readers.len / sizeof(*readers);
    int rc = 0;

    for (p->at = 0; p->at < n; p->at++) {
        int next;
        int rc_of_one = take_result(c, &readers[p->at], rc ? NULL : err);

        if (!rc)
            rc = rc_of_one;
        if (mysql_errno(c->my)) /* the server has stopped here */
            return rc;
        next = mysql_next_result(c->my);
        if (next > 0) {
            p->at++;
            return rc ? rc : my_fail(c, err);
        }
        if (next < 0)
            break;
    }
    assert(p->at == n - 1);
    return rc;
}

int my_packet_run(struct my_packet *p, struct err *err)
{
    struct driver_conn *c = conn_of(p->db);
    int rc;

    if (!buf_ok(&p->text) || !buf_ok(&p->readers))
        return err_set(err, ERR_NOMEM, "no memory for a statement");
    if (p->text.len >= c->max_packet)
        return err_set(err, ERR_INVALID,
                       "%zu bytes in one statement are more than the server takes: raise "
                       "max_allowed_packet above %zu",
                       p->text.len, c->max_packet);
    if (mysql_real_query(c->my, p->text.data, p->text.len)) {
        rc = my_fail(c, err);
    } else {
        if (c->begin_pending)
            c->lock_wait_set_s = c->lock_wait_s;
        rc = take_results(c, p, err);
    }
    c->begin_pending = false;
    if (rc && (c->waits_for_keys || p->key_wait == p->at + 1))
        c->sql.lock_timed_out |= mysql_errno(c->my) == ER_LOCK_WAIT_TIMEOUT;
    if (!rc && p->commits)
        c->in_transaction = false;
    return rc;
}

int my_run_text(struct driver_conn *c, const char *text, struct err *err)
{
    return my_sql_run(&c->sql, &(struct sql_query){.text = text}, err);
}

int my_sql_run(struct sql *db, const struct sql_query *q, struct err *err)
{
    struct my_packet p;
    int rc;

    my_packet_start(&p, db);
    my_statement(&p, q->on_row, q->ctx, q->ret_changed);
    my_put_query(&p, q->text, q->params, q->n_params);
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    return rc;
}
