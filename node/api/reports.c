/* SPDX-License-Identifier: Apache-2.0 */
/* What workers report of many attempts at once: results and signs of life. Each report has a result
 * of its own, in order, and a bad one does not fail the others.
 *
 * Results: all tasks are read in one call (their facts decide how those go on that did not
 * succeed), then all attempts end in one. Signs of life are one call. Entries are read in the order
 * of the request, and handed to the store in the order of their ids. */
#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/timefmt.h"
#include "node/api/fields.h"
#include "node/api/results.h"
#include "node/core/attemptcall.h"

static_assert(RESULTS_MAX <= ATTEMPTS_MAX, "all of a call's reports are one operation");

struct report {
    int64_t id;
    struct str trace_id; /* in the request */
    int32_t attempt;
    int status;              /* of its result; 0 = not known yet */
    struct verdict *verdict; /* owned; of a result that is no plain success */
    enum task_status after;
    wall_ms deadline_at;
    int64_t extend_ms;
    struct result_problem problem; /* from a status of 400 on */
};

struct reports_state {
    struct api_call call;
    struct report *reports;
    size_t n;
    struct report **order; /* those without a result yet, by id */
    size_t n_order;
    struct buf problems;
    struct finish_op finish;
    struct call_get_many get;
    struct call_extend_many extend;
    int64_t *ids;
    struct finish_item *items;
};

static void reports_fini(struct api_call *c)
{
    struct reports_state *s = (struct reports_state *)c;
    for (size_t i = 0; i < s->n; i++)
        free(s->reports[i].verdict);
    for (size_t i = 0; s->get.tasks && i < s->get.n; i++)
        task_free(s->get.tasks[i]);
    free(s->get.tasks);
    free(s->reports);
    free(s->order);
    free(s->ids);
    free(s->items);
    free(s->extend.items);
    buf_fini(&s->problems);
}

/* ---- Answers ----------------------------------------------------------------------------- */

/* Opens the problem of a report; report_problem_end closes it. */
static struct buf *report_problem(struct reports_state *s, struct report *r,
                                  const struct problem *p)
{
    struct buf *b = result_problem_open(&s->problems, p, &r->problem);
    r->status = r->problem.status;
    return b;
}

static void report_problem_end(struct reports_state *s, struct report *r)
{
    result_problem_close(&s->problems, &r->problem);
}

static void report_not_found(struct reports_state *s, struct report *r)
{
    struct problem p;
    problem_set(&p, PROBLEM_NOT_FOUND, "traceId", "there is no traceId " STR_FMT,
                STR_ARG(r->trace_id));
    report_problem(s, r, &p);
    report_problem_end(s, r);
}

static void report_stale(struct reports_state *s, struct report *r, const struct task *t)
{
    struct problem p;
    struct err text;
    attempt_stale_text(t, r->attempt, &text);
    problem_set(&p, PROBLEM_STALE_ATTEMPT, NULL, "%s", text.text);
    buf_addf(report_problem(s, r, &p),
             ",\"traceId\":\"" STR_FMT "\",\"taskStatus\":\"%s\",\"attempt\":%d",
             STR_ARG(r->trace_id), task_status_name(t->status), (int)t->attempt);
    report_problem_end(s, r);
}

static void put_report(struct api_call *c, struct buf *b, size_t i)
{
    struct reports_state *s = (struct reports_state *)c;
    const struct report *r = &s->reports[i];
    if (r->status >= 400) {
        result_problem_put(b, &s->problems, &r->problem);
    } else if (r->deadline_at != WALL_NONE) {
        char deadline[TIME_TEXT_LEN + 1];
        time_format(r->deadline_at, deadline);
        buf_addz(b, "{\"status\":200,\"deadline\":\"");
        buf_addz(b, deadline);
        buf_addz(b, "\"}");
    } else {
        buf_addz(b, "{\"status\":200,\"taskStatus\":\"");
        buf_addz(b, task_status_name(r->after));
        buf_addz(b, "\"}");
    }
}

static void answer(struct reports_state *s)
{
    results_answer(&s->call, &s->problems, s->n, put_report);
}

/* ---- Reading ----------------------------------------------------------------------------- */

/* What the readers of one report work on. */
struct reading {
    struct reports_state *state;
    struct report *report;
};

static bool read_trace_id(struct fields *f, const struct json_token *value)
{
    struct report *r = ((struct reading *)f->ctx)->report;
    return field_string(f, value, &r->trace_id) && check_trace_id(f->problem, r->trace_id, &r->id);
}

static bool read_attempt(struct fields *f, const struct json_token *value)
{
    struct report *r = ((struct reading *)f->ctx)->report;
    int64_t n;
    if (!field_int(f, value, 1, INT32_MAX, &n))
        return false;
    r->attempt = (int32_t)n;
    return true;
}

/* The object's members but those two, as a handler would answer them. */
static void put_rest(struct buf *b, const struct json_doc *doc, uint32_t obj)
{
    uint32_t trace_id = json_find(doc, obj, "traceId");
    uint32_t attempt = json_find(doc, obj, "attempt");
    const char *separator = "{";
    for (uint32_t key = obj + 1; key < doc->tokens[obj].next; key = doc->tokens[key + 1].next) {
        if (key + 1 == trace_id || key + 1 == attempt)
            continue;
        buf_addz(b, separator);
        buf_adds(b, doc->tokens[key].raw);
        buf_addc(b, ':');
        buf_adds(b, doc->tokens[key + 1].raw);
        separator = ",";
    }
    buf_addz(b, *separator == '{' ? "{}" : "}");
}

static bool is_plain_success(const struct json_doc *doc, uint32_t obj)
{
    uint32_t success = json_find(doc, obj, "success");
    return doc->tokens[obj].n == 3 && success && doc->tokens[success].type == JSON_TRUE;
}

static bool read_verdict(struct reports_state *s, struct report *r, uint32_t obj, struct problem *p)
{
    const struct api *api = s->call.api;
    const struct retry_policies *policies = api->env.policies;
    struct verdict_limits limits = {policies->retry_after_cap_ms, policies->snooze_cap_ms};
    struct buf text = BUF_INIT;
    struct err err = {0};
    int rc = ERR_NOMEM;
    if (is_plain_success(&s->call.loop->doc, obj))
        return true;
    r->verdict = malloc(sizeof(*r->verdict));
    put_rest(&text, &s->call.loop->doc, obj);
    if (r->verdict && buf_ok(&text))
        rc = verdict_read_result(buf_str(&text), &limits, api_now(api), r->verdict, &err);
    buf_fini(&text);
    if (rc == 0)
        return true;
    if (rc == ERR_NOMEM)
        return problem_set(p, PROBLEM_OVERLOADED, NULL, "out of memory");
    problem_set(p, PROBLEM_INVALID_FIELD, "success", "%s", err.text);
    problem_hint(p, "Such as {\"traceId\":\"…\",\"attempt\":1,\"success\":true}, or "
                    "\"success\":false with \"retryable\", \"message\" and \"retryAfter\", or "
                    "\"snooze\":\"10m\".");
    return false;
}

static bool read_result(struct reports_state *s, struct report *r, uint32_t obj, struct problem *p)
{
    static const struct field own[] = {
        {"traceId", read_trace_id, .required = true},
        {"attempt", read_attempt, .required = true},
    };
    struct field table[16];
    struct reading reading = {s, r};
    struct fields f = {
        .doc = &s->call.loop->doc, .text = &s->call.text, .problem = p, .ctx = &reading};
    memcpy(table, own, sizeof(own));
    memcpy(table + 2, attempt_result_fields, attempt_n_result_fields * sizeof(table[0]));
    return fields_read(&f, obj, table, 2 + attempt_n_result_fields) && read_verdict(s, r, obj, p);
}

static bool read_extend(struct fields *f, const struct json_token *value)
{
    struct reading *reading = f->ctx;
    return field_duration(f, value, 1, reading->state->call.api->cfg.max_timeout_ms,
                          &reading->report->extend_ms);
}

static bool read_beat(struct reports_state *s, struct report *r, uint32_t obj, struct problem *p)
{
    static const struct field table[] = {
        {"traceId", read_trace_id, .required = true},
        {"attempt", read_attempt, .required = true},
        {"extend", read_extend},
    };
    struct reading reading = {s, r};
    struct fields f = {
        .doc = &s->call.loop->doc, .text = &s->call.text, .problem = p, .ctx = &reading};
    return fields_read(&f, obj, table, sizeof(table) / sizeof(table[0]));
}

/* Finds the array and makes room. Returns its token, or 0: *p says why not. */
static uint32_t open_array(struct reports_state *s, const char *name, struct problem *p)
{
    uint32_t array = results_open(&s->call, name, "objects", p);
    if (!array)
        return 0;
    uint32_t n = s->call.loop->doc.tokens[array].n;
    s->reports = calloc(n, sizeof(s->reports[0]));
    s->order = calloc(n, sizeof(s->order[0]));
    if (s->reports && s->order)
        return array;
    problem_set(p, PROBLEM_OVERLOADED, NULL, "out of memory");
    return 0;
}

static int compare_reports(const void *pa, const void *pb)
{
    const struct report *a = *(const struct report *const *)pa;
    const struct report *b = *(const struct report *const *)pb;
    if (a->id != b->id)
        return a->id < b->id ? -1 : 1;
    return (a > b) - (a < b);
}

/* Reads the reports. False when the call has been answered. */
static bool read_all(struct reports_state *s, const char *name,
                     bool (*read)(struct reports_state *s, struct report *r, uint32_t obj,
                                  struct problem *p))
{
    struct api_call *c = &s->call;
    struct problem p;
    uint32_t array = 0;
    if (!call_services_known(c))
        return false;
    if (!call_parse_body(c, &p) || !(array = open_array(s, name, &p))) {
        call_problem(c, &p);
        return false;
    }
    const struct json_token *tokens = c->loop->doc.tokens;
    for (uint32_t i = array + 1; i < tokens[array].next; i = tokens[i].next) {
        struct report *r = &s->reports[s->n++];
        r->deadline_at = WALL_NONE;
        if (tokens[i].type != JSON_OBJECT)
            problem_set(&p, PROBLEM_INVALID_FIELD, name, "each of %s has to be an object", name);
        else if (read(s, r, i, &p)) {
            s->order[s->n_order++] = r;
            continue;
        }
        report_problem(s, r, &p);
        report_problem_end(s, r);
    }
    if (s->n_order == 0) {
        answer(s);
        return false;
    }
    qsort(s->order, s->n_order, sizeof(s->order[0]), compare_reports);
    return true;
}

static void no_memory(struct reports_state *s)
{
    struct problem p;
    problem_set(&p, PROBLEM_OVERLOADED, NULL, "out of memory");
    call_problem(&s->call, &p);
}

/* ---- Results ----------------------------------------------------------------------------- */

static enum task_status status_after(const struct finish_item *item)
{
    switch (item->kind) {
    case FINISH_SUCCESS:
        return TASK_SUCCESS;
    case FINISH_FAIL:
        return TASK_FAILED;
    default:
        return item->retry_count > 0 ? TASK_RETRYING : TASK_PENDING;
    }
}

static void end_report(struct reports_state *s, struct report *r, const struct finish_item *item,
                       const struct task *t)
{
    struct problem p;
    switch (item->result) {
    case FINISH_DONE:
        r->status = 200;
        r->after = status_after(item);
        attempt_ended(s->call.api, t, item);
        LOG(s->call.api->env.log, LOG_DEBUG, "task.result", NULL, F_STR("traceId", r->trace_id),
            F_STR("bizUuid", t->biz_uuid), F_INT("attempt", r->attempt),
            F_Z("verdict", verdict_name(r->verdict ? r->verdict->kind : VERDICT_SUCCESS)));
        return;
    case FINISH_LOST:
        report_stale(s, r, t);
        return;
    case FINISH_FAILED:
        problem_set(&p, PROBLEM_INTERNAL, NULL, "the database refuses to write this result");
        report_problem(s, r, &p);
        report_problem_end(s, r);
    }
}

static void on_finished(struct mail *m)
{
    struct reports_state *s = OWNER_OF(m, struct reports_state, finish.op.mail);
    if (s->finish.op.rc) {
        call_store_failed(&s->call, &s->finish.op, EFFECT_REPEAT);
        return;
    }
    for (size_t i = 0; i < s->finish.n; i++) {
        const int64_t id = s->items[i].id;
        size_t low = 0;
        for (size_t high = s->get.n; low + 1 < high;) {
            size_t mid = low + (high - low) / 2;
            *(s->ids[mid] <= id ? &low : &high) = mid;
        }
        end_report(s, s->items[i].ctx, &s->items[i], s->get.tasks[low]);
    }
    answer(s);
}

/* What the task that was read says of the report: the end of its attempt is asked for, or it has
 * its result. */
static void judge(struct reports_state *s, struct report *r, const struct task *t)
{
    struct finish_item *item = &s->items[s->finish.n];
    enum verdict_kind kind = r->verdict ? r->verdict->kind : VERDICT_SUCCESS;
    if (!t || !str_eq(r->trace_id, str_from(t->trace_id))) {
        report_not_found(s, r);
    } else if (t->attempt == r->attempt && (task_status_bit(t->status) & TASK_IN_FLIGHT)) {
        static const struct verdict success = {.kind = VERDICT_SUCCESS, .retry_after_ms = -1};
        attempt_decide(&s->call, t, r->verdict ? r->verdict : &success, item);
        item->ctx = r;
        s->finish.n++;
    } else if (attempt_took_effect(t, r->attempt, kind)) {
        r->status = 200;
        r->after = t->status;
    } else {
        report_stale(s, r, t);
    }
}

static void on_read(struct mail *m)
{
    struct reports_state *s = OWNER_OF(m, struct reports_state, get.call.op.mail);
    size_t at = 0;
    if (s->get.call.op.rc) {
        call_store_failed(&s->call, &s->get.call.op, EFFECT_NONE);
        return;
    }
    for (size_t i = 0; i < s->n_order; i++) {
        at += s->ids[at] != s->order[i]->id;
        judge(s, s->order[i], s->get.tasks[at]);
    }
    if (s->finish.n == 0) {
        answer(s);
        return;
    }
    s->finish.op.kind = STORE_FINISH;
    s->finish.items = s->items;
    call_post(&s->call, &s->finish.op, on_finished, EFFECT_NONE);
}

static void results_handle(struct api_call *c)
{
    struct reports_state *s = (struct reports_state *)c;
    if (!read_all(s, "results", read_result))
        return;
    s->ids = calloc(s->n_order, sizeof(s->ids[0]));
    s->items = calloc(s->n_order, sizeof(s->items[0]));
    if (!s->ids || !s->items) {
        no_memory(s);
        return;
    }
    for (size_t i = 0; i < s->n_order; i++) {
        if (i == 0 || s->order[i]->id != s->order[i - 1]->id)
            s->ids[s->get.n++] = s->order[i]->id;
    }
    s->get.ids = s->ids;
    call_post(c, call_prepare(&s->get.call, CALL_GET_MANY), on_read, EFFECT_NONE);
}

/* ---- Signs of life ----------------------------------------------------------------------- */

static void on_extended(struct mail *m)
{
    struct reports_state *s = OWNER_OF(m, struct reports_state, extend.call.op.mail);
    if (s->extend.call.op.rc) {
        call_store_failed(&s->call, &s->extend.call.op, EFFECT_REPEAT);
        return;
    }
    for (size_t i = 0; i < s->n_order; i++) {
        const struct extend_item *item = &s->extend.items[i];
        struct report *r = s->order[i];
        struct task found = {.status = item->status, .attempt = item->live_attempt};
        switch (item->result) {
        case EXTEND_DONE:
            r->status = 200;
            r->deadline_at = item->deadline_at;
            break;
        case EXTEND_STALE:
            report_stale(s, r, &found);
            break;
        case EXTEND_NOT_FOUND:
            report_not_found(s, r);
            break;
        }
    }
    answer(s);
}

static void beats_handle(struct api_call *c)
{
    struct reports_state *s = (struct reports_state *)c;
    if (!read_all(s, "attempts", read_beat))
        return;
    s->extend.items = calloc(s->n_order, sizeof(s->extend.items[0]));
    if (!s->extend.items) {
        no_memory(s);
        return;
    }
    for (size_t i = 0; i < s->n_order; i++) {
        const struct report *r = s->order[i];
        struct extend_item *item = &s->extend.items[s->extend.n++];
        item->id = r->id;
        item->attempt = r->attempt;
        item->extend_ms = r->extend_ms;
        memcpy(item->trace_id, r->trace_id.p, TRACE_ID_LEN);
    }
    s->extend.default_timeout_ms = (int32_t)c->api->cfg.default_timeout_ms;
    s->extend.margin_ms = c->api->cfg.ghost_margin_ms;
    call_post(c, call_prepare(&s->extend.call, CALL_EXTEND_MANY), on_extended, EFFECT_NONE);
}

const struct route report_routes[2] = {
    {VERB_POST, "/api/attempts/results", sizeof(struct reports_state), results_handle,
     reports_fini},
    {VERB_POST, "/api/attempts/heartbeats", sizeof(struct reports_state), beats_handle,
     reports_fini},
};
