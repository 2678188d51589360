/* SPDX-License-Identifier: Apache-2.0 */
/* The calls about the node's own row in job_node, in the manner of storecall.h. */
#ifndef JF_CORE_NODECALL_H
#define JF_CORE_NODECALL_H

#include "node/core/storecall.h"
#include "proto/member.h"

/* What submissions by SQL (jobflow_submit) go by: "max_payload", "max_ahead_ms", "max_timeout_ms",
 * and "policy:NAME" with the policy's max_retry. */
struct submit_rule {
    char name[TASK_POLICY_MAX + 16];
    int64_t value;
};

/* Takes the next boot epoch for a node name and writes its row, state "joining". Names that come
 * and go would fill the table: the row that has been silent longest goes, if that is for forget_ms.
 */
struct call_node_start {
    struct store_call call;
    struct str name;
    struct str address;
    struct str version;
    int32_t hash_version;
    int64_t forget_ms;               /* 0 = none goes */
    const struct submit_rule *rules; /* this node's; each replaces what stood under its name */
    size_t n_rules;
    int64_t epoch;     /* out: above every earlier one of this name */
    wall_ms last_seen; /* out: the previous process's, or WALL_NONE */
};

/* Renews the node's row, and reads the rows of all that live: whose last heartbeat is younger than
 * ttl_ms by the store's clock. rc ERR_CONFLICT: another process has started under this name since.
 */
struct call_node_beat {
    struct store_call call;
    struct str name;
    int64_t epoch;
    enum member_state state;
    int64_t ttl_ms;
    struct member *members; /* out: n of them, in no order, those that have left too; free() */
    size_t n;
};

#endif
