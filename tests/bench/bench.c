/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of running nodes, from outside: what a client and a business service see. One measurement
 * a call:
 *
 *   jfbench PORT[,PORT…] submit N      N submissions, due in 30 days
 *   jfbench PORT[,PORT…] lifecycle N   N tasks due now: from the first submission until the end of
 *                                      the last one is stored
 *   jfbench PORT[,PORT…] drain N       N stored while the service is paused: from the first
 * delivery until the end of the last one is stored jfbench PORT[,PORT…] burst N       N stored
 * beforehand, all due in one millisecond jfbench PORT[,PORT…] lateness N    N tasks at a rate, each
 * due 1 s ahead
 *
 * followed by options of options.h. Each prints one JSON object. */
#include <event2/event.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/load.h"
#include "tests/bench/options.h"
#include "tests/bench/receiver.h"
#include "tests/bench/watch.h"
#include "tests/bench/workers.h"

#define TICK_US 1000
#define LOOKS_APART_MS 1000 /* while nothing is expected: keeps the connections open */

struct bench {
    struct event_base *base;
    struct options opt;
    struct tally tally;
    struct receiver *receiver; /* NULL where workers lease */
    struct workers *workers;   /* likewise, the other way round */
    struct load load;
    struct watch watch;
    uint64_t finished_before;
    bool (*is_done)(struct bench *b);
    mono_ms give_up_at;
    mono_ms look_at;
    char service[32];
};

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "jfbench: %s\n", what);
    exit(1);
}

/* ---- The loop ----------------------------------------------------------------------------- */

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct bench *b = arg;
    mono_ms now = clock_mono();

    (void)fd;
    (void)what;
    load_pace(&b->load);
    if (now >= b->look_at) {
        watch_look(&b->watch);
        b->look_at = now + LOOKS_APART_MS;
    }
    if (b->is_done(b))
        (void)event_base_loopbreak(b->base);
    else if (now > b->give_up_at)
        die("not everything came to its end in time");
}

/* Runs the loop until the condition holds. */
static void run_until(struct bench *b, bool (*is_done)(struct bench *b))
{
    static const struct timeval tick = {0, TICK_US};
    struct event *timer = event_new(b->base, -1, EV_PERSIST, on_tick, b);

    b->is_done = is_done;
    b->give_up_at = clock_mono() + (mono_ms)b->opt.deadline_ms;
    if (!timer || event_add(timer, &tick))
        die("no timer");
    (void)event_base_dispatch(b->base);
    event_free(timer);
}

static bool is_known(struct bench *b)
{
    return watch_is_known(&b->watch);
}

static bool is_submitted(struct bench *b)
{
    return b->load.ended_us != 0;
}

static bool is_delivered(struct bench *b)
{
    return is_submitted(b) && tally_count(&b->tally) >= b->opt.n;
}

static bool is_finished(struct bench *b)
{
    if (is_delivered(b))
        watch_look(&b->watch);
    return watch_total(&b->watch) >= b->finished_before + b->opt.n;
}

/* ---- Calls that are waited for ------------------------------------------------------------ */

struct call {
    struct bench *b;
    const char *method;
    const char *path;
    struct str body;
};

static void on_call(void *ctx, int status, struct str body, struct buf *out)
{
    struct call *c = ctx;

    if (!status) {
        client_put_request(out, c->method, c->path, c->body);
        return;
    }
    if (status >= 300) {
        (void)fprintf(stderr, "jfbench: %s %s was answered %d: " STR_FMT "\n", c->method, c->path,
                      status, STR_ARG(body));
        exit(1);
    }
    (void)event_base_loopbreak(c->b->base);
}

static void call(struct bench *b, const char *method, const char *action, const char *body)
{
    char path[96];
    struct call c = {b, method, path, str_from(body)};
    struct client *client;

    (void)snprintf(path, sizeof(path), "/api/services/%s%s", b->service, action);
    client = client_open(b->base, b->opt.ports[0], on_call, &c);
    (void)event_base_dispatch(b->base);
    client_free(client);
}

static void register_service(struct bench *b)
{
    const struct options *o = &b->opt;
    char body[320];
    char base_url[64] = "";
    char delivery[96] = "";

    if (b->receiver)
        (void)snprintf(base_url, sizeof(base_url), "\"baseUrl\":\"http://127.0.0.1:%u/jobflow\",",
                       receiver_port(b->receiver));
    if (o->mode == MODE_BATCH)
        (void)snprintf(delivery, sizeof(delivery),
                       ",\"delivery\":{\"mode\":\"batch\",\"maxSize\":%zu,\"maxWait\":\"%zums\"}",
                       o->max_size, o->max_wait_ms);
    else if (o->mode == MODE_PULL)
        (void)snprintf(delivery, sizeof(delivery), ",\"delivery\":{\"mode\":\"pull\"}");
    (void)snprintf(body, sizeof(body), "{%s\"concurrency\":%zu,\"shards\":%zu%s}", base_url,
                   o->concurrency, o->shards, delivery);
    call(b, "PUT", "", body);
}

/* ---- Measures ----------------------------------------------------------------------------- */

static void print_start(const struct bench *b, const char *measure)
{
    (void)printf("{\"measure\":\"%s\",\"mode\":\"%s\",\"n\":%" PRIu64 ",\"size\":%zu,"
                 "\"connections\":%zu,",
                 measure, options_mode_name(b->opt.mode), b->opt.n, b->opt.size,
                 b->opt.connections);
}

static void print_rate(const struct bench *b, const char *measure, int64_t from_us, int64_t to_us)
{
    double seconds = (double)(to_us - from_us) / 1e6;

    print_start(b, measure);
    (void)printf("\"seconds\":%.3f,\"per_second\":%.0f}\n", seconds, (double)b->opt.n / seconds);
}

static void start_load(struct bench *b, const char *when)
{
    (void)snprintf(b->load.when, sizeof(b->load.when), "%s", when);
    load_start(&b->load);
}

static void run_submit(struct bench *b)
{
    start_load(b, "\"delay\":\"30d\",");
    run_until(b, is_submitted);
    print_rate(b, "submit", b->load.started_us, b->load.ended_us);
}

static void run_lifecycle(struct bench *b)
{
    start_load(b, "");
    run_until(b, is_finished);
    print_rate(b, "lifecycle", b->load.started_us, clock_mono_us());
}

static void run_drain(struct bench *b)
{
    call(b, "POST", "/pause", "");
    start_load(b, "");
    run_until(b, is_submitted);
    call(b, "POST", "/resume", "");
    run_until(b, is_finished);
    print_rate(b, "drain", atomic_load(&b->tally.first_us), clock_mono_us());
}

static void run_lateness(struct bench *b)
{
    b->load.rate = b->opt.rate;
    start_load(b, "\"delay\":\"1s\",");
    run_until(b, is_delivered);
    print_start(b, "lateness");
    (void)printf("\"rate\":%zu,", b->opt.rate);
    tally_print(&b->tally);
    (void)printf("}\n");
}

static void run_burst(struct bench *b)
{
    wall_ms due = clock_wall() + (wall_ms)b->opt.ahead_ms;
    char when[48];

    (void)snprintf(when, sizeof(when), "\"executeTime\":%" PRId64 ",", due);
    start_load(b, when);
    run_until(b, is_submitted);
    if (clock_wall() >= due)
        die("the tasks were not all stored before their time: ahead=MS has to be more");
    run_until(b, is_delivered);
    print_start(b, "burst");
    tally_print(&b->tally);
    (void)printf(",\"all_ms\":%d}\n", b->tally.late[b->opt.n - 1]); /* sorted by now */
}

static void (*measure_of(const char *name))(struct bench *b)
{
    static const struct {
        const char *name;
        void (*run)(struct bench *b);
    } measures[] = {
        {"burst", run_burst},         {"drain", run_drain},   {"lateness", run_lateness},
        {"lifecycle", run_lifecycle}, {"submit", run_submit},
    };

    for (size_t i = 0; i < sizeof(measures) / sizeof(measures[0]); i++) {
        if (!strcmp(measures[i].name, name))
            return measures[i].run;
    }
    die("unknown measure");
}

int main(int argc, char **argv)
{
    static struct bench b;
    void (*run)(struct bench * b);

    options_parse(&b.opt, argc, argv);
    run = measure_of(b.opt.measure);
    (void)snprintf(b.service, sizeof(b.service), "bench-%s", options_mode_name(b.opt.mode));
    tally_init(&b.tally, b.opt.n);
    b.base = event_base_new();
    if (!b.base)
        die("no loop");
    if (b.opt.mode != MODE_PULL)
        b.receiver = receiver_start((uint16_t)b.opt.receiver_port, &b.tally, (struct str){0});
    register_service(&b);
    if (b.opt.mode == MODE_PULL)
        b.workers = workers_start(b.base, &b.opt, b.service, &b.tally);
    b.load = (struct load){.base = b.base,
                           .ports = b.opt.ports,
                           .n_ports = b.opt.n_ports,
                           .service = b.service,
                           .size = b.opt.size,
                           .connections = b.opt.connections,
                           .n = b.opt.n};
    watch_start(&b.watch, b.base, b.opt.ports, b.opt.n_ports);
    run_until(&b, is_known);
    b.finished_before = watch_total(&b.watch);
    run(&b);
    workers_free(b.workers);
    watch_fini(&b.watch);
    load_fini(&b.load);
    if (b.receiver)
        receiver_stop(b.receiver);
    tally_fini(&b.tally);
    event_base_free(b.base);
    return 0;
}
