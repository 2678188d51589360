/* SPDX-License-Identifier: Apache-2.0 */
/* A server on the test's own loop that says what the test tells it to, for what no real etcd can be
 * made to say. */
#ifndef JF_TESTS_FAKE_ETCD_H
#define JF_TESTS_FAKE_ETCD_H

#include "common/str.h"

#define FAKE_URL_MAX 64
#define FAKE_HEADER                                                                                \
    "\"header\":{\"cluster_id\":\"1\",\"member_id\":\"2\",\"revision\":\"7\",\"raft_term\":\"2\"}"
#define FAKE_CREATED "{\"result\":{" FAKE_HEADER ",\"created\":true}}\n"

struct event_base;
struct fake_etcd;
struct fake_request;

/* A whole request is there; head and body are borrowed for the call. Answer it, or keep it and
 * answer later, or never. */
typedef void fake_answer(struct fake_request *r, const char *head, const char *body, void *ctx);

struct fake_etcd *fake_etcd_new(struct event_base *base, fake_answer *on_request, void *ctx);
void fake_etcd_free(struct fake_etcd *s); /* and all its requests */
void fake_etcd_url(const struct fake_etcd *s, char dst[FAKE_URL_MAX]);
unsigned fake_etcd_count(const struct fake_etcd *s); /* requests so far */

/* The answer's beginning, once, before anything else; its end is the connection's. */
void fake_status(struct fake_request *r, const char *status);
void fake_say(struct fake_request *r, struct str bytes);
void fake_end(struct fake_request *r); /* when all is sent; r is gone */

#endif
