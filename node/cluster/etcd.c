/* SPDX-License-Identifier: Apache-2.0 */
/* The client and its calls. A flight is one call under way: it asks an endpoint, and the next one
 * while the fault is the endpoint's and time is left. */
#include "node/cluster/etcd.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "node/cluster/etcd_internal.h"

struct etcd_flight {
    struct etcd_ask ask;
    struct etcd_call *call;
    struct buf body;
    mono_ms until;
    uint32_t tried; /* endpoints, by bit */
    struct etcd_flight *prev;
    struct etcd_flight *next;
};

/* ---- The client ---------------------------------------------------------------------------- */

static int check_config(const struct etcd_config *cfg, struct err *err)
{
    if (cfg->n_endpoints < 1 || cfg->n_endpoints > ETCD_ENDPOINTS_MAX)
        return err_set(err, ERR_INVALID, "1 to %d endpoints are needed", ETCD_ENDPOINTS_MAX);
    for (size_t i = 0; i < cfg->n_endpoints; i++) {
        int rc = post_check_origin(cfg->endpoints[i], err);
        if (rc) {
            err_wrap(err, "%s", cfg->endpoints[i]);
            return rc;
        }
    }
    if (!cfg->cert_file != !cfg->key_file)
        return err_set(err, ERR_INVALID,
                       "a client certificate needs its key, and a key its "
                       "certificate");
    if (!cfg->user != !cfg->password)
        return err_set(err, ERR_INVALID, "a user needs a password, and a password its user");
    if (cfg->user && (!utf8_valid(str_from(cfg->user)) || !utf8_valid(str_from(cfg->password))))
        return err_set(err, ERR_INVALID, "user and password have to be UTF-8");
    return 0;
}

static bool copy(char **dst, const char *src)
{
    *dst = src ? strdup(src) : NULL;
    return !src || *dst;
}

static int etcd_init(struct etcd *e, const struct etcd_config *cfg)
{
    e->request_timeout_ms = cfg->request_timeout_ms;
    e->watch_idle_ms = cfg->watch_idle_ms;
    random_bytes(&e->rng, sizeof(e->rng));
    if (!copy(&e->user, cfg->user) || !copy(&e->password, cfg->password) ||
        !copy(&e->ca_file, cfg->ca_file) || !copy(&e->cert_file, cfg->cert_file) ||
        !copy(&e->key_file, cfg->key_file))
        return ERR_NOMEM;
    if (etcd_endpoints_init(&e->endpoints, cfg->endpoints, (unsigned)cfg->n_endpoints))
        return ERR_NOMEM;
    struct posts_config posts = {
        .ca_file = e->ca_file, .cert_file = e->cert_file, .key_file = e->key_file};
    return posts_new(e->base, &posts, &e->posts);
}

int etcd_new(struct event_base *base, const struct etcd_config *cfg, struct etcd **ret,
             struct err *err)
{
    assert(cfg->request_timeout_ms > 0 && cfg->watch_idle_ms > 0);
    int rc = check_config(cfg, err);
    if (rc)
        return rc;
    struct etcd *e = calloc(1, sizeof(*e));
    if (!e)
        return err_set(err, ERR_NOMEM, "out of memory");
    e->base = base;
    if (etcd_init(e, cfg)) {
        etcd_free(e);
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    *ret = e;
    return 0;
}

void etcd_free(struct etcd *e)
{
    if (!e)
        return;
    assert(e->n_watches == 0);
    etcd_flights_free(e);
    posts_free(e->posts);
    etcd_endpoints_fini(&e->endpoints);
    etcd_decoder_fini(&e->decoder);
    if (e->password)
        explicit_bzero(e->password, strlen(e->password));
    free(e->user);
    free(e->password);
    free(e->ca_file);
    free(e->cert_file);
    free(e->key_file);
    free(e->authorization);
    free(e);
}

/* ---- Flights ------------------------------------------------------------------------------- */

static void flight_free(struct etcd_flight *f)
{
    struct etcd *e = f->ask.e;

    if (f->prev)
        f->prev->next = f->next;
    else if (e->flights == f)
        e->flights = f->next;
    if (f->next)
        f->next->prev = f->prev;
    f->call->flight = NULL;
    etcd_ask_fini(&f->ask);
    buf_fini(&f->body);
    free(f);
}

void etcd_flights_free(struct etcd *e)
{
    while (e->flights)
        flight_free(e->flights);
}

/* The answer lives in the client's decoder, which nothing touches inside on_done. */
static void end(struct etcd_flight *f, const struct etcd_fault *fault)
{
    struct etcd_call *c = f->call;

    c->rc = fault->rc;
    if (c->rc)
        (void)err_set(&c->err, c->rc, "%s: %s", etcd_ask_url(&f->ask), fault->text);
    flight_free(f);
    c->on_done(c); /* c may be gone now */
}

/* Each endpoint that is left gets the same share of what time is left. Returns ERR_NOT_FOUND when
 * there is no endpoint or no time left, ERR_NOMEM. */
static int try_next(struct etcd_flight *f)
{
    struct etcd_endpoints *all = &f->ask.e->endpoints;
    mono_ms now = clock_mono();
    int i = etcd_endpoints_pick(all, f->tried, now);
    unsigned n_left = all->n - (unsigned)__builtin_popcount(f->tried);

    if (i < 0 || now >= f->until)
        return ERR_NOT_FOUND;
    return etcd_ask_begin(&f->ask, (unsigned)i, now + (f->until - now + n_left - 1) / n_left);
}

static void on_fault(struct etcd_ask *a, const struct etcd_fault *fault)
{
    struct etcd_flight *f = a->ctx;
    struct etcd_fault last = *fault; /* of the endpoint that the error will name */
    bool is_stale = fault->cure == ETCD_CURE_TOKEN;

    if (is_stale && etcd_ask_renew(a))
        return;
    if (fault->cure == ETCD_CURE_ENDPOINT)
        etcd_endpoints_failed(&a->e->endpoints, a->endpoint, clock_mono());
    /* A member that lags behind does not know a new token yet; another one may. */
    if (fault->cure == ETCD_CURE_ENDPOINT || (is_stale && a->e->user)) {
        f->tried |= (uint32_t)1 << a->endpoint;
        int rc = try_next(f);
        if (!rc)
            return;
        if (rc == ERR_NOMEM)
            last = (struct etcd_fault){.rc = rc, .text = "out of memory"};
    }
    end(f, &last);
}

static void on_answer(struct etcd_ask *a)
{
    struct etcd_flight *f = a->ctx;
    struct etcd_fault fault = {0};

    if (etcd_decode_answer(&a->e->decoder, f->call, a->post.http_status, buf_str(&a->post.answer),
                           &f->call->answer, &fault)) {
        on_fault(a, &fault);
        return;
    }
    etcd_endpoints_good(&a->e->endpoints, a->endpoint);
    end(f, &fault);
}

int etcd_start(struct etcd *e, struct etcd_call *call)
{
    int64_t timeout_ms = call->timeout_ms ? call->timeout_ms : e->request_timeout_ms;

    assert(!call->flight && call->on_done && timeout_ms > 0);
    struct etcd_flight *f = calloc(1, sizeof(*f));
    if (!f)
        return ERR_NOMEM;
    call->answer = (struct etcd_answer){0};
    call->err = (struct err){0};
    f->call = call;
    f->until = clock_mono() + timeout_ms;
    etcd_encode_call(call, &f->body);
    f->ask = (struct etcd_ask){
        .e = e,
        .path = etcd_path(call->op),
        .body = buf_str(&f->body),
        .max_answer = ETCD_ANSWER_MAX,
        .on_answer = on_answer,
        .on_fault = on_fault,
        .ctx = f,
    };
    if (!buf_ok(&f->body) || try_next(f)) {
        flight_free(f);
        return ERR_NOMEM;
    }
    call->flight = f;
    f->next = e->flights;
    if (f->next)
        f->next->prev = f;
    e->flights = f;
    return 0;
}

void etcd_cancel(struct etcd_call *call)
{
    if (call->flight)
        flight_free(call->flight);
}
