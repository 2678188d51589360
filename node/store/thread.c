/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/thread.h"

#include <signal.h>
#include <time.h>

#define LONGEST_WAIT_MS (3600 * 1000)

int thread_start(pthread_t *ret, void *(*run)(void *), void *arg, const char *name)
{
    sigset_t all;
    sigset_t before;
    int rc;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(ret, NULL, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return ERR_IO;
    (void)pthread_setname_np(*ret, name);
    return 0;
}

int wake_init(pthread_cond_t *wake)
{
    pthread_condattr_t attr;
    int rc;

    rc = pthread_condattr_init(&attr);
    if (rc)
        return ERR_IO;
    rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (!rc)
        rc = pthread_cond_init(wake, &attr);
    pthread_condattr_destroy(&attr);
    return rc ? ERR_IO : 0;
}

void wake_wait(pthread_cond_t *wake, pthread_mutex_t *lock, int64_t ms)
{
    struct timespec t;

    if (ms > LONGEST_WAIT_MS)
        ms = LONGEST_WAIT_MS;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(wake, lock, &t);
}
