/* SPDX-License-Identifier: Apache-2.0 */
/* The unbatched operations, written once for all SQL databases. */
#ifndef JF_STORE_CALLS_H
#define JF_STORE_CALLS_H

#include "node/core/attemptcall.h"
#include "node/core/nodecall.h"
#include "node/core/storecall.h"
#include "node/store/sql.h"

/* As driver.call: one transaction, answers in the call's fields. */
MUST_CHECK int calls_run(struct sql *db, struct store_call *call, struct err *err);

/* calls_task.c; each inside the transaction that calls_run opens, get and list outside one. */
int call_get(struct sql *db, struct call_get *c, struct err *err);
int call_move(struct sql *db, struct call_move *c, struct err *err);
int call_run(struct sql *db, struct call_run *c, struct err *err);
int call_extend(struct sql *db, struct call_extend *c, struct err *err);

/* calls_many.c; the first outside a transaction, too */
int call_get_many(struct sql *db, struct call_get_many *c, struct err *err);
void drop_many(struct call_get_many *c); /* its output */
int call_extend_many(struct sql *db, struct call_extend_many *c, struct err *err);

/* calls_list.c */
int call_list(struct sql *db, struct call_list *c, struct err *err);

/* calls_node.c */
int call_node_start(struct sql *db, struct call_node_start *c, struct err *err);
int call_node_beat(struct sql *db, struct call_node_beat *c, struct err *err);
int call_alert_list(struct sql *db, struct call_alert_list *c, struct err *err);
int call_alert_end(struct sql *db, struct call_alert_end *c, struct err *err);
int call_purge(struct sql *db, struct call_purge *c, struct err *err);
int call_clock(struct sql *db, struct call_clock *c, struct err *err);

#endif
