/* SPDX-License-Identifier: Apache-2.0 */
/* Submission, the part that is the same on every database.
 *
 * Happy path: insert what is free, look the keys up in history as a second statement, see that
 * job_service names each service with its lanes, commit. (A driver may have the database do all of
 * that: submit_ops.)
 * A key found in history takes its insert back: the key was free only because its task had ended. A
 * key that was taken is read in history, then live; found in neither, its task moved on between the
 * statements, and the round is repeated.
 * A row whose id is the item's was inserted by an earlier run whose commit was unknown. */
#ifndef JF_STORE_SUBMIT_H
#define JF_STORE_SUBMIT_H

#include "node/core/storeop.h"
#include "node/store/sql.h"

/* A service that a batch names. */
struct submit_service {
    struct str name;
    uint32_t lanes; /* that the batch uses */
    int32_t shards; /* the highest shard that it uses, + 1 */
    bool known;     /* job_service says all of that already */
};

struct submit_slot {
    struct submit_item *item;
    bool inserted; /* in this round: by the driver's `insert` */
    bool settled;
};

struct submit_run {
    struct submit_slot *slots; /* by biz_uuid, ascending */
    size_t n;
    struct submit_service *services; /* by name, ascending */
    size_t n_services;
    size_t *open; /* the slots that this round is about, ascending */
    size_t n_open;
    int32_t patience_ms; /* at least 1 */
};

/* What each driver does in its own way; all inside the open transaction. */
struct submit_ops {
    /* For the open slots: inserts the rows whose keys are free and sets `inserted`; then, as
     * another statement, gives the history rows of the keys to submit_on_history. In the first
     * round, gives the job_service rows (name, lanes, shards_seen) of the services to
     * submit_on_service. `ctx` of both is the run. Instead it may, in the first round, insert all
     * open slots, see that no key is in history, mark all services as known and commit; what is not
     * so fails it. */
    int (*insert)(struct sql *db, struct submit_run *run, bool first, struct err *err);
    /* Gives the live rows of the open slots' keys to submit_on_live. */
    int (*find)(struct sql *db, struct submit_run *run, struct err *err);
};

/* The slot of a key; NULL if there is none. */
struct submit_slot *submit_find_slot(const struct submit_run *run, struct str biz_uuid);

sql_row_fn submit_on_service;
sql_row_fn submit_on_history;
sql_row_fn submit_on_live;

/* As driver.submit. */
MUST_CHECK int submit_batch(struct sql *db, const struct submit_ops *ops,
                            struct submit_item **items, size_t n, struct err *err);

#endif
