/* SPDX-License-Identifier: Apache-2.0 */
/* Who the live members are, from two witnesses: etcd (the list of a full read, kept up by a watch)
 * and the heartbeat rows of job_node. Pure: readings and the time go in, the members come out.
 *
 * The age of a list is the age of its last full reading, counted from when it was asked for; events
 * of a watch change what it says, not its age. While etcd's list is no older than the TTL, it
 * counts; else the rows do, while they are no older than the TTL; else nobody owns anything. Both
 * witnesses may be wrong: the database's compare-and-set stays the judge.
 *
 * A member that gives up what it owns is heard by either witness: etcd may take no writes. */
#ifndef JF_CORE_VIEW_H
#define JF_CORE_VIEW_H

#include "proto/member.h"

#define VIEW_MEMBERS_MAX 256 /* more than that are left out, the last by name */

enum view_source { VIEW_NONE, VIEW_ETCD, VIEW_ROWS };
const char *view_source_name(enum view_source s); /* "none", "etcd", "rows" */

struct view_list {
    struct member *members; /* owned; by name */
    size_t n;
    size_t n_cut;       /* how many more there were */
    mono_ms asked_at;   /* INT64_MIN = never read */
    mono_ms trusted_at; /* see view_trust */
};

struct view {
    int64_t ttl_ms;
    struct view_list lists[VIEW_ROWS + 1]; /* by source; [VIEW_NONE] stays empty */
};

void view_init(struct view *v, int64_t ttl_ms);
void view_fini(struct view *v);

/* What a witness says now: replaces its list (copied, sorted). A list that is no full reading keeps
 * the age of the last one: pass that reading's asked_at again.
 * Errors: ERR_NOMEM (nothing changed). */
MUST_CHECK int view_read(struct view *v, enum view_source source, mono_ms asked_at,
                         const struct member *members, size_t n);

/* Whether a witness's last full reading is no older than the TTL. */
bool view_is_fresh(const struct view *v, enum view_source source, mono_ms now);

/* From the first call on a list counts only for a TTL after the last one, however fresh it is: what
 * does not show this node as it is is no better than no list (etcd takes no writes, or the key was
 * overwritten). */
void view_trust(struct view *v, enum view_source source, mono_ms at);

/* The witness that counts at this time, and until when it does unless it is read again (*ret_until;
 * INT64_MAX for VIEW_NONE). */
enum view_source view_at(const struct view *v, mono_ms now, mono_ms *ret_until);

/* Whether a member is active and owns by this node's version of the hash. */
bool view_may_own(const struct member *m);

/* The members by a witness, by name; at most VIEW_MEMBERS_MAX. One that a fresh row of the same or
 * a newer boot epoch calls draining or left is so, whatever the witness says. */
size_t view_members(const struct view *v, enum view_source source, mono_ms now, struct member *ret);

/* NULL when the witness does not know the name. */
const struct member *view_find(const struct view *v, enum view_source source, struct str name);

#endif
