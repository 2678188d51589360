/* SPDX-License-Identifier: Apache-2.0 */
/* The store: a bounded queue in front of the database and a few threads with one blocking
 * connection each, which drain it in batches (group commit). Loops post operations and never wait.
 *
 * Happy path: a thread takes what waits of one kind, up to the batch's limits of rows and bytes,
 * removes repeats of one key (they follow in the next batch), gives submissions their ids, runs the
 * driver's function, and posts each operation back to its mailbox.
 *
 * Failures: ERR_BUSY is run again at once, with a small random pause after the third time, up to a
 * limit; ERR_UNAVAILABLE reopens the connection and runs the same batch again. `give_up_ms` counts
 * from when an operation is posted: then it comes back with ERR_UNAVAILABLE, from the queue (also
 * while every thread is inside the database) or from a batch, at the latest one call of the
 * driver's later.
 *
 * Down is the database when a lane has no connection, and when writing fails: a batch or a call
 * that writes gave up though its connection stands (locked, full, read-only). In the second case it
 * is up again when a batch is committed or a probe works, which a thread makes at once and then
 * about once a second; a connection alone is not enough. While it is down submissions, cancels and
 * calls are refused at once (look-ups only without a connection); claims, finishes and scans wait
 * their turn up to give_up_ms, and are tried while there is a connection.
 *
 * A row that cannot be written (the database's rules or somebody's trigger refuse it, or a row that
 * should not be there has its key) is found by bisection and fails alone, whatever the batch
 * does. The effect of a batch whose
 * commit is unknown is cleared up by running it again: every driver function is repeatable. */
#ifndef JF_STORE_H
#define JF_STORE_H

#include "node/store/driver.h"

struct store_config {
    const char *url;
    uint32_t
        connections; /* threads; a driver with one_writer adds a reading one for scans and calls */
    uint32_t queue_limit;     /* operations waiting, submissions and calls: more are ERR_BUSY */
    uint32_t batch_rows;      /* rows in one transaction */
    size_t batch_bytes;       /* bytes of payload in one transaction */
    int64_t give_up_ms;       /* how long an operation may wait, from when it is posted */
    int64_t reconnect_max_ms; /* the back-off's cap */
    struct driver_options driver;
    /* After a commit, on a store thread, before the operations go back; may be NULL. For hints
     * about near tasks: reads the operations, keeps none. */
    void (*on_committed)(void *ctx, struct store_op *const *ops, size_t n);
    /* When the state of the database changes, on a store thread; may be NULL. `up` with text NULL,
     * or down with the reason. Called at once with the first state. */
    void (*on_state)(void *ctx, bool up, const char *text);
    /* A warning about durability settings; may be NULL. */
    void (*on_warning)(void *ctx, const char *text);
    void *ctx;
};

struct store;

/* Starts the threads and returns at once; they wait for the database, migrate the schema, and only
 * then take operations. `d` NULL: found by the URL. A schema that is newer than this program ends
 * the store: on_state says so and store_is_fatal becomes true.
 * Errors: ERR_INVALID (URL), ERR_NOMEM, ERR_IO. */
MUST_CHECK int store_start(const struct store_config *cfg, const struct driver *d,
                           struct store **ret, struct err *err);

/* From now on nothing waits for a database that is stuck. New operations are taken and run as long
 * as it is well; each has a second, then ERR_SHUTDOWN. As soon as it is seen not to be well,
 * nothing is run or taken any more (ERR_SHUTDOWN): the longest wait is the driver call that is
 * running. For whoever waits for its operations before store_stop(). May be called again; NULL is
 * accepted. */
void store_draining(struct store *s);

/* Drains, refuses new operations, ends what is queued (runs it when the database is up, else
 * answers ERR_SHUTDOWN), joins the threads and frees. All operations have been posted back when it
 * returns. NULL is accepted. */
void store_stop(struct store *s);

struct store_port store_port(struct store *s);
bool store_is_up(const struct store *s);
bool store_is_fatal(const struct store *s);

struct store_stats {
    uint32_t queued;
    uint64_t batches[STORE_N_KINDS];
    uint64_t rows[STORE_N_KINDS];
    uint64_t retries; /* batches run again */
    uint64_t reconnects;
};
void store_stats(const struct store *s, struct store_stats *ret);

/* For --migrate-only: connects, migrates, returns. */
MUST_CHECK int store_migrate(const char *url, const struct driver_options *opt, int *ret_from,
                             int *ret_to, struct err *err);

#endif
