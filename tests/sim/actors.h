/* SPDX-License-Identifier: Apache-2.0 */
/* Those around the nodes: the clients that submit and change tasks, and the business services. */
#ifndef JF_SIM_ACTORS_H
#define JF_SIM_ACTORS_H

#include "common/buf.h"
#include "tests/sim/sim.h"

/* handlers.c: the business services. */
struct handlers *handlers_new(struct sim *s);
void handlers_free(struct handlers *h);

/* What comes back for one request. */
struct reply {
    struct answer answer; /* its spans are static */
    int64_t after_ms;     /* -1 = never */
    bool arrives;         /* false: the service never saw the request */
    char retry_after[24]; /* "" = none */
};
/* A request arrives (or does not: see `answer.failure`). */
void handlers_receive(struct sim *s, const struct task *t, int64_t timeout_ms, struct reply *ret);
/* The same of a request with many tasks; the answer's text goes into `body`. */
void handlers_receive_batch(struct sim *s, struct task *const *tasks, size_t n, int64_t timeout_ms,
                            struct reply *ret, struct buf *body);
/* No service takes a request with this task. */
bool handlers_is_poison(const struct sim *s, int64_t id);
/* A worker has leased the task and begins to work on it. */
void handlers_lease(struct sim *s, const struct task *t);

/* workers.c */
struct worker;
struct workers *workers_new(struct sim *s);
void workers_free(struct workers *w);
/* The answer to its question has left the node; without tasks also when the node is gone. */
void worker_hears(struct sim *s, struct worker *w, struct task *const *tasks, size_t n);

/* clients.c */
struct clients *clients_new(struct sim *s); /* plans everything that they will do */
void clients_free(struct clients *c);
bool clients_are_done(const struct sim *s); /* each task was accepted */
/* In which mode a service is put at first. */
enum delivery_mode clients_delivery(const struct sim *s, int service);

#endif
