/* SPDX-License-Identifier: Apache-2.0 */
/* A connection's other end, in memory. The server's socket calls are linked to this file
 * (--wrap), and so is the clock, which stands still: what a run does depends on its input only. The
 * descriptor that the event loop watches is always ready. */
#ifndef TEST_FAKE_WIRE_H
#define TEST_FAKE_WIRE_H

#include "common/buf.h"

struct wire {
    struct str in;    /* what this end sends */
    struct str sizes; /* how much the server's reads and writes get: see fake_wire.c */
    bool is_whole;    /* each read gets all that it has room for, each write takes all */
    bool eof;         /* this end sends no more than `in` */
    int fd;           /* the server's */
    size_t n_read;
    size_t n_sizes; /* used */
    bool is_shut;   /* the server sends no more */
    struct buf out; /* what the server sent */
    unsigned n_steps;
};

/* One at a time. The descriptor is the server's to close. */
void wire_open(struct wire *w);
void wire_fini(struct wire *w);

#endif
