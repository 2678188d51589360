/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of attempts and cancels, set-wise: the rows are locked in id order and judged, and then
 * written together, by their ids. What the lock did not find goes row by row. */
#include "node/store/mysql_packet.h"

#include <stdlib.h>

#include "node/store/judge.h"
#include "node/store/rowops.h"
#include "node/store/setops.h"
#include "node/store/task_row.h"

#define DELETE_BY_ID "DELETE t FROM job_delay_task AS t" BY_ID " WHERE "

struct ends {
    struct finish_item **items; /* by id */
    struct task *live;          /* of each: what the lock found; id 0 = no such row */
    bool *mine;                 /* it is the attempt that the item ends */
    size_t n;
    wall_ms now;
};

/* ---- Locking ------------------------------------------------------------------------------ */

static int compare_end(const void *key, const void *element)
{
    int64_t id = *(const int64_t *)key;
    int64_t other = (*(struct finish_item *const *)element)->id;

    return (id > other) - (id < other);
}

static int on_locked(void *ctx, const struct sql_value *row)
{
    struct ends *e = ctx;
    struct finish_item **found = bsearch(&row[0].i, e->items, e->n, sizeof(*e->items), compare_end);
    struct task *t = found ? &e->live[found - e->items] : NULL;

    return t ? task_from_brief(row, t) : ERR_CORRUPT;
}

static int lock_rows(struct sql *db, struct ends *e, struct err *err)
{
    struct my_ids ids = {0};
    struct my_packet p;
    int rc;

    for (size_t i = 0; i < e->n; i++)
        my_ids_add(&ids, e->items[i]->id, 0);
    my_packet_start(&p, db);
    my_statement(&p, on_locked, e, NULL);
    my_put(&p, "SELECT id, status, attempt, deadline_at, claimed_at FROM job_delay_task" BY_ID
               " WHERE ");
    my_put_ids(&p, "id", &ids);
    my_put(&p, " ORDER BY id FOR UPDATE");
    my_statement(&p, sql_on_int, &e->now, NULL);
    my_put(&p, "SELECT {now}");
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    my_ids_fini(&ids);
    return rc;
}

/* Those that are not mine may be what an earlier run of the same write has left. */
static int judge_rows(struct sql *db, struct ends *e, struct err *err)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < e->n; i++) {
        e->mine[i] = e->live[i].id && judge_can_finish(e->items[i], &e->live[i], e->now);
        if (e->mine[i])
            e->items[i]->result = FINISH_DONE;
        else
            rc = row_finish_miss(db, e->items[i], err);
    }
    return rc;
}

/* ---- Writing ------------------------------------------------------------------------------ */

/* Successes go to history together, by their HTTP status, which is the same as a rule. */
static void put_history(struct my_packet *p, struct my_ids *ids)
{
    static const char insert[] = INSERT_HISTORY("'SUCCESS'", "retry_count", "failed_at", "NULL",
                                                "?", "{now}", "job_delay_task" BY_ID " WHERE ");
    const int64_t *values = (const int64_t *)ids->values.data;
    const int64_t *all = (const int64_t *)ids->ids.data;

    for (size_t i = 0; i < ids->n; i++) {
        struct sql_value http = sql_int(values[i]);
        struct my_ids same = {0};
        size_t first = 0;

        while (values[first] != values[i])
            first++;
        if (first < i)
            continue;
        http.null = values[i] == 0;
        for (size_t k = i; k < ids->n; k++) {
            if (values[k] == values[i])
                my_ids_add(&same, all[k], 0);
        }
        my_statement(p, NULL, NULL, NULL);
        my_put_query(p, insert, &http, 1);
        my_put_ids(p, "id", &same);
        my_ids_fini(&same);
    }
}

static void put_successes(struct my_packet *p, const struct ends *e)
{
    struct my_ids ids = {0};

    for (size_t i = 0; i < e->n; i++) {
        if (e->mine[i] && e->items[i]->kind == FINISH_SUCCESS)
            my_ids_add(&ids, e->items[i]->id, e->items[i]->http_status);
    }
    if (!buf_ok(&ids.ids) || !buf_ok(&ids.values)) {
        p->text.failed = true;
    } else if (ids.n) {
        put_history(p, &ids);
        my_statement(p, NULL, NULL, NULL);
        my_put(p, DELETE_BY_ID);
        my_put_ids(p, "t.id", &ids);
    }
    my_ids_fini(&ids);
}

/* The row stays in the live table: what the end changes of it. */
static void put_update(struct my_packet *p, const struct finish_item *f,
                       const struct finish_write *w, wall_ms now)
{
    const struct sql_value always[] = {
        sql_textz(task_status_name(w->status)),
        sql_time(w->next_attempt_time),
        sql_time(w->deadline_at),
        sql_time(w->failed ? now : WALL_NONE),
        sql_bool(f->snoozed),
        sql_time(now),
    };
    const struct sql_value retry = sql_int(w->retry_count);
    const struct sql_value lane = sql_int(w->lane);
    const struct sql_value error = sql_text(f->error);
    const struct sql_value http = sql_int(f->http_status);
    const struct sql_value id = sql_int(f->id);

    my_statement(p, NULL, NULL, NULL);
    my_put_query(p,
                 "UPDATE job_delay_task SET status = ?, next_attempt_time = ?, deadline_at = ?, "
                 "failed_at = ?, snooze_count = snooze_count + ?, updated_at = ?",
                 always, 6);
    if (w->retry_count >= 0)
        my_put_query(p, ", retry_count = ?", &retry, 1);
    if (w->lane >= 0)
        my_put_query(p, ", lane = ?", &lane, 1);
    if (!w->keeps_claim)
        my_put(p, ", claimed_by = NULL, claimed_at = NULL");
    if (f->error.len)
        my_put_query(p, ", last_error = ?", &error, 1);
    if (f->http_status)
        my_put_query(p, ", last_http_status = ?", &http, 1);
    my_put_query(p, " WHERE id = ?", &id, 1);
}

static void put_attempt(struct my_packet *p, const struct finish_item *f, wall_ms started,
                        wall_ms now)
{
    struct sql_value http = sql_int(f->http_status);

    http.null = f->http_status == 0;
    my_put_row(p,
               (const struct sql_value[]){sql_int(f->id), sql_int(f->attempt), sql_time(started),
                                          sql_time(now), http, sql_textz(f->outcome),
                                          sql_text(f->error), sql_text(f->node)},
               8);
}

static void put_alert(struct my_packet *p, const struct finish_item *f, wall_ms now)
{
    my_put_row(p, (const struct sql_value[]){sql_int(f->id), sql_int(f->attempt), sql_time(now)},
               3);
}

/* The rows of job_attempt, or of job_alert, as one statement. */
static void put_notes(struct my_packet *p, const struct ends *e, bool alerts)
{
    static const char attempt[] =
        "INSERT INTO job_attempt (task_id, attempt, started_at, ended_at, http_status, outcome, "
        "error, node) VALUES ";
    static const char alert[] = "INSERT INTO job_alert (task_id, attempt, next_try) VALUES ";
    bool any = false;

    for (size_t i = 0; i < e->n; i++) {
        const struct finish_item *f = e->items[i];
        struct finish_write w;

        if (!e->mine[i] || f->kind == FINISH_SUCCESS)
            continue;
        judge_finish_write(f, &w);
        if (!(alerts ? w.adds_alert : w.adds_attempt))
            continue;
        if (any)
            my_put(p, ",");
        else
            my_statement(p, NULL, NULL, NULL);
        if (!any)
            my_put(p, alerts ? alert : attempt);
        any = true;
        if (alerts)
            put_alert(p, f, e->now);
        else
            put_attempt(p, f, e->live[i].claimed_at, e->now);
    }
}

static int write_rows(struct sql *db, const struct ends *e, struct err *err)
{
    struct my_packet p;
    int rc;

    my_packet_start(&p, db);
    put_successes(&p, e);
    for (size_t i = 0; i < e->n; i++) {
        struct finish_write w;

        if (!e->mine[i] || e->items[i]->kind == FINISH_SUCCESS)
            continue;
        judge_finish_write(e->items[i], &w);
        put_update(&p, e->items[i], &w, e->now);
    }
    put_notes(&p, e, false);
    put_notes(&p, e, true);
    my_put_commit(&p);
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    return rc;
}

int my_finish(struct sql *db, struct finish_item **items, size_t n, struct err *err)
{
    struct ends e = {.items = items,
                     .live = calloc(n, sizeof(struct task)),
                     .mine = calloc(n, sizeof(bool)),
                     .n = n};
    int rc = 0;

    if (n && (!e.live || !e.mine))
        rc = err_set(err, ERR_NOMEM, "no memory for a batch");
    if (!rc && n) {
        rc = db->d->begin(db, err);
        if (!rc)
            rc = lock_rows(db, &e, err);
        if (!rc)
            rc = judge_rows(db, &e, err);
        if (!rc)
            rc = write_rows(db, &e, err);
        rc = sql_end(db, rc, err);
    }
    free(e.live);
    free(e.mine);
    return rc;
}

/* ---- Cancels ------------------------------------------------------------------------------ */

struct cancels {
    struct cancel_set set;
    struct my_ids ids;
};

static int on_found(void *ctx, const struct sql_value *row)
{
    my_ids_add(ctx, row[0].i, 0);
    return 0;
}

/* Which rows, without a lock: they are locked in id order, as by all that locks several. */
static int find_rows(struct sql *db, struct cancels *c, struct err *err)
{
    struct my_packet p;
    int rc;

    my_packet_start(&p, db);
    my_statement(&p, on_found, &c->ids, NULL);
    my_put(&p, "SELECT id FROM job_delay_task" BY_KEY " WHERE biz_uuid IN ");
    for (size_t i = 0; i < c->set.n; i++) {
        my_put(&p, i ? "," : "(");
        my_put_text(&p, c->set.items[i]->biz_uuid);
    }
    my_put(&p, ") ORDER BY id");
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    return rc;
}

static int lock_live(struct sql *db, struct cancels *c, struct err *err)
{
    struct my_packet p;
    int rc;

    my_packet_start(&p, db);
    my_statement(&p, cancel_set_on_live, &c->set, NULL);
    my_put(&p, "SELECT " LIVE_COLUMNS " FROM job_delay_task" BY_ID " WHERE ");
    my_put_ids(&p, "id", &c->ids);
    my_put(&p, " ORDER BY id FOR UPDATE");
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    return rc;
}

static int write_cancels(struct sql *db, struct cancels *c, const struct my_ids *ids,
                         struct err *err)
{
    static const struct {
        const char *before;
        const char *column;
    } texts[] = {
        {INSERT_HISTORY("'CANCELLED'", "retry_count", "failed_at", "last_error", "last_http_status",
                        "{now}", "job_delay_task" BY_ID " WHERE "),
         "id"},
        {DELETE_BY_ID, "t.id"},
        {"DELETE FROM job_alert WHERE ", "task_id"},
        {"SELECT biz_uuid, updated_at, finished_at FROM job_delay_task_history" BY_ID " WHERE ",
         "id"},
    };
    struct my_packet p;
    int rc;

    my_packet_start(&p, db);
    for (size_t i = 0; i < 4; i++) {
        my_statement(&p, i == 3 ? cancel_set_on_cancelled : NULL, &c->set, NULL);
        my_put(&p, texts[i].before);
        my_put_ids(&p, texts[i].column, ids);
    }
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    return rc;
}

static int cancel_set(struct sql *db, struct cancels *c, struct err *err)
{
    struct my_ids ids = {0};
    int rc = find_rows(db, c, err);

    if (!rc && c->ids.n)
        rc = lock_live(db, c, err);
    for (size_t i = 0; !rc && i < c->set.n; i++) {
        struct cancel_op *op = c->set.items[i];

        if (!op->task) {
            rc = row_cancel_one(db, op, err);
            continue;
        }
        op->result = judge_cancel(op->task);
        if (op->result == CANCEL_DONE)
            my_ids_add(&ids, op->task->id, 0);
    }
    if (!rc && ids.n)
        rc = write_cancels(db, c, &ids, err);
    my_ids_fini(&ids);
    return rc;
}

int my_cancel(struct sql *db, struct cancel_op **items, size_t n, struct err *err)
{
    struct cancels c = {.set = {items, n}};
    int rc;

    if (!n)
        return 0;
    rc = cancel_set_begin(&c.set, db, err);
    if (!rc)
        rc = cancel_set(db, &c, err);
    my_ids_fini(&c.ids);
    return cancel_set_end(&c.set, db, rc, err);
}
