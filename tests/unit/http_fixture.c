/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/http_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/http_client.h"

static void answer_text(struct http_request *req, int status, struct str body)
{
    struct http_answer a = {.status = status, .content_type = "text/plain", .body = body};
    http_answer(req, &a);
}

static void on_released(struct mail *m)
{
    struct held *h = (struct held *)m;
    answer_text(h->req, 200, h->req->body.len > 0 ? h->req->body : STR("held"));
    free(h);
}

static void hold(struct fixture *f, struct http_request *req)
{
    struct held *h = calloc(1, sizeof(*h));
    if (!h)
        abort();
    h->mail.on_delivery = on_released;
    h->req = req;
    pthread_mutex_lock(&f->lock);
    *f->last = h;
    f->last = &h->next;
    pthread_mutex_unlock(&f->lock);
    atomic_fetch_add(&f->n_held, 1);
}

static void on_request(void *ctx, struct http_request *req)
{
    struct fixture *f = ctx;
    atomic_fetch_add(&f->n_requests, 1);
    if (str_eqz(req->path, "/held"))
        hold(f, req);
    else if (str_eqz(req->path, "/big"))
        answer_text(req, 200, (struct str){f->big, BIG_ANSWER});
    else if (str_eqz(req->path, "/echo"))
        answer_text(req, 200, req->body);
    else
        answer_text(req, 404, req->path);
}

struct http_config fixture_config(void)
{
    return (struct http_config){
        .listen = "127.0.0.1:0",
        .threads = 2,
        .max_connections = 200,
        .max_header = 4096,
        .max_body = 100000,
        .max_memory = (size_t)64 * 1024 * 1024,
        .header_timeout_ms = 10000,
        .body_timeout_ms = 10000,
        .idle_timeout_ms = 10000,
        .write_timeout_ms = 10000,
        .handler = on_request,
    };
}

void fixture_start(struct fixture *f, const struct http_config *cfg)
{
    struct http_config with_ctx = *cfg;
    struct err err = {0};
    *f = (struct fixture){.lock = PTHREAD_MUTEX_INITIALIZER};
    f->last = &f->first;
    f->big = malloc(BIG_ANSWER);
    assert_non_null(f->big);
    memset(f->big, 'b', BIG_ANSWER);
    with_ctx.ctx = f;
    if (http_server_start(&with_ctx, &f->server, &err))
        fail_msg("cannot start: %s", err.text);
    f->address = http_server_address(f->server);
}

void fixture_stop(struct fixture *f)
{
    http_server_stop(f->server);
    free(f->big);
}

struct wait {
    struct fixture *f;
    unsigned n;
};

static bool holds_n(void *ctx)
{
    struct wait *w = ctx;
    return atomic_load(&w->f->n_held) == w->n;
}

void fixture_wait_held(struct fixture *f, unsigned n)
{
    wait_until(holds_n, &(struct wait){f, n});
}

void fixture_release(struct fixture *f)
{
    pthread_mutex_lock(&f->lock);
    struct held *h = f->first;
    assert_non_null(h);
    f->first = h->next;
    if (!f->first)
        f->last = &f->first;
    pthread_mutex_unlock(&f->lock);
    atomic_fetch_sub(&f->n_held, 1);
    mailbox_post(h->req->mailbox, &h->mail);
}

static bool connections_are(void *ctx)
{
    struct wait *w = ctx;
    return http_server_connections(w->f->server) == w->n;
}

void fixture_wait_connections(struct fixture *f, uint32_t n)
{
    wait_until(connections_are, &(struct wait){f, n});
}
