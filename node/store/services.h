/* SPDX-License-Identifier: Apache-2.0 */
/* The table job_service, written once for all SQL databases. */
#ifndef JF_STORE_SERVICES_H
#define JF_STORE_SERVICES_H

#include "node/core/storecall.h"
#include "node/store/sql.h"

/* Inside a transaction: sees that the service has a row that knows these lanes and shards. */
MUST_CHECK int service_see(struct sql *db, struct str name, uint32_t lanes, int32_t shards,
                           struct err *err);

/* Whether a live task names the service. */
MUST_CHECK int service_has_tasks(struct sql *db, struct str name, bool *ret, struct err *err);

/* As driver.call. */
MUST_CHECK int service_put(struct sql *db, struct call_service_put *c, struct err *err);
MUST_CHECK int service_pause(struct sql *db, struct call_service_pause *c, struct err *err);
MUST_CHECK int service_delete(struct sql *db, struct call_service_delete *c, struct err *err);
MUST_CHECK int service_list(struct sql *db, struct call_service_list *c, struct err *err);

#endif
