/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"

#include <assert.h>
#include <stdatomic.h>
#include <time.h>

/* One part in so many: what ntpd slews a clock by at most. */
#define DRIFT_SHARE 2000
#define DOUBT_MAX_US INT64_C(1000000000000)

static int64_t read_us(clockid_t id)
{
    struct timespec ts;
    int rc = clock_gettime(id, &ts);
    assert(rc == 0);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

mono_ms clock_mono(void)
{
    return clock_mono_us() / 1000;
}

int64_t clock_mono_us(void)
{
    return read_us(CLOCK_BOOTTIME);
}

wall_ms clock_wall(void)
{
    return clock_wall_us() / 1000;
}

int64_t clock_wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}

void store_clock_measure(struct store_clock *c, int64_t store_now_us, int64_t sent_us,
                         int64_t received_us)
{
    int64_t rtt = received_us - sent_us;
    int64_t offset = store_now_us - (sent_us + rtt / 2);

    assert(rtt >= 0);
    if (atomic_load(&c->known)) {
        int64_t doubt = c->rtt_us / 2 + (received_us - c->at_us) / DRIFT_SHARE;
        int64_t apart = offset - atomic_load(&c->offset_us);

        if (rtt / 2 > doubt && (apart < 0 ? -apart : apart) <= doubt + rtt / 2)
            return;
    }
    c->rtt_us = rtt;
    c->at_us = received_us;
    atomic_store(&c->offset_us, offset);
    /* After the offset: who sees `known` sees an offset too. */
    atomic_store(&c->known, true);
}

void store_clock_doubt(struct store_clock *c)
{
    c->rtt_us = DOUBT_MAX_US;
}

static int64_t now_us(const struct store_clock *c)
{
    if (!atomic_load(&c->known))
        return clock_wall_us();
    return clock_mono_us() + atomic_load(&c->offset_us);
}

wall_ms store_clock_now(const struct store_clock *c)
{
    return now_us(c) / 1000;
}

int64_t store_clock_wait_us(const struct store_clock *c, wall_ms at)
{
    int64_t left = at * 1000 - now_us(c);

    return left > 0 ? left : 0;
}
