/* SPDX-License-Identifier: Apache-2.0 */
/* Hints to other members, over HTTP, batched and best effort: to their owners about near tasks, to
 * all when job_service or job_instance has changed. Without cluster.secret there are none. All but
 * forward_verify, forward_sign and forward_signature belong to the main loop's thread. */
#ifndef JF_NODE_FORWARD_H
#define JF_NODE_FORWARD_H

#include "node/config.h"
#include "node/core/sched.h"
#include "node/dispatch/sign.h"

struct forward;
struct node;

MUST_CHECK int forward_new(struct node *n, struct forward **ret); /* Errors: ERR_NOMEM */
void forward_free(struct forward *f); /* after the dispatcher; NULL is accepted */

void forward_add(struct forward *f, const struct hint *hint); /* copied */
/* To all members that live: read the services and their instances now. Sends. */
void forward_services(struct forward *f);
void forward_flush(struct forward *f); /* sends what was added, at the end of a batch */

/* Writes, with a NUL, the URL of a call to another member: http://<its address><path> with a
 * signature of its name, the path and the body. Errors: ERR_NOMEM, ERR_INVALID (no secret),
 * ERR_NOT_FOUND (no such member). */
MUST_CHECK int forward_url(struct node *n, struct buf *dst, struct str name, const char *path,
                           struct str body);

/* The signature, with a NUL, of a body for (or, of an answer, by) the member of this name: what was
 * meant for one member and one path is good for no other. There is a secret. Errors: ERR_NOMEM,
 * ERR_INVALID (the path is too long). */
MUST_CHECK int forward_signature(const struct config *cfg, struct str name, struct str path,
                                 int64_t stamp, struct str body, char ret[SIGN_TEXT_MAX]);

/* Whether a member of the cluster has signed this body, for the member of this name (a call, which
 * it gets) or as that member (an answer of its own) and for this path, within the last minute. From
 * any thread. */
bool forward_verify(const struct config *cfg, struct str name, struct str path, struct str stamp,
                    struct str signature, struct str body, wall_ms now);
/* Appends "<stamp> <signature>" of a body of this node's own. From any thread. Errors: ERR_NOMEM,
 * ERR_INVALID (no secret). */
MUST_CHECK int forward_sign(const struct config *cfg, struct str path, struct str body, wall_ms now,
                            struct buf *dst);

#endif
