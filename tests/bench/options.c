/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const mode_names[] = {
    [MODE_PUSH] = "push", [MODE_BATCH] = "batch", [MODE_PULL] = "pull"};

const char *options_mode_name(enum mode mode)
{
    return mode_names[mode];
}

static _Noreturn void usage(const char *wrong)
{
    (void)fprintf(stderr, "jfbench: what is %s?\n", wrong);
    (void)fprintf(stderr, "usage: jfbench PORT[,PORT...] submit|lifecycle|drain|burst|lateness N "
                          "[NAME=VALUE...]\n");
    exit(2);
}

static uint64_t number(const char *text, const char *word, uint64_t min, uint64_t max)
{
    char *end;
    uint64_t v = strtoull(text, &end, 10);

    if (end == text || *end || v < min || v > max)
        usage(word);
    return v;
}

static void parse_ports(struct options *o, char *list)
{
    char *rest = NULL;

    for (char *at = strtok_r(list, ",", &rest); at; at = strtok_r(NULL, ",", &rest)) {
        if (o->n_ports == NODES_MAX)
            usage(at);
        o->ports[o->n_ports++] = (uint16_t)number(at, at, 1, UINT16_MAX);
    }
    if (!o->n_ports)
        usage("a list without ports");
}

static enum mode parse_mode(const char *text)
{
    for (size_t i = 0; i < sizeof(mode_names) / sizeof(mode_names[0]); i++) {
        if (!strcmp(text, mode_names[i]))
            return (enum mode)i;
    }
    usage(text);
}

static void parse_option(struct options *o, const char *word)
{
    const struct {
        const char *name;
        size_t *at;
    } numbers[] = {
        {"size=", &o->size},
        {"connections=", &o->connections},
        {"rate=", &o->rate},
        {"ahead=", &o->ahead_ms},
        {"deadline=", &o->deadline_ms},
        {"concurrency=", &o->concurrency},
        {"shards=", &o->shards},
        {"receiver=", &o->receiver_port},
        {"max_size=", &o->max_size},
        {"max_wait=", &o->max_wait_ms},
        {"workers=", &o->workers},
        {"lease=", &o->lease},
    };

    if (!strncmp(word, "mode=", 5)) {
        o->mode = parse_mode(word + 5);
        return;
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        size_t len = strlen(numbers[i].name);

        if (strncmp(word, numbers[i].name, len))
            continue;
        *numbers[i].at = number(word + len, word, 0, 1000000000);
        return;
    }
    usage(word);
}

void options_parse(struct options *ret, int argc, char **argv)
{
    struct options o = {.size = 500,
                        .connections = 2,
                        .rate = 1000,
                        .ahead_ms = 3000,
                        .deadline_ms = 120000,
                        .concurrency = 256,
                        .shards = 1,
                        .max_size = 100,
                        .max_wait_ms = 5,
                        .workers = 4,
                        .lease = 200};

    if (argc < 4)
        usage("so short a line");
    parse_ports(&o, argv[1]);
    o.measure = argv[2];
    o.n = number(argv[3], argv[3], 1, 1000000000);
    for (int i = 4; i < argc; i++)
        parse_option(&o, argv[i]);
    if (!o.size || o.size > 1000 || !o.connections || o.connections > LOAD_CONNECTIONS_MAX ||
        !o.workers || !o.lease || !o.rate)
        usage("a number out of range");
    o.n -= o.n % o.size;
    if (!o.n)
        usage("less than one submission");
    *ret = o;
}
