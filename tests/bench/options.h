/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of jfbench: PORT[,PORT…] MEASURE N [NAME=VALUE…]. */
#ifndef JF_BENCH_OPTIONS_H
#define JF_BENCH_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "tests/bench/load.h"

/* How tasks reach the service: one call each, many in one call, or leased by workers. */
enum mode { MODE_PUSH, MODE_BATCH, MODE_PULL };

struct options {
    uint16_t ports[NODES_MAX]; /* of the nodes */
    size_t n_ports;
    const char *measure;
    uint64_t n;           /* tasks; a multiple of size */
    enum mode mode;       /* mode=push|batch|pull */
    size_t size;          /* size=500 tasks a submission */
    size_t connections;   /* connections=2 that submit */
    size_t rate;          /* rate=1000 tasks a second, of lateness */
    size_t ahead_ms;      /* ahead=3000, of burst: until the tasks are due */
    size_t deadline_ms;   /* deadline=120000 for each wait */
    size_t concurrency;   /* concurrency=256 calls to the service at a time */
    size_t shards;        /* shards=1 of the service */
    size_t receiver_port; /* receiver=0: a free one */
    size_t max_size;      /* max_size=100 tasks of a call that brings many */
    size_t max_wait_ms;   /* max_wait=5 for that to fill */
    size_t workers;       /* workers=4 connections that lease */
    size_t lease;         /* lease=200 tasks at a time */
};

/* Ends the program with a usage on a wrong line. */
void options_parse(struct options *ret, int argc, char **argv);
const char *options_mode_name(enum mode mode);

#endif
