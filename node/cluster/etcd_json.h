/* SPDX-License-Identifier: Apache-2.0 */
/* What etcd's JSON gateway is told and says, as text: base64 for bytes, strings for 64-bit numbers,
 * zero fields left out. No I/O. */
#ifndef JF_CLUSTER_ETCD_JSON_H
#define JF_CLUSTER_ETCD_JSON_H

#include "common/json.h"
#include "node/cluster/etcd.h"
#include "node/cluster/etcd_fault.h"

/* ---- Requests: appended to dst, where out of memory sticks ---------------------------------- */

#define ETCD_PATH_AUTHENTICATE "/v3/auth/authenticate"
#define ETCD_PATH_WATCH "/v3/watch"

const char *etcd_path(enum etcd_op op);
void etcd_encode_call(const struct etcd_call *c, struct buf *dst);
void etcd_encode_authenticate(const char *user, const char *password, struct buf *dst);
void etcd_encode_watch(const struct etcd_watch_config *cfg, int64_t start_revision,
                       struct buf *dst);

/* ---- Answers ------------------------------------------------------------------------------- */

/* Zero-initialise. Holds the memory that decoded answers point into: each is valid until the next
 * one is decoded. */
struct etcd_decoder {
    struct json_doc doc;
    struct buf bytes;
    struct buf scratch;
    struct etcd_kv *kvs;
    size_t kvs_cap;
    struct etcd_event *events;
    size_t events_cap;
};

void etcd_decoder_fini(struct etcd_decoder *d);

/* The answer to a call. Returns 0, or fault->rc with *ret untouched. */
MUST_CHECK int etcd_decode_answer(struct etcd_decoder *d, const struct etcd_call *c,
                                  int http_status, struct str body, struct etcd_answer *ret,
                                  struct etcd_fault *fault);

/* The token points into body or the decoder; it has visible ASCII characters only. */
MUST_CHECK int etcd_decode_token(struct etcd_decoder *d, int http_status, struct str body,
                                 struct str *ret, struct etcd_fault *fault);

/* One object of a watch's stream. */
struct etcd_message {
    bool is_created;
    bool is_canceled;
    int64_t revision;
    int64_t compact_revision;
    const struct etcd_event *events;
    size_t n_events;
};

/* Returns 0, or fault->rc with *ret untouched. A cancelled watch is no fault when there is a
 * compact_revision; else it is one, by what the server gives as reason. */
MUST_CHECK int etcd_decode_message(struct etcd_decoder *d, struct str object,
                                   struct etcd_message *ret, struct etcd_fault *fault);

/* Why an HTTP answer other than 200 was given. Returns fault->rc, which is not 0. */
int etcd_decode_refusal(struct etcd_decoder *d, int http_status, struct str body,
                        struct etcd_fault *fault);

#endif
