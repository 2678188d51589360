/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/ids.h"

/* By turns: a lease, and the report of all that it brought as done. */
struct worker {
    struct workers *all;
    struct client *client;
    size_t n_leased; /* of which the results are under way; 0 = a lease is */
};

struct workers {
    const struct options *opt; /* borrowed, as these two */
    const char *service;
    struct tally *tally;
    struct buf body;
    struct worker each[]; /* opt->workers of them */
};

static _Noreturn void die(const char *what, int status, struct str body)
{
    (void)fprintf(stderr, "jfbench: %s was answered %d: %.*s\n", what, status,
                  (int)(body.len < 1000 ? body.len : 1000), body.p);
    exit(1);
}

static size_t count(struct str text, struct str mark)
{
    const char *end = text.p + text.len;
    size_t n = 0;

    for (const char *at = text.p; (at = memmem(at, (size_t)(end - at), mark.p, mark.len)); n++)
        at += mark.len;
    return n;
}

static void ask_lease(struct worker *w, struct buf *out)
{
    char path[96];
    char body[96];

    w->n_leased = 0;
    (void)snprintf(path, sizeof(path), "/api/services/%s/lease", w->all->service);
    (void)snprintf(body, sizeof(body), "{\"maxTasks\":%zu,\"wait\":\"20s\"}", w->all->opt->lease);
    client_put_request(out, "POST", path, str_from(body));
}

/* The tasks' first attempts, all done. */
static void put_results(struct worker *w, struct str tasks, struct buf *out)
{
    static const char mark[] = "\"traceId\":\"";
    const char *end = tasks.p + tasks.len;
    const char *at = tasks.p;
    struct buf *b = &w->all->body;
    const char *before = "{\"results\":[";

    buf_clear(b);
    while ((at = memmem(at, (size_t)(end - at), mark, sizeof(mark) - 1))) {
        at += sizeof(mark) - 1;
        if (end - at < TRACE_ID_LEN)
            die("a lease with a cut trace id", 200, tasks);
        buf_addz(b, before);
        buf_addz(b, "{\"traceId\":\"");
        buf_add(b, at, TRACE_ID_LEN);
        buf_addz(b, "\",\"attempt\":1,\"success\":true}");
        before = ",";
    }
    buf_addz(b, "]}");
    client_put_request(out, "POST", "/api/attempts/results", buf_str(b));
}

static void on_free(void *ctx, int status, struct str body, struct buf *out)
{
    struct worker *w = ctx;

    if (status && status != 200)
        die(w->n_leased ? "a report" : "a lease", status, body);
    if (status && w->n_leased && count(body, STR("{\"status\":200,")) != w->n_leased)
        die("a report", status, body);
    if (status && !w->n_leased) {
        w->n_leased = tally_note(w->all->tally, body);
        if (w->n_leased) {
            put_results(w, body, out);
            return;
        }
    }
    ask_lease(w, out);
}

struct workers *workers_start(struct event_base *base, const struct options *opt,
                              const char *service, struct tally *tally)
{
    struct workers *all = calloc(1, sizeof(*all) + opt->workers * sizeof(all->each[0]));

    if (!all) {
        (void)fprintf(stderr, "jfbench: no memory for workers\n");
        exit(1);
    }
    all->opt = opt;
    all->service = service;
    all->tally = tally;
    for (size_t i = 0; i < opt->workers; i++) {
        all->each[i].all = all;
        all->each[i].client =
            client_open(base, opt->ports[i % opt->n_ports], on_free, &all->each[i]);
    }
    return all;
}

void workers_free(struct workers *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->opt->workers; i++)
        client_free(w->each[i].client);
    buf_fini(&w->body);
    free(w);
}
