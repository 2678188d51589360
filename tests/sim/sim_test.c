/* SPDX-License-Identifier: Apache-2.0 */
/* Runs seeds; seed S plays scenario S mod n. One TAP line a scenario, with what its seeds met.
 *
 *   sim_test [--seeds N] [--first S]   N seeds from S on (default: the environment's SIM_SEEDS)
 *   sim_test --seed S [--trace]        one seed, event by event
 *   sim_test --hunt [--seeds N]        seeds in order, up to the first that fails */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/sim.h"

#define DEFAULT_SEEDS 3720
#define SHOWN_FAILURES 5 /* per scenario; the rest is counted */
#define ISOLATION_MS 100
#define REPLAYED_SEEDS 3 /* per scenario, run twice: the same seed is the same run */

static volatile unsigned long long running_seed;

static void on_abort(int sig)
{
    char text[96];
    int n = snprintf(text, sizeof(text),
                     "\n# replay: sim_test --seed %llu --trace\nBail out! abort\n", running_seed);

    (void)sig;
    if (write(STDOUT_FILENO, text, (size_t)n) < 0)
        _exit(3);
    _exit(2);
}

static void run_seed(uint64_t seed, bool trace, struct sim_result *ret)
{
    const struct scenario *sc = scenario_at(seed % scenarios_n());
    struct sim_options opt = {.trace = trace};

    running_seed = seed;
    sim_run(sc, seed, &opt, ret);
    if (!sc->isolation || ret->failed)
        return;
    struct sim_result alone;
    opt.without_others = true;
    sim_run(sc, seed, &opt, &alone);
    if (alone.failed || ret->p99_lateness_ms > alone.p99_lateness_ms + ISOLATION_MS) {
        printf("# G10: p99 lateness %lld ms beside a sick service, %lld ms without\n"
               "# replay: sim_test --seed %llu --trace\n",
               (long long)ret->p99_lateness_ms, (long long)alone.p99_lateness_ms,
               (unsigned long long)seed);
        ret->failed = true;
    }
}

struct tally {
    uint64_t met[MET_N];
    uint64_t n_seeds;
    uint64_t n_failed;
    uint64_t n_differ;
    int64_t worst_p99_ms;
    double virtual_s;
};

static void tally_add(struct tally *t, uint64_t seed)
{
    struct sim_result r;
    struct sim_result again;

    run_seed(seed, false, &r);
    if (t->n_seeds < REPLAYED_SEEDS) {
        run_seed(seed, false, &again);
        t->n_differ += r.hash != again.hash;
    }
    t->n_seeds++;
    t->n_failed += r.failed;
    t->virtual_s += (double)(r.ended_at - SIM_START) / 1000;
    if (r.p99_lateness_ms > t->worst_p99_ms)
        t->worst_p99_ms = r.p99_lateness_ms;
    for (int i = 0; i < MET_N; i++)
        t->met[i] += r.met[i];
}

static bool tally_report(const struct tally *t, size_t number, const struct scenario *sc)
{
    bool ok = !t->n_failed && !t->n_differ;

    printf("# %s: %llu seeds, %.0f virtual seconds", sc->name, (unsigned long long)t->n_seeds,
           t->virtual_s);
    for (int i = 0; i < MET_N; i++) {
        if (t->met[i])
            printf(", %s %llu", met_name((enum met)i), (unsigned long long)t->met[i]);
    }
    if (sc->isolation || sc->punctual)
        printf(", worst p99 lateness %lld ms", (long long)t->worst_p99_ms);
    printf("\n");
    for (size_t i = 0; i < sizeof(sc->must) / sizeof(sc->must[0]); i++) {
        if (sc->must[i] && !t->met[sc->must[i]]) {
            printf("# met no %s: this scenario proves nothing\n", met_name(sc->must[i]));
            ok = false;
        }
    }
    if (t->n_failed)
        printf("# %llu seeds failed\n", (unsigned long long)t->n_failed);
    if (t->n_differ)
        printf("# %llu seeds took another course when run again\n",
               (unsigned long long)t->n_differ);
    printf("%s %zu - %s\n", ok ? "ok" : "not ok", number, sc->name);
    (void)fflush(stdout);
    return ok;
}

static int run_all(uint64_t first, uint64_t n)
{
    bool ok = true;

    printf("1..%zu\n", scenarios_n());
    for (size_t i = 0; i < scenarios_n(); i++) {
        struct tally t = {0};

        for (uint64_t seed = first; seed < first + n && t.n_failed < SHOWN_FAILURES; seed++) {
            if (seed % scenarios_n() == i)
                tally_add(&t, seed);
        }
        ok &= tally_report(&t, i + 1, scenario_at(i));
    }
    return ok ? 0 : 1;
}

static int run_hunt(uint64_t first, uint64_t n)
{
    struct sim_result r;

    for (uint64_t seed = first; seed < first + n; seed++) {
        run_seed(seed, false, &r);
        if (r.failed)
            return 1;
    }
    return 0;
}

static uint64_t number(const char *text)
{
    char *end;
    unsigned long long v;

    errno = 0;
    v = strtoull(text, &end, 10);
    if (errno || *end || end == text) {
        (void)fprintf(stderr, "not a number: %s\n", text);
        exit(2);
    }
    return v;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"hunt", no_argument, NULL, 'h'},        {"seeds", required_argument, NULL, 'n'},
        {"first", required_argument, NULL, 'f'}, {"seed", required_argument, NULL, 's'},
        {"trace", no_argument, NULL, 't'},       {NULL, 0, NULL, 0},
    };
    const char *env = getenv("SIM_SEEDS");
    uint64_t n = env && *env ? number(env) : DEFAULT_SEEDS;
    uint64_t first = 1;
    uint64_t seed = 0;
    bool one = false;
    bool hunt = false;
    bool trace = false;
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'n':
            n = number(optarg);
            break;
        case 'f':
            first = number(optarg);
            break;
        case 's':
            seed = number(optarg);
            one = true;
            break;
        case 't':
            trace = true;
            break;
        case 'h':
            hunt = true;
            break;
        default:
            (void)fprintf(
                stderr, "usage: sim_test [--hunt] [--seeds N] [--first S] | --seed S [--trace]\n");
            return 2;
        }
    }
    (void)signal(SIGABRT, on_abort);
    if (one) {
        struct sim_result r;

        run_seed(seed, trace, &r);
        printf("# seed %llu, %s: %s, trace %016llx\n", (unsigned long long)seed,
               scenario_at(seed % scenarios_n())->name, r.failed ? "failed" : "held",
               (unsigned long long)r.hash);
        return r.failed;
    }
    return hunt ? run_hunt(first, n) : run_all(first, n);
}
