/* SPDX-License-Identifier: Apache-2.0 */
#include "node/parcel.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "node/parcel_internal.h"

#define TASKS_MIN 16
#define ENVELOPE_BYTES 400 /* of an envelope without its texts, about */

/* ---- Lists ---------------------------------------------------------------------------------- */

void parcel_list_add(struct parcel_list *l, struct parcel *q)
{
    q->next = NULL;
    q->prev = l->last;
    if (l->last)
        l->last->next = q;
    else
        l->first = q;
    l->last = q;
}

void parcel_list_remove(struct parcel_list *l, struct parcel *q)
{
    if (q->prev)
        q->prev->next = q->next;
    else
        l->first = q->next;
    if (q->next)
        q->next->prev = q->prev;
    else
        l->last = q->prev;
    q->prev = q->next = NULL;
}

void parcel_free(struct parcel *q)
{
    if (!q)
        return;
    outgoing_fini(&q->out);
    free(q->flights);
    free(q);
}

static void *must(void *p)
{
    if (!p)
        abort(); /* a claimed task must not be forgotten: safer dead, then rescued */
    return p;
}

static struct parcel *of_timer(struct heap_node *timer)
{
    return (struct parcel *)((char *)timer - offsetof(struct parcel, timer));
}

/* ---- The timer ------------------------------------------------------------------------------ */

/* Parcels become due with the event, never inside of parcels_add: the rest of a batch of claims
 * shall still come along. */
static void timer_arm(struct parcels *p)
{
    const struct heap_node *first = heap_first(&p->timers);
    int64_t wait_us = first ? first->key - clock_mono_us() : 0;

    p->is_armed = first != NULL;
    if (!first)
        return;
    wait_us = wait_us > 0 ? wait_us : 0;
    struct timeval tv = {wait_us / 1000000, wait_us % 1000000};
    if (event_add(p->event, &tv))
        abort(); /* a node that cannot wake up is safer dead */
}

/* The parcel no longer waits for its time. */
static void timer_remove(struct parcels *p, struct parcel *q)
{
    if (q->timer.pos)
        heap_remove(&p->timers, &q->timer);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct parcels *p = arg;
    int64_t now_us = clock_mono_us();
    struct heap_node *first;

    (void)fd;
    (void)what;
    while ((first = heap_first(&p->timers)) && first->key <= now_us) {
        struct parcel *q = of_timer(first);

        heap_remove(&p->timers, first);
        q->is_due = true;
        line_pump(p, q->line);
    }
    timer_arm(p);
}

/* ---- Lines ---------------------------------------------------------------------------------- */

static void line_follow(const struct parcels *p, struct line *l, const struct service *s)
{
    l->n_out_max = (uint32_t)(s->concurrency > 0 ? s->concurrency : p->node->cfg->concurrency);
    if (l->version == s->version)
        return;
    l->version = s->version;
    line_forget(l);
}

static struct line *line_get(struct parcels *p, const struct service *s)
{
    struct line *l = p->recent;
    char *name;

    if (!l || !str_eq(l->name, s->name)) {
        for (l = p->lines; l && !str_eq(l->name, s->name);)
            l = l->next;
    }
    if (!l) {
        l = must(calloc(1, sizeof(*l) + s->name.len));
        name = (char *)(l + 1);
        memcpy(name, s->name.p, s->name.len);
        l->name = (struct str){name, s->name.len};
        line_forget(l);
        l->next = p->lines;
        p->lines = l;
    }
    p->recent = l;
    line_follow(p, l, s);
    return l;
}

/* Takes it out of its line. */
static void line_take(struct parcels *p, struct line *l, struct parcel *q)
{
    timer_remove(p, q);
    parcel_list_remove(&l->gathered, q);
}

static bool may_leave(const struct service *s)
{
    return s && !s->paused && s->delivery == DELIVERY_BATCH;
}

static void line_give_back(struct parcels *p, struct line *l)
{
    struct parcel *q;

    while ((q = l->gathered.first)) {
        line_take(p, l, q);
        parcel_give_back(q);
    }
}

void line_pump(struct parcels *p, struct line *l)
{
    const struct service *s = service_table_get(&p->node->services, l->name);
    struct parcel *next;

    if (!may_leave(s)) {
        line_give_back(p, l);
        return;
    }
    for (struct parcel *q = l->gathered.first; q && l->n_out < l->n_out_max; q = next) {
        next = q->next;
        if (!q->is_full && !q->is_due)
            continue;
        line_take(p, l, q);
        parcel_send(q, s);
    }
}

/* ---- Gathering ------------------------------------------------------------------------------ */

void parcel_give_back(struct parcel *q)
{
    static const struct verdict unsent = {.kind = VERDICT_UNSENT, .retry_after_ms = -1};
    wall_ms now = store_clock_now(&q->parcels->node->clock);

    for (size_t i = 0; i < q->n; i++)
        deliver_end(q->flights[i], &unsent, 0, now);
    parcel_free(q);
}

static size_t envelope_bytes(const struct task *t)
{
    return ENVELOPE_BYTES + t->payload.len + t->biz_uuid.len + t->service_name.len + t->handler.len;
}

/* The one that gathers what the task is like; NULL when there is none with room for it. One without
 * room is full from now on. */
static struct parcel *find_parcel(struct line *l, const struct task *t, struct parcel_kind kind,
                                  int64_t timeout_ms, bool *ret_filled)
{
    for (struct parcel *q = l->gathered.last; q; q = q->prev) {
        if (q->is_full || q->timeout_ms != timeout_ms || q->kind.group != kind.group ||
            !str_eq(q->flights[0]->task->handler, t->handler))
            continue;
        if (q->bytes + envelope_bytes(t) <= l->max_bytes)
            return q;
        q->is_full = *ret_filled = true;
        return NULL;
    }
    return NULL;
}

/* Until when a parcel that begins with this task may gather. */
static int64_t due_us(const struct flight *f, const struct service *s, int64_t timeout_ms)
{
    int64_t now_us = clock_mono_us();
    int64_t wait_us = s->batch_wait_ms * INT64_C(1000);
    int64_t least_ms = f->send_by - now_us / 1000;

    if (timeout_ms < least_ms)
        least_ms = timeout_ms;
    if (wait_us > least_ms * 500) /* half of it */
        wait_us = least_ms > 0 ? least_ms * 500 : 0;
    return now_us + wait_us;
}

static struct parcel *parcel_new(struct parcels *p, struct line *l, struct parcel_kind kind,
                                 int64_t timeout_ms)
{
    struct parcel *q = must(calloc(1, sizeof(*q)));

    q->parcels = p;
    q->line = l;
    q->kind = kind;
    q->timeout_ms = timeout_ms;
    parcel_list_add(&l->gathered, q);
    return q;
}

static void put_flight(struct parcel *q, struct flight *f)
{
    assert(q->n < SERVICE_BATCH_MAX);
    if (q->n == q->cap) {
        q->cap = q->cap ? q->cap * 2 : TASKS_MIN;
        q->flights = must(reallocarray(q->flights, q->cap, sizeof(struct flight *)));
    }
    q->flights[q->n++] = f;
    q->bytes += envelope_bytes(f->task);
}

void parcels_add(struct parcels *p, struct flight *f, const struct service *service,
                 int64_t timeout_ms)
{
    struct line *l = line_get(p, service);
    struct parcel_kind kind = parcel_kind(l, f->task, service->batch_size);
    bool filled = false;
    struct parcel *q = find_parcel(l, f->task, kind, timeout_ms, &filled);

    if (!q) {
        q = parcel_new(p, l, kind, timeout_ms);
        if (heap_add(&p->timers, &q->timer, due_us(f, service, timeout_ms)))
            abort(); /* as in must */
        if (!p->is_armed || heap_first(&p->timers) == &q->timer)
            timer_arm(p);
    }
    put_flight(q, f);
    q->is_full = q->n >= q->kind.max_tasks || q->n >= (size_t)service->batch_size ||
                 q->bytes >= l->max_bytes;
    if (q->is_full || filled)
        line_pump(p, l);
}

/* ---- From outside --------------------------------------------------------------------------- */

void parcels_services(struct parcels *p)
{
    struct line **link = &p->lines;
    struct line *l;

    while ((l = *link)) {
        const struct service *s = service_table_get(&p->node->services, l->name);

        if (may_leave(s))
            line_follow(p, l, s);
        line_pump(p, l);
        if (may_leave(s) || l->n_out) {
            link = &l->next;
            continue;
        }
        assert(!l->gathered.first);
        *link = l->next;
        free(l);
    }
    p->recent = NULL;
}

void parcels_stop(struct parcels *p)
{
    for (struct line *l = p->lines; l; l = l->next)
        line_give_back(p, l);
}

int parcels_new(struct node *n, struct parcels **ret)
{
    struct parcels *p = calloc(1, sizeof(*p));

    if (!p)
        return ERR_NOMEM;
    p->node = n;
    p->event = event_new(n->base, -1, 0, on_timer, p);
    if (!p->event) {
        free(p);
        return ERR_NOMEM;
    }
    *ret = p;
    return 0;
}

static void free_list(struct parcel_list *list)
{
    struct parcel *q;

    while ((q = list->first)) {
        parcel_list_remove(list, q);
        parcel_free(q);
    }
}

void parcels_free(struct parcels *p)
{
    struct line *l;

    if (!p)
        return;
    while ((l = p->lines)) {
        p->lines = l->next;
        free_list(&l->gathered);
        free(l);
    }
    free_list(&p->out);
    heap_fini(&p->timers);
    event_free(p->event);
    verdict_batch_fini(&p->verdicts);
    free(p);
}
