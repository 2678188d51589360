/* SPDX-License-Identifier: Apache-2.0 */
/* The insides of the store, for its own files: the shared state and the threads.
 *
 * Two locks, never taken the other way round: `report`, then `lock`. `report` keeps the callbacks
 * about the state in order and is held while they run; `lock` is held for bookkeeping only. Each
 * thread sleeps on a condition of its own, so that an operation wakes one thread. */
#ifndef JF_STORE_WORKER_H
#define JF_STORE_WORKER_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/store/batch.h"
#include "node/store/queue.h"
#include "node/store/store.h"
#include "node/store/thread.h"

#define STORE_MAX_WARNINGS 8 /* different texts that are passed on */

struct worker {
    struct store *store;
    unsigned index;
    pthread_t thread;
    pthread_cond_t wake; /* with the store's lock */
    unsigned lanes;      /* bits: what it serves */
    struct rng rng;
    /* Under the lock. */
    bool idle;           /* waits for an operation */
    enum lane woken_for; /* by whom woke it; else LANE_NONE */
    bool serving;        /* counted in n_serving */
    enum lane running;   /* counted in the queue as running it; else LANE_NONE */
    /* The thread's own. */
    enum lane last;
    struct driver_conn *conn; /* NULL: none */
    mono_ms connected_at;
    int64_t n_failures; /* tries to connect since something last worked: for the back-off */
    struct batch batch;
};

struct store {
    struct store_config cfg; /* url: own copy */
    const struct driver *driver;
    struct worker *workers;
    unsigned n_workers;

    pthread_mutex_t lock;
    struct queue queue;
    uint32_t n_serving[N_LANES]; /* threads with a connection */
    bool migrated;
    bool draining;
    bool stopping;  /* after draining */
    bool giving_in; /* draining, and the database does not do its part */
    mono_ms drain_at;
    atomic_bool is_up; /* every lane is served, and writing works */
    atomic_bool is_fatal;
    atomic_bool is_failing; /* writing */
    uint32_t n_waiting;     /* threads that wait for keys: transaction.h */
    uint32_t n_in_line;     /* threads that would */
    bool is_probing;
    mono_ms probe_at;
    /* The block of ids in use. */
    int64_t id_next;
    int64_t id_end;

    pthread_mutex_t report;
    bool has_reported;
    bool reported_up;
    char *warnings[STORE_MAX_WARNINGS];
    size_t n_warnings;

    pthread_t sweeper;
    pthread_cond_t sweep_wake;
    bool has_sweeper;
    bool sweep_ends;

    _Atomic uint64_t n_batches[STORE_N_KINDS];
    _Atomic uint64_t n_rows[STORE_N_KINDS];
    _Atomic uint64_t n_retries;
    _Atomic uint64_t n_reconnects;
};

#define WORKER_FOR_EVER INT64_MAX

/* The caller's memory; starts the thread. Errors: ERR_IO. */
MUST_CHECK int worker_start(struct worker *w, struct store *s, unsigned index, unsigned lanes);
/* Joins the thread; `stopping` is set and the thread has been woken. */
void worker_join(struct worker *w);

/* With the lock held: wakes a thread for each lane that wants one. */
void workers_wake(struct store *s);
/* With the lock held: makes all threads look again at what has changed. */
void workers_wake_all(struct store *s);

/* On the worker's thread, without the lock. Sleeps; returns false, at once, when the store drains.
 */
bool worker_pause(struct worker *w, int64_t ms);

/* Closes the connection and opens a new one, again and again with back-off, until `until`. Returns
 * false without one: the time is over, or the store drains (then a batch, which has a time, is
 * worth a few tries without pause) or is fatal; `err` then has the last reason. */
bool worker_reconnect(struct worker *w, mono_ms until, struct err *err);
void worker_disconnect(struct worker *w);

/* Answers a chain of operations. */
void ops_answer(struct store_op *chain, int rc, const char *text);

#endif
