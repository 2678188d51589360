/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/batch.h"

#include <assert.h>
#include <stdlib.h>

#include "node/store/queue.h"

/* The arrays of rows share one capacity. */
static int grow_rows(struct batch *b, size_t n)
{
    struct batch_row *rows;
    union batch_item *items;
    uint32_t *owners;

    if (n <= b->cap_rows)
        return 0;
    rows = reallocarray(b->rows, n, sizeof(*rows));
    if (!rows)
        return ERR_NOMEM;
    b->rows = rows;
    items = reallocarray(b->items, n, sizeof(*items));
    if (!items)
        return ERR_NOMEM;
    b->items = items;
    owners = reallocarray(b->owners, n, sizeof(*owners));
    if (!owners)
        return ERR_NOMEM;
    b->owners = owners;
    b->cap_rows = n;
    return 0;
}

static int grow(struct batch *b, size_t n_ops, size_t n_rows)
{
    struct store_op **ops;

    if (n_ops > b->cap_ops) {
        ops = reallocarray(b->ops, n_ops, sizeof(struct store_op *));
        if (!ops)
            return ERR_NOMEM;
        b->ops = ops;
        b->cap_ops = n_ops;
    }
    return grow_rows(b, n_rows);
}

static struct batch_row *add_row(struct batch *b, uint32_t op)
{
    struct batch_row *row = &b->rows[b->n_rows];

    *row = (struct batch_row){.op = op, .seq = (uint32_t)b->n_rows++};
    return row;
}

static void add_op(struct batch *b, struct store_op *op)
{
    uint32_t index = (uint32_t)b->n_ops;
    size_t n = op_rows(op);

    b->ops[b->n_ops++] = op;
    switch (op->kind) {
    case STORE_SUBMIT:
        for (size_t i = 0; i < n; i++) {
            struct batch_row *row = add_row(b, index);

            row->item.submit = &((struct submit_op *)op)->items[i];
            row->item.submit->existing = NULL;
            row->key = row->item.submit->task->biz_uuid;
            row->bytes = row->item.submit->task->payload.len;
        }
        break;
    case STORE_CLAIM:
        for (size_t i = 0; i < n; i++) {
            struct batch_row *row = add_row(b, index);

            row->item.claim = &((struct claim_op *)op)->items[i];
            row->item.claim->task = NULL;
            row->id = row->item.claim->id;
        }
        break;
    case STORE_FINISH:
        for (size_t i = 0; i < n; i++) {
            struct batch_row *row = add_row(b, index);

            row->item.finish = &((struct finish_op *)op)->items[i];
            row->id = row->item.finish->id;
        }
        break;
    case STORE_CANCEL: {
        struct batch_row *row = add_row(b, index);

        row->item.cancel = (struct cancel_op *)op;
        row->item.cancel->task = NULL;
        row->key = row->item.cancel->biz_uuid;
        break;
    }
    default: /* not batched */
        break;
    }
}

static int compare_keys(const struct batch_row *a, const struct batch_row *b)
{
    int c = str_cmp(a->key, b->key);

    return c ? c : (a->id > b->id) - (a->id < b->id);
}

static int compare_rows(const void *pa, const void *pb)
{
    const struct batch_row *a = pa;
    const struct batch_row *b = pb;
    int c = compare_keys(a, b);

    return c ? c : (a->seq > b->seq) - (a->seq < b->seq);
}

/* Of the operations that share a key only the first stays. One that goes back still stands before
 * later ones in its other keys, so that operations of one key never overtake each other. */
static struct store_op *send_back_repeats(struct batch *b)
{
    struct store_op *chain = NULL;
    struct store_op **end = &chain;
    size_t holder = 0;
    size_t kept = 0;
    bool any = false;

    for (size_t i = 1; i < b->n_rows; i++) {
        if (compare_keys(&b->rows[holder], &b->rows[i])) {
            holder = i;
        } else if (b->rows[i].op != b->rows[holder].op) {
            b->ops[b->rows[i].op]->next = b->ops[b->rows[i].op]; /* a mark: links to itself */
            any = true;
        }
    }
    if (!any)
        return NULL;
    for (size_t i = 0; i < b->n_ops; i++) {
        struct store_op *op = b->ops[i];

        if (op->next != op)
            continue;
        b->ops[i] = NULL;
        op->next = NULL;
        *end = op;
        end = &op->next;
    }
    for (size_t i = 0; i < b->n_rows; i++) {
        if (b->ops[b->rows[i].op])
            b->rows[kept++] = b->rows[i];
    }
    b->n_rows = kept;
    return chain;
}

int batch_fill(struct batch *b, struct store_op *chain, struct store_op **ret_back)
{
    struct store_op *next;
    size_t n_ops = 0;
    size_t n_rows = 0;
    int rc;

    for (struct store_op *op = chain; op; op = op->next) {
        assert(op->kind == chain->kind);
        n_ops++;
        n_rows += op_rows(op);
    }
    assert(n_rows < UINT32_MAX);
    rc = grow(b, n_ops, n_rows);
    if (rc)
        return rc;

    b->kind = chain->kind;
    b->n_ops = 0;
    b->n_rows = 0;
    for (struct store_op *op = chain; op; op = next) {
        next = op->next;
        op->next = NULL;
        add_op(b, op);
    }
    if (b->n_rows > 1)
        qsort(b->rows, b->n_rows, sizeof(*b->rows), compare_rows);
    *ret_back = send_back_repeats(b);
    return 0;
}

size_t batch_next(struct batch *b, size_t max_rows, size_t max_bytes)
{
    const struct batch_row *last = NULL;
    struct batch_row taken;
    size_t n = 0;
    size_t n_bytes = 0;
    size_t kept = 0;
    bool full = false;

    for (size_t i = 0; i < b->n_rows; i++) {
        struct batch_row row = b->rows[i];

        full = full || (n && (n >= max_rows || n_bytes + row.bytes > max_bytes));
        if (full || (last && !compare_keys(last, &row))) {
            b->rows[kept++] = row;
            continue;
        }
        taken = row;
        last = &taken;
        b->items[n] = row.item;
        b->owners[n++] = row.op;
        n_bytes += row.bytes;
    }
    b->n_rows = kept;
    return n;
}

void batch_fini(struct batch *b)
{
    free(b->ops);
    free(b->rows);
    free(b->items);
    free(b->owners);
    *b = (struct batch){0};
}
