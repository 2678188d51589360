/* SPDX-License-Identifier: Apache-2.0 */
/* The clocks. Due times are wall-clock milliseconds of the store's clock (`wall_ms`); time-outs and
 * leases use a monotonic clock (`mono_ms`); the fence before a send uses CLOCK_BOOTTIME, which
 * also runs while the machine is suspended. struct store_clock is the one place that converts. */
#ifndef JF_COMMON_CLOCK_H
#define JF_COMMON_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

typedef int64_t wall_ms; /* milliseconds since 1970-01-01T00:00:00Z, by the store's clock */
typedef int64_t mono_ms; /* milliseconds of CLOCK_BOOTTIME; comparable within one boot only */

#define WALL_NONE INT64_MIN /* "no such time": SQL NULL */
#define WALL_MAX INT64_MAX

mono_ms clock_mono(void); /* CLOCK_BOOTTIME, milliseconds, rounded down */
int64_t clock_mono_us(void);
wall_ms clock_wall(void); /* this machine's CLOCK_REALTIME; only the SQLite store and logs use it */

/* Follows the store's clock: wall = mono + offset. Shared between threads; each call is atomic. */
struct store_clock {
    _Atomic int64_t offset_ms;
    _Atomic bool known;
};

/* Records one measurement: the store said `store_now`, asked at `sent` and answered at `received`.
 * The store's reading is at least as old as the answer and at most as old as the question; the
 * offset assumes the middle ("less half the round trip"). A measurement with a round trip above
 * max_rtt_ms is ignored unless none was taken before. */
void store_clock_measure(struct store_clock *c, wall_ms store_now, mono_ms sent, mono_ms received,
                         int64_t max_rtt_ms);

/* The store's time now, rounded down; this machine's wall clock while `known` is false. */
wall_ms store_clock_now(const struct store_clock *c);

#endif
