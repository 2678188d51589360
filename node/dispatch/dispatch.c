/* SPDX-License-Identifier: Apache-2.0 */
/* libcurl on libevent. libcurl says which sockets to watch (watch.c) and when to call it at the
 * latest (on_timeout_change); both lead to dispatch_advance, where requests end. So nothing is
 * freed while libcurl is on the stack, and on_done may start new requests. */
#include "node/dispatch/dispatch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <event2/event.h>
#include <strings.h>

#include "node/dispatch/dispatch_internal.h"
#include "node/dispatch/plain.h"

/* How often answers are looked at that stand still. */
#define STALL_CHECK_MIN_MS 10
#define STALL_CHECK_MAX_MS 1000

static void running_add(struct dispatch *d, struct dispatch_slot *s)
{
    s->prev = NULL;
    s->next = d->running;
    if (s->next)
        s->next->prev = s;
    d->running = s;
}

static void running_remove(struct dispatch *d, struct dispatch_slot *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        d->running = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

static struct dispatch_slot *idle_take(struct dispatch *d)
{
    struct dispatch_slot *s = d->idle;

    if (!s)
        return slot_new(d);
    d->idle = s->next;
    d->n_idle--;
    return s;
}

static void idle_put(struct dispatch *d, struct dispatch_slot *s)
{
    slot_reset(s);
    if (d->n_idle >= DISPATCH_IDLE_SLOTS_MAX) {
        slot_free(s);
        return;
    }
    s->next = d->idle;
    d->idle = s;
    d->n_idle++;
}

void dispatch_ended(struct dispatch *d, struct dispatch_request *r)
{
    assert(d->n_in_flight > 0);
    d->n_in_flight--;
    d->is_ending = true;
    r->on_done(r);
    d->is_ending = false;
}

static void end_one(struct dispatch *d, struct dispatch_slot *s, CURLcode code)
{
    struct plain_call *call = s->call;
    int fd = -1;

    if (call && code == CURLE_OK && (fd = slot_steal(s)) < 0) {
        slot_fail(s, "no socket: %s", strerror(errno));
        code = CURLE_COULDNT_CONNECT;
    }
    (void)curl_multi_remove_handle(d->multi, s->easy); /* it is in there */
    running_remove(d, s);
    if (fd >= 0) {
        plain_connected(call, fd);
    } else {
        slot_answer(s, code);
        if (call)
            plain_unconnected(call);
        else
            dispatch_ended(d, s->r); /* it may be gone now */
    }
    idle_put(d, s);
}

static void end_done(struct dispatch *d)
{
    CURLMsg *msg;
    int n_left;

    while ((msg = curl_multi_info_read(d->multi, &n_left))) {
        char *slot = NULL;
        CURLcode code = msg->data.result;
        assert(msg->msg == CURLMSG_DONE);
        (void)curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &slot); /* set in slot_new */
        end_one(d, (struct dispatch_slot *)slot, code);
    }
}

void dispatch_timer_set(struct event *timer, int64_t ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};

    if (evtimer_add(timer, &tv))
        event_active(timer, EV_TIMEOUT, 0);
}

void dispatch_advance(struct dispatch *d, curl_socket_t fd, int what)
{
    int n_running;

    (void)curl_multi_socket_action(d->multi, fd, what, &n_running); /* it tells by messages */
    end_done(d);
}

static void on_timer(evutil_socket_t fd, short events, void *ctx)
{
    struct dispatch *d = ctx;

    (void)fd;
    (void)events;
    d->timer_at = INT64_MAX;
    dispatch_advance(d, CURL_SOCKET_TIMEOUT, 0);
}

/* libcurl moves its next time with nearly each request that begins or ends, forwards as a rule. The
 * timer stays where it is then: called too early, libcurl says again when it wants to be. But
 * libevent's clock stands still while the machine sleeps, and ours does not. */
static int on_timeout_change(CURLM *multi, long timeout_ms, void *ctx)
{
    struct dispatch *d = ctx;
    mono_ms now = clock_mono();
    mono_ms at = timeout_ms < 0 ? INT64_MAX : now + timeout_ms;

    (void)multi;
    if (timeout_ms < 0)
        (void)evtimer_del(&d->timer);
    else if (at < d->timer_at || d->timer_at < now - DISPATCH_OVERDUE_MS)
        dispatch_timer_set(&d->timer, timeout_ms);
    else
        return 0;
    d->timer_at = at;
    return 0;
}

static void stall_timer_set(struct dispatch *d)
{
    int64_t ms = d->low_speed_ms / 4;

    ms = ms < STALL_CHECK_MIN_MS ? STALL_CHECK_MIN_MS : ms;
    dispatch_timer_set(&d->stall_timer, ms > STALL_CHECK_MAX_MS ? STALL_CHECK_MAX_MS : ms);
}

/* libcurl's own low-speed limit would count the time that a handler works before it answers, too.
 */
static void on_stall_check(evutil_socket_t fd, short events, void *ctx)
{
    struct dispatch *d = ctx;
    mono_ms now = clock_mono();
    struct dispatch_slot *next;

    (void)fd;
    (void)events;
    for (struct dispatch_slot *s = d->running; s; s = next) {
        next = s->next;
        if (s->is_heard) {
            s->heard_at = now;
            s->is_heard = false;
        } else if (s->is_answered && now - s->heard_at >= d->low_speed_ms) {
            slot_fail(s, "the answer stood still for %lld ms", (long long)(now - s->heard_at));
            end_one(d, s, CURLE_OPERATION_TIMEDOUT);
        } else {
            slot_nudge(s);
        }
    }
    plain_check_stalls(d->plain, now);
    if (d->n_in_flight)
        stall_timer_set(d);
}

static int multi_init(struct dispatch *d, const struct dispatch_config *cfg)
{
    int rc = 0;

    d->multi = curl_multi_init();
    if (!d->multi)
        return ERR_NOMEM;
    rc |= (int)curl_multi_setopt(d->multi, CURLMOPT_SOCKETFUNCTION, watch_on_change);
    rc |= (int)curl_multi_setopt(d->multi, CURLMOPT_SOCKETDATA, d);
    rc |= (int)curl_multi_setopt(d->multi, CURLMOPT_TIMERFUNCTION, on_timeout_change);
    rc |= (int)curl_multi_setopt(d->multi, CURLMOPT_TIMERDATA, d);
    rc |= (int)curl_multi_setopt(d->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
    rc |= (int)curl_multi_setopt(d->multi, CURLMOPT_MAXCONNECTS, (long)cfg->max_connections);
    rc |= (int)curl_multi_setopt(d->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS,
                                 (long)cfg->max_connections);
    rc |= (int)curl_multi_setopt(d->multi, CURLMOPT_MAX_HOST_CONNECTIONS, (long)cfg->max_per_host);
    assert(rc == 0); /* these fail for an unknown option only */
    return 0;
}

static int dispatch_init(struct dispatch *d, const struct dispatch_config *cfg, struct err *err)
{
    d->connect_timeout_ms = cfg->connect_timeout_ms;
    d->low_speed_ms = cfg->low_speed_ms;
    d->max_answer = cfg->max_answer;
    d->refresh_s = (long)(cfg->refresh_ms / 1000);
    if (cfg->ca_file && !(d->ca_file = strdup(cfg->ca_file)))
        return err_set(err, ERR_NOMEM, "out of memory");
    d->plain = plain_new(d, cfg);
    if (!d->plain || multi_init(d, cfg))
        return err_set(err, ERR_NOMEM, "out of memory");
    return address_rules_init(&d->rules, cfg->forbidden, cfg->n_forbidden, err);
}

int dispatch_new(struct event_base *base, const struct dispatch_config *cfg, struct dispatch **ret,
                 struct err *err)
{
    assert(cfg->connect_timeout_ms > 0 && cfg->low_speed_ms > 0 && cfg->max_connections > 0);
    assert(cfg->refresh_ms >= 1000); /* libcurl counts in seconds, and 0 is another thing there */
    struct dispatch *d = calloc(1, sizeof(*d));
    if (!d)
        return err_set(err, ERR_NOMEM, "out of memory");
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) {
        free(d);
        return err_set(err, ERR_NOMEM, "libcurl could not be set up");
    }
    d->base = base;
    d->timer_at = INT64_MAX;
    (void)evtimer_assign(&d->timer, base, on_timer, d); /* fails for a wrong event type only */
    (void)evtimer_assign(&d->stall_timer, base, on_stall_check, d);
    int rc = dispatch_init(d, cfg, err);
    if (rc) {
        dispatch_free(d);
        return rc;
    }
    *ret = d;
    return 0;
}

void dispatch_free(struct dispatch *d)
{
    struct dispatch_slot *s;

    if (!d)
        return;
    assert(!d->is_ending);
    while ((s = d->running)) {
        running_remove(d, s);
        (void)curl_multi_remove_handle(d->multi, s->easy);
        slot_free(s);
    }
    while ((s = d->idle)) {
        d->idle = s->next;
        slot_free(s);
    }
    plain_free(d->plain);
    (void)curl_multi_cleanup(d->multi); /* closes the connections */
    watches_fini(d);
    (void)evtimer_del(&d->timer);
    (void)evtimer_del(&d->stall_timer);
    address_rules_fini(&d->rules);
    free(d->ca_file);
    free(d);
    curl_global_cleanup();
}

static bool is_http_url(const char *url)
{
    return !strncasecmp(url, "http://", 7) || !strncasecmp(url, "https://", 8);
}

int dispatch_by_libcurl(struct dispatch *d, struct dispatch_request *r, struct plain_call *call,
                        int64_t timeout_ms)
{
    struct dispatch_slot *s = idle_take(d);

    if (!s)
        return ERR_NOMEM;
    if (slot_prepare(s, r, call, timeout_ms) || curl_multi_add_handle(d->multi, s->easy)) {
        idle_put(d, s);
        return ERR_NOMEM;
    }
    running_add(d, s);
    return 0;
}

int dispatch_start(struct dispatch *d, struct dispatch_request *r, struct err *err)
{
    struct plain_target target;

    assert(r->on_done);
    if (!is_http_url(r->url))
        return err_set(err, ERR_INVALID, "the URL has to begin with http:// or https://");
    if (r->n_headers > DISPATCH_HEADERS_MAX)
        return err_set(err, ERR_INVALID, "more than %d headers", DISPATCH_HEADERS_MAX);
    d->n_in_flight++;
    if (plain_split(r->url, &target) ? plain_start(d->plain, r, &target)
                                     : dispatch_by_libcurl(d, r, NULL, r->timeout_ms)) {
        d->n_in_flight--;
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    if (!evtimer_pending(&d->stall_timer, NULL))
        stall_timer_set(d);
    return 0;
}

uint32_t dispatch_in_flight(const struct dispatch *d)
{
    return d->n_in_flight;
}
