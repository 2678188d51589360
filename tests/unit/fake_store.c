/* SPDX-License-Identifier: Apache-2.0 */
/* The store's rules in their simplest form, enough for what the HTTP interface asks. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "node/core/attemptcall.h"
#include "tests/unit/api_fixture.h"

static struct task *must_dup(const struct task *t)
{
    struct task *copy = task_dup(t);
    if (!copy)
        abort();
    return copy;
}

static struct task **find_key(struct fake_store *s, struct str key)
{
    for (size_t i = 0; i < s->n_tasks; i++) {
        if (str_eq(s->tasks[i]->biz_uuid, key))
            return &s->tasks[i];
    }
    return NULL;
}

static struct task **find_id(struct fake_store *s, int64_t id)
{
    for (size_t i = 0; i < s->n_tasks; i++) {
        if (s->tasks[i]->id == id)
            return &s->tasks[i];
    }
    return NULL;
}

static bool is_in(const struct task *t, unsigned statuses)
{
    return (task_status_bit(t->status) & statuses) != 0;
}

static void change(struct task **at, const struct task *now)
{
    struct task *copy = must_dup(now);
    task_free(*at);
    *at = copy;
}

/* ---- Batched ----------------------------------------------------------------------------- */

static void submit_repeat(struct task **at, struct submit_item *item)
{
    const struct task *t = *at;
    if (!str_eq(t->service_name, item->task->service_name) ||
        !str_eq(t->handler, item->task->handler)) {
        item->result = SUBMIT_FOREIGN;
    } else if (item->on_conflict == ON_CONFLICT_REJECT) {
        item->result = SUBMIT_REFUSED;
    } else if (item->on_conflict == ON_CONFLICT_REPLACE && is_in(t, TASK_WAITING)) {
        struct task next = *t;
        next.payload = item->task->payload;
        next.execute_time = next.next_attempt_time = item->task->execute_time;
        change(at, &next);
        item->result = SUBMIT_REPLACED;
    } else if (item->on_conflict == ON_CONFLICT_REPLACE) {
        item->result = SUBMIT_REFUSED;
    } else {
        item->result = SUBMIT_DUPLICATE;
        if (!json_same_value(t->payload, item->task->payload))
            item->mismatch |= MISMATCH_PAYLOAD;
        if (item->absolute_time && t->execute_time != item->task->execute_time)
            item->mismatch |= MISMATCH_EXECUTE_TIME;
    }
    item->existing = must_dup(*at);
}

static void run_submit(struct fake_store *s, struct submit_op *op)
{
    for (size_t i = 0; i < op->n; i++) {
        struct submit_item *item = &op->items[i];
        struct task **at = find_key(s, item->task->biz_uuid);
        if (at) {
            submit_repeat(at, item);
        } else if (str_eqz(item->task->biz_uuid, "unstorable")) {
            item->result = SUBMIT_FAILED;
            err_set(&item->err, ERR_INVALID, "the row is refused");
        } else {
            assert(s->n_tasks < FAKE_MAX_TASKS);
            item->task->id = s->next_id++;
            trace_id_make(item->task->id, UINT64_C(0x1234), item->task->trace_id);
            s->tasks[s->n_tasks++] = must_dup(item->task);
            item->result = SUBMIT_CREATED;
        }
    }
}

static void run_cancel(struct fake_store *s, struct cancel_op *op)
{
    struct task **at = find_key(s, op->biz_uuid);
    op->result = CANCEL_NOT_FOUND;
    if (!at)
        return;
    if ((*at)->status == TASK_CANCELLED) {
        op->result = CANCEL_ALREADY;
    } else if (is_in(*at, TASK_IN_FLIGHT)) {
        op->result = CANCEL_IN_FLIGHT;
    } else if (is_in(*at, TASK_CANCELLABLE)) {
        struct task next = **at;
        next.status = TASK_CANCELLED;
        next.next_attempt_time = WALL_NONE;
        next.finished_at = next.updated_at;
        change(at, &next);
        op->result = CANCEL_DONE;
    } else {
        op->result = CANCEL_FINISHED;
    }
    op->task = must_dup(*at);
}

static enum task_status status_after(const struct finish_item *item)
{
    switch (item->kind) {
    case FINISH_SUCCESS:
        return TASK_SUCCESS;
    case FINISH_SENT:
        return TASK_SENT;
    case FINISH_RETRY:
        return TASK_RETRYING;
    case FINISH_FAIL:
        return TASK_FAILED;
    case FINISH_PUT_BACK:
        break;
    }
    return item->retry_count > 0 ? TASK_RETRYING : TASK_PENDING;
}

static void finish_one(struct fake_store *s, struct finish_item *item)
{
    struct task **at = find_id(s, item->id);
    assert(at);
    item->result = FINISH_LOST;
    s->last_finish = *item;
    if (atomic_exchange(&s->lose_finish, false)) {
        struct task next = **at;
        next.attempt++;
        change(at, &next);
    }
    if ((*at)->attempt != item->attempt || !is_in(*at, item->from))
        return;
    struct task next = **at;
    next.status = status_after(item);
    next.retry_count = item->retry_count;
    next.next_attempt_time = item->next_attempt_time;
    next.snooze_count += item->snoozed;
    next.last_error = item->error;
    change(at, &next);
    item->result = FINISH_DONE;
}

static void run_finish(struct fake_store *s, struct finish_op *op)
{
    atomic_store(&s->refuse, atomic_exchange(&s->then_refuse, 0));
    atomic_store(&s->fail, atomic_exchange(&s->then_fail, 0));
    for (size_t i = 0; i < op->n; i++)
        finish_one(s, &op->items[i]);
}

/* ---- Calls ------------------------------------------------------------------------------- */

static int run_get(struct fake_store *s, struct call_get *get)
{
    struct task **at = get->id ? find_id(s, get->id) : find_key(s, get->biz_uuid);
    if (!at)
        return ERR_NOT_FOUND;
    get->task = must_dup(*at);
    if (!get->with_attempts || (*at)->attempt == 0)
        return 0;
    get->attempts = calloc(1, sizeof(get->attempts[0]));
    if (!get->attempts)
        abort();
    get->n_attempts = 1;
    get->attempts[0] = (struct attempt){.attempt = 1,
                                        .started_at = 1000,
                                        .ended_at = 2000,
                                        .http_status = 500,
                                        .outcome = STR("retry"),
                                        .error = STR("HTTP 500"),
                                        .node = STR("n1")};
    return 0;
}

static bool is_listed(const struct task *t, const struct call_list *l)
{
    return t->id < l->before_id && (l->statuses == 0 || is_in(t, l->statuses)) &&
           (!l->service_name.p || str_eq(l->service_name, t->service_name)) &&
           (!l->handler.p || str_eq(l->handler, t->handler)) &&
           (l->from == WALL_NONE || t->execute_time >= l->from) &&
           (l->to == WALL_NONE || t->execute_time < l->to);
}

static int run_list(struct fake_store *s, struct call_list *l)
{
    assert(l->limit >= 1 && l->look_limit >= l->limit);
    l->tasks = calloc(l->limit, sizeof(l->tasks[0]));
    if (!l->tasks)
        abort();
    for (size_t i = s->n_tasks; i-- > 0;) {
        if (!is_listed(s->tasks[i], l))
            continue;
        if (l->n == l->limit) {
            l->next_before_id = l->tasks[l->n - 1]->id;
            break;
        }
        l->tasks[l->n++] = must_dup(s->tasks[i]);
    }
    return 0;
}

static int run_move(struct fake_store *s, struct call_move *m)
{
    struct task **at = find_key(s, m->biz_uuid);
    if (!at)
        return ERR_NOT_FOUND;
    int rc = is_in(*at, TASK_WAITING) ? 0 : ERR_CONFLICT;
    struct task next = **at;
    if (rc == 0 && m->execute_time != WALL_NONE)
        next.execute_time = next.next_attempt_time = m->execute_time;
    if (rc == 0 && m->set_payload)
        next.payload = m->payload;
    change(at, &next);
    m->task = must_dup(*at);
    return rc;
}

static int run_run(struct fake_store *s, struct call_run *r)
{
    struct task **at = find_key(s, r->biz_uuid);
    snprintf(s->last_actor, sizeof(s->last_actor), STR_FMT, STR_ARG(r->actor));
    if (!at)
        return ERR_NOT_FOUND;
    int rc = is_in(*at, TASK_WAITING | TASK_NEEDS_PERSON) ? 0 : ERR_CONFLICT;
    struct task next = **at;
    if (rc == 0 && is_in(*at, TASK_NEEDS_PERSON)) {
        next.status = TASK_PENDING;
        next.retry_count = 0;
    }
    change(at, &next);
    r->task = must_dup(*at);
    return rc;
}

static struct fake_service *find_service(struct fake_store *s, struct str name)
{
    for (size_t i = 0; i < s->n_services; i++) {
        if (str_eq(s->services[i].s.name, name))
            return &s->services[i];
    }
    return NULL;
}

/* How long the claim gave the attempt. */
static int64_t attempt_length(struct fake_store *s, const struct call_extend *e,
                              const struct task *t)
{
    const struct fake_service *v = find_service(s, t->service_name);
    int64_t timeout_ms = e->default_timeout_ms;
    if (t->timeout_ms > 0)
        timeout_ms = t->timeout_ms;
    else if (v && v->s.timeout_ms > 0)
        timeout_ms = v->s.timeout_ms;
    return timeout_ms + e->margin_ms;
}

static int run_extend(struct fake_store *s, struct call_extend *e)
{
    struct task **at = find_id(s, e->id);
    if (!at)
        return ERR_NOT_FOUND;
    e->task = must_dup(*at);
    if ((*at)->attempt != e->attempt || !is_in(*at, TASK_IN_FLIGHT))
        return ERR_CONFLICT;
    e->deadline_at = 1000000 + (e->extend_ms > 0 ? e->extend_ms : attempt_length(s, e, *at));
    return 0;
}

static struct str keep(char *dst, size_t cap, struct str s)
{
    if (!s.p)
        return s;
    assert(s.len < cap);
    memcpy(dst, s.p, s.len);
    return (struct str){dst, s.len};
}

/* One block: the strings of a copy point into the copy. */
static struct service *copy_service(const struct fake_service *from)
{
    struct fake_service *copy = malloc(sizeof(*copy));
    if (!copy)
        abort();
    *copy = *from;
    copy->s.name = keep(copy->name, sizeof(copy->name), from->s.name);
    copy->s.base_url = keep(copy->base_url, sizeof(copy->base_url), from->s.base_url);
    copy->s.secret = keep(copy->secret, sizeof(copy->secret), from->s.secret);
    copy->s.policy = keep(copy->policy, sizeof(copy->policy), from->s.policy);
    return &copy->s;
}

static int run_service_put(struct fake_store *s, struct call_service_put *p)
{
    struct fake_service *v = find_service(s, p->in->name);
    bool was_paused = v && v->s.paused;
    int64_t version = v ? v->s.version + 1 : 1;
    if (!v && s->n_services == FAKE_MAX_SERVICES)
        return ERR_BUSY;
    p->created = !v;
    if (!v) {
        v = &s->services[s->n_services++];
    }
    v->s = *p->in;
    v->s.name = keep(v->name, sizeof(v->name), p->in->name);
    v->s.base_url = keep(v->base_url, sizeof(v->base_url), p->in->base_url);
    v->s.secret = keep(v->secret, sizeof(v->secret), p->in->secret);
    v->s.policy = keep(v->policy, sizeof(v->policy), p->in->policy);
    v->s.paused = was_paused;
    v->s.version = version;
    p->stored = copy_service(v);
    return 0;
}

static int run_service_pause(struct fake_store *s, struct call_service_pause *p)
{
    struct fake_service *v = find_service(s, p->name);
    if (!v)
        return ERR_NOT_FOUND;
    v->s.paused = p->paused;
    p->stored = copy_service(v);
    return 0;
}

static int run_service_delete(struct fake_store *s, struct call_service_delete *d)
{
    struct fake_service *v = find_service(s, d->name);
    if (!v)
        return ERR_NOT_FOUND;
    for (size_t i = 0; i < s->n_tasks; i++) {
        if (str_eq(s->tasks[i]->service_name, d->name) && !is_in(s->tasks[i], TASK_ENDED))
            return ERR_CONFLICT;
    }
    v->s.name = (struct str){0};
    return 0;
}

static int run_service_list(struct fake_store *s, struct call_service_list *l)
{
    size_t room = s->n_services ? s->n_services : 1;
    char *block = calloc(room, sizeof(struct service) + sizeof(struct fake_service));
    if (!block)
        abort();
    l->services = (struct service *)block;
    char *text = block + room * sizeof(struct service);
    for (size_t i = 0; i < s->n_services; i++) {
        struct service *copy = &l->services[l->n];
        struct str *spans[] = {&copy->name, &copy->base_url, &copy->secret, &copy->policy};
        if (!s->services[i].s.name.p)
            continue;
        *copy = s->services[i].s;
        for (size_t j = 0; j < 4; j++) {
            *spans[j] = keep(text, 300, *spans[j]);
            text += spans[j]->len;
        }
        l->n++;
    }
    return 0;
}

static struct fake_instance *find_instance(struct fake_store *s, struct str service_name,
                                           struct str name)
{
    for (size_t i = 0; i < s->n_instances; i++) {
        struct fake_instance *v = &s->instances[i];
        if (str_eq(v->in.service_name, service_name) && str_eq(v->in.name, name))
            return v;
    }
    return NULL;
}

static void set_instance(struct fake_instance *dst, const struct instance *in)
{
    dst->in = *in;
    dst->in.service_name = keep(dst->service_name, sizeof(dst->service_name), in->service_name);
    dst->in.name = keep(dst->name, sizeof(dst->name), in->name);
    dst->in.base_url = keep(dst->base_url, sizeof(dst->base_url), in->base_url);
}

/* The store's clock stands at 1 s for a new one, and at 2 s for a heartbeat. */
static int run_instance_put(struct fake_store *s, struct call_instance_put *p)
{
    struct fake_instance *v = find_instance(s, p->in.service_name, p->in.name);
    p->created = !v;
    if (!v && s->n_instances == FAKE_MAX_INSTANCES)
        return ERR_CONFLICT;
    p->in.registered_at = 1000;
    p->in.expires_at = (v ? 2000 : 1000) + p->in.ttl_ms;
    set_instance(v ? v : &s->instances[s->n_instances++], &p->in);
    return 0;
}

static int run_instance_delete(struct fake_store *s, struct call_instance_delete *d)
{
    struct fake_instance *v = find_instance(s, d->service_name, d->name);
    if (!v)
        return ERR_NOT_FOUND;
    const struct fake_instance *last = &s->instances[--s->n_instances];
    if (v != last)
        set_instance(v, &last->in);
    return 0;
}

static int run_instance_list(struct fake_store *s, struct call_instance_list *l)
{
    char *block =
        calloc(FAKE_MAX_INSTANCES, sizeof(struct instance) + sizeof(struct fake_instance));
    if (!block)
        abort();
    l->instances = (struct instance *)block;
    struct fake_instance *kept = (struct fake_instance *)(l->instances + FAKE_MAX_INSTANCES);
    for (size_t i = 0; i < s->n_instances; i++) {
        if (!str_eq(s->instances[i].in.service_name, l->service_name))
            continue;
        set_instance(&kept[l->n], &s->instances[i].in);
        l->instances[l->n] = kept[l->n].in;
        l->n++;
    }
    return 0;
}

static int run_get_many(struct fake_store *s, struct call_get_many *g)
{
    g->tasks = calloc(g->n, sizeof(*g->tasks));
    if (!g->tasks)
        abort();
    for (size_t i = 0; i < g->n; i++) {
        struct call_get one = {.id = g->ids[i]};
        if (!run_get(s, &one))
            g->tasks[i] = one.task;
    }
    return 0;
}

static int run_extend_many(struct fake_store *s, struct call_extend_many *e)
{
    for (size_t i = 0; i < e->n; i++) {
        struct extend_item *item = &e->items[i];
        struct call_extend one = {.id = item->id,
                                  .attempt = item->attempt,
                                  .extend_ms = item->extend_ms,
                                  .default_timeout_ms = e->default_timeout_ms,
                                  .margin_ms = e->margin_ms};
        int rc = run_extend(s, &one);
        item->result = rc == ERR_NOT_FOUND || strcmp(one.task->trace_id, item->trace_id)
                           ? EXTEND_NOT_FOUND
                       : rc ? EXTEND_STALE
                            : EXTEND_DONE;
        item->deadline_at = one.deadline_at;
        item->status = one.task ? one.task->status : TASK_PENDING;
        item->live_attempt = one.task ? one.task->attempt : 0;
        task_free(one.task);
    }
    return 0;
}

static int run_call(struct fake_store *s, struct store_call *call)
{
    switch (call->what) {
    case CALL_GET:
        return run_get(s, (struct call_get *)call);
    case CALL_LIST:
        return run_list(s, (struct call_list *)call);
    case CALL_MOVE:
        return run_move(s, (struct call_move *)call);
    case CALL_RUN:
        return run_run(s, (struct call_run *)call);
    case CALL_GET_MANY:
        return run_get_many(s, (struct call_get_many *)call);
    case CALL_EXTEND_MANY:
        return run_extend_many(s, (struct call_extend_many *)call);
    case CALL_EXTEND:
        return run_extend(s, (struct call_extend *)call);
    case CALL_SERVICE_PUT:
        return run_service_put(s, (struct call_service_put *)call);
    case CALL_SERVICE_PAUSE:
        return run_service_pause(s, (struct call_service_pause *)call);
    case CALL_SERVICE_DELETE:
        return run_service_delete(s, (struct call_service_delete *)call);
    case CALL_SERVICE_LIST:
        return run_service_list(s, (struct call_service_list *)call);
    case CALL_INSTANCE_PUT:
        return run_instance_put(s, (struct call_instance_put *)call);
    case CALL_INSTANCE_DELETE:
        return run_instance_delete(s, (struct call_instance_delete *)call);
    case CALL_INSTANCE_LIST:
        return run_instance_list(s, (struct call_instance_list *)call);
    default:
        abort(); /* the HTTP interface asks nothing else */
    }
}

/* ---- The thread -------------------------------------------------------------------------- */

static void run_op(struct fake_store *s, struct store_op *op)
{
    op->rc = atomic_load(&s->fail);
    if (op->rc)
        return;
    switch (op->kind) {
    case STORE_SUBMIT:
        run_submit(s, (struct submit_op *)op);
        break;
    case STORE_CANCEL:
        run_cancel(s, (struct cancel_op *)op);
        break;
    case STORE_FINISH:
        run_finish(s, (struct finish_op *)op);
        break;
    case STORE_CALL:
        op->rc = run_call(s, (struct store_call *)op);
        break;
    default:
        abort();
    }
}

unsigned fake_run(struct fake_store *s)
{
    unsigned n = 0;
    for (struct store_op *op; (op = s->first); n++) {
        s->first = op->next;
        run_op(s, op);
        mailbox_post(op->reply, &op->mail);
    }
    return n;
}

static void *run(void *arg)
{
    struct fake_store *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->is_stopping && (!s->first || s->is_held))
            pthread_cond_wait(&s->changed, &s->lock);
        struct store_op *op = s->first;
        if (!op)
            break;
        s->first = op->next;
        run_op(s, op);
        mailbox_post(op->reply, &op->mail);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int fake_post(void *impl, struct store_op *op)
{
    struct fake_store *s = impl;
    int refuse = atomic_load(&s->refuse);
    atomic_fetch_add(&s->n_posts, 1);
    if (refuse)
        return refuse;
    pthread_mutex_lock(&s->lock);
    op->next = NULL;
    if (s->first)
        s->last->next = op;
    else
        s->first = op;
    s->last = op;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

void fake_init(struct fake_store *s)
{
    s->next_id = 1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
}

void fake_fini(struct fake_store *s)
{
    for (size_t i = 0; i < s->n_tasks; i++)
        task_free(s->tasks[i]);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
}

void fake_start(struct fake_store *s)
{
    fake_init(s);
    if (pthread_create(&s->thread, NULL, run, s) != 0)
        abort();
}

void fake_stop(struct fake_store *s)
{
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    fake_fini(s);
}

void fake_hold(struct fake_store *s, bool held)
{
    pthread_mutex_lock(&s->lock);
    s->is_held = held;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void fake_put(struct fake_store *s, const char *biz_uuid, enum task_status status, int32_t attempt)
{
    pthread_mutex_lock(&s->lock);
    struct task **at = find_key(s, str_from(biz_uuid));
    assert(at);
    (*at)->status = status;
    (*at)->attempt = attempt;
    pthread_mutex_unlock(&s->lock);
}

struct task *fake_get(struct fake_store *s, const char *biz_uuid)
{
    pthread_mutex_lock(&s->lock);
    struct task **at = find_key(s, str_from(biz_uuid));
    struct task *copy = at ? must_dup(*at) : NULL;
    pthread_mutex_unlock(&s->lock);
    return copy;
}
