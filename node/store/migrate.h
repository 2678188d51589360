/* SPDX-License-Identifier: Apache-2.0 */
/* The schema's version, written once for all SQL databases. */
#ifndef JF_STORE_MIGRATE_H
#define JF_STORE_MIGRATE_H

#include "node/store/driver.h"
#include "node/store/sql.h"

/* As driver.migrate. */
MUST_CHECK int migrate_run(struct sql *db, const struct migration *m, size_t n, bool check_only,
                           int *ret_from, int *ret_to, struct err *err);

#endif
