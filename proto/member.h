/* SPDX-License-Identifier: Apache-2.0 */
/* A node of the cluster, as etcd keeps it under /jobflow/<cluster>/nodes/<name> (JSON that a person
 * can read) and as a row of job_node tells it. */
#ifndef JF_PROTO_MEMBER_H
#define JF_PROTO_MEMBER_H

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"

#define MEMBER_NAME_MAX 64
#define MEMBER_ADDRESS_MAX 255
#define MEMBER_VERSION_MAX 63

enum member_state {
    MEMBER_JOINING,  /* known, and owns nothing yet */
    MEMBER_ACTIVE,   /* may own */
    MEMBER_DRAINING, /* gives up what it owns and ends what is in flight */
    MEMBER_LEFT,
    MEMBER_N_STATES
};
const char *member_state_name(enum member_state s); /* "joining", … */
bool member_state_parse(struct str s, enum member_state *ret);

struct member {
    char name[MEMBER_NAME_MAX + 1];       /* name_valid() */
    char address[MEMBER_ADDRESS_MAX + 1]; /* of its HTTP interface, "host:port" */
    char version[MEMBER_VERSION_MAX + 1]; /* of jobflowd */
    int64_t epoch;                        /* boot epoch; 0 = not known yet */
    enum member_state state;
    int32_t hash_version; /* of the ownership function: members must agree */
    wall_ms started_at;
};

/* Appends the member as one JSON object in one line. */
void member_put(struct buf *b, const struct member *m);

/* Reads what member_put wrote; unknown fields are ignored, for members that are newer.
 * Errors: ERR_INVALID (no JSON, a field missing, of a wrong type or too long, or a name
 * that no node can have), ERR_NOMEM. */
MUST_CHECK int member_parse(struct str json, struct member *ret, struct err *err);

/* Copies as much as fits, in whole characters, NUL-terminated; returns false when that was not all.
 */
bool member_set_text(char *dst, size_t size, struct str src);

#endif
