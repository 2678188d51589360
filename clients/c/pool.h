/* SPDX-License-Identifier: Apache-2.0 */
/* A few threads and a bounded queue before them. */
#ifndef JFX_POOL_H
#define JFX_POOL_H

#include <stdbool.h>

struct jfx_pool;

/* To be the first member of what is queued. */
struct jfx_work {
    struct jfx_work *next;
};

/* `run` is called on a pool's thread. NULL when out of memory or threads. */
struct jfx_pool *jfx_pool_new(unsigned n_threads, unsigned max_waiting,
                              void (*run)(struct jfx_work *work));

/* Waits for the threads; nothing may be waiting any more. */
void jfx_pool_free(struct jfx_pool *pool);

/* False when the queue is full: beyond the threads that have nothing to do, max_waiting. */
bool jfx_pool_add(struct jfx_pool *pool, struct jfx_work *work);

/* Takes back what no thread has begun, in order. */
struct jfx_work *jfx_pool_take_waiting(struct jfx_pool *pool);

#endif
