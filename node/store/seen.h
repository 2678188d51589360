/* SPDX-License-Identifier: Apache-2.0 */
/* The node's side of jobflow_submit() (proto/sql, 0005_submit.sql): what the function did not write
 * into job_service itself, and the rules that it goes by. Does nothing on databases without the
 * function. */
#ifndef JF_STORE_SEEN_H
#define JF_STORE_SEEN_H

#include "node/core/nodecall.h"
#include "node/store/sql.h"

/* Errors of all: as of the functions in driver.h. */

/* Carries what stands in job_service_seen over to job_service, in transactions of its own; at most
 * so much at a time that the caller goes on. Errors: also ERR_NOMEM, and ERR_CORRUPT (a name that
 * is too long). */
MUST_CHECK int seen_fold(struct sql *db, struct err *err);

/* Inside the transaction that deletes the service, before it does: a task of it that becomes
 * visible within a day brings it back. Errors: ERR_NOMEM, too. */
MUST_CHECK int seen_watch(struct sql *db, struct str service_name, struct err *err);

/* Inside a transaction: the limits and defaults that the function goes by from now on. Of policies
 * these are all that there are; n == 0 changes nothing. Errors: ERR_NOMEM, too. */
MUST_CHECK int seen_rules(struct sql *db, const struct submit_rule *rules, size_t n,
                          struct err *err);

#endif
