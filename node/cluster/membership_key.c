/* SPDX-License-Identifier: Apache-2.0 */
/* The lease and the key.
 *
 * Whether the key is still there is judged by revisions: what a reading or the watch tells counts
 * only when it is newer than the last writing that etcd confirmed, and is looked at once no call is
 * under way that could make it old. A key that is gone while its lease lives takes the lease with
 * it: a writing that is still on its way then finds no lease, and cannot leave a key behind that
 * nobody keeps alive.
 *
 * A key that others left behind is deleted as it was read, by its revision, and then created like
 * any other: whoever wrote it in between is the holder. */
#include <assert.h>

#include <event2/event.h>

#include "node/cluster/membership_internal.h"

static void step(struct membership *m);

static int64_t pause_ms(struct membership *m)
{
    return backoff_delay(&m->pauses, ++m->key.n_failures, &m->rng);
}

/* ---- The end of a lease or a key ----------------------------------------------------------- */

/* on_lost comes last: the owner may leave in it. */
static void lose(struct membership *m, enum key_state next, int64_t wait_ms, const char *why)
{
    struct membership_key *k = &m->key;
    bool was_ours = k->state == KEY_OURS;

    assert(next == KEY_GRANTING || next == KEY_REVOKING);
    membership_key_stop(m);
    k->state = next;
    if (next == KEY_GRANTING)
        k->lease = 0;
    k->seen = (struct key_seen){0};
    membership_timer(&k->timer, wait_ms);
    if (was_ours)
        m->cfg.on_lost(m->cfg.ctx, why);
}

static void judge(struct membership *m)
{
    struct membership_key *k = &m->key;

    if (k->state != KEY_OURS || k->call.flight || k->seen.revision <= k->revision)
        return;
    if (k->seen.lease == MEMBERSHIP_NOBODY) {
        lose(m, KEY_REVOKING, 0, "the key was deleted");
    } else if (k->seen.lease != k->lease) {
        lose(m, KEY_REVOKING, 0, "the key was written by somebody else");
    } else if (!k->seen.is_same) {
        k->is_dirty = true;
        step(m);
    }
}

void membership_key_saw(struct membership *m, int64_t revision, const struct etcd_kv *kv)
{
    struct membership_key *k = &m->key;

    if (m->is_leaving || revision <= k->seen.revision)
        return;
    k->seen = (struct key_seen){
        .revision = revision,
        .lease = kv ? kv->lease : MEMBERSHIP_NOBODY,
        .is_same = kv && str_eq(kv->value, buf_str(&k->value)),
    };
    if (!kv && k->state == KEY_CREATING && k->holder != MEMBERSHIP_NOBODY)
        step(m); /* the holder is gone */
    else
        judge(m);
}

void membership_key_forget(struct membership *m)
{
    m->key.revision = 0;
    m->key.seen = (struct key_seen){0};
}

/* ---- Keep-alive ---------------------------------------------------------------------------- */

static void alive_later(struct membership *m)
{
    mono_ms wait = m->key.alive_asked_at + m->third_ms - clock_mono();

    membership_timer(&m->key.alive_timer, wait > 0 ? wait : 0);
}

static void alive_failed(struct membership *m, int rc, const struct err *err)
{
    struct membership_key *k = &m->key;

    membership_timer(&k->alive_timer, backoff_delay(&m->pauses, ++k->n_alive_failures, &m->rng));
    membership_trouble(m, TROUBLE_KEEPING_ALIVE, rc, "keeping the lease alive", err);
}

static void on_alive(struct etcd_call *c)
{
    struct membership *m = c->ctx;

    if (c->rc && c->rc != ERR_NOT_FOUND) {
        alive_failed(m, c->rc, &c->err);
        return;
    }
    membership_well(m, TROUBLE_KEEPING_ALIVE);
    if (m->is_leaving)
        return;
    if (c->rc) {
        lose(m, KEY_GRANTING, 0, "the lease ran out or was revoked");
    } else {
        m->key.n_alive_failures = 0;
        alive_later(m);
    }
}

static void on_alive_timer(evutil_socket_t fd, short events, void *ctx)
{
    struct membership *m = ctx;
    struct membership_key *k = &m->key;

    (void)fd;
    (void)events;
    k->alive.lease = k->lease;
    k->alive_asked_at = clock_mono();
    if (etcd_start(m->etcd, &k->alive))
        alive_failed(m, ERR_NOMEM, &(struct err){0});
}

/* ---- Each state's call --------------------------------------------------------------------- */

static const char *const asked_for[] = {
    [KEY_GRANTING] = "asking for a lease",
    [KEY_CREATING] = "creating the key",
    [KEY_ASKING] = "asking for the holder's lease",
    [KEY_CLEARING] = "deleting the key that nobody keeps alive",
    [KEY_OURS] = "writing the key",
    [KEY_REVOKING] = "revoking the old lease",
    [KEY_LEAVING] = "giving the lease back",
};

static void failed(struct membership *m, int rc, const struct err *err)
{
    struct membership_key *k = &m->key;
    const char *what = asked_for[k->state];

    k->is_dirty = true; /* whether it was written is not known */
    if (k->state == KEY_ASKING || k->state == KEY_CLEARING)
        k->state = KEY_CREATING;
    membership_timer(&k->timer, pause_ms(m));
    membership_trouble(m, TROUBLE_WRITING, rc, what, err);
}

static void granted(struct membership *m, const struct etcd_call *c)
{
    struct membership_key *k = &m->key;

    k->lease = c->answer.lease;
    k->n_alive_failures = 0;
    alive_later(m);
    k->state = KEY_CREATING;
    step(m);
}

static void registered(struct membership *m, const struct etcd_call *c)
{
    struct membership_key *k = &m->key;

    k->state = KEY_OURS;
    k->revision = c->answer.revision;
    k->n_failures = 0;
    k->holder = MEMBERSHIP_NOBODY;
    if (!c->answer.is_done)
        k->is_dirty = true; /* an earlier try put it there, with what was right then */
    m->cfg.on_registered(m->cfg.ctx);
    if (!m->is_leaving)
        membership_well(m, TROUBLE_WRITING);
    judge(m);
    step(m);
}

static void held(struct membership *m, const struct etcd_call *c)
{
    struct membership_key *k = &m->key;
    const struct etcd_kv *kv = &c->answer.kvs[0];
    bool is_told = k->holder == kv->lease || !kv->lease; /* without a lease nobody holds it */
    struct member holder = {0};
    struct err err = {0};
    int rc = member_parse(kv->value, &holder, &err);

    k->holder = kv->lease;
    k->holder_epoch = rc ? 0 : holder.epoch;
    k->holder_revision = kv->mod_revision;
    k->held_revision = c->answer.revision;
    k->state = kv->lease ? KEY_ASKING : KEY_CLEARING;
    if (!is_told && rc)
        membership_bad_key(m, rc == ERR_INVALID ? ERR_CORRUPT : rc,
                           "this node's key is held by what is no member", &err);
    else if (!is_told)
        m->cfg.on_held(m->cfg.ctx, &holder);
    if (!m->is_leaving)
        step(m);
}

/* A process keeps its lease alive every third of what it was granted for, and may be late by as
 * much as this cluster's TTL: a lease like this node's runs out before that. A later process of
 * this name is none of ours to judge. */
static bool is_abandoned(const struct membership *m, const struct etcd_answer *a)
{
    int64_t silent_s = a->granted_ttl_s - a->ttl_s;
    bool is_later = m->self.epoch && m->key.holder_epoch > m->self.epoch;

    return !is_later && silent_s > a->granted_ttl_s / 3 + m->key.call.ttl_s;
}

static void asked(struct membership *m, const struct etcd_call *c)
{
    struct membership_key *k = &m->key;
    bool is_over = k->seen.revision > k->held_revision && k->seen.lease == MEMBERSHIP_NOBODY;

    if (c->rc || is_abandoned(m, &c->answer)) {
        k->state = KEY_CLEARING;
        step(m);
        return;
    }
    k->state = KEY_CREATING;
    k->n_failures = 0;
    membership_timer(&k->timer, is_over ? 0 : m->third_ms);
    membership_well(m, TROUBLE_WRITING);
}

/* Paused when somebody wrote it anew. */
static void cleared(struct membership *m, const struct etcd_call *c)
{
    m->key.state = KEY_CREATING;
    if (c->answer.is_done)
        step(m);
    else
        membership_timer(&m->key.timer, pause_ms(m));
}

static void created(struct membership *m, const struct etcd_call *c)
{
    if (c->answer.is_done || c->answer.kvs[0].lease == m->key.lease)
        registered(m, c);
    else
        held(m, c);
}

static void written(struct membership *m, const struct etcd_call *c)
{
    m->key.revision = c->answer.revision;
    m->key.n_failures = 0;
    membership_well(m, TROUBLE_WRITING);
    judge(m);
    step(m);
}

/* Paused, since a lease that is gone right after its grant may go on so. */
static void lease_is_gone(struct membership *m)
{
    lose(m, KEY_GRANTING, pause_ms(m), "the lease ran out or was revoked");
}

static void revoked(struct membership *m)
{
    if (m->is_leaving) {
        membership_left(m);
        return;
    }
    m->key.lease = 0;
    m->key.state = KEY_GRANTING;
    step(m);
}

static void on_done(struct etcd_call *c)
{
    struct membership *m = c->ctx;
    bool is_gone = c->rc == ERR_NOT_FOUND;

    if (c->op == ETCD_LEASE_REVOKE && (!c->rc || is_gone))
        revoked(m);
    else if (c->op == ETCD_LEASE_TTL && (!c->rc || is_gone))
        asked(m, c);
    else if (is_gone && c->op != ETCD_LEASE_GRANT)
        lease_is_gone(m);
    else if (c->rc)
        failed(m, c->rc, &c->err);
    else if (c->op == ETCD_LEASE_GRANT)
        granted(m, c);
    else if (c->op == ETCD_CREATE)
        created(m, c);
    else if (c->op == ETCD_DELETE_IF)
        cleared(m, c);
    else
        written(m, c);
}

static int encode(struct membership *m)
{
    struct membership_key *k = &m->key;

    buf_clear(&k->value);
    member_put(&k->value, &m->self);
    k->call.value = buf_str(&k->value);
    k->is_dirty = false;
    return buf_ok(&k->value) ? 0 : ERR_NOMEM;
}

static int64_t time_to_leave(const struct membership *m)
{
    mono_ms left = m->leave_until - clock_mono();

    return left > 0 ? left : 1;
}

static void step(struct membership *m)
{
    static const enum etcd_op ops[] = {
        [KEY_GRANTING] = ETCD_LEASE_GRANT,
        [KEY_CREATING] = ETCD_CREATE,
        [KEY_ASKING] = ETCD_LEASE_TTL,
        [KEY_CLEARING] = ETCD_DELETE_IF,
        [KEY_OURS] = ETCD_PUT,
        [KEY_REVOKING] = ETCD_LEASE_REVOKE,
        [KEY_LEAVING] = ETCD_LEASE_REVOKE,
    };
    struct membership_key *k = &m->key;
    bool is_writing = k->state == KEY_CREATING || k->state == KEY_OURS;

    if (k->call.flight || (k->state == KEY_OURS && !k->is_dirty))
        return;
    assert((k->lease != 0) == (k->state != KEY_GRANTING));
    (void)evtimer_del(&k->timer); /* was assigned */
    if (k->state == KEY_GRANTING)
        k->alive_asked_at = clock_mono(); /* a lease counts from its grant */
    if (k->state == KEY_CREATING)
        k->seen = (struct key_seen){0};
    k->call.op = ops[k->state];
    k->call.lease = k->state == KEY_ASKING ? k->holder : k->lease;
    k->call.mod_revision = k->holder_revision;
    k->call.timeout_ms = k->state == KEY_LEAVING ? time_to_leave(m) : m->third_ms;
    if ((is_writing && encode(m)) || etcd_start(m->etcd, &k->call))
        failed(m, ERR_NOMEM, &(struct err){0});
}

static void on_timer(evutil_socket_t fd, short events, void *ctx)
{
    (void)fd;
    (void)events;
    step(ctx);
}

/* ---- Life ---------------------------------------------------------------------------------- */

void membership_key_init(struct membership *m)
{
    struct membership_key *k = &m->key;

    k->holder = MEMBERSHIP_NOBODY;
    k->call = (struct etcd_call){
        .key = buf_str(&m->path),
        .ttl_s = (m->cfg.ttl_ms + 999) / 1000,
        .on_done = on_done,
        .ctx = m,
    };
    k->alive = (struct etcd_call){
        .op = ETCD_LEASE_KEEP_ALIVE,
        .timeout_ms = m->third_ms,
        .on_done = on_alive,
        .ctx = m,
    };
    (void)evtimer_assign(&k->timer, m->base, on_timer, m); /* no wrong event type */
    (void)evtimer_assign(&k->alive_timer, m->base, on_alive_timer, m);
    membership_timer(&k->timer, 0);
}

void membership_key_stop(struct membership *m)
{
    struct membership_key *k = &m->key;

    etcd_cancel(&k->call);
    etcd_cancel(&k->alive);
    (void)evtimer_del(&k->timer); /* were assigned */
    (void)evtimer_del(&k->alive_timer);
}
