/* SPDX-License-Identifier: Apache-2.0 */
/* What the answer to a request with many tasks means for each of them. Pure.
 *
 * {"results":[{"traceId":"…", …}, …]} with a 2xx has an object for each task with the words of the
 * single answer (verdict.h), and two more: "status", an HTTP status in the place of the request's
 * own, and "accepted":true for 202. Doubt is resolved towards the promise that no task is lost:
 * - a task without an object is not done, nor is any when there is no such array, the answer is no
 *   JSON, or it was cut;
 * - of two objects for one task that say the same the first counts; two that differ are none;
 * - objects that name no task of the request are passed over.
 *
 * Any other answer, or none, means for each task what it would mean for it alone, with one
 * exception: a 400, 413 or 422 to many tasks says nothing about any one of them. They are put off
 * for a moment, to be asked about in smaller requests (verdict_wants_fewer), in the end one by one.
 */
#ifndef JF_CORE_VERDICT_BATCH_H
#define JF_CORE_VERDICT_BATCH_H

#include "common/json.h"
#include "node/core/service.h"
#include "node/core/verdict.h"

struct verdict_batch {
    const struct verdict_limits *limits;
    wall_ms now;
    int32_t http_status;
    size_t n;         /* tasks */
    bool is_whole;    /* `verdict` stands for all tasks; there are no parts */
    uint32_t *parts;  /* owned, one for each task: index of its object's token, 0 = none */
    size_t cap;       /* of parts */
    uint32_t n_alien; /* objects that were passed over */
    /* Where the tokens and the text they point to live. */
    struct json_doc doc;
    struct buf mended;
    struct verdict verdict;
};

#define VERDICT_BATCH_INIT ((struct verdict_batch){0})

void verdict_batch_fini(struct verdict_batch *b);

/* Reads the answer to a request with these tasks (1 to SERVICE_BATCH_MAX distinct trace ids, in the
 * request's order; borrowed for the call). `b` is VERDICT_BATCH_INIT or was used before; `a` and
 * `limits` outlive its use. */
void verdict_batch_read(struct verdict_batch *b, const struct answer *a,
                        const char *const *trace_ids, size_t n, const struct verdict_limits *limits,
                        wall_ms now);

/* What it means for the task at this index. Valid until the next call. */
const struct verdict *verdict_batch_get(struct verdict_batch *b, size_t i);

/* Whether a task with this last HTTP status should share its next request with fewer tasks. */
bool verdict_wants_fewer(int32_t last_http_status);

#endif
