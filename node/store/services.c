/* SPDX-License-Identifier: Apache-2.0 */
/* A submission reads job_service in its own transaction, and a service is deleted under a lock
 * that waits for such transactions: a task can never be left behind without its service's row. */
#include "node/store/services.h"

#include <stdlib.h>

#include "node/store/instances.h"
#include "node/store/pack.h"
#include "node/store/seen.h"

#define SERVICE_COLUMNS                                                                            \
    "name, base_url, secret, policy, shards, shards_seen, concurrency, timeout_ms, lanes, "        \
    "paused, version, created_at, updated_at, delivery, batch_size, batch_wait_ms"

/* ---- Reading ------------------------------------------------------------------------------ */

static int32_t within(int64_t n, int32_t least, int32_t most)
{
    return n < least ? least : n > most ? most : (int32_t)n;
}

static int on_service(void *ctx, const struct sql_value *row)
{
    struct pack *p = ctx;
    struct service s = {
        .name = pack_text(p, row[0].s),
        .base_url = pack_text(p, row[1].s),
        .secret = pack_text(p, row[2].s),
        .policy = pack_text(p, row[3].s),
        .shards = (int32_t)row[4].i,
        .shards_seen = (int32_t)row[5].i,
        .concurrency = (int32_t)row[6].i,
        .timeout_ms = (int32_t)row[7].i,
        .lanes = (uint32_t)row[8].i,
        .paused = row[9].i != 0,
        .version = row[10].i,
        .created_at = row[11].i,
        .updated_at = row[12].i,
    };

    (void)delivery_mode_parse(row[13].s, &s.delivery); /* a word written by hand: push */
    if (s.delivery == DELIVERY_BATCH) {
        s.batch_size = within(row[14].i, 1, SERVICE_BATCH_MAX); /* so may these be */
        s.batch_wait_ms = within(row[15].i, 0, SERVICE_BATCH_WAIT_MAX_MS);
    }
    pack_add(p, &s, sizeof(s));
    return 0;
}

/* One service, or all when name is absent. Without a row *ret stays NULL for one service. */
static int read_services(struct sql *db, const char *text, struct str name, struct service **ret,
                         size_t *ret_n, struct err *err)
{
    static const size_t spans[] = {
        offsetof(struct service, name), offsetof(struct service, base_url),
        offsetof(struct service, secret), offsetof(struct service, policy)};
    struct pack p = PACK_INIT;
    const struct sql_value param = sql_text(name);
    int rc = sql_run(db,
                     &(struct sql_query){.text = text,
                                         .params = &param,
                                         .n_params = name.p ? 1 : 0,
                                         .on_row = on_service,
                                         .ctx = &p},
                     err);

    *ret = NULL;
    *ret_n = p.rows.len / sizeof(struct service);
    if (!rc && (*ret_n || !name.p)) {
        *ret = pack_end(&p, sizeof(struct service), spans, sizeof(spans) / sizeof(spans[0]));
        if (!*ret)
            rc = err_set(err, ERR_NOMEM, "no memory for the services");
    }
    pack_fini(&p);
    return rc;
}

static int read_one(struct sql *db, struct str name, struct service **ret, struct err *err)
{
    size_t n;

    return read_services(db,
                         "SELECT " SERVICE_COLUMNS " FROM job_service WHERE name = ? {for update}",
                         name, ret, &n, err);
}

int service_list(struct sql *db, struct call_service_list *c, struct err *err)
{
    c->services = NULL;
    c->n = 0;
    return read_services(db, "SELECT " SERVICE_COLUMNS " FROM job_service ORDER BY name",
                         (struct str){0}, &c->services, &c->n, err);
}

/* ---- Writing ------------------------------------------------------------------------------ */

/* Sees that there is a row; a new one has version 0 until its first update. */
static int ensure_row(struct sql *db, struct str name, int64_t *ret_created, struct err *err)
{
    return sql_run(db,
                   &(struct sql_query){.text = "INSERT INTO job_service (name, created_at, "
                                               "updated_at) VALUES (?, {now}, {now}) "
                                               "{or nothing name}",
                                       SQL_PARAMS(sql_text(name)),
                                       .ret_changed = ret_created},
                   err);
}

int service_see(struct sql *db, struct str name, uint32_t lanes, int32_t shards, struct err *err)
{
    static const char update[] =
        "UPDATE job_service SET lanes = lanes | ?, "
        "shards_seen = CASE WHEN shards_seen < ? THEN ? ELSE shards_seen END, "
        "version = version + 1, updated_at = {now} "
        "WHERE name = ? AND ((lanes & ?) <> ? OR shards_seen < ?)";
    int64_t created;
    int rc = ensure_row(db, name, &created, err);

    if (rc)
        return rc;
    return sql_run(db,
                   &(struct sql_query){.text = update,
                                       SQL_PARAMS(sql_int(lanes), sql_int(shards), sql_int(shards),
                                                  sql_text(name), sql_int(lanes), sql_int(lanes),
                                                  sql_int(shards))},
                   err);
}

static int write_settings(struct sql *db, const struct service *in, struct err *err)
{
    static const char update[] =
        "UPDATE job_service SET base_url = ?, secret = ?, policy = ?, shards = ?, "
        "shards_seen = CASE WHEN shards_seen < ? THEN ? ELSE shards_seen END, "
        "concurrency = ?, timeout_ms = ?, delivery = ?, batch_size = ?, batch_wait_ms = ?, "
        "version = version + 1, updated_at = {now} WHERE name = ?";

    return sql_run(
        db,
        &(struct sql_query){
            .text = update,
            SQL_PARAMS(sql_text(in->base_url), sql_text(in->secret), sql_text(in->policy),
                       sql_int(in->shards), sql_int(in->shards), sql_int(in->shards),
                       sql_int(in->concurrency), sql_int(in->timeout_ms),
                       sql_text(str_from(delivery_mode_name(in->delivery))),
                       sql_int(in->batch_size), sql_int(in->batch_wait_ms), sql_text(in->name))},
        err);
}

int service_put(struct sql *db, struct call_service_put *c, struct err *err)
{
    int64_t created = 0;
    int rc;

    c->stored = NULL;
    rc = ensure_row(db, c->in->name, &created, err);
    if (!rc)
        rc = write_settings(db, c->in, err);
    if (!rc)
        rc = read_one(db, c->in->name, &c->stored, err);
    c->created = created != 0;
    return rc;
}

int service_pause(struct sql *db, struct call_service_pause *c, struct err *err)
{
    static const char update[] = "UPDATE job_service SET paused = ?, version = version + 1, "
                                 "updated_at = {now} WHERE name = ? AND paused <> ?";
    int rc = sql_run(db,
                     &(struct sql_query){
                         .text = update,
                         SQL_PARAMS(sql_bool(c->paused), sql_text(c->name), sql_bool(c->paused))},
                     err);

    c->stored = NULL;
    if (!rc)
        rc = read_one(db, c->name, &c->stored, err);
    return !rc && !c->stored ? ERR_NOT_FOUND : rc;
}

static int on_any(void *ctx, const struct sql_value *row)
{
    bool *any = ctx;

    (void)row;
    *any = true;
    return 0;
}

/* The two indexes of the live table name every task between them. */
int service_has_tasks(struct sql *db, struct str name, bool *ret, struct err *err)
{
    static const char *const texts[] = {
        "SELECT 1 FROM job_delay_task WHERE service_name = ? "
        "AND next_attempt_time IS NOT NULL LIMIT 1",
        "SELECT 1 FROM job_delay_task WHERE service_name = ? AND failed_at IS NOT NULL LIMIT 1",
    };
    int rc = 0;

    *ret = false;
    for (size_t i = 0; !rc && !*ret && i < 2; i++)
        rc =
            sql_run(db,
                    &(struct sql_query){
                        .text = texts[i], SQL_PARAMS(sql_text(name)), .on_row = on_any, .ctx = ret},
                    err);
    return rc;
}

int service_delete(struct sql *db, struct call_service_delete *c, struct err *err)
{
    int64_t deleted = 0;
    bool used = false;
    int rc = 0;

    if (db->d->services_lock)
        rc = sql_run(db, &(struct sql_query){.text = db->d->services_lock}, err);
    if (!rc)
        rc = seen_watch(db, c->name, err);
    if (!rc)
        rc = sql_run(db,
                     &(struct sql_query){.text = "DELETE FROM job_service WHERE name = ?",
                                         SQL_PARAMS(sql_text(c->name)),
                                         .ret_changed = &deleted},
                     err);
    if (rc)
        return rc;
    if (!deleted)
        return err_set(err, ERR_NOT_FOUND, "there is no such service");
    rc = service_has_tasks(db, c->name, &used, err);
    if (rc)
        return rc;
    if (used)
        return err_set(err, ERR_CONFLICT, "live tasks name this service");
    return instances_drop(db, c->name, err);
}
