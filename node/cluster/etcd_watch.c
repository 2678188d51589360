/* SPDX-License-Identifier: Apache-2.0 */
/* A watch is a stream that never ends, so everything here is about its end.
 *
 *   PAUSED ──▶ CONNECTING ──created──▶ STANDING
 *     ▲             │                    │         what another endpoint or another
 *     └─────────────┴────────────────────┘         connection may cure
 *   any of them ──▶ BROKEN                         the rest: the owner has to read everything
 *
 * One timer serves all states: the end of a pause, the limit of a connection, the limit of silence.
 *
 * The place to go on from is the last event's revision + 1. What progress notices say is not taken
 * for it: to resume too early costs a full read after a compaction, too late costs an event. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <event2/event.h>
#include <event2/event_struct.h>

#include "common/backoff.h"
#include "node/cluster/etcd_internal.h"
#include "node/cluster/etcd_stream.h"

/* The whole answers that libcurl may bring at once, besides the one that is being read. */
#define UNREAD_MAX (2 * ETCD_EVENT_MAX)
#define PAUSE_MAX_MS 2000

enum watch_state { WATCH_PAUSED, WATCH_CONNECTING, WATCH_STANDING, WATCH_BROKEN };

struct etcd_watch {
    struct etcd *e;
    struct etcd_watch_config cfg;
    char *prefix; /* owned; cfg.prefix is its span */
    struct etcd_ask ask;
    struct buf body;
    struct etcd_stream stream;
    struct etcd_decoder decoder;
    struct event timer;
    enum watch_state state;
    int64_t next_revision; /* 0 = from the moment when it stands */
    int64_t n_failures;    /* in a row */
    mono_ms standing_since;
    bool is_calling; /* a callback of the owner's runs */
    bool is_stopped; /* to be freed after it */
    char why[200];   /* the last connection ended */
};

static const struct backoff pauses = {
    .initial_ms = 50, .cap_ms = PAUSE_MAX_MS, .multiplier = 2.0, .jitter = 0.5};

static void watch_free(struct etcd_watch *w)
{
    etcd_ask_fini(&w->ask);
    buf_fini(&w->body);
    etcd_stream_fini(&w->stream);
    etcd_decoder_fini(&w->decoder);
    free(w->prefix);
    free(w);
}

/* A timer that cannot be added for want of memory fires at once instead of never. */
static void set_timer(struct etcd_watch *w, int64_t ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};

    if (evtimer_add(&w->timer, &tv))
        event_active(&w->timer, EV_TIMEOUT, 0);
}

static void cut_off(struct etcd_watch *w)
{
    etcd_ask_stop(&w->ask);
    etcd_stream_reset(&w->stream);
    (void)evtimer_del(&w->timer); /* was assigned */
}

/* ---- To the owner: false when the watch is gone -------------------------------------------- */

static bool after_call(struct etcd_watch *w)
{
    w->is_calling = false;
    if (!w->is_stopped)
        return true;
    watch_free(w);
    return false;
}

static bool tell_created(struct etcd_watch *w, int64_t revision)
{
    if (!w->cfg.on_created)
        return true;
    w->is_calling = true;
    w->cfg.on_created(w->cfg.ctx, revision, w->why);
    return after_call(w);
}

static bool tell_events(struct etcd_watch *w, const struct etcd_message *m)
{
    w->is_calling = true;
    w->cfg.on_events(w->cfg.ctx, w->next_revision - 1, m->events, m->n_events);
    return after_call(w);
}

static void tell_broken(struct etcd_watch *w, int rc, int64_t compact_revision, const char *why)
{
    struct err err = {0};

    (void)err_set(&err, rc, "%s: %s", etcd_ask_url(&w->ask), why);
    cut_off(w);
    w->state = WATCH_BROKEN;
    w->is_calling = true;
    w->cfg.on_broken(w->cfg.ctx, rc, compact_revision, &err);
    (void)after_call(w); /* nobody goes on with it */
}

/* ---- Connections --------------------------------------------------------------------------- */

static void connect_later(struct etcd_watch *w, const char *why)
{
    if (w->state == WATCH_STANDING && clock_mono() - w->standing_since >= PAUSE_MAX_MS)
        w->n_failures = 0;
    w->n_failures++;
    cut_off(w);
    w->state = WATCH_PAUSED;
    (void)utf8_clean(w->why, sizeof(w->why), str_from(why));
    set_timer(w, backoff_delay(&pauses, w->n_failures, &w->e->rng));
}

static void connect_elsewhere(struct etcd_watch *w, const char *why)
{
    etcd_endpoints_failed(&w->e->endpoints, w->ask.endpoint, clock_mono());
    connect_later(w, why);
}

static void connect_now(struct etcd_watch *w)
{
    mono_ms now = clock_mono();
    int endpoint = etcd_endpoints_pick(&w->e->endpoints, 0, now);

    assert(endpoint >= 0 && !w->ask.post.handle);
    buf_clear(&w->body);
    etcd_encode_watch(&w->cfg, w->next_revision, &w->body);
    w->ask.body = buf_str(&w->body);
    w->state = WATCH_CONNECTING;
    if (!buf_ok(&w->body) ||
        etcd_ask_begin(&w->ask, (unsigned)endpoint, now + w->e->request_timeout_ms)) {
        connect_later(w, "out of memory");
        return;
    }
    set_timer(w, w->e->request_timeout_ms);
}

static void on_timer(evutil_socket_t fd, short events, void *ctx)
{
    struct etcd_watch *w = ctx;

    (void)fd;
    (void)events;
    switch (w->state) {
    case WATCH_PAUSED:
        connect_now(w);
        break;
    case WATCH_CONNECTING:
        connect_elsewhere(w, "the watch did not begin in time");
        break;
    case WATCH_STANDING:
        /* Perhaps there was nothing to tell: no reason to blame the endpoint. */
        connect_later(w, "nothing was heard for too long");
        break;
    case WATCH_BROKEN:
        break;
    }
}

/* ---- What comes ---------------------------------------------------------------------------- */

/* With a new token, once; a member that lags behind may not know that one yet. */
static void renew(struct etcd_watch *w, const char *why)
{
    etcd_stream_reset(&w->stream);
    if (!etcd_ask_renew(&w->ask)) {
        connect_later(w, why);
        return;
    }
    w->state = WATCH_CONNECTING;
    set_timer(w, w->e->request_timeout_ms);
}

static void on_fault(struct etcd_ask *a, const struct etcd_fault *fault)
{
    struct etcd_watch *w = a->ctx;
    bool is_garbage = fault->rc == ERR_PROTOCOL && w->state == WATCH_STANDING;
    bool is_stale = fault->cure == ETCD_CURE_TOKEN && w->e->user;

    if (is_stale) {
        renew(w, fault->text);
    } else if (fault->rc == ERR_NOMEM) {
        connect_later(w, fault->text);
    } else if (fault->cure == ETCD_CURE_ENDPOINT && !is_garbage) {
        connect_elsewhere(w, fault->text);
    } else {
        tell_broken(w, fault->rc, 0, fault->text);
    }
}

static bool on_message(struct etcd_watch *w, const struct etcd_message *m)
{
    if (m->compact_revision) {
        tell_broken(w, ERR_NOT_FOUND, m->compact_revision, "the revision was compacted away");
        return false;
    }
    if (m->is_created) {
        etcd_endpoints_good(&w->e->endpoints, w->ask.endpoint);
        w->state = WATCH_STANDING;
        w->standing_since = clock_mono();
        if (!w->next_revision)
            w->next_revision = m->revision + 1;
        if (!tell_created(w, m->revision))
            return false;
        w->why[0] = '\0';
    }
    set_timer(w, w->e->watch_idle_ms);
    if (m->n_events == 0)
        return true;
    w->next_revision = m->events[m->n_events - 1].kv.mod_revision + 1;
    return tell_events(w, m);
}

static void on_data(struct etcd_ask *a)
{
    struct etcd_watch *w = a->ctx;
    struct etcd_fault fault = {0};
    struct etcd_message m;
    struct str object;
    int rc;

    if (a->post.http_status != 200)
        return; /* on_answer reads it when it is whole */
    rc = etcd_stream_push(&w->stream, buf_str(&a->post.answer));
    buf_clear(&a->post.answer);
    while (!rc && (rc = etcd_stream_next(&w->stream, ETCD_EVENT_MAX, &object)) == 1) {
        rc = etcd_decode_message(&w->decoder, object, &m, &fault);
        if (!rc && !on_message(w, &m))
            return; /* w may be gone now */
    }
    if (!rc)
        return;
    if (!fault.rc) /* the stream's own */
        fault = (struct etcd_fault){
            .rc = rc == ERR_NOMEM ? ERR_NOMEM : ERR_PROTOCOL,
            .cure = rc == ERR_PROTOCOL ? ETCD_CURE_ENDPOINT : ETCD_CURE_NONE,
            .text = "the stream is not etcd's, or a message of it is too big",
        };
    on_fault(a, &fault);
}

static void on_answer(struct etcd_ask *a)
{
    struct etcd_watch *w = a->ctx;
    struct etcd_fault fault = {0};

    if (a->post.http_status == 200) {
        connect_elsewhere(w, "the server ended the stream");
        return;
    }
    (void)etcd_decode_refusal(&w->decoder, a->post.http_status, buf_str(&a->post.answer), &fault);
    on_fault(a, &fault);
}

/* ---- The owner's functions ----------------------------------------------------------------- */

int etcd_watch_start(struct etcd *e, const struct etcd_watch_config *cfg, struct etcd_watch **ret)
{
    assert(cfg->prefix.len > 0 && cfg->on_events && cfg->on_broken);
    struct etcd_watch *w = calloc(1, sizeof(*w));
    char *prefix = malloc(cfg->prefix.len);
    if (!w || !prefix) {
        free(w);
        free(prefix);
        return ERR_NOMEM;
    }
    memcpy(prefix, cfg->prefix.p, cfg->prefix.len);
    w->e = e;
    w->cfg = *cfg;
    w->prefix = prefix;
    w->cfg.prefix.p = prefix;
    w->next_revision = cfg->start_revision;
    w->ask = (struct etcd_ask){
        .e = e,
        .path = ETCD_PATH_WATCH,
        .max_answer = UNREAD_MAX,
        .is_stream = true,
        .on_answer = on_answer,
        .on_data = on_data,
        .on_fault = on_fault,
        .ctx = w,
    };
    (void)evtimer_assign(&w->timer, e->base, on_timer, w); /* fails for a wrong event type only */
    set_timer(w, 0);
    e->n_watches++;
    *ret = w;
    return 0;
}

void etcd_watch_stop(struct etcd_watch *w)
{
    if (!w)
        return;
    assert(!w->is_stopped && w->e->n_watches > 0);
    cut_off(w);
    w->e->n_watches--;
    w->is_stopped = true;
    if (!w->is_calling)
        watch_free(w);
}
