/* SPDX-License-Identifier: Apache-2.0 */
/* An etcd client: the v3 JSON gateway (etcd 3.4 and later) over libcurl on the owner's libevent
 * loop. Keys and values are plain bytes here; base64 and numbers as strings are inside.
 *
 * Endpoints: calls go to one endpoint until it fails; then it is set aside for a while and the same
 * call goes on to the next one, each endpoint at most once per call, while the call's time allows.
 * An endpoint that hangs gets only its share of that time. When all are set aside they are tried
 * all the same.
 *
 * So a call may be carried out twice, and with ERR_TIMEOUT, ERR_UNAVAILABLE or ERR_PROTOCOL, or
 * after a cancel, nobody knows whether it was: a second lease runs out by itself, and ETCD_CREATE
 * knows its own key again.
 *
 * A call that finds no leader waits for one within its time, as etcd does. When no endpoint takes
 * connections it ends at once: pausing before the next try is the caller's part.
 *
 * Users: with `user` set, a token is fetched when there is none, and once more per endpoint when
 * the server no longer knows it. A server without authentication is served without.
 *
 * All functions belong to the loop's thread, and none blocks. No callback runs inside a function of
 * this header; callbacks may call every one of them but etcd_free(). */
#ifndef JF_CLUSTER_ETCD_H
#define JF_CLUSTER_ETCD_H

#include "common/err.h"
#include "common/str.h"

struct etcd;
struct event_base;

struct etcd_config {
    const char *const *endpoints; /* "http://host:2379" or "https://…", without a path */
    size_t n_endpoints;           /* 1 to ETCD_ENDPOINTS_MAX */
    const char *user;             /* NULL = no authentication */
    const char *password;
    const char *ca_file;        /* NULL = the system's */
    const char *cert_file;      /* the client's; NULL = none */
    const char *key_file;       /* goes with cert_file */
    int64_t request_timeout_ms; /* of one call, all endpoints together; also of a watch's start */
    int64_t watch_idle_ms;      /* a watch that hears nothing for so long connects anew */
};

#define ETCD_ENDPOINTS_MAX 32
#define ETCD_ANSWER_MAX ((size_t)8 << 20) /* bytes of one call's answer; above: ERR_PROTOCOL */
#define ETCD_EVENT_MAX ((size_t)4 << 20)  /* bytes of one message of a watch; above: broken */

/* Everything in cfg is copied. Connects to nothing yet.
 * Errors: ERR_INVALID (no endpoint, or not an http or https URL), ERR_NOMEM. */
MUST_CHECK int etcd_new(struct event_base *base, const struct etcd_config *cfg, struct etcd **ret,
                        struct err *err);

/* Calls under way end without on_done; every watch has been stopped before. NULL is accepted. */
void etcd_free(struct etcd *e);

/* ---- Calls --------------------------------------------------------------------------------- */

struct etcd_kv {
    struct str key;
    struct str value;
    int64_t create_revision;
    int64_t mod_revision;
    int64_t lease; /* 0 = none */
};

enum etcd_op {
    ETCD_LEASE_GRANT,      /* ttl_s → answer.lease, answer.ttl_s (may be longer than asked) */
    ETCD_LEASE_KEEP_ALIVE, /* lease → answer.ttl_s > 0; a lost lease is ERR_NOT_FOUND */
    ETCD_LEASE_REVOKE,     /* lease; deletes its keys. A lost lease is ERR_NOT_FOUND */
    ETCD_PUT,              /* key, value, lease (0 = none) */
    ETCD_RANGE,            /* key, is_prefix → answer.kvs in order of keys; linearizable */
    ETCD_DELETE,           /* key, is_prefix → answer.n_deleted */
    /* key, value, lease: puts the key if there is none. answer.is_done: it stands there, with this
     * lease (not 0) and value if it was there before. Else answer.kvs[0] is who holds it. */
    ETCD_CREATE,
    /* key, mod_revision: deletes the key if that is its mod_revision. answer.is_done; else
     * answer.kvs[0] is what stands there, if anything does. */
    ETCD_DELETE_IF,
    /* lease, of anybody → answer.ttl_s, what is left of it, and answer.granted_ttl_s, what a
     * keep-alive makes of it. A lost lease is ERR_NOT_FOUND. */
    ETCD_LEASE_TTL,
};

/* Valid inside on_done only, with what it points to. */
struct etcd_answer {
    int64_t revision; /* the store's, when it answered */
    int64_t lease;
    int64_t ttl_s;
    int64_t granted_ttl_s;
    int64_t n_deleted;
    bool is_done;
    struct etcd_kv *kvs; /* NULL when there are none */
    size_t n_kvs;
};

/* Errors, in rc:
 * ERR_UNAVAILABLE  no endpoint took the call: refused, unreachable, without a leader
 * ERR_TIMEOUT      time ran out while an endpoint was silent
 * ERR_NOT_FOUND    the lease does not exist (any more): keep-alive, revoke, put, create, its TTL
 * ERR_INVALID      user, password, permission, or something in the request is wrong
 * ERR_BUSY         etcd's own limits: too many requests, no space left
 * ERR_PROTOCOL     an answer that is not etcd's
 * ERR_NOMEM */
struct etcd_call {
    /* In. Strings are borrowed until on_done. */
    enum etcd_op op;
    bool is_prefix;
    struct str key; /* not empty */
    struct str value;
    int64_t lease;
    int64_t ttl_s;
    int64_t mod_revision;
    int64_t timeout_ms;                      /* 0 = the configuration's */
    void (*on_done)(struct etcd_call *call); /* called once; may free the call or start it anew */
    void *ctx;

    /* Out, valid inside on_done. */
    int rc;
    struct err err; /* names the endpoint; empty when rc is 0 */
    struct etcd_answer answer;

    struct etcd_flight *flight; /* the client's own; NULL while the call is not under way */
};

/* The call must not be under way. Errors: ERR_NOMEM; then on_done is not called. */
MUST_CHECK int etcd_start(struct etcd *e, struct etcd_call *call);

/* Ends a call under way: on_done is not called. Does nothing for one that is not. */
void etcd_cancel(struct etcd_call *call);

/* ---- Watches ------------------------------------------------------------------------------- */

struct etcd_watch;

enum etcd_event_type { ETCD_EVENT_PUT, ETCD_EVENT_DELETE };

struct etcd_event {
    enum etcd_event_type type;
    bool has_prev;
    struct etcd_kv kv;   /* of a deletion: key and mod_revision only */
    struct etcd_kv prev; /* what was there before, when has_prev */
};

struct etcd_watch_config {
    struct str prefix;      /* not empty; copied */
    int64_t start_revision; /* the first one to hear of; 0 = from now on */
    bool with_prev;         /* ask for the previous values (absent where they were compacted) */
    void *ctx;

    /* The watch stands, again after each reconnection; nothing was missed. `revision` is the
     * store's. `why` says what ended the last connection or attempt, "" if there was none. May be
     * NULL. */
    void (*on_created)(void *ctx, int64_t revision, const char *why);
    /* n > 0 events in order of mod_revision, valid inside the callback. All of one revision come
     * together; `revision` is that of the last one. */
    void (*on_events)(void *ctx, int64_t revision, const struct etcd_event *events, size_t n);
    /* The watch is over and events are missing or will be: read everything and start a new one at
     * that answer's revision + 1. compact_revision is not 0 when history was compacted away. Other
     * reasons: the server cancelled it, no permission, an answer that is not etcd's or too big;
     * rc is ERR_NOT_FOUND, ERR_CONFLICT, ERR_INVALID or ERR_PROTOCOL in this order. */
    void (*on_broken)(void *ctx, int rc, int64_t compact_revision, const struct err *err);
};

/* Keeps a stream of the keys with a prefix. When a connection ends, hears nothing for watch_idle_ms
 * or cannot be made, it goes on at the last revision + 1, on the next endpoint, with pauses up to
 * two seconds, for as long as it takes. The owner learns of a long outage from its calls.
 * Errors: ERR_NOMEM. */
MUST_CHECK int etcd_watch_start(struct etcd *e, const struct etcd_watch_config *cfg,
                                struct etcd_watch **ret);

/* Ends and frees it, also from its own callbacks and after on_broken; no callback follows. NULL is
 * accepted. */
void etcd_watch_stop(struct etcd_watch *w);

#endif
