/* SPDX-License-Identifier: Apache-2.0 */
/* The table job_instance, written once for all SQL databases. */
#ifndef JF_STORE_INSTANCES_H
#define JF_STORE_INSTANCES_H

#include "node/core/instance.h"
#include "node/store/sql.h"

/* As driver.call; list outside of a transaction. */
MUST_CHECK int instance_put(struct sql *db, struct call_instance_put *c, struct err *err);
MUST_CHECK int instance_delete(struct sql *db, struct call_instance_delete *c, struct err *err);
MUST_CHECK int instance_list(struct sql *db, struct call_instance_list *c, struct err *err);
MUST_CHECK int instance_purge(struct sql *db, struct call_instance_purge *c, struct err *err);

/* Inside a transaction that has deleted the service's row: its instances go with it. */
MUST_CHECK int instances_drop(struct sql *db, struct str service_name, struct err *err);

#endif
