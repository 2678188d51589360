/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of the node itself: its row, the alerts' outbox, retention, the clock. */
#include "node/store/calls.h"

#include <inttypes.h>
#include <stdlib.h>

#include "node/core/nodecall.h"
#include "node/store/seen.h"
#include "node/store/task_row.h"

/* ---- Node --------------------------------------------------------------------------------- */

static int on_node(void *ctx, const struct sql_value *row)
{
    struct call_node_start *c = ctx;

    c->epoch = row[0].i;
    c->last_seen = sql_wall(&row[1]);
    return 0;
}

static int on_name(void *ctx, const struct sql_value *row)
{
    (void)member_set_text(ctx, MEMBER_NAME_MAX + 1, row[0].s);
    return 0;
}

/* By its key alone, and only if it is still silent: others may delete or renew it meanwhile. */
static int forget_silent(struct sql *db, const struct call_node_start *c, struct err *err)
{
    static const char find[] =
        "SELECT name FROM job_node WHERE heartbeat_at < ? ORDER BY heartbeat_at LIMIT 1";
    static const char forget[] = "DELETE FROM job_node WHERE name = ? AND heartbeat_at < ?";
    char name[MEMBER_NAME_MAX + 1] = "";
    wall_ms now;
    int rc = sql_now(db, &now, err);

    if (!rc)
        rc = sql_run(db,
                     &(struct sql_query){.text = find,
                                         SQL_PARAMS(sql_time(now - c->forget_ms)),
                                         .on_row = on_name,
                                         .ctx = name},
                     err);
    if (rc || !*name)
        return rc;
    return sql_run(db,
                   &(struct sql_query){.text = forget,
                                       SQL_PARAMS(sql_textz(name), sql_time(now - c->forget_ms))},
                   err);
}

int call_node_start(struct sql *db, struct call_node_start *c, struct err *err)
{
    static const char insert[] =
        "INSERT INTO job_node (name, epoch, address, version, hash_version, state, started_at, "
        "heartbeat_at) VALUES (?, 0, ?, ?, ?, 'joining', {now}, {now}) {or nothing name}";
    static const char update[] =
        "UPDATE job_node SET epoch = ?, address = ?, version = ?, hash_version = ?, "
        "state = 'joining', started_at = {now}, heartbeat_at = {now} WHERE name = ?";
    int64_t created = 0;
    int rc = sql_run(db,
                     &(struct sql_query){.text = insert,
                                         SQL_PARAMS(sql_text(c->name), sql_text(c->address),
                                                    sql_text(c->version), sql_int(c->hash_version)),
                                         .ret_changed = &created},
                     err);

    if (!rc)
        rc = sql_run(db,
                     &(struct sql_query){.text = "SELECT epoch, heartbeat_at FROM job_node "
                                                 "WHERE name = ? {for update}",
                                         SQL_PARAMS(sql_text(c->name)),
                                         .on_row = on_node,
                                         .ctx = c},
                     err);
    if (rc)
        return rc;
    c->epoch++;
    if (created)
        c->last_seen = WALL_NONE;
    rc = sql_run(db,
                 &(struct sql_query){.text = update,
                                     SQL_PARAMS(sql_int(c->epoch), sql_text(c->address),
                                                sql_text(c->version), sql_int(c->hash_version),
                                                sql_text(c->name))},
                 err);
    if (!rc)
        rc = seen_rules(db, c->rules, c->n_rules, err);
    return rc || !c->forget_ms ? rc : forget_silent(db, c, err);
}

static int on_member(void *ctx, const struct sql_value *row)
{
    struct call_node_beat *c = ctx;
    struct member *members = realloc(c->members, (c->n + 1) * sizeof(*members));
    struct member *m;

    if (!members)
        return ERR_NOMEM;
    c->members = members;
    m = &members[c->n++];
    *m = (struct member){
        .epoch = row[3].i, .hash_version = (int32_t)row[5].i, .started_at = sql_wall(&row[6])};
    if (!member_set_text(m->name, sizeof(m->name), row[0].s) ||
        !member_set_text(m->address, sizeof(m->address), row[1].s) ||
        !member_set_text(m->version, sizeof(m->version), row[2].s) ||
        !member_state_parse(row[4].s, &m->state))
        c->n--; /* not written by a node */
    return 0;
}

static int read_members(struct sql *db, struct call_node_beat *c, struct err *err)
{
    static const char text[] =
        "SELECT name, address, version, epoch, state, hash_version, started_at FROM job_node "
        "WHERE heartbeat_at > ?";
    wall_ms now;
    int rc = sql_now(db, &now, err);

    free(c->members); /* of a try before */
    c->members = NULL;
    c->n = 0;
    if (!rc)
        rc = sql_run(
            db,
            &(struct sql_query){
                .text = text, SQL_PARAMS(sql_time(now - c->ttl_ms)), .on_row = on_member, .ctx = c},
            err);
    return rc;
}

/* MySQL counts rows that were changed only: a heartbeat within the millisecond of the last one
 * changes nothing. */
static int check_epoch(struct sql *db, const struct call_node_beat *c, struct err *err)
{
    int64_t epoch = -1;
    int rc = sql_run(db,
                     &(struct sql_query){.text = "SELECT epoch FROM job_node WHERE name = ?",
                                         SQL_PARAMS(sql_text(c->name)),
                                         .on_row = sql_on_int,
                                         .ctx = &epoch},
                     err);

    return rc || epoch == c->epoch ? rc : ERR_CONFLICT;
}

int call_node_beat(struct sql *db, struct call_node_beat *c, struct err *err)
{
    int64_t changed = 0;
    int rc = sql_run(db,
                     &(struct sql_query){.text = "UPDATE job_node SET state = ?, heartbeat_at = "
                                                 "{now} WHERE name = ? AND epoch = ?",
                                         SQL_PARAMS(sql_textz(member_state_name(c->state)),
                                                    sql_text(c->name), sql_int(c->epoch)),
                                         .ret_changed = &changed},
                     err);

    if (!rc && !changed)
        rc = check_epoch(db, c, err);
    return rc ? rc : read_members(db, c, err);
}

/* ---- Alerts ------------------------------------------------------------------------------- */

static int on_alert(void *ctx, const struct sql_value *row)
{
    struct call_alert_list *c = ctx;

    if (c->n == c->limit) /* LIMIT says so */
        return ERR_CORRUPT;
    c->alerts[c->n++] = (struct alert){
        .task_id = row[0].i, .attempt = (int32_t)row[1].i, .tries = (int32_t)row[2].i};
    return 0;
}

static int lease_alert(struct sql *db, struct alert *a, wall_ms until, struct err *err)
{
    int rc = sql_run(
        db,
        &(struct sql_query){.text = "UPDATE job_alert SET next_try = ? "
                                    "WHERE task_id = ? AND attempt = ?",
                            SQL_PARAMS(sql_time(until), sql_int(a->task_id), sql_int(a->attempt))},
        err);

    return rc ? rc : task_find(db, (struct str){0}, a->task_id, &a->task, err);
}

/* An alert whose task is gone has nothing to tell. */
static int drop_empty(struct sql *db, struct call_alert_list *c, struct err *err)
{
    size_t kept = 0;
    int rc = 0;

    for (size_t i = 0; i < c->n; i++) {
        if (c->alerts[i].task)
            c->alerts[kept++] = c->alerts[i];
        else if (!rc)
            rc = sql_run(db,
                         &(struct sql_query){.text = "DELETE FROM job_alert WHERE task_id = ?",
                                             SQL_PARAMS(sql_int(c->alerts[i].task_id))},
                         err);
    }
    c->n = kept;
    return rc;
}

int call_alert_list(struct sql *db, struct call_alert_list *c, struct err *err)
{
    static const char text[] =
        "SELECT task_id, attempt, tries FROM job_alert WHERE next_try <= {now} "
        "ORDER BY next_try LIMIT ? {skip locked}";
    wall_ms now;
    int rc;

    c->n = 0;
    c->alerts = calloc(c->limit, sizeof(*c->alerts));
    if (!c->alerts)
        return err_set(err, ERR_NOMEM, "no memory for the alerts");
    rc = sql_run(db,
                 &(struct sql_query){
                     .text = text, SQL_PARAMS(sql_int(c->limit)), .on_row = on_alert, .ctx = c},
                 err);
    if (!rc)
        rc = sql_now(db, &now, err);
    for (size_t i = 0; !rc && i < c->n; i++)
        rc = lease_alert(db, &c->alerts[i], now + c->lease_ms, err);
    return rc ? rc : drop_empty(db, c, err);
}

int call_alert_end(struct sql *db, struct call_alert_end *c, struct err *err)
{
    wall_ms now;
    int rc;

    if (c->told)
        return sql_run(
            db,
            &(struct sql_query){.text = "DELETE FROM job_alert WHERE task_id = ? AND attempt = ?",
                                SQL_PARAMS(sql_int(c->task_id), sql_int(c->attempt))},
            err);
    rc = sql_now(db, &now, err);
    if (rc)
        return rc;
    return sql_run(db,
                   &(struct sql_query){.text =
                                           "UPDATE job_alert SET next_try = ?, tries = tries + 1 "
                                           "WHERE task_id = ? AND attempt = ?",
                                       SQL_PARAMS(sql_time(now + c->retry_ms), sql_int(c->task_id),
                                                  sql_int(c->attempt))},
                   err);
}

/* ---- Retention ---------------------------------------------------------------------------- */

/* Ids as a list for IN (…). */
struct id_list {
    struct buf text;
    uint32_t n;
};

static void id_list_add(struct id_list *l, int64_t id)
{
    buf_addf(&l->text, "%s%" PRId64, l->n ? "," : "", id);
    l->n++;
}

static int run_for_ids(struct sql *db, const char *before, const struct id_list *l,
                       int64_t *ret_changed, struct err *err)
{
    struct buf b = BUF_INIT;
    int rc;

    if (!l->n)
        return 0;
    buf_addz(&b, before);
    buf_addz(&b, " IN (");
    buf_adds(&b, buf_str(&l->text));
    buf_add(&b, ")", 2); /* with its NUL */
    rc =
        buf_ok(&b) && buf_ok(&l->text)
            ? sql_run(db,
                      &(struct sql_query){.text = b.data, .once = true, .ret_changed = ret_changed},
                      err)
            : err_set(err, ERR_NOMEM, "no memory for a statement");
    buf_fini(&b);
    return rc;
}

struct old_rows {
    struct call_purge *call;
    struct id_list ids;
    uint32_t n_seen;
    int64_t last_id;
};

static int on_history(void *ctx, const struct sql_value *row)
{
    struct old_rows *o = ctx;

    o->n_seen++;
    o->last_id = row[0].i;
    if (row[1].i < o->call->history_before)
        id_list_add(&o->ids, row[0].i);
    return 0;
}

static int purge_history(struct sql *db, struct call_purge *c, struct err *err)
{
    static const char text[] = "SELECT id, finished_at FROM job_delay_task_history WHERE id > ? "
                               "ORDER BY id LIMIT ?";
    struct old_rows o = {.call = c};
    int64_t n = 0;
    int rc = sql_run(db,
                     &(struct sql_query){.text = text,
                                         SQL_PARAMS(sql_int(c->after_id), sql_int(c->limit)),
                                         .on_row = on_history,
                                         .ctx = &o},
                     err);

    if (!rc)
        rc = run_for_ids(db, "DELETE FROM job_attempt WHERE task_id", &o.ids, NULL, err);
    if (!rc)
        rc = run_for_ids(db, "DELETE FROM job_delay_task_history WHERE id", &o.ids, &n, err);
    c->n_deleted = (uint32_t)n; /* another node may delete the same rows now */
    c->next_after_id = o.n_seen < c->limit ? 0 : o.last_id;
    buf_fini(&o.ids.text);
    return rc;
}

static int on_failed(void *ctx, const struct sql_value *row)
{
    id_list_add(ctx, row[0].i);
    return 0;
}

/* Locked first: one that a person runs again meanwhile stays. */
static int retire_failed(struct sql *db, struct call_purge *c, struct err *err)
{
    static const char text[] =
        "SELECT id FROM job_delay_task WHERE failed_at IS NOT NULL AND failed_at < ? AND "
        "status IN ('FAILED', 'MANUAL_REQUIRED') ORDER BY failed_at LIMIT ? {for update}";
    static const char insert[] =
        INSERT_HISTORY("status", "retry_count", "failed_at", "last_error", "last_http_status",
                       "{now}", "job_delay_task WHERE id");
    struct id_list ids = {0};
    int rc = sql_run(db,
                     &(struct sql_query){.text = text,
                                         SQL_PARAMS(sql_time(c->failed_before), sql_int(c->limit)),
                                         .on_row = on_failed,
                                         .ctx = &ids},
                     err);

    if (!rc)
        rc = run_for_ids(db, insert, &ids, NULL, err);
    if (!rc)
        rc = run_for_ids(db, "DELETE FROM job_delay_task WHERE id", &ids, NULL, err);
    c->n_moved = ids.n;
    buf_fini(&ids.text);
    return rc;
}

int call_purge(struct sql *db, struct call_purge *c, struct err *err)
{
    int rc = purge_history(db, c, err);

    return rc ? rc : retire_failed(db, c, err);
}

/* ---- Clock -------------------------------------------------------------------------------- */

/* A machine that is busy delays most answers, at one end or the other: the fastest one says most.
 */
#define CLOCK_READINGS 5
#define CLOCK_GOOD_US 200 /* one that is as fast says enough */

int call_clock(struct sql *db, struct call_clock *c, struct err *err)
{
    int rc = 0;

    for (int i = 0;
         !rc && i < CLOCK_READINGS && (!i || c->received_us - c->sent_us > CLOCK_GOOD_US); i++) {
        int64_t sent = clock_mono_us();
        int64_t now = 0;

        rc = sql_run(
            db, &(struct sql_query){.text = "SELECT {now us}", .on_row = sql_on_int, .ctx = &now},
            err);
        int64_t received = clock_mono_us();
        if (!i || received - sent < c->received_us - c->sent_us) {
            c->now_us = now;
            c->sent_us = sent;
            c->received_us = received;
        }
    }
    return rc;
}
