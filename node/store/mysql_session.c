/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to MySQL and MariaDB, and what is set on each: READ COMMITTED, UTC and a strict mode
 * are the session's, whatever the server's defaults are. */
#include "node/store/mysql_conn.h"

#include <mysql.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>

#include "node/store/mysql_url.h"

#define MARIADB_VERSION_MIN 100600
#define MYSQL_VERSION_MIN 80017
#define CONNECT_SECONDS 5
#define PACKET_MIN ((size_t)16 << 20) /* the largest batch, with everything escaped */

/* ---- Limits of time ------------------------------------------------------------------------ */

/* Seconds that an answer may take, and that a transaction may stand idle: the time that the server
 * gives a statement, and more. */
static unsigned patience(const struct driver_options *opt)
{
    int64_t limit = opt->statement_timeout_ms;

    return (unsigned)((limit + (limit > 1000 ? limit : 1000) + 999) / 1000);
}

int64_t my_lock_wait_s(struct sql *db, int64_t ms)
{
    int64_t most = (conn_of(db)->opt.statement_timeout_ms - 1) / 1000;
    int64_t least = conn_of(db)->is_mariadb ? 0 : 1; /* MySQL takes no 0 */
    int64_t s = (ms + 500) / 1000;

    s = s < most ? s : most;
    return s > least ? s : least;
}

/* The server ends what has lost its client, locks and all. A wait for a table's lock ends with the
 * statement's time, so that it is not taken for one for a row. */
static void put_limits(struct buf *b, const struct driver_conn *c)
{
    long long ms = (long long)c->opt.statement_timeout_ms;

    buf_addf(b, "SET SESSION innodb_lock_wait_timeout = %lld, lock_wait_timeout = %lld, ",
             (long long)c->lock_wait_s, (ms + 999) / 1000 + c->is_mariadb);
    if (c->is_mariadb)
        buf_addf(b, "max_statement_time = %lld.%03lld, idle_transaction_timeout = %u", ms / 1000,
                 ms % 1000, patience(&c->opt));
    else
        buf_addf(b, "max_execution_time = %lld", ms);
}

int my_session_limits(struct driver_conn *c, bool migrating, struct err *err)
{
    struct buf b = BUF_INIT;
    int rc;

    c->lock_wait_s = c->lock_wait_set_s = my_lock_wait_usual_s(c);
    put_limits(&b, c);
    if (migrating && c->is_mariadb)
        buf_addz(&b, ", max_statement_time = 0");
    buf_addc(&b, '\0');
    rc = buf_ok(&b) ? my_run_text(c, b.data, err) : err_set(err, ERR_NOMEM, "no memory");
    buf_fini(&b);
    return rc;
}

/* ---- What the server is -------------------------------------------------------------------- */

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

/* ---- Connection ---------------------------------------------------------------------------- */

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
        rc = my_run_text(c, session, err);
    if (!rc) /* MySQL has no other limit for a transaction whose client is gone */
        rc = my_run_text(c,
                         c->is_mariadb ? "SET SESSION wait_timeout = 86400"
                                       : "SET SESSION wait_timeout = 600",
                         err);
    if (!rc)
        rc = my_run_text(c, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
                         err);
    if (!rc && c->is_mariadb) /* long lists stay lists */
        rc = my_run_text(c, "SET SESSION in_predicate_conversion_threshold = 0", err);
    if (!rc)
        rc = my_session_limits(c, false, err);
    return rc ? rc : check_server(c, ret_warning, err);
}

void my_session_close(struct driver_conn *c)
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

int my_session_open(struct driver_conn *c, const struct mysql_url *u, char **ret_warning,
                    struct err *err)
{
    int rc;

    c->max_packet = PACKET_MIN;
    rc = connect_to(c, u, err);
    return rc ? rc : set_up(c, ret_warning, err);
}
