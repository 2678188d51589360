/* SPDX-License-Identifier: Apache-2.0 */
#include "node/cluster/etcd_fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int etcd_fault_set(struct etcd_fault *fault, int rc, enum etcd_cure cure, const char *fmt, ...)
{
    char text[sizeof(fault->text)];
    va_list args;

    if (fault->rc)
        return fault->rc;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    (void)utf8_clean(fault->text, sizeof(fault->text), str_from(text));
    fault->rc = rc;
    fault->cure = cure;
    return rc;
}

int etcd_fault_nomem(struct etcd_fault *fault)
{
    return etcd_fault_set(fault, ERR_NOMEM, ETCD_CURE_NONE, "out of memory");
}

/* gRPC's status codes, by what may help. */
static const struct {
    int rc;
    enum etcd_cure cure;
} code_meaning[] = {
    [1] = {ERR_UNAVAILABLE, ETCD_CURE_ENDPOINT},  /* cancelled, by a server that stops */
    [2] = {ERR_UNAVAILABLE, ETCD_CURE_ENDPOINT},  /* unknown: "context deadline exceeded" is one */
    [3] = {ERR_INVALID, ETCD_CURE_NONE},          /* invalid argument */
    [4] = {ERR_TIMEOUT, ETCD_CURE_ENDPOINT},      /* deadline exceeded */
    [5] = {ERR_NOT_FOUND, ETCD_CURE_NONE},        /* not found */
    [6] = {ERR_EXISTS, ETCD_CURE_NONE},           /* already exists */
    [7] = {ERR_INVALID, ETCD_CURE_NONE},          /* permission denied */
    [8] = {ERR_BUSY, ETCD_CURE_NONE},             /* resource exhausted */
    [9] = {ERR_INVALID, ETCD_CURE_NONE},          /* failed precondition */
    [10] = {ERR_UNAVAILABLE, ETCD_CURE_ENDPOINT}, /* aborted */
    [11] = {ERR_INVALID, ETCD_CURE_NONE},         /* out of range */
    [12] = {ERR_PROTOCOL, ETCD_CURE_ENDPOINT},    /* unimplemented */
    [13] = {ERR_UNAVAILABLE, ETCD_CURE_ENDPOINT}, /* internal */
    [14] = {ERR_UNAVAILABLE, ETCD_CURE_ENDPOINT}, /* unavailable: no leader, request timed out */
    [15] = {ERR_UNAVAILABLE, ETCD_CURE_ENDPOINT}, /* data loss */
    [16] = {ERR_INVALID, ETCD_CURE_TOKEN},        /* unauthenticated */
};

static bool contains(struct str s, const char *what)
{
    return memmem(s.p, s.len, what, strlen(what)) != NULL;
}

/* etcd gives the same code to a wrong password and to a token that is only out of date. */
static enum etcd_cure cure_by_text(struct str text, enum etcd_cure otherwise)
{
    static const char *const stale[] = {"invalid auth token", "user name is empty",
                                        "revision of auth store is old"};

    for (size_t i = 0; i < sizeof(stale) / sizeof(stale[0]); i++) {
        if (contains(text, stale[i]))
            return ETCD_CURE_TOKEN;
    }
    return contains(text, "authentication is not enabled") ? ETCD_CURE_NO_TOKEN : otherwise;
}

int etcd_fault_by_code(struct etcd_fault *fault, int64_t code, struct str text)
{
    const int64_t n = sizeof(code_meaning) / sizeof(code_meaning[0]);
    bool is_known = code > 0 && code < n;
    int rc = is_known ? code_meaning[code].rc : ERR_UNAVAILABLE;
    enum etcd_cure cure = is_known ? code_meaning[code].cure : ETCD_CURE_ENDPOINT;

    return etcd_fault_set(fault, rc, cure_by_text(text, cure), STR_FMT, STR_ARG(text));
}

/* The reason of a cancellation is a text that holds the error's code as a word, if anything. */
int etcd_fault_by_reason(struct etcd_fault *fault, struct str reason)
{
    enum etcd_cure cure = cure_by_text(reason, ETCD_CURE_NONE);
    int rc = ERR_CONFLICT;

    if (contains(reason, "no leader") || contains(reason, "code = Unavailable"))
        cure = ETCD_CURE_ENDPOINT;
    if (cure == ETCD_CURE_TOKEN || contains(reason, "permission denied"))
        rc = ERR_INVALID;
    return etcd_fault_set(fault, rc, cure, "the watch was cancelled: " STR_FMT, STR_ARG(reason));
}
