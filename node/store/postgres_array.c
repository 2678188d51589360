/* SPDX-License-Identifier: Apache-2.0 */
/* Binary arrays: number of dimensions, NULL flag, element type, length, lower bound; then each
 * element as its length and its bytes, all big-endian. */
#include "node/store/postgres.h"

#include <endian.h>
#include <string.h>

#define PG_ARRAY_HEADER 20
#define PG_TIME_FIRST INT64_C(-62167219200000)
#define PG_TIME_LAST INT64_C(253402300799999)
#define PG_EPOCH_MS INT64_C(946684800000) /* 2000-01-01 */

static void put32(struct buf *b, uint32_t v)
{
    uint32_t be = htobe32(v);

    buf_add(b, &be, sizeof(be));
}

static void put64(struct buf *b, int64_t v)
{
    uint64_t be = htobe64((uint64_t)v);

    put32(b, sizeof(be));
    buf_add(b, &be, sizeof(be));
}

static void put_null(struct pg_array *a)
{
    put32(&a->data, UINT32_MAX);
    a->has_null = true;
}

void pg_array_start(struct pg_array *a, enum pg_array_type type)
{
    static const char room[PG_ARRAY_HEADER];

    buf_clear(&a->data);
    buf_add(&a->data, room, sizeof(room)); /* filled by pg_array_end */
    a->type = type;
    a->has_null = false;
    a->n = 0;
}

void pg_array_add(struct pg_array *a, int64_t v)
{
    put64(&a->data, v);
    a->n++;
}

int64_t pg_time_of(wall_ms t)
{
    /* What lies outside the years 0 to 9999 is before or after all that there is: an infinity. */
    if (t < PG_TIME_FIRST)
        return INT64_MIN;
    if (t > PG_TIME_LAST)
        return INT64_MAX;
    return (t - PG_EPOCH_MS) * 1000;
}

wall_ms pg_time_to(int64_t v)
{
    /* Rounded down, also before the epoch. */
    return (v >= 0 ? v / 1000 : -((999 - v) / 1000)) + PG_EPOCH_MS;
}

void pg_array_time(struct pg_array *a, wall_ms t)
{
    if (t == WALL_NONE)
        put_null(a);
    else
        put64(&a->data, pg_time_of(t));
    a->n++;
}

void pg_array_text(struct pg_array *a, struct str s)
{
    if (s.p) {
        put32(&a->data, (uint32_t)s.len);
        buf_adds(&a->data, s);
    } else {
        put_null(a);
    }
    a->n++;
}

struct str pg_array_end(struct pg_array *a)
{
    const uint32_t header[] = {htobe32(1), htobe32(a->has_null), htobe32((uint32_t)a->type),
                               htobe32(a->n), htobe32(1)};

    _Static_assert(sizeof(header) == PG_ARRAY_HEADER, "five words");
    if (buf_ok(&a->data))
        memcpy(a->data.data, header, sizeof(header));
    return buf_str(&a->data);
}

void pg_array_fini(struct pg_array *a)
{
    buf_fini(&a->data);
}

void pg_arrays_fini(struct pg_array *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pg_array_fini(&a[i]);
}
