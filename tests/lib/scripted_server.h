/* SPDX-License-Identifier: Apache-2.0 */
/* A receiver of requests that behaves as its request's path says, one thread per connection:
 *
 *   /ok                 200, "ok"; keeps the connection
 *   /bye                the same, then closes it without having said so
 *   /bye-at-once        the same, and the end comes together with the answer
 *   /close              200, "ok", says that it closes, and leaves that to the peer
 *   /status/<n>         <n> with the header "Retry-After: 7", body "status"
 *   /redirect           302 to /ok
 *   /continue           100 and 103 (with another Retry-After) before a 503 without one
 *   /continue-long      100, then an answer of 1000 bytes of which only 10 come
 *   /chunked            200, "ok" in two chunks
 *   /short              says Content-Length: 10, sends 2 bytes, closes
 *   /slow               reads no body for 200 ms; then as /ok
 *   /early              413 after the headers; reads no body for 200 ms
 *   /late               200 after 300 ms
 *   /think              102 at once, 200 after 300 ms
 *   /lengths            200 with two different Content-Lengths
 *   /stray              200, "ok", and 20 ms later another answer that nobody asked for
 *   /hang               reads the request, never answers
 *   /stall              begins an answer and never ends it
 *   /drip               an answer of one byte every 10 ms, without an end
 *   /endless            an answer as fast as it is taken, without an end
 *   /flood              headers without an end
 *   /rst                reads the whole request, then resets the connection
 *   /rst-early          resets it after the headers
 *   /garbage            answers what is not HTTP
 */
#ifndef JF_TESTS_SCRIPTED_SERVER_H
#define JF_TESTS_SCRIPTED_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct scripted_server;

/* What was seen so far. */
struct scripted_counts {
    unsigned connections;
    unsigned closed;         /* connections that are over */
    unsigned requests;       /* headers read to their end */
    unsigned bodies;         /* bodies read to their end */
    unsigned expects;        /* requests with an Expect header */
    char last_headers[4096]; /* request line and headers, NUL-terminated */
    char last_body[256];     /* its first bytes, NUL-terminated */
    size_t last_body_len;
    uint64_t last_body_sum; /* scripted_sum of it */
};

/* A sum over bytes in their order; that of nothing is 0. */
uint64_t scripted_sum(uint64_t sum, const char *bytes, size_t len);

/* Listens on 127.0.0.1. NULL when that is impossible. */
struct scripted_server *scripted_server_new(void);
void scripted_server_free(struct scripted_server *s);
uint16_t scripted_server_port(const struct scripted_server *s);
void scripted_server_counts(struct scripted_server *s, struct scripted_counts *ret);

#endif
