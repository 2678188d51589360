/* SPDX-License-Identifier: Apache-2.0 */
/* The calls about one task. */
#include "node/store/calls.h"

#include <stddef.h>

#include "node/store/pack.h"
#include "node/store/rowops.h"
#include "node/store/task_row.h"

/* ---- Get ---------------------------------------------------------------------------------- */

static int on_attempt(void *ctx, const struct sql_value *row)
{
    struct pack *p = ctx;
    const struct attempt a = {
        .attempt = (int32_t)row[0].i,
        .started_at = sql_wall(&row[1]),
        .ended_at = sql_wall(&row[2]),
        .http_status = (int32_t)row[3].i,
        .outcome = pack_text(p, row[4].s),
        .error = pack_text(p, row[5].s),
        .node = pack_text(p, row[6].s),
    };

    pack_add(p, &a, sizeof(a));
    return 0;
}

static int read_attempts(struct sql *db, struct call_get *c, struct err *err)
{
    static const char text[] =
        "SELECT attempt, started_at, ended_at, http_status, outcome, error, node "
        "FROM job_attempt WHERE task_id = ? ORDER BY attempt LIMIT 1000";
    static const size_t spans[] = {offsetof(struct attempt, outcome),
                                   offsetof(struct attempt, error), offsetof(struct attempt, node)};
    struct pack p = PACK_INIT;
    int rc = sql_run(
        db,
        &(struct sql_query){
            .text = text, SQL_PARAMS(sql_int(c->task->id)), .on_row = on_attempt, .ctx = &p},
        err);

    if (!rc) {
        c->n_attempts = p.rows.len / sizeof(struct attempt);
        c->attempts = pack_end(&p, sizeof(struct attempt), spans, 3);
        if (!c->attempts)
            rc = err_set(err, ERR_NOMEM, "no memory for the attempts");
    }
    pack_fini(&p);
    return rc;
}

int call_get(struct sql *db, struct call_get *c, struct err *err)
{
    int rc;

    c->task = NULL;
    c->attempts = NULL;
    c->n_attempts = 0;
    rc = task_find(db, c->biz_uuid, c->id, &c->task, err);
    if (!rc && !c->task)
        return ERR_NOT_FOUND;
    if (!rc && c->with_attempts)
        rc = read_attempts(db, c, err);
    if (rc) {
        task_free(c->task);
        c->task = NULL;
    }
    return rc;
}

/* ---- Move, run, extend -------------------------------------------------------------------- */

/* Locks the live row of a key. Without one *ret is the history row: ERR_CONFLICT, or ERR_NOT_FOUND.
 */
static int lock_by_key(struct sql *db, struct str biz_uuid, struct task **ret, struct err *err)
{
    static const char text[] =
        "SELECT " LIVE_COLUMNS " FROM job_delay_task WHERE biz_uuid = ? {for update}";
    int rc;

    *ret = NULL;
    rc = sql_run(
        db,
        &(struct sql_query){
            .text = text, SQL_PARAMS(sql_text(biz_uuid)), .on_row = task_keep_row, .ctx = ret},
        err);
    if (rc || *ret)
        return rc;
    rc = task_find(db, biz_uuid, 0, ret, err);
    if (rc)
        return rc;
    return *ret ? ERR_CONFLICT : ERR_NOT_FOUND;
}

int call_move(struct sql *db, struct call_move *c, struct err *err)
{
    static const char text[] =
        "UPDATE job_delay_task SET execute_time = coalesce(?, execute_time), "
        "next_attempt_time = coalesce(?, next_attempt_time), "
        "payload_json = CASE WHEN ? = 1 THEN ? ELSE payload_json END, updated_at = {now} "
        "WHERE id = ?";
    int rc = lock_by_key(db, c->biz_uuid, &c->task, err);

    if (rc)
        return rc;
    if (!task_is_in(c->task, TASK_WAITING))
        return ERR_CONFLICT;
    rc = sql_run(db,
                 &(struct sql_query){.text = text,
                                     SQL_PARAMS(sql_time(c->execute_time),
                                                sql_time(c->execute_time), sql_bool(c->set_payload),
                                                sql_text(c->payload), sql_int(c->task->id))},
                 err);
    return rc ? rc : row_find_live(db, c->task->id, &c->task, err);
}

static int audit(struct sql *db, const struct call_run *c, struct err *err)
{
    static const char text[] =
        "INSERT INTO job_audit (at, actor, action, task_id, trace_id, biz_uuid, from_status) "
        "VALUES ({now}, ?, 'run', ?, ?, ?, ?)";
    const struct task *t = c->task;

    return sql_run(db,
                   &(struct sql_query){.text = text,
                                       SQL_PARAMS(sql_text(c->actor), sql_int(t->id),
                                                  sql_textz(t->trace_id), sql_text(t->biz_uuid),
                                                  sql_textz(task_status_name(t->status)))},
                   err);
}

int call_run(struct sql *db, struct call_run *c, struct err *err)
{
    /* A task that waits for its time is brought forward whole: its time is now. */
    static const char now[] =
        "UPDATE job_delay_task SET next_attempt_time = {now}, "
        "execute_time = CASE WHEN execute_time > {now} THEN {now} ELSE execute_time END, "
        "updated_at = {now} WHERE id = ?";
    static const char again[] =
        "UPDATE job_delay_task SET status = 'PENDING', retry_count = 0, "
        "snooze_count = 0, lane = ?, "
        "next_attempt_time = {now}, failed_at = NULL, deadline_at = NULL, updated_at = {now} "
        "WHERE id = ?";
    static const char told[] = "DELETE FROM job_alert WHERE task_id = ?";
    int rc = lock_by_key(db, c->biz_uuid, &c->task, err);

    if (rc)
        return rc;
    if (task_is_in(c->task, TASK_IN_FLIGHT))
        return ERR_CONFLICT;
    int64_t id = c->task->id;
    rc = audit(db, c, err);
    if (!rc && task_is_in(c->task, TASK_WAITING)) {
        rc = sql_run(db, &(struct sql_query){.text = now, SQL_PARAMS(sql_int(id))}, err);
    } else if (!rc) {
        int32_t lane = task_lane(c->task->priority, false);

        rc = sql_run(db, &(struct sql_query){.text = again, SQL_PARAMS(sql_int(lane), sql_int(id))},
                     err);
        if (!rc)
            rc = sql_run(db, &(struct sql_query){.text = told, SQL_PARAMS(sql_int(id))}, err);
    }
    return rc ? rc : row_find_live(db, id, &c->task, err);
}

static int on_timeout(void *ctx, const struct sql_value *row)
{
    if (row[0].i > 0)
        *(int64_t *)ctx = row[0].i;
    return 0;
}

/* By how much: as the claim reckoned it, unless the heartbeat says. */
static int extension(struct sql *db, const struct call_extend *c, int64_t *ret_ms, struct err *err)
{
    int64_t timeout_ms = c->task->timeout_ms;
    int rc = 0;

    if (c->extend_ms) {
        *ret_ms = c->extend_ms;
        return 0;
    }
    if (!timeout_ms) {
        timeout_ms = c->default_timeout_ms;
        rc =
            sql_run(db,
                    &(struct sql_query){.text = "SELECT timeout_ms FROM job_service WHERE name = ?",
                                        SQL_PARAMS(sql_text(c->task->service_name)),
                                        .on_row = on_timeout,
                                        .ctx = &timeout_ms},
                    err);
    }
    *ret_ms = timeout_ms + c->margin_ms;
    return rc;
}

int call_extend(struct sql *db, struct call_extend *c, struct err *err)
{
    static const char text[] =
        "UPDATE job_delay_task SET deadline_at = ?, next_attempt_time = CASE WHEN status = 'SENT' "
        "THEN ? ELSE next_attempt_time END, updated_at = {now} WHERE id = ?";
    int64_t length;
    wall_ms now;
    int rc;

    c->task = NULL;
    rc = row_find_live(db, c->id, &c->task, err);
    if (!rc && !c->task) {
        rc = task_find(db, (struct str){0}, c->id, &c->task, err);
        return rc ? rc : c->task ? ERR_CONFLICT : ERR_NOT_FOUND;
    }
    if (!rc)
        rc = sql_now(db, &now, err);
    if (rc)
        return rc;
    if (c->task->attempt != c->attempt || !task_is_in(c->task, TASK_IN_FLIGHT) ||
        c->task->deadline_at <= now)
        return ERR_CONFLICT;
    rc = extension(db, c, &length, err);
    if (rc)
        return rc;
    c->deadline_at = now + length;
    if (c->deadline_at < c->task->deadline_at)
        c->deadline_at = c->task->deadline_at;
    return sql_run(db,
                   &(struct sql_query){.text = text,
                                       SQL_PARAMS(sql_time(c->deadline_at),
                                                  sql_time(c->deadline_at), sql_int(c->id))},
                   err);
}
