/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/oracle.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "tests/sim/actors.h"
#include "tests/sim/cluster.h"
#include "tests/sim/vnode.h"

#define ORACLE_MAX_SNOOZES 3
#define ORACLE_LATE_MS 150 /* in scenarios where nothing is in the way */
#define ORACLE_SCAN_MS 1000
#define ORACLE_RESCUE_MS 1500 /* a deadline, a full read and an answer */

/* What is known of one task, apart from what the store says. */
struct record {
    int64_t id;
    char biz_uuid[32];
    char trace_id[TRACE_ID_LEN + 1]; /* as the first client heard it; "" = nobody was told */
    wall_ms not_before;              /* of the next claim, by the store's clock */
    wall_ms first_due; /* when its first attempt was due; WALL_NONE = somebody changed that */
    int service;
    int32_t max_retry;
    int32_t attempt;     /* claims so far */
    int32_t n_put_back;  /* claims that cost no try */
    int32_t n_snoozes;   /* of them, wished by the service */
    int32_t n_runs;      /* asked for by a person */
    int32_t n_series;    /* of them, after an end */
    int32_t n_delivered; /* requests that left */
    int32_t delivered;   /* attempt of the last one */
    int32_t worked;      /* attempt of the last one that a service finished well */
};

struct oracle {
    struct map64 by_id;
    struct map64 by_key;
    size_t n_open;
    int64_t lateness[SIM_TASKS_MAX];
    size_t n_lateness;
};

struct oracle *oracle_new(struct sim *s)
{
    (void)s;
    return sim_alloc(sizeof(struct oracle));
}

void oracle_free(struct oracle *o)
{
    struct record *r;

    if (!o)
        return;
    for (size_t pos = 0; (r = map64_each(&o->by_id, &pos, NULL));)
        free(r);
    map64_fini(&o->by_id);
    map64_fini(&o->by_key);
    free(o);
}

static struct record *find(const struct sim *s, int64_t id)
{
    return map64_find(&s->oracle->by_id, (uint64_t)id);
}

static uint64_t key_of(struct str biz_uuid)
{
    return hash_bytes(biz_uuid, 0) | 1;
}

size_t oracle_n_open(const struct sim *s)
{
    return s->oracle->n_open;
}

int oracle_service_of(const struct sim *s, int64_t id)
{
    const struct record *r = find(s, id);

    return r ? r->service : 0;
}

/* ---- What clients were told --------------------------------------------------------------- */

void oracle_accepted(struct sim *s, struct str biz_uuid, const char *trace_id)
{
    struct record *r = map64_find(&s->oracle->by_key, key_of(biz_uuid));
    bool live;

    if (!r || !fake_db_find(s->db, r->id, &live)) {
        sim_fail(s, "G1: " STR_FMT " was accepted and is not stored", STR_ARG(biz_uuid));
        return;
    }
    if (!*r->trace_id)
        memcpy(r->trace_id, trace_id, sizeof(r->trace_id));
    if (strcmp(r->trace_id, trace_id) ||
        strcmp(fake_db_find(s->db, r->id, &live)->trace_id, trace_id))
        sim_fail(s, "G2: %s was accepted as %s and as %s", r->biz_uuid, r->trace_id, trace_id);
}

/* ---- Each change that commits ------------------------------------------------------------- */

static void on_submit(struct sim *s, const struct fake_change *c)
{
    const struct task *t = c->after;
    struct record *r = sim_alloc(sizeof(*r));
    uint64_t key = key_of(t->biz_uuid);

    r->id = t->id;
    memcpy(r->biz_uuid, t->biz_uuid.p, t->biz_uuid.len);
    r->not_before = t->execute_time;
    r->first_due = t->execute_time > c->now ? t->execute_time : c->now;
    r->service = t->service_name.p[t->service_name.len - 1] - '0';
    r->max_retry = t->max_retry;
    if (map64_find(&s->oracle->by_key, key))
        sim_fail(s, "G2: a second task for %s", r->biz_uuid);
    if (map64_put(&s->oracle->by_id, (uint64_t)r->id, r) || map64_put(&s->oracle->by_key, key, r))
        abort();
    if (t->status != TASK_PENDING || t->attempt || !c->is_live)
        sim_fail(s, "a new task that is not PENDING");
}

static void on_claim(struct sim *s, const struct fake_change *c, struct record *r)
{
    int32_t most = (1 + r->max_retry) * (1 + r->n_series) + r->n_put_back;

    r->attempt++;
    if (c->now < r->not_before)
        sim_fail(s, "G4: task %lld is claimed %lld ms early", (long long)r->id,
                 (long long)(r->not_before - c->now));
    if (r->attempt > most)
        sim_fail(s, "G7: task %lld is claimed the %dth time, %d are allowed", (long long)r->id,
                 r->attempt, most);
    if (c->after->deadline_at <= c->now)
        sim_fail(s, "task %lld is claimed with a deadline in the past", (long long)r->id);
}

static void check_rescue(struct sim *s, const struct fake_change *c)
{
    const struct task *t = c->before;

    s->met[MET_RESCUES]++;
    if (c->finish->past_deadline) {
        if (t->deadline_at > c->now)
            sim_fail(s, "G5: task %lld is rescued %lld ms before its deadline", (long long)t->id,
                     (long long)(t->deadline_at - c->now));
        if (s->sc->one_dies && c->now - t->deadline_at > ORACLE_RESCUE_MS)
            sim_fail(s, "G9: task %lld is rescued %lld ms after its deadline", (long long)t->id,
                     (long long)(c->now - t->deadline_at));
        return;
    }
    s->met[MET_OWN_ORPHANS]++;
    if (!s->sc->mode_changes && oracle_is_leased(s, t))
        sim_fail(s, "G5: task %lld is taken from its worker", (long long)t->id);
    for (int i = 0; i < s->sc->n_nodes; i++) {
        if (str_eqz(t->claimed_by, vnode_claimed_by(s->nodes[i])))
            sim_fail(s, "G5: task %lld is taken from a living node", (long long)t->id);
    }
    if (t->status != TASK_SENDING || t->claimed_by.len <= c->finish->node.len ||
        memcmp(t->claimed_by.p, c->finish->node.p, c->finish->node.len))
        sim_fail(s, "G5: task %lld is no orphan of the node that rescues it", (long long)t->id);
}

static void on_finish(struct sim *s, const struct fake_change *c, struct record *r)
{
    const struct finish_item *f = c->finish;
    const struct task *t = c->after;

    if (f->attempt != c->before->attempt || !(f->from & task_status_bit(c->before->status)))
        sim_fail(s, "G5: attempt %d of task %lld was ended by attempt %d", c->before->attempt,
                 (long long)r->id, f->attempt);
    if (f->past_deadline || str_eqz(str_from("ghost"), f->outcome))
        check_rescue(s, c);
    switch (f->kind) {
    case FINISH_SUCCESS:
        if (r->worked != f->attempt)
            sim_fail(s, "task %lld: SUCCESS, though no service did it", (long long)r->id);
        break;
    case FINISH_SENT:
        break;
    case FINISH_RETRY:
        s->met[MET_RETRIES]++;
        r->not_before = f->next_attempt_time;
        if (t->retry_count != c->before->retry_count + 1 || t->retry_count > r->max_retry)
            sim_fail(s, "G7: task %lld: retry %d of %d after %d", (long long)r->id, t->retry_count,
                     r->max_retry, c->before->retry_count);
        break;
    case FINISH_PUT_BACK:
        r->n_put_back++;
        r->n_snoozes += f->snoozed;
        r->not_before = f->next_attempt_time;
        if (t->retry_count != c->before->retry_count)
            sim_fail(s, "G7: task %lld was given back and lost a try", (long long)r->id);
        if (r->n_snoozes > ORACLE_MAX_SNOOZES || t->snooze_count != r->n_snoozes)
            sim_fail(s, "G7: task %lld was put off too often", (long long)r->id);
        break;
    case FINISH_FAIL:
        s->met[MET_FAILURES]++;
        if (!fake_db_has_alert(s->db, r->id, f->attempt))
            sim_fail(s, "G3: task %lld failed and nobody is told", (long long)r->id);
        break;
    }
}

static void on_run(struct sim *s, const struct fake_change *c, struct record *r)
{
    r->n_runs++;
    r->not_before = c->now;
    r->first_due = WALL_NONE;
    if (task_status_bit(c->before->status) & TASK_NEEDS_PERSON)
        r->n_series++;
    if (fake_db_n_audits(s->db, r->id) != (size_t)r->n_runs)
        sim_fail(s, "G6: task %lld was run by nobody", (long long)r->id);
}

static void on_move(struct record *r, const struct fake_change *c)
{
    r->not_before = c->after->next_attempt_time;
    r->first_due = WALL_NONE;
}

/* The life of a task, written down a second time. */
static bool is_allowed(const struct fake_change *c)
{
    static const enum task_status ends[] = {
        [FINISH_SUCCESS] = TASK_SUCCESS,
        [FINISH_SENT] = TASK_SENT,
        [FINISH_RETRY] = TASK_RETRYING,
        [FINISH_FAIL] = TASK_FAILED,
    };
    unsigned from = task_status_bit(c->before->status);
    enum task_status to = c->after->status;
    bool same = c->before->status == to && c->is_live;

    switch (c->how) {
    case FAKE_CLAIM:
        return (from & TASK_WAITING) && to == TASK_SENDING && c->is_live;
    case FAKE_FINISH:
        if (!(from & TASK_IN_FLIGHT) || c->is_live != (to != TASK_SUCCESS))
            return false;
        return c->finish->kind == FINISH_PUT_BACK ? (task_status_bit(to) & TASK_WAITING) != 0
                                                  : to == ends[c->finish->kind];
    case FAKE_CANCEL:
        return (from & TASK_CANCELLABLE) && to == TASK_CANCELLED && !c->is_live;
    case FAKE_MOVE:
    case FAKE_REPLACE:
        return (from & TASK_WAITING) && same;
    case FAKE_RUN:
        return (from & TASK_WAITING)
                   ? same
                   : (from & TASK_NEEDS_PERSON) && to == TASK_PENDING && c->is_live;
    case FAKE_EXTEND:
        return (from & TASK_IN_FLIGHT) && same && c->before->deadline_at > c->now &&
               c->after->deadline_at >= c->before->deadline_at;
    default:
        return false;
    }
}

static void count_open(struct sim *s, const struct task *t, bool live, int by)
{
    if (t && live && (task_status_bit(t->status) & (TASK_WAITING | TASK_IN_FLIGHT)))
        s->oracle->n_open += (size_t)by;
}

void oracle_on_change(struct sim *s, const struct fake_change *c)
{
    struct record *r = c->before ? find(s, c->before->id) : NULL;

    sim_note(s, "  row %lld: write %lld, status %lld, attempt %lld", c->after->id, c->how,
             c->after->status, c->after->attempt);
    count_open(s, c->before, c->was_live, -1);
    count_open(s, c->after, c->is_live, 1);
    if (c->how == FAKE_SUBMIT) {
        on_submit(s, c);
        return;
    }
    if (!c->was_live)
        sim_fail(s, "G6: task %lld had ended and was changed", (long long)r->id);
    if (!is_allowed(c))
        sim_fail(s, "G6: task %lld went from %s to %s by write %d", (long long)r->id,
                 task_status_name(c->before->status), task_status_name(c->after->status), c->how);
    if (c->after->attempt != c->before->attempt + (c->how == FAKE_CLAIM))
        sim_fail(s, "G5: task %lld: attempt %d after %d", (long long)r->id, c->after->attempt,
                 c->before->attempt);
    if (c->how == FAKE_CLAIM)
        on_claim(s, c, r);
    else if (c->how == FAKE_FINISH)
        on_finish(s, c, r);
    else if (c->how == FAKE_RUN)
        on_run(s, c, r);
    else if (c->how == FAKE_MOVE || c->how == FAKE_REPLACE)
        on_move(r, c);
}

/* ---- Requests ----------------------------------------------------------------------------- */

static void note_lateness(struct sim *s, struct record *r)
{
    struct oracle *o = s->oracle;
    int64_t ms = sim_store_now(s) - r->first_due;
    bool is_taken_over = s->sc->one_dies || s->sc->plot > PLOT_ETCD_DIES;
    int64_t allowed = ORACLE_LATE_MS + (is_taken_over ? CLUSTER_TTL_MS + ORACLE_SCAN_MS : 0);

    if (r->first_due == WALL_NONE || r->n_delivered != 1 || (s->sc->isolation && r->service))
        return;
    o->lateness[o->n_lateness++] = ms;
    sim_note(s, "  task %lld is %lld ms late", r->id, ms, 0, 0);
    if (s->sc->punctual && ms > allowed && r->attempt == 1)
        sim_fail(s, "task %lld is %lld ms late and nothing was in the way", (long long)r->id,
                 (long long)ms);
}

void oracle_delivered(struct sim *s, int node, const struct task *t)
{
    struct record *r = find(s, t->id);
    bool live;
    const struct task *row = fake_db_find(s->db, t->id, &live);

    s->met[MET_DELIVERIES]++;
    sim_note(s, "node %lld: the request of task %lld leaves, attempt %lld", node, t->id, t->attempt,
             0);
    if (!live || row->status != TASK_SENDING || row->attempt != t->attempt ||
        !str_eq(row->claimed_by, t->claimed_by))
        sim_fail(s, "G5: attempt %d of task %lld leaves though it is over: %s, attempt %d",
                 t->attempt, (long long)t->id, task_status_name(row->status), row->attempt);
    else if (row->deadline_at < sim_store_now(s) && !s->sc->n_steps)
        sim_fail(s, "G5: attempt %d of task %lld leaves %lld ms after its deadline", t->attempt,
                 (long long)t->id, (long long)(sim_store_now(s) - row->deadline_at));
    if (t->attempt <= r->delivered)
        sim_fail(s, "G5: attempt %d of task %lld leaves after attempt %d", t->attempt,
                 (long long)t->id, r->delivered);
    r->delivered = t->attempt;
    r->n_delivered++;
    note_lateness(s, r);
}

bool oracle_is_leased(const struct sim *s, const struct task *t)
{
    const struct record *r = find(s, t->id);

    return clients_delivery(s, r->service) == DELIVERY_PULL && r->delivered == t->attempt;
}

void oracle_worked(struct sim *s, int64_t id, int32_t attempt)
{
    struct record *r = find(s, id);

    if (attempt > r->worked)
        r->worked = attempt;
}

static int compare_ms(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

int64_t oracle_p99_lateness(const struct sim *s)
{
    struct oracle *o = s->oracle;

    if (!o->n_lateness)
        return -1;
    qsort(o->lateness, o->n_lateness, sizeof(*o->lateness), compare_ms);
    return o->lateness[(o->n_lateness - 1) * 99 / 100];
}

/* ---- The end ------------------------------------------------------------------------------ */

/* A batch is refused for one of its tasks: that one is found, and the others pay nothing. */
static void check_refused(struct sim *s, const struct record *r, const struct task *t)
{
    bool is_batch = clients_delivery(s, r->service) == DELIVERY_BATCH;
    bool is_poison = is_batch && handlers_is_poison(s, r->id);

    if (t->status != (is_poison ? TASK_FAILED : TASK_SUCCESS))
        sim_fail(s, "G3: task %lld of a batch is %s, it %s", (long long)r->id,
                 task_status_name(t->status),
                 is_poison ? "was refused each time" : "was refused for the others' sake");
    if (t->retry_count)
        sim_fail(s, "G7: task %lld lost %d tries while its batches were refused", (long long)r->id,
                 t->retry_count);
}

static void check_record(struct sim *s, const struct record *r)
{
    bool live = false;
    const struct task *t = fake_db_find(s->db, r->id, &live);

    if (!t) {
        sim_fail(s, "G1: task %lld is gone", (long long)r->id);
        return;
    }
    if (*r->trace_id && strcmp(r->trace_id, t->trace_id))
        sim_fail(s, "G2: %s has another trace id now", r->biz_uuid);
    if (live && t->status != TASK_FAILED)
        sim_fail(s, "G3: task %lld of service %d is left %s, attempt %d, lane %d", (long long)r->id,
                 r->service, task_status_name(t->status), t->attempt, t->lane);
    if (!live && t->status != TASK_SUCCESS && t->status != TASK_CANCELLED)
        sim_fail(s, "G3: task %lld stands in history as %s", (long long)r->id,
                 task_status_name(t->status));
    if (t->status == TASK_SUCCESS && !r->n_delivered)
        sim_fail(s, "G3: task %lld had no attempt", (long long)r->id);
    if (s->sc->poison)
        check_refused(s, r, t);
}

void oracle_check_end(struct sim *s)
{
    const struct record *r;

    for (size_t pos = 0; !s->failed && (r = map64_each(&s->oracle->by_id, &pos, NULL));)
        check_record(s, r);
}
