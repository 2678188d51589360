/* SPDX-License-Identifier: Apache-2.0 */
/* A plain HTTP client for tests: what it sends is sent as it stands, and answers are read strictly.
 * Anything that cannot happen in a right answer fails the test. */
#ifndef TEST_HTTP_CLIENT_H
#define TEST_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#define CLIENT_DEADLINE_MS 20000

struct client {
    int fd;
    char *data; /* received, not used yet */
    size_t len;
    size_t cap;
    bool eof;
};

struct answer_text {
    int status;
    char *head; /* the lines with their CRLF, NUL-terminated */
    char *body; /* NUL-terminated */
    size_t body_len;
};

void client_open(struct client *c, const char *address);
/* False when the connection is refused. */
bool client_try_open(struct client *c, const char *address);
void client_close(struct client *c);
void client_reset(struct client *c); /* closes with RST */

/* False when the other side has closed. */
bool client_try_send(struct client *c, const void *p, size_t n);
void client_send(struct client *c, const char *text);

/* Reads one answer; `to_head` = it answers a HEAD. False at a clean end of the connection. */
bool client_try_read(struct client *c, bool to_head, struct answer_text *ret);
void client_read(struct client *c, struct answer_text *ret);
void answer_free(struct answer_text *a);
/* The value of a header, or "" when it is absent; the buffer is the caller's. */
const char *answer_header(const struct answer_text *a, const char *name, char *dst, size_t cap);

/* Waits until the other side has closed; fails if anything comes before. */
void client_expect_end(struct client *c);
/* True if there is something to read (or the end) now, or within ms. */
bool client_readable(struct client *c, int ms);

/* Sends one request on a connection of its own and reads the answer. */
void client_ask(const char *address, const char *request, struct answer_text *ret);
/* Builds "METHOD path" with a JSON body (NULL = none) on top of client_ask. */
void client_call(const char *address, const char *method, const char *path, const char *body,
                 struct answer_text *ret);

/* Polls a condition until it holds; fails after the deadline. */
void wait_until(bool (*holds)(void *ctx), void *ctx);

#endif
