/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a membership share: membership.c its life, membership_key.c the lease and the
 * key, membership_list.c the readings and the watch. */
#ifndef JF_CLUSTER_MEMBERSHIP_INTERNAL_H
#define JF_CLUSTER_MEMBERSHIP_INTERNAL_H

#include <event2/event_struct.h>

#include "common/backoff.h"
#include "node/cluster/membership.h"

/* Members, and what is remembered of keys that are none; the last by name are left out. */
#define MEMBERSHIP_ENTRIES_MAX 512
#define MEMBERSHIP_NOBODY (-1) /* no lease at all; 0 is a key without one */

/*   GRANTING ──▶ CREATING ──▶ OURS      CREATING is also waiting for another holder's end.
 *      ▲          ▲ │ ▲        │
 *      │          │ ▼ │        │         ASKING whether anybody keeps that one's lease alive,
 *      │     ASKING ─▶ CLEARING│         and CLEARING the key away if not
 *      ├────────────┴──────────┤         the lease is gone
 *      └───── REVOKING ◀───────┘         the key is: nothing may come back under that lease
 *   any of them ──▶ LEAVING */
enum key_state {
    KEY_GRANTING,
    KEY_CREATING,
    KEY_ASKING,
    KEY_CLEARING,
    KEY_OURS,
    KEY_REVOKING,
    KEY_LEAVING
};

/* What does not work, each until the same works again. */
enum membership_trouble {
    TROUBLE_READING = 1,
    TROUBLE_WATCHING = 2,
    TROUBLE_WRITING = 4,
    TROUBLE_KEEPING_ALIVE = 8,
};

/* The newest that a reading or the watch has told of the key. */
struct key_seen {
    int64_t revision;
    int64_t lease; /* MEMBERSHIP_NOBODY: the key is not there */
    bool is_same;  /* with the value that was last written */
};

struct membership_key {
    enum key_state state;
    struct etcd_call call; /* what the state asks for, one at a time */
    struct event timer;    /* the next try */
    int64_t n_failures;    /* in a row */
    struct etcd_call alive;
    struct event alive_timer;
    mono_ms alive_asked_at;
    int64_t n_alive_failures;
    struct buf value; /* as last written */
    bool is_dirty;    /* not what it should be now */
    int64_t lease;    /* 0 = none */
    int64_t revision; /* the key was this node's at this one */
    int64_t holder;   /* the lease that on_held told of last */
    int64_t holder_epoch;
    int64_t holder_revision; /* of its key's last writing */
    int64_t held_revision;   /* of the store, when it held the key */
    struct key_seen seen;
};

/* A key below the prefix; without a member there since a revision, kept until a reading is newer.
 */
struct membership_entry {
    struct member member; /* its name is the key's */
    int64_t revision;
    bool is_there;
};

struct membership_list {
    struct etcd_call call;
    struct event timer;    /* the next reading */
    bool is_wanted;        /* another one, after the one under way */
    mono_ms asking_at;     /* the one under way, or the last one */
    mono_ms asked_at;      /* the last one that worked */
    int64_t n_failures;    /* in a row */
    int64_t revision;      /* the highest that was seen */
    int64_t revision_then; /* the same, when the reading was asked for */
    int64_t told_revision; /* keys that are no members were reported up to here */
    struct etcd_watch *watch;
    bool is_watch_created;
    mono_ms watch_since;
    mono_ms watch_at;                                        /* after a break: not before */
    int64_t n_breaks;                                        /* in a row */
    struct membership_entry entries[MEMBERSHIP_ENTRIES_MAX]; /* by name */
    size_t n;
    struct member shown[MEMBERSHIP_ENTRIES_MAX]; /* what on_members gets */
};

struct membership {
    struct event_base *base;
    struct etcd *etcd;
    struct membership_config cfg;
    struct member self;
    struct buf path;   /* of the key */
    struct str prefix; /* of all keys; the path's beginning */
    int64_t third_ms;  /* of the TTL: the period of everything, and its longest pause */
    struct backoff pauses;
    struct rng rng;
    unsigned troubles; /* enum membership_trouble */
    bool is_leaving;
    struct event leave_timer;
    mono_ms leave_until;
    void (*on_left)(void *ctx);
    struct membership_key key;
    struct membership_list list;
};

/* A timer that cannot be added for want of memory fires at once instead of never. */
void membership_timer(struct event *timer, int64_t ms);

/* Reports a failure: "<what>: <text>". The owner may have left when it returns, and so with the
 * next one. */
void membership_trouble(struct membership *m, enum membership_trouble which, int rc,
                        const char *what, const struct err *err);
void membership_well(struct membership *m, enum membership_trouble which); /* that works (again) */
/* Reports a key that is no member. */
void membership_bad_key(struct membership *m, int rc, const char *what, const struct err *err);

/* When leaving is done; m may be gone when it returns. */
void membership_left(struct membership *m);

void membership_key_init(struct membership *m);
void membership_key_stop(struct membership *m); /* ends what is under way; keeps the lease */

/* What stands at the key by a revision; kv NULL = nothing. */
void membership_key_saw(struct membership *m, int64_t revision, const struct etcd_kv *kv);

/* The store's revisions went back: what is known of the key by revision says nothing any more. */
void membership_key_forget(struct membership *m);

void membership_list_init(struct membership *m);
void membership_list_stop(struct membership *m);

#endif
