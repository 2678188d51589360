/* SPDX-License-Identifier: Apache-2.0 */
/* What polls ask of other members: due tasks now (CLAIM), and to be told when there are some
 * (WATCH). Each call is short or one of a few, so deliveries keep the connections that they need.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "node/lease_answer.h"
#include "node/lease_internal.h"

#define CALL_TIMEOUT_MS 4000   /* a member that is asked for tasks answers within 3 s */
#define WATCH_MS 5000          /* after that a watch is asked for anew */
#define OWNERS_MS 1000         /* so long a look at who owns counts */
#define BACK_OFF_MS 50         /* after news that came to nothing */
#define BACK_OFF_FAILED_MS 500 /* after a call that failed */
#define ANSWER_MAX ((size_t)64 << 20)
#define OWNERS_MAX 64
#define READY STR("{\"ready\":")

struct peer_call {
    struct dispatch_request request; /* first: on_done gets it */
    struct peer_call *prev;          /* of all */
    struct peer_call *next;
    struct pull *pull;
    struct poll *poll; /* of a CLAIM; NULL once it waits no longer */
    bool by_news;
    mono_ms asked_at;
    char owner[MEMBER_NAME_MAX + 1];
    struct buf body;
    struct buf url;
};

static void call_free(struct peer_call *c)
{
    *(c->prev ? &c->prev->next : &c->pull->leases->calls) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    buf_fini(&c->body);
    buf_fini(&c->url);
    free(c);
}

void calls_free(struct leases *l)
{
    while (l->calls)
        call_free(l->calls);
}

void call_forget(struct peer_call *c)
{
    c->poll->call = NULL;
    c->poll = NULL;
}

void pull_free(struct pull *u)
{
    free(u->owners);
    free(u);
}

static struct owner *owner_find(struct pull *u, const char *name)
{
    for (size_t i = 0; i < u->n_owners; i++) {
        if (!strcmp(u->owners[i].name, name))
            return &u->owners[i];
    }
    return NULL;
}

/* ---- Calls --------------------------------------------------------------------------------- */

static bool call_start(struct peer_call *c, void (*on_done)(struct dispatch_request *r),
                       int64_t timeout_ms)
{
    static const char *const headers[] = {"Content-Type: application/json",
                                          "User-Agent: JobFlow/" JF_VERSION};
    struct node *n = c->pull->leases->node;
    struct err err;

    if (!buf_ok(&c->body) ||
        forward_url(n, &c->url, str_from(c->owner), "/internal/lease", buf_str(&c->body)))
        return false;
    c->request = (struct dispatch_request){.url = c->url.data,
                                           .headers = headers,
                                           .n_headers = sizeof(headers) / sizeof(headers[0]),
                                           .body = buf_str(&c->body),
                                           .timeout_ms = timeout_ms,
                                           .send_by = INT64_MAX,
                                           .max_answer = ANSWER_MAX,
                                           .on_done = on_done};
    return !dispatch_start(n->dispatch, &c->request, &err);
}

static struct peer_call *call_new(struct pull *u, const struct owner *o)
{
    struct peer_call *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->pull = u;
    c->next = u->leases->calls;
    if (c->next)
        c->next->prev = c;
    u->leases->calls = c;
    memcpy(c->owner, o->name, sizeof(c->owner));
    buf_addz(&c->body, "{\"service\":");
    json_put_stringz(&c->body, u->name);
    return c;
}

/* The member is left alone for a while. */
static void back_off(struct owner *o, int64_t ms)
{
    mono_ms at = clock_mono() + ms;

    if (at > o->back_at)
        o->back_at = at;
}

/* ---- Answers ------------------------------------------------------------------------------- */

static void on_claimed(struct dispatch_request *r)
{
    struct peer_call *c = (struct peer_call *)r;
    struct pull *u = c->pull;
    struct poll *p = c->poll;
    struct owner *o = owner_find(u, c->owner);
    struct lease_claims *claims = NULL;
    struct str tasks;
    bool whole = r->answer.http_status == 200 && !r->answer.body_cut;
    bool has_tasks =
        whole && lease_answer_read(u->leases->node->cfg, str_from(c->owner), str_from(u->name),
                                   r->answer.body, store_clock_now(&u->leases->node->clock), &tasks,
                                   &claims);
    bool ok = has_tasks || (whole && str_eq(r->answer.body, STR(LEASE_NO_TASKS)));

    if (o && c->by_news)
        o->n_asking--;
    if (o && !has_tasks)
        back_off(o, ok ? c->by_news * BACK_OFF_MS : BACK_OFF_FAILED_MS);
    if (p)
        p->call = NULL;
    if (p && has_tasks) {
        buf_adds(&p->query->body, tasks);
        p->query->claims = claims;
        p->query->hand_by = c->asked_at + u->leases->node->cfg->ghost_margin_ms;
        poll_answer(p, LEASE_OK);
    } else if (p) {
        poll_next(p);
    } else if (has_tasks) {
        leases_give_back(u->leases, claims);
    }
    call_free(c);
    u->n_calls--;
    pull_release(u);
}

/* ---- Questions ----------------------------------------------------------------------------- */

bool owner_ask(struct pull *u, struct owner *o, struct poll *p, bool by_news)
{
    const struct lease_query *q = p->query;
    struct peer_call *c;

    if (!o->listed || clock_mono() < o->back_at)
        return false;
    c = call_new(u, o);
    if (!c)
        return false;
    c->poll = p;
    c->by_news = by_news;
    c->asked_at = clock_mono();
    buf_addf(&c->body, ",\"maxTasks\":%" PRIu32 ",\"visibility\":%d", q->max_tasks,
             (int)q->visibility_ms);
    if (q->worker.p) {
        buf_addz(&c->body, ",\"worker\":");
        json_put_string(&c->body, q->worker);
    }
    buf_addc(&c->body, '}');
    if (!call_start(c, on_claimed, CALL_TIMEOUT_MS)) {
        back_off(o, BACK_OFF_FAILED_MS);
        call_free(c);
        return false;
    }
    p->call = c;
    u->n_calls++;
    o->n_asking += by_news;
    return true;
}

/* ---- Watches ------------------------------------------------------------------------------- */

static bool is_resting(const struct poll *p)
{
    return p->query->kind == LEASE_POLL && p->lease && !p->query->n && !p->is_over;
}

/* Polls that rest ask for what is due there: so many that it is taken. */
static void take_news(struct pull *u, struct owner *o, int64_t n_ready)
{
    struct node *n = u->leases->node;
    struct poll *next;

    for (struct poll *p = u->head; p && n_ready > 0; p = next) {
        next = p->next;
        if (!is_resting(p) || sched_lease_is_claiming(p->lease))
            continue;
        sched_lease_end(n->sched, store_clock_now(&n->clock), p->lease);
        p->lease = NULL;
        n_ready -= p->query->max_tasks;
        if (!owner_ask(u, o, p, true)) {
            poll_rest(p);
            return;
        }
    }
}

static void on_watched(struct dispatch_request *r)
{
    struct peer_call *c = (struct peer_call *)r;
    struct pull *u = c->pull;
    struct owner *o = owner_find(u, c->owner);
    struct str text = r->answer.body;
    int64_t n_ready = 0;

    if (o)
        o->watch = NULL;
    if (r->answer.http_status == 200 && text.len > READY.len + 1) {
        struct str number = {text.p + READY.len, text.len - READY.len - 1};

        if (!str_to_i64(number, &n_ready))
            n_ready = 0;
    } else if (o) {
        back_off(o, BACK_OFF_FAILED_MS);
    }
    if (o && n_ready > 0)
        take_news(u, o, n_ready);
    call_free(c);
    owners_watch(u);
    u->n_calls--;
    pull_release(u);
}

static void watch_start(struct pull *u, struct owner *o)
{
    struct peer_call *c = call_new(u, o);

    if (!c)
        return;
    buf_addf(&c->body, ",\"watch\":%d}", WATCH_MS);
    if (!call_start(c, on_watched, WATCH_MS + CALL_TIMEOUT_MS)) {
        back_off(o, BACK_OFF_FAILED_MS);
        call_free(c);
        return;
    }
    o->watch = c;
    u->n_calls++;
}

static bool has_resting(const struct pull *u)
{
    for (const struct poll *p = u->head; p; p = p->next) {
        if (is_resting(p))
            return true;
    }
    return false;
}

void owners_watch(struct pull *u)
{
    if (u->leases->stopping || !has_resting(u))
        return;
    owners_refresh(u);
    for (size_t i = 0; i < u->n_owners; i++) {
        struct owner *o = &u->owners[i];

        if (o->listed && !o->watch && !o->n_asking && clock_mono() >= o->back_at)
            watch_start(u, o);
    }
}

/* ---- Owners -------------------------------------------------------------------------------- */

static struct owner *owner_add(struct pull *u, struct str name)
{
    if (u->n_owners == u->cap_owners) {
        size_t cap = u->cap_owners ? u->cap_owners * 2 : 4;
        struct owner *owners = reallocarray(u->owners, cap, sizeof(*owners));

        if (!owners)
            return NULL; /* its tasks reach workers that poll there */
        u->owners = owners;
        u->cap_owners = cap;
    }
    struct owner *o = &u->owners[u->n_owners++];
    *o = (struct owner){.back_at = INT64_MIN};
    (void)member_set_text(o->name, sizeof(o->name), name);
    return o;
}

void owners_refresh(struct pull *u)
{
    struct node *n = u->leases->node;
    struct str names[OWNERS_MAX];
    mono_ms now = clock_mono();
    size_t n_names;
    size_t kept = 0;

    if (now < u->owners_at + OWNERS_MS && u->owners_at != INT64_MIN)
        return;
    u->owners_at = now;
    n_names = n->cfg->cluster_secret && n->members
                  ? sched_other_owners(n->sched, str_from(u->name), names, OWNERS_MAX)
                  : 0;
    for (size_t i = 0; i < u->n_owners; i++)
        u->owners[i].listed = false;
    for (size_t i = 0; i < n_names; i++) {
        char name[MEMBER_NAME_MAX + 1];
        struct owner *o;

        (void)member_set_text(name, sizeof(name), names[i]);
        o = owner_find(u, name);
        if (!o)
            o = owner_add(u, names[i]);
        if (o)
            o->listed = true;
    }
    for (size_t i = 0; i < u->n_owners; i++) {
        struct owner *o = &u->owners[i];

        if (o->listed || o->watch || o->n_asking)
            u->owners[kept++] = *o;
    }
    u->n_owners = kept;
}
