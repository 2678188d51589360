/* SPDX-License-Identifier: Apache-2.0 */
#include "common/heap.h"

#include <assert.h>
#include <stdlib.h>

#define MIN_CAP 16

void heap_fini(struct heap *h)
{
    if (!h)
        return;
    free(h->nodes);
    *h = (struct heap){0};
}

static bool is_before(const struct heap_node *a, const struct heap_node *b)
{
    return a->key < b->key || (a->key == b->key && a->seq < b->seq);
}

/* Positions are 1-based: the parent of i is i / 2, its children are 2i and 2i + 1. */
static struct heap_node *at(const struct heap *h, size_t pos)
{
    return h->nodes[pos - 1];
}

static void place(struct heap *h, struct heap_node *node, size_t pos)
{
    h->nodes[pos - 1] = node;
    node->pos = pos;
}

static void sift_up(struct heap *h, struct heap_node *node, size_t pos)
{
    for (; pos > 1 && is_before(node, at(h, pos / 2)); pos /= 2)
        place(h, at(h, pos / 2), pos);
    place(h, node, pos);
}

static void sift_down(struct heap *h, struct heap_node *node, size_t pos)
{
    while (pos <= h->n / 2) {
        size_t child = 2 * pos;
        if (child < h->n && is_before(at(h, child + 1), at(h, child)))
            child++;
        if (!is_before(at(h, child), node))
            break;
        place(h, at(h, child), pos);
        pos = child;
    }
    place(h, node, pos);
}

/* Puts the node where it belongs, starting from a position whose content may be overwritten. */
static void settle(struct heap *h, struct heap_node *node, size_t pos)
{
    if (pos > 1 && is_before(node, at(h, pos / 2)))
        sift_up(h, node, pos);
    else
        sift_down(h, node, pos);
}

int heap_add(struct heap *h, struct heap_node *node, int64_t key)
{
    assert(node->pos == 0);
    if (h->n == h->cap) {
        size_t cap = h->cap ? h->cap * 2 : MIN_CAP;
        struct heap_node **nodes = reallocarray(h->nodes, cap, sizeof(nodes[0]));
        if (!nodes)
            return ERR_NOMEM;
        h->nodes = nodes;
        h->cap = cap;
    }
    node->key = key;
    node->seq = h->next_seq++;
    h->n++;
    sift_up(h, node, h->n);
    return 0;
}

void heap_remove(struct heap *h, struct heap_node *node)
{
    size_t pos = node->pos;
    assert(pos >= 1 && pos <= h->n && at(h, pos) == node);
    struct heap_node *last = at(h, h->n);
    h->n--;
    node->pos = 0;
    if (last != node)
        settle(h, last, pos);
}

void heap_move(struct heap *h, struct heap_node *node, int64_t key)
{
    assert(node->pos >= 1 && node->pos <= h->n && at(h, node->pos) == node);
    node->key = key;
    settle(h, node, node->pos);
}

struct heap_node *heap_first(const struct heap *h)
{
    return h->n > 0 ? h->nodes[0] : NULL;
}

void heap_check(const struct heap *h)
{
    assert(h->n <= h->cap);
    for (size_t pos = 1; pos <= h->n; pos++) {
        assert(at(h, pos)->pos == pos);
        assert(at(h, pos)->seq < h->next_seq);
        assert(pos == 1 || is_before(at(h, pos / 2), at(h, pos)));
    }
}
