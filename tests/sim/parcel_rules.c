/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/parcel_rules.h"

#include <stdlib.h>

#include "node/parcel_internal.h"
#include "tests/sim/sim.h"

struct parcel_rules {
    struct line line;
    struct parcels parcels;
    struct node node; /* without a log */
};

struct parcel_rules *parcel_rules_new(void)
{
    struct parcel_rules *r = sim_alloc(sizeof(*r));

    r->parcels.node = &r->node;
    line_forget(&r->line);
    return r;
}

void parcel_rules_free(struct parcel_rules *r)
{
    free(r);
}

void parcel_rules_forget(struct parcel_rules *r)
{
    line_forget(&r->line);
}

struct parcel_group parcel_rules_group(const struct parcel_rules *r, const struct task *t,
                                       int32_t batch_size)
{
    struct parcel_kind kind = parcel_kind(&r->line, t, batch_size);

    return (struct parcel_group){kind.group, kind.max_tasks};
}

size_t parcel_rules_max_bytes(const struct parcel_rules *r)
{
    return r->line.max_bytes;
}

void parcel_rules_learn(struct parcel_rules *r, struct parcel_group group, size_t n, size_t bytes,
                        int32_t http_status)
{
    struct parcel q = {
        .n = n,
        .kind = {group.group, group.max_tasks},
        .out.body.len = bytes,
    };

    line_learn(&r->parcels, &r->line, &q, http_status);
}
