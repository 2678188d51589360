/* SPDX-License-Identifier: Apache-2.0 */
/* An etcd that answers in the order, and with the gaps, that the test wants, and one node that
 * takes its place there. */
#ifndef JF_TESTS_MEMBERSHIP_FAKE_H
#define JF_TESTS_MEMBERSHIP_FAKE_H

#include "tests/cluster/fake_etcd.h"
#include "tests/cluster/membership_fixture.h"

#define LONG_MS 600000
#define SHORT_MS 600
#define KEYS_MAX 600

struct key {
    char name[16];
    char value[256];
    int64_t revision;
    int64_t lease;
};

struct fake_rig {
    struct fixture f;
    struct fake_etcd *s;
    struct peer a;
    int64_t revision;
    int64_t lease; /* the last one granted */
    struct key keys[KEYS_MAX];
    size_t n_keys;
    bool reads_are_held; /* one reading is kept instead of answered */
    struct fake_request *read;
    mono_ms read_came_at;
    bool is_watch_silent;
    bool is_watch_cut;     /* cancelled as soon as it stands */
    bool is_put_refused;   /* no space, no permission */
    bool is_alive_lost;    /* the lease is gone, as only its keep-alive says */
    bool is_lease_bad;     /* gone as soon as it is granted */
    const char *others;    /* of another's lease: what is left of it and what it was granted for */
    const char *rewritten; /* what the key becomes before it can be deleted */
    struct fake_request *watch;
    char watch_body[512];
    char read_body[512];
    unsigned n_reads;
    unsigned n_watches;
    unsigned n_grants;
    unsigned n_puts;
    unsigned n_revokes;
    unsigned n_deletes;
    unsigned n_ttls; /* asked for */
};

/* For cmocka; *state is a struct fake_rig. */
int fake_setup(void **state);
int fake_teardown(void **state);

void fake_start(struct fake_rig *x, int64_t ttl_ms); /* "node-a" */
/* Registered, and with a watch that stands: what comes now comes through it. */
void fake_start_settled(struct fake_rig *x, int64_t ttl_ms);

/* What stands at the etcd: keys by the member's name. */
struct key *key_find(struct fake_rig *x, const char *name); /* NULL: none */
struct key *key_put(struct fake_rig *x, const char *name, const char *value, int64_t lease);
void key_drop(struct fake_rig *x, const char *name);

void tell_event(struct fake_rig *x, const struct key *k, bool is_delete); /* through the watch */

/* A reading that is under way, and stays so until it is released. */
void hold_read(struct fake_rig *x);
void release_read(struct fake_rig *x);
bool has_read(void *x); /* for fixture_wait: one is held */

#endif
