/* SPDX-License-Identifier: Apache-2.0 */
/* What members.c, which carries out what is decided, and members_etcd.c, which holds the line to
 * etcd, share. */
#ifndef JF_NODE_MEMBERS_INTERNAL_H
#define JF_NODE_MEMBERS_INTERNAL_H

#include "node/cluster/membership.h"
#include "node/core/members_view.h"
#include "node/node_internal.h"

struct members {
    struct node *node;
    struct event *timer; /* the next look */
    struct etcd *etcd;   /* these two: NULL without etcd */
    struct membership *membership;
    struct members_view view;
    bool is_held;         /* another process has this node's name */
    bool is_troubled;     /* etcd does not answer as it should */
    pthread_mutex_t lock; /* for snapshots */
    struct members_snapshot shown;
    void (*on_left)(struct node *n);
};

/* members.c: what a witness said. */
void members_witness(struct members *m, enum view_source source, mono_ms asked_at,
                     const struct member *list, size_t n);

/* members_etcd.c. Errors: ERR_INVALID (a URL), ERR_NOMEM. */
MUST_CHECK int members_etcd_join(struct members *m, struct err *err);

#endif
