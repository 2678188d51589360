/* SPDX-License-Identifier: Apache-2.0 */
/* This node's place in etcd, and the list of all members there.
 *
 * Happy path: a lease of `ttl` is granted → the key /jobflow/<cluster>/nodes/<name> is created
 * under it, if absent → the lease is kept alive every ttl/3, all members are read (linearizable)
 * every ttl/3, and a watch from that reading's revision + 1 tells of changes sooner.
 *
 * Failures: a key that another process holds is asked for again every ttl/3, and as soon as the
 * watch sees it go; on_held says whose it is. A key of this name that nobody keeps alive is taken
 * away first: one without a lease at once, one under a lease when its silence is longer than that
 * of a process that lives could be. One of a newer boot epoch is left to its lease. A lease that is
 * lost (keep-alive says so, the key is gone or under another lease in a reading or an event) brings
 * on_lost, a new lease and the key anew. A watch that broke, or whose revision the store does not
 * have any more because it was put back to an earlier state, is replaced after a full reading.
 * While no endpoint answers, everything is tried again with pauses of at most ttl/3 and nothing is
 * reported but on_trouble: whether the lease lives cannot be known. A key that cannot be read as a
 * member, or whose member has another name, or that has no lease and so would be believed for ever,
 * is left out and reported by on_trouble.
 *
 * All functions belong to the loop's thread; no callback runs inside a function of this header. */
#ifndef JF_CLUSTER_MEMBERSHIP_H
#define JF_CLUSTER_MEMBERSHIP_H

#include "node/cluster/etcd.h"
#include "proto/member.h"

struct membership;

struct membership_config {
    const char *cluster; /* borrowed, as all that follows, until membership_free */
    int64_t ttl_ms;      /* a lease has whole seconds: rounded up */
    void *ctx;

    /* The key is this node's (again), under a lease that lives. */
    void (*on_registered)(void *ctx);
    /* It is not any more; it is being asked for again. `why` is a text for a person. */
    void (*on_lost)(void *ctx, const char *why);
    /* Another live process holds this node's name; once for each holder. */
    void (*on_held)(void *ctx, const struct member *holder);
    /* All members, after each full reading and each event. `asked_at` is that of the last full
     * reading. Borrowed for the call. */
    void (*on_members)(void *ctx, mono_ms asked_at, const struct member *members, size_t n);
    /* Something failed, again after each failure (the owner limits its log), or, with rc 0, all
     * that had failed works again: what could not be written was written, what could not be read
     * was read. ERR_CORRUPT: etcd is well, but a key in it is no member; once for each writing of
     * the key. ERR_TOO_BIG: the same of a key that was one too many. Neither is followed by rc 0.
     */
    void (*on_trouble)(void *ctx, int rc, const struct err *err);
};

/* Starts at once. `self` is copied: its name, address, version, hash_version and started_at stay,
 * its epoch and state are those to begin with. `etcd` is borrowed until membership_free.
 * Errors: ERR_NOMEM. */
MUST_CHECK int membership_new(struct event_base *base, struct etcd *etcd,
                              const struct membership_config *cfg, const struct member *self,
                              struct membership **ret);

/* Writes the key with this epoch and state as soon as it can, and keeps it so. */
void membership_set(struct membership *m, int64_t epoch, enum member_state state);

bool membership_is_registered(const struct membership *m);

/* Revokes the lease, which deletes the key, and asks for nothing any more. on_left runs once: when
 * etcd has answered, or after `timeout_ms` at the latest, also when nothing was to be revoked; then
 * only membership_free may follow, also from inside on_left. */
void membership_leave(struct membership *m, int64_t timeout_ms, void (*on_left)(void *ctx));

/* Ends what is under way; leaves the key to its lease. NULL is accepted. */
void membership_free(struct membership *m);

#endif
