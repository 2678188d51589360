/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/dispatch_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <event2/event.h>

static const char *const one_header[] = {"Content-Type: application/json"};

struct dispatch_config usual_config(void)
{
    return (struct dispatch_config){
        .connect_timeout_ms = 5000,
        .low_speed_ms = 20000,
        .max_answer = 64 * 1024,
        .refresh_ms = 30000,
        .max_connections = 256,
    };
}

void use_config(struct fixture *f, const struct dispatch_config *cfg)
{
    struct err err = {0};

    dispatch_free(f->d);
    f->d = NULL;
    assert_int_equal(dispatch_new(f->base, cfg, &f->d, &err), 0);
}

static int setup(void **state, const char *scheme)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct dispatch_config cfg = usual_config();

    assert_non_null(f);
    f->scheme = scheme;
    f->base = event_base_new();
    f->server = scripted_server_new();
    assert_non_null(f->base);
    assert_non_null(f->server);
    use_config(f, &cfg);
    *state = f;
    return 0;
}

int setup_short_way(void **state)
{
    return setup(state, "http");
}

int setup_libcurl(void **state)
{
    return setup(state, "HTTP");
}

int teardown(void **state)
{
    struct fixture *f = *state;

    dispatch_free(f->d);
    scripted_server_free(f->server);
    event_base_free(f->base);
    free(f);
    return 0;
}

static void keep_text(char *dst, size_t cap, struct str s)
{
    (void)snprintf(dst, cap, STR_FMT, STR_ARG(s));
}

static void on_done(struct dispatch_request *r)
{
    struct call *c = r->ctx;
    const struct answer *a = &r->answer;

    assert_false(c->done);
    c->done = true;
    c->f->n_done++;
    c->status = a->http_status;
    c->sent = a->sent;
    c->cut = a->body_cut;
    c->body_len = a->body.len;
    keep_text(c->body, sizeof(c->body), a->body);
    keep_text(c->retry_after, sizeof(c->retry_after),
              a->retry_after.p ? a->retry_after : STR("(none)"));
    keep_text(c->failure, sizeof(c->failure), a->failure);
    assert_true(r->elapsed_us >= 0);
    if (c->then)
        start(c->then);
    (void)event_base_loopbreak(c->f->base);
}

void prepare_url(struct call *c, struct fixture *f, const char *url)
{
    memset(c, 0, sizeof(*c));
    c->f = f;
    (void)snprintf(c->url, sizeof(c->url), "%s", url);
    c->r = (struct dispatch_request){
        .url = c->url,
        .headers = one_header,
        .n_headers = 1,
        .body = STR("{\"n\":1}"),
        .timeout_ms = DEADLINE_MS,
        .send_by = INT64_MAX,
        .on_done = on_done,
        .ctx = c,
    };
}

void prepare(struct call *c, struct fixture *f, const char *path)
{
    char url[128];

    (void)snprintf(url, sizeof(url), "%s://127.0.0.1:%u%s", f->scheme,
                   (unsigned)scripted_server_port(f->server), path);
    prepare_url(c, f, url);
}

void start(struct call *c)
{
    struct err err = {0};

    if (dispatch_start(c->f->d, &c->r, &err))
        fail_msg("%s: %s", c->url, err.text);
    assert_false(c->done);
}

void run_until_done(struct fixture *f, unsigned n)
{
    mono_ms give_up = clock_mono() + DEADLINE_MS;

    while (f->n_done < n) {
        struct timeval tick = {.tv_sec = 1};
        (void)event_base_loopexit(f->base, &tick);
        (void)event_base_dispatch(f->base);
        if (clock_mono() > give_up)
            fail_msg("%u of %u requests ended in time", f->n_done, n);
    }
    f->n_done = 0;
}

void run(struct call *c)
{
    start(c);
    run_until_done(c->f, 1);
    assert_true(c->done);
    assert_int_equal(dispatch_in_flight(c->f->d), 0);
}

void run_path(struct call *c, struct fixture *f, const char *path)
{
    prepare(c, f, path);
    run(c);
}

struct scripted_counts counts_of(struct fixture *f)
{
    struct scripted_counts counts;

    scripted_server_counts(f->server, &counts);
    return counts;
}

void assert_failed(const struct call *c, const char *says)
{
    assert_true(c->sent);
    assert_int_equal(c->status, 0);
    if (!strcasestr(c->failure, says))
        fail_msg("%s: '%s' does not say '%s'", c->url, c->failure, says);
}

void run_until_closed(struct fixture *f, unsigned n)
{
    mono_ms give_up = clock_mono() + DEADLINE_MS;

    while (counts_of(f).closed < n) {
        (void)event_base_loop(f->base, EVLOOP_NONBLOCK);
        assert_true(clock_mono() < give_up);
    }
}
