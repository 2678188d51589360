/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the HTTP interface share. Not for use outside of node/api.
 *
 * A call is one request under way: its state is one block that begins with struct api_call and
 * lives until the answer is sent. Building an answer uses the loop's buffers, which are nobody's
 * between two callbacks. */
#ifndef JF_API_IMPL_H
#define JF_API_IMPL_H

#include "node/api/api.h"

#include <stddef.h>

#include "common/json.h"
#include "common/log.h"
#include "node/api/fields.h"
#include "node/api/http.h"
#include "node/api/problem.h"

#define OWNER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#define API_MAX_PARAMS 2
#define API_LOOK_LIMIT 5000 /* rows looked at for one page of a list */

struct fields;

struct api_loop {
    struct json_doc doc; /* of the body being read */
    struct buf out;      /* body of the answer being built */
    struct buf headers;  /* and further header lines of it */
    struct rng rng;
};

struct api {
    struct api_config cfg;
    struct api_env env;
    struct http_server *http;
    struct api_loop *loops; /* one for each thread */
};

struct api_call {
    struct api *api;
    struct api_loop *loop;
    struct http_request *req;
    const struct route *route;
    struct str params[API_MAX_PARAMS]; /* of the path, decoded */
    /* Decoded and unescaped texts, which operations borrow: it has room for all of them from the
     * start, so that it never moves. */
    struct buf text;
    /* NULL, or as http_answer.on_end; the call may be gone by then. */
    void (*on_end)(void *ctx, bool sent);
    void *end_ctx;
};

struct route {
    enum http_verb verb;
    const char *pattern; /* "/api/delay-tasks/{bizUuid}/run" */
    size_t size;         /* of the call's state */
    void (*handle)(struct api_call *c);
    void (*fini)(struct api_call *c); /* frees what the state holds besides; NULL = nothing */
};

/* route.c */
void route_request(void *ctx, struct http_request *req);

/* The parts of the table, by file. */
extern const struct route submit_routes[2];
extern const struct route task_routes[5];
extern const struct route list_routes[1];
extern const struct route explain_routes[1];
extern const struct route notify_routes[1];
extern const struct route attempt_routes[2];
extern const struct route service_routes[6];
extern const struct route instance_routes[3];
extern const struct route cluster_routes[4];
extern const struct route lease_routes[2];
extern const struct route report_routes[2];
extern const struct route meta_routes[4];

/* ---- call.c: answers. Each of them ends the call. ------------------------------------------ */

/* Empties the loop's buffers and returns the one for the body. */
struct buf *call_out(struct api_call *c);
void call_send(struct api_call *c, int status, const char *content_type);
void call_send_json(struct api_call *c, int status);
void call_send_empty(struct api_call *c, int status);
void call_problem(struct api_call *c, const struct problem *p);
/* The document that was opened in call_out with problem_put_open, and added to. */
void call_send_problem(struct api_call *c, enum problem_kind kind);

/* What a call has left behind when it cannot be answered as wanted. */
enum call_effect {
    EFFECT_NONE,   /* nothing: it only reads, or did not come to its write */
    EFFECT_DONE,   /* its write; what failed is reading it again for the answer */
    EFFECT_SUBMIT, /* unknown; a repeat with the same bizUuids stores nothing twice */
    EFFECT_REPEAT, /* unknown; a repeat comes to the same as once */
    EFFECT_AGAIN   /* unknown; a repeat may act a second time */
};
/* Posts the operation. On failure answers 503 and returns false; `effect` is what was left behind
 * before: EFFECT_NONE or EFFECT_DONE. */
bool call_post(struct api_call *c, struct store_op *op, void (*on_delivery)(struct mail *m),
               enum call_effect effect);
/* Whether the node has read the services and the store's clock, on which a task's times and shard
 * depend. If not, answers 503. */
bool call_services_known(struct api_call *c);
/* Prepares a store_call for call_post. */
struct store_op *call_prepare(struct store_call *sc, enum call_what what);
/* Answers for an operation that came back with an error that has no meaning of its own. `effect` is
 * what such a failure may have left behind. */
void call_store_failed(struct api_call *c, const struct store_op *op, enum call_effect effect);

/* Parses the body into loop->doc; its root is an object. False: *p says why not. */
bool call_parse_body(struct api_call *c, struct problem *p);

/* True for an absent body and for an empty object. */
bool call_no_fields(struct api_call *c, struct problem *p);

/* Problems about a task, with its status and trace id as members. */
void call_not_found(struct api_call *c, const char *field, struct str name);
void call_task_conflict(struct api_call *c, enum problem_kind kind, const struct task *t,
                        const char *detail);
/* IN_FLIGHT or FINISHED, by the task's status. */
void call_state_conflict(struct api_call *c, const struct task *t, const char *verb);
void call_send_task(struct api_call *c, const struct task *t);

/* "task.moved" and the like, with both ids. */
void api_log_task(struct api *api, enum log_level level, const char *event, const struct task *t);

wall_ms api_now(const struct api *api);

/* attempts.c: what reports of one attempt and those of many share. */
/* True if the attempt ended the way a result with this verdict would have ended it. */
bool attempt_took_effect(const struct task *t, int32_t attempt, enum verdict_kind kind);
/* Why an attempt is not the live one. */
void attempt_stale_text(const struct task *t, int32_t attempt, struct err *ret);
/* The end of an attempt is stored: counts it, and tells the owner of a task that waits again. */
void attempt_ended(struct api *api, const struct task *t, const struct finish_item *item);
/* How the task goes on after this verdict; the item's error points into it. */
void attempt_decide(struct api_call *c, const struct task *t, const struct verdict *v,
                    struct finish_item *ret);
/* The members of a result, each checked by itself. `n` of them. */
extern const struct field attempt_result_fields[];
extern const size_t attempt_n_result_fields;

/* cluster.c: whether another member has signed the request; the signature stands in its query. */
bool call_is_signed(struct api_call *c);

/* services.c: what calls about a service share. Appends ,"key":"time". */
void api_put_time(struct buf *b, const char *key, wall_ms t);
/* Whether the path's {name} may be a service's; if not, answers 400. */
bool call_check_service(struct api_call *c);
/* Reads a text that a check of the node's decides on. */
bool api_read_checked(struct api *api, struct fields *f, const struct json_token *value,
                      int (*check)(void *ctx, struct str s, struct err *err), struct str *ret);

/* delivery.c: the member "delivery" of a service's settings and of its record. */
bool delivery_read(struct fields *f, const struct json_token *value, struct service *ret);
void delivery_put(struct buf *b, const struct service *s);

/* Writes the policy that a service's tasks have by default; "" = none of its own. */
void api_service_policy(const struct api *api, struct str service_name,
                        char dst[TASK_POLICY_MAX + 1]);

#endif
