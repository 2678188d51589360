/* SPDX-License-Identifier: Apache-2.0 */
/* POST /api/delay-tasks and /api/delay-tasks/batch. */
#include <assert.h>
#include <stdlib.h>

#include "node/api/results.h"
#include "node/api/submit_parse.h"
#include "node/api/uri.h"

/* ---- One task's outcome ------------------------------------------------------------------ */

static void count_outcome(struct api *api, const struct submit_item *item)
{
    struct counters *counters = api->env.counters;
    switch (item->result) {
    case SUBMIT_CREATED:
        counter_add(&counters->submitted, 1);
        break;
    case SUBMIT_DUPLICATE:
        counter_add(&counters->duplicates, 1);
        break;
    case SUBMIT_REPLACED:
        break;
    case SUBMIT_REFUSED:
    case SUBMIT_FOREIGN:
    case SUBMIT_FAILED:
    case SUBMIT_BUSY:
        counter_add(&counters->refused, 1);
        break;
    }
}

static void put_mismatch(struct buf *b, unsigned mismatch)
{
    if (mismatch == 0)
        return;
    buf_addz(b, ",\"mismatch\":[");
    if (mismatch & MISMATCH_PAYLOAD)
        buf_addz(b, "\"payload\"");
    if (mismatch & MISMATCH_EXECUTE_TIME)
        buf_addz(b, mismatch & MISMATCH_PAYLOAD ? ",\"executeTime\"" : "\"executeTime\"");
    buf_addc(b, ']');
}

static enum problem_kind refusal_kind(const struct submit_item *item)
{
    switch (item->result) {
    case SUBMIT_FOREIGN:
        return PROBLEM_KEY_TAKEN;
    case SUBMIT_FAILED:
        return PROBLEM_NOT_STORABLE;
    case SUBMIT_BUSY:
        return PROBLEM_UNAVAILABLE;
    default:
        break;
    }
    if (item->on_conflict == ON_CONFLICT_REJECT)
        return PROBLEM_ALREADY_EXISTS;
    bool in_flight = (task_status_bit(item->existing->status) & TASK_IN_FLIGHT) != 0;
    return in_flight ? PROBLEM_IN_FLIGHT : PROBLEM_FINISHED;
}

static void put_refusal(struct buf *b, const struct submit_item *item, enum problem_kind kind)
{
    const struct task *e = item->existing;
    struct problem p;
    if (kind == PROBLEM_KEY_TAKEN) {
        problem_set(&p, kind, "bizUuid",
                    "this bizUuid belongs to a task of service %.*s, handler %.*s",
                    STR_ARG(e->service_name), STR_ARG(e->handler));
    } else if (kind == PROBLEM_NOT_STORABLE) {
        problem_set(&p, kind, NULL, "%s", item->err.text);
    } else if (kind == PROBLEM_UNAVAILABLE) {
        problem_set(&p, kind, "bizUuid", "%s", item->err.text);
        problem_hint(&p, "Nothing was stored. Try again in a second, or when that transaction has "
                         "ended.");
    } else if (kind == PROBLEM_ALREADY_EXISTS) {
        problem_set(&p, kind, "bizUuid", "a task with this bizUuid exists already");
    } else {
        problem_set(&p, kind, "bizUuid", "a task that is %s cannot be replaced",
                    task_status_name(e->status));
    }
    problem_put_open(b, &p);
    if (kind == PROBLEM_UNAVAILABLE)
        buf_addz(b, ",\"effect\":\"none\"");
    if (!e)
        return;
    if (kind == PROBLEM_KEY_TAKEN)
        buf_addf(b, ",\"serviceName\":\"" STR_FMT "\",\"handler\":\"" STR_FMT "\"",
                 STR_ARG(e->service_name), STR_ARG(e->handler));
    else
        buf_addf(b, ",\"traceId\":\"%s\",\"taskStatus\":\"%s\"", e->trace_id,
                 task_status_name(e->status));
}

static int outcome_status(const struct submit_item *item)
{
    if (item->result == SUBMIT_CREATED)
        return 201;
    if (item->result == SUBMIT_DUPLICATE || item->result == SUBMIT_REPLACED)
        return 200;
    return problem_status(refusal_kind(item));
}

/* Appends the record or the problem, without its closing brace. */
static void put_outcome(struct api *api, struct buf *b, const struct submit_item *item)
{
    count_outcome(api, item);
    switch (item->result) {
    case SUBMIT_CREATED:
        api_log_task(api, LOG_DEBUG, "task.submitted", item->task);
        task_put_record(b, item->task);
        return;
    case SUBMIT_DUPLICATE:
        task_put_record(b, item->existing);
        buf_addz(b, ",\"duplicate\":true");
        put_mismatch(b, item->mismatch);
        return;
    case SUBMIT_REPLACED:
        api_log_task(api, LOG_INFO, "task.replaced", item->existing);
        task_put_record(b, item->existing);
        buf_addz(b, ",\"replaced\":true");
        return;
    default:
        put_refusal(b, item, refusal_kind(item));
    }
}

/* ---- One --------------------------------------------------------------------------------- */

struct submit_state {
    struct api_call call;
    struct submit_op op;
    struct submit_item item;
    struct task task;
};

static void on_submitted(struct mail *m)
{
    struct submit_state *s = OWNER_OF(m, struct submit_state, op.op.mail);
    struct api_call *c = &s->call;
    if (s->op.op.rc) {
        counter_add(&c->api->env.counters->refused, 1);
        call_store_failed(c, &s->op.op, EFFECT_SUBMIT);
        return;
    }
    struct buf *b = call_out(c);
    int status = outcome_status(&s->item);
    put_outcome(c->api, b, &s->item);
    if (status >= 400) {
        call_send_problem(c, refusal_kind(&s->item));
        return;
    }
    buf_addc(b, '}');
    if (status == 201) {
        buf_addz(&c->loop->headers, "Location: /api/delay-tasks/");
        uri_encode(&c->loop->headers, s->task.biz_uuid);
        buf_addz(&c->loop->headers, "\r\n");
    }
    call_send_json(c, status);
}

static void submit_handle(struct api_call *c)
{
    struct submit_state *s = (struct submit_state *)c;
    struct problem p;
    struct api *api = c->api;
    s->item.task = &s->task;
    s->op.op.kind = STORE_SUBMIT;
    s->op.items = &s->item;
    s->op.n = 1;
    if (!call_services_known(c)) {
        counter_add(&api->env.counters->refused, 1);
        return;
    }
    if (!call_parse_body(c, &p) || !submit_parse(c, 0, api_now(api), &s->item, &p)) {
        counter_add(&api->env.counters->refused, 1);
        call_problem(c, &p);
        return;
    }
    if (!call_post(c, &s->op.op, on_submitted, EFFECT_NONE))
        counter_add(&api->env.counters->refused, 1);
}

static void submit_fini(struct api_call *c)
{
    struct submit_state *s = (struct submit_state *)c;
    task_free(s->item.existing);
}

/* ---- A batch ----------------------------------------------------------------------------- */

/* One of the tasks in the request: an item of the operation, or a problem. */
struct batch_entry {
    uint32_t item; /* where there is no problem */
    struct result_problem problem;
};

struct batch_state {
    struct api_call call;
    struct submit_op op;
    struct submit_item *items; /* owned, as are the arrays below */
    struct task *tasks;
    struct batch_entry *entries;
    size_t n; /* entries */
    struct buf problems;
};

static void batch_fini(struct api_call *c)
{
    struct batch_state *s = (struct batch_state *)c;
    for (size_t i = 0; i < s->op.n; i++)
        task_free(s->items[i].existing);
    free(s->items);
    free(s->tasks);
    free(s->entries);
    buf_fini(&s->problems);
}

static void put_result(struct api_call *c, struct buf *b, size_t i)
{
    struct batch_state *s = (struct batch_state *)c;
    const struct batch_entry *e = &s->entries[i];
    if (e->problem.status) {
        result_problem_put(b, &s->problems, &e->problem);
        return;
    }
    const struct submit_item *item = &s->items[e->item];
    int status = outcome_status(item);
    buf_addf(b, "{\"status\":%d,\"%s\":", status, status < 400 ? "task" : "problem");
    put_outcome(c->api, b, item);
    buf_addz(b, "}}");
}

static void batch_answer(struct batch_state *s)
{
    results_answer(&s->call, &s->problems, s->n, put_result);
}

static void on_batch_submitted(struct mail *m)
{
    struct batch_state *s = OWNER_OF(m, struct batch_state, op.op.mail);
    if (s->op.op.rc) {
        counter_add(&s->call.api->env.counters->refused, s->op.n);
        call_store_failed(&s->call, &s->op.op, EFFECT_SUBMIT);
        return;
    }
    batch_answer(s);
}

static void read_entry(struct batch_state *s, uint32_t token, wall_ms now)
{
    struct batch_entry *e = &s->entries[s->n++];
    struct submit_item *item = &s->items[s->op.n];
    struct problem p;
    bool ok = s->call.loop->doc.tokens[token].type == JSON_OBJECT;
    item->task = &s->tasks[s->op.n];
    if (!ok)
        problem_set(&p, PROBLEM_INVALID_FIELD, "tasks", "a task has to be an object");
    else
        ok = submit_parse(&s->call, token, now, item, &p);
    if (ok) {
        e->item = (uint32_t)s->op.n++;
        return;
    }
    counter_add(&s->call.api->env.counters->refused, 1);
    (void)result_problem_open(&s->problems, &p, &e->problem);
    result_problem_close(&s->problems, &e->problem);
}

/* Finds the array and makes room. Returns its token, or 0: *p says why not. */
static uint32_t batch_open(struct batch_state *s, struct problem *p)
{
    uint32_t array = results_open(&s->call, "tasks", "tasks", p);
    if (!array)
        return 0;
    uint32_t n = s->call.loop->doc.tokens[array].n;
    s->items = calloc(n, sizeof(s->items[0]));
    s->tasks = calloc(n, sizeof(s->tasks[0]));
    s->entries = calloc(n, sizeof(s->entries[0]));
    if (s->items && s->tasks && s->entries)
        return array;
    problem_set(p, PROBLEM_OVERLOADED, NULL, "out of memory");
    return 0;
}

static void batch_handle(struct api_call *c)
{
    struct batch_state *s = (struct batch_state *)c;
    struct api *api = c->api;
    struct problem p;
    uint32_t array = 0;
    if (!call_services_known(c)) {
        counter_add(&api->env.counters->refused, 1);
        return;
    }
    if (!call_parse_body(c, &p) || !(array = batch_open(s, &p))) {
        counter_add(&api->env.counters->refused, 1);
        call_problem(c, &p);
        return;
    }
    const struct json_token *tokens = c->loop->doc.tokens;
    wall_ms now = api_now(api);
    uint32_t end = tokens[array].next;
    for (uint32_t i = array + 1; i < end; i = tokens[i].next)
        read_entry(s, i, now);
    if (s->op.n == 0) {
        batch_answer(s);
        return;
    }
    size_t n = s->op.n;
    s->op.op.kind = STORE_SUBMIT;
    s->op.items = s->items;
    if (!call_post(c, &s->op.op, on_batch_submitted, EFFECT_NONE))
        counter_add(&api->env.counters->refused, n);
}

const struct route submit_routes[2] = {
    {VERB_POST, "/api/delay-tasks", sizeof(struct submit_state), submit_handle, submit_fini},
    {VERB_POST, "/api/delay-tasks/batch", sizeof(struct batch_state), batch_handle, batch_fini},
};
