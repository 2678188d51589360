/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/membership_rig.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct etcdserver *rig_server;

int rig_open_server(void **state)
{
    struct etcdserver_options o = {.n_members = 1};

    (void)state;
    rig_server = fixture_server(&o);
    return 0;
}

int rig_close_server(void **state)
{
    (void)state;
    etcdserver_free(rig_server);
    return 0;
}

int rig_setup(void **state)
{
    struct etcd_rig *x = calloc(1, sizeof(*x));
    struct etcd_config cfg = fixture_config(rig_server, 1);

    assert_non_null(x);
    fixture_open(&x->f);
    fixture_client(&x->f, &cfg);
    fixture_wipe(&x->f);
    *state = x;
    return 0;
}

int rig_teardown(void **state)
{
    struct etcd_rig *x = *state;

    peer_close(&x->a);
    peer_close(&x->b);
    fixture_close(&x->f);
    free(x);
    return 0;
}

void rig_start(struct etcd_rig *x, struct peer *p, const char *name, int64_t ttl_ms)
{
    struct etcd_config cfg = fixture_config(rig_server, 1);

    peer_open(p, &x->f, &cfg, name, ttl_ms);
}

void rig_start_settled(struct etcd_rig *x, struct peer *p, const char *name, int64_t ttl_ms)
{
    rig_start(x, p, name, ttl_ms);
    wait_story(p, "R");
    wait_seen(p, name, 1, MEMBER_JOINING);
    wait_count(p, &p->n_asked, 2); /* one before the watch, one after */
}

void ctl(const char *fmt, ...)
{
    char command[1024];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(command, sizeof(command), fmt, args);
    va_end(args);
    assert_int_equal(etcdserver_ctl(rig_server, NULL, 0, "%s", command), 0);
}

void ctl_output(char dst[OUTPUT_MAX], const char *command)
{
    assert_int_equal(etcdserver_ctl(rig_server, dst, OUTPUT_MAX, "%s", command), 0);
}

void rig_start_server(void)
{
    struct err err = {0};

    if (etcdserver_start(rig_server, 0, true, &err))
        fail_msg("%s", err.text);
}

void put_other(struct etcd_rig *x, const char *key, const char *value)
{
    if (!x->others)
        x->others = grant(&x->f, 600);
    ctl("put --lease=%" PRIx64 " %s '%s'", (uint64_t)x->others, key, value);
}

int64_t lease_of(struct etcd_rig *x, const char *key)
{
    struct asked a;

    assert_int_equal(ask(&x->f, &a, (struct etcd_call){.op = ETCD_RANGE, .key = str_from(key)}), 0);
    return a.a.n_kvs ? a.kvs[0].lease : -1;
}

bool is_lease_there(int64_t lease)
{
    char command[64];
    char text[OUTPUT_MAX];

    (void)snprintf(command, sizeof(command), "lease timetolive %" PRIx64, (uint64_t)lease);
    ctl_output(text, command);
    return !strstr(text, "already expired");
}
