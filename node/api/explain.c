/* SPDX-License-Identifier: Apache-2.0 */
/* GET /api/delay-tasks/{bizUuid}/explain: what keeps a task from running. The task comes from the
 * store; what the scheduler knows of it comes from the scheduler. */
#include <assert.h>

#include "common/timefmt.h"
#include "node/api/api_impl.h"
#include "node/api/fields.h"

struct explain_state {
    struct api_call call;
    struct call_get op;
    struct explain_query query;
};

static void explain_fini(struct api_call *c)
{
    task_free(((struct explain_state *)c)->op.task);
}

static const char *gate_reason(enum gate g)
{
    static const char *const reasons[] = {
        [GATE_NONE] = "Nothing keeps it: an attempt is about to begin.",
        [GATE_TIME] = "Its time has not come.",
        [GATE_PAUSED] = "Its service is paused. Resume the service and it runs.",
        [GATE_CONCURRENCY] = "It is due. As many attempts of its service are under way as may be.",
        [GATE_CAPACITY] = "It is due. The node has as many attempts under way as it may.",
        [GATE_QUEUE] = "It is due and waits for those of its service that go first.",
        [GATE_STORE] = "The database cannot be reached. It runs when the database is back.",
        [GATE_STOPPING] = "This node is stopping. It runs when the node, or another, takes over.",
        [GATE_UNREAD] = "It is due and was not read into memory yet: many tasks are ahead of it.",
        [GATE_WORKER] = "It is due and waits for a worker to lease it.",
        [GATE_FOREIGN] = "It is due. Its owner is another node, which knows more: ask that one.",
    };
    assert(g >= GATE_NONE && g <= GATE_FOREIGN);
    return reasons[g];
}

/* Of tasks that are not waiting: the gate is what they are. */
static const char *status_gate(enum task_status status, bool is_pull, const char **ret_reason)
{
    switch (status) {
    case TASK_SENDING:
        *ret_reason = is_pull ? "A worker has leased it; nextInstant is the end of the lease."
                              : "An attempt is on its way to the service.";
        return "in-flight";
    case TASK_SENT:
        *ret_reason = "The service has accepted it and still owes the result.";
        return "in-flight";
    case TASK_FAILED:
    case TASK_MANUAL_REQUIRED:
        *ret_reason =
            "Its tries are used up, or an answer forbade more. A person may run it again.";
        return "failed";
    default:
        *ret_reason = "It has ended.";
        return "finished";
    }
}

static void put_instant(struct buf *b, wall_ms t)
{
    char text[TIME_TEXT_LEN + 1];
    if (t == WALL_NONE) {
        buf_addz(b, "null");
        return;
    }
    time_format(t, text);
    buf_addf(b, "\"%s\"", text);
}

/* Appends all but the scheduler's numbers, without the closing brace. */
static struct buf *put_common(struct explain_state *s, const char *owner, const char *gate,
                              const char *reason)
{
    const struct task *t = s->op.task;
    bool in_flight = (task_status_bit(t->status) & TASK_IN_FLIGHT) != 0;
    struct buf *b = call_out(&s->call);
    buf_addz(b, "{\"bizUuid\":");
    json_put_string(b, t->biz_uuid);
    buf_addf(b, ",\"traceId\":\"%s\",\"status\":\"%s\",\"owner\":", t->trace_id,
             task_status_name(t->status));
    json_put_stringz(b, owner);
    buf_addf(b, ",\"gate\":\"%s\",\"reason\":\"%s\",\"nextInstant\":", gate, reason);
    put_instant(b, in_flight ? t->deadline_at : t->next_attempt_time);
    return b;
}

static void answer_waiting(struct explain_state *s)
{
    const struct sched_explanation *e = &s->query.answer;
    const char *reason = e->gate == GATE_FOREIGN && !*e->owner
                             ? "It is due. Nobody owns its service now: see GET /api/cluster."
                             : gate_reason(e->gate);
    struct buf *b = put_common(s, *e->owner ? e->owner : NULL, gate_name(e->gate), reason);
    if (e->gate == GATE_QUEUE)
        buf_addf(b, ",\"place\":%u", (unsigned)e->place);
    else
        buf_addz(b, ",\"place\":null");
    buf_addf(b, ",\"serviceReady\":%u,\"serviceInFlight\":%u,\"concurrency\":%u}",
             (unsigned)e->n_ready, (unsigned)e->n_sending, (unsigned)e->concurrency);
    call_send_json(&s->call, 200);
}

static void on_explained(struct mail *m)
{
    answer_waiting(OWNER_OF(m, struct explain_state, query.mail));
}

static void answer_not_waiting(struct explain_state *s)
{
    const char *reason;
    const struct api_env *env = &s->call.api->env;
    bool is_pull = env->is_pull(env->ctx, s->op.task->service_name);
    const char *gate = status_gate(s->op.task->status, is_pull, &reason);
    struct buf *b = put_common(s, NULL, gate, reason);
    buf_addz(b, ",\"place\":null,\"serviceReady\":null,\"serviceInFlight\":null,"
                "\"concurrency\":null}");
    call_send_json(&s->call, 200);
}

static void on_got(struct mail *m)
{
    struct explain_state *s = OWNER_OF(m, struct explain_state, op.call.op.mail);
    struct api_call *c = &s->call;
    const struct task *t = s->op.task;
    if (s->op.call.op.rc == ERR_NOT_FOUND) {
        call_not_found(c, "bizUuid", c->params[0]);
    } else if (s->op.call.op.rc) {
        call_store_failed(c, &s->op.call.op, EFFECT_NONE);
    } else if (!(task_status_bit(t->status) & TASK_WAITING)) {
        answer_not_waiting(s);
    } else {
        s->query.mail.on_delivery = on_explained;
        s->query.reply = c->req->mailbox;
        s->query.service_name = t->service_name;
        s->query.id = t->id;
        s->query.shard = t->shard;
        s->query.next_attempt_time = t->next_attempt_time;
        c->api->env.explain(c->api->env.ctx, &s->query);
    }
}

static void explain_handle(struct api_call *c)
{
    struct explain_state *s = (struct explain_state *)c;
    struct problem p;
    if (!check_biz_uuid(&p, "bizUuid", c->params[0])) {
        call_problem(c, &p);
        return;
    }
    s->op.biz_uuid = c->params[0];
    call_post(c, call_prepare(&s->op.call, CALL_GET), on_got, EFFECT_NONE);
}

const struct route explain_routes[1] = {
    {VERB_GET, "/api/delay-tasks/{bizUuid}/explain", sizeof(struct explain_state), explain_handle,
     explain_fini},
};
