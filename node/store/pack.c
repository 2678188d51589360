/* SPDX-License-Identifier: Apache-2.0 */
/* Until the end a span holds its offset + 1 in the text, since the text still moves. */
#include "node/store/pack.h"

#include <stdlib.h>
#include <string.h>

struct str pack_text(struct pack *p, struct str s)
{
    struct str offset = {NULL, s.len};

    if (!s.p)
        return offset;
    offset.p = (const char *)(uintptr_t)(p->text.len + 1);
    buf_adds(&p->text, s);
    return offset;
}

void *pack_end(struct pack *p, size_t row_size, const size_t *spans, size_t n_spans)
{
    char *block;

    if (!buf_ok(&p->rows) || !buf_ok(&p->text))
        return NULL;
    block = malloc(p->rows.len + p->text.len + 1);
    if (!block)
        return NULL;
    if (p->rows.len)
        memcpy(block, p->rows.data, p->rows.len);
    if (p->text.len)
        memcpy(block + p->rows.len, p->text.data, p->text.len);
    for (size_t at = 0; at < p->rows.len; at += row_size) {
        for (size_t i = 0; i < n_spans; i++) {
            struct str *s = (struct str *)(block + at + spans[i]);

            if (s->p)
                s->p = block + p->rows.len + ((uintptr_t)s->p - 1);
        }
    }
    return block;
}

void pack_fini(struct pack *p)
{
    buf_fini(&p->rows);
    buf_fini(&p->text);
}
