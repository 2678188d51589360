/* SPDX-License-Identifier: Apache-2.0 */
/* Two nodes in a real etcd, and what etcdctl does beside them. While the loop does not run the
 * nodes see nothing, so what etcdctl does meanwhile is all there when they look again. */
#ifndef JF_TESTS_MEMBERSHIP_RIG_H
#define JF_TESTS_MEMBERSHIP_RIG_H

#include "tests/cluster/membership_fixture.h"

#define LONG_MS 600000 /* readings and keep-alives: every 200 s */
#define SHORT_MS 2000
#define OUTPUT_MAX 4096

struct etcd_rig {
    struct fixture f;
    struct peer a;
    struct peer b;
    int64_t others; /* the lease of the members that the test writes; 0 = none yet */
};

extern struct etcdserver *rig_server; /* all tests' */

/* For cmocka: the group's and each test's; *state is a struct etcd_rig. */
int rig_open_server(void **state);
int rig_close_server(void **state);
int rig_setup(void **state);
int rig_teardown(void **state);

void rig_start(struct etcd_rig *x, struct peer *p, const char *name, int64_t ttl_ms);
/* Registered, and with a watch that stands: what comes now comes through it. */
void rig_start_settled(struct etcd_rig *x, struct peer *p, const char *name, int64_t ttl_ms);
void rig_start_server(void); /* once more */

void ctl(const char *fmt, ...) PRINTF_LIKE(1, 2);
void ctl_output(char dst[OUTPUT_MAX], const char *command);

/* A key of the other members, under their lease. */
void put_other(struct etcd_rig *x, const char *key, const char *value);
int64_t lease_of(struct etcd_rig *x, const char *key); /* -1: there is no such key */
bool is_lease_there(int64_t lease);

#endif
