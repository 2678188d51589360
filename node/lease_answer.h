/* SPDX-License-Identifier: Apache-2.0 */
/* What an answer to a poll holds: how much more is worth claiming for it, and what one of another
 * member brings. Pure. */
#ifndef JF_NODE_LEASE_ANSWER_H
#define JF_NODE_LEASE_ANSWER_H

#include "node/api/api.h"
#include "node/config.h"

/* An answer so far, and what is known of the payloads to come. */
struct lease_fill {
    uint32_t n; /* tasks */
    uint32_t max_tasks;
    size_t bytes;       /* of those tasks */
    size_t task_bytes;  /* of a task of this service, as of late; 0 = nothing is known */
    size_t max_payload; /* no payload is larger */
};

/* So many tasks are claimed next that the answer is expected to stay within its size, at least 1.
 */
uint32_t lease_step(const struct lease_fill *f);
/* Whether one more task is expected to fit. */
bool lease_has_room(const struct lease_fill *f);

/* Takes an answer apart that this member gave a moment ago when it was asked for the service's
 * tasks: their text, borrowed from the answer, and their claims, owned. False: it brings none, or
 * the member has not signed all of it. Whoever has got that one's address since would answer
 * otherwise. */
bool lease_answer_read(const struct config *cfg, struct str member, struct str service_name,
                       struct str answer, wall_ms now, struct str *ret_tasks,
                       struct lease_claims **ret_claims);

#endif
