/* SPDX-License-Identifier: Apache-2.0 */
#include "node/api/submit_parse.h"

#include <stdio.h>
#include <string.h>

#include "common/hash.h"

/* What the readers fill. A request that moves a task uses a part of it. */
struct wanted {
    const struct api *api;
    struct task *task;
    enum on_conflict on_conflict;
    const struct retry_policy *policy; /* NULL = none named */
    bool has_time;
    bool has_delay;
    bool has_max_retry;
    bool has_payload;
    wall_ms execute_time; /* as given */
    int64_t delay_ms;
};

static struct task *task_of(struct fields *f)
{
    return ((struct wanted *)f->ctx)->task;
}

static bool read_biz_uuid(struct fields *f, const struct json_token *value)
{
    struct task *t = task_of(f);
    return field_string(f, value, &t->biz_uuid) && check_biz_uuid(f->problem, f->name, t->biz_uuid);
}

static bool read_service_name(struct fields *f, const struct json_token *value)
{
    return field_name(f, value, TASK_NAME_MAX, &task_of(f)->service_name);
}

static bool read_handler(struct fields *f, const struct json_token *value)
{
    return field_name(f, value, TASK_NAME_MAX, &task_of(f)->handler);
}

static bool read_execute_time(struct fields *f, const struct json_token *value)
{
    struct wanted *w = f->ctx;
    w->has_time = true;
    return field_time(f, value, &w->execute_time);
}

static bool read_delay(struct fields *f, const struct json_token *value)
{
    struct wanted *w = f->ctx;
    w->has_delay = true;
    return field_duration(f, value, 0, w->api->cfg.max_ahead_ms, &w->delay_ms);
}

static bool read_payload(struct fields *f, const struct json_token *value)
{
    struct wanted *w = f->ctx;
    size_t max = w->api->cfg.max_payload;
    if (value->raw.len > max) {
        problem_set(f->problem, PROBLEM_TOO_LARGE, f->name,
                    "the payload has %zu bytes, at most %zu are taken", value->raw.len, max);
        problem_hint(f->problem, "Put large things into an object store and pass a reference.");
        return false;
    }
    w->has_payload = true;
    w->task->payload = value->raw;
    return true;
}

static bool read_max_retry(struct fields *f, const struct json_token *value)
{
    struct wanted *w = f->ctx;
    int64_t n;
    if (!field_int(f, value, 0, TASK_MAX_RETRY_MAX, &n))
        return false;
    w->has_max_retry = true;
    w->task->max_retry = (int32_t)n;
    return true;
}

static bool read_priority(struct fields *f, const struct json_token *value)
{
    int64_t n;
    if (!field_int(f, value, 0, TASK_PRIORITY_MAX, &n))
        return false;
    task_of(f)->priority = (int32_t)n;
    return true;
}

static bool read_timeout(struct fields *f, const struct json_token *value)
{
    struct wanted *w = f->ctx;
    int64_t ms;
    if (!field_duration(f, value, 1, w->api->cfg.max_timeout_ms, &ms))
        return false;
    w->task->timeout_ms = (int32_t)ms;
    return true;
}

const struct retry_policy *policy_find_named(const struct api *api, struct str name,
                                             struct problem *p)
{
    const struct retry_policies *all = api->env.policies;
    const struct retry_policy *found = name.len > 0 ? retry_policy_find(all, name) : NULL;
    if (found)
        return found;
    char names[256];
    size_t len = 0;
    for (size_t i = 0; i < all->n && len + TASK_POLICY_MAX + 8 < sizeof(names); i++)
        len += (size_t)snprintf(names + len, sizeof(names) - len, "%s%s", i > 0 ? ", " : "",
                                all->policies[i].name);
    problem_set(p, PROBLEM_INVALID_FIELD, "policy", "there is no retry policy \"%.*s\"",
                (int)utf8_cut(name, 64), name.p);
    problem_hint(p, "Policies are: %s.", names);
    return NULL;
}

static bool read_policy(struct fields *f, const struct json_token *value)
{
    struct wanted *w = f->ctx;
    struct str name;
    if (!field_string(f, value, &name))
        return false;
    w->policy = policy_find_named(w->api, name, f->problem);
    w->task->policy = name;
    return w->policy != NULL;
}

static bool read_on_conflict(struct fields *f, const struct json_token *value)
{
    static const char *const names[] = {
        [ON_CONFLICT_RETURN] = "return",
        [ON_CONFLICT_REJECT] = "reject",
        [ON_CONFLICT_REPLACE] = "replace",
    };
    struct wanted *w = f->ctx;
    struct str s;
    if (!field_string(f, value, &s))
        return false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (str_eqz(s, names[i])) {
            w->on_conflict = (enum on_conflict)i;
            return true;
        }
    }
    return problem_set(f->problem, PROBLEM_INVALID_FIELD, f->name,
                       "%s has to be \"return\", \"reject\" or \"replace\"", f->name);
}

static const struct field submit_fields[] = {
    {"bizUuid", read_biz_uuid, .required = true},
    {"serviceName", read_service_name, .required = true},
    {"handler", read_handler, .required = true},
    {"executeTime", read_execute_time},
    {"delay", read_delay},
    {"payload", read_payload, .nullable = true},
    {"maxRetry", read_max_retry},
    {"policy", read_policy},
    {"priority", read_priority},
    {"timeout", read_timeout},
    {"onConflict", read_on_conflict},
};

static const struct field move_fields[] = {
    {"executeTime", read_execute_time},
    {"delay", read_delay},
    {"payload", read_payload, .nullable = true},
};

/* When it is to run: never before now, never further ahead than allowed. */
static bool resolve_time(const struct wanted *w, wall_ms now, wall_ms *ret, struct problem *p)
{
    if (w->has_time && w->has_delay) {
        problem_set(p, PROBLEM_INVALID_FIELD, "delay", "executeTime and delay exclude each other");
        problem_hint(p, "Give one of them, or none for now.");
        return false;
    }
    *ret = now;
    if (w->has_delay)
        *ret = now + w->delay_ms;
    else if (w->has_time && w->execute_time > now)
        *ret = w->execute_time;
    if (*ret - now > w->api->cfg.max_ahead_ms) {
        problem_set(p, PROBLEM_INVALID_FIELD, "executeTime",
                    "executeTime lies further ahead than the %lld days allowed",
                    (long long)(w->api->cfg.max_ahead_ms / 86400000));
        problem_hint(p, "A number means epoch milliseconds.");
        return false;
    }
    return true;
}

/* The retries of a task that does not say how many. */
static int32_t default_max_retry(const struct wanted *w)
{
    const struct retry_policies *all = w->api->env.policies;
    const struct retry_policy *policy = w->policy;
    if (!policy) {
        char name[TASK_POLICY_MAX + 1];
        api_service_policy(w->api, w->task->service_name, name);
        policy = retry_policy_find(all, str_from(name));
    }
    return policy ? policy->max_retry : all->policies[0].max_retry;
}

static void complete_task(struct wanted *w, wall_ms now)
{
    const struct api_env *env = &w->api->env;
    struct task *t = w->task;
    t->status = TASK_PENDING;
    t->next_attempt_time = t->execute_time;
    t->created_at = t->updated_at = now;
    t->shard = hash_shard(t->biz_uuid, env->shards_of(env->ctx, t->service_name));
    t->lane = task_lane(t->priority, false);
    if (!w->has_max_retry)
        t->max_retry = default_max_retry(w);
}

bool submit_parse(struct api_call *c, uint32_t obj, wall_ms now, struct submit_item *item,
                  struct problem *p)
{
    struct wanted w = {.api = c->api, .task = item->task};
    struct fields f = {.doc = &c->loop->doc, .text = &c->text, .problem = p, .ctx = &w};
    *item->task = task_empty();
    item->task->priority = TASK_PRIORITY_DEFAULT;
    if (!fields_read(&f, obj, submit_fields, sizeof(submit_fields) / sizeof(submit_fields[0])))
        return false;
    if (!resolve_time(&w, now, &item->task->execute_time, p))
        return false;
    complete_task(&w, now);
    item->on_conflict = w.on_conflict;
    /* A time that has passed became "now", which says nothing about what was stored earlier. */
    item->absolute_time = w.has_time && w.execute_time > now;
    return true;
}

bool move_parse(struct api_call *c, wall_ms now, struct move_request *ret, struct problem *p)
{
    struct task scratch = task_empty();
    struct wanted w = {.api = c->api, .task = &scratch};
    struct fields f = {.doc = &c->loop->doc, .text = &c->text, .problem = p, .ctx = &w};
    if (!call_parse_body(c, p) ||
        !fields_read(&f, 0, move_fields, sizeof(move_fields) / sizeof(move_fields[0])))
        return false;
    if (!w.has_time && !w.has_delay && !w.has_payload)
        return problem_set(p, PROBLEM_MISSING_FIELD, "executeTime",
                           "one of executeTime, delay and payload is required");
    wall_ms when;
    if (!resolve_time(&w, now, &when, p))
        return false;
    *ret = (struct move_request){
        .execute_time = w.has_time || w.has_delay ? when : WALL_NONE,
        .is_relative = w.has_delay,
        .set_payload = w.has_payload,
        .payload = scratch.payload,
    };
    return true;
}
