/* SPDX-License-Identifier: Apache-2.0 */
/* Submissions over many connections, spread over the nodes. Functions abort the program on errors,
 * and when a submission is not answered as a new task. */
#ifndef JF_BENCH_LOAD_H
#define JF_BENCH_LOAD_H

#include "common/clock.h"
#include "tests/bench/client.h"

#define LOAD_CONNECTIONS_MAX 1024
#define NODES_MAX 8

struct load {
    struct event_base *base; /* borrowed, as `service`, until load_fini */
    const uint16_t *ports;   /* of the nodes */
    size_t n_ports;
    const char *service;
    char when[48];      /* `"delay":"30d",` or the like; empty: now */
    size_t size;        /* tasks of one request; 1: by the call for a single one */
    size_t connections; /* at most LOAD_CONNECTIONS_MAX */
    uint64_t n;         /* tasks in all, a multiple of size */
    uint64_t rate;      /* a second; 0: as fast as it goes */

    /* Kept by load.c. */
    uint64_t run; /* makes the keys of this call its own */
    uint64_t submitted;
    uint64_t answered;
    int64_t started_us;
    int64_t ended_us; /* 0 until all is answered */
    struct client *clients[LOAD_CONNECTIONS_MAX];
    size_t n_clients; /* 0 before load_start */
    struct buf body;
};

/* Opens the connections and begins. With a rate, load_pace sends what is due by now; before
 * load_start it does nothing. */
void load_start(struct load *l);
void load_pace(struct load *l);
void load_fini(struct load *l);

#endif
