/* SPDX-License-Identifier: Apache-2.0 */
/* Who owns, and whether this node does: decided from the two witnesses of view.h, from what the
 * node was told of itself, and from the time. Pure: no I/O and no clock; node/members.c carries out
 * what is decided, and so does the simulation.
 *
 * JOINING becomes ACTIVE once the node is ready and a witness counts, and stays so whoever joins;
 * it owns while that witness shows it active under its own boot epoch. ACTIVE goes back to JOINING
 * when by etcd the node lives, but its heartbeats do not reach the database, which others may
 * reach. DRAINING begins and ends when a person says so, and does not end once the node stops.
 *
 * Only active members with this node's version of the ownership hash may own. While an active
 * member has another version a node does not become active: nobody owns by two hashes at once. */
#ifndef JF_CORE_MEMBERS_VIEW_H
#define JF_CORE_MEMBERS_VIEW_H

#include "node/core/view.h"

#define MEMBERS_VIEW_LINE_MS 1000 /* between two lines about the owners */

struct members_view {
    struct view view;
    const char *self; /* borrowed: this node's name */
    int64_t epoch;    /* its boot epoch; 0 = not known yet */
    mono_ms started_at;
    enum member_state state;
    bool is_ready;
    bool is_drained;
    bool is_stopping;
    bool has_disagreed;
    enum view_source source;                 /* the witness that counts */
    struct member members[VIEW_MEMBERS_MAX]; /* what it says, as view_members() */
    size_t n;
    char owners[VIEW_MEMBERS_MAX][MEMBER_NAME_MAX + 1];
    size_t n_owners;
    bool can_own;      /* this node is among the owners */
    bool is_overruled; /* a row says of a member that it drains, etcd does not: it may have resumed
                        */
    uint32_t n_untold;
    mono_ms told_at; /* INT64_MIN = never */
    enum view_source told_source;
    mono_ms cut_at; /* when there were last too many; INT64_MIN = never */
};

/* What a decision brought. */
struct members_decision {
    bool is_new_state;   /* of this node: etcd and the heartbeat row have to say it */
    bool has_new_owners; /* the scheduler has to know */
    /* A line about the owners is due: what n_changes changes since the last one came to, which was
     * told when source_before counted. */
    bool is_line_due;
    uint32_t n_changes;
    enum view_source source_before;
    /* Whose hash keeps this node from becoming active; NULL: nobody, or it was said before.
     * Borrowed until the next decision. */
    const struct member *disagrees;
    /* How many members are one too many; 0: none, or it was said before, and is so all the time. */
    size_t n_cut;
    mono_ms look_again; /* to be decided anew then, if nothing happens before */
};

void members_view_init(struct members_view *v, const char *self, int64_t ttl_ms, mono_ms now);
void members_view_fini(struct members_view *v);

/* What happens; to be followed by members_view_decide(). */
void members_view_set_epoch(struct members_view *v, int64_t epoch);
void members_view_set_ready(struct members_view *v);
void members_view_set_drained(struct members_view *v, bool is_drained);
void members_view_set_stopping(struct members_view *v);
/* See view_read(). Errors: ERR_NOMEM (the older list counts until it is too old). */
MUST_CHECK int members_view_read(struct members_view *v, enum view_source source, mono_ms asked_at,
                                 const struct member *members, size_t n, mono_ms now);

void members_view_decide(struct members_view *v, mono_ms now, struct members_decision *ret);

/* The names of the owners, in order; borrowed until the next decision. At most VIEW_MEMBERS_MAX. */
size_t members_view_owners(const struct members_view *v, struct str *ret_names);

/* NULL when the witness that counts does not know the name. Borrowed until the next decision. */
const struct member *members_view_find(const struct members_view *v, struct str name);

/* Whether the node may take its boot epoch: not while etcd says that another process holds its name
 * (is_held), and without the key (is_registered) only once etcd had a TTL's time to give it. */
bool members_view_may_start(const struct members_view *v, bool is_registered, bool is_held,
                            mono_ms now);

/* Until the next heartbeat: a third of the TTL; where the rows are all that tells of a drain or its
 * end, no more than a scan's interval. */
int64_t members_view_beat_ms(const struct members_view *v, int64_t scan_interval_ms);

#endif
