/* SPDX-License-Identifier: Apache-2.0 */
/* One test's database with a connection, and the short words in which the cases are written. All
 * that a world hands out is the world's and lasts until its end. The functions fail the test
 * when something does not go as its name says; call them on the test's thread. */
#ifndef JF_TESTS_WORLD_H
#define JF_TESTS_WORLD_H

#include "tests/store/conformance.h"

#define NODE "node-a/1"
#define MARGIN_MS 60000
#define TIMEOUT_MS 30000  /* a service's */
#define DEADLINE_MS 60000 /* for what a case waits for */

struct world {
    const struct backend *backend;
    const struct driver *d;
    char url[URL_SIZE];
    struct driver_conn *conn; /* the schema is current */
    struct kept *kept;
    struct rig *rig; /* NULL, or a store that runs: ends before all else */
    void (*stop_rig)(struct rig *r);
    int64_t next_id;
    int64_t n_ids;
};

struct world *world_new(const struct backend *b);
void world_free(struct world *w);

/* ---- Things that last as long as the world ------------------------------------------------- */

struct driver_conn *world_connect(struct world *w);
struct driver_conn *world_connect_to(struct world *w, const char *url,
                                     const struct driver_options *opt, const char **ret_warning);
const char *world_empty(struct world *w);       /* the URL of one more database, without a schema */
void *world_keep(struct world *w, void *block); /* free()d */
const struct task *world_keep_task(struct world *w, struct task *t); /* NULL stays NULL */
struct str world_text(struct world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
struct str world_fill(struct world *w, const char *unit, size_t n); /* n bytes of repeated units */

/* ---- Time ---------------------------------------------------------------------------------- */

wall_ms world_now(struct world *w);               /* the store's clock */
void world_wait_past(struct world *w, wall_ms t); /* until it is later than t */
void nap(void);                                   /* a millisecond, between two looks */

/* ---- SQL ----------------------------------------------------------------------------------- */

int64_t sql_value(struct world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool has_sql(const struct world *w);

/* ---- Submission ---------------------------------------------------------------------------- */

/* A due task of service "svc", handler "h", with an id, a trace id and the payload {"n":1}. */
struct task draft(struct world *w, const char *biz_uuid);
struct task draft_key(struct world *w, struct str biz_uuid);
void stamp(struct world *w, struct task *t); /* a new id and trace id */

/* Runs the driver's submit; `existing` of the items becomes the world's. */
void submit(struct world *w, struct submit_item *items, size_t n);
struct submit_item submit_one(struct world *w, struct task *t, enum on_conflict on_conflict,
                              bool absolute_time);
int64_t put(struct world *w, struct task *t); /* CREATED; returns the id */
int64_t put_key(struct world *w, const char *biz_uuid);
/* Many tasks at once, whose keys are prefix0000, prefix0001, …; ids[i] is that of number i. */
void put_many(struct world *w, const char *prefix, size_t n, const struct task *like,
              int64_t *ret_ids);
/* Tasks with this payload, in batches of usual size, and their claims by NODE, all of which are
 * won. Keys begin with "crowd". The world's. */
const int64_t *put_crowd(struct world *w, size_t n, struct str payload);
void claim_crowd(struct world *w, const int64_t *ids, size_t n);

/* ---- The life of a task -------------------------------------------------------------------- */

struct claim_item claim_of(int64_t id, int32_t attempt);
void claim(struct world *w, struct claim_item *items, size_t n, const char *claimed_by);
struct claim_item claim_as(struct world *w, int64_t id, int32_t attempt, const char *claimed_by);
const struct task *claim_won(struct world *w, int64_t id, int32_t attempt); /* by NODE */

/* The end of (id, attempt) as `kind`, from SENDING or SENT, with sound values. */
struct finish_item finish_of(struct world *w, int64_t id, int32_t attempt, enum finish_kind kind);
void finish(struct world *w, struct finish_item *items, size_t n);
enum finish_result finish_one(struct world *w, struct finish_item item);
void finish_done(struct world *w, int64_t id, int32_t attempt, enum finish_kind kind);

enum cancel_result cancel(struct world *w, const char *biz_uuid, const struct task **ret_task);

/* Creates a task and takes it to a status by the usual steps: 0 attempts for PENDING and CANCELLED,
 * else 1. MANUAL_REQUIRED needs SQL. Returns the record. */
const struct task *bring(struct world *w, const char *biz_uuid, enum task_status status);

/* ---- Looking ------------------------------------------------------------------------------- */

int call(struct world *w, struct store_call *c, enum call_what what);
const struct task *look(struct world *w, const char *biz_uuid); /* NULL when unknown */
const struct task *look_key(struct world *w, struct str biz_uuid);
const struct task *look_id(struct world *w, int64_t id);
struct call_get look_attempts(struct world *w, int64_t id);
size_t count_alerts(struct world *w); /* those whose next try is due; puts them off by nothing */
void assert_status(struct world *w, const char *biz_uuid, enum task_status status);

#define assert_str(s, z) assert_str_at((s), (z), __FILE__, __LINE__)
void assert_str_at(struct str s, const char *z, const char *file, int line);
/* Every field. */
#define assert_same_task(a, b) assert_same_task_at((a), (b), __FILE__, __LINE__)
void assert_same_task_at(const struct task *a, const struct task *b, const char *file, int line);

#endif
