/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the fake database. Only fake_*.c include this. */
#ifndef JF_SIM_FAKE_INTERNAL_H
#define JF_SIM_FAKE_INTERNAL_H

#include "common/hash.h"
#include "node/core/instance.h"
#include "node/core/nodecall.h"
#include "tests/sim/fake_driver.h"

struct fake_row {
    struct task *t;        /* owned */
    struct fake_row *next; /* with the same hash of the key */
    size_t pos;            /* in its table */
    bool live;
};

struct fake_table {
    struct fake_row **rows; /* owned, in no order */
    size_t n;
    size_t cap;
};

struct fake_attempt {
    int64_t task_id;
    struct attempt a;
    char *text; /* owned: outcome, error and node, one behind the other */
};

struct fake_alert {
    int64_t task_id;
    int32_t attempt;
    int32_t tries;
    wall_ms next_try;
};

struct fake_node {
    char name[TASK_NAME_MAX + 1];
    char address[MEMBER_ADDRESS_MAX + 1];
    char version[MEMBER_VERSION_MAX + 1];
    int64_t epoch;
    enum member_state state;
    int32_t hash_version;
    wall_ms started_at;
    wall_ms last_seen;
};

struct fake_db {
    struct fake_hooks hooks;
    struct map64 by_id;
    struct map64 by_key; /* hash of the key → chain */
    struct fake_table live;
    struct fake_table history;
    struct fake_attempt *attempts; /* owned, oldest first */
    size_t n_attempts;
    size_t cap_attempts;
    struct fake_alert *alerts; /* owned */
    size_t n_alerts;
    size_t cap_alerts;
    int64_t *audits; /* owned: task ids */
    size_t n_audits;
    size_t cap_audits;
    struct service **services; /* owned, by name */
    size_t n_services;
    size_t cap_services;
    struct instance **instances; /* owned, by service and name */
    size_t n_instances;
    size_t cap_instances;
    struct fake_node *nodes; /* owned */
    size_t n_nodes;
    size_t cap_nodes;
    int64_t next_id;
    int schema_version;
};

void *fake_alloc(size_t n, size_t size); /* zeroed; aborts when out of memory */
/* Makes room for one more element. */
void fake_grow(void **list, size_t n, size_t *cap, size_t size);
#define FAKE_GROW(list, n, cap) fake_grow((void **)&(list), (n), &(cap), sizeof(*(list)))

wall_ms fake_now(const struct fake_db *db);
struct fake_row *fake_row_by_id(const struct fake_db *db, int64_t id);      /* NULL when unknown */
struct fake_row *fake_row_by_key(const struct fake_db *db, struct str key); /* likewise */
/* The one way in which rows change: `next` is copied; row NULL inserts, next NULL deletes. */
void fake_write(struct fake_db *db, struct fake_row *row, const struct task *next, bool is_live,
                enum fake_write how, const struct finish_item *finish);

/* Copies a string to *p and moves that on; an absent one stays absent. */
struct str fake_text(char **p, struct str s);
bool fake_status_in(const struct fake_row *row, unsigned statuses); /* live, and one of them */
void fake_add_attempt(struct fake_db *db, const struct task *t, const struct finish_item *f);
void fake_add_alert(struct fake_db *db, const struct finish_item *f);
void fake_drop_alerts(struct fake_db *db, int64_t task_id);
void fake_drop_attempts(struct fake_db *db, int64_t task_id);

/* fake_services.c: the tables beside the tasks. */
void fake_service_seen(struct fake_db *db, const struct task *t);
const struct service *fake_service_find(const struct fake_db *db, struct str name); /* or NULL */
int fake_service_put(struct fake_db *db, struct call_service_put *c);
int fake_service_pause(struct fake_db *db, struct call_service_pause *c);
int fake_service_delete(struct fake_db *db, struct call_service_delete *c);
int fake_service_list(struct fake_db *db, struct call_service_list *c);
void fake_service_ensure(struct fake_db *db, struct str name); /* sees that it has a row */
int fake_node_start(struct fake_db *db, struct call_node_start *c);
int fake_node_beat(struct fake_db *db, struct call_node_beat *c);
int fake_alert_list(struct fake_db *db, struct call_alert_list *c);
int fake_alert_end(struct fake_db *db, struct call_alert_end *c);

/* fake_instances.c */
int fake_instance_put(struct fake_db *db, struct call_instance_put *c);
int fake_instance_delete(struct fake_db *db, struct call_instance_delete *c);
int fake_instance_list(struct fake_db *db, struct call_instance_list *c);
int fake_instance_purge(struct fake_db *db, struct call_instance_purge *c);
void fake_instances_drop(struct fake_db *db, struct str service_name);

/* fake_calls.c, fake_hot.c: what the driver's table points to. */
int fake_call(struct driver_conn *c, struct store_call *call, struct err *err);
int fake_submit(struct driver_conn *c, struct submit_item **items, size_t n, struct err *err);
int fake_claim(struct driver_conn *c, struct claim_item **items, size_t n, struct str claimed_by,
               int64_t margin_ms, struct err *err);
int fake_finish(struct driver_conn *c, struct finish_item **items, size_t n, struct err *err);
int fake_cancel(struct driver_conn *c, struct cancel_op **items, size_t n, struct err *err);
int fake_scan(struct driver_conn *c, struct scan_op *op, struct err *err);

struct driver_conn {
    struct fake_db *db;
};

#endif
