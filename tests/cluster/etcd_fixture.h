/* SPDX-License-Identifier: Apache-2.0 */
/* A loop with an etcd client, for tests that read from top to bottom: a call that waits, a watch
 * that keeps what it was told. All functions fail the running test when something is wrong. */
#ifndef JF_TESTS_ETCD_FIXTURE_H
#define JF_TESTS_ETCD_FIXTURE_H

#include "node/cluster/etcd.h"
#include "tests/lib/etcdserver.h"

#define TEXT_MAX 64
#define KVS_MAX 16
#define EVENTS_MAX 256
#define WATCHES_MAX 4

struct fixture {
    struct event_base *base;
    struct event *tick;
    struct etcdserver *server; /* NULL: none, or the test's own */
    struct etcd *e;
    struct etcd_watch *watches[WATCHES_MAX]; /* those not stopped, for when a test fails */
};

struct kept_kv {
    char key[TEXT_MAX];
    char value[TEXT_MAX];
    int64_t create_revision;
    int64_t mod_revision;
    int64_t lease;
};

/* A call and what became of it, copied out of on_done. */
struct asked {
    struct etcd_call c;
    unsigned n_done;
    int rc;
    char err[sizeof(((struct err *)0)->text)];
    struct etcd_answer a; /* without kvs */
    struct kept_kv kvs[KVS_MAX];
};

struct kept_event {
    enum etcd_event_type type;
    char key[TEXT_MAX];
    char value[TEXT_MAX];
    char prev[TEXT_MAX]; /* "(none)" without one */
    int64_t mod_revision;
};

struct watched {
    struct fixture *f;
    struct etcd_watch *w;
    unsigned n_created;
    int64_t created_revision;
    char why[256];
    struct kept_event events[EVENTS_MAX];
    size_t n_events;
    int64_t revision; /* of the last ones */
    unsigned n_broken;
    int rc;
    int64_t compact_revision;
    char err[sizeof(((struct err *)0)->text)];
    bool stop_in_callback;
};

/* Starts a server, or fails. */
struct etcdserver *fixture_server(const struct etcdserver_options *o);

/* With a client of the server's members. For setup and teardown of a test; to be freed by the
 * latter. */
struct fixture *fixture_new(const struct etcdserver *server, unsigned n_members);
int fixture_teardown(void **state); /* of what fixture_new has made; not the server */

void fixture_open(struct fixture *f);
void fixture_close(struct fixture *f); /* not the server */

/* The server's endpoints and short times; the strings stay valid until the next call. */
struct etcd_config fixture_config(const struct etcdserver *server, unsigned n_members);

/* A new client in place of the last one. */
void fixture_client(struct fixture *f, const struct etcd_config *cfg);

/* Runs the loop until the condition holds; the test fails after a generous time. */
void fixture_wait(struct fixture *f, bool (*is_met)(void *ctx), void *ctx);
void fixture_run(struct fixture *f, int ms); /* for so long, when nothing is to happen */

void fixture_wipe(struct fixture *f); /* deletes all keys */

/* Starts the call; c.ctx and c.on_done are set. */
void ask_start(struct fixture *f, struct asked *a);
void ask_wait(struct fixture *f, struct asked *a);

/* Starts it anew and waits; returns its rc. */
int ask(struct fixture *f, struct asked *a, struct etcd_call c);

/* Asks again, as a caller would, until it succeeds. */
void ask_until_done(struct fixture *f, struct asked *a, struct etcd_call c);

int64_t grant(struct fixture *f, int64_t ttl_s);              /* the lease */
int64_t put(struct fixture *f, const char *k, const char *v); /* the revision */

void watch_start(struct fixture *f, struct watched *w, const char *prefix, int64_t revision);
void watch_stop(struct watched *w);
void wait_created(struct fixture *f, struct watched *w, unsigned n);
void wait_events(struct fixture *f, struct watched *w, size_t n);
void wait_broken(struct fixture *f, struct watched *w);

#endif
