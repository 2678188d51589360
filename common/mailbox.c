/* SPDX-License-Identifier: Apache-2.0 */
/* A stack that any thread pushes to and the loop takes as a whole, then turns round: since nothing
 * is ever popped singly, a compare-and-set on the head cannot be fooled by a re-used address.
 *
 * The eventfd is written by whoever finds the stack empty, after the push. The loop clears it
 * before it takes the stack, so a post that comes between the two costs an idle wake-up and never
 * loses one. */
#include "common/mailbox.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct mailbox {
    _Atomic(struct mail *) newest;
    int fd;
};

int mailbox_new(struct mailbox **ret)
{
    struct mailbox *mb = calloc(1, sizeof(*mb));
    if (!mb)
        return ERR_NOMEM;
    mb->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (mb->fd < 0) {
        free(mb);
        return ERR_IO;
    }
    *ret = mb;
    return 0;
}

void mailbox_free(struct mailbox *mb)
{
    if (!mb)
        return;
    close(mb->fd);
    free(mb);
}

int mailbox_fd(const struct mailbox *mb)
{
    return mb->fd;
}

void mailbox_post(struct mailbox *mb, struct mail *m)
{
    /* Read before the push: from then on the loop may deliver m, and the owner may go on. */
    int fd = mb->fd;
    struct mail *older = atomic_load_explicit(&mb->newest, memory_order_relaxed);
    do {
        m->next = older;
    } while (!atomic_compare_exchange_weak_explicit(&mb->newest, &older, m, memory_order_release,
                                                    memory_order_relaxed));
    if (older)
        return;
    const uint64_t one = 1;
    ssize_t n;
    do {
        n = write(fd, &one, sizeof(one));
    } while (n < 0 && errno == EINTR);
    /* EAGAIN would mean 2^64 - 2 unread wake-ups, which wake just as well. */
    assert(n == sizeof(one) || errno == EAGAIN);
}

static void clear_wakeups(struct mailbox *mb)
{
    uint64_t count;
    ssize_t n;
    do {
        n = read(mb->fd, &count, sizeof(count));
    } while (n < 0 && errno == EINTR);
    assert(n == sizeof(count) || errno == EAGAIN);
}

unsigned mailbox_deliver(struct mailbox *mb)
{
    clear_wakeups(mb);
    struct mail *m = atomic_exchange_explicit(&mb->newest, NULL, memory_order_acquire);
    struct mail *oldest = NULL;
    while (m) {
        struct mail *older = m->next;
        m->next = oldest;
        oldest = m;
        m = older;
    }
    unsigned n = 0;
    while (oldest) {
        struct mail *next = oldest->next;
        oldest->on_delivery(oldest);
        oldest = next;
        n++;
    }
    return n;
}
