/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/ids.h"

#include <assert.h>

static int take_block(struct worker *w, int64_t *ret_first, int64_t *ret_n, struct err *err)
{
    int rc = w->store->driver->take_ids(w->conn, ret_first, ret_n, err);

    assert(rc || (*ret_first > 0 && *ret_n > 0));
    return rc == ERR_INVALID ? ERR_CORRUPT : rc;
}

/* When two threads have asked at once, the larger rest becomes the block in use. */
static void keep_rest(struct store *s, int64_t first, int64_t end)
{
    pthread_mutex_lock(&s->lock);
    if (end - first > s->id_end - s->id_next) {
        s->id_next = first;
        s->id_end = end;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Takes ids from the block in use, or a new block. The lock is not held while the database is
 * asked. */
static int next_ids(struct worker *w, int64_t n, int64_t *ret_first, int64_t *ret_n,
                    struct err *err)
{
    struct store *s = w->store;
    int64_t first = 0;
    int64_t size = 0;
    int rc;

    pthread_mutex_lock(&s->lock);
    if (s->id_next < s->id_end) {
        first = s->id_next;
        size = s->id_end - s->id_next < n ? s->id_end - s->id_next : n;
        s->id_next += size;
    }
    pthread_mutex_unlock(&s->lock);
    if (!size) {
        int64_t end;

        rc = take_block(w, &first, &size, err);
        if (rc)
            return rc;
        end = first + size;
        size = size < n ? size : n;
        keep_rest(s, first + size, end);
    }
    *ret_first = first;
    *ret_n = size;
    return 0;
}

int ids_give(struct worker *w, union batch_item *items, size_t n_items, struct err *err)
{
    int64_t missing = 0;
    int64_t id = 0;
    int64_t n = 0;

    for (size_t i = 0; i < n_items; i++)
        missing += !items[i].submit->task->id;
    for (size_t i = 0; i < n_items; i++) {
        struct task *task = items[i].submit->task;

        if (task->id)
            continue;
        if (!n) {
            int rc = next_ids(w, missing, &id, &n, err);

            if (rc)
                return rc;
        }
        task->id = id++;
        trace_id_make(task->id, rng_next(&w->rng), task->trace_id);
        n--;
        missing--;
    }
    return 0;
}

int ids_probe(struct worker *w, struct err *err)
{
    int64_t first;
    int64_t n;
    int rc = take_block(w, &first, &n, err);

    if (!rc)
        keep_rest(w->store, first, first + n);
    return rc;
}
