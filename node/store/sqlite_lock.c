/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX locks go with the process, also after kill -9, and are not inherited. But they go, too,
 * when the process closes any descriptor of the file: so there is one descriptor for each file, and
 * one list of them for the process, as the locks themselves are. */
#include "node/store/sqlite_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sqlite_lock {
    dev_t dev;
    ino_t ino;
    int fd;
    unsigned n_shares;
    struct sqlite_lock *next;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sqlite_lock *list;

static struct sqlite_lock *find(const char *name)
{
    struct sqlite_lock *l = list;
    struct stat st;

    if (stat(name, &st))
        return NULL;
    while (l && (l->dev != st.st_dev || l->ino != st.st_ino))
        l = l->next;
    return l;
}

static int take_new(const char *name, const char *path, struct sqlite_lock *l, struct err *err)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat st;

    l->fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (l->fd < 0)
        return err_set(err, ERR_UNAVAILABLE, "%s: %s", name, strerror(errno));
    if (fcntl(l->fd, F_SETLK, &lock) || fstat(l->fd, &st)) {
        (void)close(l->fd);
        return err_set(err, ERR_UNAVAILABLE,
                       "another process uses %s: an SQLite file serves one jobflowd at a time",
                       path);
    }
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    l->next = list;
    list = l;
    return 0;
}

int sqlite_lock_take(const char *path, struct sqlite_lock **ret, struct err *err)
{
    struct sqlite_lock *l;
    char name[4096];
    int rc = 0;

    if (snprintf(name, sizeof(name), "%s.lock", path) >= (int)sizeof(name))
        return err_set(err, ERR_INVALID, "the path of the SQLite file is too long");
    (void)pthread_mutex_lock(&list_lock);
    l = find(name);
    if (!l) {
        l = calloc(1, sizeof(*l));
        rc = l ? take_new(name, path, l, err) : err_set(err, ERR_NOMEM, "no memory for a lock");
    }
    if (rc)
        free(l);
    else
        l->n_shares++;
    (void)pthread_mutex_unlock(&list_lock);
    if (!rc)
        *ret = l;
    return rc;
}

void sqlite_lock_drop(struct sqlite_lock *l)
{
    struct sqlite_lock **link = &list;

    if (!l)
        return;
    (void)pthread_mutex_lock(&list_lock);
    if (--l->n_shares == 0) {
        while (*link != l)
            link = &(*link)->next;
        *link = l->next;
        (void)close(l->fd);
        free(l);
    }
    (void)pthread_mutex_unlock(&list_lock);
}
