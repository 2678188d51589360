/* SPDX-License-Identifier: Apache-2.0 */
#include "node/cluster/etcd_endpoints.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int etcd_endpoints_init(struct etcd_endpoints *e, const char *const *urls, unsigned n)
{
    assert(n > 0 && n <= 32); /* `tried` has as many bits */
    *e = (struct etcd_endpoints){.list = calloc(n, sizeof(*e->list))};
    if (!e->list)
        return ERR_NOMEM;
    for (e->n = 0; e->n < n; e->n++) {
        size_t len = strlen(urls[e->n]);
        while (len > 0 && urls[e->n][len - 1] == '/')
            len--;
        e->list[e->n].url = strndup(urls[e->n], len);
        if (!e->list[e->n].url)
            return ERR_NOMEM;
    }
    return 0;
}

void etcd_endpoints_fini(struct etcd_endpoints *e)
{
    for (unsigned i = 0; i < e->n; i++)
        free(e->list[i].url);
    free(e->list);
    *e = (struct etcd_endpoints){0};
}

int etcd_endpoints_pick(const struct etcd_endpoints *e, uint32_t tried, mono_ms now)
{
    int best = -1;
    mono_ms best_until = 0;

    for (unsigned k = 0; k < e->n; k++) {
        unsigned i = (e->current + k) % e->n;
        mono_ms until = e->list[i].aside_until > now ? e->list[i].aside_until : 0;
        if (tried & (uint32_t)1 << i)
            continue;
        if (best < 0 || until < best_until) {
            best = (int)i;
            best_until = until;
        }
    }
    return best;
}

void etcd_endpoints_good(struct etcd_endpoints *e, unsigned i)
{
    e->current = i;
    e->list[i].aside_until = 0;
    e->list[i].aside_ms = 0;
}

void etcd_endpoints_failed(struct etcd_endpoints *e, unsigned i, mono_ms now)
{
    struct etcd_endpoint *p = &e->list[i];

    if (e->current == i)
        e->current = (i + 1) % e->n;
    if (p->aside_until > now)
        return; /* a failure of the same time, of another call */
    p->aside_ms = p->aside_ms ? p->aside_ms * 2 : ETCD_ASIDE_MIN_MS;
    if (p->aside_ms > ETCD_ASIDE_MAX_MS)
        p->aside_ms = ETCD_ASIDE_MAX_MS;
    p->aside_until = now + p->aside_ms;
}
