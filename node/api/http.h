/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP/1.1 server on libevent loops. It knows nothing of tasks: it reads requests under limits
 * and absolute deadlines, hands each to one handler and writes the answer that comes now or later.
 * What is wrong with a request as HTTP it answers itself, with problem documents. */
#ifndef JF_API_HTTP_H
#define JF_API_HTTP_H

#include "common/buf.h"
#include "common/mailbox.h"

#include <netinet/in.h>

struct http_server;

/* HEAD arrives as GET; its answer's body is left out on the wire. */
enum http_verb { VERB_GET, VERB_POST, VERB_PUT, VERB_PATCH, VERB_DELETE, VERB_OTHER };

/* One request; the server's, valid until it is answered, also when its connection dies before. */
struct http_request {
    enum http_verb verb;
    struct str path;         /* not decoded, begins with '/' */
    struct str query;        /* what stands after '?'; absent = no '?' */
    struct str content_type; /* absent = none */
    struct str body;
    unsigned loop;           /* which loop it belongs to: 0 to threads - 1 */
    struct mailbox *mailbox; /* that loop's: what handlers wait for comes back through it */
    /* The handler's to set: called once, on the loop's thread, if the client closes its side before
     * the answer. The request still has to be answered, later. */
    void (*on_hangup)(struct http_request *req);
    void *user; /* for the handler that set it */
};

struct http_answer {
    int status;
    const char *content_type; /* NULL = no body (and no Content-Length with 204) */
    struct str headers;       /* more header lines, each ended by CRLF; may be absent */
    struct str body;
    bool close; /* close the connection afterwards */
    /* NULL, or called once, on the loop's thread, inside http_answer or later: whether the system
     * has taken all of it. If not, the client has not got it whole. */
    void (*on_end)(void *ctx, bool sent);
    void *ctx;
};

/* Runs on the loop's thread. Leads to exactly one http_answer on that thread, inside or later. */
typedef void http_handler(void *ctx, struct http_request *req);

struct http_config {
    const char *listen; /* "127.0.0.1:8080", "[::1]:0" */
    uint32_t threads;
    uint32_t max_connections;
    size_t max_header;
    size_t max_body;
    size_t max_memory; /* of bodies and unsent answers of all connections; above: 503 */
    int64_t header_timeout_ms;
    int64_t body_timeout_ms;
    int64_t idle_timeout_ms;
    int64_t write_timeout_ms;
    http_handler *handler;
    void *ctx;
};

/* Errors: ERR_INVALID (address or a limit of 0), ERR_IO (cannot listen; says why), ERR_NOMEM. */
MUST_CHECK int http_server_start(const struct http_config *cfg, struct http_server **ret,
                                 struct err *err);

/* With the real port; borrowed until http_server_stop. */
const char *http_server_address(const struct http_server *s);

/* Stops accepting and returns at once. Connections without a request are closed, the others after
 * their answer; those that are still open grace_ms later are cut. Only the first call counts. */
void http_server_drain(struct http_server *s, int64_t grace_ms);

uint32_t http_server_connections(const struct http_server *s); /* open now */

/* True once a drain has come to its end: the listener is closed, no handler has a request, every
 * answer is out and no connection is open. From any thread. */
bool http_server_is_drained(const struct http_server *s);

/* Drains if that was not done, waits until every request that a handler has is answered, cuts what
 * is left, ends the loops and frees. NULL is accepted. Not from a loop's own thread. */
void http_server_stop(struct http_server *s);

/* Sends the answer; spans may be let go on return. The request is gone afterwards. */
void http_answer(struct http_request *req, const struct http_answer *a);

/* The other end's address without its port, such as "127.0.0.1"; "unknown" when it has gone. */
void http_peer(const struct http_request *req, char dst[INET6_ADDRSTRLEN]);

/* "Created", … */
const char *http_reason(int status);

#endif
