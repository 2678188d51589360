/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fake_wire.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#define FIXED_SECOND INT64_C(1700000000)

ssize_t __wrap_recv(int fd, void *dst, size_t n, int flags);
ssize_t __wrap_send(int fd, const void *src, size_t n, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags);
int __wrap_shutdown(int fd, int how);
int __wrap_clock_gettime(clockid_t id, struct timespec *ret);

static struct wire *current;

void wire_open(struct wire *w)
{
    w->fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    assert(w->fd >= 0);
    current = w;
}

void wire_fini(struct wire *w)
{
    buf_fini(&w->out);
    current = NULL;
}

/* Of a byte the lower bits are a size; with the next one set a write gets nothing at first. Behind
 * the last byte it begins again; without any, sizes are one, or seven of a longer input. */
static size_t next_size(struct wire *w, size_t n, bool is_write)
{
    size_t size = w->in.len < 512 ? 1 : 7;
    if (w->is_whole)
        return n;
    if (w->sizes.len > 0) {
        uint8_t byte = (uint8_t)w->sizes.p[w->n_sizes++ % w->sizes.len];
        size = (size_t)(byte & 0x3f) + 1;
        if (is_write && (byte & 0x40) && w->n_sizes % 2 == 1)
            size = 0;
    }
    return size < n ? size : n;
}

static ssize_t not_now(void)
{
    errno = EAGAIN;
    return -1;
}

ssize_t __wrap_recv(int fd, void *dst, size_t n, int flags)
{
    struct wire *w = current;
    assert(w && fd == w->fd && n > 0 && !(flags & MSG_PEEK));
    size_t left = w->in.len - w->n_read;
    if (left == 0 && !w->eof)
        return not_now();
    w->n_steps++;
    if (left == 0)
        return 0;
    size_t size = next_size(w, n < left ? n : left, false);
    memcpy(dst, w->in.p + w->n_read, size);
    w->n_read += size;
    return (ssize_t)size;
}

static ssize_t take(const struct iovec *iov, size_t n_iov, size_t size)
{
    struct wire *w = current;
    size_t left = size;
    assert(!w->is_shut);
    w->n_steps++;
    if (size == 0)
        return not_now();
    for (size_t i = 0; i < n_iov && left > 0; i++) {
        size_t n = iov[i].iov_len < left ? iov[i].iov_len : left;
        buf_add(&w->out, iov[i].iov_base, n);
        left -= n;
    }
    assert(left == 0 && buf_ok(&w->out));
    return (ssize_t)size;
}

ssize_t __wrap_send(int fd, const void *src, size_t n, int flags)
{
    struct iovec iov = {(void *)src, n};
    assert(current && fd == current->fd && n > 0 && (flags & MSG_NOSIGNAL));
    /* An interim answer finds an empty socket buffer, into which it fits. */
    bool is_interim = n >= 12 && memcmp(src, "HTTP/1.1 100", 12) == 0;
    return take(&iov, 1, is_interim ? n : next_size(current, n, true));
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags)
{
    size_t n = 0;
    assert(current && fd == current->fd && (flags & MSG_NOSIGNAL));
    for (size_t i = 0; i < msg->msg_iovlen; i++)
        n += msg->msg_iov[i].iov_len;
    return take(msg->msg_iov, msg->msg_iovlen, next_size(current, n, true));
}

int __wrap_shutdown(int fd, int how)
{
    assert(current && fd == current->fd && how == SHUT_WR);
    current->is_shut = true;
    current->n_steps++;
    return 0;
}

int __wrap_clock_gettime(clockid_t id, struct timespec *ret)
{
    (void)id;
    *ret = (struct timespec){.tv_sec = FIXED_SECOND};
    return 0;
}
