/* SPDX-License-Identifier: Apache-2.0 */
/* A request to a service, with one task or many: where it goes, its headers, its body.
 *
 * A service with live instances is called at one of them. When none of the request has left, since
 * the instance could not be connected to, the next one is tried within the same attempt, in what is
 * left of its time. */
#ifndef JF_NODE_OUTGOING_H
#define JF_NODE_OUTGOING_H

#include "common/buf.h"
#include "node/core/service.h"
#include "node/dispatch/dispatch.h"

#define OUTGOING_TRIES_MAX 8 /* instances that one request tries to connect to */

struct node;

struct outgoing {
    struct dispatch_request request; /* first: its on_done gets the outgoing */
    struct node *node;
    struct str service_name; /* these two: borrowed, outlive the request */
    struct str handler;
    mono_ms ends_at;                    /* the time-out */
    uint64_t tried[OUTGOING_TRIES_MAX]; /* ids of instances, the present one last */
    size_t n_tried;                     /* 0 = at the service's own address */
    struct buf body;
    struct buf url;      /* NUL-terminated */
    struct buf text;     /* the header lines; NUL-terminated once it is sent */
    const char *headers; /* text.data */
};

void outgoing_fini(struct outgoing *o);
/* Forgets all but the memory of its buffers. */
void outgoing_clear(struct outgoing *o);

/* Finds the address. Errors: ERR_NOT_FOUND (the service has none; says what to do). */
MUST_CHECK int outgoing_address(struct outgoing *o, const struct service *service, struct err *err);

/* Content-Type and User-Agent; the first of all. */
void outgoing_common_headers(struct outgoing *o);
/* `name` ends with ": ". */
void outgoing_header(struct outgoing *o, struct str name, struct str value);
void outgoing_header_int(struct outgoing *o, struct str name, int64_t value);
/* Once the body stands. A service without a secret gets no signature. Errors: of sign_webhook. */
MUST_CHECK int outgoing_sign(struct outgoing *o, const struct service *service, const char *id,
                             wall_ms now);

/* Sends it, when node, names, ends_at, request.send_by and request.on_done are set.
 * Errors: ERR_NOMEM, ERR_INVALID; then on_done is not called. */
MUST_CHECK int outgoing_send(struct outgoing *o, struct err *err);

/* In on_done: true if it went to another instance instead, so that on_done is called again. Else
 * request.answer stands; it may point into `err`. */
bool outgoing_goes_on(struct outgoing *o, struct err *err);

#endif
