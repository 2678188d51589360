/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of ids, in statements. */
#include "node/store/mysql_packet.h"

#include <inttypes.h>

#define RUN_MIN 3 /* ids that are a range */

void my_ids_add(struct my_ids *l, int64_t id, int64_t value)
{
    buf_add(&l->ids, &id, sizeof(id));
    buf_add(&l->values, &value, sizeof(value));
    l->n++;
}

void my_ids_fini(struct my_ids *l)
{
    buf_fini(&l->ids);
    buf_fini(&l->values);
}

/* How many of the ids from `at` on ascend by one and have the value (NULL: any). */
static size_t run_length(const struct my_ids *l, size_t at, const int64_t *value)
{
    const int64_t *ids = (const int64_t *)l->ids.data;
    const int64_t *values = (const int64_t *)l->values.data;
    size_t n = 0;

    while (at + n < l->n && (!value || values[at + n] == *value) &&
           (!n || ids[at + n] == ids[at] + (int64_t)n))
        n++;
    return n;
}

/* Runs go as ranges, which cost the server less than each id by itself. The last id of a run stands
 * alone: a range is read to the row behind it, and waits for that row's lock, which somebody's open
 * transaction may hold for long (jobflow_submit). */
static void put_condition(struct my_packet *p, const char *column, const struct my_ids *l,
                          const int64_t *value)
{
    const int64_t *ids = (const int64_t *)l->ids.data;
    const char *before = "(";
    size_t n;

    for (size_t i = 0; i < l->n; i += n ? n : 1) {
        n = run_length(l, i, value);
        if (n < RUN_MIN)
            continue;
        buf_addf(&p->text, "%s%s BETWEEN %" PRId64 " AND %" PRId64, before, column, ids[i],
                 ids[i + n - 2]);
        before = " OR ";
    }
    for (size_t i = 0; i < l->n; i += n ? n : 1) {
        n = run_length(l, i, value);
        for (size_t k = n < RUN_MIN ? i : i + n - 1; k < i + n; k++) {
            if (*before != ',')
                buf_addf(&p->text, "%s%s IN (", before, column);
            else
                buf_addc(&p->text, ',');
            buf_addi(&p->text, ids[k]);
            before = ",";
        }
    }
    buf_addz(&p->text, *before == ',' ? "))" : ")");
}

static bool ids_ok(struct my_packet *p, const struct my_ids *l)
{
    p->text.failed |= !buf_ok(&l->ids) || !buf_ok(&l->values);
    return buf_ok(&p->text);
}

void my_put_ids(struct my_packet *p, const char *column, const struct my_ids *l)
{
    if (ids_ok(p, l))
        put_condition(p, column, l, NULL);
}

/* All have the same, as a rule. */
void my_put_value_by_id(struct my_packet *p, const struct my_ids *l)
{
    const int64_t *values = (const int64_t *)l->values.data;
    bool several = false;

    if (!ids_ok(p, l))
        return;
    for (size_t i = 1; i < l->n; i++) {
        size_t first = 0;

        while (values[first] != values[i])
            first++;
        if (first < i || values[i] == values[0])
            continue;
        my_put(p, several ? " WHEN " : "CASE WHEN ");
        put_condition(p, "id", l, &values[i]);
        my_put(p, " THEN ");
        my_put_int(p, values[i]);
        several = true;
    }
    if (several)
        my_put(p, " ELSE ");
    my_put_int(p, values[0]);
    if (several)
        my_put(p, " END");
}
