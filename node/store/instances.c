/* SPDX-License-Identifier: Apache-2.0 */
/* A heartbeat writes one row by its primary key and locks nothing else. A new instance first locks
 * its service's row, so that those of one service come one after another and their limit holds.
 * Whoever takes both kinds of locks takes the service's first, and rows of instances are deleted in
 * the order of their primary key: no two of these can wait for each other. */
#include "node/store/instances.h"

#include <stdlib.h>

#include "node/store/pack.h"
#include "node/store/services.h"

/* ---- Register and prolong ------------------------------------------------------------------ */

static int on_registered(void *ctx, const struct sql_value *row)
{
    struct instance *in = ctx;

    in->registered_at = sql_wall(&row[0]);
    in->expires_at = sql_wall(&row[1]);
    return 0;
}

/* Sets both times and locks the row; WALL_NONE without one. */
static int read_times(struct sql *db, struct instance *in, struct err *err)
{
    in->registered_at = in->expires_at = WALL_NONE;
    return sql_run(db,
                   &(struct sql_query){.text = "SELECT registered_at, expires_at FROM job_instance "
                                               "WHERE service_name = ? AND instance = ? "
                                               "{for update}",
                                       SQL_PARAMS(sql_text(in->service_name), sql_text(in->name)),
                                       .on_row = on_registered,
                                       .ctx = in},
                   err);
}

/* Of a row that lives: *ret_changed may be 0 although there is one, where nothing differs. */
static int prolong(struct sql *db, const struct instance *in, wall_ms now, int64_t *ret_changed,
                   struct err *err)
{
    static const char text[] = "UPDATE job_instance SET base_url = ?, ttl_ms = ?, expires_at = ? "
                               "WHERE service_name = ? AND instance = ? AND expires_at > ?";

    return sql_run(
        db,
        &(struct sql_query){.text = text,
                            SQL_PARAMS(sql_text(in->base_url), sql_int(in->ttl_ms),
                                       sql_time(now + in->ttl_ms), sql_text(in->service_name),
                                       sql_text(in->name), sql_time(now)),
                            .ret_changed = ret_changed},
        err);
}

/* Sees that the service has a row, and locks it. */
static int lock_service(struct sql *db, struct str name, struct err *err)
{
    int64_t found = 0;
    int rc = service_see(db, name, 0, 1, err);

    if (!rc)
        rc = sql_run(
            db,
            &(struct sql_query){.text = "SELECT 1 FROM job_service WHERE name = ? {for update}",
                                SQL_PARAMS(sql_text(name)),
                                .on_row = sql_on_int,
                                .ctx = &found},
            err);
    return rc || found ? rc : err_set(err, ERR_BUSY, "the service was deleted meanwhile");
}

static int check_room(struct sql *db, struct str service_name, wall_ms now, struct err *err)
{
    int64_t n = 0;
    int rc = sql_run(db,
                     &(struct sql_query){.text = "SELECT count(*) FROM job_instance "
                                                 "WHERE service_name = ? AND expires_at > ?",
                                         SQL_PARAMS(sql_text(service_name), sql_time(now)),
                                         .on_row = sql_on_int,
                                         .ctx = &n},
                     err);

    if (rc || n < INSTANCES_MAX)
        return rc;
    return err_set(err, ERR_CONFLICT, "the service has %d instances already", INSTANCES_MAX);
}

/* Puts a row that begins now in the place of none, or of one that has expired. */
static int insert(struct sql *db, const struct instance *in, wall_ms now, struct err *err)
{
    static const char remove[] = "DELETE FROM job_instance WHERE service_name = ? AND instance = ?";
    static const char add[] =
        "INSERT INTO job_instance (service_name, instance, base_url, ttl_ms, registered_at, "
        "expires_at) VALUES (?, ?, ?, ?, ?, ?)";
    int rc =
        sql_run(db,
                &(struct sql_query){.text = remove,
                                    SQL_PARAMS(sql_text(in->service_name), sql_text(in->name))},
                err);

    if (rc)
        return rc;
    return sql_run(db,
                   &(struct sql_query){.text = add,
                                       SQL_PARAMS(sql_text(in->service_name), sql_text(in->name),
                                                  sql_text(in->base_url), sql_int(in->ttl_ms),
                                                  sql_time(now), sql_time(now + in->ttl_ms))},
                   err);
}

/* In a transaction of its own: where prolong has found nothing, it may have kept a lock on what is
 * left of a deleted row. With the service's row locked, nobody else registers one of its instances.
 */
static int register_new(struct sql *db, struct call_instance_put *c, struct err *err)
{
    wall_ms now;
    int64_t changed;
    int rc;

    db->d->rollback(db);
    rc = db->d->begin(db, err);
    if (!rc)
        rc = lock_service(db, c->in.service_name, err);
    if (!rc)
        rc = sql_now(db, &now, err);
    if (!rc)
        rc = read_times(db, &c->in, err);
    if (rc)
        return rc;
    if (c->in.expires_at != WALL_NONE && c->in.expires_at > now)
        return prolong(db, &c->in, now, &changed, err);
    c->created = true;
    rc = check_room(db, c->in.service_name, now, err);
    return rc ? rc : insert(db, &c->in, now, err);
}

int instance_put(struct sql *db, struct call_instance_put *c, struct err *err)
{
    wall_ms now;
    int64_t changed = 0;
    int rc = sql_now(db, &now, err);

    c->created = false;
    if (!rc)
        rc = prolong(db, &c->in, now, &changed, err);
    if (!rc && !changed)
        rc = register_new(db, c, err);
    return rc ? rc : read_times(db, &c->in, err);
}

/* ---- Leave --------------------------------------------------------------------------------- */

int instance_delete(struct sql *db, struct call_instance_delete *c, struct err *err)
{
    static const char text[] = "DELETE FROM job_instance WHERE service_name = ? AND instance = ? "
                               "AND expires_at > {now}";
    int64_t deleted = 0;
    int rc = sql_run(db,
                     &(struct sql_query){.text = text,
                                         SQL_PARAMS(sql_text(c->service_name), sql_text(c->name)),
                                         .ret_changed = &deleted},
                     err);

    return rc || deleted ? rc : err_set(err, ERR_NOT_FOUND, "there is no such instance");
}

int instances_drop(struct sql *db, struct str service_name, struct err *err)
{
    return sql_run(db,
                   &(struct sql_query){.text = "DELETE FROM job_instance WHERE service_name = ?",
                                       SQL_PARAMS(sql_text(service_name))},
                   err);
}

/* ---- List ---------------------------------------------------------------------------------- */

static int on_instance(void *ctx, const struct sql_value *row)
{
    struct pack *p = ctx;
    const struct instance in = {
        .service_name = pack_text(p, row[0].s),
        .name = pack_text(p, row[1].s),
        .base_url = pack_text(p, row[2].s),
        .ttl_ms = (int32_t)row[3].i,
        .registered_at = sql_wall(&row[4]),
        .expires_at = sql_wall(&row[5]),
    };

    pack_add(p, &in, sizeof(in));
    return 0;
}

int instance_list(struct sql *db, struct call_instance_list *c, struct err *err)
{
#define SELECT_INSTANCES                                                                           \
    "SELECT service_name, instance, base_url, ttl_ms, registered_at, expires_at FROM "             \
    "job_instance "
#define IS_LIVE "WHERE expires_at > {now} "
    static const char all[] = SELECT_INSTANCES "ORDER BY service_name, instance";
    static const char live[] = SELECT_INSTANCES IS_LIVE "ORDER BY service_name, instance";
    static const char of_one[] = SELECT_INSTANCES IS_LIVE "AND service_name = ? ORDER BY instance";
    static const size_t spans[] = {offsetof(struct instance, service_name),
                                   offsetof(struct instance, name),
                                   offsetof(struct instance, base_url)};
    const struct sql_value param = sql_text(c->service_name);
    struct pack p = PACK_INIT;
    int rc = sql_run(db,
                     &(struct sql_query){.text = c->service_name.p ? of_one
                                                 : c->expired_too  ? all
                                                                   : live,
                                         .params = &param,
                                         .n_params = c->service_name.p ? 1 : 0,
                                         .on_row = on_instance,
                                         .ctx = &p},
                     err);

    c->instances = NULL;
    c->n = p.rows.len / sizeof(struct instance);
    if (!rc) {
        c->instances =
            pack_end(&p, sizeof(struct instance), spans, sizeof(spans) / sizeof(spans[0]));
        if (!c->instances)
            rc = err_set(err, ERR_NOMEM, "no memory for the instances");
    }
    pack_fini(&p);
    return rc;
}

/* ---- Purge --------------------------------------------------------------------------------- */

static int purge_one(struct sql *db, const struct instance *in, struct err *err)
{
    static const char text[] = "DELETE FROM job_instance WHERE service_name = ? AND instance = ? "
                               "AND expires_at = ?";

    /* One that was registered again since it was read has another time. */
    return sql_run(db,
                   &(struct sql_query){.text = text,
                                       SQL_PARAMS(sql_text(in->service_name), sql_text(in->name),
                                                  sql_time(in->expires_at))},
                   err);
}

int instance_purge(struct sql *db, struct call_instance_purge *c, struct err *err)
{
    static const char text[] =
        "SELECT service_name, instance, base_url, ttl_ms, registered_at, expires_at "
        "FROM job_instance WHERE expires_at <= {now} ORDER BY service_name, instance LIMIT ?";
    static const size_t spans[] = {offsetof(struct instance, service_name),
                                   offsetof(struct instance, name),
                                   offsetof(struct instance, base_url)};
    struct instance *rows = NULL;
    struct pack p = PACK_INIT;
    int rc =
        sql_run(db,
                &(struct sql_query){
                    .text = text, SQL_PARAMS(sql_int(c->limit)), .on_row = on_instance, .ctx = &p},
                err);

    c->n_seen = (uint32_t)(p.rows.len / sizeof(struct instance));
    if (!rc)
        rows = pack_end(&p, sizeof(struct instance), spans, sizeof(spans) / sizeof(spans[0]));
    if (!rc && !rows)
        rc = err_set(err, ERR_NOMEM, "no memory for the instances");
    for (uint32_t i = 0; !rc && i < c->n_seen; i++)
        rc = purge_one(db, &rows[i], err);
    free(rows);
    pack_fini(&p);
    return rc;
}
