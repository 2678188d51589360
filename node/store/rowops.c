/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/rowops.h"

#include <stdlib.h>
#include <string.h>

#include "node/store/judge.h"
#include "node/store/setops.h"
#include "node/store/task_row.h"

/* ---- Submission --------------------------------------------------------------------------- */

static int insert_row(struct sql *db, struct submit_slot *slot, struct err *err)
{
    static const char text[] =
        "INSERT INTO job_delay_task (id, trace_id, biz_uuid, service_name, handler, shard, lane, "
        "priority, status, execute_time, next_attempt_time, max_retry, policy, timeout_ms, "
        "payload_json, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'PENDING', ?, ?, "
        "?, ?, ?, ?, ?, ?) {or nothing biz_uuid}";
    const struct task *t = slot->item->task;
    struct sql_value timeout = sql_int(t->timeout_ms);
    int64_t changed = 0;
    int rc;

    timeout.null = t->timeout_ms == 0;
    rc = sql_run(db,
                 &(struct sql_query){
                     .text = text,
                     SQL_PARAMS(sql_int(t->id), sql_textz(t->trace_id), sql_text(t->biz_uuid),
                                sql_text(t->service_name), sql_text(t->handler), sql_int(t->shard),
                                sql_int(t->lane), sql_int(t->priority), sql_time(t->execute_time),
                                sql_time(t->next_attempt_time), sql_int(t->max_retry),
                                sql_text(t->policy), timeout, sql_text(t->payload),
                                sql_time(t->created_at), sql_time(t->updated_at)),
                     .ret_changed = &changed},
                 err);
    slot->inserted = changed != 0;
    return rc;
}

static int give_rows(struct sql *db, struct submit_run *run, const char *text, sql_row_fn *on_row,
                     struct err *err)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < run->n_open; i++)
        rc = sql_run(
            db,
            &(struct sql_query){.text = text,
                                SQL_PARAMS(sql_text(run->slots[run->open[i]].item->task->biz_uuid)),
                                .on_row = on_row,
                                .ctx = run},
            err);
    return rc;
}

static int insert_rows(struct sql *db, struct submit_run *run, bool first, struct err *err)
{
    static const char history[] =
        "SELECT " HISTORY_COLUMNS " FROM job_delay_task_history WHERE biz_uuid = ?";
    static const char services[] =
        "SELECT name, lanes, shards_seen FROM job_service WHERE name = ?";
    int rc = 0;

    for (size_t i = 0; !rc && i < run->n_open; i++)
        rc = insert_row(db, &run->slots[run->open[i]], err);
    if (!rc)
        rc = give_rows(db, run, history, submit_on_history, err);
    for (size_t i = 0; !rc && first && i < run->n_services; i++)
        rc = sql_run(db,
                     &(struct sql_query){.text = services,
                                         SQL_PARAMS(sql_text(run->services[i].name)),
                                         .on_row = submit_on_service,
                                         .ctx = run},
                     err);
    return rc;
}

static int find_rows(struct sql *db, struct submit_run *run, struct err *err)
{
    static const char live[] = "SELECT " LIVE_COLUMNS " FROM job_delay_task WHERE biz_uuid = ?";

    return give_rows(db, run, live, submit_on_live, err);
}

const struct submit_ops row_submit_ops = {.insert = insert_rows, .find = find_rows};

/* ---- Claim -------------------------------------------------------------------------------- */

int row_find_live(struct sql *db, int64_t id, struct task **ret, struct err *err)
{
    static const char text[] =
        "SELECT " LIVE_COLUMNS " FROM job_delay_task WHERE id = ? {for update}";

    task_free(*ret);
    *ret = NULL;
    return sql_run(db,
                   &(struct sql_query){
                       .text = text, SQL_PARAMS(sql_int(id)), .on_row = task_keep_row, .ctx = ret},
                   err);
}

static int claim_read(struct sql *db, struct claim_item *item, struct str claimed_by,
                      struct err *err)
{
    static const char text[] = "SELECT " LIVE_COLUMNS " FROM job_delay_task WHERE id = ?";
    struct task *live = NULL;
    int rc = sql_run(
        db,
        &(struct sql_query){
            .text = text, SQL_PARAMS(sql_int(item->id)), .on_row = task_keep_row, .ctx = &live},
        err);

    if (rc)
        return rc;
    judge_claim_miss(item, live, claimed_by);
    if (item->result == CLAIM_WON)
        item->task = live;
    else
        task_free(live);
    return 0;
}

/* Then reads the row: RETURNING would cost SQLite a table of its own for each. */
static int claim_one(struct sql *db, struct claim_item *item, struct str claimed_by, wall_ms now,
                     int64_t margin_ms, struct err *err)
{
    static const char text[] =
        "UPDATE job_delay_task SET status = 'SENDING', attempt = attempt + 1, claimed_by = ?, "
        "claimed_at = ?, deadline_at = ? + coalesce(timeout_ms, ?), updated_at = ? "
        "WHERE id = ? AND attempt = ? AND status IN ('PENDING', 'RETRYING') "
        "AND next_attempt_time <= ?";
    char holder[CLAIM_HOLDER_MAX];
    int rc =
        sql_run(db,
                &(struct sql_query){
                    .text = text,
                    SQL_PARAMS(sql_text(claim_holder(item, claimed_by, holder)), sql_time(now),
                               sql_time(now + margin_ms), sql_int(item->timeout_ms), sql_time(now),
                               sql_int(item->id), sql_int(item->attempt), sql_time(now))},
                err);

    item->task = NULL;
    return rc ? rc : claim_read(db, item, claimed_by, err);
}

int row_claim(struct sql *db, struct claim_item **items, size_t n, struct str claimed_by,
              int64_t margin_ms, struct err *err)
{
    wall_ms now = WALL_NONE;
    size_t done = 0;
    int rc = db->d->begin(db, err);

    if (!rc)
        rc = sql_now(db, &now, err);
    for (; !rc && done < n; done++)
        rc = claim_one(db, items[done], claimed_by, now, margin_ms, err);
    rc = sql_end(db, rc, err);
    for (size_t i = 0; rc && i < done; i++) {
        task_free(items[i]->task);
        items[i]->task = NULL;
    }
    return rc;
}

/* ---- The end of an attempt ---------------------------------------------------------------- */

static int on_brief(void *ctx, const struct sql_value *row)
{
    return task_from_brief(row, ctx);
}

static int insert_attempt(struct sql *db, const struct finish_item *f, wall_ms started, wall_ms now,
                          struct err *err)
{
    static const char text[] =
        "INSERT INTO job_attempt (task_id, attempt, started_at, ended_at, http_status, outcome, "
        "error, node) VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    struct sql_value http = sql_int(f->http_status);

    http.null = f->http_status == 0;
    return sql_run(
        db,
        &(struct sql_query){.text = text,
                            SQL_PARAMS(sql_int(f->id), sql_int(f->attempt), sql_time(started),
                                       sql_time(now), http, sql_textz(f->outcome),
                                       sql_text(f->error), sql_text(f->node))},
        err);
}

static int insert_alert(struct sql *db, const struct finish_item *f, wall_ms now, struct err *err)
{
    static const char text[] =
        "INSERT INTO job_alert (task_id, attempt, next_try) VALUES (?, ?, ?)";

    return sql_run(
        db,
        &(struct sql_query){.text = text,
                            SQL_PARAMS(sql_int(f->id), sql_int(f->attempt), sql_time(now))},
        err);
}

int row_finish_miss(struct sql *db, struct finish_item *f, struct err *err)
{
    struct task *t = NULL;
    int rc = task_find(db, (struct str){0}, f->id, &t, err);

    if (!rc)
        f->result = t && judge_is_finished(f, t) ? FINISH_DONE : FINISH_LOST;
    task_free(t);
    return rc;
}

/* The condition is judge_can_finish's. */
static int finish_success(struct sql *db, struct finish_item *f, wall_ms now, struct err *err)
{
    static const char insert[] = INSERT_HISTORY(
        "'SUCCESS'", "retry_count", "failed_at", "NULL", "?", "{now}",
        "job_delay_task WHERE id = ? AND attempt = ? AND "
        "(CASE status WHEN 'SENDING' THEN 2 WHEN 'SENT' THEN 4 ELSE 0 END & ?) <> 0 AND "
        "(? = 0 OR deadline_at <= ?)");
    struct sql_value http = sql_int(f->http_status);
    int64_t changed = 0;
    int rc;

    _Static_assert(1 << TASK_SENDING == 2 && 1 << TASK_SENT == 4, "the statement says so");
    http.null = f->http_status == 0;
    rc = sql_run(
        db,
        &(struct sql_query){.text = insert,
                            SQL_PARAMS(http, sql_int(f->id), sql_int(f->attempt), sql_int(f->from),
                                       sql_bool(f->past_deadline), sql_time(now)),
                            .ret_changed = &changed},
        err);
    if (rc)
        return rc;
    if (!changed)
        return row_finish_miss(db, f, err);
    f->result = FINISH_DONE;
    return sql_run(db,
                   &(struct sql_query){.text = "DELETE FROM job_delay_task WHERE id = ?",
                                       SQL_PARAMS(sql_int(f->id))},
                   err);
}

/* Everything but SUCCESS stays in the live table. -1 and NULL leave a column as it is. */
static int finish_update(struct sql *db, const struct finish_item *f, const struct task *live,
                         wall_ms now, struct err *err)
{
    static const char text[] =
        "UPDATE job_delay_task SET status = ?, next_attempt_time = ?, deadline_at = ?, "
        "retry_count = CASE WHEN ? < 0 THEN retry_count ELSE ? END, "
        "lane = CASE WHEN ? < 0 THEN lane ELSE ? END, "
        "claimed_by = CASE WHEN ? = 1 THEN claimed_by ELSE NULL END, "
        "claimed_at = CASE WHEN ? = 1 THEN claimed_at ELSE NULL END, "
        "failed_at = ?, "
        "last_error = coalesce(?, last_error), last_http_status = coalesce(?, last_http_status), "
        "snooze_count = snooze_count + ?, updated_at = ? WHERE id = ?";
    struct sql_value http = sql_int(f->http_status);
    struct sql_value error = sql_text(f->error);
    struct finish_write w;
    int rc;

    judge_finish_write(f, &w);
    http.null = f->http_status == 0;
    error.null |= f->error.len == 0;
    rc = sql_run(
        db,
        &(struct sql_query){
            .text = text,
            SQL_PARAMS(sql_textz(task_status_name(w.status)), sql_time(w.next_attempt_time),
                       sql_time(w.deadline_at), sql_int(w.retry_count), sql_int(w.retry_count),
                       sql_int(w.lane), sql_int(w.lane), sql_bool(w.keeps_claim),
                       sql_bool(w.keeps_claim), sql_time(w.failed ? now : WALL_NONE), error, http,
                       sql_bool(f->snoozed), sql_time(now), sql_int(f->id))},
        err);
    if (!rc && w.adds_attempt)
        rc = insert_attempt(db, f, live->claimed_at, now, err);
    if (!rc && w.adds_alert)
        rc = insert_alert(db, f, now, err);
    return rc;
}

static int finish_other(struct sql *db, struct finish_item *f, wall_ms now, struct err *err)
{
    static const char brief[] = "SELECT " BRIEF_COLUMNS " "
                                "FROM job_delay_task WHERE id = ? {for update}";
    struct task live = task_empty();
    int rc =
        sql_run(db,
                &(struct sql_query){
                    .text = brief, SQL_PARAMS(sql_int(f->id)), .on_row = on_brief, .ctx = &live},
                err);

    if (rc)
        return rc;
    if (!live.id || !judge_can_finish(f, &live, now))
        return row_finish_miss(db, f, err);
    f->result = FINISH_DONE;
    return finish_update(db, f, &live, now, err);
}

int row_finish(struct sql *db, struct finish_item **items, size_t n, struct err *err)
{
    wall_ms now = WALL_NONE;
    int rc = db->d->begin(db, err);

    if (!rc)
        rc = sql_now(db, &now, err);
    for (size_t i = 0; !rc && i < n; i++)
        rc = (items[i]->kind == FINISH_SUCCESS ? finish_success : finish_other)(db, items[i], now,
                                                                                err);
    return sql_end(db, rc, err);
}

/* ---- Cancel ------------------------------------------------------------------------------- */

static int cancel_write(struct sql *db, int64_t id, struct err *err)
{
    static const char insert[] =
        INSERT_HISTORY("'CANCELLED'", "retry_count", "failed_at", "last_error", "last_http_status",
                       "{now}", "job_delay_task WHERE id = ?");
    static const char *const deletes[] = {
        "DELETE FROM job_delay_task WHERE id = ?",
        "DELETE FROM job_alert WHERE task_id = ?",
    };
    int rc = sql_run(db, &(struct sql_query){.text = insert, SQL_PARAMS(sql_int(id))}, err);

    for (size_t i = 0; !rc && i < 2; i++)
        rc = sql_run(db, &(struct sql_query){.text = deletes[i], SQL_PARAMS(sql_int(id))}, err);
    return rc;
}

int row_cancel_one(struct sql *db, struct cancel_op *op, struct err *err)
{
    static const char lock[] =
        "SELECT " LIVE_COLUMNS " FROM job_delay_task WHERE biz_uuid = ? {for update}";
    int rc = sql_run(db,
                     &(struct sql_query){.text = lock,
                                         SQL_PARAMS(sql_text(op->biz_uuid)),
                                         .on_row = task_keep_row,
                                         .ctx = &op->task},
                     err);

    if (rc)
        return rc;
    if (op->task && judge_cancel(op->task) == CANCEL_DONE) {
        int64_t id = op->task->id;

        op->result = CANCEL_DONE;
        rc = cancel_write(db, id, err);
        return rc ? rc : task_find(db, (struct str){0}, id, &op->task, err);
    }
    if (!op->task)
        rc = task_find(db, op->biz_uuid, 0, &op->task, err);
    if (rc)
        return rc;
    op->result = op->task ? judge_cancel(op->task) : CANCEL_NOT_FOUND;
    /* It came back to the live table between the two statements: run it again. */
    return op->result == CANCEL_DONE ? err_set(err, ERR_BUSY, "the task is moving") : 0;
}

int row_cancel(struct sql *db, struct cancel_op **items, size_t n, struct err *err)
{
    int rc = db->d->begin(db, err);

    for (size_t i = 0; i < n; i++)
        items[i]->task = NULL;
    for (size_t i = 0; !rc && i < n; i++)
        rc = row_cancel_one(db, items[i], err);
    rc = sql_end(db, rc, err);
    for (size_t i = 0; rc && i < n; i++) {
        task_free(items[i]->task);
        items[i]->task = NULL;
    }
    return rc;
}

/* ---- Scan --------------------------------------------------------------------------------- */

/* "<node>/" of "<node>/<epoch>" is the same, the epoch is not. */
static bool is_own_orphan(struct str row, struct str mine)
{
    const char *slash = mine.p ? memrchr(mine.p, '/', mine.len) : NULL;
    size_t prefix = slash ? (size_t)(slash - mine.p) + 1 : 0;

    return prefix && row.len > prefix && memcmp(row.p, mine.p, prefix) == 0 &&
           !memchr(row.p + prefix, '/', row.len - prefix) && !str_eq(row, mine);
}

int scan_add(struct scan_rows *s, const struct sql_value *row)
{
    struct scan_row r = {
        .key = s->key,
        .id = row[0].i,
        .next_attempt_time = sql_wall(&row[1]),
        .attempt = (int32_t)row[3].i,
        .deadline_at = sql_wall(&row[4]),
        .retry_count = (int32_t)row[5].i,
        .max_retry = (int32_t)row[6].i,
        .priority = (int32_t)row[7].i,
    };

    if (!task_status_parse(row[2].s, &r.status) || row[9].s.len > TASK_POLICY_MAX)
        return ERR_CORRUPT;
    if (row[9].s.len)
        memcpy(r.policy, row[9].s.p, row[9].s.len);
    r.own_orphan = r.status == TASK_SENDING && is_own_orphan(row[8].s, s->op->claimed_by);
    buf_add(&s->rows, &r, sizeof(r));
    return buf_ok(&s->rows) ? 0 : ERR_NOMEM;
}

static int on_scan_row(void *ctx, const struct sql_value *row)
{
    return scan_add(ctx, row);
}

int row_scan(struct sql *db, struct scan_op *op, struct err *err)
{
    static const char text[] =
        "SELECT " SCAN_COLUMNS " FROM job_delay_task WHERE service_name = ? AND shard = ? AND "
        "lane = ? AND next_attempt_time >= ? AND (next_attempt_time, id) > (?, ?) AND "
        "next_attempt_time <= ? AND " SCAN_STATUSES " ORDER BY next_attempt_time, id LIMIT ?";
    struct scan_rows s = {.op = op};
    int rc = 0;

    for (size_t i = 0; !rc && i < op->n_keys; i++) {
        const struct scan_key *k = &op->keys[i];
        /* Before all that there is; WALL_NONE would be NULL. */
        struct sql_value from = sql_time(k->from_time == WALL_NONE ? INT64_MIN + 1 : k->from_time);

        s.key = (uint32_t)i;
        rc = sql_run(
            db,
            &(struct sql_query){.text = text,
                                SQL_PARAMS(sql_text(k->service_name), sql_int(k->shard),
                                           sql_int(k->lane), from, from, sql_int(k->from_id),
                                           sql_time(k->to_time), sql_int(k->limit)),
                                .on_row = on_scan_row,
                                .ctx = &s},
            err);
    }
    if (rc) {
        buf_fini(&s.rows);
        return rc;
    }
    op->rows = (struct scan_row *)s.rows.data; /* the buffer's memory is malloc's */
    op->n_rows = s.rows.len / sizeof(struct scan_row);
    return 0;
}
