/* SPDX-License-Identifier: Apache-2.0 */
/* Collects rows of unknown number, with their strings, into one block of memory. */
#ifndef JF_STORE_PACK_H
#define JF_STORE_PACK_H

#include "common/buf.h"

struct pack {
    struct buf rows;
    struct buf text;
};

#define PACK_INIT ((struct pack){BUF_INIT, BUF_INIT})

/* Copies a string of a row that is added next. The span returned becomes valid in pack_end. */
struct str pack_text(struct pack *p, struct str s);

static inline void pack_add(struct pack *p, const void *row, size_t size)
{
    buf_add(&p->rows, row, size);
}

/* Ends the collection: returns the rows, followed by their strings, in one block for free(), or
 * NULL when out of memory. `spans` are the offsets of the struct str members that came from
 * pack_text. */
void *pack_end(struct pack *p, size_t row_size, const size_t *spans, size_t n_spans);

void pack_fini(struct pack *p);

#endif
