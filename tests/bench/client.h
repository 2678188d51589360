/* SPDX-License-Identifier: Apache-2.0 */
/* A small HTTP client for load: many keep-alive connections on one loop, one request at a time on
 * each. It reads only what the bench's own peers send: a status line and a Content-Length. */
#ifndef JF_BENCH_CLIENT_H
#define JF_BENCH_CLIENT_H

#include "common/buf.h"

struct event_base;
struct client;

/* Fills the next request's whole text into `out`, or leaves it empty when there is none. Called
 * when the connection is free; `status` and `body` are of the answer before (0 at the first call).
 */
typedef void client_next(void *ctx, int status, struct str body, struct buf *out);

/* Connects to 127.0.0.1:port and goes on until `next` has no more. Aborts the program on errors: a
 * figure with lost requests would mean nothing. */
struct client *client_open(struct event_base *base, uint16_t port, client_next *next, void *ctx);
void client_free(struct client *c);
/* Asks `next` again, if the connection has nothing to do. */
void client_kick(struct client *c);

/* Appends a request with a JSON body. */
void client_put_request(struct buf *out, const char *method, const char *path, struct str body);

#endif
