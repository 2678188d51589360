/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes as far as etcd sees them, for tests that read from top to bottom: each with a client and a
 * membership of its own on the fixture's loop, and a record of what it was told. */
#ifndef JF_TESTS_MEMBERSHIP_FIXTURE_H
#define JF_TESTS_MEMBERSHIP_FIXTURE_H

#include "node/cluster/membership.h"
#include "tests/cluster/etcd_fixture.h"

#define CLUSTER "test"
#define NODES "/jobflow/" CLUSTER "/nodes/"
#define PEERS_MAX 3
#define SEEN_MAX 600
#define STORY_MAX 64

struct peer {
    struct fixture *f;
    struct etcd *e;
    struct membership *m;
    struct member self;
    char story[STORY_MAX]; /* in order: R registered, L lost, H held */
    char why[128];         /* of the last L */
    struct member holder;  /* of the last H */
    struct member members[SEEN_MAX];
    size_t n;
    mono_ms asked_at;
    unsigned n_told;  /* on_members */
    unsigned n_asked; /* those of another asked_at than before */
    unsigned n_troubles;
    unsigned n_good; /* on_trouble with 0 */
    unsigned n_corrupt;
    unsigned n_not_found;
    char trouble[320]; /* the last one */
    unsigned n_left;
    bool is_trouble_kept; /* only that of a key that is no member goes into `trouble` */
    bool frees_itself;    /* in on_left */
};

/* A client of these endpoints and a member of this name with the address "<name>:80"; the epoch is
 * 1, the state joining. */
void peer_open(struct peer *p, struct fixture *f, const struct etcd_config *etcd, const char *name,
               int64_t ttl_ms);
void peer_close(struct peer *p); /* its lease stays */

void peer_leave(struct peer *p, int64_t timeout_ms); /* waits */

/* All of these wait until it is so. */
void wait_story(struct peer *p, const char *story);
void wait_seen(struct peer *p, const char *name, int64_t epoch, enum member_state state);
void wait_gone(struct peer *p, const char *name);
void wait_asked(struct peer *p, unsigned n); /* for n more readings */
void wait_count(struct peer *p, const unsigned *count, unsigned at_least);

/* Etcd itself gave no trouble that came to an end, unless a slow machine brought one. */
void assert_was_well(const struct peer *p);

/* What a member of another process would write: active, at "<name>:80". Valid until the next call.
 */
const char *member_json(const char *name, int64_t epoch);

const struct member *peer_find(const struct peer *p, const char *name); /* NULL: not seen */

#endif
