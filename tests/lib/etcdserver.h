/* SPDX-License-Identifier: Apache-2.0 */
/* A private etcd of one or more members for one test program: data in a new directory under
 * $TMPDIR, free ports of 127.0.0.1. It ends with its parent, and its directory goes when
 * etcdserver_free() is called or the program exits. $ETCD and $ETCDCTL name the programs; else they
 * are looked up in PATH. Start it from the thread that lives longest. */
#ifndef JF_TESTS_ETCDSERVER_H
#define JF_TESTS_ETCDSERVER_H

#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>

#define ETCDSERVER_MEMBERS_MAX 3
#define ETCDSERVER_PATH_MAX 256
#define ETCDSERVER_URL_MAX 64
#define ETCDSERVER_FLAGS_MAX 4

struct etcdserver;

struct etcdserver_options {
    unsigned n_members; /* 1 to ETCDSERVER_MEMBERS_MAX */
    /* Members show a certificate for 127.0.0.1 and want one from each client. */
    bool has_tls;
    const char *flags[ETCDSERVER_FLAGS_MAX]; /* more of etcd's, such as "--auth-token=simple" */
};

bool etcdserver_is_installed(void);

/* Waits until all members are healthy. Errors: ERR_NOT_FOUND (not installed), ERR_IO, ERR_TIMEOUT,
 * ERR_NOMEM. */
MUST_CHECK int etcdserver_new(const struct etcdserver_options *o, struct etcdserver **ret,
                              struct err *err);
void etcdserver_free(struct etcdserver *s);

void etcdserver_url(const struct etcdserver *s, unsigned member, char dst[ETCDSERVER_URL_MAX]);

/* The file of a name: with TLS there are ca.pem, client.pem, client.key, and stranger.pem and
 * stranger.key of another CA. */
void etcdserver_file(const struct etcdserver *s, const char *name, char dst[ETCDSERVER_PATH_MAX]);

void etcdserver_kill(struct etcdserver *s, unsigned member); /* with SIGKILL, and waits */

/* Starts a killed member again on its data; waits until it is healthy when the others are there.
 * Errors: ERR_IO, ERR_TIMEOUT. */
MUST_CHECK int etcdserver_start(struct etcdserver *s, unsigned member, bool wait, struct err *err);

void etcdserver_pause(struct etcdserver *s, unsigned member); /* SIGSTOP: it is silent */
void etcdserver_resume(struct etcdserver *s, unsigned member);

/* Runs etcdctl against all members that run. The output, cut to cap - 1 bytes, ends with NUL; dst
 * may be NULL. Errors: ERR_IO (its exit status is not 0). */
MUST_CHECK int etcdserver_ctl(const struct etcdserver *s, char *dst, size_t cap, const char *fmt,
                              ...) PRINTF_LIKE(4, 5);

/* A member's metric of this name without labels, or -1. */
double etcdserver_metric(const struct etcdserver *s, unsigned member, const char *name);

/* The member that leads, or -1. */
int etcdserver_leader(const struct etcdserver *s);

#endif
