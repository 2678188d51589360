/* SPDX-License-Identifier: Apache-2.0 */
/* A binary min-heap of nodes that live inside the caller's structs; each node knows its position,
 * so any element can be moved or removed in O(log n). Ties leave in order of `seq`. */
#ifndef JF_COMMON_HEAP_H
#define JF_COMMON_HEAP_H

#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_node {
    int64_t key;
    uint64_t seq; /* set by heap_add */
    size_t pos;   /* 1-based; 0 = in no heap */
};

struct heap {
    struct heap_node **nodes; /* owned array; the nodes are the caller's */
    size_t n;
    size_t cap;
    uint64_t next_seq;
};

void heap_fini(struct heap *h); /* leaves the nodes alone */
/* The node must be in no heap. Errors: ERR_NOMEM. */
MUST_CHECK int heap_add(struct heap *h, struct heap_node *node, int64_t key);
void heap_remove(struct heap *h, struct heap_node *node); /* must be in this heap */
void heap_move(struct heap *h, struct heap_node *node, int64_t key);
struct heap_node *heap_first(const struct heap *h); /* NULL when empty */
void heap_check(const struct heap *h);              /* aborts when an invariant is broken */

#endif
