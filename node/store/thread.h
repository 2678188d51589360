/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the store's, and waiting by the monotonic clock. */
#ifndef JF_STORE_THREAD_H
#define JF_STORE_THREAD_H

#include <pthread.h>

#include "common/clock.h"
#include "common/err.h"

/* Starts a thread that gets no signals: these are for the main thread. Errors: ERR_IO. */
MUST_CHECK int thread_start(pthread_t *ret, void *(*run)(void *), void *arg, const char *name);

/* A condition for wake_wait(). Errors: ERR_IO. */
MUST_CHECK int wake_init(pthread_cond_t *wake);

/* With the lock held: waits for a signal, at most `ms`; the caller looks at the time. */
void wake_wait(pthread_cond_t *wake, pthread_mutex_t *lock, int64_t ms);

#endif
