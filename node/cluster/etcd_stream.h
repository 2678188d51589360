/* SPDX-License-Identifier: Apache-2.0 */
/* Splits a stream into the JSON objects it consists of, wherever it was cut on its way. Finds their
 * ends only; what is in them is the decoder's business. */
#ifndef JF_CLUSTER_ETCD_STREAM_H
#define JF_CLUSTER_ETCD_STREAM_H

#include "common/buf.h"

/* Zero-initialise. */
struct etcd_stream {
    struct buf in;
    size_t begin; /* of the object that is being read, or of white space */
    size_t seen;  /* bytes looked at */
    size_t depth;
    bool is_string;
    bool is_escape;
};

void etcd_stream_fini(struct etcd_stream *s);

/* Forgets what is there, for the beginning of another stream. */
void etcd_stream_reset(struct etcd_stream *s);

/* Appends bytes as they came. Errors: ERR_NOMEM. */
MUST_CHECK int etcd_stream_push(struct etcd_stream *s, struct str bytes);

/* The next whole object: returns 1 and sets *ret, valid until the next push or reset; 0 when more
 * bytes are needed. Errors: ERR_PROTOCOL (something else than objects and white space),
 * ERR_TOO_BIG (an object of more than max bytes); the stream is of no use then. */
MUST_CHECK int etcd_stream_next(struct etcd_stream *s, size_t max, struct str *ret);

#endif
