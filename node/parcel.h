/* SPDX-License-Identifier: Apache-2.0 */
/* Batch push: tasks of one service, handler and time-out travel together in one request, a parcel.
 *
 * A task that is due joins the parcel that gathers. It leaves when it is full (maxSize, or bytes),
 * when its first task has waited for maxWait, or earlier where a fence or a time-out asks for it;
 * with as many requests out as the service may have at a time, it goes on gathering until one of
 * them is back. Right before it leaves, tasks whose fence has passed are given back.
 *
 * A batch that is refused as a whole comes again in smaller ones: see parcel_learn.c.
 *
 * What is gathered and may not leave any more is given back without using up a try: when the node
 * stops, and when the service is paused, deleted or no longer in batch mode. */
#ifndef JF_NODE_PARCEL_H
#define JF_NODE_PARCEL_H

#include "common/err.h"
#include "node/core/service.h"

struct flight;
struct node;
struct parcels;

MUST_CHECK int parcels_new(struct node *n, struct parcels **ret); /* Errors: ERR_NOMEM */
/* Behind the dispatcher, and before the flights. NULL is accepted. */
void parcels_free(struct parcels *p);

/* Takes care of the attempt until its end: deliver_end is called once, perhaps in here. The service
 * is borrowed for the call; its limits are valid as service.h has them. */
void parcels_add(struct parcels *p, struct flight *f, const struct service *service,
                 int64_t timeout_ms);

void parcels_services(struct parcels *p); /* the services have been read again */
void parcels_stop(struct parcels *p);     /* the node stops: no task is added after this */

#endif
