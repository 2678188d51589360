/* SPDX-License-Identifier: Apache-2.0 */
/* The tables and their one way of changing. */
#include "tests/sim/fake_driver.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/fake_internal.h"

#define FAKE_ID_BLOCK 100

void *fake_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    if (!p)
        abort();
    return p;
}

void fake_grow(void **list, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return;
    *cap = *cap ? *cap * 2 : 16;
    *list = realloc(*list, *cap * size);
    if (!*list)
        abort();
}

wall_ms fake_now(const struct fake_db *db)
{
    return db->hooks.now ? db->hooks.now(db->hooks.ctx) : clock_wall();
}

struct fake_db *fake_db_new(const struct fake_hooks *hooks)
{
    struct fake_db *db = fake_alloc(1, sizeof(*db));

    if (hooks)
        db->hooks = *hooks;
    db->next_id = 1;
    return db;
}

static void table_free(struct fake_table *table)
{
    for (size_t i = 0; i < table->n; i++) {
        task_free(table->rows[i]->t);
        free(table->rows[i]);
    }
    free(table->rows);
}

void fake_db_free(struct fake_db *db)
{
    if (!db)
        return;
    table_free(&db->live);
    table_free(&db->history);
    map64_fini(&db->by_id);
    map64_fini(&db->by_key);
    for (size_t i = 0; i < db->n_attempts; i++)
        free(db->attempts[i].text);
    free(db->attempts);
    free(db->alerts);
    free(db->audits);
    for (size_t i = 0; i < db->n_services; i++)
        free(db->services[i]);
    free(db->services);
    for (size_t i = 0; i < db->n_instances; i++)
        free(db->instances[i]);
    free(db->instances);
    free(db->nodes);
    free(db);
}

void fake_db_url(const struct fake_db *db, char dst[FAKE_URL_MAX])
{
    (void)snprintf(dst, FAKE_URL_MAX, "fake:%" PRIxPTR, (uintptr_t)db);
}

/* ---- Rows --------------------------------------------------------------------------------- */

static uint64_t key_hash(struct str key)
{
    return hash_bytes(key, 0) | 1;
}

struct fake_row *fake_row_by_id(const struct fake_db *db, int64_t id)
{
    return id > 0 ? map64_find(&db->by_id, (uint64_t)id) : NULL;
}

struct fake_row *fake_row_by_key(const struct fake_db *db, struct str key)
{
    struct fake_row *row = map64_find(&db->by_key, key_hash(key));

    while (row && !str_eq(row->t->biz_uuid, key))
        row = row->next;
    return row;
}

static struct fake_table *table_of(struct fake_db *db, bool live)
{
    return live ? &db->live : &db->history;
}

static void table_add(struct fake_table *table, struct fake_row *row)
{
    FAKE_GROW(table->rows, table->n, table->cap);
    row->pos = table->n;
    table->rows[table->n++] = row;
}

static void table_remove(struct fake_table *table, struct fake_row *row)
{
    struct fake_row *last = table->rows[--table->n];

    table->rows[row->pos] = last;
    last->pos = row->pos;
}

static void index_add(struct fake_db *db, struct fake_row *row)
{
    uint64_t hash = key_hash(row->t->biz_uuid);

    row->next = map64_find(&db->by_key, hash);
    if (map64_put(&db->by_key, hash, row) || map64_put(&db->by_id, (uint64_t)row->t->id, row))
        abort();
}

static void index_remove(struct fake_db *db, struct fake_row *row)
{
    uint64_t hash = key_hash(row->t->biz_uuid);
    struct fake_row *head = map64_find(&db->by_key, hash);

    map64_remove(&db->by_id, (uint64_t)row->t->id);
    if (head == row) {
        map64_remove(&db->by_key, hash);
        if (row->next && map64_put(&db->by_key, hash, row->next))
            abort();
        return;
    }
    while (head->next != row)
        head = head->next;
    head->next = row->next;
}

void fake_write(struct fake_db *db, struct fake_row *row, const struct task *next, bool is_live,
                enum fake_write how, const struct finish_item *finish)
{
    struct task *before = row ? row->t : NULL;
    struct task *after = next ? task_dup(next) : NULL;
    struct fake_change change = {
        .how = how,
        .before = before,
        .after = after,
        .finish = finish,
        .was_live = row && row->live,
        .is_live = is_live,
        .now = fake_now(db),
    };

    if (next && !after)
        abort();
    if (!row) {
        row = fake_alloc(1, sizeof(*row));
        row->t = after;
        row->live = is_live;
        index_add(db, row);
        table_add(table_of(db, is_live), row);
    } else if (!next) {
        index_remove(db, row);
        table_remove(table_of(db, row->live), row);
        free(row);
    } else {
        row->t = after;
        if (row->live != is_live) {
            table_remove(table_of(db, row->live), row);
            row->live = is_live;
            table_add(table_of(db, is_live), row);
        }
    }
    if (db->hooks.on_change)
        db->hooks.on_change(db->hooks.ctx, &change);
    task_free(before);
}

bool fake_status_in(const struct fake_row *row, unsigned statuses)
{
    return row && row->live && (task_status_bit(row->t->status) & statuses);
}

/* ---- Seen from outside -------------------------------------------------------------------- */

const struct task *fake_db_find(const struct fake_db *db, int64_t id, bool *ret_live)
{
    const struct fake_row *row = fake_row_by_id(db, id);

    if (!row)
        return NULL;
    *ret_live = row->live;
    return row->t;
}

const struct task *fake_db_each(const struct fake_db *db, bool live, size_t *pos)
{
    const struct fake_table *table = live ? &db->live : &db->history;

    return *pos < table->n ? table->rows[(*pos)++]->t : NULL;
}

bool fake_db_has_alert(const struct fake_db *db, int64_t id, int32_t attempt)
{
    for (size_t i = 0; i < db->n_alerts; i++) {
        if (db->alerts[i].task_id == id && db->alerts[i].attempt == attempt)
            return true;
    }
    return false;
}

size_t fake_db_n_audits(const struct fake_db *db, int64_t id)
{
    size_t n = 0;

    for (size_t i = 0; i < db->n_audits; i++)
        n += db->audits[i] == id;
    return n;
}

/* ---- The driver --------------------------------------------------------------------------- */

static int fake_open(const char *url, const struct driver_options *opt, struct driver_conn **ret,
                     char **ret_warning, struct err *err)
{
    uintptr_t address;

    (void)opt;
    if (sscanf(url, "fake:%" SCNxPTR, &address) != 1)
        return err_set(err, ERR_INVALID, "not a URL of fake_db_url: %s", url);
    *ret = fake_alloc(1, sizeof(**ret));
    (*ret)->db = (struct fake_db *)address;
    *ret_warning = NULL;
    return 0;
}

static void fake_close(struct driver_conn *c)
{
    free(c);
}

static int fake_migrate(struct driver_conn *c, const struct migration *m, size_t n, bool check_only,
                        int *ret_from, int *ret_to, struct err *err)
{
    int last = n ? m[n - 1].version : 0;
    int have = c->db->schema_version;

    if (have > last)
        return err_set(err, ERR_CONFLICT, "the schema has version %d, this program knows %d", have,
                       last);
    if (check_only && have < last)
        return err_set(err, ERR_NOT_FOUND, "the schema has version %d, %d is needed", have, last);
    c->db->schema_version = last;
    *ret_from = have;
    *ret_to = last;
    return 0;
}

static int fake_take_ids(struct driver_conn *c, int64_t *ret_first, int64_t *ret_n, struct err *err)
{
    (void)err;
    *ret_first = c->db->next_id;
    *ret_n = FAKE_ID_BLOCK;
    c->db->next_id += FAKE_ID_BLOCK;
    return 0;
}

const struct driver fake_driver = {
    .scheme = "fake",
    .one_writer = false,
    .open = fake_open,
    .close = fake_close,
    .migrate = fake_migrate,
    .take_ids = fake_take_ids,
    .submit = fake_submit,
    .claim = fake_claim,
    .finish = fake_finish,
    .cancel = fake_cancel,
    .scan = fake_scan,
    .call = fake_call,
};
