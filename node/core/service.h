/* SPDX-License-Identifier: Apache-2.0 */
/* A row of job_service: where a service lives and how it may be called. */
#ifndef JF_CORE_SERVICE_H
#define JF_CORE_SERVICE_H

#include "common/clock.h"
#include "common/str.h"

#define SERVICE_SHARDS_MAX 256
#define SERVICE_BATCH_MAX 1000 /* tasks in one request */
#define SERVICE_BATCH_WAIT_MAX_MS 1000

/* How due tasks reach the service: one request each, many in one, or leased by its workers. */
enum delivery_mode { DELIVERY_PUSH, DELIVERY_BATCH, DELIVERY_PULL };

struct service {
    struct str name;
    struct str base_url; /* absent: from the URL template */
    struct str secret;   /* absent: not signed */
    struct str policy;   /* absent: "default" */
    int32_t shards;      /* 1 to SERVICE_SHARDS_MAX */
    int32_t shards_seen; /* the most there ever were: all stay scanned */
    int32_t concurrency; /* 0 = the node's default */
    int32_t timeout_ms;  /* 0 = the node's default */
    uint32_t lanes;      /* bit l: lane l (0 to 9) was ever used; lane l + 10 may be */
    enum delivery_mode delivery;
    int32_t batch_size;    /* most tasks of one request, 1 to SERVICE_BATCH_MAX */
    int32_t batch_wait_ms; /* how long the first task of a request waits for others, 0 to
                              SERVICE_BATCH_WAIT_MAX_MS; these two: 0 where not BATCH */
    bool paused;
    int64_t version; /* grows with each change */
    wall_ms created_at;
    wall_ms updated_at;
};

/* "push", … */
static inline const char *delivery_mode_name(enum delivery_mode m)
{
    return m == DELIVERY_PULL ? "pull" : m == DELIVERY_BATCH ? "batch" : "push";
}

/* False when there is no such mode. */
static inline bool delivery_mode_parse(struct str s, enum delivery_mode *ret)
{
    for (enum delivery_mode m = DELIVERY_PUSH; m <= DELIVERY_PULL; m++) {
        if (str_eqz(s, delivery_mode_name(m))) {
            *ret = m;
            return true;
        }
    }
    return false;
}

#endif
