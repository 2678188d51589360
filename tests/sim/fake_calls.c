/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that read and change single tasks. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/fake_internal.h"

#include "node/core/attemptcall.h"
#include "node/core/nodecall.h"

#define FAKE_ATTEMPTS_MAX 1000

static struct task *must_dup(const struct task *t)
{
    struct task *copy = task_dup(t);

    if (!copy)
        abort();
    return copy;
}

static void get_attempts(struct fake_db *db, struct call_get *c)
{
    size_t text = 0;
    size_t n = 0;

    for (size_t i = 0; i < db->n_attempts; i++) {
        const struct attempt *a = &db->attempts[i].a;

        if (db->attempts[i].task_id != c->task->id || n == FAKE_ATTEMPTS_MAX)
            continue;
        n++;
        text += a->outcome.len + a->error.len + a->node.len;
    }
    c->attempts = fake_alloc(1, n * sizeof(*c->attempts) + text + 1);
    char *p = (char *)(c->attempts + n);
    for (size_t i = 0; c->n_attempts < n; i++) {
        struct attempt a = db->attempts[i].a;
        struct str *spans[] = {&a.outcome, &a.error, &a.node};

        if (db->attempts[i].task_id != c->task->id)
            continue;
        for (size_t k = 0; k < 3; k++) {
            if (spans[k]->len)
                memcpy(p, spans[k]->p, spans[k]->len);
            spans[k]->p = spans[k]->p ? p : NULL;
            p += spans[k]->len;
        }
        c->attempts[c->n_attempts++] = a;
    }
}

static int call_get(struct fake_db *db, struct call_get *c)
{
    const struct fake_row *row =
        c->id ? fake_row_by_id(db, c->id) : fake_row_by_key(db, c->biz_uuid);

    c->task = NULL;
    c->attempts = NULL;
    c->n_attempts = 0;
    if (!row)
        return ERR_NOT_FOUND;
    c->task = must_dup(row->t);
    if (c->with_attempts)
        get_attempts(db, c);
    return 0;
}

/* ---- List --------------------------------------------------------------------------------- */

static int compare_ids_down(const void *a, const void *b)
{
    const struct task *x = *(const struct task *const *)a;
    const struct task *y = *(const struct task *const *)b;

    return x->id > y->id ? -1 : x->id < y->id;
}

static bool list_wants(const struct call_list *c, const struct task *t)
{
    return (!c->statuses || (c->statuses & task_status_bit(t->status))) &&
           (!c->service_name.p || str_eq(c->service_name, t->service_name)) &&
           (!c->handler.p || str_eq(c->handler, t->handler)) &&
           (c->from == WALL_NONE || t->execute_time >= c->from) &&
           (c->to == WALL_NONE || t->execute_time < c->to);
}

/* Adds the tasks of one table that the page looks at, newest first; raises *floor to the last id
 * looked at when more stand below. */
static size_t list_look(const struct fake_table *table, const struct call_list *c,
                        const struct task **dst, int64_t *floor)
{
    size_t n = 0;

    for (size_t i = 0; i < table->n; i++) {
        if (table->rows[i]->t->id < c->before_id)
            dst[n++] = table->rows[i]->t;
    }
    if (n)
        qsort(dst, n, sizeof(*dst), compare_ids_down);
    if (n > c->look_limit) {
        n = c->look_limit;
        if (n && dst[n - 1]->id > *floor)
            *floor = dst[n - 1]->id;
    }
    return n;
}

static int call_list(struct fake_db *db, struct call_list *c)
{
    size_t all = db->live.n + db->history.n;
    const struct task **look = fake_alloc(all, sizeof(*look));
    int64_t floor = 0;
    size_t n = list_look(&db->live, c, look, &floor);

    n += list_look(&db->history, c, look + n, &floor);
    if (n)
        qsort(look, n, sizeof(*look), compare_ids_down);
    c->tasks = fake_alloc(c->limit, sizeof(*c->tasks));
    c->n = 0;
    c->next_before_id = floor;
    for (size_t i = 0; i < n && look[i]->id >= floor; i++) {
        if (!list_wants(c, look[i]))
            continue;
        if (c->n == c->limit) {
            c->next_before_id = c->tasks[c->n - 1]->id;
            break;
        }
        c->tasks[c->n++] = must_dup(look[i]);
    }
    free(look);
    return 0;
}

/* ---- Changes ------------------------------------------------------------------------------ */

static int call_move(struct fake_db *db, struct call_move *c)
{
    struct fake_row *row = fake_row_by_key(db, c->biz_uuid);

    c->task = NULL;
    if (!row)
        return ERR_NOT_FOUND;
    if (!fake_status_in(row, TASK_WAITING)) {
        c->task = must_dup(row->t);
        return ERR_CONFLICT;
    }
    struct task next = *row->t;
    if (c->execute_time != WALL_NONE)
        next.execute_time = next.next_attempt_time = c->execute_time;
    if (c->set_payload)
        next.payload = c->payload;
    next.updated_at = fake_now(db);
    fake_write(db, row, &next, true, FAKE_MOVE, NULL);
    c->task = must_dup(row->t);
    return 0;
}

static int call_run(struct fake_db *db, struct call_run *c)
{
    struct fake_row *row = fake_row_by_key(db, c->biz_uuid);

    c->task = NULL;
    if (!row)
        return ERR_NOT_FOUND;
    if (!fake_status_in(row, TASK_CANCELLABLE)) {
        c->task = must_dup(row->t);
        return ERR_CONFLICT;
    }
    struct task next = *row->t;
    next.next_attempt_time = next.updated_at = fake_now(db);
    if (next.execute_time > next.next_attempt_time)
        next.execute_time = next.next_attempt_time;
    if (task_status_bit(next.status) & TASK_NEEDS_PERSON) {
        fake_drop_alerts(db, next.id);
        next.status = TASK_PENDING;
        next.retry_count = 0;
        next.failed_at = WALL_NONE;
        next.lane = task_lane(next.priority, false);
    }
    FAKE_GROW(db->audits, db->n_audits, db->cap_audits);
    db->audits[db->n_audits++] = next.id;
    fake_write(db, row, &next, true, FAKE_RUN, NULL);
    c->task = must_dup(row->t);
    return 0;
}

static int64_t claim_length(struct fake_db *db, const struct call_extend *c, const struct task *t)
{
    const struct service *s = fake_service_find(db, t->service_name);
    int32_t timeout_ms = t->timeout_ms            ? t->timeout_ms
                         : s && s->timeout_ms > 0 ? s->timeout_ms
                                                  : c->default_timeout_ms;

    return timeout_ms + c->margin_ms;
}

static int call_extend(struct fake_db *db, struct call_extend *c)
{
    struct fake_row *row = fake_row_by_id(db, c->id);
    wall_ms now = fake_now(db);

    c->task = row ? must_dup(row->t) : NULL;
    if (!row)
        return ERR_NOT_FOUND;
    if (!fake_status_in(row, TASK_IN_FLIGHT) || row->t->attempt != c->attempt ||
        row->t->deadline_at <= now)
        return ERR_CONFLICT;
    struct task next = *row->t;
    int64_t length = c->extend_ms ? c->extend_ms : claim_length(db, c, row->t);
    if (next.deadline_at < now + length)
        next.deadline_at = now + length;
    if (next.status == TASK_SENT)
        next.next_attempt_time = next.deadline_at;
    next.updated_at = now;
    fake_write(db, row, &next, true, FAKE_EXTEND, NULL);
    c->deadline_at = next.deadline_at;
    return 0;
}

/* ---- Many --------------------------------------------------------------------------------- */

static int call_get_many(struct fake_db *db, struct call_get_many *c)
{
    c->tasks = fake_alloc(c->n, sizeof(struct task *));
    for (size_t i = 0; i < c->n; i++) {
        const struct fake_row *row = fake_row_by_id(db, c->ids[i]);
        struct task brief = row ? *row->t : task_empty();

        brief.payload = (struct str){0};
        c->tasks[i] = row ? must_dup(&brief) : NULL;
    }
    return 0;
}

static int call_extend_many(struct fake_db *db, struct call_extend_many *c)
{
    for (size_t i = 0; i < c->n; i++) {
        struct extend_item *item = &c->items[i];
        const struct fake_row *row = fake_row_by_id(db, item->id);
        struct call_extend one = {.id = item->id,
                                  .attempt = item->attempt,
                                  .extend_ms = item->extend_ms,
                                  .default_timeout_ms = c->default_timeout_ms,
                                  .margin_ms = c->margin_ms};

        item->result = EXTEND_NOT_FOUND;
        if (!row || strcmp(row->t->trace_id, item->trace_id))
            continue;
        item->status = row->t->status;
        item->live_attempt = row->t->attempt;
        item->result = call_extend(db, &one) ? EXTEND_STALE : EXTEND_DONE;
        item->deadline_at = one.deadline_at;
        task_free(one.task);
    }
    return 0;
}

/* ---- Retention ---------------------------------------------------------------------------- */

static int compare_ids_up(const void *a, const void *b)
{
    const struct fake_row *x = *(struct fake_row *const *)a;
    const struct fake_row *y = *(struct fake_row *const *)b;

    return x->t->id < y->t->id ? -1 : x->t->id > y->t->id;
}

static void purge_history(struct fake_db *db, struct call_purge *c)
{
    struct fake_row **rows = fake_alloc(db->history.n, sizeof(struct fake_row *));
    size_t n = 0;

    for (size_t i = 0; i < db->history.n; i++) {
        if (db->history.rows[i]->t->id > c->after_id)
            rows[n++] = db->history.rows[i];
    }
    if (n)
        qsort(rows, n, sizeof(struct fake_row *), compare_ids_up);
    if (n >= c->limit && c->limit)
        c->next_after_id = rows[c->limit - 1]->t->id;
    for (size_t i = 0; i < n && i < c->limit; i++) {
        if (rows[i]->t->finished_at >= c->history_before)
            continue;
        fake_drop_attempts(db, rows[i]->t->id);
        fake_write(db, rows[i], NULL, false, FAKE_PURGE, NULL);
        c->n_deleted++;
    }
    free(rows);
}

static void retire_failed(struct fake_db *db, struct call_purge *c)
{
    for (size_t i = db->live.n; i-- > 0 && c->n_moved < c->limit;) {
        struct fake_row *row = db->live.rows[i];
        struct task next = *row->t;

        if (!fake_status_in(row, TASK_NEEDS_PERSON) || next.failed_at >= c->failed_before)
            continue;
        next.finished_at = next.failed_at;
        next.updated_at = fake_now(db);
        fake_write(db, row, &next, false, FAKE_RETIRE, NULL);
        c->n_moved++;
    }
}

static int call_purge(struct fake_db *db, struct call_purge *c)
{
    c->next_after_id = 0;
    c->n_deleted = c->n_moved = 0;
    purge_history(db, c);
    retire_failed(db, c);
    return 0;
}

/* ------------------------------------------------------------------------------------------- */

static int call_task(struct fake_db *db, struct store_call *call)
{
    switch (call->what) {
    case CALL_GET:
        return call_get(db, (struct call_get *)call);
    case CALL_LIST:
        return call_list(db, (struct call_list *)call);
    case CALL_MOVE:
        return call_move(db, (struct call_move *)call);
    case CALL_RUN:
        return call_run(db, (struct call_run *)call);
    case CALL_EXTEND:
        return call_extend(db, (struct call_extend *)call);
    case CALL_GET_MANY:
        return call_get_many(db, (struct call_get_many *)call);
    case CALL_EXTEND_MANY:
        return call_extend_many(db, (struct call_extend_many *)call);
    case CALL_PURGE:
        return call_purge(db, (struct call_purge *)call);
    default:
        abort();
    }
}

int fake_call(struct driver_conn *conn, struct store_call *call, struct err *err)
{
    struct fake_db *db = conn->db;

    (void)err;
    switch (call->what) {
    case CALL_SERVICE_PUT:
        return fake_service_put(db, (struct call_service_put *)call);
    case CALL_SERVICE_PAUSE:
        return fake_service_pause(db, (struct call_service_pause *)call);
    case CALL_SERVICE_DELETE:
        return fake_service_delete(db, (struct call_service_delete *)call);
    case CALL_SERVICE_LIST:
        return fake_service_list(db, (struct call_service_list *)call);
    case CALL_INSTANCE_PUT:
        return fake_instance_put(db, (struct call_instance_put *)call);
    case CALL_INSTANCE_DELETE:
        return fake_instance_delete(db, (struct call_instance_delete *)call);
    case CALL_INSTANCE_LIST:
        return fake_instance_list(db, (struct call_instance_list *)call);
    case CALL_INSTANCE_PURGE:
        return fake_instance_purge(db, (struct call_instance_purge *)call);
    case CALL_NODE_START:
        return fake_node_start(db, (struct call_node_start *)call);
    case CALL_NODE_BEAT:
        return fake_node_beat(db, (struct call_node_beat *)call);
    case CALL_ALERT_LIST:
        return fake_alert_list(db, (struct call_alert_list *)call);
    case CALL_ALERT_END:
        return fake_alert_end(db, (struct call_alert_end *)call);
    case CALL_CLOCK:
        ((struct call_clock *)call)->sent_us = clock_mono_us();
        ((struct call_clock *)call)->now_us = fake_now(db) * 1000;
        ((struct call_clock *)call)->received_us = clock_mono_us();
        return 0;
    default:
        return call_task(db, call);
    }
}
