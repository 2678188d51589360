/* SPDX-License-Identifier: Apache-2.0 */
/* A running store on a world's database, for the cases where queue and threads matter. Jobs are
 * operations with their memory; they live as long as the rig. The test's thread is the loop. */
#ifndef JF_TESTS_RIG_H
#define JF_TESTS_RIG_H

#include <stdatomic.h>

#include "node/store/store.h"
#include "tests/store/world.h"

struct rig;

struct job {
    struct job *next; /* the rig's list */
    struct rig *rig;
    size_t index; /* for the case, as are these two */
    bool answered;
    void *ctx;
    bool back;                      /* delivered */
    void (*on_back)(struct job *j); /* may be NULL; may post again */
    struct submit_item *items;      /* of a submission: owned, as are the tasks */
    struct task *tasks;
    struct claim_item claim_item;
    struct finish_item finish_item;
    union { /* the operation; zeroed */
        struct store_op op;
        struct submit_op submit;
        struct claim_op claim;
        struct finish_op finish;
        struct cancel_op cancel;
        struct scan_op scan;
        struct call_get get;
        struct call_clock clock;
        struct call_move move;
        struct call_run run;
        struct call_service_pause pause;
    };
};

struct rig {
    struct world *w;
    struct store *store; /* NULL once stopped */
    struct store_port port;
    struct mailbox *mailbox;
    struct job *jobs;
    size_t n_out;            /* posted and not back */
    atomic_uint n_committed; /* operations that on_committed saw */
    atomic_bool told_up;     /* what was told last */
    atomic_uint n_up;
    atomic_uint n_down;
    char down_text[320]; /* of the last time down; read it when n_down says so */
};

/* Sound values on the world's URL. */
struct store_config rig_config(struct world *w);

/* Starts; with `wait` until the store is up. One per world; it stops at the world's end. */
struct rig *rig_start(struct world *w, struct store_config cfg, bool wait);
void rig_stop(struct rig *r); /* the store; what was out has come back */

struct job *rig_job(struct rig *r, enum store_kind kind);
struct job *rig_submit_job(struct rig *r, size_t n); /* drafts without keys and ids */
struct job *rig_claim_job(struct rig *r, int64_t id, int32_t attempt);
struct job *rig_finish_job(struct rig *r, int64_t id, int32_t attempt, enum finish_kind kind);

int rig_try(struct rig *r, struct job *j); /* posts; what the port says */
void rig_post(struct rig *r, struct job *j);
/* Delivers what comes within `ms`, at least once. */
void rig_deliver(struct rig *r, int ms);
void rig_wait(struct rig *r); /* until nothing is out */
void rig_wait_up(struct rig *r);
/* Until the store knows that its database is gone: it learns from operations, which this posts,
 * one for each of its threads. They come back when the database does. */
void rig_wait_down(struct rig *r);

#endif
