/* SPDX-License-Identifier: Apache-2.0 */
/* The batched operations and the scan. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "tests/sim/fake_internal.h"

/* ---- Submission --------------------------------------------------------------------------- */

static bool is_text(struct str s, size_t max)
{
    return s.len <= max && utf8_valid(s) && (!s.len || !memchr(s.p, '\0', s.len));
}

static int check_writable(const struct task *t, struct err *err)
{
    if (t->id <= 0 || !t->biz_uuid.len || !is_text(t->biz_uuid, TASK_BIZ_UUID_MAX) ||
        !is_text(t->service_name, TASK_NAME_MAX) || !is_text(t->handler, TASK_NAME_MAX) ||
        !is_text(t->policy, TASK_POLICY_MAX) || !is_text(t->payload, SIZE_MAX))
        return err_set(err, ERR_INVALID, "this row cannot be written");
    return 0;
}

static unsigned mismatch_of(const struct submit_item *item, const struct task *old)
{
    const struct task *t = item->task;
    unsigned mismatch = 0;

    if ((t->payload.p != NULL) != (old->payload.p != NULL) ||
        (t->payload.p && !json_same_value(t->payload, old->payload)))
        mismatch |= MISMATCH_PAYLOAD;
    if (item->absolute_time && t->execute_time != old->execute_time)
        mismatch |= MISMATCH_EXECUTE_TIME;
    return mismatch;
}

static struct task *must_dup(const struct task *t)
{
    struct task *copy = task_dup(t);

    if (!copy)
        abort();
    return copy;
}

static void submit_replace(struct fake_db *db, struct submit_item *item, struct fake_row *row)
{
    struct task next = *row->t;

    if (!fake_status_in(row, TASK_WAITING)) {
        item->result = SUBMIT_REFUSED;
        item->existing = must_dup(row->t);
        return;
    }
    next.execute_time = item->task->execute_time;
    next.next_attempt_time = item->task->execute_time;
    next.payload = item->task->payload;
    next.updated_at = fake_now(db);
    fake_write(db, row, &next, true, FAKE_REPLACE, NULL);
    item->result = SUBMIT_REPLACED;
    item->existing = must_dup(row->t);
}

static void submit_one(struct fake_db *db, struct submit_item *item)
{
    const struct task *t = item->task;
    struct fake_row *row = fake_row_by_key(db, t->biz_uuid);

    item->mismatch = 0;
    item->existing = NULL;
    if (!row) {
        fake_service_seen(db, t);
        fake_write(db, NULL, t, true, FAKE_SUBMIT, NULL);
        item->result = SUBMIT_CREATED;
        return;
    }
    if (row->t->id == t->id) { /* an earlier run of this very insert */
        item->result = SUBMIT_CREATED;
        return;
    }
    if (!str_eq(row->t->service_name, t->service_name) || !str_eq(row->t->handler, t->handler)) {
        item->result = SUBMIT_FOREIGN;
    } else if (item->on_conflict == ON_CONFLICT_REPLACE) {
        submit_replace(db, item, row);
        return;
    } else {
        item->result = item->on_conflict == ON_CONFLICT_REJECT ? SUBMIT_REFUSED : SUBMIT_DUPLICATE;
        item->mismatch = mismatch_of(item, row->t);
    }
    item->existing = must_dup(row->t);
}

int fake_submit(struct driver_conn *c, struct submit_item **items, size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        int rc = check_writable(items[i]->task, err);

        if (rc)
            return rc;
        assert(!i || str_cmp(items[i - 1]->task->biz_uuid, items[i]->task->biz_uuid) < 0);
    }
    for (size_t i = 0; i < n; i++)
        submit_one(c->db, items[i]);
    return 0;
}

/* ---- Claim -------------------------------------------------------------------------------- */

static void claim_one(struct fake_db *db, struct claim_item *item, struct str claimed_by,
                      int64_t margin_ms)
{
    struct fake_row *row = fake_row_by_id(db, item->id);
    char text[CLAIM_HOLDER_MAX];
    struct str holder = claim_holder(item, claimed_by, text);
    wall_ms now = fake_now(db);

    item->result = CLAIM_LOST;
    item->task = NULL;
    if (!row || !row->live)
        return;
    if (row->t->status == TASK_SENDING && row->t->attempt == item->attempt + 1 &&
        str_eq(row->t->claimed_by, holder)) { /* an earlier run of this very claim */
        item->result = CLAIM_WON;
        item->task = must_dup(row->t);
        return;
    }
    if (!fake_status_in(row, TASK_WAITING) || row->t->attempt != item->attempt)
        return;
    if (row->t->next_attempt_time > now) {
        item->result = CLAIM_NOT_DUE;
        item->next_attempt_time = row->t->next_attempt_time;
        return;
    }
    struct task next = *row->t;
    next.status = TASK_SENDING;
    next.attempt++;
    next.claimed_by = holder;
    next.claimed_at = now;
    next.deadline_at = now + (next.timeout_ms ? next.timeout_ms : item->timeout_ms) + margin_ms;
    next.updated_at = now;
    fake_write(db, row, &next, true, FAKE_CLAIM, NULL);
    item->result = CLAIM_WON;
    item->task = must_dup(row->t);
}

int fake_claim(struct driver_conn *c, struct claim_item **items, size_t n, struct str claimed_by,
               int64_t margin_ms, struct err *err)
{
    (void)err;
    for (size_t i = 0; i < n; i++) {
        assert(!i || items[i - 1]->id < items[i]->id);
        claim_one(c->db, items[i], claimed_by, margin_ms);
    }
    return 0;
}

/* ---- The end of an attempt ---------------------------------------------------------------- */

/* True if the row looks as this very write leaves it. */
static bool is_done_already(const struct fake_row *row, const struct finish_item *f)
{
    const struct task *t = row->t;

    if (t->attempt != f->attempt)
        return false;
    switch (f->kind) {
    case FINISH_SUCCESS:
        return !row->live && t->status == TASK_SUCCESS;
    case FINISH_SENT:
        return row->live && t->status == TASK_SENT;
    case FINISH_RETRY:
        return row->live && t->status == TASK_RETRYING && t->retry_count == f->retry_count &&
               t->next_attempt_time == f->next_attempt_time;
    case FINISH_FAIL:
        return row->live && t->status == TASK_FAILED;
    case FINISH_PUT_BACK:
        return fake_status_in(row, TASK_WAITING) && t->retry_count == f->retry_count &&
               t->next_attempt_time == f->next_attempt_time;
    }
    return false;
}

static void leave_claim(struct task *t)
{
    t->claimed_by = (struct str){0};
    t->claimed_at = WALL_NONE;
    t->deadline_at = WALL_NONE;
}

static void finish_write(struct fake_db *db, struct fake_row *row, const struct finish_item *f)
{
    struct task next = *row->t;
    wall_ms now = fake_now(db);

    next.updated_at = now;
    next.next_attempt_time = WALL_NONE;
    if (f->http_status)
        next.last_http_status = f->http_status;
    if (f->error.len)
        next.last_error = f->error;
    switch (f->kind) {
    case FINISH_SUCCESS:
        next.status = TASK_SUCCESS;
        next.finished_at = now;
        next.deadline_at = WALL_NONE;
        break;
    case FINISH_SENT:
        next.status = TASK_SENT;
        next.next_attempt_time = next.deadline_at = f->next_attempt_time;
        break;
    case FINISH_RETRY:
    case FINISH_PUT_BACK:
        next.retry_count = f->retry_count;
        next.status = f->retry_count > 0 ? TASK_RETRYING : TASK_PENDING;
        next.next_attempt_time = f->next_attempt_time;
        next.lane = task_lane(f->priority, f->retry_count > 0);
        next.snooze_count += f->snoozed;
        leave_claim(&next);
        break;
    case FINISH_FAIL:
        next.status = TASK_FAILED;
        next.retry_count = f->retry_count;
        next.failed_at = now;
        leave_claim(&next);
        break;
    }
    if (f->kind == FINISH_RETRY || f->kind == FINISH_FAIL)
        fake_add_attempt(db, row->t, f);
    if (f->kind == FINISH_FAIL && f->alert)
        fake_add_alert(db, f);
    fake_write(db, row, &next, f->kind != FINISH_SUCCESS, FAKE_FINISH, f);
}

static void finish_one(struct fake_db *db, struct finish_item *f)
{
    struct fake_row *row = fake_row_by_id(db, f->id);

    f->result = FINISH_LOST;
    if (!row)
        return;
    if (fake_status_in(row, f->from) && row->t->attempt == f->attempt &&
        (!f->past_deadline || row->t->deadline_at <= fake_now(db))) {
        finish_write(db, row, f);
        f->result = FINISH_DONE;
    } else if (is_done_already(row, f)) {
        f->result = FINISH_DONE;
    }
}

int fake_finish(struct driver_conn *c, struct finish_item **items, size_t n, struct err *err)
{
    (void)err;
    for (size_t i = 0; i < n; i++) {
        assert(!i || items[i - 1]->id < items[i]->id);
        assert(!(items[i]->from & ~TASK_IN_FLIGHT));
        finish_one(c->db, items[i]);
    }
    return 0;
}

/* ---- Cancel ------------------------------------------------------------------------------- */

static void cancel_one(struct fake_db *db, struct cancel_op *op)
{
    struct fake_row *row = fake_row_by_key(db, op->biz_uuid);

    op->task = NULL;
    if (!row) {
        op->result = CANCEL_NOT_FOUND;
        return;
    }
    if (fake_status_in(row, TASK_CANCELLABLE)) {
        struct task next = *row->t;

        next.status = TASK_CANCELLED;
        next.next_attempt_time = WALL_NONE;
        next.finished_at = next.updated_at = fake_now(db);
        fake_drop_alerts(db, next.id);
        fake_write(db, row, &next, false, FAKE_CANCEL, NULL);
        op->result = CANCEL_DONE;
    } else if (row->t->status == TASK_CANCELLED) {
        op->result = CANCEL_ALREADY;
    } else {
        op->result = fake_status_in(row, TASK_IN_FLIGHT) ? CANCEL_IN_FLIGHT : CANCEL_FINISHED;
    }
    op->task = must_dup(row->t);
}

int fake_cancel(struct driver_conn *c, struct cancel_op **items, size_t n, struct err *err)
{
    (void)err;
    for (size_t i = 0; i < n; i++) {
        assert(!i || str_cmp(items[i - 1]->biz_uuid, items[i]->biz_uuid) < 0);
        cancel_one(c->db, items[i]);
    }
    return 0;
}

/* ---- Scan --------------------------------------------------------------------------------- */

static bool is_after(const struct task *t, wall_ms time, int64_t id)
{
    return t->next_attempt_time > time || (t->next_attempt_time == time && t->id > id);
}

static bool key_covers(const struct scan_key *k, const struct task *t)
{
    return t->lane == k->lane && t->shard == k->shard && t->next_attempt_time != WALL_NONE &&
           t->next_attempt_time <= k->to_time && is_after(t, k->from_time, k->from_id) &&
           str_eq(t->service_name, k->service_name);
}

static bool is_own_orphan(const struct task *t, struct str claimed_by)
{
    const char *slash = claimed_by.len ? memrchr(claimed_by.p, '/', claimed_by.len) : NULL;
    size_t prefix = slash ? (size_t)(slash - claimed_by.p) + 1 : 0;

    return t->status == TASK_SENDING && prefix && t->claimed_by.len > prefix &&
           !memcmp(t->claimed_by.p, claimed_by.p, prefix) &&
           !memchr(t->claimed_by.p + prefix, '/', t->claimed_by.len - prefix) &&
           !str_eq(t->claimed_by, claimed_by);
}

static void fill_row(struct scan_row *row, uint32_t key, const struct task *t,
                     struct str claimed_by)
{
    *row = (struct scan_row){
        .key = key,
        .id = t->id,
        .next_attempt_time = t->next_attempt_time,
        .status = t->status,
        .attempt = t->attempt,
        .deadline_at = t->deadline_at,
        .retry_count = t->retry_count,
        .max_retry = t->max_retry,
        .priority = t->priority,
        .own_orphan = is_own_orphan(t, claimed_by),
    };
    if (t->policy.len)
        memcpy(row->policy, t->policy.p, t->policy.len);
}

static int compare_rows(const void *a, const void *b)
{
    const struct scan_row *x = a;
    const struct scan_row *y = b;

    if (x->next_attempt_time != y->next_attempt_time)
        return x->next_attempt_time < y->next_attempt_time ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

int fake_scan(struct driver_conn *c, struct scan_op *op, struct err *err)
{
    const struct fake_table *live = &c->db->live;
    struct scan_row *rows = NULL;
    size_t n = 0;
    size_t cap = 0;

    (void)err;
    for (uint32_t k = 0; k < op->n_keys; k++) {
        size_t begin = n;

        for (size_t i = 0; i < live->n; i++) {
            if (!key_covers(&op->keys[k], live->rows[i]->t))
                continue;
            FAKE_GROW(rows, n, cap);
            fill_row(&rows[n++], k, live->rows[i]->t, op->claimed_by);
        }
        if (n > begin)
            qsort(rows + begin, n - begin, sizeof(*rows), compare_rows);
        if (n - begin > op->keys[k].limit)
            n = begin + op->keys[k].limit;
    }
    op->rows = rows;
    op->n_rows = n;
    return 0;
}
