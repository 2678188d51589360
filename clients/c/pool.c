/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct jfx_pool {
    pthread_mutex_t lock;
    pthread_cond_t is_changed;
    struct jfx_work *first;
    struct jfx_work *last;
    unsigned n_waiting;
    unsigned n_busy;
    unsigned max_waiting;
    unsigned n_threads;
    bool is_ending;
    void (*run)(struct jfx_work *work);
    pthread_t threads[];
};

static struct jfx_work *take(struct jfx_pool *pool)
{
    struct jfx_work *work = pool->first;

    pool->first = work->next;
    work->next = NULL;
    pool->n_waiting--;
    pool->n_busy++;
    return work;
}

static void *serve(void *ctx)
{
    struct jfx_pool *pool = ctx;

    pthread_mutex_lock(&pool->lock);
    while (true) {
        while (!pool->first && !pool->is_ending)
            pthread_cond_wait(&pool->is_changed, &pool->lock);
        if (!pool->first)
            break;
        struct jfx_work *work = take(pool);
        pthread_mutex_unlock(&pool->lock);
        pool->run(work);
        pthread_mutex_lock(&pool->lock);
        pool->n_busy--;
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Signals belong to the program's own threads. */
static bool start_threads(struct jfx_pool *pool, unsigned n)
{
    sigset_t all;
    sigset_t before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->n_threads < n &&
           pthread_create(&pool->threads[pool->n_threads], NULL, serve, pool) == 0)
        pool->n_threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pool->n_threads == n;
}

struct jfx_pool *jfx_pool_new(unsigned n_threads, unsigned max_waiting,
                              void (*run)(struct jfx_work *work))
{
    struct jfx_pool *pool = calloc(1, sizeof(*pool) + n_threads * sizeof(pool->threads[0]));

    if (!pool)
        return NULL;
    if (pthread_mutex_init(&pool->lock, NULL)) {
        free(pool);
        return NULL;
    }
    if (pthread_cond_init(&pool->is_changed, NULL)) {
        pthread_mutex_destroy(&pool->lock);
        free(pool);
        return NULL;
    }
    pool->max_waiting = max_waiting;
    pool->run = run;
    if (!start_threads(pool, n_threads)) {
        jfx_pool_free(pool);
        return NULL;
    }
    return pool;
}

void jfx_pool_free(struct jfx_pool *pool)
{
    if (!pool)
        return;
    assert(!pool->first);
    pthread_mutex_lock(&pool->lock);
    pool->is_ending = true;
    pthread_cond_broadcast(&pool->is_changed);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->is_changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

bool jfx_pool_add(struct jfx_pool *pool, struct jfx_work *work)
{
    pthread_mutex_lock(&pool->lock);
    bool fits = pool->n_waiting + pool->n_busy < pool->n_threads + pool->max_waiting;
    if (fits) {
        work->next = NULL;
        if (pool->first)
            pool->last->next = work;
        else
            pool->first = work;
        pool->last = work;
        pool->n_waiting++;
        pthread_cond_signal(&pool->is_changed);
    }
    pthread_mutex_unlock(&pool->lock);
    return fits;
}

struct jfx_work *jfx_pool_take_waiting(struct jfx_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct jfx_work *first = pool->first;
    pool->first = NULL;
    pool->n_waiting = 0;
    pthread_mutex_unlock(&pool->lock);
    return first;
}
