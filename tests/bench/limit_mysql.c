/* SPDX-License-Identifier: Apache-2.0 */
/* The statements of node/store/mysql_hot.c and mysql_finish.c: one packet of texts, and one round
 * trip, for each transaction (two where the rows are locked first). */
#include <inttypes.h>
#include <mysql.h>
#include <stdlib.h>
#include <time.h>

#include "common/buf.h"
#include "node/store/mysql_url.h"
#include "tests/bench/limit.h"

#define TASKS "job_delay_task FORCE INDEX (PRIMARY)"
#define HISTORY "job_delay_task_history"
#define NOW "UTC_TIMESTAMP(3)"

struct limit_session {
    MYSQL *my;
    struct buf text;
};

static _Noreturn void fail(struct limit_session *s)
{
    limit_die("MariaDB", mysql_error(s->my));
}

/* Sends the packet, and reads all that it answers. Returns the rows that the most fruitful of its
 * statements gave or changed. */
static size_t run(struct limit_session *s)
{
    size_t rows = 0;
    int more;

    if (!buf_ok(&s->text))
        limit_die("MariaDB", "no memory");
    if (mysql_real_query(s->my, s->text.data, s->text.len))
        fail(s);
    do {
        MYSQL_RES *r = mysql_store_result(s->my);
        size_t n;

        if (!r && mysql_field_count(s->my))
            fail(s);
        n = r ? (size_t)mysql_num_rows(r) : (size_t)mysql_affected_rows(s->my);
        mysql_free_result(r);
        if (n > rows)
            rows = n;
        more = mysql_next_result(s->my);
        if (more > 0)
            fail(s);
    } while (!more);
    buf_clear(&s->text);
    return rows;
}

static void run_all(struct limit_session *s, size_t wanted)
{
    if (run(s) != wanted)
        limit_die("MariaDB", "a batch did not touch all of its rows");
}

static void put_range(struct buf *b, const char *column, int64_t first, size_t n)
{
    buf_addf(b, " WHERE %s BETWEEN %" PRId64 " AND %" PRId64, column, first,
             first + (int64_t)n - 1);
}

/* Milliseconds since 1970, as a time. */
static void put_time(struct buf *b, wall_ms t)
{
    time_t seconds = (time_t)(t / 1000);
    struct tm tm;
    char text[32];

    (void)gmtime_r(&seconds, &tm);
    (void)strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm);
    buf_addf(b, "'%s.%03d'", text, (int)(t % 1000));
}

static void insert(struct limit_session *s, const struct limit_row *rows, size_t n, wall_ms due)
{
    struct buf times = {0};
    struct buf *b = &s->text;

    put_time(&times, due);
    buf_addc(&times, ',');
    put_time(&times, due);
    buf_addf(&times, ",%d,NULL,NULL,", LIMIT_RETRIES);
    buf_addz(b, "BEGIN;INSERT INTO job_delay_task (id, trace_id, biz_uuid, service_name, handler, "
                "shard, lane, priority, status, execute_time, next_attempt_time, max_retry, "
                "policy, timeout_ms, payload_json, created_at, updated_at) VALUES ");
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_addc(b, ',');
        buf_addc(b, '(');
        buf_addi(b, rows[i].id);
        buf_addz(b, ",'");
        buf_addz(b, rows[i].trace_id);
        buf_addz(b, "','");
        buf_addz(b, rows[i].key);
        buf_addf(b, "','" LIMIT_SERVICE "','" LIMIT_HANDLER "',0,%d,%d,'PENDING',", LIMIT_LANE,
                 LIMIT_PRIORITY);
        buf_adds(b, buf_str(&times));
        buf_addc(b, '\'');
        buf_addz(b, rows[i].payload);
        buf_addz(b, "'," NOW "," NOW ")");
    }
    buf_addz(b, " ON DUPLICATE KEY UPDATE id = id;SELECT " LIMIT_COLUMNS
                ", finished_at FROM (SELECT biz_uuid AS mine FROM " TASKS);
    put_range(b, "id", rows[0].id, n);
    buf_addz(b, ") AS t STRAIGHT_JOIN " HISTORY " FORCE INDEX (" HISTORY "_biz_uuid) "
                "ON biz_uuid = mine;SELECT name, lanes, shards_seen FROM job_service "
                "FORCE INDEX (PRIMARY) WHERE name IN ('" LIMIT_SERVICE "') ORDER BY name "
                "LOCK IN SHARE MODE;COMMIT");
    run_all(s, n);
    buf_fini(&times);
}

static void claim(struct limit_session *s, int64_t first_id, size_t n)
{
    struct buf *b = &s->text;

    buf_addf(b,
             "BEGIN;UPDATE " TASKS " SET status = 'SENDING', attempt = attempt + 1, "
             "room = NULL, claimed_by = '" LIMIT_NODE "', claimed_at = " NOW ", updated_at = " NOW
             ", "
             "deadline_at = " NOW " + INTERVAL (coalesce(timeout_ms, %d) + %d) * 1000 MICROSECOND",
             LIMIT_TIMEOUT_MS, LIMIT_MARGIN_MS);
    put_range(b, "id", first_id, n);
    buf_addz(b, " AND attempt = 0 AND status IN ('PENDING', 'RETRYING') "
                "AND next_attempt_time <= " NOW ";SELECT " LIMIT_COLUMNS ", NULL FROM " TASKS);
    put_range(b, "id", first_id, n);
    buf_addz(b, ";COMMIT");
    run_all(s, n);
}

static void finish(struct limit_session *s, int64_t first_id, size_t n)
{
    struct buf *b = &s->text;

    buf_addz(b, "BEGIN;SELECT id, status, attempt, deadline_at, claimed_at FROM " TASKS);
    put_range(b, "id", first_id, n);
    buf_addz(b, " ORDER BY id FOR UPDATE;SELECT " NOW);
    run_all(s, n);
    buf_addz(b, "INSERT INTO " HISTORY " (id, " LIMIT_FIXED
                ", status, retry_count, failed_at, last_error, "
                "last_http_status, updated_at, finished_at) SELECT id, " LIMIT_FIXED ", 'SUCCESS', "
                "retry_count, failed_at, NULL, 200, " NOW ", " NOW " FROM " TASKS);
    put_range(b, "id", first_id, n);
    buf_addz(b, ";DELETE t FROM job_delay_task AS t FORCE INDEX (PRIMARY)");
    put_range(b, "t.id", first_id, n);
    buf_addz(b, ";COMMIT");
    run_all(s, n);
}

static int64_t take_ids(struct limit_session *s, int64_t n)
{
    MYSQL_RES *r;
    MYSQL_ROW row;
    int64_t last;

    buf_addf(&s->text, "UPDATE job_id_block SET next_id = LAST_INSERT_ID(next_id + %" PRId64 ")",
             n);
    if (run(s) != 1 || mysql_query(s->my, "SELECT LAST_INSERT_ID()"))
        fail(s);
    r = mysql_store_result(s->my);
    row = r ? mysql_fetch_row(r) : NULL;
    if (!row)
        fail(s);
    last = strtoll(row[0], NULL, 10);
    mysql_free_result(r);
    return last - n;
}

static struct limit_session *open_session(const char *url)
{
    struct limit_session *s = calloc(1, sizeof(*s));
    struct mysql_url u;
    struct err err;

    if (mysql_url_parse(url, &u, &err))
        limit_die(url, err.text);
    if (!s || !(s->my = mysql_init(NULL)))
        limit_die("MariaDB", "no memory");
    if (mysql_optionsv(s->my, MYSQL_SET_CHARSET_NAME, "utf8mb4") ||
        !mysql_real_connect(s->my, u.host, u.user, u.password, u.database, u.port, NULL,
                            CLIENT_MULTI_STATEMENTS | CLIENT_FOUND_ROWS))
        fail(s);
    mysql_url_fini(&u);
    buf_addz(&s->text, "SET SESSION time_zone = '+00:00', in_predicate_conversion_threshold = 0;"
                       "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
                       "INSERT INTO job_service (name, lanes, created_at, updated_at) "
                       "VALUES ('" LIMIT_SERVICE "', 16, " NOW ", " NOW ") "
                       "ON DUPLICATE KEY UPDATE name = name");
    (void)run(s);
    return s;
}

static void close_session(struct limit_session *s)
{
    mysql_close(s->my);
    buf_fini(&s->text);
    free(s);
}

static void flush(struct limit_session *s)
{
    (void)s; /* each call waits for its answer */
}

const struct limit_store limit_mysql = {
    .scheme = "mysql:",
    .open = open_session,
    .close = close_session,
    .take_ids = take_ids,
    .insert = insert,
    .claim = claim,
    .finish = finish,
    .flush = flush,
};
