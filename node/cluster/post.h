/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP POSTs by libcurl multi on a libevent loop, for answers that come whole or as a stream. All
 * callbacks run outside of libcurl, so they may start and stop any post. */
#ifndef JF_CLUSTER_POST_H
#define JF_CLUSTER_POST_H

#include "common/buf.h"

#define POST_HEADERS_MAX 4

struct event_base;
struct posts; /* those under way, and the connections */
struct post_handle;

struct posts_config {
    const char *ca_file; /* NULL = the system's. All are borrowed until posts_free. */
    const char *cert_file;
    const char *key_file;
};

struct post {
    /* In; borrowed until on_done or post_stop. */
    const char *url;
    const char *headers[POST_HEADERS_MAX]; /* "Name: value"; up to the first NULL */
    struct str body;
    int64_t connect_timeout_ms; /* at least 1 */
    int64_t timeout_ms;         /* of everything; 0 = none */
    size_t max_answer;          /* bytes held in `answer`; above, the post fails */
    /* Called once, unless it is stopped first. May free the post, or start it again. */
    void (*on_done)(struct post *p);
    /* For a stream: something was added to `answer`; take it out. May be NULL. */
    void (*on_data)(struct post *p);
    void *ctx;

    struct buf answer; /* the caller's: post_fini. Emptied by post_start */

    /* Out, for on_done. */
    int rc;            /* 0: an answer came to its end, whatever it says; ERR_TIMEOUT,
                          ERR_UNAVAILABLE, ERR_TOO_BIG, ERR_NOMEM */
    int http_status;   /* known in on_data too */
    char failure[256]; /* why rc is not 0 */

    struct post_handle *handle; /* NULL while not under way */
};

/* Errors: ERR_NOMEM. */
MUST_CHECK int posts_new(struct event_base *base, const struct posts_config *cfg,
                         struct posts **ret);
void posts_free(struct posts *s); /* every post is done or stopped; NULL is accepted */

/* Errors: ERR_NOMEM; then no callback follows. */
MUST_CHECK int post_start(struct posts *s, struct post *p);
void post_stop(struct post *p); /* no callback follows; nothing happens if not under way */
void post_fini(struct post *p); /* frees the answer; not while under way */

/* Whether it is http:// or https://, host and maybe port, and no more.
 * Errors: ERR_INVALID, ERR_NOMEM. */
MUST_CHECK int post_check_origin(const char *url, struct err *err);

#endif
