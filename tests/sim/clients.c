/* SPDX-License-Identifier: Apache-2.0 */
/* The clients: they submit, repeat when they heard nothing, cancel, move, replace, run again, pause
 * and change services. Their requests go to the store as a node's interface would hand them on. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "tests/sim/actors.h"
#include "tests/sim/oracle.h"
#include "tests/sim/vnode.h"

#define CLIENT_AGAIN_MS 700
#define BURST_MS 1500 /* from one to the next */

enum request_kind {
    REQUEST_SUBMIT,
    REQUEST_REPEAT, /* of a key that somebody has submitted */
    REQUEST_REPLACE,
    REQUEST_CANCEL,
    REQUEST_MOVE,
    REQUEST_RUN,
    REQUEST_PAUSE,
    REQUEST_RESUME,
    REQUEST_PUT
};

struct plan {
    char key[16];
    char payload[32];
    int service;
    int64_t due_ms; /* after SIM_START; may lie before the submission */
    int32_t priority;
    int32_t max_retry;
    int32_t timeout_ms;
    bool slow_policy;
    bool accepted;
};

struct request {
    struct sim_event ev; /* first */
    enum request_kind kind;
    int which;        /* plan, or service */
    int64_t ahead_ms; /* of MOVE and REPLACE */
};

struct clients {
    struct plan plans[SIM_TASKS_MAX];
    int n_plans;
    int n_accepted;
    int32_t shards[SIM_SERVICES_MAX];
    int puts[SIM_SERVICES_MAX]; /* so far, of those in pull mode */
    int64_t next_id;
    int64_t n_ids;
    struct rng rng; /* of the plans: the same with and without the neighbours */
};

static const char *const service_names[SIM_SERVICES_MAX] = {"svc-0", "svc-1", "svc-2", "svc-3"};

/* ---- Plans -------------------------------------------------------------------------------- */

static void on_request(struct sim *s, struct sim_event *ev);

static void request_drop(struct sim_event *ev)
{
    free(ev);
}

static void request_at(struct sim *s, enum request_kind kind, int which, wall_ms at)
{
    struct request *r = sim_alloc(sizeof(*r));

    r->ev.drop = request_drop;
    r->kind = kind;
    r->which = which;
    r->ahead_ms = sim_between(s, -2000, 12000);
    sim_at(s, &r->ev, at, on_request);
}

static int64_t draw(struct clients *c, int64_t low, int64_t high)
{
    return low + (int64_t)rng_below(&c->rng, (uint64_t)(high - low) + 1);
}

/* Returns when to submit. */
static int64_t plan_times(struct sim *s, struct plan *p)
{
    struct clients *c = s->clients;
    int64_t at = draw(c, 0, s->sc->span_ms * 3 / 4);

    if (s->sc->in_order || (s->sc->isolation && p->service)) { /* a flood */
        p->due_ms = draw(c, 2000, 3000);
        return draw(c, 0, 1500);
    }
    if (s->sc->bursts) { /* all are submitted before they are due */
        p->due_ms = (at / BURST_MS + 3) * BURST_MS;
        return p->due_ms - draw(c, 1, BURST_MS);
    }
    if (s->sc->isolation || s->sc->punctual) {
        at += 3000; /* the nodes know the services by then */
        p->due_ms = at + (s->sc->no_hints ? draw(c, 4000, 9000) : draw(c, 0, 6000));
        return at;
    }
    switch (draw(c, 0, 3)) {
    case 0:
        p->due_ms = at - draw(c, 0, 4000);
        break;
    case 1:
        p->due_ms = at + draw(c, 3000, 15000);
        break;
    default:
        p->due_ms = at + draw(c, 0, 2500);
    }
    return at;
}

static void plan_tasks(struct sim *s)
{
    struct clients *c = s->clients;

    for (int i = 0; i < s->sc->n_tasks; i++) {
        struct plan *p = &c->plans[i];
        int64_t submit_ms;

        (void)snprintf(p->key, sizeof(p->key), "task-%d", i);
        (void)snprintf(p->payload, sizeof(p->payload), "{\"n\":%d}", i);
        p->service = (int)draw(c, s->sc->isolation, s->sc->n_services - 1);
        if (s->sc->isolation && i < s->sc->n_tasks / 4)
            p->service = 0;
        p->priority = (int32_t)(draw(c, 0, 1) ? TASK_PRIORITY_DEFAULT : draw(c, 0, 9));
        p->max_retry = (int32_t)draw(c, 0, 5);
        p->timeout_ms = (int32_t)(draw(c, 0, 3) ? 0 : draw(c, 100, 4000));
        p->slow_policy = draw(c, 0, 3) == 0;
        submit_ms = plan_times(s, p);
        c->n_plans++;
        if (s->opt.without_others && p->service)
            p->accepted = ++c->n_accepted; /* never submitted */
        else
            request_at(s, REQUEST_SUBMIT, i, SIM_START + submit_ms);
    }
}

static void plan_requests(struct sim *s, enum request_kind kind, int n, int which_max)
{
    for (int i = 0; i < n; i++)
        request_at(s, kind, (int)sim_between(s, 0, which_max),
                   s->now + sim_between(s, 500, s->sc->span_ms - 1));
}

static void plan_pauses(struct sim *s)
{
    for (int i = 0; i < s->sc->n_service_pauses; i++) {
        int which = (int)sim_between(s, 0, s->sc->n_services - 1);
        wall_ms at = s->now + sim_between(s, 500, s->sc->span_ms - 1);

        request_at(s, REQUEST_PAUSE, which, at);
        request_at(s, REQUEST_RESUME, which, at + sim_between(s, 100, 8000));
    }
    for (int i = 0; s->sc->n_service_pauses && i < s->sc->n_services; i++)
        request_at(s, REQUEST_RESUME, i, s->now + s->sc->span_ms + 8000);
}

struct clients *clients_new(struct sim *s)
{
    struct clients *c = s->clients = sim_alloc(sizeof(*c));
    const struct scenario *sc = s->sc;

    assert(sc->n_tasks <= SIM_TASKS_MAX && sc->n_services <= SIM_SERVICES_MAX);
    c->rng.state = s->seed ^ 0x5DEECE66D;
    for (int i = 0; i < sc->n_services; i++) {
        c->shards[i] = (int32_t)draw(c, 1, 2);
        if ((!sc->isolation && !sc->punctual && draw(c, 0, 1)) ||
            clients_delivery(s, i) != DELIVERY_PUSH)
            request_at(s, REQUEST_PUT, i, s->now);
    }
    plan_tasks(s);
    plan_requests(s, REQUEST_CANCEL, sc->n_cancels, sc->n_tasks - 1);
    plan_requests(s, REQUEST_MOVE, sc->n_moves, sc->n_tasks - 1);
    plan_requests(s, REQUEST_REPLACE, sc->n_replaces, sc->n_tasks - 1);
    plan_requests(s, REQUEST_RUN, sc->n_runs, sc->n_tasks - 1);
    plan_requests(s, REQUEST_REPEAT, sc->n_repeats, sc->n_tasks - 1);
    plan_requests(s, REQUEST_PUT, sc->n_service_puts, sc->n_services - 1);
    plan_pauses(s);
    return c;
}

void clients_free(struct clients *c)
{
    free(c);
}

enum delivery_mode clients_delivery(const struct sim *s, int service)
{
    int from_end = s->sc->n_services - service;

    if (from_end <= s->sc->n_pull)
        return DELIVERY_PULL;
    return from_end <= s->sc->n_pull + s->sc->n_batch ? DELIVERY_BATCH : DELIVERY_PUSH;
}

bool clients_are_done(const struct sim *s)
{
    return s->clients->n_accepted == s->clients->n_plans;
}

/* ---- Hints -------------------------------------------------------------------------------- */

/* A committed write tells the owners of near tasks; not all of it arrives. */
static void hint(struct sim *s, const struct task *t)
{
    for (int i = 0; i < s->sc->n_nodes && !s->sc->no_hints; i++) {
        if (s->sc->punctual || s->sc->isolation || s->sc->in_order || sim_between(s, 0, 2))
            vnode_hint(s->nodes[i], t);
    }
}

/* ---- Requests ----------------------------------------------------------------------------- */

static int64_t take_id(struct sim *s)
{
    struct clients *c = s->clients;

    if (!c->n_ids && fake_driver.take_ids(s->conn, &c->next_id, &c->n_ids, NULL))
        abort();
    c->n_ids--;
    return c->next_id++;
}

static struct task *make_task(struct sim *s, const struct plan *p)
{
    struct task t = task_empty();

    t.id = take_id(s);
    trace_id_make(t.id, rng_next(&s->rng), t.trace_id);
    t.biz_uuid = str_from(p->key);
    t.service_name = str_from(service_names[p->service]);
    t.handler = STR("close-order");
    t.payload = str_from(p->payload);
    t.policy = p->slow_policy ? STR("slow") : (struct str){0};
    t.execute_time = t.next_attempt_time = SIM_START + p->due_ms;
    t.created_at = t.updated_at = sim_store_now(s);
    t.shard = hash_shard(t.biz_uuid, s->clients->shards[p->service]);
    t.priority = p->priority;
    t.lane = task_lane(p->priority, false);
    t.max_retry = p->max_retry;
    t.timeout_ms = p->timeout_ms;
    struct task *copy = task_dup(&t);
    if (!copy)
        abort();
    return copy;
}

static void submit_answered(struct sim *s, struct plan *p, const struct submit_item *item)
{
    const struct task *stored = item->existing ? item->existing : item->task;

    s->met[MET_DUPLICATES] += item->result == SUBMIT_DUPLICATE;
    if (item->result == SUBMIT_FOREIGN || item->result == SUBMIT_FAILED)
        sim_fail(s, "the submission of %s came to result %d", p->key, item->result);
    oracle_accepted(s, stored->biz_uuid, stored->trace_id);
    if (!p->accepted)
        s->clients->n_accepted++;
    p->accepted = true;
}

/* Returns true when the client has heard the answer. */
static bool submit(struct sim *s, const struct request *r)
{
    struct plan *p = &s->clients->plans[r->which];
    struct submit_item item = {.task = make_task(s, p), .absolute_time = true};
    struct submit_item *items[] = {&item};
    bool heard = !sim_chance(s, s->sc->answer_lost_rate);

    if (r->kind == REQUEST_REPLACE) {
        item.on_conflict = ON_CONFLICT_REPLACE;
        item.task->execute_time = item.task->next_attempt_time = s->now + r->ahead_ms;
    } else if (r->kind == REQUEST_REPEAT && r->ahead_ms % 2) {
        item.on_conflict = ON_CONFLICT_REJECT;
    }
    if (fake_driver.submit(s->conn, items, 1, NULL))
        abort();
    if (item.result == SUBMIT_CREATED || item.result == SUBMIT_REPLACED)
        hint(s, item.existing ? item.existing : item.task);
    s->met[MET_REPLACES] += item.result == SUBMIT_REPLACED;
    if (heard)
        submit_answered(s, p, &item);
    if (sim_chance(s, s->sc->twice_rate)) { /* the store runs it again after a lost commit */
        task_free(item.existing);
        if (fake_driver.submit(s->conn, items, 1, NULL))
            abort();
        submit_answered(s, p, &item);
    }
    task_free(item.existing);
    task_free(item.task);
    return heard;
}

static void cancel(struct sim *s, const struct plan *p)
{
    struct cancel_op op = {.biz_uuid = str_from(p->key)};
    struct cancel_op *ops[] = {&op};

    if (fake_driver.cancel(s->conn, ops, 1, NULL))
        abort();
    s->met[MET_CANCELS] += op.result == CANCEL_DONE;
    if (op.result == CANCEL_DONE && op.task->status != TASK_CANCELLED)
        sim_fail(s, "%s was cancelled and is %s", p->key, task_status_name(op.task->status));
    task_free(op.task);
}

static void move(struct sim *s, const struct request *r)
{
    struct call_move call = {
        .call = {.what = CALL_MOVE},
        .biz_uuid = str_from(s->clients->plans[r->which].key),
        .execute_time = sim_store_now(s) + r->ahead_ms,
    };

    if (!fake_driver.call(s->conn, &call.call, NULL)) {
        s->met[MET_MOVES]++;
        if (call.task->next_attempt_time != call.execute_time)
            sim_fail(s, "task %lld was moved and is due at another time", (long long)call.task->id);
        hint(s, call.task);
    }
    task_free(call.task);
}

static void run(struct sim *s, const struct plan *p)
{
    struct call_run call = {
        .call = {.what = CALL_RUN},
        .biz_uuid = str_from(p->key),
        .actor = STR("simulation"),
    };

    if (!fake_driver.call(s->conn, &call.call, NULL)) {
        s->met[MET_RERUNS]++;
        hint(s, call.task);
    }
    task_free(call.task);
}

static void pause(struct sim *s, int which, bool paused)
{
    struct call_service_pause call = {
        .call = {.what = CALL_SERVICE_PAUSE},
        .name = str_from(service_names[which]),
        .paused = paused,
    };

    if (!fake_driver.call(s->conn, &call.call, NULL))
        s->met[MET_SERVICE_PAUSES] += paused;
    free(call.stored);
}

static void put(struct sim *s, int which)
{
    static const enum delivery_mode modes[] = {DELIVERY_PULL, DELIVERY_PUSH, DELIVERY_BATCH};
    struct service conf = {
        .name = str_from(service_names[which]),
        .base_url = STR("http://svc.example/jobflow"),
        .shards = s->clients->shards[which],
        .concurrency = (int32_t)sim_between(s, 0, s->sc->one_by_one ? 2 : 8),
    };

    if (s->sc->punctual) /* enough of them */
        conf.concurrency = 0;
    conf.delivery = clients_delivery(s, which);
    if (s->sc->mode_changes && conf.delivery == DELIVERY_PULL) {
        conf.delivery = modes[s->clients->puts[which]++ % 3];
        s->met[MET_MODES] += s->clients->puts[which] > 1;
    }
    if (conf.delivery == DELIVERY_BATCH) {
        conf.batch_size = (int32_t)sim_between(s, 2, SIM_BATCH_MAX);
        conf.batch_wait_ms = (int32_t)sim_between(s, 0, s->sc->punctual ? 40 : 400);
    }
    struct call_service_put call = {.call = {.what = CALL_SERVICE_PUT}, .in = &conf};

    if (fake_driver.call(s->conn, &call.call, NULL))
        abort();
    free(call.stored);
}

static bool request_run(struct sim *s, const struct request *r)
{
    bool heard = !sim_chance(s, s->sc->answer_lost_rate);

    sim_note(s, "a client asks %lld of %lld", r->kind, r->which, 0, 0);
    switch (r->kind) {
    case REQUEST_SUBMIT:
    case REQUEST_REPEAT:
    case REQUEST_REPLACE:
        return submit(s, r);
    case REQUEST_CANCEL:
        cancel(s, &s->clients->plans[r->which]);
        return heard;
    case REQUEST_MOVE:
        move(s, r);
        return heard;
    case REQUEST_RUN:
        run(s, &s->clients->plans[r->which]);
        return true; /* repeated, it would run the task once more */
    case REQUEST_PAUSE:
    case REQUEST_RESUME:
        pause(s, r->which, r->kind == REQUEST_PAUSE);
        return heard;
    case REQUEST_PUT:
        put(s, r->which);
        return heard;
    }
    abort();
}

static void on_request(struct sim *s, struct sim_event *ev)
{
    struct request *r = (struct request *)ev;
    bool lost = s->store_down || sim_chance(s, s->sc->lost_rate);

    if (lost || !request_run(s, r))
        sim_at(s, ev, s->now + sim_between(s, 1, CLIENT_AGAIN_MS), on_request);
    else
        free(r);
}
