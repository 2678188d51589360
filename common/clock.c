/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"

#include <assert.h>
#include <stdatomic.h>
#include <time.h>

static struct timespec read_clock(clockid_t id)
{
    struct timespec ts;
    int rc = clock_gettime(id, &ts);
    assert(rc == 0);
    return ts;
}

mono_ms clock_mono(void)
{
    struct timespec ts = read_clock(CLOCK_BOOTTIME);
    return (mono_ms)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int64_t clock_mono_us(void)
{
    struct timespec ts = read_clock(CLOCK_BOOTTIME);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

wall_ms clock_wall(void)
{
    struct timespec ts = read_clock(CLOCK_REALTIME);
    return (wall_ms)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void store_clock_measure(struct store_clock *c, wall_ms store_now, mono_ms sent, mono_ms received,
                         int64_t max_rtt_ms)
{
    int64_t rtt = received - sent;
    assert(rtt >= 0);
    if (rtt > max_rtt_ms && atomic_load(&c->known))
        return;
    atomic_store(&c->offset_ms, store_now - (sent + rtt / 2));
    /* After the offset: who sees `known` sees an offset too. */
    atomic_store(&c->known, true);
}

wall_ms store_clock_now(const struct store_clock *c)
{
    if (!atomic_load(&c->known))
        return clock_wall();
    return clock_mono() + atomic_load(&c->offset_ms);
}
