/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of one running node, from outside: what a client and a business service see.
 * scripts/bench starts the node and prints the table. One measurement a call:
 *
 *   jfbench PORT batch N        N submissions in batches of 500 over 2 connections
 *   jfbench PORT single N       N single submissions over 64 connections
 *   jfbench PORT lifecycle N    N tasks due now: from the first submission to the last delivery
 *   jfbench PORT lateness R S   R tasks a second for S seconds, each 1 s ahead
 *
 * Each prints one JSON object. */
#include <event2/event.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/ids.h"
#include "tests/bench/client.h"
#include "tests/bench/receiver.h"

#define BATCH 500
#define MAX_CLIENTS 64
#define DEADLINE_S 120

struct bench {
    struct event_base *base;
    struct receiver *receiver;
    struct client *clients[MAX_CLIENTS];
    size_t n_clients;
    uint16_t port;
    uint64_t run; /* makes the keys of this call its own */
    uint64_t n;   /* tasks to submit in all */
    uint64_t submitted;
    uint64_t answered;
    uint64_t allowed; /* of lateness: how many may be submitted by now */
    size_t per_request;
    size_t in_request; /* tasks of the requests under way: for `answered` */
    const char *delay;
    int64_t started_us;
    int64_t ended_us;
    struct buf body;
};

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

/* About 100 bytes of payload, as in an order's time-out. */
static void put_task(struct bench *b)
{
    buf_addf(&b->body,
             "{\"bizUuid\":\"bench-%016" PRIx64 "-%" PRIu64
             "\",\"serviceName\":\"bench\",\"handler\":\"run\",%s"
             "\"payload\":{\"orderId\":\"%020" PRIu64
             "\",\"amount\":12999,\"currency\":\"EUR\",\"reason\":\"payment time-out\"}}",
             b->run, b->submitted, b->delay, b->submitted);
    b->submitted++;
}

static void on_free(void *ctx, int status, struct str body, struct buf *out)
{
    struct bench *b = ctx;
    uint64_t n = b->per_request;

    (void)body;
    if (status) {
        if (status != 200 && status != 201) {
            (void)fprintf(stderr, "bench: status %d: " STR_FMT "\n", status, STR_ARG(body));
            exit(1);
        }
        b->answered += b->per_request;
        if (b->answered >= b->n) {
            b->ended_us = clock_mono_us();
            (void)event_base_loopbreak(b->base);
        }
    }
    if (b->submitted + n > b->allowed)
        return;
    buf_clear(&b->body);
    if (n > 1)
        buf_addz(&b->body, "{\"tasks\":[");
    for (uint64_t i = 0; i < n; i++) {
        if (i)
            buf_addc(&b->body, ',');
        put_task(b);
    }
    if (n > 1)
        buf_addz(&b->body, "]}");
    client_put_request(out, "POST", n > 1 ? "/api/delay-tasks/batch" : "/api/delay-tasks",
                       buf_str(&b->body));
}

static void on_registered(void *ctx, int status, struct str body, struct buf *out)
{
    struct bench *b = ctx;
    char text[160];

    if (status >= 300)
        die("the service could not be registered");
    if (status) {
        (void)event_base_loopbreak(b->base);
        return;
    }
    (void)body;
    (void)snprintf(text, sizeof(text),
                   "{\"baseUrl\":\"http://127.0.0.1:%u/jobflow\",\"concurrency\":256}",
                   receiver_port(b->receiver));
    client_put_request(out, "PUT", "/api/services/bench", str_from(text));
}

static void register_service(struct bench *b)
{
    struct client *c = client_open(b->base, b->port, on_registered, b);

    (void)event_base_dispatch(b->base);
    client_free(c);
}

/* Opens the connections and submits until all is answered. */
static void submit_all(struct bench *b, size_t n_clients)
{
    b->started_us = clock_mono_us();
    for (b->n_clients = 0; b->n_clients < n_clients; b->n_clients++)
        b->clients[b->n_clients] = client_open(b->base, b->port, on_free, b);
    (void)event_base_dispatch(b->base);
}

static void close_all(struct bench *b)
{
    for (size_t i = 0; i < b->n_clients; i++)
        client_free(b->clients[i]);
}

static void wait_deliveries(struct bench *b, uint64_t n)
{
    int64_t until = clock_mono() + DEADLINE_S * 1000;

    while (receiver_count(b->receiver) < n) {
        if (clock_mono() > until)
            die("not all tasks were delivered");
        (void)usleep(200);
    }
}

static void run_submit(struct bench *b, const char *name, size_t per_request, size_t n_clients)
{
    b->per_request = per_request;
    b->n -= b->n % per_request;
    b->allowed = b->n;
    b->delay = "\"delay\":\"30d\",";
    submit_all(b, n_clients);
    (void)printf("{\"measure\":\"%s\",\"n\":%" PRIu64 ",\"seconds\":%.3f,\"per_second\":%.0f}\n",
                 name, b->n, (double)(b->ended_us - b->started_us) / 1e6,
                 (double)b->n * 1e6 / (double)(b->ended_us - b->started_us));
}

static void run_lifecycle(struct bench *b)
{
    b->per_request = BATCH;
    b->n -= b->n % BATCH;
    b->allowed = b->n;
    b->delay = "";
    submit_all(b, 2);
    wait_deliveries(b, b->n);
    double seconds = (double)(clock_mono_us() - b->started_us) / 1e6;
    (void)printf("{\"measure\":\"lifecycle\",\"n\":%" PRIu64
                 ",\"seconds\":%.3f,\"per_second\":%.0f}\n",
                 b->n, seconds, (double)b->n / seconds);
}

static void on_pace(evutil_socket_t fd, short what, void *arg)
{
    struct bench *b = arg;
    uint64_t rate = (uint64_t)b->in_request;
    uint64_t due = (uint64_t)(clock_mono_us() - b->started_us) * rate / 1000000;

    (void)fd;
    (void)what;
    b->allowed = due < b->n ? due : b->n;
    for (size_t i = 0; i < b->n_clients && b->submitted < b->allowed; i++)
        client_kick(b->clients[i]);
}

static void run_lateness(struct bench *b, uint64_t rate, uint64_t seconds)
{
    static const struct timeval pace = {0, 1000};
    struct event *timer = event_new(b->base, -1, EV_PERSIST, on_pace, b);
    const int32_t *late;
    size_t n;

    if (!timer || event_add(timer, &pace))
        die("no timer");
    b->per_request = 1;
    b->in_request = rate;
    b->n = rate * seconds;
    b->delay = "\"delay\":\"1s\",";
    submit_all(b, 16);
    event_free(timer);
    wait_deliveries(b, b->n);
    late = receiver_lateness(b->receiver, &n);
    (void)printf("{\"measure\":\"lateness\",\"n\":%zu,\"rate\":%" PRIu64
                 ",\"p50_ms\":%d,\"p99_ms\":%d,\"p999_ms\":%d,\"max_ms\":%d,\"min_ms\":%d}\n",
                 n, rate, late[n / 2], late[n * 99 / 100], late[n * 999 / 1000], late[n - 1],
                 late[0]);
}

int main(int argc, char **argv)
{
    struct bench b = {0};

    if (argc < 4) {
        (void)fprintf(stderr, "usage: jfbench PORT batch|single|lifecycle N\n"
                              "       jfbench PORT lateness RATE SECONDS\n");
        return 2;
    }
    b.port = (uint16_t)atoi(argv[1]);
    b.n = strtoull(argv[3], NULL, 10);
    random_bytes(&b.run, sizeof(b.run));
    b.base = event_base_new();
    b.receiver = receiver_start(2000000);
    if (!b.base || !b.n)
        die("nothing to do");
    register_service(&b);
    if (!strcmp(argv[2], "batch"))
        run_submit(&b, "batch", BATCH, 2);
    else if (!strcmp(argv[2], "single"))
        run_submit(&b, "single", 1, MAX_CLIENTS);
    else if (!strcmp(argv[2], "lifecycle"))
        run_lifecycle(&b);
    else if (!strcmp(argv[2], "lateness") && argc == 5)
        run_lateness(&b, b.n, strtoull(argv[4], NULL, 10));
    else
        die("unknown measurement");
    close_all(&b);
    receiver_stop(b.receiver);
    buf_fini(&b.body);
    event_base_free(b.base);
    return 0;
}
