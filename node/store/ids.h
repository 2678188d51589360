/* SPDX-License-Identifier: Apache-2.0 */
/* The ids of tasks, out of blocks that the database gives. */
#ifndef JF_STORE_IDS_H
#define JF_STORE_IDS_H

#include "node/store/worker.h"

/* Errors of both: as of driver.take_ids. */

/* Gives ids and trace ids to submissions that have none. Those who have an id keep it: that is how
 * a repeated submission knows its own rows. */
MUST_CHECK int ids_give(struct worker *w, union batch_item *items, size_t n_items, struct err *err);

/* Takes a block, as a proof that the database gives some; it is used later. */
MUST_CHECK int ids_probe(struct worker *w, struct err *err);

#endif
