/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of PostgreSQL's driver share. */
#ifndef JF_STORE_POSTGRES_H
#define JF_STORE_POSTGRES_H

#include "node/store/driver.h"
#include "node/store/submit.h"

/* An array parameter in PostgreSQL's binary form, filled element by element. */
enum pg_array_type { PG_INT8 = 20, PG_TEXT = 25, PG_TIMESTAMPTZ = 1184 }; /* the elements' OIDs */

struct pg_array {
    enum pg_array_type type;
    bool has_null;
    uint32_t n;
    struct buf data;
};

void pg_array_start(struct pg_array *a, enum pg_array_type type);
void pg_array_add(struct pg_array *a, int64_t v);     /* PG_INT8 */
void pg_array_time(struct pg_array *a, wall_ms t);    /* WALL_NONE: NULL */
void pg_array_text(struct pg_array *a, struct str s); /* absent: NULL */
struct str pg_array_end(struct pg_array *a); /* the whole; borrowed; check buf_ok(&a->data) */
void pg_array_fini(struct pg_array *a);
void pg_arrays_fini(struct pg_array *a, size_t n);

/* Microseconds since 2000-01-01, and back. */
int64_t pg_time_of(wall_ms t);
wall_ms pg_time_to(int64_t v);

/* Runs a constant statement whose first parameters are arrays and whose others are `scalars`. `?`
 * are numbered through. */
struct pg_query {
    const char *text;
    struct pg_array *arrays;
    size_t n_arrays;
    const struct sql_value *scalars;
    size_t n_scalars;
    sql_row_fn *on_row;
    void *ctx;
};
MUST_CHECK int pg_run(struct sql *db, const struct pg_query *q, struct err *err);
/* The rows of a batch, whose ascending ids are the first array, and an element of another array
 * that belongs to the row. Not a join with unnest(): statistics of a moment when the table was
 * empty talk the planner into going through the whole table for the batch, or the batch for each
 * row. */
#define PG_BY_ID "id = ANY ($1::bigint[])"
#define PG_OF_ID(array) "(" array "::bigint[])[width_bucket(id, $1::bigint[])]"

/* Several in one round trip; each but the last brings little. Ends at the first error. */
#define PG_PIPELINE_MAX 4
MUST_CHECK int pg_run_all(struct sql *db, const struct pg_query *q, size_t n, struct err *err);
/* Likewise, and commits; after an error it rolls back. They are all of a transaction that has
 * begun: its end has nothing more to do. */
MUST_CHECK int pg_run_and_commit(struct sql *db, const struct pg_query *q, size_t n,
                                 struct err *err);

/* postgres_submit.c */
MUST_CHECK int pg_submit(struct sql *db, struct submit_item **items, size_t n, struct err *err);

/* postgres_hot.c: set-wise, one or two round trips a batch. */
MUST_CHECK int pg_claim(struct sql *db, struct claim_item **items, size_t n, struct str claimed_by,
                        int64_t margin_ms, struct err *err);
MUST_CHECK int pg_scan(struct sql *db, struct scan_op *op, struct err *err);

/* postgres_finish.c */
MUST_CHECK int pg_finish(struct sql *db, struct finish_item **items, size_t n, struct err *err);
MUST_CHECK int pg_cancel(struct sql *db, struct cancel_op **items, size_t n, struct err *err);

#endif
