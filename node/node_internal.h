/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the wiring share. Unless said otherwise everything belongs to the main loop's
 * thread. */
#ifndef JF_NODE_INTERNAL_H
#define JF_NODE_INTERNAL_H

#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/hash.h"
#include "node/api/api.h"
#include "node/config.h"
#include "node/core/sched.h"
#include "node/dispatch/dispatch.h"
#include "node/forward.h"
#include "node/instances.h"
#include "node/lease.h"
#include "node/members.h"
#include "node/parcel.h"
#include "node/service_table.h"
#include "node/store/store.h"

#define NODE_TICK_MAX_MS 1000    /* no wait is longer, so that a stepped clock is noticed */
#define NODE_TICK_STOPPING_MS 20 /* while the loop waits for the HTTP interface to drain */
#define NODE_HINTS_MAX 100000    /* hints on their way to the loop; more are left to the scans */

/* What the loop's thread publishes for the API threads. */
struct node_status {
    pthread_mutex_t lock;
    struct sched_stats sched;
    char store_error[256]; /* "" while the store is up */
    bool store_up;
    bool started; /* epoch, clock and services are known */
    bool stopping;
};

/* Requests that are over, kept with their memory for the next ones. */
struct deliveries {
    struct delivery *idle; /* owned */
    uint32_t n_idle;
};

struct node {
    const struct config *cfg;
    struct log *log;
    struct event_base *base;
    struct mailbox *mailbox;
    struct event *mail_event;
    struct event *pass_event; /* a pass over the scheduler, once per loop iteration */
    struct event *wake_event; /* the scheduler's next wake-up */
    struct event *term_event;
    struct event *int_event;
    struct event *grace_event;
    struct retry_policies policies;
    struct counters counters;
    struct store_clock clock;
    struct service_table services;
    struct instances instances;
    struct store *store;
    struct store_port port;
    struct sched *sched;
    struct actions actions;
    struct map64 flights; /* task id → struct flight, from claim to finish */
    struct deliveries deliveries;
    _Atomic(struct dispatch *) dispatch; /* set once, after the API has its address */
    struct api *api;
    struct house *house;
    struct forward *forward;
    struct leases *leases;
    struct parcels *parcels;
    _Atomic(struct members *) members; /* set once, after the API has its address */
    char *advertise;                   /* where other members reach this node, "host:port" */
    struct alerts *alerts;
    struct node_status status;
    char *claimed_by; /* "<node>/<epoch>" once started */
    int64_t epoch;
    bool stopping;
    bool leaving; /* out of etcd, the last step */
    int exit_status;
    atomic_uint n_hints;
    _Atomic mono_ms refused_at; /* a call between members; 0 = never */
    atomic_bool services_known; /* the table of services was read since the start */
    struct mail state_mail;
    bool state_posted; /* under status.lock */
};

/* runner.c: the scheduler's actions and their answers. */
void runner_pass(struct node *n);  /* ticks the scheduler and carries out what it asks */
void runner_later(struct node *n); /* a pass at the end of this loop iteration */
void runner_free_flights(struct node *n);

/* deliver.c: one attempt. */
struct flight {
    struct node *node;
    struct task *task;         /* owned */
    struct delivery *delivery; /* owned; NULL before and after the request */
    mono_ms send_by;           /* the fence: the request may leave before it */
    int64_t lateness_ms;       /* of the request's start */
};
/* Sends the claimed task, or ends the attempt when that cannot be done. Takes the task. */
void deliver_start(struct node *n, struct task *t, const struct service *service,
                   int64_t timeout_ms, mono_ms send_by);
void delivery_free(struct delivery *d);
void deliveries_fini(struct deliveries *all);
/* What requests with one task and with many share: an attempt's request is about to leave, and what
 * came of it. */
void deliver_begin(struct flight *f, wall_ms now);
void deliver_end(struct flight *f, const struct verdict *v, int64_t elapsed_us, wall_ms now);
void deliver_limits(const struct node *n, struct verdict_limits *ret);
#define DELIVER_TRACEPARENT_LEN 55
void deliver_traceparent(const struct task *t, char dst[DELIVER_TRACEPARENT_LEN + 1]);
void deliver_log_end(struct node *n, const struct flight *f, const struct finish_item *item);

/* hints.c: store threads and API threads talk to the loop. */
/* From any thread: hints of another member, copied; `services` and their instances are to be read
 * too. False: there are too many. */
bool node_take_hints(struct node *n, const struct hint *hints, size_t n_hints, bool services);
/* From any thread: a client's hint, which goes on to the owner. False: there are too many. */
bool node_notify(struct node *n, const struct hint *hint);
void node_on_committed(void *ctx, struct store_op *const *ops, size_t n);
void node_on_state(void *ctx, bool up, const char *text);
void node_on_warning(void *ctx, const char *text);
void node_state_init(struct node *n);

/* house.c: the node's regular calls on the store: epoch, clock, heartbeat, services and their
 * instances, retention. */
MUST_CHECK int house_new(struct node *n, struct house **ret);
void house_free(struct house *h);
void house_store_up(struct house *h);      /* (again): everything is due now */
void house_read_services(struct house *h); /* and their instances, as soon as can be */
void house_beat(struct house *h);          /* now: the node's state has changed */
/* Logs the rescue of a task that this node had no flight of: asks for its record first. */
void house_log_rescue(struct house *h, const struct finish_item *item);
void house_leave(struct house *h); /* writes the last heartbeat, state "left" */

/* alerts.c: tells the webhook of FAILED tasks. */
MUST_CHECK int alerts_new(struct node *n, struct alerts **ret);
void alerts_free(struct alerts *a);
void alerts_kick(struct alerts *a); /* there may be a new one; NULL is accepted */

/* env.c: what the HTTP interface asks of the node. */
void node_api_env(struct node *n, struct api_env *ret);
void node_publish(struct node *n);

/* Posts a call of the loop's own: on_done runs on the loop with rc set; if it cannot be posted, it
 * runs at once. */
void node_call(struct node *n, struct store_call *call, enum call_what what,
               void (*on_done)(struct mail *m));

#endif
