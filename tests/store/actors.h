/* SPDX-License-Identifier: Apache-2.0 */
/* Threads with a connection each. They only note what they saw; the test's thread judges it after
 * they have ended. */
#ifndef JF_TESTS_ACTORS_H
#define JF_TESTS_ACTORS_H

#include <pthread.h>

#include "common/ids.h"
#include "tests/store/world.h"

struct actor {
    pthread_t thread;
    struct world *w;
    struct driver_conn *conn;
    void *ctx;
    size_t index;
    size_t n_busy; /* calls that were run again */
    int rc;        /* the first unexpected one */
    struct err err;
    struct rng rng;
};

/* The caller's memory, which lasts until actors_join. */
void actor_start(struct world *w, struct actor *a, size_t index, void *(*run)(void *), void *ctx);
/* Waits for them, and fails the test when one of them met an error. */
void actors_join(struct actor *a, size_t n);

/* What actor_try does with a result: true when the call is to be run again. */
bool actor_again(struct actor *a, int rc);
/* Notes any error but this one (0: none is expected); true when it worked. */
bool actor_expect(struct actor *a, int rc, int expected);

/* Runs `expr` again while it is busy, or a key is taken; gives its result. */
#define ACTOR_RUN(a, expr)                                                                         \
    ({                                                                                             \
        int rc_;                                                                                   \
        do {                                                                                       \
            rc_ = (expr);                                                                          \
        } while (actor_again((a), rc_));                                                           \
        rc_;                                                                                       \
    })
/* Likewise; notes any error. True when it worked. */
#define TRY(a, expr) actor_expect((a), ACTOR_RUN((a), (expr)), 0)

#endif
