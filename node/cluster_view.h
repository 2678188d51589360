/* SPDX-License-Identifier: Apache-2.0 */
/* GET /api/cluster: the members and who owns what, by this node's view, as a JSON object. */
#ifndef JF_NODE_CLUSTER_VIEW_H
#define JF_NODE_CLUSTER_VIEW_H

#include "common/buf.h"
#include "node/config.h"
#include "node/members.h"
#include "node/service_table.h"

#define CLUSTER_VIEW_SERVICES_MAX 1000 /* listed in one answer */

/* Appends the object: of all services (the first CLUSTER_VIEW_SERVICES_MAX by name), or of the one
 * that is named. Thread safe. Returns false when that service is unknown: nothing was appended. */
bool cluster_view_put(struct buf *b, const struct config *cfg, const struct members_snapshot *view,
                      struct service_table *services, mono_ms now, struct str service_name);

#endif
