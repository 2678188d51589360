/* SPDX-License-Identifier: Apache-2.0 */
/* A dispatcher, its loop and a scripted server, for the tests of node/dispatch. */
#ifndef JF_TESTS_DISPATCH_FIXTURE_H
#define JF_TESTS_DISPATCH_FIXTURE_H

#include "node/dispatch/dispatch.h"
#include "tests/lib/scripted_server.h"

#define DEADLINE_MS 30000

struct fixture {
    struct event_base *base;
    struct scripted_server *server;
    struct dispatch *d;
    const char *scheme;
    unsigned n_done;
};

/* One request and what became of it, copied out of on_done. */
struct call {
    struct dispatch_request r;
    struct fixture *f;
    struct call *then; /* started from this one's on_done */
    char url[256];
    bool done;
    int32_t status;
    bool sent;
    bool cut;
    size_t body_len;
    char body[64];
    char retry_after[64]; /* "(none)" without one */
    char failure[256];    /* "" without one */
};

/* Each case runs twice: the scheme in capitals leads through libcurl alone. */
int setup_short_way(void **state);
int setup_libcurl(void **state);
int teardown(void **state);
#define FIXTURE(name)                                                                              \
    {#name ", the short way", name, setup_short_way, teardown, NULL},                              \
    {                                                                                              \
#name ", libcurl alone", name, setup_libcurl, teardown, NULL                               \
    }

struct dispatch_config usual_config(void);
/* A new dispatcher in the place of the fixture's. */
void use_config(struct fixture *f, const struct dispatch_config *cfg);

/* Makes a call ready: to that URL, or to that path of the scripted server. */
void prepare_url(struct call *c, struct fixture *f, const char *url);
void prepare(struct call *c, struct fixture *f, const char *path);

void start(struct call *c);
/* Runs the loop until as many requests have ended as were started. */
void run_until_done(struct fixture *f, unsigned n);
/* All of it for one call. */
void run(struct call *c);
void run_path(struct call *c, struct fixture *f, const char *path);

struct scripted_counts counts_of(struct fixture *f);
/* The request left and got no answer, for a reason that says that. */
void assert_failed(const struct call *c, const char *says);
/* Runs what is ready in the loop, again and again, until so many connections are over. */
void run_until_closed(struct fixture *f, unsigned n);

#endif
