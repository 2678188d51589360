/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a client submits, or asks to change, into a task. */
#ifndef JF_API_SUBMIT_PARSE_H
#define JF_API_SUBMIT_PARSE_H

#include "node/api/api_impl.h"
#include "node/api/fields.h"

/* Reads the object at token `obj` of loop->doc. Fills item->task (which item points to already),
 * with strings that point into the body or c->text, and the rules of the item. */
bool submit_parse(struct api_call *c, uint32_t obj, wall_ms now, struct submit_item *item,
                  struct problem *p);

/* What a task may be moved to. */
struct move_request {
    wall_ms execute_time; /* WALL_NONE = not given */
    bool is_relative;     /* it was given as a delay */
    bool set_payload;
    struct str payload;
};
bool move_parse(struct api_call *c, wall_ms now, struct move_request *ret, struct problem *p);

/* Finds a policy by name for a request that names it; NULL: *p lists those that there are. */
const struct retry_policy *policy_find_named(const struct api *api, struct str name,
                                             struct problem *p);

#endif
