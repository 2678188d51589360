/* SPDX-License-Identifier: Apache-2.0 */
/* MySQL and MariaDB: how statements are put together and run, shared by the driver's files.
 *
 * A packet holds one or more statements with their values in the text, and takes one round trip.
 * The server runs them in order and stops at the first error. Values go in by my_put…() only, which
 * quote them for the connection's character set. */
#ifndef JF_STORE_MYSQL_PACKET_H
#define JF_STORE_MYSQL_PACKET_H

#include "node/store/driver.h"
#include "node/store/submit.h"

struct my_packet {
    struct sql *db;
    struct buf text;
    struct buf readers; /* of struct my_reader, one per statement */
    size_t at;          /* while it runs: the statement whose rows come */
    size_t key_wait;    /* the statement, counted from 1, that waits for keys of tasks; 0 = none */
    bool commits;
};

/* Begins with what begins the transaction, if that is still to be said. */
void my_packet_start(struct my_packet *p, struct sql *db);
void my_packet_fini(struct my_packet *p);

/* What is put from now on is a statement of its own, whose rows go to on_row (NULL: there are
 * none). *ret_changed (may be NULL) becomes the rows written; an UPDATE counts all that it found.
 */
void my_statement(struct my_packet *p, sql_row_fn *on_row, void *ctx, int64_t *ret_changed);

/* The statement that has just begun waits for keys of tasks that others' transactions have: when it
 * does so for too long, the connection's lock_timed_out says so. */
void my_waits_for_keys(struct my_packet *p);

/* A patience in what the server counts locks' waits in: whole seconds, and less than a statement's
 * time, so that one knows which it was. 0 = no wait, which MySQL does not have: there it is 1. */
int64_t my_lock_wait_s(struct sql *db, int64_t ms);

/* A text with the marks of sql.h; its `?` become the values. */
void my_put_query(struct my_packet *p, const char *text, const struct sql_value *params, size_t n);
void my_put(struct my_packet *p, const char *text);
void my_put_row(struct my_packet *p, const struct sql_value *values, size_t n); /* "(1,'a')" */
void my_put_int(struct my_packet *p, int64_t v);
void my_put_text(struct my_packet *p, struct str s); /* absent: NULL */
void my_put_time(struct my_packet *p, wall_ms t);    /* WALL_NONE: NULL */

/* COMMIT as the last statement: sql_end then has nothing left to do. */
void my_put_commit(struct my_packet *p);

/* Runs all. Errors: as in driver.h. ERR_INVALID also for a packet that the server would not take.
 * A row that on_row refuses does not keep the statements behind it from running. */
MUST_CHECK int my_packet_run(struct my_packet *p, struct err *err);

/* mysql_ids.c: ids, and a value of each. */
struct my_ids {
    struct buf ids; /* of int64_t */
    struct buf values;
    size_t n;
};

void my_ids_add(struct my_ids *l, int64_t id, int64_t value);
void my_ids_fini(struct my_ids *l);
/* A condition: the column is one of the ids, of which there is at least one. */
void my_put_ids(struct my_packet *p, const char *column, const struct my_ids *l);
/* An expression: the value of the row's id. */
void my_put_value_by_id(struct my_packet *p, const struct my_ids *l);

/* mysql_hot.c: set-wise, one or two round trips a batch. */
extern const struct submit_ops my_submit_ops;
MUST_CHECK int my_claim(struct sql *db, struct claim_item **items, size_t n, struct str claimed_by,
                        int64_t margin_ms, struct err *err);
MUST_CHECK int my_scan(struct sql *db, struct scan_op *op, struct err *err);

/* mysql_finish.c */
MUST_CHECK int my_finish(struct sql *db, struct finish_item **items, size_t n, struct err *err);
MUST_CHECK int my_cancel(struct sql *db, struct cancel_op **items, size_t n, struct err *err);

/* A locking statement on a small table must not read all of it: it would wait for, and lock, rows
 * that are none of its business. */
#define BY_ID " FORCE INDEX (PRIMARY)"
#define BY_KEY " FORCE INDEX (job_delay_task_biz_uuid)"
#define BY_OLD_KEY " FORCE INDEX (job_delay_task_history_biz_uuid)"

#endif
