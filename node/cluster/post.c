/* SPDX-License-Identifier: Apache-2.0 */
/* libcurl says which sockets to watch (on_socket_change) and when to call it at the latest
 * (on_timeout_change); both lead to advance(), which first lets libcurl work and then, with libcurl
 * off the stack, hands out what came. A callback may stop or start any post, so each look for the
 * next thing to hand out begins anew. */
#include "node/cluster/post.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>
#include <event2/event.h>
#include <event2/event_struct.h>

#define MAX_IDLE_CONNECTIONS 8L
#define CA_CACHE_S 60L /* new certificates are seen after so long */

struct posts {
    struct event_base *base; /* borrowed */
    struct posts_config cfg;
    CURLM *multi;
    struct event timer;
    struct post_handle *running; /* doubly linked */
};

struct post_handle {
    struct posts *s;
    struct post *p;
    CURL *easy;
    struct post_handle *prev;
    struct post_handle *next;
    bool has_data;
    bool is_too_big;
    char curl_error[CURL_ERROR_SIZE];
    struct curl_slist headers[POST_HEADERS_MAX + 2];
};

struct watched_socket {
    struct event event;
    struct posts *s;
};

/* ---- One handle ---------------------------------------------------------------------------- */

static size_t on_write(char *data, size_t size, size_t n, void *ctx)
{
    struct post_handle *h = ctx;
    struct buf *answer = &h->p->answer;
    size_t len = size * n;
    long status = 0;

    h->is_too_big = len > h->p->max_answer - answer->len;
    if (h->is_too_big)
        return 0;
    (void)curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &status); /* cannot fail */
    h->p->http_status = (int)status;
    buf_add(answer, data, len);
    h->has_data = true;
    return buf_ok(answer) ? len : 0;
}

/* libcurl reads the list and does not keep it. */
static struct curl_slist *link_headers(struct post_handle *h)
{
    static char json[] = "Content-Type: application/json";
    static char no_expect[] = "Expect:";
    struct curl_slist *node = h->headers;

    node->data = json;
    for (size_t i = 0; i < POST_HEADERS_MAX && h->p->headers[i]; i++) {
        node->next = node + 1;
        node++;
        node->data = (char *)h->p->headers[i];
    }
    node->next = node + 1;
    node[1] = (struct curl_slist){.data = no_expect};
    return h->headers;
}

/* For a row of options: `rc` is not 0 in the end if one could not be set. */
#define SET(easy, option, value) (rc |= (int)curl_easy_setopt((easy), (option), (value)))

static int set_tls(CURL *e, const struct posts_config *cfg)
{
    int rc = 0;

    SET(e, CURLOPT_CA_CACHE_TIMEOUT, CA_CACHE_S);
    if (cfg->ca_file) {
        SET(e, CURLOPT_CAINFO, cfg->ca_file);
        SET(e, CURLOPT_CAPATH, NULL);
    }
    if (cfg->cert_file)
        SET(e, CURLOPT_SSLCERT, cfg->cert_file);
    if (cfg->key_file)
        SET(e, CURLOPT_SSLKEY, cfg->key_file);
    return rc;
}

static int set_constants(CURL *e)
{
    int rc = 0;

    SET(e, CURLOPT_NOSIGNAL, 1L);
    SET(e, CURLOPT_QUICK_EXIT, 1L); /* a time-out does not wait for the resolver's thread */
    SET(e, CURLOPT_PROTOCOLS_STR, "http,https");
    SET(e, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    SET(e, CURLOPT_FOLLOWLOCATION, 0L);
    SET(e, CURLOPT_PROXY, ""); /* none, whatever the environment says */
    SET(e, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(e, CURLOPT_TCP_NODELAY, 1L);
    SET(e, CURLOPT_TCP_KEEPALIVE, 1L);
    SET(e, CURLOPT_POST, 1L);
    return rc;
}

static int set_request(struct post_handle *h)
{
    struct post *p = h->p;
    CURL *e = h->easy;
    int rc = 0;

    SET(e, CURLOPT_PRIVATE, h);
    SET(e, CURLOPT_ERRORBUFFER, h->curl_error);
    SET(e, CURLOPT_WRITEFUNCTION, on_write);
    SET(e, CURLOPT_WRITEDATA, h);
    SET(e, CURLOPT_URL, p->url);
    SET(e, CURLOPT_HTTPHEADER, link_headers(h));
    SET(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)p->body.len);
    SET(e, CURLOPT_POSTFIELDS, p->body.p ? p->body.p : ""); /* not copied */
    SET(e, CURLOPT_CONNECTTIMEOUT_MS, (long)p->connect_timeout_ms);
    SET(e, CURLOPT_TIMEOUT_MS, (long)p->timeout_ms);
    return rc;
}

static void handle_free(struct post_handle *h)
{
    if (!h)
        return;
    curl_easy_cleanup(h->easy);
    free(h);
}

/* Takes it out of the multi handle and away from its post. */
static void handle_end(struct post_handle *h)
{
    (void)curl_multi_remove_handle(h->s->multi, h->easy); /* it is in there */
    if (h->prev)
        h->prev->next = h->next;
    else
        h->s->running = h->next;
    if (h->next)
        h->next->prev = h->prev;
    h->p->handle = NULL;
}

int post_start(struct posts *s, struct post *p)
{
    assert(!p->handle && p->on_done && p->connect_timeout_ms > 0 && p->timeout_ms >= 0);
    struct post_handle *h = calloc(1, sizeof(*h));
    if (!h)
        return ERR_NOMEM;
    h->s = s;
    h->p = p;
    h->easy = curl_easy_init();
    buf_clear(&p->answer);
    p->rc = 0;
    p->http_status = 0;
    p->failure[0] = '\0';
    if (!h->easy || set_constants(h->easy) || set_tls(h->easy, &s->cfg) || set_request(h) ||
        curl_multi_add_handle(s->multi, h->easy)) {
        handle_free(h);
        return ERR_NOMEM;
    }
    p->handle = h;
    h->next = s->running;
    if (h->next)
        h->next->prev = h;
    s->running = h;
    return 0;
}

void post_stop(struct post *p)
{
    struct post_handle *h = p->handle;

    if (!h)
        return;
    handle_end(h);
    handle_free(h);
}

void post_fini(struct post *p)
{
    assert(!p->handle);
    buf_fini(&p->answer);
}

/* ---- The loop ------------------------------------------------------------------------------ */

static void hand_out_data(struct posts *s)
{
    struct post_handle *h = s->running;

    while (h) {
        if (!h->has_data || !h->p->on_data) {
            h = h->next;
            continue;
        }
        h->has_data = false;
        h->p->on_data(h->p); /* h may be gone now */
        h = s->running;
    }
}

static int rc_of(const struct post_handle *h, CURLcode code)
{
    if (code == CURLE_OK)
        return 0;
    if (h->is_too_big)
        return ERR_TOO_BIG;
    if (code == CURLE_OPERATION_TIMEDOUT)
        return ERR_TIMEOUT;
    return code == CURLE_OUT_OF_MEMORY || !buf_ok(&h->p->answer) ? ERR_NOMEM : ERR_UNAVAILABLE;
}

static void end_one(struct post_handle *h, CURLcode code)
{
    struct post *p = h->p;
    const char *why = h->curl_error[0] ? h->curl_error : curl_easy_strerror(code);
    long status = 0;

    (void)curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &status); /* cannot fail */
    p->http_status = (int)status;
    p->rc = rc_of(h, code);
    if (p->rc == ERR_TOO_BIG)
        why = "the answer is too big";
    if (p->rc)
        (void)utf8_clean(p->failure, sizeof(p->failure), str_from(why));
    handle_end(h);
    handle_free(h);
    p->on_done(p); /* p may be gone now */
}

static void advance(struct posts *s, curl_socket_t fd, int what)
{
    CURLMsg *msg;
    int n;

    (void)curl_multi_socket_action(s->multi, fd, what, &n); /* it tells by messages */
    hand_out_data(s);
    while ((msg = curl_multi_info_read(s->multi, &n))) {
        char *h = NULL;
        CURLcode code = msg->data.result;
        assert(msg->msg == CURLMSG_DONE);
        (void)curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &h); /* set in set_request */
        end_one((struct post_handle *)h, code);
    }
}

static void on_ready(evutil_socket_t fd, short events, void *ctx)
{
    struct watched_socket *w = ctx;
    int what =
        (events & EV_READ ? CURL_CSELECT_IN : 0) | (events & EV_WRITE ? CURL_CSELECT_OUT : 0);

    advance(w->s, fd, what); /* w may be gone now */
}

static void on_timer(evutil_socket_t fd, short events, void *ctx)
{
    (void)fd;
    (void)events;
    advance(ctx, CURL_SOCKET_TIMEOUT, 0);
}

/* A timer that cannot be added for want of memory fires at once instead of never. */
static int on_timeout_change(CURLM *multi, long ms, void *ctx)
{
    struct posts *s = ctx;
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};

    (void)multi;
    if (ms < 0)
        (void)evtimer_del(&s->timer);
    else if (evtimer_add(&s->timer, &tv))
        event_active(&s->timer, EV_TIMEOUT, 0);
    return 0;
}

static void unwatch(struct posts *s, curl_socket_t fd, struct watched_socket *w)
{
    if (!w)
        return;
    (void)event_del(&w->event); /* fails only for an event that was never assigned */
    free(w);
    (void)curl_multi_assign(s->multi, fd, NULL); /* fails only for a socket it does not know */
}

/* A socket that cannot be watched, for want of memory, is left to its post's time-outs: an error
 * from here would end all the others as well. */
static int on_socket_change(CURL *easy, curl_socket_t fd, int what, void *ctx, void *watched)
{
    struct posts *s = ctx;
    short events =
        (short)((what & CURL_POLL_IN ? EV_READ : 0) | (what & CURL_POLL_OUT ? EV_WRITE : 0));

    (void)easy;
    unwatch(s, fd, watched);
    if (what == CURL_POLL_REMOVE)
        return 0;
    struct watched_socket *w = calloc(1, sizeof(*w));
    if (!w)
        return 0;
    w->s = s;
    (void)event_assign(&w->event, s->base, fd, (short)(events | EV_PERSIST), on_ready, w);
    if (event_add(&w->event, NULL) || curl_multi_assign(s->multi, fd, w)) {
        (void)event_del(&w->event);
        free(w);
    }
    return 0;
}

int posts_new(struct event_base *base, const struct posts_config *cfg, struct posts **ret)
{
    struct posts *s = calloc(1, sizeof(*s));
    int rc = 0;

    if (!s)
        return ERR_NOMEM;
    s->base = base;
    s->cfg = *cfg;
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) {
        free(s);
        return ERR_NOMEM;
    }
    (void)evtimer_assign(&s->timer, base, on_timer, s); /* fails for a wrong event type only */
    s->multi = curl_multi_init();
    if (!s->multi) {
        posts_free(s);
        return ERR_NOMEM;
    }
    rc |= (int)curl_multi_setopt(s->multi, CURLMOPT_SOCKETFUNCTION, on_socket_change);
    rc |= (int)curl_multi_setopt(s->multi, CURLMOPT_SOCKETDATA, s);
    rc |= (int)curl_multi_setopt(s->multi, CURLMOPT_TIMERFUNCTION, on_timeout_change);
    rc |= (int)curl_multi_setopt(s->multi, CURLMOPT_TIMERDATA, s);
    rc |= (int)curl_multi_setopt(s->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
    rc |= (int)curl_multi_setopt(s->multi, CURLMOPT_MAXCONNECTS, MAX_IDLE_CONNECTIONS);
    assert(rc == 0); /* these fail for an unknown option only */
    *ret = s;
    return 0;
}

void posts_free(struct posts *s)
{
    if (!s)
        return;
    assert(!s->running);
    (void)curl_multi_cleanup(s->multi); /* closes the connections */
    (void)evtimer_del(&s->timer);
    free(s);
    curl_global_cleanup();
}

/* ---- Addresses ----------------------------------------------------------------------------- */

static bool has_part(CURLU *u, CURLUPart what, const char *other_than)
{
    char *text = NULL;
    bool has = curl_url_get(u, what, &text, 0) == CURLUE_OK && strcmp(text, other_than) != 0;

    curl_free(text);
    return has;
}

int post_check_origin(const char *url, struct err *err)
{
    bool is_http = !strncmp(url, "http://", 7) || !strncmp(url, "https://", 8);
    const char *host = strstr(url, "://");
    CURLU *u = curl_url();

    if (!u)
        return err_set(err, ERR_NOMEM, "out of memory");
    bool ok = is_http && host[3] != '/' && host[3] != '\0' &&
              curl_url_set(u, CURLUPART_URL, url, CURLU_DISALLOW_USER) == CURLUE_OK &&
              !has_part(u, CURLUPART_PATH, "/") && !has_part(u, CURLUPART_QUERY, "") &&
              !has_part(u, CURLUPART_FRAGMENT, "");
    curl_url_cleanup(u);
    return ok ? 0
              : err_set(err, ERR_INVALID, "an endpoint is http://host:port or https://host:port");
}
