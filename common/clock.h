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
/* This machine's CLOCK_REALTIME, which says nothing about when a task is due (but SQLite's clock is
 * this one); rounded down. */
wall_ms clock_wall(void);
int64_t clock_wall_us(void);

/* Follows the store's clock: wall = mono + offset. One thread measures, any may ask. */
struct store_clock {
    _Atomic int64_t offset_us;
    _Atomic bool known;
    /* The measuring thread's own: of the measurement in use. */
    int64_t rtt_us;
    int64_t at_us;
};

/* Records one measurement, all in microseconds: the store said `store_now_us`, asked at `sent_us`
 * and answered at `received_us` (clock_mono_us). The store read its clock in between; the offset
 * assumes the middle, and is in doubt by half the round trip. A measurement in use grows doubtful
 * as the clocks drift apart, by up to half a millisecond a second while one of them is slewed. A
 * new one takes its place when it is in less doubt, or when both cannot be true, since then the
 * store's clock was set. */
void store_clock_measure(struct store_clock *c, int64_t store_now_us, int64_t sent_us,
                         int64_t received_us);

/* Another server may answer from now on: the next measurement holds, whatever it says. On the
 * thread that measures. */
void store_clock_doubt(struct store_clock *c);

/* The store's time now, rounded down; this machine's wall clock while `known` is false. */
wall_ms store_clock_now(const struct store_clock *c);

/* Microseconds until the store's clock shows that time; 0 when it has passed. */
int64_t store_clock_wait_us(const struct store_clock *c, wall_ms at);

#endif
