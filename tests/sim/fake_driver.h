/* SPDX-License-Identifier: Apache-2.0 */
/* A database in memory behind the driver interface (node/store/driver.h), with a clock that the
 * caller supplies and a hook that sees each change of a task. For the simulation, and held to the
 * same conformance suite as the real stores. Single-threaded; running out of memory aborts. */
#ifndef JF_SIM_FAKE_DRIVER_H
#define JF_SIM_FAKE_DRIVER_H

#include "node/store/driver.h"

struct fake_db;

enum fake_write {
    FAKE_SUBMIT,
    FAKE_REPLACE,
    FAKE_CLAIM,
    FAKE_FINISH,
    FAKE_CANCEL,
    FAKE_MOVE,
    FAKE_RUN,
    FAKE_EXTEND,
    FAKE_RETIRE, /* FAILED or MANUAL_REQUIRED to history, by age */
    FAKE_PURGE,  /* out of history */
};

/* One change of one task as it commits. The tasks are borrowed for the call. */
struct fake_change {
    enum fake_write how;
    const struct task *before;        /* NULL: the task is new */
    const struct task *after;         /* NULL: the task is gone */
    const struct finish_item *finish; /* of FINISH */
    bool was_live;
    bool is_live; /* false: stands in history */
    wall_ms now;  /* the database's clock */
};

struct fake_hooks {
    wall_ms (*now)(void *ctx);                                 /* NULL: this machine's clock */
    void (*on_change)(void *ctx, const struct fake_change *c); /* NULL: nobody watches */
    void *ctx;
};

struct fake_db *fake_db_new(const struct fake_hooks *hooks); /* hooks may be NULL; copied */
void fake_db_free(struct fake_db *db);                       /* after its connections */

/* The URL under which fake_driver.open finds this database. */
#define FAKE_URL_MAX 40
void fake_db_url(const struct fake_db *db, char dst[FAKE_URL_MAX]);

extern const struct driver fake_driver;

/* Looking in from outside: rows are borrowed until the next change. */
const struct task *fake_db_find(const struct fake_db *db, int64_t id, bool *ret_live);
/* Visits the rows of one of the two tables: start with *pos = 0; NULL at the end. */
const struct task *fake_db_each(const struct fake_db *db, bool live, size_t *pos);
bool fake_db_has_alert(const struct fake_db *db, int64_t id, int32_t attempt);
size_t fake_db_n_audits(const struct fake_db *db, int64_t id);

#endif
