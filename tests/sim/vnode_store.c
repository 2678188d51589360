/* SPDX-License-Identifier: Apache-2.0 */
/* The node's operations on the store, and what may become of one: it runs and the answer comes; it
 * is lost before it runs; it runs and the answer is lost; it runs twice; it runs long after the
 * node has given it up. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "node/core/nodecall.h"
#include "tests/sim/vnode_internal.h"

enum fate { FATE_FINE, FATE_LOST, FATE_ANSWER_LOST, FATE_TWICE, FATE_LATE };

struct op {
    struct sim_event run;    /* at the store */
    struct sim_event answer; /* at the node */
    struct vnode *node;
    uint32_t life;
    enum store_kind kind;
    enum fate fate;
    int rc;
    int n_runs;
    unsigned n_events; /* that wait for it; the last one frees */
    wall_ms asked_at;
    char claimed_by[32];
    struct scan_op scan;
    struct claim_op claim;
    struct finish_op finish;
    struct call_service_list services;
    struct call_node_beat beat;
    bool is_beat;
    char *texts; /* owned: the errors of the finishes */
};

#define OP_OF(event, member) ((struct op *)((char *)(event)-offsetof(struct op, member)))

/* ---- At the store ------------------------------------------------------------------------- */

/* Throws away what a run left, before the next one or at the end. */
static void op_clear(struct op *op)
{
    for (size_t i = 0; i < op->claim.n; i++) {
        task_free(op->claim.items[i].task);
        op->claim.items[i].task = NULL;
    }
    free(op->scan.rows);
    op->scan.rows = NULL;
    free(op->services.services);
    op->services.services = NULL;
    free(op->beat.members);
    op->beat.members = NULL;
    op->beat.n = 0;
}

static void op_unref(struct op *op)
{
    if (--op->n_events)
        return;
    op_clear(op);
    free(op->scan.keys);
    free(op->claim.items);
    free(op->finish.items);
    free(op->texts);
    free(op);
}

static void on_run_drop(struct sim_event *ev)
{
    op_unref(OP_OF(ev, run));
}

static void on_answer_drop(struct sim_event *ev)
{
    op_unref(OP_OF(ev, answer));
}

static int compare_claims(const void *a, const void *b)
{
    const struct claim_item *x = *(struct claim_item *const *)a;
    const struct claim_item *y = *(struct claim_item *const *)b;

    return x->id < y->id ? -1 : x->id > y->id;
}

static int compare_finishes(const void *a, const void *b)
{
    const struct finish_item *x = *(struct finish_item *const *)a;
    const struct finish_item *y = *(struct finish_item *const *)b;

    return x->id < y->id ? -1 : x->id > y->id;
}

static int run_claim(struct sim *s, struct op *op)
{
    struct claim_item **items = sim_alloc(op->claim.n * sizeof(struct claim_item *));
    int rc;

    for (size_t i = 0; i < op->claim.n; i++)
        items[i] = &op->claim.items[i];
    qsort(items, op->claim.n, sizeof(struct claim_item *), compare_claims);
    rc = fake_driver.claim(s->conn, items, op->claim.n, str_from(op->claimed_by),
                           op->node->cfg.ghost_margin_ms, NULL);
    free(items);
    return rc;
}

static bool is_rescue(const struct finish_item *item)
{
    return str_eqz(STR("ghost"), item->outcome);
}

static int run_finish(struct sim *s, struct op *op)
{
    struct finish_item **items = sim_alloc(op->finish.n * sizeof(struct finish_item *));
    int rc;

    for (size_t i = 0; i < op->finish.n; i++)
        items[i] = &op->finish.items[i];
    qsort(items, op->finish.n, sizeof(struct finish_item *), compare_finishes);
    rc = fake_driver.finish(s->conn, items, op->finish.n, NULL);
    for (size_t i = 0; i < op->finish.n; i++)
        s->met[MET_FENCED] +=
            op->finish.items[i].result == FINISH_LOST && !is_rescue(&op->finish.items[i]);
    free(items);
    return rc;
}

static int op_run(struct sim *s, struct op *op)
{
    op_clear(op);
    switch (op->kind) {
    case STORE_SCAN:
        return fake_driver.scan(s->conn, &op->scan, NULL);
    case STORE_CLAIM:
        return run_claim(s, op);
    case STORE_FINISH:
        return run_finish(s, op);
    default:
        return fake_driver.call(s->conn, op->is_beat ? &op->beat.call : &op->services.call, NULL);
    }
}

static void on_run(struct sim *s, struct sim_event *ev)
{
    struct op *op = OP_OF(ev, run);

    if (s->store_down && op->fate == FATE_LATE) {
        sim_at(s, ev, s->now + 200, on_run);
        return;
    }
    if (s->store_down) {
        op->rc = ERR_UNAVAILABLE; /* of a second run: what the first did is unknown */
        op_unref(op);
        return;
    }
    sim_note(s, "the store runs operation %lld of node %lld, run %lld", op->kind, op->node->index,
             ++op->n_runs, 0);
    int rc = op_run(s, op);
    if (rc && !op->is_beat) /* that may be an earlier process's */
        abort();
    if (!op->rc)
        op->rc = rc;
    if (op->fate == FATE_TWICE && op->n_runs == 1) {
        s->met[MET_RUN_TWICE]++;
        sim_at(s, ev, s->now + sim_between(s, 0, 400), on_run);
        return;
    }
    s->met[MET_LATE_WRITES] += op->fate == FATE_LATE;
    op_unref(op);
}

/* ---- Back at the node --------------------------------------------------------------------- */

static void answer_scan(struct vnode *n, struct op *op)
{
    if (!op->rc && op->scan.n_keys && op->scan.n_rows >= op->scan.keys[0].limit)
        n->sim->met[MET_BACKLOGS]++;
    sched_scanned(n->sched, vnode_now(n), op->rc, n->sim->now - op->asked_at, op->scan.keys,
                  op->scan.n_keys, op->scan.rows, op->rc ? 0 : op->scan.n_rows, &n->actions);
}

static void answer_claim(struct vnode *n, struct op *op)
{
    struct sim *s = n->sim;
    size_t from = n->actions.n;

    for (size_t i = 0; i < op->claim.n; i++) {
        struct claim_item *item = &op->claim.items[i];
        int64_t id = item->id;
        size_t before = n->actions.n;
        enum claim_end end = !op->rc && item->result == CLAIM_WON ? CLAIM_GIVEN_BACK : CLAIM_OVER;

        if (!op->rc) {
            s->met[MET_CLAIMS_LOST] += item->result == CLAIM_LOST;
            s->met[MET_CLAIMS_EARLY] += item->result == CLAIM_NOT_DUE;
            s->met[MET_RECLAIMED] += item->result == CLAIM_WON && op->n_runs == 1 &&
                                     item->task->claimed_at < op->asked_at + s->store_offset_ms;
        }
        if (op->rc)
            books_unknown(n, id);
        else if (item->result == CLAIM_NOT_DUE)
            books_early(n, id);
        sched_claimed(n->sched, vnode_now(n), op->rc, item, &n->actions);
        for (size_t k = before; k < n->actions.n; k++) {
            if (n->actions.list[k].kind == ACTION_SEND)
                end = CLAIM_SENDS;
            else if (n->actions.list[k].kind == ACTION_LEASED)
                end = CLAIM_OVER;
        }
        books_claimed(n, id, end);
    }
    vnode_send_all(n, from, op->asked_at);
    vnode_hand(n, from, op->asked_at);
}

static void answer_finish(struct vnode *n, struct op *op)
{
    for (size_t i = 0; i < op->finish.n; i++) {
        struct finish_item *item = &op->finish.items[i];

        if (!op->rc)
            books_finished(n, item);
        sched_finished(n->sched, vnode_now(n), op->rc, item, &n->actions);
        if (!op->rc)
            flight_end(n, item->id);
    }
}

static void answer_services(struct vnode *n, struct op *op)
{
    n->reading_services = false;
    if (op->rc)
        return;
    vnode_members_ready(n);
    for (size_t i = 0; i < op->services.n; i++) {
        const struct service *conf = &op->services.services[i];
        struct known_service *v = &n->services[conf->name.p[conf->name.len - 1] - '0'];

        v->n_requests_max = conf->concurrency > 0 ? conf->concurrency : n->cfg.default_concurrency;
        v->concurrency =
            v->n_requests_max * (conf->delivery == DELIVERY_BATCH ? conf->batch_size : 1);
        v->version = conf->version;
        v->paused = conf->paused;
        v->delivery = conf->delivery;
    }
    sched_services(n->sched, vnode_now(n), op->services.services, op->services.n, &n->actions);
    vparcels_services(n);
}

static void op_answer(struct vnode *n, struct op *op)
{
    switch (op->kind) {
    case STORE_SCAN:
        answer_scan(n, op);
        break;
    case STORE_CLAIM:
        answer_claim(n, op);
        break;
    case STORE_FINISH:
        answer_finish(n, op);
        break;
    default:
        if (op->is_beat)
            vnode_beaten(n, op->rc, op->asked_at, op->beat.members, op->beat.n);
        else
            answer_services(n, op);
    }
}

static void on_answer(struct sim *s, struct sim_event *ev)
{
    struct op *op = OP_OF(ev, answer);
    struct vnode *n = op->node;

    switch (vnode_reach(n, op->life)) {
    case REACH_LATER:
        sim_at(s, ev, n->paused_until, on_answer);
        return;
    case REACH_NOW:
        if (vnode_may_crash(n))
            break;
        sim_note(s, "node %lld hears of operation %lld: %lld", n->index, op->kind, op->rc, 0);
        op_answer(n, op);
        vnode_pass(n);
        if (n->sched)
            (void)vnode_may_crash(n);
        break;
    case REACH_NEVER:
        break;
    }
    op_unref(op);
}

/* ---- Posting ------------------------------------------------------------------------------ */

static enum fate draw_fate(struct sim *s, enum store_kind kind)
{
    const struct scenario *sc = s->sc;
    bool writes = kind == STORE_CLAIM || kind == STORE_FINISH;

    if (sim_chance(s, sc->lost_rate))
        return FATE_LOST;
    if (sim_chance(s, sc->answer_lost_rate))
        return FATE_ANSWER_LOST;
    if (writes && sim_chance(s, sc->twice_rate))
        return FATE_TWICE;
    if (writes && sim_chance(s, sc->late_rate))
        return FATE_LATE;
    return FATE_FINE;
}

/* Runs it and answers: later for both, except that a store known to be away may refuse at once. */
static void op_post(struct vnode *n, struct op *op)
{
    struct sim *s = n->sim;
    wall_ms run_at = s->now + sim_latency(s);
    wall_ms answer_at;

    if (s->store_down && sim_between(s, 0, 1)) {
        op->rc = ERR_UNAVAILABLE;
        op_answer(n, op);
        op->n_events = 1;
        op_unref(op);
        return;
    }
    if (sim_chance(s, s->sc->slow_rate))
        run_at += sim_between(s, 100, 5000);
    answer_at = run_at + sim_latency(s);
    op->fate = n->store_cut ? FATE_LOST : draw_fate(s, op->kind);
    switch (op->fate) {
    case FATE_FINE:
        break;
    case FATE_LOST:
    case FATE_ANSWER_LOST:
        op->rc = ERR_UNAVAILABLE;
        answer_at += sim_between(s, 1, 3000);
        s->met[op->fate == FATE_LOST ? MET_OPS_LOST : MET_ANSWERS_LOST]++;
        break;
    case FATE_TWICE:
        answer_at += 400;
        break;
    case FATE_LATE:
        op->rc = ERR_UNAVAILABLE;
        run_at = answer_at + sim_between(s, 100, 25000);
        break;
    }
    op->n_events = op->fate == FATE_LOST ? 1 : 2;
    if (op->fate != FATE_LOST)
        sim_at(s, &op->run, run_at, on_run);
    sim_at(s, &op->answer, answer_at, on_answer);
}

static struct op *op_new(struct vnode *n, enum store_kind kind)
{
    struct op *op = sim_alloc(sizeof(*op));

    op->run.drop = on_run_drop;
    op->answer.drop = on_answer_drop;
    op->node = n;
    op->life = n->life;
    op->kind = kind;
    op->asked_at = n->sim->now;
    memcpy(op->claimed_by, n->claimed_by, sizeof(op->claimed_by));
    return op;
}

void vnode_read_services(struct vnode *n)
{
    struct op *op;

    if (n->reading_services)
        return;
    n->reading_services = true;
    op = op_new(n, STORE_CALL);
    op->services.call.what = CALL_SERVICE_LIST;
    op_post(n, op);
}

void vnode_beat(struct vnode *n, int64_t epoch, enum member_state state, int64_t ttl_ms)
{
    struct op *op = op_new(n, STORE_CALL);

    op->is_beat = true;
    op->beat = (struct call_node_beat){.call = {.what = CALL_NODE_BEAT},
                                       .name = str_from(n->name),
                                       .epoch = epoch,
                                       .state = state,
                                       .ttl_ms = ttl_ms};
    op_post(n, op);
}

static size_t count(const struct actions *a, enum action_kind kind)
{
    size_t n = 0;

    for (size_t i = 0; i < a->n; i++)
        n += a->list[i].kind == kind;
    return n;
}

static void keep_text(struct str *text, char **p)
{
    if (text->len)
        memcpy(*p, text->p, text->len);
    text->p = *p;
    *p += text->len;
}

/* The texts are the scheduler's until the answer, and gone with it in a crash: an operation that is
 * still to run must not see that. */
static void keep_texts(struct op *op)
{
    size_t len = 1;
    char *p;

    for (size_t i = 0; i < op->finish.n; i++)
        len += op->finish.items[i].error.len;
    for (size_t i = 0; i < op->scan.n_keys; i++)
        len += op->scan.keys[i].service_name.len;
    p = op->texts = sim_alloc(len);
    for (size_t i = 0; i < op->finish.n; i++)
        keep_text(&op->finish.items[i].error, &p);
    for (size_t i = 0; i < op->scan.n_keys; i++)
        keep_text(&op->scan.keys[i].service_name, &p);
}

static struct op *build_finish(struct vnode *n, const struct actions *a)
{
    struct op *op = op_new(n, STORE_FINISH);

    op->finish.items = sim_alloc(a->n * sizeof(struct finish_item));
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i].kind != ACTION_FINISH)
            continue;
        op->finish.items[op->finish.n++] = a->list[i].finish;
        books_finish(n, &a->list[i].finish);
    }
    keep_texts(op);
    return op;
}

static struct op *build_claim(struct vnode *n, const struct actions *a)
{
    struct op *op = op_new(n, STORE_CLAIM);

    op->claim.items = sim_alloc(a->n * sizeof(struct claim_item));
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i].kind != ACTION_CLAIM)
            continue;
        op->claim.items[op->claim.n++] = a->list[i].claim;
        books_claim(n, &a->list[i].claim);
    }
    return op;
}

static struct op *build_scan(struct vnode *n, const struct actions *a)
{
    struct op *op = op_new(n, STORE_SCAN);

    op->scan.keys = sim_alloc(a->n * sizeof(struct scan_key));
    op->scan.claimed_by = str_from(op->claimed_by);
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i].kind != ACTION_SCAN)
            continue;
        op->scan.keys[op->scan.n_keys++] = a->list[i].scan;
        books_scan(n, &a->list[i].scan);
    }
    keep_texts(op);
    return op;
}

/* An answer that comes at once brings new actions: so the operations are built first, and the
 * round goes on until there are none. */
void vnode_post(struct vnode *n)
{
    while (n->actions.n && !n->sim->failed) {
        const struct actions *a = &n->actions;
        struct op *finish = count(a, ACTION_FINISH) ? build_finish(n, a) : NULL;
        struct op *claim = count(a, ACTION_CLAIM) ? build_claim(n, a) : NULL;
        struct op *scan = count(a, ACTION_SCAN) ? build_scan(n, a) : NULL;

        if (!n->store_up && (finish || claim || scan))
            sim_fail(n->sim, "node %d asks a store that it knows to be away", n->index);
        for (size_t i = 0; i < a->n; i++)
            assert(a->list[i].kind != ACTION_SEND || !a->list[i].send.task); /* has left */
        n->actions.n = 0;
        if (finish)
            op_post(n, finish);
        if (claim)
            op_post(n, claim);
        if (scan)
            op_post(n, scan);
    }
}
