/* SPDX-License-Identifier: Apache-2.0 */
#include "node/lease.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "node/lease_internal.h"

#define LEASE_TICK_MS 500
#define LEASE_AGAIN_MS 20      /* between two looks at whether the claims are back */
#define LEASE_LATE_MAX_MS 2000 /* a poll waits for what is out so much longer at most */
#define LEASE_LATE_MIN_MS 500  /* even one that would not wait */
#define LEASE_DOUBT_MS 2000
#define LEASE_CLAIM_MS 1000 /* a member that asks while there are due tasks waits so long */
#define PULLS_IDLE_MAX 256  /* services that are remembered between polls */
#define LEASE_DOUBTS 2      /* readings of the services before one is unknown */

static void must(int rc)
{
    if (rc)
        abort(); /* an answer that never comes is worse than a node that is gone */
}

static void timer_set(struct event *timer, int64_t ms)
{
    struct timeval tv = {ms / 1000, ms % 1000 * 1000};

    must(evtimer_add(timer, &tv));
}

static void list_append(struct poll **head, struct poll **tail, struct poll *p)
{
    p->next = NULL;
    p->prev = *tail;
    *(p->prev ? &p->prev->next : head) = p;
    *tail = p;
}

/* ---- The end of a poll --------------------------------------------------------------------- */

static void poll_unlink(struct poll *p)
{
    struct poll **head = p->pull ? &p->pull->head : &p->leases->watchers;

    *(p->prev ? &p->prev->next : head) = p->next;
    if (p->next)
        p->next->prev = p->prev;
    else if (p->pull)
        p->pull->tail = p->prev;
    if (p->pull)
        p->pull->n_polls--;
    p->leases->n_polls--;
    if (p->in_steps) {
        struct poll **at = &p->leases->in_steps;

        while (*at != p)
            at = &(*at)->next_in_steps;
        *at = p->next_in_steps;
    }
}

void poll_answer(struct poll *p, enum lease_outcome outcome)
{
    struct lease_query *q = p->query;
    struct pull *u = p->pull;
    struct node *n = p->leases->node;

    sched_lease_end(n->sched, store_clock_now(&n->clock), p->lease);
    if (p->call)
        call_forget(p->call);
    (void)evtimer_del(&p->timer);
    poll_unlink(p);
    free(p);
    q->outcome = q->n ? LEASE_OK : outcome;
    q->holder = NULL;
    mailbox_post(q->reply, &q->mail);
    if (u)
        pull_release(u);
}

static bool is_claiming(const struct poll *p)
{
    return p->lease && sched_lease_is_claiming(p->lease);
}

void poll_end_in(struct poll *p, int64_t ms)
{
    timer_set(&p->timer, ms);
}

/* Its time is over. What is claimed for it by now is worth a moment more, but no more than it has
 * waited already, and none where it has tasks: they would wait, too. */
static void poll_over(struct poll *p)
{
    int64_t late = clock_mono() - p->until;
    int64_t most = p->query->wait_ms < LEASE_LATE_MIN_MS ? LEASE_LATE_MIN_MS : p->query->wait_ms;

    if (p->in_steps) {
        poll_answer(p, LEASE_OK);
        return;
    }
    p->is_over = true;
    if (is_claiming(p) || most > LEASE_LATE_MAX_MS)
        most = LEASE_LATE_MAX_MS;
    if ((is_claiming(p) || p->call) && late < most)
        timer_set(&p->timer, LEASE_AGAIN_MS);
    else
        poll_answer(p, p->doubt);
}

static void on_poll_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    poll_over(arg);
}

/* ---- The beginning ------------------------------------------------------------------------- */

static struct pull *pull_find(struct leases *l, struct str name)
{
    struct pull *u = l->pulls;

    while (u && !str_eqz(name, u->name))
        u = u->next;
    return u;
}

static bool is_idle(const struct pull *u)
{
    return !u->n_polls && !u->n_calls;
}

static void pull_remove(struct pull *u)
{
    struct pull **at = &u->leases->pulls;

    while (*at != u)
        at = &(*at)->next;
    *at = u->next;
    pull_free(u);
}

/* Makes place for another service where too many are kept for what is known of them. */
static void forget_oldest(struct leases *l)
{
    struct pull *oldest = NULL;
    size_t n = 0;

    for (struct pull *u = l->pulls; u; u = u->next) {
        if (!is_idle(u))
            continue;
        n++;
        if (!oldest || u->asked_at < oldest->asked_at)
            oldest = u;
    }
    if (n >= PULLS_IDLE_MAX)
        pull_remove(oldest);
}

static struct pull *pull_get(struct leases *l, struct str name)
{
    struct pull *u = pull_find(l, name);

    if (u || name.len >= sizeof(u->name))
        return u;
    forget_oldest(l);
    u = calloc(1, sizeof(*u));
    if (!u)
        return NULL;
    u->leases = l;
    memcpy(u->name, name.p, name.len);
    u->owners_at = INT64_MIN;
    u->next = l->pulls;
    l->pulls = u;
    return u;
}

void pull_release(struct pull *u)
{
    if (is_idle(u) && !u->task_bytes)
        pull_remove(u);
}

static void answer_now(struct lease_query *q, enum lease_outcome outcome)
{
    q->outcome = outcome;
    mailbox_post(q->reply, &q->mail);
}

int lease_start(struct poll *p)
{
    struct node *n = p->leases->node;
    const struct lease_ask ask = {.service_name = str_from(p->pull->name),
                                  .want = step_size(p),
                                  .visibility_ms = p->query->visibility_ms,
                                  .ctx = p};
    int rc = sched_lease(n->sched, store_clock_now(&n->clock), &ask, &p->lease);

    p->n_wanted = p->query->n + ask.want;
    if (!rc)
        runner_later(n);
    return rc;
}

static enum lease_outcome outcome_of(int rc)
{
    return rc == ERR_NOT_FOUND  ? LEASE_UNKNOWN
           : rc == ERR_CONFLICT ? LEASE_NOT_PULL
                                : LEASE_STOPPING;
}

void poll_rest(struct poll *p)
{
    int rc;

    assert(!p->call && !p->lease);
    if (p->is_over) {
        poll_answer(p, LEASE_OK);
        return;
    }
    rc = lease_start(p);
    if (rc)
        poll_answer(p, outcome_of(rc)); /* the service was changed while it waited */
    else
        owners_watch(p->pull);
}

void poll_next(struct poll *p)
{
    struct node *n = p->leases->node;
    struct pull *u = p->pull;

    while (p->n_left && !p->is_over) {
        uint32_t place = p->place % (uint32_t)(u->n_owners + 1);

        p->place = place + 1;
        p->n_left--;
        if (place ? owner_ask(u, &u->owners[place - 1], p, false)
                  : sched_pull_ready(n->sched, str_from(u->name)) > 0 && !lease_start(p))
            return;
    }
    poll_rest(p);
}

static void poll_begin(struct poll *p)
{
    struct pull *u = p->pull;

    if (p->query->kind == LEASE_POLL) {
        owners_refresh(u);
        p->place = u->turn++;
        p->n_left = u->n_owners ? (uint32_t)u->n_owners + 1 : 0;
    }
    poll_next(p);
}

/* Until the end of the wait; long enough for a pass over the scheduler. */
static void wait_arm(struct poll *p)
{
    int64_t left = p->until - clock_mono();

    timer_set(&p->timer, left < LEASE_AGAIN_MS ? LEASE_AGAIN_MS : left);
}

/* Begins once the service is known to be one that can be leased from. It may be that this node has
 * not heard of it yet, or of its change: then it reads the services again. */
static void poll_check(struct poll *p)
{
    struct node *n = p->leases->node;
    int rc = sched_can_lease(n->sched, str_from(p->pull->name));

    if (!rc) {
        p->n_doubts = 0;
        p->doubt = LEASE_OK;
        wait_arm(p);
        poll_begin(p);
        return;
    }
    p->doubt = outcome_of(rc);
    if (p->doubt == LEASE_STOPPING || p->n_doubts == LEASE_DOUBTS) {
        poll_answer(p, p->doubt);
        return;
    }
    if (!p->n_doubts++)
        timer_set(&p->timer, LEASE_DOUBT_MS);
    house_read_services(n->house); /* the last reading may have begun before the question came */
}

static struct poll *poll_new(struct leases *l, struct lease_query *q, struct pull *u)
{
    struct poll *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    p->leases = l;
    p->pull = u;
    p->query = q;
    p->until = clock_mono() + q->wait_ms;
    q->holder = p;
    must(evtimer_assign(&p->timer, l->node->base, on_poll_timer, p));
    wait_arm(p);
    l->n_polls++;
    if (!evtimer_pending(&l->tick, NULL))
        timer_set(&l->tick, LEASE_TICK_MS);
    return p;
}

static void watch_begin(struct leases *l, struct lease_query *q)
{
    struct poll *p;

    q->n_ready = sched_pull_ready(l->node->sched, q->service_name);
    p = q->n_ready ? NULL : poll_new(l, q, NULL);
    if (!p) {
        answer_now(q, LEASE_OK);
        return;
    }
    p->next = l->watchers;
    if (p->next)
        p->next->prev = p;
    l->watchers = p;
}

void leases_ask(struct leases *l, struct lease_query *q)
{
    const struct config *cfg = l->node->cfg;
    struct pull *u;
    struct poll *p = NULL;

    q->holder = NULL;
    if (l->stopping) {
        answer_now(q, LEASE_STOPPING);
        return;
    }
    if (l->n_polls >= cfg->pull_max_polls) {
        answer_now(q, LEASE_TOO_MANY);
        return;
    }
    if (q->kind == LEASE_WATCH) {
        watch_begin(l, q);
        return;
    }
    if (q->kind == LEASE_CLAIM && !sched_pull_ready(l->node->sched, q->service_name)) {
        answer_now(q, LEASE_OK);
        return;
    }
    if (q->kind == LEASE_CLAIM)
        q->wait_ms = LEASE_CLAIM_MS;
    u = pull_get(l, q->service_name);
    if (u && u->n_polls < cfg->pull_max_polls_per_service)
        p = poll_new(l, q, u);
    if (!p) {
        answer_now(q, LEASE_TOO_MANY);
        return;
    }
    list_append(&u->head, &u->tail, p);
    u->n_polls++;
    u->asked_at = clock_mono();
    poll_check(p);
}

void leases_cancel(struct leases *l, struct lease_query *q)
{
    if (!q->holder)
        return;
    LOG(l->node->log, LOG_DEBUG, "lease.hung_up", "the worker has gone",
        F_STR("service", q->service_name), F_STR("worker", q->worker));
    poll_answer(q->holder, LEASE_OK);
}

/* ---- What happens around ------------------------------------------------------------------- */

void leases_pass(struct leases *l)
{
    uint64_t news = sched_pull_news(l->node->sched);
    struct poll *next;

    steps_pass(l);
    if (news == l->news)
        return;
    l->news = news;
    for (struct poll *p = l->watchers; p; p = next) {
        next = p->next;
        p->query->n_ready = sched_pull_ready(l->node->sched, p->query->service_name);
        if (p->query->n_ready)
            poll_answer(p, LEASE_OK);
    }
}

void leases_services(struct leases *l)
{
    struct pull *next_pull;
    struct poll *next;

    for (struct pull *u = l->pulls; u; u = next_pull) {
        next_pull = u->next;
        u->n_calls++; /* keeps it */
        for (struct poll *p = u->head; p; p = next) {
            next = p->next;
            if (p->n_doubts) {
                poll_check(p);
            } else if (p->lease && !p->query->n && !is_claiming(p)) {
                sched_lease_end(l->node->sched, store_clock_now(&l->node->clock), p->lease);
                p->lease = NULL;
                poll_rest(p); /* ends the wait where the service is pulled no more */
            }
        }
        u->n_calls--;
        pull_release(u);
    }
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct leases *l = arg;

    (void)fd;
    (void)what;
    for (struct pull *u = l->pulls; u; u = u->next)
        owners_watch(u);
    if (l->n_polls)
        timer_set(&l->tick, LEASE_TICK_MS);
}

/* ---- Life ---------------------------------------------------------------------------------- */

int leases_new(struct node *n, struct leases **ret)
{
    struct leases *l = calloc(1, sizeof(*l));

    if (!l)
        return ERR_NOMEM;
    l->node = n;
    must(evtimer_assign(&l->tick, n->base, on_tick, l));
    *ret = l;
    return 0;
}

static void end_polls(struct leases *l, bool all)
{
    struct pull *next_pull;
    struct poll *next;

    for (struct poll *p = l->watchers; p; p = next) {
        next = p->next;
        poll_answer(p, LEASE_OK);
    }
    for (struct pull *u = l->pulls; u; u = next_pull) {
        next_pull = u->next;
        u->n_calls++; /* keeps it */
        for (struct poll *p = u->head; p; p = next) {
            next = p->next;
            p->until = clock_mono();
            if (all || !p->call)
                poll_answer(p, LEASE_OK);
            else
                poll_over(p);
        }
        u->n_calls--;
        pull_release(u);
    }
}

void leases_stop(struct leases *l)
{
    l->stopping = true;
    end_polls(l, false);
}

void leases_close(struct leases *l)
{
    if (!l)
        return;
    l->stopping = true;
    end_polls(l, true);
    (void)evtimer_del(&l->tick);
}

void leases_free(struct leases *l)
{
    if (!l)
        return;
    assert(!l->n_polls);
    calls_free(l);
    while (l->pulls) {
        struct pull *u = l->pulls;

        l->pulls = u->next;
        pull_free(u);
    }
    free(l);
}
