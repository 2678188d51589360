/* SPDX-License-Identifier: Apache-2.0 */
/* The statements of node/store/postgres_submit.c, postgres_hot.c and postgres_finish.c with binary
 * arrays, planned as postgres.c has it, in pipeline mode: the next batch is put together and sent
 * while the server works on the one before. */
#include <assert.h>
#include <endian.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "node/store/postgres.h"
#include "tests/bench/limit.h"

#define DEPTH 4 /* transactions under way */
#define KEYS 14 /* of an insert's arrays, the last one */
#define INT8_ARRAY 1016
#define TEXT_ARRAY 1009
#define TIME_ARRAY 1185
#define ARRAY_HEADER 20
#define PG_EPOCH_MS INT64_C(946684800000) /* 2000-01-01 */
#define NOW "date_trunc('milliseconds', clock_timestamp())"

enum statement { BEGIN, INSERT, CHECK, COMMIT, CLAIM, FINISH, N_STATEMENTS };

static const struct {
    const char *text;
    int n_params;
    Oid types[15];
} statements[N_STATEMENTS] = {
    [BEGIN] = {"BEGIN ISOLATION LEVEL READ COMMITTED", 0, {0}},
    [INSERT] =
        {"WITH i AS (INSERT INTO job_delay_task (id, trace_id, service_name, handler, shard, lane, "
         "priority, execute_time, next_attempt_time, max_retry, policy, timeout_ms, payload_json, "
         "created_at, biz_uuid, status, updated_at) SELECT a, b, c, d, e, f, g, h, i, j, k, "
         "nullif(l, 0), m, n, o, 'PENDING', n FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, "
         "$10, $11, $12, $13, $14, $15) AS t(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o) "
         "RETURNING id) SELECT set_config('lock_timeout', CASE WHEN array_agg(id) = $1 THEN '0' "
         "ELSE 'a trigger changed rows' END, true) FROM i",
         15,
         {INT8_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY,
          TIME_ARRAY, TIME_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT8_ARRAY, TEXT_ARRAY, TIME_ARRAY,
          TEXT_ARRAY}},
    [CHECK] = {"SELECT set_config('lock_timeout', CASE WHEN EXISTS (SELECT FROM "
               "job_delay_task_history WHERE biz_uuid = ANY ($1)) OR NOT EXISTS (SELECT FROM "
               "job_service WHERE name = '" LIMIT_SERVICE "' AND lanes & 16 = 16) "
               "THEN 'a key was used before, or the service is new' "
               "ELSE current_setting('lock_timeout') END, true)",
               1,
               {TEXT_ARRAY}},
    [COMMIT] = {"COMMIT", 0, {0}},
    /* clang-format off */
    [CLAIM] =
        {"WITH k(at, who) AS MATERIALIZED (SELECT " NOW ", '" LIMIT_NODE "'::text) "
         "UPDATE job_delay_task SET status = 'SENDING', attempt = attempt + 1, claimed_by = "
         "CASE " PG_OF_ID("$4") " WHEN 0 THEN who ELSE who || '/' || " PG_OF_ID("$4") " END, "
         "claimed_at = at, updated_at = at, deadline_at = at + "
         "(coalesce(timeout_ms, " PG_OF_ID("$3") ") + $5::bigint) * interval '1 millisecond' "
         "FROM k WHERE " PG_BY_ID " AND attempt = " PG_OF_ID("$2") " AND "
         "status IN ('PENDING', 'RETRYING') AND coalesce(next_attempt_time, 'infinity') <= at "
         "RETURNING " LIMIT_COLUMNS ", NULL",
         5,
         {INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, 20}},
    [FINISH] =
        {"WITH d AS (DELETE FROM job_delay_task WHERE " PG_BY_ID " AND "
         "attempt = " PG_OF_ID("$2") " AND "
         "(CASE status WHEN 'SENDING' THEN 2 WHEN 'SENT' THEN 4 ELSE 0 END & "
         PG_OF_ID("$3") ") <> 0 AND (" PG_OF_ID("$4") " = 0 OR deadline_at <= " NOW ") "
         "RETURNING *, nullif(" PG_OF_ID("$5") ", 0) AS f_http) "
         "INSERT INTO job_delay_task_history (id, " LIMIT_FIXED ", status, retry_count, failed_at, "
         "last_error, last_http_status, updated_at, finished_at) SELECT id, " LIMIT_FIXED ", "
         "'SUCCESS', retry_count, failed_at, NULL, f_http, " NOW ", " NOW " FROM d RETURNING id",
         5,
         {INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY}},
    /* clang-format on */
};

struct limit_session {
    PGconn *pg;
    struct buf arrays[15];
    size_t expected[DEPTH]; /* rows of each transaction under way, a ring */
    size_t first;
    size_t n_sent;
};

/* ---- Arrays ------------------------------------------------------------------------------- */

static void put32(struct buf *b, uint32_t v)
{
    uint32_t be = htobe32(v);

    buf_add(b, &be, sizeof(be));
}

static void add_int(struct buf *b, int64_t v)
{
    uint64_t be = htobe64((uint64_t)v);

    put32(b, sizeof(be));
    buf_add(b, &be, sizeof(be));
}

static void add_time(struct buf *b, wall_ms t)
{
    add_int(b, (t - PG_EPOCH_MS) * 1000);
}

static void add_text(struct buf *b, const char *z)
{
    struct str s = str_from(z);

    put32(b, s.p ? (uint32_t)s.len : UINT32_MAX);
    if (s.p)
        buf_adds(b, s);
}

/* One dimension, the elements' type, their number, and 1 as the lower bound. */
static void start_arrays(struct limit_session *s, enum statement which, size_t n)
{
    for (int i = 0; i < statements[which].n_params; i++) {
        Oid array = statements[which].types[i];

        buf_clear(&s->arrays[i]);
        if (array == 20)
            continue;
        put32(&s->arrays[i], 1);
        put32(&s->arrays[i], array == TEXT_ARRAY); /* has NULLs, maybe */
        put32(&s->arrays[i], array == TEXT_ARRAY ? 25 : array == TIME_ARRAY ? 1184 : 20);
        put32(&s->arrays[i], (uint32_t)n);
        put32(&s->arrays[i], 1);
        assert(s->arrays[i].len == ARRAY_HEADER);
    }
}

/* ---- The pipeline ------------------------------------------------------------------------- */

/* Reads one transaction's results to its synchronisation point. */
static void take_one(struct limit_session *s)
{
    size_t rows = 0;
    bool ended = false;

    while (!ended) {
        PGresult *r = PQgetResult(s->pg); /* NULL: the end of one statement */
        ExecStatusType status = PQresultStatus(r);

        if (r && status == PGRES_TUPLES_OK && (size_t)PQntuples(r) > rows)
            rows = (size_t)PQntuples(r);
        else if (r && status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK &&
                 status != PGRES_PIPELINE_SYNC)
            limit_die("PostgreSQL", PQerrorMessage(s->pg));
        else if (!r && PQstatus(s->pg) != CONNECTION_OK)
            limit_die("PostgreSQL", PQerrorMessage(s->pg));
        ended = status == PGRES_PIPELINE_SYNC;
        PQclear(r);
    }
    if (rows != s->expected[s->first])
        limit_die("PostgreSQL", "a batch did not touch all of its rows");
    s->first = (s->first + 1) % DEPTH;
    s->n_sent--;
}

static void flush(struct limit_session *s)
{
    while (s->n_sent)
        take_one(s);
}

static void make_room(struct limit_session *s)
{
    if (s->n_sent == DEPTH)
        take_one(s);
}

static void sync_sent(struct limit_session *s, size_t rows)
{
    if (!PQpipelineSync(s->pg))
        limit_die("PostgreSQL", PQerrorMessage(s->pg));
    s->expected[(s->first + s->n_sent) % DEPTH] = rows;
    s->n_sent++;
}

/* Sends a statement with the first buffers as its parameters. */
static void send(struct limit_session *s, enum statement which, const struct buf *params)
{
    const char *values[15];
    int lengths[15];
    int formats[15];
    char name[8];
    int n = statements[which].n_params;

    for (int i = 0; i < n; i++) {
        if (!buf_ok(&params[i]))
            limit_die("PostgreSQL", "no memory");
        values[i] = params[i].data;
        lengths[i] = (int)params[i].len;
        formats[i] = 1;
    }
    (void)snprintf(name, sizeof(name), "s%d", (int)which);
    if (!PQsendQueryPrepared(s->pg, name, n, values, lengths, formats, 1))
        limit_die("PostgreSQL", PQerrorMessage(s->pg));
}

/* ---- The store ---------------------------------------------------------------------------- */

static void fill_insert(struct limit_session *s, const struct limit_row *rows, size_t n,
                        wall_ms due)
{
    wall_ms now = clock_wall();
    struct buf *a = s->arrays;

    for (size_t i = 0; i < n; i++) {
        add_int(&a[0], rows[i].id);
        add_text(&a[1], rows[i].trace_id);
        add_text(&a[2], LIMIT_SERVICE);
        add_text(&a[3], LIMIT_HANDLER);
        add_int(&a[4], 0);
        add_int(&a[5], LIMIT_LANE);
        add_int(&a[6], LIMIT_PRIORITY);
        add_time(&a[7], due);
        add_time(&a[8], due);
        add_int(&a[9], LIMIT_RETRIES);
        add_text(&a[10], NULL);
        add_int(&a[11], 0);
        add_text(&a[12], rows[i].payload);
        add_time(&a[13], now);
        add_text(&a[KEYS], rows[i].key);
    }
}

static void insert(struct limit_session *s, const struct limit_row *rows, size_t n, wall_ms due)
{
    start_arrays(s, INSERT, n);
    fill_insert(s, rows, n, due);
    make_room(s);
    send(s, BEGIN, NULL);
    send(s, INSERT, s->arrays);
    send(s, CHECK, &s->arrays[KEYS]);
    send(s, COMMIT, NULL);
    sync_sent(s, 1); /* the insert has counted them */
}

static void claim(struct limit_session *s, int64_t first_id, size_t n)
{
    uint64_t margin = htobe64(LIMIT_MARGIN_MS);

    start_arrays(s, CLAIM, n);
    for (size_t i = 0; i < n; i++) {
        add_int(&s->arrays[0], first_id + (int64_t)i);
        add_int(&s->arrays[1], 0);
        add_int(&s->arrays[2], LIMIT_TIMEOUT_MS);
        add_int(&s->arrays[3], 0); /* no lease */
    }
    buf_add(&s->arrays[4], &margin, sizeof(margin));
    make_room(s);
    send(s, CLAIM, s->arrays);
    sync_sent(s, n);
}

static void finish(struct limit_session *s, int64_t first_id, size_t n)
{
    start_arrays(s, FINISH, n);
    for (size_t i = 0; i < n; i++) {
        add_int(&s->arrays[0], first_id + (int64_t)i);
        add_int(&s->arrays[1], 1);
        add_int(&s->arrays[2], 2);
        add_int(&s->arrays[3], 0);
        add_int(&s->arrays[4], 200);
    }
    make_room(s);
    send(s, FINISH, s->arrays);
    sync_sent(s, n);
}

static int64_t take_ids(struct limit_session *s, int64_t n)
{
    char text[128];
    PGresult *r;
    int64_t last;

    flush(s);
    n = (n + 999) / 1000 * 1000; /* the sequence steps by blocks */
    (void)snprintf(text, sizeof(text),
                   "SELECT setval('job_id_block', nextval('job_id_block') + %lld)", (long long)n);
    if (!PQexitPipelineMode(s->pg))
        limit_die("PostgreSQL", PQerrorMessage(s->pg));
    r = PQexec(s->pg, text);
    if (PQresultStatus(r) != PGRES_TUPLES_OK || !PQenterPipelineMode(s->pg))
        limit_die("PostgreSQL", PQerrorMessage(s->pg));
    last = strtoll(PQgetvalue(r, 0, 0), NULL, 10);
    PQclear(r);
    return last - n;
}

static void run_plain(struct limit_session *s, PGresult *r)
{
    if (PQresultStatus(r) != PGRES_COMMAND_OK)
        limit_die("PostgreSQL", PQerrorMessage(s->pg));
    PQclear(r);
}

static struct limit_session *open_session(const char *url)
{
    struct limit_session *s = calloc(1, sizeof(*s));

    if (!s)
        limit_die("PostgreSQL", "no memory");
    s->pg = PQconnectdb(url);
    if (PQstatus(s->pg) != CONNECTION_OK)
        limit_die("PostgreSQL", PQerrorMessage(s->pg));
    run_plain(s, PQexec(s->pg, "SET enable_seqscan = off; SET enable_hashjoin = off; "
                               "SET enable_mergejoin = off; SET jit = off"));
    run_plain(s, PQexec(s->pg, "INSERT INTO job_service (name, lanes, created_at, updated_at) "
                               "VALUES ('" LIMIT_SERVICE "', 16, now(), now()) "
                               "ON CONFLICT (name) DO NOTHING"));
    for (int i = 0; i < N_STATEMENTS; i++) {
        char name[8];

        (void)snprintf(name, sizeof(name), "s%d", i);
        run_plain(s, PQprepare(s->pg, name, statements[i].text, statements[i].n_params,
                               statements[i].types));
    }
    if (!PQenterPipelineMode(s->pg))
        limit_die("PostgreSQL", PQerrorMessage(s->pg));
    return s;
}

static void close_session(struct limit_session *s)
{
    PQfinish(s->pg);
    for (size_t i = 0; i < sizeof(s->arrays) / sizeof(s->arrays[0]); i++)
        buf_fini(&s->arrays[i]);
    free(s);
}

const struct limit_store limit_postgres = {
    .scheme = "postgres:",
    .open = open_session,
    .close = close_session,
    .take_ids = take_ids,
    .insert = insert,
    .claim = claim,
    .finish = finish,
    .flush = flush,
};
