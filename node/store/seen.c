/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/seen.h"

#include <stdlib.h>
#include <string.h>

#include "node/store/services.h"
#include "proto/task.h"

#define SEEN_ROWS 500
#define FOLDS_MAX 20 /* of so many rows, at one time */
#define WATCH_MS INT64_C(86400000)

#define SEEN_COLUMNS "id, service_name, lanes, shards, watch_until"

/* A row of job_service_seen. */
struct seen {
    int64_t id;
    char name[TASK_NAME_MAX + 1];
    uint32_t lanes;
    int32_t shards;
    wall_ms watch_until;
};

static int on_seen(void *ctx, const struct sql_value *row)
{
    struct buf *rows = ctx;
    struct seen s = {
        .id = row[0].i,
        .lanes = (uint32_t)row[2].i,
        .shards = (int32_t)row[3].i,
        .watch_until = sql_wall(&row[4]),
    };

    if (row[1].s.len > TASK_NAME_MAX)
        return ERR_CORRUPT;
    memcpy(s.name, row[1].s.p, row[1].s.len);
    buf_add(rows, &s, sizeof(s));
    return buf_ok(rows) ? 0 : ERR_NOMEM;
}

/* By name, as whoever locks several rows of job_service takes them. */
static int compare_seen(const void *a, const void *b)
{
    const struct seen *x = a;
    const struct seen *y = b;
    int order = strcmp(x->name, y->name);

    return order ? order : (x->id > y->id) - (x->id < y->id);
}

/* ---- What the function has noted ---------------------------------------------------------- */

static int drop_row(struct sql *db, int64_t id, struct err *err)
{
    return sql_run(db,
                   &(struct sql_query){.text = "DELETE FROM job_service_seen WHERE id = ?",
                                       SQL_PARAMS(sql_int(id))},
                   err);
}

/* One service, by all its rows. */
static int fold_service(struct sql *db, const struct seen *rows, size_t n, struct err *err)
{
    uint32_t lanes = 0;
    int32_t shards = 0;
    int rc;

    for (size_t i = 0; i < n; i++) {
        lanes |= rows[i].lanes;
        shards = rows[i].shards > shards ? rows[i].shards : shards;
    }
    rc = service_see(db, str_from(rows->name), lanes, shards, err);
    for (size_t i = 0; !rc && i < n; i++)
        rc = drop_row(db, rows[i].id, err);
    return rc;
}

/* Rows whose transaction has not ended are locked, and left for the next time. */
static int fold_fresh(struct sql *db, struct buf *rows, size_t *ret_n, struct err *err)
{
    static const char text[] = "SELECT " SEEN_COLUMNS " FROM job_service_seen "
                               "WHERE watch_until IS NULL ORDER BY id LIMIT ? {skip locked}";
    const struct seen *list;
    size_t end;
    int rc =
        sql_run(db,
                &(struct sql_query){
                    .text = text, SQL_PARAMS(sql_int(SEEN_ROWS)), .on_row = on_seen, .ctx = rows},
                err);

    list = (const struct seen *)rows->data;
    *ret_n = rows->len / sizeof(*list);
    if (!rc && *ret_n)
        qsort(rows->data, *ret_n, sizeof(*list), compare_seen);
    for (size_t i = 0; !rc && i < *ret_n; i = end) {
        for (end = i + 1; end < *ret_n && strcmp(list[end].name, list[i].name) == 0;)
            end++;
        rc = fold_service(db, &list[i], end - i, err);
    }
    return rc;
}

/* Without a lock first: mostly there is nothing. */
static int read_seen(struct sql *db, const char *text, struct sql_value param, struct buf *rows,
                     struct err *err)
{
    return sql_run(
        db, &(struct sql_query){.text = text, SQL_PARAMS(param), .on_row = on_seen, .ctx = rows},
        err);
}

static int fold_all_fresh(struct sql *db, struct err *err)
{
    static const char any[] = "SELECT " SEEN_COLUMNS " FROM job_service_seen "
                              "WHERE watch_until IS NULL LIMIT ?";
    struct buf rows = BUF_INIT;
    size_t n = SEEN_ROWS;
    int rc = read_seen(db, any, sql_int(1), &rows, err);

    if (!rows.len)
        n = 0;
    for (int i = 0; !rc && n == SEEN_ROWS && i < FOLDS_MAX; i++) {
        buf_clear(&rows);
        rc = db->d->begin(db, err);
        if (!rc)
            rc = fold_fresh(db, &rows, &n, err);
        rc = sql_end(db, rc, err);
    }
    buf_fini(&rows);
    return rc;
}

/* ---- Deleted services --------------------------------------------------------------------- */

static int fold_watched(struct sql *db, const struct seen *s, wall_ms now, struct err *err)
{
    /* Unless the service was deleted once more in between. */
    static const char drop[] = "DELETE FROM job_service_seen WHERE id = ? AND watch_until = ?";
    int rc = 0;

    if (now < s->watch_until)
        rc = service_see(db, str_from(s->name), s->lanes, s->shards, err);
    return rc ? rc
              : sql_run(db,
                        &(struct sql_query){.text = drop,
                                            SQL_PARAMS(sql_int(s->id), sql_time(s->watch_until))},
                        err);
}

/* Those that have a task again, or whose time is over. One statement looks at all of them; each
 * question to it ends at the first entry of an index. */
static int fold_all_watched(struct sql *db, struct err *err)
{
    static const char text[] =
        "SELECT " SEEN_COLUMNS " FROM job_service_seen AS s WHERE watch_until IS NOT NULL AND "
        "(watch_until <= {now} OR "
        "(SELECT 1 FROM job_delay_task AS t WHERE t.service_name = s.service_name AND "
        "t.next_attempt_time IS NOT NULL LIMIT 1) IS NOT NULL OR "
        "(SELECT 1 FROM job_delay_task AS t WHERE t.service_name = s.service_name AND "
        "t.failed_at IS NOT NULL LIMIT 1) IS NOT NULL) ORDER BY service_name, id LIMIT ?";
    struct buf rows = BUF_INIT;
    const struct seen *list;
    size_t n;
    wall_ms now;
    int rc = read_seen(db, text, sql_int(SEEN_ROWS), &rows, err);

    list = (const struct seen *)rows.data;
    n = rows.len / sizeof(*list);
    if (!rc && n) {
        rc = db->d->begin(db, err);
        if (!rc)
            rc = sql_now(db, &now, err);
        for (size_t i = 0; !rc && i < n; i++)
            rc = fold_watched(db, &list[i], now, err);
        rc = sql_end(db, rc, err);
    }
    buf_fini(&rows);
    return rc;
}

int seen_fold(struct sql *db, struct err *err)
{
    int rc = db->d->has_submit ? fold_all_fresh(db, err) : 0;

    return rc || !db->d->has_submit ? rc : fold_all_watched(db, err);
}

/* One row per service. Found without a lock: open transactions have locked rows of their own, which
 * a search would wait for on MariaDB. */
int seen_watch(struct sql *db, struct str service_name, struct err *err)
{
    static const char find[] = "SELECT " SEEN_COLUMNS " FROM job_service_seen "
                               "WHERE service_name = ? AND watch_until IS NOT NULL LIMIT 1";
    static const char update[] =
        "UPDATE job_service_seen SET watch_until = ?, "
        "lanes = lanes | coalesce((SELECT lanes FROM job_service WHERE name = ?), 0), shards = "
        "greatest(shards, coalesce((SELECT shards_seen FROM job_service WHERE name = ?), 0)) "
        "WHERE id = ? AND watch_until IS NOT NULL";
    static const char insert[] =
        "INSERT INTO job_service_seen (service_name, lanes, shards, watch_until) "
        "SELECT name, lanes, shards_seen, ? FROM job_service WHERE name = ?";
    const struct sql_value name = sql_text(service_name);
    struct buf rows = BUF_INIT;
    int64_t changed = 0;
    wall_ms now;
    int rc = db->d->has_submit ? sql_now(db, &now, err) : 0;

    if (rc || !db->d->has_submit)
        return rc;
    rc = read_seen(db, find, name, &rows, err);
    if (!rc && rows.len)
        rc = sql_run(db,
                     &(struct sql_query){.text = update,
                                         SQL_PARAMS(sql_time(now + WATCH_MS), name, name,
                                                    sql_int(((const struct seen *)rows.data)->id)),
                                         .ret_changed = &changed},
                     err);
    buf_fini(&rows);
    if (rc || changed)
        return rc;
    return sql_run(
        db, &(struct sql_query){.text = insert, SQL_PARAMS(sql_time(now + WATCH_MS), name)}, err);
}

/* ---- The rules ---------------------------------------------------------------------------- */

static int on_name(void *ctx, const struct sql_value *row)
{
    struct buf *names = ctx;

    buf_add(names, row[0].s.p, row[0].s.len);
    buf_addc(names, '\0');
    return buf_ok(names) ? 0 : ERR_NOMEM;
}

static bool is_listed(const char *name, const struct submit_rule *rules, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(rules[i].name, name) == 0)
            return true;
    }
    return false;
}

/* The default is what the function falls back on. */
static int drop_policies(struct sql *db, const struct submit_rule *rules, size_t n, struct err *err)
{
    static const char find[] = "SELECT name FROM job_submit_rule WHERE name LIKE 'policy:%' "
                               "AND name <> 'policy:default' ORDER BY name";
    struct buf names = BUF_INIT;
    int rc = sql_run(db, &(struct sql_query){.text = find, .on_row = on_name, .ctx = &names}, err);

    for (size_t at = 0; !rc && at < names.len; at += strlen(names.data + at) + 1) {
        const char *name = names.data + at;

        if (!is_listed(name, rules, n))
            rc = sql_run(db,
                         &(struct sql_query){.text = "DELETE FROM job_submit_rule WHERE name = ?",
                                             SQL_PARAMS(sql_textz(name))},
                         err);
    }
    buf_fini(&names);
    return rc;
}

int seen_rules(struct sql *db, const struct submit_rule *rules, size_t n, struct err *err)
{
    static const char insert[] =
        "INSERT INTO job_submit_rule (name, value) VALUES (?, ?) {or nothing name}";
    static const char update[] =
        "UPDATE job_submit_rule SET value = ? WHERE name = ? AND value <> ?";
    int rc = 0;

    for (size_t i = 0; !rc && db->d->has_submit && i < n; i++) {
        const struct sql_value name = sql_textz(rules[i].name);
        const struct sql_value value = sql_int(rules[i].value);

        rc = sql_run(db, &(struct sql_query){.text = insert, SQL_PARAMS(name, value)}, err);
        if (!rc)
            rc = sql_run(db, &(struct sql_query){.text = update, SQL_PARAMS(value, name, value)},
                         err);
    }
    return rc || !n || !db->d->has_submit ? rc : drop_policies(db, rules, n, err);
}
