/* SPDX-License-Identifier: Apache-2.0 */
/* What went wrong with a call or a watch, and what may help. All functions that set a fault leave
 * one that is there as it is, and return its rc. */
#ifndef JF_CLUSTER_ETCD_FAULT_H
#define JF_CLUSTER_ETCD_FAULT_H

#include "common/err.h"
#include "common/str.h"

enum etcd_cure {
    ETCD_CURE_NONE,     /* nothing: the caller has to be told */
    ETCD_CURE_ENDPOINT, /* another endpoint */
    ETCD_CURE_TOKEN,    /* a new token */
    ETCD_CURE_NO_TOKEN, /* none: the server knows no users */
};

/* Zero-initialise. */
struct etcd_fault {
    int rc; /* for the caller, when there is no cure; 0 = no fault */
    enum etcd_cure cure;
    char text[200]; /* clean */
};

int etcd_fault_set(struct etcd_fault *fault, int rc, enum etcd_cure cure, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
int etcd_fault_nomem(struct etcd_fault *fault);

/* An error of etcd's, by gRPC's code and its own words. */
int etcd_fault_by_code(struct etcd_fault *fault, int64_t code, struct str text);

/* A watch was cancelled: the reason is a text that holds the error's code as a word, if anything.
 */
int etcd_fault_by_reason(struct etcd_fault *fault, struct str reason);

#endif
