/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a database server: each fsync and fdatasync takes SLOWSYNC_US microseconds longer,
 * as on a disk that is farther away. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void wait_longer(void)
{
    const char *text = getenv("SLOWSYNC_US");
    long us = text ? strtol(text, NULL, 10) : 0;
    struct timespec rest = {us / 1000000, us % 1000000 * 1000};
    int kept = errno;

    while (us > 0 && nanosleep(&rest, &rest) && errno == EINTR)
        ;
    errno = kept;
}

static int sync_by(const char *name, int fd)
{
    int (*real)(int);
    int rc;

    *(void **)&real = dlsym(RTLD_NEXT, name);
    if (!real)
        abort(); /* a sync that does nothing would be a lie */
    rc = real(fd);
    wait_longer();
    return rc;
}

int fsync(int fd)
{
    return sync_by("fsync", fd);
}

int fdatasync(int fildes)
{
    return sync_by("fdatasync", fildes);
}
