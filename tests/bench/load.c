/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/load.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/ids.h"

static void put_digits(struct buf *b, uint64_t v, size_t width)
{
    char *at = buf_room(b, width);

    if (!at)
        return;
    for (size_t i = width; i-- > 0; v /= 10)
        at[i] = (char)('0' + v % 10);
    b->len += width;
}

/* About 100 bytes of payload, as in an order's time-out. */
static void put_task(struct load *l)
{
    struct buf *b = &l->body;

    buf_addf(b, "{\"bizUuid\":\"bench-%016" PRIx64 "-", l->run);
    put_digits(b, l->submitted, 10);
    buf_addz(b, "\",\"serviceName\":\"");
    buf_addz(b, l->service);
    buf_addz(b, "\",\"handler\":\"run\",");
    buf_addz(b, l->when);
    buf_addz(b, "\"payload\":{\"orderId\":\"");
    put_digits(b, l->submitted, 20);
    buf_addz(b, "\",\"amount\":12999,\"currency\":\"EUR\",\"reason\":\"payment time-out\"}}");
    l->submitted++;
}

static void put_request(struct load *l, struct buf *out)
{
    buf_clear(&l->body);
    if (l->size > 1)
        buf_addz(&l->body, "{\"tasks\":[");
    for (size_t i = 0; i < l->size; i++) {
        if (i)
            buf_addc(&l->body, ',');
        put_task(l);
    }
    if (l->size > 1)
        buf_addz(&l->body, "]}");
    client_put_request(out, "POST", l->size > 1 ? "/api/delay-tasks/batch" : "/api/delay-tasks",
                       buf_str(&l->body));
}

/* How many of a batch's results are new tasks. */
static size_t count_created(struct str body)
{
    static const char mark[] = "{\"status\":201,";
    const char *end = body.p + body.len;
    const char *at = body.p;
    size_t n = 0;

    while ((at = memmem(at, (size_t)(end - at), mark, sizeof(mark) - 1))) {
        at += sizeof(mark) - 1;
        n++;
    }
    return n;
}

static void take_answer(struct load *l, int status, struct str body)
{
    if (status != (l->size > 1 ? 200 : 201) || (l->size > 1 && count_created(body) != l->size)) {
        (void)fprintf(stderr, "bench: a submission was answered %d: %.*s\n", status,
                      (int)(body.len < 1000 ? body.len : 1000), body.p);
        exit(1);
    }
    l->answered += l->size;
    if (l->answered == l->n)
        l->ended_us = clock_mono_us();
}

/* How many tasks may be submitted by now. */
static uint64_t allowed(const struct load *l)
{
    uint64_t due = l->n;

    if (l->rate)
        due = (uint64_t)(clock_mono_us() - l->started_us) * l->rate / 1000000;
    return due < l->n ? due : l->n;
}

static void on_free(void *ctx, int status, struct str body, struct buf *out)
{
    struct load *l = ctx;

    if (status)
        take_answer(l, status, body);
    if (l->submitted + l->size <= allowed(l))
        put_request(l, out);
}

void load_start(struct load *l)
{
    assert(l->size && l->n % l->size == 0 && l->connections <= LOAD_CONNECTIONS_MAX);
    random_bytes(&l->run, sizeof(l->run));
    l->started_us = clock_mono_us();
    for (size_t i = 0; i < l->connections; i++)
        l->clients[l->n_clients++] = client_open(l->base, l->ports[i % l->n_ports], on_free, l);
}

void load_pace(struct load *l)
{
    for (size_t i = 0; i < l->n_clients && l->submitted + l->size <= allowed(l); i++)
        client_kick(l->clients[i]);
}

void load_fini(struct load *l)
{
    for (size_t i = 0; i < l->n_clients; i++)
        client_free(l->clients[i]);
    buf_fini(&l->body);
}
