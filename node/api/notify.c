/* SPDX-License-Identifier: Apache-2.0 */
/* POST /api/delay-tasks/{bizUuid}/notify: a task that was submitted by SQL is read, and its owner
 * told, so that it need not wait for a scan. */
#include "node/api/api_impl.h"
#include "node/api/fields.h"

struct notify_state {
    struct api_call call;
    struct call_get op;
};

static void notify_fini(struct api_call *c)
{
    task_free(((struct notify_state *)c)->op.task);
}

static bool pass_on(const struct api_env *env, const struct task *t)
{
    const struct hint h = {
        .service_name = t->service_name,
        .shard = t->shard,
        .lane = t->lane,
        .id = t->id,
        .attempt = t->attempt,
        .next_attempt_time = t->next_attempt_time,
    };
    return !task_is_in(t, TASK_WAITING) || env->notify(env->ctx, &h);
}

static void on_got(struct mail *m)
{
    struct notify_state *s = OWNER_OF(m, struct notify_state, op.call.op.mail);
    struct api_call *c = &s->call;
    struct problem p;
    if (s->op.call.op.rc == ERR_NOT_FOUND) {
        call_not_found(c, "bizUuid", c->params[0]);
    } else if (s->op.call.op.rc) {
        call_store_failed(c, &s->op.call.op, EFFECT_NONE);
    } else if (pass_on(&c->api->env, s->op.task)) {
        call_send_empty(c, 204);
    } else {
        problem_set(&p, PROBLEM_OVERLOADED, NULL, "too many tasks are being taken in at once");
        problem_hint(&p, "Nothing is lost: the owner's next scan finds the task.");
        call_problem(c, &p);
    }
}

static void notify_handle(struct api_call *c)
{
    struct notify_state *s = (struct notify_state *)c;
    struct problem p;
    if (!check_biz_uuid(&p, "bizUuid", c->params[0]) || !call_no_fields(c, &p)) {
        call_problem(c, &p);
        return;
    }
    s->op.biz_uuid = c->params[0];
    call_post(c, call_prepare(&s->op.call, CALL_GET), on_got, EFFECT_NONE);
}

const struct route notify_routes[1] = {
    {VERB_POST, "/api/delay-tasks/{bizUuid}/notify", sizeof(struct notify_state), notify_handle,
     notify_fini},
};
