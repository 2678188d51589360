/* SPDX-License-Identifier: Apache-2.0 */
#include "node/cluster/membership.h"

#include <assert.h>
#include <stdlib.h>

#include <event2/event.h>

#include "node/cluster/membership_internal.h"

#define PAUSE_MS 100 /* before the first repetition */

void membership_timer(struct event *timer, int64_t ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};

    if (evtimer_add(timer, &tv))
        event_active(timer, EV_TIMEOUT, 0);
}

void membership_bad_key(struct membership *m, int rc, const char *what, const struct err *err)
{
    struct err told = *err;

    if (told.text[0] == '\0')
        (void)err_set(&told, rc, "%s", err_name(rc));
    err_wrap(&told, "%s", what);
    m->cfg.on_trouble(m->cfg.ctx, rc, &told);
}

void membership_trouble(struct membership *m, enum membership_trouble which, int rc,
                        const char *what, const struct err *err)
{
    m->troubles |= which;
    membership_bad_key(m, rc, what, err);
}

void membership_well(struct membership *m, enum membership_trouble which)
{
    unsigned before = m->troubles;

    m->troubles &= ~(unsigned)which;
    if (before && !m->troubles)
        m->cfg.on_trouble(m->cfg.ctx, 0, &(struct err){0});
}

/* ---- Leaving ------------------------------------------------------------------------------- */

static void stop(struct membership *m)
{
    membership_list_stop(m);
    membership_key_stop(m);
    (void)evtimer_del(&m->leave_timer); /* was assigned */
}

void membership_left(struct membership *m)
{
    stop(m);
    m->on_left(m->cfg.ctx); /* m may be gone now */
}

static void on_leave_timer(evutil_socket_t fd, short events, void *ctx)
{
    (void)fd;
    (void)events;
    membership_left(ctx);
}

void membership_leave(struct membership *m, int64_t timeout_ms, void (*on_left)(void *ctx))
{
    bool has_lease = m->key.lease != 0;

    assert(!m->is_leaving && timeout_ms >= 0);
    stop(m);
    m->is_leaving = true;
    m->on_left = on_left;
    m->leave_until = clock_mono() + timeout_ms;
    m->key.state = KEY_LEAVING;
    membership_timer(&m->leave_timer, has_lease ? timeout_ms : 0);
    if (has_lease)
        membership_timer(&m->key.timer, 0);
}

/* ---- Life ---------------------------------------------------------------------------------- */

static int make_path(struct membership *m)
{
    buf_addf(&m->path, "/jobflow/%s/nodes/", m->cfg.cluster);
    size_t prefix_len = m->path.len;
    buf_addz(&m->path, m->self.name);
    m->prefix = (struct str){m->path.data, prefix_len};
    return buf_ok(&m->path) ? 0 : ERR_NOMEM;
}

int membership_new(struct event_base *base, struct etcd *etcd, const struct membership_config *cfg,
                   const struct member *self, struct membership **ret)
{
    struct membership *m = calloc(1, sizeof(*m));

    assert(cfg->ttl_ms > 0 && self->name[0] != '\0');
    if (!m)
        return ERR_NOMEM;
    m->base = base;
    m->etcd = etcd;
    m->cfg = *cfg;
    m->self = *self;
    m->third_ms = cfg->ttl_ms / 3 > 0 ? cfg->ttl_ms / 3 : 1;
    m->pauses = (struct backoff){
        .initial_ms = PAUSE_MS < m->third_ms ? PAUSE_MS : m->third_ms,
        .cap_ms = m->third_ms,
        .multiplier = 2.0,
        .jitter = 0.5,
    };
    random_bytes(&m->rng, sizeof(m->rng));
    if (make_path(m)) {
        buf_fini(&m->path);
        free(m);
        return ERR_NOMEM;
    }
    (void)evtimer_assign(&m->leave_timer, base, on_leave_timer, m); /* no wrong event type */
    membership_key_init(m);
    membership_list_init(m);
    *ret = m;
    return 0;
}

void membership_set(struct membership *m, int64_t epoch, enum member_state state)
{
    if (m->is_leaving || (m->self.epoch == epoch && m->self.state == state))
        return;
    m->self.epoch = epoch;
    m->self.state = state;
    m->key.is_dirty = true;
    if (m->key.state == KEY_OURS && !m->key.call.flight)
        membership_timer(&m->key.timer, 0);
}

bool membership_is_registered(const struct membership *m)
{
    return m->key.state == KEY_OURS;
}

void membership_free(struct membership *m)
{
    if (!m)
        return;
    stop(m);
    buf_fini(&m->key.value);
    buf_fini(&m->path);
    free(m);
}
