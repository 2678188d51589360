/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of batch push share: parcel.c gathers, parcel_send.c sends, parcel_learn.c decides
 * who may share a request. */
#ifndef JF_NODE_PARCEL_INTERNAL_H
#define JF_NODE_PARCEL_INTERNAL_H

#include "common/heap.h"
#include "node/core/verdict_batch.h"
#include "node/node_internal.h"
#include "node/outgoing.h"

struct line;

/* Which tasks may share a request. */
struct parcel_kind {
    uint32_t group;     /* of those that were refused in the same batch, about; 0 = in none */
    uint32_t max_tasks; /* > 0 */
};

struct parcel {
    struct outgoing out; /* first: on_done gets it */
    struct heap_node timer;
    struct parcels *parcels;
    struct line *line;
    struct parcel *prev; /* of its line's gathered ones, or of those that are out */
    struct parcel *next;
    struct flight **flights; /* owned array of borrowed flights */
    size_t n;
    size_t cap;
    size_t bytes; /* of the body, about */
    struct parcel_kind kind;
    int64_t timeout_ms;
    bool is_full; /* takes no more; else it gathers */
    bool is_due;  /* has waited long enough */
};

struct parcel_list {
    struct parcel *first;
    struct parcel *last;
};

/* What waits for a service, and what is out. */
struct line {
    struct line *next; /* of all */
    struct str name;   /* owned */
    struct parcel_list gathered;
    uint32_t n_out;     /* requests */
    uint32_t n_out_max; /* these as of the service's settings last seen */
    int64_t version;
    size_t max_bytes;    /* of a body: less than PARCEL_BYTES_MAX after a 413 */
    uint32_t n_good;     /* requests that went well since max_bytes changed */
    uint32_t grow_after; /* so many of them */
    uint32_t n_refused;  /* batches one after the other, as far as it matters */
    struct log_limit bytes_log;
    struct log_limit refused_log;
};

struct parcels {
    struct node *node;
    struct line *lines;  /* owned */
    struct line *recent; /* the last one that was looked for; NULL = none */
    struct parcel_list out;
    struct heap timers; /* of the parcels that gather and are not due */
    struct event *event;
    bool is_armed;
    struct verdict_batch verdicts;
    struct log_limit alien;
};

#define PARCEL_BYTES_MAX ((size_t)4 << 20)

void parcel_list_add(struct parcel_list *l, struct parcel *q);
void parcel_list_remove(struct parcel_list *l, struct parcel *q);
void parcel_free(struct parcel *q);
/* Ends the attempts of a parcel that has not left and is in no list, as not begun; frees it. */
void parcel_give_back(struct parcel *q);
/* Sends what may leave. */
void line_pump(struct parcels *p, struct line *l);

/* parcel_learn.c: */
void line_forget(struct line *l); /* what was learnt */
struct parcel_kind parcel_kind(const struct line *l, const struct task *t, int32_t batch_size);
/* From the answer to a parcel that was sent; its status is 0 when there was none. */
void line_learn(struct parcels *p, struct line *l, const struct parcel *q, int32_t http_status);

/* parcel_send.c: sends a parcel, which is in no list, or ends its attempts. */
void parcel_send(struct parcel *q, const struct service *service);

#endif
