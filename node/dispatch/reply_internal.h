/* SPDX-License-Identifier: Apache-2.0 */
/* From bytes to a service's answer. The grammar is http-parser's; the limits, what a 1xx means and
 * which bytes belong to the answer are decided here. Knows no socket, so it can be fed anything.
 *
 * An answer ends with its Content-Length, its last chunk, its head (204, 304), or the connection.
 * 1xx are passed over. A body above the limit is cut, which is no fault. */
#ifndef JF_DISPATCH_REPLY_INTERNAL_H
#define JF_DISPATCH_REPLY_INTERNAL_H

#include <http_parser.h>

#include "common/buf.h"

#define REPLY_HEADERS_MAX (64 * 1024) /* bytes, all header blocks of an answer together */
#define REPLY_RETRY_AFTER_MAX 64      /* no form of it is as long */
#define REPLY_KEEP_MAX 4096           /* bytes of the body's buffer that are kept */

enum reply_state {
    REPLY_MORE, /* its end has not come */
    REPLY_DONE,
    REPLY_BAD, /* see `failure` */
};

struct reply {
    http_parser parser;
    struct buf body;
    size_t max_body;
    size_t header_len;
    size_t n_magic;  /* bytes of "HTTP/" that were seen */
    bool is_begun;   /* a line of it came, a 1xx aside */
    bool is_whole;   /* REPLY_DONE was returned */
    bool is_cut;     /* at max_body */
    bool in_body;    /* behind the head */
    bool in_value;   /* of a header line */
    bool keep_alive; /* once it is done: the connection may be used again */
    bool has_length;
    bool has_retry_after;
    uint64_t length; /* the answer's Content-Length */
    size_t name_len; /* of the header line that is being read; may be beyond name[] */
    size_t retry_after_len;
    char name[sizeof("content-length")];
    char retry_after[REPLY_RETRY_AFTER_MAX];
    char failure[96]; /* in words, once it is bad */
};

/* Ready for an answer with a body of at most so many bytes; keeps the memory of its buffer. Before
 * the first time all is zero. */
void reply_begin(struct reply *r, size_t max_body);
/* Frees what it owns. */
void reply_fini(struct reply *r);

/* Whether not a byte of it came. */
bool reply_is_empty(const struct reply *r);

/* Reads on, up to the answer's last byte: of one that is DONE and not cut, *ret_used says how much
 * of the data that was. Not to be called any more once it was not REPLY_MORE. */
enum reply_state reply_feed(struct reply *r, struct str data, size_t *ret_used);

/* The connection has ended. Never REPLY_MORE. */
enum reply_state reply_end(struct reply *r);

#endif
