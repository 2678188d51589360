/* SPDX-License-Identifier: Apache-2.0 */
/* Who owns a shard of a service: rendezvous (highest random weight) hashing over the live members
 * (Thaler and Ravishankar, 1998). Computed by each node for itself, stored nowhere; a member that
 * comes or goes moves only the shards that it gets or had, 1/N of all.
 *
 * The function is fixed by the test vectors in proto/ownership_vectors.json. All nodes of a cluster
 * must agree on it: a change of it needs a new version number. */
#ifndef JF_CORE_OWNERSHIP_H
#define JF_CORE_OWNERSHIP_H

#include <stddef.h>
#include <stdint.h>

#include "common/str.h"

#define OWNERSHIP_HASH_VERSION 1
#define OWNERSHIP_NOBODY SIZE_MAX

/* XXH64(service name, seed = XXH64(member name, seed = shard)). */
uint64_t ownership_weight(struct str member, struct str service_name, int32_t shard);

/* The index of the member with the highest weight; of two equal weights the name that sorts first
 * byte by byte. The order of the members does not matter; their names are distinct.
 * OWNERSHIP_NOBODY when there are none. */
size_t ownership_find(const struct str *members, size_t n, struct str service_name, int32_t shard);

#endif
