/* SPDX-License-Identifier: Apache-2.0 */
/* The short way for http:// (docs/decisions/0012): libcurl looks up names and connects, and from
 * then on requests are written to the socket and answers read from it here. What is not plain, as
 * https or a host that is no ordinary name, goes through libcurl as a whole.
 *
 * A request with an idle connection to its origin ("host:port") leaves at once. Without one a
 * connection is opened for it, or it waits in line: for one of the origin's when that has
 * max_per_host of them, for any when there are max_connections. Then idle ones give way, and busy
 * ones when an origin has stood in line for a while. */
#ifndef JF_DISPATCH_PLAIN_H
#define JF_DISPATCH_PLAIN_H

#include "node/dispatch/dispatch.h"

struct plain;
struct plain_call;

/* NULL when out of memory. */
struct plain *plain_new(struct dispatch *d, const struct dispatch_config *cfg);
/* Closes all and forgets the calls, without on_done. NULL is accepted. */
void plain_free(struct plain *p);

/* Where a plain URL leads; borrowed from it. */
struct plain_target {
    struct str origin; /* "host:port" */
    struct str path;   /* with the query; may be empty */
};

/* Whether a request to this URL goes the short way; then *ret is where. */
bool plain_split(const char *url, struct plain_target *ret);

/* Sends the request, or lets it wait; on_done is not called from inside. `to` is what
 * plain_split says of the URL. Errors: ERR_NOMEM. */
MUST_CHECK int plain_start(struct plain *p, struct dispatch_request *r,
                           const struct plain_target *to);

/* What became of the connection that was asked for by dispatch_by_libcurl: it stands, and the call
 * owns the descriptor; or it does not, and the request's answer says why. Either may end the call.
 */
void plain_connected(struct plain_call *c, int fd);
void plain_unconnected(struct plain_call *c);

/* Ends the calls whose answers stand still. */
void plain_check_stalls(struct plain *p, mono_ms now);

#endif
