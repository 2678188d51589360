/* SPDX-License-Identifier: Apache-2.0 */
/* MySQL and MariaDB by MariaDB's client library, in SQL that both understand. Statements go as
 * text, several in one round trip. READ COMMITTED, UTC and a strict mode are the session's,
 * whatever the server's defaults are. DDL commits by itself, so migrations run under a lock by name
 * and may be run again from the middle. */
#include "node/store/mysql_conn.h"

#include <mysql.h>
#include <mysqld_error.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "node/store/calls.h"
#include "node/store/migrate.h"
#include "node/store/mysql_url.h"

#define ID_BLOCK 1000
#define MARIADB_VERSION_MIN 100600
#define MYSQL_VERSION_MIN 80017
#define CONNECT_SECONDS 5
#define PACKET_MIN ((size_t)16 << 20) /* the largest batch, with everything escaped */

/* ---- The dialect --------------------------------------------------------------------------- */

static int run_text(struct driver_conn *c, const char *text, struct err *err)
{
    return my_sql_run(&c->sql, &(struct sql_query){.text = text}, err);
}

/* What an earlier try of the same migration can have left. */
static bool is_made_already(unsigned number)
{
    return number == ER_TABLE_EXISTS_ERROR || number == ER_DUP_KEYNAME ||
           number == ER_DUP_FIELDNAME || number == ER_CANT_DROP_FIELD_OR_KEY ||
           number == ER_SP_ALREADY_EXISTS;
}

/* Ends at its semicolon; a procedure, which has some inside, at the END that begins a line. */
static size_t statement_len(const char *at)
{
    static const char procedure[] = "CREATE PROCEDURE";
    static const char end[] = "\nEND;";
    const char *last = NULL;

    if (strncmp(at, procedure, sizeof(procedure) - 1) == 0)
        last = strstr(at, end);
    return last ? (size_t)(last - at) + sizeof(end) - 2 : strcspn(at, ";");
}

/* As it stands: what looks like a parameter or a mark of ours may be a text in a procedure. */
static int run_raw(struct driver_conn *c, const char *text, size_t len, struct err *err)
{
    struct my_packet p;
    int rc;

    my_packet_start(&p, &c->sql);
    my_statement(&p, NULL, NULL, NULL);
    buf_add(&p.text, text, len);
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    return rc;
}

static int my_script(struct sql *db, const char *text, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    int rc = 0;

    for (const char *at = text + strspn(text, " \n;"); !rc && *at; at += strspn(at, " \n;")) {
        size_t len = statement_len(at);

        rc = run_raw(c, at, len, err);
        if (rc && is_made_already(mysql_errno(c->my))) {
            c->met_foreign = !c->goes_on;
            rc = c->goes_on ? 0 : rc;
        }
        at += len;
    }
    return rc;
}

static int my_begin(struct sql *db, struct err *err)
{
    struct driver_conn *c = conn_of(db);

    (void)err;
    db->lock_timed_out = db->met_lock = false;
    c->in_transaction = c->begin_pending = true;
    return 0;
}

static int my_commit(struct sql *db, struct err *err)
{
    struct driver_conn *c = conn_of(db);
    int rc = 0;

    if (c->in_transaction && !c->begin_pending)
        rc = run_text(c, "COMMIT", err);
    c->begin_pending = false;
    c->in_transaction = rc != 0;
    return rc;
}

static void my_rollback(struct sql *db)
{
    struct driver_conn *c = conn_of(db);

    if (c->in_transaction && !c->begin_pending)
        (void)run_text(c, "ROLLBACK", NULL); /* else the connection is lost, and with it all */
    c->in_transaction = c->begin_pending = false;
}

static const struct sql_dialect my_dialect = {
    .now = "UTC_TIMESTAMP(3)",
    .for_update = "FOR UPDATE",
    .skip_locked = "FOR UPDATE SKIP LOCKED",
    .on_duplicate_key = true,
    .has_submit = true,
    .table_exists = "SELECT table_name FROM information_schema.tables "
                    "WHERE table_schema = DATABASE() AND table_name = ?",
    /* Submissions lock the rows of job_service that they read. */
    .services_lock = NULL,
    .begin = my_begin,
    .commit = my_commit,
    .rollback = my_rollback,
    .run = my_sql_run,
    .script = my_script,
};

/* ---- The session --------------------------------------------------------------------------- */

/* Seconds that an answer may take, and that a transaction may stand idle: the time that the server
 * gives a statement, and more. */
static unsigned patience(const struct driver_options *opt)
{
    int64_t limit = opt->statement_timeout_ms;

    return (unsigned)((limit + (limit > 1000 ? limit : 1000) + 999) / 1000);
}

/* The server ends what has lost its client, locks and all. */
static void put_limits(struct buf *b, const struct driver_conn *c, int64_t ms)
{
    long long seconds = (ms + 999) / 1000;

    buf_addf(b, "SET SESSION innodb_lock_wait_timeout = %lld, lock_wait_timeout = %lld, ", seconds,
             seconds);
    if (c->is_mariadb)
        buf_addf(b, "max_statement_time = %lld.%03lld, idle_transaction_timeout = %u",
                 (long long)ms / 1000, (long long)ms % 1000, patience(&c->opt));
    else
        buf_addf(b, "max_execution_time = %lld", (long long)ms);
}

/* Migrations take their time: 0 lifts the limit of statements. */
static int set_limits(struct driver_conn *c, bool migrating, struct err *err)
{
    struct buf b = BUF_INIT;
    int rc;

    put_limits(&b, c, c->opt.statement_timeout_ms);
    if (migrating && c->is_mariadb)
        buf_addz(&b, ", max_statement_time = 0");
    buf_addc(&b, '\0');
    rc = buf_ok(&b) ? run_text(c, b.data, err) : err_set(err, ERR_NOMEM, "no memory");
    buf_fini(&b);
    return rc;
}

struct server {
    bool read_only;
    bool logs;       /* the binary log is on */
    bool statements; /* and wants statements */
    bool synced;     /* and goes to the disk with each commit */
    size_t max_packet;
    struct buf weak; /* "name = value, …" */
};

static bool is_off(struct str v)
{
    return str_eqz(v, "0") || (v.len == 3 && strncasecmp(v.p, "off", 3) == 0);
}

static void weak(struct server *s, const struct sql_value *row)
{
    buf_addf(&s->weak, "%s" STR_FMT " = " STR_FMT, s->weak.len ? ", " : "", STR_ARG(row[0].s),
             STR_ARG(row[1].s));
}

static int on_variable(void *ctx, const struct sql_value *row)
{
    struct server *s = ctx;
    struct str name = row[0].s;
    struct str value = row[1].s;
    int64_t n;

    if (str_eqz(name, "read_only") || str_eqz(name, "innodb_read_only")) {
        s->read_only |= !is_off(value);
    } else if (str_eqz(name, "log_bin")) {
        s->logs = !is_off(value);
    } else if (str_eqz(name, "binlog_format")) {
        s->statements = str_eqz(value, "STATEMENT");
    } else if (str_eqz(name, "max_allowed_packet")) {
        if (!str_to_i64(value, &n) || n < 1024)
            return ERR_CORRUPT;
        s->max_packet = (size_t)n;
        if (s->max_packet < PACKET_MIN)
            weak(s, row);
    } else if (str_eqz(name, "innodb_flush_log_at_trx_commit")) {
        if (!str_eqz(value, "1"))
            weak(s, row);
    } else if (str_eqz(name, "innodb_doublewrite")) {
        if (is_off(value))
            weak(s, row);
    } else if (str_eqz(name, "sync_binlog")) { /* comes after log_bin */
        if (s->logs && !str_eqz(value, "1"))
            weak(s, row);
    }
    return 0;
}

static int judge_server(struct driver_conn *c, struct server *s, char **ret_warning,
                        struct err *err)
{
    if (s->read_only)
        return err_set(err, ERR_UNAVAILABLE, "the server is read-only");
    if (s->logs && s->statements)
        return err_set(err, ERR_UNAVAILABLE,
                       "binlog_format = STATEMENT cannot log READ COMMITTED: set MIXED or ROW");
    c->max_packet = s->max_packet;
    if (s->weak.len)
        *ret_warning = buf_steal(&s->weak);
    return 0;
}

static int check_server(struct driver_conn *c, char **ret_warning, struct err *err)
{
    static const char text[] =
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'innodb_read_only', "
        "'log_bin', 'binlog_format', 'sync_binlog', 'max_allowed_packet', "
        "'innodb_flush_log_at_trx_commit', 'innodb_doublewrite')";
    struct server s = {0};
    int rc =
        sql_run(&c->sql, &(struct sql_query){.text = text, .on_row = on_variable, .ctx = &s}, err);

    if (!rc && !s.max_packet)
        rc = err_set(err, ERR_CORRUPT, "the server does not tell its settings");
    if (!rc)
        rc = judge_server(c, &s, ret_warning, err);
    buf_fini(&s.weak);
    return rc;
}

static int check_version(struct driver_conn *c, struct err *err)
{
    unsigned long version = mysql_get_server_version(c->my);

    c->is_mariadb = mariadb_connection(c->my);
    if (version >= (c->is_mariadb ? MARIADB_VERSION_MIN : MYSQL_VERSION_MIN))
        return 0;
    return err_set(err, ERR_UNAVAILABLE, "%s %s is too old: MariaDB 10.6 or MySQL 8.0.17 is needed",
                   c->is_mariadb ? "MariaDB" : "MySQL", mysql_get_server_info(c->my));
}

/* A server that has gone without a word is noticed by these. */
static void watch_socket(struct driver_conn *c)
{
    static const struct {
        int level;
        int name;
        int value;
    } options[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1},          {IPPROTO_TCP, TCP_KEEPIDLE, 5},
        {IPPROTO_TCP, TCP_KEEPINTVL, 2},        {IPPROTO_TCP, TCP_KEEPCNT, 3},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, 10000},
    };

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        (void)setsockopt(mysql_get_socket(c->my), options[i].level, options[i].name,
                         &options[i].value, sizeof(options[i].value));
}

static int set_up(struct driver_conn *c, char **ret_warning, struct err *err)
{
    static const char session[] =
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
        "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', "
        "autocommit = 1, completion_type = 0, sql_select_limit = 18446744073709551615, "
        "sql_safe_updates = 0, "
        "sql_big_selects = 1";
    int rc = check_version(c, err);

    watch_socket(c);
    if (!rc)
        rc = run_text(c, session, err);
    if (!rc) /* MySQL has no other limit for a transaction whose client is gone */
        rc = run_text(c,
                      c->is_mariadb ? "SET SESSION wait_timeout = 86400"
                                    : "SET SESSION wait_timeout = 600",
                      err);
    if (!rc)
        rc = run_text(c, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE", err);
    if (!rc && c->is_mariadb) /* long lists stay lists */
        rc = run_text(c, "SET SESSION in_predicate_conversion_threshold = 0", err);
    if (!rc)
        rc = set_limits(c, false, err);
    return rc ? rc : check_server(c, ret_warning, err);
}

/* ---- Connection ---------------------------------------------------------------------------- */

static void my_close(struct driver_conn *c)
{
    if (!c)
        return;
    mysql_close(c->my);
    free(c);
}

static int set_options(MYSQL *my, const struct mysql_url *u, unsigned silence)
{
    const unsigned protocol = MYSQL_PROTOCOL_TCP;
    const unsigned seconds = CONNECT_SECONDS;
    const unsigned off = 0;
    const my_bool yes = 1;
    int rc = mysql_optionsv(my, MYSQL_OPT_PROTOCOL, &protocol);

    rc |= mysql_optionsv(my, MYSQL_OPT_CONNECT_TIMEOUT, &seconds);
    rc |= mysql_optionsv(my, MYSQL_OPT_READ_TIMEOUT, &silence);
    rc |= mysql_optionsv(my, MYSQL_OPT_WRITE_TIMEOUT, &silence);
    rc |= mysql_optionsv(my, MYSQL_OPT_LOCAL_INFILE, &off);
    rc |= mysql_optionsv(my, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    rc |= mysql_optionsv(my, MYSQL_OPT_CONNECT_ATTR_ADD, "program_name", "jobflowd");
    if (u->tls != MYSQL_TLS_OFF)
        rc |= mysql_optionsv(my, MYSQL_OPT_SSL_ENFORCE, &yes);
    if (u->tls == MYSQL_TLS_VERIFIED)
        rc |= mysql_optionsv(my, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &yes);
    if (u->ca_file)
        rc |= mysql_optionsv(my, MYSQL_OPT_SSL_CA, u->ca_file);
    return rc;
}

static void init_library(void)
{
    (void)mysql_library_init(0, NULL, NULL); /* a failure shows at the first connection */
}

/* Whatever keeps us out may pass: the server starts, a user is being made. */
static int connect_to(struct driver_conn *c, const struct mysql_url *u, struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, init_library);
    c->my = mysql_init(NULL);
    if (!c->my || set_options(c->my, u, patience(&c->opt)))
        return err_set(err, ERR_NOMEM, "no memory for a connection");
    if (!mysql_real_connect(c->my, u->host, u->user, u->password, u->database, u->port, NULL,
                            CLIENT_MULTI_STATEMENTS))
        return err_set(err, ERR_UNAVAILABLE, "MySQL: %s", mysql_error(c->my));
    return 0;
}

static int my_open(const char *url, const struct driver_options *opt, struct driver_conn **ret,
                   char **ret_warning, struct err *err)
{
    struct mysql_url u;
    struct driver_conn *c;
    int rc = mysql_url_parse(url, &u, err);

    *ret_warning = NULL;
    if (rc)
        return rc;
    c = calloc(1, sizeof(*c));
    if (c) {
        c->sql.d = &my_dialect;
        c->opt = *opt;
        c->max_packet = PACKET_MIN;
        rc = connect_to(c, &u, err);
        if (!rc)
            rc = set_up(c, ret_warning, err);
    } else {
        rc = err_set(err, ERR_NOMEM, "no memory for a connection");
    }
    mysql_url_fini(&u);
    if (rc) {
        my_close(c);
        return rc;
    }
    *ret = c;
    return 0;
}

/* ---- Migrations ---------------------------------------------------------------------------- */

#define LOCK_NAME "CONCAT('jobflow:', MD5(DATABASE()))"

static int on_any(void *ctx, const struct sql_value *row)
{
    bool *any = ctx;

    (void)row;
    *any = true;
    return 0;
}

/* Of other nodes; what a killed one began is gone on with. */
static int lock_schema(struct driver_conn *c, struct err *err)
{
    int64_t got = 0;
    int rc = set_limits(c, true, err);

    if (!rc)
        rc = sql_run(&c->sql,
                     &(struct sql_query){.text = "SELECT GET_LOCK(" LOCK_NAME ", ?)",
                                         SQL_PARAMS(sql_int(c->opt.statement_timeout_ms / 1000)),
                                         .on_row = sql_on_int,
                                         .ctx = &got},
                     err);
    if (!rc && got != 1)
        rc = err_set(err, ERR_BUSY, "another node changes the schema");
    return rc;
}

/* A table of somebody else under one of our names is not passed over, now or at the next try. */
static int run_migrations(struct driver_conn *c, const struct migration *m, size_t n, int *ret_from,
                          int *ret_to, struct err *err)
{
    int rc;

    c->goes_on = c->met_foreign = false;
    rc = sql_run(&c->sql,
                 &(struct sql_query){.text = my_dialect.table_exists,
                                     SQL_PARAMS(sql_textz("job_schema")),
                                     .on_row = on_any,
                                     .ctx = &c->goes_on},
                 err);
    if (!rc)
        rc = migrate_run(&c->sql, m, n, false, ret_from, ret_to, err);
    if (rc && c->met_foreign)
        (void)run_text(c, "DROP TABLE IF EXISTS job_schema", NULL);
    c->goes_on = false;
    return rc;
}

static int my_migrate(struct driver_conn *c, const struct migration *m, size_t n, bool check_only,
                      int *ret_from, int *ret_to, struct err *err)
{
    int rc = migrate_run(&c->sql, m, n, true, ret_from, ret_to, err);

    if (check_only || rc != ERR_NOT_FOUND)
        return rc;
    if (err)
        err->text[0] = '\0';
    rc = lock_schema(c, err);
    if (!rc) {
        rc = run_migrations(c, m, n, ret_from, ret_to, err);
        (void)run_text(c, "SELECT RELEASE_LOCK(" LOCK_NAME ")", NULL); /* or the session's end */
    }
    if (!rc)
        return set_limits(c, false, err);
    (void)set_limits(c, false, NULL); /* the first error is the one to tell */
    return rc;
}

/* ---- Operations ---------------------------------------------------------------------------- */

/* The row need not stay; its number is used up once this is committed. */
static int my_take_ids(struct driver_conn *c, int64_t *ret_first, int64_t *ret_n, struct err *err)
{
    struct my_packet p;
    int64_t step = 0;
    int rc = my_begin(&c->sql, err);

    if (!rc) {
        my_packet_start(&p, &c->sql);
        my_statement(&p, NULL, NULL, NULL);
        my_put(&p, "INSERT INTO job_id_step () VALUES ()");
        my_statement(&p, sql_on_int, &step, NULL);
        my_put(&p, "SELECT LAST_INSERT_ID()");
        my_statement(&p, NULL, NULL, NULL);
        my_put(&p, "DELETE FROM job_id_step WHERE id = LAST_INSERT_ID()");
        my_put_commit(&p);
        rc = my_packet_run(&p, err);
        my_packet_fini(&p);
    }
    rc = sql_end(&c->sql, rc, err);
    if (rc)
        return rc;
    if (step < 1)
        return err_set(err, ERR_CORRUPT, "job_id_step gives no ids");
    *ret_first = step * ID_BLOCK;
    *ret_n = ID_BLOCK;
    return 0;
}

static int my_submit(struct driver_conn *c, struct submit_item **items, size_t n, struct err *err)
{
    return submit_batch(&c->sql, &my_submit_ops, items, n, err);
}

static int my_claim_batch(struct driver_conn *c, struct claim_item **items, size_t n,
                          struct str claimed_by, int64_t margin_ms, struct err *err)
{
    return my_claim(&c->sql, items, n, claimed_by, margin_ms, err);
}

static int my_finish_batch(struct driver_conn *c, struct finish_item **items, size_t n,
                           struct err *err)
{
    return my_finish(&c->sql, items, n, err);
}

static int my_cancel_batch(struct driver_conn *c, struct cancel_op **items, size_t n,
                           struct err *err)
{
    return my_cancel(&c->sql, items, n, err);
}

static int my_scan_all(struct driver_conn *c, struct scan_op *op, struct err *err)
{
    return my_scan(&c->sql, op, err);
}

static int my_call(struct driver_conn *c, struct store_call *call, struct err *err)
{
    return calls_run(&c->sql, call, err);
}

static bool my_met_lock(const struct driver_conn *c)
{
    return c->sql.met_lock;
}

const struct driver mysql_driver = {
    .scheme = "mysql",
    .open = my_open,
    .close = my_close,
    .migrate = my_migrate,
    .met_lock = my_met_lock,
    .take_ids = my_take_ids,
    .submit = my_submit,
    .claim = my_claim_batch,
    .finish = my_finish_batch,
    .cancel = my_cancel_batch,
    .scan = my_scan_all,
    .call = my_call,
};
