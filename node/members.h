/* SPDX-License-Identifier: Apache-2.0 */
/* The members of the cluster, as this node sees them, and its own place among them.
 *
 * Happy path: with etcd, the node's key is registered → the store gives it a boot epoch → clock and
 * services are read → it becomes active, in etcd and in its heartbeat row → the witness that counts
 * (core/view.h) shows it active → the scheduler works for what the hash gives it. Without etcd the
 * heartbeat rows alone are the witness. A node whose own heartbeats do not reach the database for a
 * TTL goes back to joining, whatever etcd hears of it: others may reach the database.
 *
 * Failures: a name that another live process holds keeps the node joining; an etcd that is away at
 * the start is waited for one TTL, then the rows decide; members that own by another hash keep it
 * from becoming active. All functions belong to the main loop's thread unless said otherwise. */
#ifndef JF_NODE_MEMBERS_H
#define JF_NODE_MEMBERS_H

#include "node/core/storecall.h"
#include "node/core/view.h"

struct node;
struct members;

/* Connects to etcd, if there is one. Errors: ERR_INVALID (an etcd URL), ERR_NOMEM. */
MUST_CHECK int members_new(struct node *n, struct members **ret, struct err *err);
void members_free(struct members *m); /* NULL is accepted */

/* Whether the node may take its boot epoch now: not while its name may be another process's. */
bool members_may_start(struct members *m);
/* Until the next heartbeat: a third of the TTL; where the rows are all that tells others of a
 * drain, no more than a scan's interval. */
int64_t members_beat_interval(const struct members *m);
/* Epoch, clock and services are known; again after each outage of the database. */
void members_ready(struct members *m);

/* What the next heartbeat row says. */
enum member_state members_state(const struct members *m);
/* What a heartbeat that was asked for at that time brought. */
void members_rows(struct members *m, mono_ms asked_at, const struct member *list, size_t n);

/* Gives up all ownership, or takes part again. */
void members_drain(struct members *m, bool drain);

/* The node stops: draining from now on. */
void members_stop(struct members *m);
/* Takes the node out of etcd; `after` runs once, within a second or two, also without etcd. */
void members_leave(struct members *m, void (*after)(struct node *n));

/* The address of a member; NULL when it is not in the view that counts. Borrowed until the view
 * changes. */
const char *members_address(const struct members *m, struct str name);

/* What other threads may see of it. */
struct members_snapshot {
    enum view_source source;
    mono_ms asked_at;       /* of the view's last full reading */
    struct member *members; /* owned: free() */
    size_t n;
    enum member_state state;
    bool can_own; /* this node is among the owners */
};
/* From any thread. Errors: ERR_NOMEM. */
MUST_CHECK int members_snapshot(struct members *m, struct members_snapshot *ret);

#endif
