/* SPDX-License-Identifier: Apache-2.0 */
#include "node/core/ownership.h"

#include "common/hash.h"

uint64_t ownership_weight(struct str member, struct str service_name, int32_t shard)
{
    return hash_bytes(service_name, hash_bytes(member, (uint64_t)shard));
}

size_t ownership_find(const struct str *members, size_t n, struct str service_name, int32_t shard)
{
    size_t best = OWNERSHIP_NOBODY;
    uint64_t best_weight = 0;

    for (size_t i = 0; i < n; i++) {
        uint64_t weight = ownership_weight(members[i], service_name, shard);

        if (best == OWNERSHIP_NOBODY || weight > best_weight ||
            (weight == best_weight && str_cmp(members[i], members[best]) < 0)) {
            best = i;
            best_weight = weight;
        }
    }
    return best;
}
