/* SPDX-License-Identifier: Apache-2.0 */
/* Submission, claim and scan, set-wise: a statement names all rows of a batch. */
#include "node/store/mysql_packet.h"

#include <stdlib.h>

#include "node/store/judge.h"
#include "node/store/rowops.h"
#include "node/store/setops.h"
#include "node/store/task_row.h"

/* ---- Submission --------------------------------------------------------------------------- */

static void put_task(struct my_packet *p, const struct task *t)
{
    struct sql_value timeout = sql_int(t->timeout_ms);

    timeout.null = t->timeout_ms == 0;
    my_put_row(p,
               (const struct sql_value[]){
                   sql_int(t->id), sql_textz(t->trace_id), sql_text(t->biz_uuid),
                   sql_text(t->service_name), sql_text(t->handler), sql_int(t->shard),
                   sql_int(t->lane), sql_int(t->priority), sql_textz("PENDING"),
                   sql_time(t->execute_time), sql_time(t->next_attempt_time), sql_int(t->max_retry),
                   sql_text(t->policy), timeout, sql_text(t->payload), sql_time(t->created_at),
                   sql_time(t->updated_at)},
               17);
}

static void put_inserts(struct my_packet *p, const struct submit_run *run, int64_t *ret_changed)
{
    my_statement(p, NULL, NULL, ret_changed);
    my_waits_for_keys(p);
    my_put(p, "/*M! SET STATEMENT innodb_lock_wait_timeout = ");
    my_put_int(p, my_lock_wait_s(p->db, run->patience_ms));
    my_put(p, " FOR */ ");
    my_put(p, "INSERT INTO job_delay_task (id, trace_id, biz_uuid, service_name, handler, shard, "
              "lane, priority, status, execute_time, next_attempt_time, max_retry, policy, "
              "timeout_ms, payload_json, created_at, updated_at) VALUES ");
    for (size_t i = 0; i < run->n_open; i++) {
        if (i)
            my_put(p, ",");
        put_task(p, run->slots[run->open[i]].item->task);
    }
    my_put(p, " ON DUPLICATE KEY UPDATE id = id");
}

/* Which of the keys of my rows stand in history. By the rows' ids: 500 texts in one list would cost
 * a fifth of what their inserts do. */
static void put_look(struct my_packet *p, struct submit_run *run, const struct my_ids *ids)
{
    my_statement(p, submit_on_history, run, NULL);
    my_put(p, "SELECT " HISTORY_COLUMNS " FROM (SELECT biz_uuid AS mine FROM job_delay_task" BY_ID
              " WHERE ");
    my_put_ids(p, "id", ids);
    my_put(p, ") AS t STRAIGHT_JOIN job_delay_task_history" BY_OLD_KEY " ON biz_uuid = mine");
}

/* Locked: a service is not deleted while a task of it is on its way. */
static void put_services(struct my_packet *p, struct submit_run *run)
{
    my_statement(p, submit_on_service, run, NULL);
    my_put(p, "SELECT name, lanes, shards_seen FROM job_service" BY_ID " WHERE name IN ");
    for (size_t i = 0; i < run->n_services; i++) {
        my_put(p, i ? "," : "(");
        my_put_text(p, run->services[i].name);
    }
    my_put(p, ") ORDER BY name LOCK IN SHARE MODE");
}

struct mine {
    struct submit_run *run;
    struct submit_slot **by_id; /* the open ones */
    struct my_ids ids;          /* theirs */
    size_t at;                  /* in by_id */
    size_t n;                   /* found */
    bool taken;                 /* an id belongs to a task with another key */
};

static int compare_slots(const void *a, const void *b)
{
    int64_t x = (*(struct submit_slot *const *)a)->item->task->id;
    int64_t y = (*(struct submit_slot *const *)b)->item->task->id;

    return (x > y) - (x < y);
}

static int mine_init(struct mine *m, struct submit_run *run)
{
    *m = (struct mine){.run = run, .by_id = calloc(run->n_open, sizeof(struct submit_slot *))};
    if (!m->by_id)
        return ERR_NOMEM;
    for (size_t i = 0; i < run->n_open; i++) {
        m->by_id[i] = &run->slots[run->open[i]];
        m->by_id[i]->inserted = false;
    }
    qsort(m->by_id, run->n_open, sizeof(struct submit_slot *), compare_slots);
    for (size_t i = 0; i < run->n_open; i++)
        my_ids_add(&m->ids, m->by_id[i]->item->task->id, 0);
    return 0;
}

static void mine_fini(struct mine *m)
{
    my_ids_fini(&m->ids);
    free(m->by_id);
}

static int on_mine(void *ctx, const struct sql_value *row)
{
    struct mine *m = ctx;

    for (; m->at < m->run->n_open; m->at++) {
        struct submit_slot *slot = m->by_id[m->at];

        if (slot->item->task->id != row[0].i)
            continue;
        m->taken |= !str_eq(slot->item->task->biz_uuid, row[1].s);
        slot->inserted = true;
        m->at++;
        m->n++;
        return 0;
    }
    return ERR_CORRUPT;
}

/* The keys of the open slots that are not mine, ascending; there is at least one. */
static void put_keys(struct my_packet *p, const struct submit_run *run)
{
    bool any = false;

    for (size_t i = 0; i < run->n_open; i++) {
        const struct submit_slot *slot = &run->slots[run->open[i]];

        if (slot->inserted)
            continue;
        my_put(p, any ? "," : "(");
        my_put_text(p, slot->item->task->biz_uuid);
        any = true;
    }
    my_put(p, ")");
}

/* Gives the rows of the keys that are not mine. */
static int find_keys(struct sql *db, struct submit_run *run, const char *before, sql_row_fn *on_row,
                     struct err *err)
{
    struct my_packet p;
    int rc;

    my_packet_start(&p, db);
    my_statement(&p, on_row, run, NULL);
    my_put(&p, before);
    put_keys(&p, run);
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    return rc;
}

/* Not all rows went in: those that stand under my ids, with my keys, are mine. */
static int find_mine(struct sql *db, struct mine *m, struct err *err)
{
    struct my_packet p;
    int rc;

    my_packet_start(&p, db);
    my_statement(&p, on_mine, m, NULL);
    my_put(&p, "SELECT id, biz_uuid FROM job_delay_task" BY_ID " WHERE ");
    my_put_ids(&p, "id", &m->ids);
    my_put(&p, " ORDER BY id");
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    if (!rc && m->taken)
        rc = err_set(err, ERR_EXISTS, "an id that is new to this node belongs to another task");
    return rc;
}

static int insert_rows(struct sql *db, struct mine *m, bool first, struct err *err)
{
    static const char history[] =
        "SELECT " HISTORY_COLUMNS " FROM job_delay_task_history" BY_OLD_KEY " WHERE biz_uuid IN ";
    struct submit_run *run = m->run;
    int64_t changed = 0;
    struct my_packet p;
    int rc;

    my_packet_start(&p, db);
    put_inserts(&p, run, &changed);
    put_look(&p, run, &m->ids);
    if (first)
        put_services(&p, run);
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    if (rc)
        return rc;
    if (changed == (int64_t)run->n_open) {
        for (size_t i = 0; i < run->n_open; i++)
            m->by_id[i]->inserted = true;
        return 0;
    }
    rc = find_mine(db, m, err);
    return rc || m->n == run->n_open ? rc : find_keys(db, run, history, submit_on_history, err);
}

static int insert_and_look(struct sql *db, struct submit_run *run, bool first, struct err *err)
{
    struct mine m;
    int rc = mine_init(&m, run);

    rc = rc ? err_set(err, rc, "no memory for a batch") : insert_rows(db, &m, first, err);
    mine_fini(&m);
    return rc;
}

static int find_set(struct sql *db, struct submit_run *run, struct err *err)
{
    static const char live[] =
        "SELECT " LIVE_COLUMNS " FROM job_delay_task" BY_KEY " WHERE biz_uuid IN ";

    return find_keys(db, run, live, submit_on_live, err);
}

const struct submit_ops my_submit_ops = {.insert = insert_and_look, .find = find_set};

/* ---- Claim -------------------------------------------------------------------------------- */

/* Who has the rows from now on: as claim_holder has it. */
static void put_holders(struct my_packet *p, const struct claim_set *c)
{
    struct my_ids leases = {0};
    bool any = false;

    for (size_t i = 0; i < c->n; i++) {
        my_ids_add(&leases, c->items[i]->id, c->items[i]->lease);
        any |= c->items[i]->lease != 0;
    }
    my_put(p, any ? "concat(" : "");
    my_put_text(p, c->claimed_by);
    if (any) {
        my_put(p, ", coalesce(concat('/', nullif(");
        my_put_value_by_id(p, &leases);
        my_put(p, ", 0)), ''))");
    }
    my_ids_fini(&leases);
}

static void put_claims(struct my_packet *p, struct claim_set *c, int64_t margin_ms)
{
    struct my_ids attempts = {0};
    struct my_ids timeouts = {0};

    for (size_t i = 0; i < c->n; i++) {
        my_ids_add(&attempts, c->items[i]->id, c->items[i]->attempt);
        my_ids_add(&timeouts, c->items[i]->id, c->items[i]->timeout_ms);
    }
    my_statement(p, NULL, NULL, NULL);
    my_put(p, "UPDATE job_delay_task" BY_ID " SET status = 'SENDING', attempt = attempt + 1, "
              "claimed_by = ");
    put_holders(p, c);
    my_put(p, ", room = NULL, claimed_at = {now}, updated_at = {now}, deadline_at = {now} + "
              "INTERVAL (coalesce(timeout_ms, ");
    my_put_value_by_id(p, &timeouts);
    my_put(p, ") + ");
    my_put_int(p, margin_ms);
    my_put(p, ") * 1000 MICROSECOND WHERE ");
    my_put_ids(p, "id", &attempts);
    my_put(p, " AND attempt = ");
    my_put_value_by_id(p, &attempts);
    my_put(p, " AND status IN ('PENDING', 'RETRYING') AND next_attempt_time <= {now}");
    my_statement(p, claim_set_on_live, c, NULL); /* what was not won is judged by it, too */
    my_put(p, "SELECT " LIVE_COLUMNS " FROM job_delay_task" BY_ID " WHERE ");
    my_put_ids(p, "id", &attempts);
    my_ids_fini(&attempts);
    my_ids_fini(&timeouts);
}

int my_claim(struct sql *db, struct claim_item **items, size_t n, struct str claimed_by,
             int64_t margin_ms, struct err *err)
{
    struct claim_set c = {items, n, claimed_by};
    struct my_packet p;
    int rc;

    if (!n)
        return 0;
    for (size_t i = 0; i < n; i++) {
        items[i]->task = NULL;
        judge_claim_miss(items[i], NULL, claimed_by); /* unless a row says otherwise */
    }
    rc = db->d->begin(db, err);
    if (!rc) {
        my_packet_start(&p, db);
        put_claims(&p, &c, margin_ms);
        my_put_commit(&p);
        rc = my_packet_run(&p, err);
        my_packet_fini(&p);
    }
    rc = sql_end(db, rc, err);
    if (rc)
        claim_set_drop(&c);
    return rc;
}

/* ---- Scan --------------------------------------------------------------------------------- */

struct scan {
    struct scan_rows rows;
    const struct my_packet *packet;
};

/* One statement per key. */
static int on_scan_row(void *ctx, const struct sql_value *row)
{
    struct scan *s = ctx;

    s->rows.key = (uint32_t)s->packet->at;
    return scan_add(&s->rows, row);
}

static void put_scan(struct my_packet *p, const struct scan_key *k)
{
    const struct sql_value key[] = {sql_text(k->service_name), sql_int(k->shard), sql_int(k->lane),
                                    sql_time(k->to_time)};
    const struct sql_value from[] = {sql_time(k->from_time), sql_time(k->from_time),
                                     sql_int(k->from_id)};

    my_put_query(p,
                 "SELECT " SCAN_COLUMNS " FROM job_delay_task FORCE INDEX (job_delay_task_due) "
                 "WHERE service_name = ? AND shard = ? AND lane = ? AND next_attempt_time <= ? "
                 "AND " SCAN_STATUSES,
                 key, 4);
    if (k->from_time != WALL_NONE)
        my_put_query(p, " AND (next_attempt_time > ? OR (next_attempt_time = ? AND id > ?))", from,
                     3);
    my_put(p, " ORDER BY next_attempt_time, id LIMIT ");
    my_put_int(p, k->limit);
}

int my_scan(struct sql *db, struct scan_op *op, struct err *err)
{
    struct my_packet p;
    struct scan s = {.rows = {.op = op}, .packet = &p};
    int rc;

    op->rows = NULL;
    op->n_rows = 0;
    if (!op->n_keys)
        return 0;
    my_packet_start(&p, db);
    for (size_t i = 0; i < op->n_keys; i++) {
        my_statement(&p, on_scan_row, &s, NULL);
        put_scan(&p, &op->keys[i]);
    }
    rc = my_packet_run(&p, err);
    my_packet_fini(&p);
    if (rc) {
        buf_fini(&s.rows.rows);
        return rc;
    }
    op->rows = (struct scan_row *)s.rows.rows.data; /* the buffer's memory is malloc's */
    op->n_rows = s.rows.rows.len / sizeof(struct scan_row);
    return 0;
}
