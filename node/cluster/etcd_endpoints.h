/* SPDX-License-Identifier: Apache-2.0 */
/* Which endpoint is asked next. No I/O; time comes from the caller. */
#ifndef JF_CLUSTER_ETCD_ENDPOINTS_H
#define JF_CLUSTER_ETCD_ENDPOINTS_H

#include "common/clock.h"
#include "common/err.h"

/* How long one that failed is set aside: doubled with each failure in a row. */
#define ETCD_ASIDE_MIN_MS 500
#define ETCD_ASIDE_MAX_MS 15000

struct etcd_endpoint {
    char *url;           /* owned; without a slash at the end */
    mono_ms aside_until; /* 0 = not set aside */
    int64_t aside_ms;    /* of the last time */
};

struct etcd_endpoints {
    struct etcd_endpoint *list; /* owned */
    unsigned n;
    unsigned current; /* the one that answered last */
};

/* Errors: ERR_NOMEM. */
MUST_CHECK int etcd_endpoints_init(struct etcd_endpoints *e, const char *const *urls, unsigned n);
void etcd_endpoints_fini(struct etcd_endpoints *e);

/* The current one and then the next ones in turn, those set aside last, by when they come back.
 * `tried` has bit i set for endpoint i when it is out of question. Returns -1 when all are. */
int etcd_endpoints_pick(const struct etcd_endpoints *e, uint32_t tried, mono_ms now);

void etcd_endpoints_good(struct etcd_endpoints *e, unsigned i);
void etcd_endpoints_failed(struct etcd_endpoints *e, unsigned i, mono_ms now);

#endif
