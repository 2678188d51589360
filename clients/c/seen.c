/* SPDX-License-Identifier: Apache-2.0 */
#include "seen.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define KEY_LEN (JFX_TRACE_LEN / 2)
#define NONE UINT32_MAX

/* Places are named by their index. Those in LATER and DONE stand in the list of use, the most
 * recently used first; free ones are linked by `chain`. */
struct place {
    unsigned char key[KEY_LEN];
    int32_t attempt;
    enum jfx_seen_state state;
    uint32_t chain; /* next in its bucket */
    uint32_t newer;
    uint32_t older;
};

struct jfx_seen {
    pthread_mutex_t lock;
    struct place *places;
    uint32_t *buckets;
    uint32_t mask;
    uint32_t free;
    uint32_t newest;
    uint32_t oldest;
};

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool jfx_trace_valid(const char *trace)
{
    for (size_t i = 0; i < JFX_TRACE_LEN; i++) {
        if (hex_digit(trace[i]) < 0)
            return false;
    }
    return trace[JFX_TRACE_LEN] == '\0';
}

static void read_key(const char *trace, unsigned char key[KEY_LEN])
{
    assert(jfx_trace_valid(trace));
    for (size_t i = 0; i < KEY_LEN; i++)
        key[i] = (unsigned char)(hex_digit(trace[2 * i]) << 4 | hex_digit(trace[2 * i + 1]));
}

struct jfx_seen *jfx_seen_new(uint32_t capacity)
{
    struct jfx_seen *seen = calloc(1, sizeof(*seen));
    uint32_t n_buckets = 16;

    if (!seen)
        return NULL;
    while (n_buckets < capacity && n_buckets < 1U << 30)
        n_buckets *= 2;
    seen->places = calloc(capacity, sizeof(*seen->places));
    seen->buckets = malloc(n_buckets * sizeof(*seen->buckets));
    if (!seen->places || !seen->buckets || pthread_mutex_init(&seen->lock, NULL)) {
        free(seen->places);
        free(seen->buckets);
        free(seen);
        return NULL;
    }
    seen->mask = n_buckets - 1;
    for (uint32_t i = 0; i < n_buckets; i++)
        seen->buckets[i] = NONE;
    for (uint32_t i = 0; i < capacity; i++)
        seen->places[i].chain = i + 1 < capacity ? i + 1 : NONE;
    seen->free = capacity > 0 ? 0 : NONE;
    seen->newest = seen->oldest = NONE;
    return seen;
}

void jfx_seen_free(struct jfx_seen *seen)
{
    if (!seen)
        return;
    pthread_mutex_destroy(&seen->lock);
    free(seen->places);
    free(seen->buckets);
    free(seen);
}

static uint32_t *bucket_of(struct jfx_seen *seen, const unsigned char key[KEY_LEN])
{
    uint32_t hash = 2166136261U; /* FNV-1a */

    for (size_t i = 0; i < KEY_LEN; i++)
        hash = (hash ^ key[i]) * 16777619U;
    return &seen->buckets[hash & seen->mask];
}

static struct place *find(struct jfx_seen *seen, const unsigned char key[KEY_LEN])
{
    for (uint32_t i = *bucket_of(seen, key); i != NONE; i = seen->places[i].chain) {
        if (memcmp(seen->places[i].key, key, KEY_LEN) == 0)
            return &seen->places[i];
    }
    return NULL;
}

static bool is_listed(const struct place *p)
{
    return p->state == JFX_SEEN_LATER || p->state == JFX_SEEN_DONE;
}

static void unlist(struct jfx_seen *seen, struct place *p)
{
    if (p->newer == NONE)
        seen->newest = p->older;
    else
        seen->places[p->newer].older = p->older;
    if (p->older == NONE)
        seen->oldest = p->newer;
    else
        seen->places[p->older].newer = p->newer;
}

static void list(struct jfx_seen *seen, struct place *p)
{
    uint32_t i = (uint32_t)(p - seen->places);

    p->newer = NONE;
    p->older = seen->newest;
    if (seen->newest == NONE)
        seen->oldest = i;
    else
        seen->places[seen->newest].newer = i;
    seen->newest = i;
}

/* The one function that changes a state. */
static void move(struct jfx_seen *seen, struct place *p, enum jfx_seen_state state)
{
    if (is_listed(p))
        unlist(seen, p);
    p->state = state;
    if (is_listed(p))
        list(seen, p);
}

static void drop(struct jfx_seen *seen, struct place *p)
{
    uint32_t i = (uint32_t)(p - seen->places);
    uint32_t *link = bucket_of(seen, p->key);

    move(seen, p, JFX_SEEN_NEW);
    while (*link != i)
        link = &seen->places[*link].chain;
    *link = p->chain;
    p->chain = seen->free;
    seen->free = i;
}

/* NULL when each place is taken by one that is running. */
static struct place *add(struct jfx_seen *seen, const unsigned char key[KEY_LEN], int32_t attempt)
{
    if (seen->free == NONE) {
        if (seen->oldest == NONE)
            return NULL;
        drop(seen, &seen->places[seen->oldest]);
    }
    uint32_t i = seen->free;
    struct place *p = &seen->places[i];
    uint32_t *bucket = bucket_of(seen, key);
    seen->free = p->chain;
    memcpy(p->key, key, KEY_LEN);
    p->attempt = attempt;
    p->state = JFX_SEEN_NEW;
    p->chain = *bucket;
    *bucket = i;
    return p;
}

enum jfx_seen_state jfx_seen_begin(struct jfx_seen *seen, const char *trace, int32_t attempt)
{
    unsigned char key[KEY_LEN];
    enum jfx_seen_state ret = JFX_SEEN_NEW;

    read_key(trace, key);
    pthread_mutex_lock(&seen->lock);
    struct place *p = find(seen, key);
    if (!p)
        p = add(seen, key, attempt);
    if (!p) {
        ret = JFX_SEEN_FULL;
    } else if (p->state == JFX_SEEN_NEW || (p->state == JFX_SEEN_LATER && attempt > p->attempt)) {
        p->attempt = attempt;
        move(seen, p, JFX_SEEN_RUNNING);
    } else {
        ret = p->state;
        move(seen, p, p->state); /* used just now */
    }
    pthread_mutex_unlock(&seen->lock);
    return ret;
}

void jfx_seen_end(struct jfx_seen *seen, const char *trace, int32_t attempt,
                  enum jfx_seen_state state)
{
    unsigned char key[KEY_LEN];

    read_key(trace, key);
    pthread_mutex_lock(&seen->lock);
    struct place *p = find(seen, key);
    if (p && p->state == JFX_SEEN_RUNNING && p->attempt == attempt) {
        if (state == JFX_SEEN_NEW)
            drop(seen, p);
        else
            move(seen, p, state);
    }
    pthread_mutex_unlock(&seen->lock);
}

void jfx_seen_report(struct jfx_seen *seen, const char *trace, int32_t attempt, bool success)
{
    unsigned char key[KEY_LEN];

    read_key(trace, key);
    pthread_mutex_lock(&seen->lock);
    struct place *p = find(seen, key);
    if (success) {
        if (!p)
            p = add(seen, key, attempt);
        if (p)
            move(seen, p, JFX_SEEN_DONE);
    } else if (p && p->state != JFX_SEEN_DONE && p->attempt == attempt) {
        drop(seen, p);
    }
    pthread_mutex_unlock(&seen->lock);
}
