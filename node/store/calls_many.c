/* SPDX-License-Identifier: Apache-2.0 */
/* The calls about many attempts: each statement names all rows of a call. The texts hold the ids,
 * which are numbers, so that every database takes as many as there are. */
#include "node/store/calls.h"

#include <stdlib.h>

#include "node/store/task_row.h"

/* TASK_COLUMNS without the payload, and finished_at. */
#define MANY_COLUMNS(finished)                                                                     \
    "id, trace_id, biz_uuid, service_name, handler, execute_time, NULL, max_retry, created_at, "   \
    "shard, lane, priority, attempt, policy, timeout_ms, claimed_by, claimed_at, snooze_count, "   \
    "status, next_attempt_time, retry_count, updated_at, deadline_at, failed_at, last_error, "     \
    "last_http_status, " finished

static int run_text(struct sql *db, struct buf *text, sql_row_fn *on_row, void *ctx,
                    const struct sql_value *params, size_t n_params, struct err *err)
{
    int rc;

    buf_addc(text, '\0');
    rc = buf_ok(text) ? sql_run(db,
                                &(struct sql_query){.text = text->data,
                                                    .once = true,
                                                    .params = params,
                                                    .n_params = n_params,
                                                    .on_row = on_row,
                                                    .ctx = ctx},
                                err)
                      : err_set(err, ERR_NOMEM, "no memory for a statement");
    buf_fini(text);
    return rc;
}

/* ---- Get ---------------------------------------------------------------------------------- */

static int compare_id(const void *key, const void *element)
{
    int64_t id = *(const int64_t *)key;
    int64_t other = *(const int64_t *)element;

    return (id > other) - (id < other);
}

static int on_task(void *ctx, const struct sql_value *row)
{
    struct call_get_many *c = ctx;
    const int64_t *at = bsearch(&row[0].i, c->ids, c->n, sizeof(*c->ids), compare_id);

    return at ? task_keep_row(&c->tasks[at - c->ids], row) : ERR_CORRUPT;
}

/* Those that were not found yet. */
static int find_in(struct sql *db, struct call_get_many *c, const char *select, struct err *err)
{
    struct buf text = BUF_INIT;
    const char *separator = "";

    buf_addz(&text, select);
    for (size_t i = 0; i < c->n; i++) {
        if (c->tasks[i])
            continue;
        buf_addz(&text, separator);
        buf_addi(&text, c->ids[i]);
        separator = ",";
    }
    buf_addc(&text, ')');
    if (!*separator) {
        buf_fini(&text);
        return 0;
    }
    return run_text(db, &text, on_task, c, NULL, 0, err);
}

int call_get_many(struct sql *db, struct call_get_many *c, struct err *err)
{
    int rc;

    c->tasks = calloc(c->n, sizeof(struct task *));
    if (!c->tasks)
        return err_set(err, ERR_NOMEM, "no memory for the tasks");
    /* Live ones first: a task that is moved in between is found in history. */
    rc = find_in(db, c, "SELECT " MANY_COLUMNS("NULL") " FROM job_delay_task WHERE id IN (", err);
    if (!rc)
        rc = find_in(db, c,
                     "SELECT " MANY_COLUMNS("finished_at") " FROM job_delay_task_history "
                                                           "WHERE id IN (",
                     err);
    if (rc)
        drop_many(c);
    return rc;
}

void drop_many(struct call_get_many *c)
{
    for (size_t i = 0; c->tasks && i < c->n; i++)
        task_free(c->tasks[i]);
    free(c->tasks);
    c->tasks = NULL;
}

/* ---- Extend ------------------------------------------------------------------------------- */

/* A row as the lock found it. */
struct beat_row {
    int64_t id;
    char trace_id[TRACE_ID_LEN];
    enum task_status status;
    int32_t attempt;
    wall_ms deadline_at;
    int64_t timeout_ms; /* the task's, else its service's, else 0 */
    wall_ms new_deadline;
};

struct beats {
    struct buf rows; /* of struct beat_row, by id */
};

static int on_beat_row(void *ctx, const struct sql_value *row)
{
    struct beats *b = ctx;
    struct beat_row r = {.id = row[0].i,
                         .attempt = (int32_t)row[3].i,
                         .deadline_at = sql_wall(&row[4]),
                         .timeout_ms = row[5].i > 0 ? row[5].i : row[6].i,
                         .new_deadline = WALL_NONE};

    if (row[1].s.len != TRACE_ID_LEN || !task_status_parse(row[2].s, &r.status))
        return ERR_CORRUPT;
    for (size_t i = 0; i < TRACE_ID_LEN; i++)
        r.trace_id[i] = row[1].s.p[i];
    buf_add(&b->rows, &r, sizeof(r));
    return buf_ok(&b->rows) ? 0 : ERR_NOMEM;
}

static struct beat_row *beat_row_find(const struct beats *b, int64_t id)
{
    struct beat_row *rows = (struct beat_row *)b->rows.data;

    return rows ? bsearch(&id, rows, b->rows.len / sizeof(*rows), sizeof(*rows), compare_id) : NULL;
}

/* Rows with these ids, of either table. */
static int read_rows(struct sql *db, const struct call_extend_many *c, bool live, struct beats *b,
                     struct err *err)
{
    struct buf text = BUF_INIT;

    buf_addz(&text, "SELECT id, trace_id, status, attempt, deadline_at, timeout_ms, ");
    buf_addz(&text, live ? "(SELECT s.timeout_ms FROM job_service s WHERE s.name = service_name) "
                           "FROM job_delay_task WHERE id IN ("
                         : "NULL FROM job_delay_task_history WHERE id IN (");
    for (size_t i = 0; i < c->n; i++) {
        if (i)
            buf_addc(&text, ',');
        buf_addi(&text, c->items[i].id);
    }
    buf_addz(&text, live ? ") ORDER BY id {for update}" : ") ORDER BY id");
    return run_text(db, &text, on_beat_row, b, NULL, 0, err);
}

static void judge_beat(const struct call_extend_many *c, struct extend_item *item,
                       struct beat_row *r, wall_ms now)
{
    int64_t length = item->extend_ms;

    if (!str_eq((struct str){r->trace_id, TRACE_ID_LEN}, str_from(item->trace_id)))
        return;
    item->result = EXTEND_STALE;
    item->status = r->status;
    item->live_attempt = r->attempt;
    if (r->attempt != item->attempt || !(task_status_bit(r->status) & TASK_IN_FLIGHT) ||
        r->deadline_at <= now)
        return;
    item->result = EXTEND_DONE;
    if (!length)
        length = (r->timeout_ms > 0 ? r->timeout_ms : c->default_timeout_ms) + c->margin_ms;
    if (now + length > r->deadline_at) /* never closer */
        r->new_deadline = r->deadline_at = now + length;
    item->deadline_at = r->deadline_at;
}

static int compare_deadlines(const void *pa, const void *pb)
{
    const struct beat_row *a = pa;
    const struct beat_row *b = pb;

    if (a->new_deadline != b->new_deadline)
        return a->new_deadline < b->new_deadline ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* One statement for all rows that get the same deadline, which most do. The rows are locked. */
static int write_beats(struct sql *db, struct beats *b, struct err *err)
{
    struct beat_row *rows = (struct beat_row *)b->rows.data;
    size_t n = b->rows.len / sizeof(*rows);
    int rc = 0;

    if (n)
        qsort(rows, n, sizeof(*rows), compare_deadlines);
    for (size_t i = 0, end; !rc && i < n; i = end) {
        const struct sql_value deadline = sql_time(rows[i].new_deadline);
        const struct sql_value params[] = {deadline, deadline};
        struct buf text = BUF_INIT;

        buf_addz(&text, "UPDATE job_delay_task SET deadline_at = ?, next_attempt_time = CASE WHEN "
                        "status = 'SENT' THEN ? ELSE next_attempt_time END, updated_at = {now} "
                        "WHERE id IN (");
        for (end = i; end < n && rows[end].new_deadline == rows[i].new_deadline; end++) {
            if (end > i)
                buf_addc(&text, ',');
            buf_addi(&text, rows[end].id);
        }
        buf_addc(&text, ')');
        if (rows[i].new_deadline == WALL_NONE)
            buf_fini(&text);
        else
            rc = run_text(db, &text, NULL, NULL, params, 2, err);
    }
    return rc;
}

static bool is_live(enum task_status status)
{
    return !(task_status_bit(status) & TASK_ENDED);
}

int call_extend_many(struct sql *db, struct call_extend_many *c, struct err *err)
{
    struct beats live = {0};
    struct beats ended = {0};
    size_t n_missing = 0;
    wall_ms now;
    int rc = read_rows(db, c, true, &live, err);

    if (!rc)
        rc = sql_now(db, &now, err);
    for (size_t i = 0; !rc && i < c->n; i++) {
        struct beat_row *r = beat_row_find(&live, c->items[i].id);

        c->items[i].result = EXTEND_NOT_FOUND;
        if (r)
            judge_beat(c, &c->items[i], r, now);
        n_missing += !r;
    }
    if (!rc && n_missing)
        rc = read_rows(db, c, false, &ended, err);
    for (size_t i = 0; !rc && n_missing && i < c->n; i++) {
        struct beat_row *r = beat_row_find(&ended, c->items[i].id);

        if (r && c->items[i].result == EXTEND_NOT_FOUND && !is_live(r->status))
            judge_beat(c, &c->items[i], r, now);
    }
    if (!rc)
        rc = write_beats(db, &live, err);
    buf_fini(&live.rows);
    buf_fini(&ended.rows);
    return rc;
}
