/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/rig.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- What the store tells ------------------------------------------------------------------ */

static void on_committed(void *ctx, struct store_op *const *ops, size_t n)
{
    struct rig *r = ctx;

    (void)ops;
    (void)atomic_fetch_add(&r->n_committed, (unsigned)n);
}

static void on_state(void *ctx, bool up, const char *text)
{
    struct rig *r = ctx;

    if (!up)
        (void)snprintf(r->down_text, sizeof(r->down_text), "%s", text);
    (void)atomic_fetch_add(up ? &r->n_up : &r->n_down, 1);
    atomic_store(&r->told_up, up);
}

static void on_delivery(struct mail *m)
{
    struct job *j = (struct job *)((char *)m - offsetof(struct job, op.mail));

    assert_false(j->back);
    j->back = true;
    j->rig->n_out--;
    if (j->op.kind == STORE_SUBMIT) {
        for (size_t i = 0; i < j->submit.n; i++)
            (void)world_keep_task(j->rig->w, j->items[i].existing);
    } else if (j->op.kind == STORE_CLAIM) {
        (void)world_keep_task(j->rig->w, j->claim_item.task);
    } else if (j->op.kind == STORE_CANCEL) {
        (void)world_keep_task(j->rig->w, j->cancel.task);
    } else if (j->op.kind == STORE_SCAN) {
        (void)world_keep(j->rig->w, j->scan.rows);
    } else if (j->op.kind == STORE_CALL && j->get.call.what == CALL_GET) {
        (void)world_keep_task(j->rig->w, j->get.task);
        (void)world_keep(j->rig->w, j->get.attempts);
    } else if (j->op.kind == STORE_CALL && j->move.call.what == CALL_MOVE) {
        (void)world_keep_task(j->rig->w, j->move.task);
    } else if (j->op.kind == STORE_CALL && j->run.call.what == CALL_RUN) {
        (void)world_keep_task(j->rig->w, j->run.task);
    }
    if (j->on_back)
        j->on_back(j);
}

/* ---- Birth and death ----------------------------------------------------------------------- */

struct store_config rig_config(struct world *w)
{
    return (struct store_config){
        .url = w->url,
        .connections = 3,
        .queue_limit = 5000,
        .batch_rows = 500,
        .batch_bytes = 4u << 20,
        .give_up_ms = 30000,
        .reconnect_max_ms = 100,
        .driver = {.statement_timeout_ms = 10000, .named_statements = true},
    };
}

void rig_stop(struct rig *r)
{
    store_stop(r->store);
    r->store = NULL;
    while (mailbox_deliver(r->mailbox))
        ;
}

static void rig_end(struct rig *r)
{
    struct job *next;

    store_stop(r->store);
    mailbox_free(r->mailbox);
    for (struct job *j = r->jobs; j; j = next) {
        next = j->next;
        free(j->items);
        free(j->tasks);
        free(j);
    }
    free(r);
}

struct rig *rig_start(struct world *w, struct store_config cfg, bool wait)
{
    struct rig *r = calloc(1, sizeof(*r));
    struct err err = {0};
    int rc;

    if (!r)
        abort();
    r->w = w;
    assert_int_equal(mailbox_new(&r->mailbox), 0);
    w->rig = r;
    w->stop_rig = rig_end;
    cfg.on_committed = on_committed;
    cfg.on_state = on_state;
    cfg.ctx = r;
    rc = store_start(&cfg, w->d, &r->store, &err);
    if (rc)
        fail_msg("store_start: %s: %s", err_name(rc), err.text);
    r->port = store_port(r->store);
    if (wait)
        rig_wait_up(r);
    return r;
}

static void wait_for_state(struct rig *r, bool up)
{
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (store_is_up(r->store) != up || atomic_load(&r->told_up) != up) {
        assert_true(clock_mono() < until);
        rig_deliver(r, 1);
    }
}

void rig_wait_up(struct rig *r)
{
    wait_for_state(r, true);
}

void rig_wait_down(struct rig *r)
{
    static struct scan_key nothing = {.service_name = {"nobody", 6}, .from_time = WALL_NONE};
    struct job *end = rig_job(r, STORE_FINISH);
    struct job *scan = rig_job(r, STORE_SCAN);

    end->finish_item = (struct finish_item){.id = INT64_MAX,
                                            .kind = FINISH_SUCCESS,
                                            .from = TASK_IN_FLIGHT,
                                            .next_attempt_time = WALL_NONE,
                                            .outcome = "success"};
    end->finish.items = &end->finish_item;
    end->finish.n = 1;
    rig_post(r, end);
    rig_post(r, rig_claim_job(r, INT64_MAX, 0));
    scan->scan.keys = &nothing;
    scan->scan.n_keys = 1;
    rig_post(r, scan);
    wait_for_state(r, false);
}

/* ---- Jobs ---------------------------------------------------------------------------------- */

struct job *rig_job(struct rig *r, enum store_kind kind)
{
    struct job *j = calloc(1, sizeof(*j));

    if (!j)
        abort();
    j->rig = r;
    j->next = r->jobs;
    r->jobs = j;
    j->op.kind = kind;
    return j;
}

struct job *rig_submit_job(struct rig *r, size_t n)
{
    struct job *j = rig_job(r, STORE_SUBMIT);
    struct task like = draft(r->w, "");

    like.id = 0;
    like.trace_id[0] = '\0';
    j->items = calloc(n, sizeof(*j->items));
    j->tasks = calloc(n, sizeof(*j->tasks));
    if (!j->items || !j->tasks)
        abort();
    for (size_t i = 0; i < n; i++) {
        j->tasks[i] = like;
        j->items[i].task = &j->tasks[i];
    }
    j->submit.items = j->items;
    j->submit.n = n;
    return j;
}

struct job *rig_claim_job(struct rig *r, int64_t id, int32_t attempt)
{
    struct job *j = rig_job(r, STORE_CLAIM);

    j->claim_item = claim_of(id, attempt);
    j->claim.items = &j->claim_item;
    j->claim.n = 1;
    j->claim.claimed_by = STR(NODE);
    j->claim.margin_ms = MARGIN_MS;
    return j;
}

struct job *rig_finish_job(struct rig *r, int64_t id, int32_t attempt, enum finish_kind kind)
{
    struct job *j = rig_job(r, STORE_FINISH);

    j->finish_item = finish_of(r->w, id, attempt, kind);
    j->finish.items = &j->finish_item;
    j->finish.n = 1;
    return j;
}

int rig_try(struct rig *r, struct job *j)
{
    int rc;

    j->op.mail.on_delivery = on_delivery;
    j->op.reply = r->mailbox;
    rc = store_post(&r->port, &j->op);
    j->back = rc != 0; /* refused: it never left */
    r->n_out += rc == 0;
    return rc;
}

void rig_post(struct rig *r, struct job *j)
{
    int rc = rig_try(r, j);

    if (rc)
        fail_msg("post: %s", err_name(rc));
}

void rig_deliver(struct rig *r, int ms)
{
    struct pollfd p = {.fd = mailbox_fd(r->mailbox), .events = POLLIN};

    (void)poll(&p, 1, ms);
    (void)mailbox_deliver(r->mailbox);
}

void rig_wait(struct rig *r)
{
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (r->n_out) {
        assert_true(clock_mono() < until);
        rig_deliver(r, 100);
    }
}
