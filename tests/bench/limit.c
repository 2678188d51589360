/* SPDX-License-Identifier: Apache-2.0 */
/* The limit that the figures of a node are compared with. The schema must be there.
 *
 *   jflimit STORE-URL phases N       N rows: inserted, then claimed, then finished: one line each
 *   jflimit STORE-URL lifecycle N    N rows: each batch is inserted, claimed and finished
 *   jflimit STORE-URL fill N         N rows that are due in 30 days, and stay
 *
 * followed by batch=500 and sessions=1, or other numbers. Each line is one JSON object. */
#include "tests/bench/limit.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SESSIONS_MAX 8
#define DAY_MS INT64_C(86400000)

enum part { PART_INSERT = 1, PART_CLAIM = 2, PART_FINISH = 4 };

struct worker {
    const struct limit_store *store;
    struct limit_session *session;
    struct limit_row *rows; /* owned; one batch */
    int64_t first_id;
    uint64_t n;
    uint64_t run; /* makes the keys of this call its own */
    size_t batch;
    wall_ms due;
    unsigned parts; /* what is done to each batch before the next one */
    pthread_t thread;
};

_Noreturn void limit_die(const char *what, const char *why)
{
    (void)fprintf(stderr, "jflimit: %s: %s\n", what, why);
    exit(1);
}

static void make_rows(struct worker *w, int64_t first_id, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct limit_row *row = &w->rows[i];

        row->id = first_id + (int64_t)i;
        trace_id_make(row->id, w->run + (uint64_t)row->id * UINT64_C(0x9e3779b97f4a7c15),
                      row->trace_id);
        (void)snprintf(row->key, sizeof(row->key), "bench-%016" PRIx64 "-%010" PRId64, w->run,
                       row->id);
        (void)snprintf(row->payload, sizeof(row->payload),
                       "{\"orderId\":\"%020" PRId64 "\",\"amount\":12999,\"currency\":\"EUR\","
                       "\"reason\":\"payment time-out\"}",
                       row->id);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;

    for (uint64_t done = 0; done < w->n;) {
        size_t n = w->n - done < w->batch ? (size_t)(w->n - done) : w->batch;
        int64_t first = w->first_id + (int64_t)done;

        if (w->parts & PART_INSERT) {
            make_rows(w, first, n);
            w->store->insert(w->session, w->rows, n, w->due);
        }
        if (w->parts & PART_CLAIM)
            w->store->claim(w->session, first, n);
        if (w->parts & PART_FINISH)
            w->store->finish(w->session, first, n);
        done += n;
    }
    w->store->flush(w->session);
    return NULL;
}

static void run_part(struct worker *w, size_t n_workers, unsigned parts, const char *name)
{
    int64_t started = clock_mono_us();
    uint64_t n = 0;
    double seconds;

    for (size_t i = 0; i < n_workers; i++) {
        w[i].parts = parts;
        n += w[i].n;
        if (pthread_create(&w[i].thread, NULL, worker_main, &w[i]))
            limit_die("thread", "could not be started");
    }
    for (size_t i = 0; i < n_workers; i++)
        (void)pthread_join(w[i].thread, NULL);
    seconds = (double)(clock_mono_us() - started) / 1e6;
    (void)printf("{\"measure\":\"%s\",\"n\":%" PRIu64 ",\"batch\":%zu,\"sessions\":%zu,"
                 "\"seconds\":%.3f,\"per_second\":%.0f}\n",
                 name, n, w->batch, n_workers, seconds, (double)n / seconds);
}

static const struct limit_store *store_of(const char *url)
{
    static const struct limit_store *const stores[] = {&limit_mysql, &limit_postgres,
                                                       &limit_sqlite};

    for (size_t i = 0; i < sizeof(stores) / sizeof(stores[0]); i++) {
        if (!strncmp(url, stores[i]->scheme, strlen(stores[i]->scheme)))
            return stores[i];
    }
    limit_die(url, "no such store");
}

static uint64_t option(int argc, char **argv, const char *name, uint64_t otherwise, uint64_t max)
{
    size_t len = strlen(name);

    for (int i = 4; i < argc; i++) {
        uint64_t v;

        if (strncmp(argv[i], name, len) || argv[i][len] != '=')
            continue;
        v = strtoull(argv[i] + len + 1, NULL, 10);
        if (v < 1 || v > max)
            limit_die(argv[i], "out of range");
        return v;
    }
    return otherwise;
}

static void run(struct worker *w, size_t n_workers, const char *measure)
{
    if (!strcmp(measure, "phases")) {
        run_part(w, n_workers, PART_INSERT, "insert");
        run_part(w, n_workers, PART_CLAIM, "claim");
        run_part(w, n_workers, PART_FINISH, "finish");
    } else if (!strcmp(measure, "lifecycle")) {
        run_part(w, n_workers, PART_INSERT | PART_CLAIM | PART_FINISH, "lifecycle");
    } else if (!strcmp(measure, "fill")) {
        for (size_t i = 0; i < n_workers; i++)
            w[i].due = clock_wall() + 30 * DAY_MS;
        run_part(w, n_workers, PART_INSERT, "fill");
    } else {
        limit_die(measure, "no such measure");
    }
}

int main(int argc, char **argv)
{
    struct worker workers[SESSIONS_MAX] = {0};
    const struct limit_store *store;
    size_t n_workers;
    uint64_t n;
    uint64_t seed;

    if (argc < 4) {
        (void)fprintf(stderr, "usage: jflimit STORE-URL phases|lifecycle|fill N [batch=500] "
                              "[sessions=1]\n");
        return 2;
    }
    store = store_of(argv[1]);
    n = strtoull(argv[3], NULL, 10);
    n_workers = option(argc, argv, "sessions", 1, SESSIONS_MAX);
    random_bytes(&seed, sizeof(seed));
    if (n < n_workers)
        limit_die(argv[3], "nothing to do");
    for (size_t i = 0; i < n_workers; i++) {
        struct worker *w = &workers[i];

        w->store = store;
        w->session = store->open(argv[1]);
        w->batch = option(argc, argv, "batch", 500, LIMIT_BATCH_MAX);
        w->rows = calloc(w->batch, sizeof(*w->rows));
        if (!w->rows)
            limit_die("memory", "there is none");
        w->n = n / n_workers + (i < n % n_workers);
        w->first_id = store->take_ids(w->session, (int64_t)w->n);
        w->run = seed;
        w->due = clock_wall() - 1000;
    }
    run(workers, n_workers, argv[2]);
    for (size_t i = 0; i < n_workers; i++) {
        store->close(workers[i].session);
        free(workers[i].rows);
    }
    return 0;
}
