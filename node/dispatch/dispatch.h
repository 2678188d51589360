/* SPDX-License-Identifier: Apache-2.0 */
/* The outgoing HTTP client on the owner's libevent loop: libcurl for what has to be looked up,
 * connected or encrypted, and a short way of its own for plain http:// (docs/decisions/0012). It
 * sends one POST per request and reports how it ended; what the end means is the core's business
 * (core/verdict.h).
 *
 * Guarantees:
 * - a request leaves at most once: no redirect is followed, nothing is re-sent when a reused
 *   connection breaks (a second beginning is refused), `Expect` is off;
 * - a request never leaves after its fence (`send_by`), checked when a socket is opened and again
 *   when the connection stands, right before the first byte is written;
 * - addresses are checked when the socket is opened, so a name cannot change after the check:
 *   link-local, metadata, multicast, unspecified and IPv4-mapped forms of them are refused, as is
 *   each address in `forbidden`;
 * - an answer is read up to `max_answer` bytes, the rest is dropped and the transfer ended;
 * - all times are bounded: connect, total, low speed;
 * - what is known of a host grows old: the addresses of a name, a kept connection, and what ca_file
 *   holds are each used for `refresh_ms` at most, so that a name that moves is followed within
 *   twice that time; a request under way is left alone;
 * - of a name's addresses one that does not answer leaves half of the connect time to the others;
 * - what a service says on a connection before it was asked is no answer: the connection ends.
 *
 * No function blocks, except that names are resolved by libcurl's own resolver thread.
 * All functions belong to the loop's thread. */
#ifndef JF_DISPATCH_H
#define JF_DISPATCH_H

#include "common/clock.h"
#include "common/err.h"
#include "common/str.h"
#include "node/core/verdict.h"

struct event_base;
struct dispatch;

struct dispatch_config {
    int64_t connect_timeout_ms;
    int64_t low_speed_ms;     /* an answer that stands still for so long is given up */
    size_t max_answer;        /* bytes */
    int64_t refresh_ms;       /* whole seconds count; at least one */
    uint32_t max_connections; /* kept open, idle ones included; as many again for https:// */
    uint32_t max_per_host;    /* 0 = no limit of its own */
    /* Own listeners ("127.0.0.1:8080") that a task must not reach; borrowed for the call. */
    const char *const *forbidden;
    size_t n_forbidden;
    const char *ca_file; /* PEM, in the place of the system's; NULL = the system's */
};

struct dispatch_request {
    /* In. Strings and body are borrowed until on_done. */
    const char *url; /* absolute http:// or https:// */
    /* "Name: value" each, or several such lines with CRLF between them: what libcurl does for each
     * of these texts costs more than the text. Content-Type is the first line of one. */
    const char *const *headers;
    size_t n_headers;
    struct str body;
    int64_t timeout_ms;                          /* from the start to the answer's last byte */
    mono_ms send_by;                             /* the fence; INT64_MAX = none */
    size_t max_answer;                           /* bytes; 0 = the dispatcher's */
    void (*on_done)(struct dispatch_request *r); /* always called once, never inside _start */
    void *ctx;

    /* Out, valid inside on_done only; on_done may free the request. */
    struct answer answer;
    int64_t elapsed_us; /* from leaving to the answer */
    bool is_unsent;     /* no connection could be made, and the fence did not forbid one */
};

/* Errors: ERR_NOMEM, ERR_INVALID (a forbidden entry that is no address). */
MUST_CHECK int dispatch_new(struct event_base *base, const struct dispatch_config *cfg,
                            struct dispatch **ret, struct err *err);

/* Ends what is in flight without calling on_done, closes connections, frees. NULL is accepted. */
void dispatch_free(struct dispatch *d);

/* Errors: ERR_INVALID (url), ERR_NOMEM. On an error on_done is not called. */
MUST_CHECK int dispatch_start(struct dispatch *d, struct dispatch_request *r, struct err *err);

uint32_t dispatch_in_flight(const struct dispatch *d);

/* Checks a base URL when a service is registered: http or https, a host, no user part, no query or
 * fragment, and if the host is a literal address, none that is refused at connect time.
 * Errors: ERR_INVALID with what is wrong and what is allowed. */
MUST_CHECK int dispatch_check_base_url(const struct dispatch *d, struct str url, struct err *err);

#endif
