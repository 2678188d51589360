/* SPDX-License-Identifier: Apache-2.0 */
/* A row of job_instance, one running process of a service, and the store's calls about them: as
 * those of storecall.h. An instance lives until its expires_at has come by the store's clock. */
#ifndef JF_CORE_INSTANCE_H
#define JF_CORE_INSTANCE_H

#include "node/core/storecall.h"

#define INSTANCES_MAX 256     /* live ones of one service */
#define INSTANCE_NAME_MAX 128 /* bytes */

struct instance {
    struct str service_name;
    struct str name;
    struct str base_url;
    int32_t ttl_ms;
    wall_ms registered_at;
    wall_ms expires_at;
};

/* Registers, or prolongs: expires_at = the store's now + ttl_ms. The service's row appears with its
 * first instance. rc ERR_CONFLICT: it is a new one, and the service has INSTANCES_MAX already. */
struct call_instance_put {
    struct store_call call;
    struct instance in; /* without its times; those are out */
    bool created;       /* out: it was unknown, or had expired */
};

/* rc ERR_NOT_FOUND: unknown, or expired. */
struct call_instance_delete {
    struct store_call call;
    struct str service_name;
    struct str name;
};

struct call_instance_list {
    struct store_call call;
    struct str service_name; /* absent = of all services */
    bool expired_too;        /* of all services: as far as they have not been purged */
    struct instance
        *instances; /* live ones, by service and name; free(): one block, with strings */
    size_t n;
};

/* Deletes up to `limit` rows that have expired. */
struct call_instance_purge {
    struct store_call call;
    uint32_t limit;
    uint32_t n_seen; /* out: rows that had expired; at the limit there may be more */
};

#endif
