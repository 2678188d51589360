/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the etcd client share. */
#ifndef JF_CLUSTER_ETCD_INTERNAL_H
#define JF_CLUSTER_ETCD_INTERNAL_H

#include "common/ids.h"
#include "node/cluster/etcd.h"
#include "node/cluster/etcd_endpoints.h"
#include "node/cluster/etcd_json.h"
#include "node/cluster/post.h"

struct etcd {
    struct event_base *base; /* borrowed */
    struct posts *posts;
    struct etcd_endpoints endpoints;
    struct etcd_decoder decoder; /* for answers; each watch has its own */
    struct rng rng;
    char *user; /* owned, as the next ones; NULL = none */
    char *password;
    char *ca_file;
    char *cert_file;
    char *key_file;
    int64_t request_timeout_ms;
    int64_t watch_idle_ms;
    char *authorization; /* the header with the token; NULL = none yet */
    uint64_t token_gen;  /* grows when the token comes or goes */
    bool has_no_users;   /* the server said so */
    struct etcd_flight *flights;
    unsigned n_watches;
};

/* A question to one endpoint: a POST, with another one before it that fetches a token when there is
 * a user and no token. One of on_answer and on_fault is called in the end; either may begin another
 * question or free it. */
struct etcd_ask {
    struct etcd *e;
    const char *path;
    struct str body; /* borrowed */
    size_t max_answer;
    bool is_stream;
    void (*on_answer)(struct etcd_ask *a); /* post.http_status and post.answer */
    void (*on_data)(struct etcd_ask *a);   /* of a stream */
    void (*on_fault)(struct etcd_ask *a, const struct etcd_fault *fault);
    void *ctx;

    struct post post;
    struct buf url;
    struct buf authenticate;
    char *authorization; /* owned: the client's may change */
    unsigned endpoint;
    mono_ms until;
    uint64_t token_gen; /* of the token that was sent */
    bool is_renewed;
};

/* It is idle. `until` is for all of it, of a stream for its connection. Errors: ERR_NOMEM; then no
 * callback follows. */
MUST_CHECK int etcd_ask_begin(struct etcd_ask *a, unsigned endpoint, mono_ms until);

/* Asks the same again with a new token. False when that was done before at this endpoint, or there
 * is no user, or no memory. */
bool etcd_ask_renew(struct etcd_ask *a);

void etcd_ask_stop(struct etcd_ask *a); /* no callback follows */
void etcd_ask_fini(struct etcd_ask *a); /* stops it */

static inline const char *etcd_ask_url(const struct etcd_ask *a)
{
    return a->e->endpoints.list[a->endpoint].url;
}

void etcd_flights_free(struct etcd *e);

#endif
