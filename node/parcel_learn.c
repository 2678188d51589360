/* SPDX-License-Identifier: Apache-2.0 */
/* What the answers tell about the size of requests.
 *
 * A refusal (400, 413, 422) of a parcel names none of its tasks. They come again in groups that
 * have half of them or so, again and again where it has to be: what makes the service refuse is
 * found in some log2(n) rounds, and the others get through. How often a task was put off says how
 * small its group is, and bits of its trace id which one it is in, so that nothing has to be
 * remembered. A service that refuses one batch after the other takes none, as it seems: there they
 * go one by one.
 *
 * A 413 may also be about the size of the body: later ones are half as big. Only a parcel that is
 * no such group counts, else a single task that is always answered so would shrink all bodies on
 * its way to being found; once it is found, being small, it takes the blame and the limit is
 * forgotten. After a while without
 * any, bodies may grow again; how long that is doubles with every 413. */
#include "node/parcel_internal.h"

#include <assert.h>

#include "common/hash.h"
#include "node/core/verdict_body.h"

#define PARCEL_BYTES_MIN ((size_t)8 << 10) /* learnt limits are not below this */
#define GROW_AFTER_MIN 16                  /* requests that went well */
#define GROW_AFTER_MAX 1024
#define REFUSED_MANY 16 /* batches without a good one: it takes none */
#define HALVINGS_MAX 10
#define GROUP_ALONE 1 /* no group's: those begin with 1 << 1 */
#define LOG_MS 10000

static_assert(SERVICE_BATCH_MAX >> HALVINGS_MAX == 0, "the last group has one task");

void line_forget(struct line *l)
{
    l->max_bytes = PARCEL_BYTES_MAX;
    l->n_good = 0;
    l->grow_after = GROW_AFTER_MIN;
    l->n_refused = 0;
}

/* One that has used up its times of being put off, and so loses a try each time, goes alone. */
struct parcel_kind parcel_kind(const struct line *l, const struct task *t, int32_t batch_size)
{
    uint32_t k = t->snooze_count < HALVINGS_MAX ? (uint32_t)t->snooze_count : HALVINGS_MAX;
    uint32_t max_tasks = (uint32_t)batch_size >> k;

    if ((!k && !t->retry_count) || !verdict_wants_fewer(t->last_http_status))
        return (struct parcel_kind){0, (uint32_t)batch_size};
    if (t->retry_count || l->n_refused >= REFUSED_MANY || max_tasks <= 1)
        return (struct parcel_kind){GROUP_ALONE, 1};
    uint64_t bits = hash_bytes(str_from(t->trace_id), 0) & ((UINT64_C(1) << k) - 1);
    return (struct parcel_kind){(uint32_t)(UINT64_C(1) << k | bits), max_tasks};
}

static void set_max_bytes(struct parcels *p, struct line *l, size_t max_bytes)
{
    bool smaller = max_bytes < l->max_bytes;
    uint64_t suppressed;

    l->n_good = 0;
    if (max_bytes == l->max_bytes)
        return;
    l->max_bytes = max_bytes;
    if (log_limit_pass(&l->bytes_log, LOG_MS, &suppressed))
        LOG(p->node->log, smaller ? LOG_WARN : LOG_INFO, "batch.body_limit",
            smaller ? "a batch was refused as too big; later ones are smaller"
                    : "batches may be bigger again",
            F_STR("service", l->name), F_INT("maxBytes", (int64_t)max_bytes),
            F_INT("suppressed", (int64_t)suppressed));
}

static void shrink(struct parcels *p, struct line *l, size_t bytes)
{
    size_t half = bytes / 2 > PARCEL_BYTES_MIN ? bytes / 2 : PARCEL_BYTES_MIN;

    if (bytes <= PARCEL_BYTES_MIN || half >= l->max_bytes)
        return;
    if (l->grow_after < GROW_AFTER_MAX)
        l->grow_after *= 2;
    set_max_bytes(p, l, half);
}

static void grow(struct parcels *p, struct line *l)
{
    size_t twice = l->max_bytes * 2;

    set_max_bytes(p, l, twice < PARCEL_BYTES_MAX ? twice : PARCEL_BYTES_MAX);
}

static void note_refusal(struct parcels *p, struct line *l, int32_t http_status)
{
    uint64_t suppressed;

    if (l->n_refused < REFUSED_MANY)
        l->n_refused++;
    if (l->n_refused == REFUSED_MANY && log_limit_pass(&l->refused_log, LOG_MS, &suppressed))
        LOG(p->node->log, LOG_WARN, "batch.refused",
            "the service refuses one batch after the other; their tasks go one by one",
            F_STR("service", l->name), F_INT("httpStatus", http_status),
            F_INT("suppressed", (int64_t)suppressed));
}

void line_learn(struct parcels *p, struct line *l, const struct parcel *q, int32_t http_status)
{
    size_t bytes = q->out.body.len;

    if (verdict_is_ok(http_status)) {
        if (q->n > 1)
            l->n_refused = 0;
        if (l->max_bytes < PARCEL_BYTES_MAX && ++l->n_good >= l->grow_after)
            grow(p, l);
        return;
    }
    if (q->n > 1 && verdict_wants_fewer(http_status))
        note_refusal(p, l, http_status);
    if (http_status != 413)
        return;
    if (q->n > 1 && !q->kind.group) {
        shrink(p, l, bytes);
    } else if (q->n == 1 && bytes * 2 <= l->max_bytes) {
        l->grow_after = GROW_AFTER_MIN;
        set_max_bytes(p, l, PARCEL_BYTES_MAX);
    }
}
