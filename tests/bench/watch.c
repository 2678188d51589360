/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_free(void *ctx, int status, struct str body, struct buf *out)
{
    static const char mark[] = "jobflow_tasks_finished_total{status=\"SUCCESS\"} ";
    struct watched *n = ctx;
    const char *at = NULL;

    if (status) {
        at = memmem(body.p, body.len, mark, sizeof(mark) - 1);
        if (!at) {
            (void)fprintf(stderr, "bench: /metrics was answered %d\n", status);
            exit(1);
        }
        n->finished = strtoull(at + sizeof(mark) - 1, NULL, 10);
        n->known = true;
    }
    if (n->wanted || !n->known)
        client_put_request(out, "GET", "/metrics", (struct str){0});
    n->wanted = false;
}

void watch_start(struct watch *w, struct event_base *base, const uint16_t *ports, size_t n)
{
    *w = (struct watch){.n = n};
    for (size_t i = 0; i < n; i++)
        w->nodes[i].client = client_open(base, ports[i], on_free, &w->nodes[i]);
}

void watch_fini(struct watch *w)
{
    for (size_t i = 0; i < w->n; i++)
        client_free(w->nodes[i].client);
}

void watch_look(struct watch *w)
{
    for (size_t i = 0; i < w->n; i++) {
        w->nodes[i].wanted = true;
        client_kick(w->nodes[i].client);
        w->nodes[i].wanted = false;
    }
}

bool watch_is_known(const struct watch *w)
{
    for (size_t i = 0; i < w->n; i++) {
        if (!w->nodes[i].known)
            return false;
    }
    return true;
}

uint64_t watch_total(const struct watch *w)
{
    uint64_t total = 0;

    for (size_t i = 0; i < w->n; i++)
        total += w->nodes[i].finished;
    return total;
}
