/* SPDX-License-Identifier: Apache-2.0 */
/* etcd forgets its tokens when it restarts and after some minutes, and it may get users while we
 * are at work; so each question is prepared to fetch a token first, and to do it again when the
 * answer says that it is out of date. All questions share the token. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "node/cluster/etcd_internal.h"

#define TOKEN_ANSWER_MAX ((size_t)64 << 10)

/* With hasleader a member that loses its leader ends the stream, which would hear nothing any more.
 * A single call is better off without it: the member waits for the next leader. */
static const char has_leader[] = "Grpc-Metadata-hasleader: true";

static void forget_token(struct etcd *e)
{
    free(e->authorization);
    e->authorization = NULL;
    e->has_no_users = false;
    e->token_gen++;
}

static bool keep_token(struct etcd *e, struct str token)
{
    struct buf header = BUF_INIT;

    buf_addz(&header, "Authorization: ");
    buf_adds(&header, token);
    forget_token(e);
    e->authorization = buf_steal(&header);
    return e->authorization != NULL;
}

static void fault_of_post(const struct post *p, struct etcd_fault *ret)
{
    bool is_ours = p->rc == ERR_TOO_BIG || p->rc == ERR_NOMEM;

    *ret = (struct etcd_fault){
        .rc = p->rc == ERR_TOO_BIG ? ERR_PROTOCOL : p->rc,
        .cure = is_ours ? ETCD_CURE_NONE : ETCD_CURE_ENDPOINT,
    };
    (void)utf8_clean(ret->text, sizeof(ret->text), str_from(p->failure));
}

static void on_data(struct post *p)
{
    struct etcd_ask *a = p->ctx;

    a->on_data(a);
}

static void on_answer(struct post *p)
{
    struct etcd_ask *a = p->ctx;
    struct etcd_fault fault;

    if (p->rc == 0) {
        a->on_answer(a);
        return;
    }
    fault_of_post(p, &fault);
    a->on_fault(a, &fault);
}

static int post_to(struct etcd_ask *a, const char *path, struct str body, bool is_stream)
{
    int64_t left_ms = a->until - clock_mono();
    size_t n_headers = 0;

    left_ms = left_ms > 0 ? left_ms : 1;
    buf_clear(&a->url);
    buf_addz(&a->url, etcd_ask_url(a));
    buf_addz(&a->url, path);
    buf_addc(&a->url, '\0');
    if (!buf_ok(&a->url))
        return ERR_NOMEM;
    a->post.ctx = a;
    a->post.url = a->url.data;
    memset(a->post.headers, 0, sizeof(a->post.headers));
    if (is_stream)
        a->post.headers[n_headers++] = has_leader;
    a->post.headers[n_headers] = a->authorization;
    a->post.body = body;
    a->post.connect_timeout_ms = left_ms;
    a->post.timeout_ms = is_stream ? 0 : left_ms;
    return post_start(a->e->posts, &a->post);
}

static int ask(struct etcd_ask *a)
{
    free(a->authorization);
    a->authorization = NULL;
    a->token_gen = a->e->token_gen;
    if (a->e->authorization && !(a->authorization = strdup(a->e->authorization)))
        return ERR_NOMEM;
    a->post.on_done = on_answer;
    a->post.on_data = a->is_stream ? on_data : NULL;
    a->post.max_answer = a->max_answer;
    return post_to(a, a->path, a->body, a->is_stream);
}

/* The answer to the question for a token. */
static int read_token(struct etcd_ask *a, struct etcd_fault *fault)
{
    struct etcd *e = a->e;
    struct str token;

    if (a->post.rc) {
        fault_of_post(&a->post, fault);
        return fault->rc;
    }
    int rc = etcd_decode_token(&e->decoder, a->post.http_status, buf_str(&a->post.answer), &token,
                               fault);
    if (!rc && !keep_token(e, token)) {
        *fault = (struct etcd_fault){.rc = ERR_NOMEM, .text = "out of memory"};
        return ERR_NOMEM;
    }
    e->has_no_users = rc && fault->cure == ETCD_CURE_NO_TOKEN;
    return e->has_no_users ? 0 : rc;
}

static void on_token(struct post *p)
{
    struct etcd_ask *a = p->ctx;
    struct etcd_fault fault = {0};
    int rc = read_token(a, &fault);

    if (!rc && (rc = ask(a)))
        fault = (struct etcd_fault){.rc = rc, .text = "out of memory"};
    if (!rc)
        return;
    if (fault.cure == ETCD_CURE_TOKEN) /* a token is what was asked for */
        fault.cure = ETCD_CURE_NONE;
    a->on_fault(a, &fault);
}

static int authenticate(struct etcd_ask *a)
{
    buf_clear(&a->authenticate);
    etcd_encode_authenticate(a->e->user, a->e->password, &a->authenticate);
    if (!buf_ok(&a->authenticate))
        return ERR_NOMEM;
    free(a->authorization);
    a->authorization = NULL;
    a->post.on_done = on_token;
    a->post.on_data = NULL;
    a->post.max_answer = TOKEN_ANSWER_MAX;
    return post_to(a, ETCD_PATH_AUTHENTICATE, buf_str(&a->authenticate), false);
}

static int begin(struct etcd_ask *a)
{
    struct etcd *e = a->e;

    return e->user && !e->authorization && !e->has_no_users ? authenticate(a) : ask(a);
}

int etcd_ask_begin(struct etcd_ask *a, unsigned endpoint, mono_ms until)
{
    assert(endpoint < a->e->endpoints.n);
    a->endpoint = endpoint;
    a->until = until;
    a->is_renewed = false;
    return begin(a);
}

bool etcd_ask_renew(struct etcd_ask *a)
{
    if (!a->e->user || a->is_renewed)
        return false;
    etcd_ask_stop(a);
    a->is_renewed = true;
    if (a->token_gen == a->e->token_gen) /* else somebody has renewed it meanwhile */
        forget_token(a->e);
    return begin(a) == 0;
}

void etcd_ask_stop(struct etcd_ask *a)
{
    post_stop(&a->post);
}

void etcd_ask_fini(struct etcd_ask *a)
{
    etcd_ask_stop(a);
    post_fini(&a->post);
    buf_fini(&a->url);
    buf_fini(&a->authenticate);
    free(a->authorization);
}
