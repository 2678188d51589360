/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to the node, by libcurl: blocking, from any thread. */
#ifndef JFX_NODE_H
#define JFX_NODE_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct jfx_node;

/* `url` is copied. NULL when out of memory. */
struct jfx_node *jfx_node_new(const char *url);
void jfx_node_free(struct jfx_node *node);

struct jfx_call {
    const char *method;
    const char *path;
    const char *body;         /* NULL = none */
    unsigned tries;           /* at least 1 */
    const atomic_bool *abort; /* given up soon after this is true; NULL = never */
    long timeout_ms;          /* of each try; 0 = 15 s */

    /* Out. */
    int status;      /* of the last try; 0 = no answer came */
    long asked_ms;   /* how long the last answer asked to wait, at most 30 s; 0 = it did not */
    char *answer;    /* the caller's, by free(), even on an error; may be NULL */
    char error[256]; /* why no answer came */
};

/* Tries while no answer comes, or 408, 429 or 5xx, with growing waits between.
 * Errors: ENOMEM, EUNREACHABLE. Any other answer is success. */
int jfx_node_call(struct jfx_node *node, struct jfx_call *call);

/* Before try number n (from 1) is repeated: 200 ms doubled each time up to 10 s, a quarter of it by
 * chance; longer if the node asked for it, up to 30 s. */
long jfx_node_wait_ms(unsigned n, long asked_ms);

/* Sleeps in small steps, less when *abort becomes true. */
void jfx_node_sleep(long ms, const atomic_bool *abort);

/* A peer that is gone must not end the program: between the two, no SIGPIPE of this thread's own
 * reaches it. */
struct jfx_no_sigpipe {
    sigset_t before;
    bool was_pending;
};

void jfx_no_sigpipe_begin(struct jfx_no_sigpipe *s);
void jfx_no_sigpipe_end(const struct jfx_no_sigpipe *s);

#endif
