/* SPDX-License-Identifier: Apache-2.0 */
/* Each member has a queue. While a call to it is out, hints gather; when it is back the next call
 * takes them all. A call that fails loses its hints, and a queue that is full takes no more: the
 * member's scans and readings find what they were about. The body is signed with the cluster's
 * secret. */
#include "node/forward.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "node/api/uri.h"
#include "node/node_internal.h"

#define FORWARD_TIMEOUT_MS 2000

struct peer {
    struct dispatch_request request; /* first: on_done gets it */
    struct forward *forward;
    char name[MEMBER_NAME_MAX + 1];
    struct buf waiting; /* the hints' JSON texts, with commas between them */
    size_t n_waiting;
    bool services;   /* it is to read them */
    struct buf body; /* of the call that is out */
    struct buf url;
    bool is_out;
};

struct forward {
    struct node *node;
    struct peer *peers[VIEW_MEMBERS_MAX]; /* owned */
    size_t n;
};

int forward_new(struct node *n, struct forward **ret)
{
    struct forward *f = calloc(1, sizeof(*f));

    if (!f)
        return ERR_NOMEM;
    f->node = n;
    *ret = f;
    return 0;
}

void forward_free(struct forward *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->n; i++) {
        buf_fini(&f->peers[i]->waiting);
        buf_fini(&f->peers[i]->body);
        buf_fini(&f->peers[i]->url);
        free(f->peers[i]);
    }
    free(f);
}

static bool has_something(const struct peer *p)
{
    return p->n_waiting || p->services;
}

/* Names come and go with the pods that bear them: when all places are taken, one that is idle gets
 * the new name. NULL: there is none, or no memory. */
static struct peer *peer_of(struct forward *f, struct str name)
{
    struct peer *p = NULL;

    for (size_t i = 0; i < f->n; i++) {
        if (str_eqz(name, f->peers[i]->name))
            return f->peers[i];
        if (!f->peers[i]->is_out && !has_something(f->peers[i]))
            p = f->peers[i];
    }
    if (f->n < VIEW_MEMBERS_MAX) {
        p = calloc(1, sizeof(*p));
        if (p) {
            p->forward = f;
            f->peers[f->n++] = p;
        }
    }
    if (p)
        (void)member_set_text(p->name, sizeof(p->name), name);
    return p;
}

void forward_add(struct forward *f, const struct hint *h)
{
    struct node *n = f->node;
    struct str owner = sched_owner(n->sched, h->service_name, h->shard);
    struct peer *p;

    if (!n->cfg->cluster_secret || !owner.p || str_eqz(owner, n->cfg->node_name))
        return;
    p = peer_of(f, owner);
    if (!p || p->n_waiting == HINTS_MAX) {
        counter_add(&n->counters.hints_dropped, 1);
        return;
    }
    if (p->n_waiting++)
        buf_addc(&p->waiting, ',');
    buf_addz(&p->waiting, "{\"serviceName\":");
    json_put_string(&p->waiting, h->service_name);
    buf_addf(&p->waiting,
             ",\"shard\":%d,\"lane\":%d,\"id\":%" PRId64 ",\"attempt\":%d,\"time\":%" PRId64 "}",
             h->shard, h->lane, h->id, h->attempt, h->next_attempt_time);
}

void forward_services(struct forward *f)
{
    struct node *n = f->node;
    struct members_snapshot view;

    if (!n->cfg->cluster_secret || !n->members || members_snapshot(n->members, &view))
        return;
    for (size_t i = 0; i < view.n; i++) {
        struct str name = str_from(view.members[i].name);
        struct peer *p = str_eqz(name, n->cfg->node_name) ? NULL : peer_of(f, name);

        if (p)
            p->services = true;
    }
    free(view.members);
    forward_flush(f);
}

/* ---- Calls --------------------------------------------------------------------------------- */

static void peer_send(struct peer *p);

static void on_done(struct dispatch_request *r)
{
    struct peer *p = (struct peer *)r;
    struct node *n = p->forward->node;

    p->is_out = false;
    if (r->answer.http_status != 204)
        counter_add(&n->counters.hints_failed, 1);
    if (has_something(p))
        peer_send(p);
}

int forward_url(struct node *n, struct buf *dst, struct str name, const char *path, struct str body)
{
    char signature[SIGN_TEXT_MAX];
    int64_t stamp = store_clock_now(&n->clock) / 1000;
    const char *address = members_address(n->members, name);
    int rc;

    if (!n->cfg->cluster_secret)
        return ERR_INVALID;
    if (!address)
        return ERR_NOT_FOUND;
    rc = forward_signature(n->cfg, name, str_from(path), stamp, body, signature);
    if (rc)
        return rc;
    buf_clear(dst);
    buf_addf(dst, "http://%s%s?stamp=%" PRId64 "&signature=", address, path, stamp);
    uri_encode(dst, str_from(signature));
    buf_addc(dst, '\0');
    return buf_ok(dst) ? 0 : ERR_NOMEM;
}

static void peer_send(struct peer *p)
{
    static const char *const headers[] = {"Content-Type: application/json",
                                          "User-Agent: JobFlow/" JF_VERSION};
    struct node *n = p->forward->node;
    struct err err;
    bool ok;

    buf_clear(&p->body);
    buf_addz(&p->body, "{\"hints\":[");
    buf_adds(&p->body, buf_str(&p->waiting));
    buf_addz(&p->body, p->services ? "],\"services\":true}" : "]}");
    ok = buf_ok(&p->waiting) && buf_ok(&p->body) &&
         !forward_url(n, &p->url, str_from(p->name), "/internal/hints", buf_str(&p->body));
    buf_clear(&p->waiting);
    p->n_waiting = 0;
    p->services = false;
    if (!ok) {
        counter_add(&n->counters.hints_failed, 1);
        return;
    }
    p->request = (struct dispatch_request){.url = p->url.data,
                                           .headers = headers,
                                           .n_headers = sizeof(headers) / sizeof(headers[0]),
                                           .body = buf_str(&p->body),
                                           .timeout_ms = FORWARD_TIMEOUT_MS,
                                           .send_by = INT64_MAX,
                                           .on_done = on_done};
    p->is_out = !dispatch_start(n->dispatch, &p->request, &err);
    if (!p->is_out)
        counter_add(&n->counters.hints_failed, 1);
}

void forward_flush(struct forward *f)
{
    for (size_t i = 0; i < f->n; i++) {
        if (has_something(f->peers[i]) && !f->peers[i]->is_out)
            peer_send(f->peers[i]);
    }
}
