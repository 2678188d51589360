/* SPDX-License-Identifier: Apache-2.0 */
/* A server with a handler made for tests:
 *   /echo   answers with the body
 *   /held   is answered when the test says so
 *   /big    answers with BIG_ANSWER bytes */
#ifndef TEST_HTTP_FIXTURE_H
#define TEST_HTTP_FIXTURE_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/api/http.h"

#define BIG_ANSWER ((size_t)48 * 1024 * 1024)

struct held {
    struct mail mail;
    struct http_request *req;
    struct held *next;
};

struct fixture {
    struct http_server *server;
    const char *address;
    char *big;
    pthread_mutex_t lock;
    struct held *first; /* oldest first */
    struct held **last;
    atomic_uint n_held; /* not released yet */
    atomic_uint n_requests;
};

struct http_config fixture_config(void);
void fixture_start(struct fixture *f, const struct http_config *cfg);
void fixture_stop(struct fixture *f);
void fixture_wait_held(struct fixture *f, unsigned n);
void fixture_release(struct fixture *f); /* answers the oldest one */
void fixture_wait_connections(struct fixture *f, uint32_t n);

#endif
