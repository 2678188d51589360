/* SPDX-License-Identifier: Apache-2.0 */
/* Hashing (xxHash64, seed 0 unless said) and a hash table from a 64-bit key to a pointer. */
#ifndef JF_COMMON_HASH_H
#define JF_COMMON_HASH_H

#include "common/err.h"
#include "common/str.h"

uint64_t hash_bytes(struct str s, uint64_t seed);

/* shard = hash(bizUuid) mod shards; shards >= 1. Fixed for ever by test vectors. */
int32_t hash_shard(struct str biz_uuid, int32_t shards);

/* Open addressing; keys are non-zero; values are borrowed and non-NULL. */
struct map64 {
    struct map64_slot *slots; /* owned */
    size_t n_slots;           /* a power of two, or 0 */
    size_t n;
};

void map64_fini(struct map64 *m);
void *map64_find(const struct map64 *m, uint64_t key);
/* Adds or replaces. Errors: ERR_NOMEM (nothing changed). */
MUST_CHECK int map64_put(struct map64 *m, uint64_t key, void *value);
void *map64_remove(struct map64 *m, uint64_t key); /* the removed value or NULL */
/* Visits all: start with *pos = 0; returns NULL at the end. The map must not change meanwhile. */
void *map64_each(const struct map64 *m, size_t *pos, uint64_t *ret_key);

#endif
