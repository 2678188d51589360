/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hash.h"

#include <assert.h>
#include <stdlib.h>

#include <xxhash.h>

#define MIN_SLOTS 16

struct map64_slot {
    uint64_t key; /* 0 = free */
    void *value;
};

uint64_t hash_bytes(struct str s, uint64_t seed)
{
    return XXH64(s.p ? s.p : "", s.len, seed);
}

int32_t hash_shard(struct str biz_uuid, int32_t shards)
{
    assert(shards >= 1);
    return (int32_t)(hash_bytes(biz_uuid, 0) % (uint64_t)shards);
}

/* Keys are often consecutive ids or multiples of a block: spread them over all bits. */
static size_t home_of(const struct map64 *m, uint64_t key)
{
    key = (key ^ key >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(key ^ key >> 32) & (m->n_slots - 1);
}

static size_t next_of(const struct map64 *m, size_t i)
{
    return (i + 1) & (m->n_slots - 1);
}

/* The slot that holds the key, or the free one where it would go. n_slots > n. */
static struct map64_slot *slot_of(const struct map64 *m, uint64_t key)
{
    size_t i = home_of(m, key);
    while (m->slots[i].key != 0 && m->slots[i].key != key)
        i = next_of(m, i);
    return &m->slots[i];
}

static int grow(struct map64 *m)
{
    struct map64 bigger = {.n_slots = m->n_slots ? m->n_slots * 2 : MIN_SLOTS, .n = m->n};
    bigger.slots = calloc(bigger.n_slots, sizeof(bigger.slots[0]));
    if (!bigger.slots)
        return ERR_NOMEM;
    for (size_t i = 0; i < m->n_slots; i++) {
        if (m->slots[i].key != 0)
            *slot_of(&bigger, m->slots[i].key) = m->slots[i];
    }
    free(m->slots);
    *m = bigger;
    return 0;
}

void map64_fini(struct map64 *m)
{
    if (!m)
        return;
    free(m->slots);
    *m = (struct map64){0};
}

void *map64_find(const struct map64 *m, uint64_t key)
{
    assert(key != 0);
    return m->n > 0 ? slot_of(m, key)->value : NULL;
}

int map64_put(struct map64 *m, uint64_t key, void *value)
{
    assert(key != 0 && value);
    if (m->n > 0) {
        struct map64_slot *slot = slot_of(m, key);
        if (slot->key == key) {
            slot->value = value;
            return 0;
        }
    }
    if (m->n + 1 > m->n_slots / 4 * 3) {
        int rc = grow(m);
        if (rc)
            return rc;
    }
    *slot_of(m, key) = (struct map64_slot){key, value};
    m->n++;
    return 0;
}

/* Whether home lies in the cyclic range (hole, at]: then the entry at `at` must stay. */
static bool must_stay(size_t hole, size_t home, size_t at)
{
    return hole <= at ? hole < home && home <= at : hole < home || home <= at;
}

void *map64_remove(struct map64 *m, uint64_t key)
{
    assert(key != 0);
    if (m->n == 0)
        return NULL;
    struct map64_slot *slot = slot_of(m, key);
    void *value = slot->value;
    if (!value)
        return NULL;
    /* Close the gap instead of leaving a tombstone, so that look-ups never slow down. */
    size_t hole = (size_t)(slot - m->slots);
    for (size_t at = next_of(m, hole); m->slots[at].key != 0; at = next_of(m, at)) {
        if (must_stay(hole, home_of(m, m->slots[at].key), at))
            continue;
        m->slots[hole] = m->slots[at];
        hole = at;
    }
    m->slots[hole] = (struct map64_slot){0};
    m->n--;
    return value;
}

void *map64_each(const struct map64 *m, size_t *pos, uint64_t *ret_key)
{
    while (*pos < m->n_slots) {
        const struct map64_slot *slot = &m->slots[(*pos)++];
        if (slot->key == 0)
            continue;
        if (ret_key)
            *ret_key = slot->key;
        return slot->value;
    }
    return NULL;
}
