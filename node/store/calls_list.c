/* SPDX-License-Identifier: Apache-2.0 */
/* A page of both tables, newest id first. Of each table a window of at most look_limit rows below
 * the position is looked at. The page ends where one of the windows does, so that nothing is passed
 * over unseen; the next one goes on from there.
 *
 * The live table is read first: a task only moves from there to history, so it may be seen twice
 * (and is then shown once, as history has it), never not at all. */
#include "node/store/calls.h"

#include <stdlib.h>
#include <string.h>

#include "node/store/task_row.h"

#define LIST_PARAMS_MAX 8

struct page {
    struct task **tasks; /* owned; newest first */
    size_t n;
    size_t cap;
    int64_t floor; /* ids below were not looked at; 0 = all were */
};

static int on_task(void *ctx, const struct sql_value *row)
{
    struct page *p = ctx;

    if (p->n == p->cap) /* LIMIT says so */
        return ERR_CORRUPT;
    p->tasks[p->n] = NULL;
    return task_keep_row(&p->tasks[p->n++], row);
}

static void page_fini(struct page *p)
{
    for (size_t i = 0; i < p->n; i++)
        task_free(p->tasks[i]);
    free(p->tasks);
}

static void put_filters(struct buf *b, const struct call_list *c, struct sql_value *params,
                        size_t *n)
{
    if (c->statuses) {
        bool first = true;

        buf_addz(b, " AND status IN (");
        for (int s = 0; s < TASK_N_STATUSES; s++) {
            if (c->statuses & (1u << s)) {
                buf_addf(b, "%s'%s'", first ? "" : ", ", task_status_name((enum task_status)s));
                first = false;
            }
        }
        buf_addz(b, ")");
    }
    if (c->service_name.p) {
        buf_addz(b, " AND service_name = ?");
        params[(*n)++] = sql_text(c->service_name);
    }
    if (c->handler.p) {
        buf_addz(b, " AND handler = ?");
        params[(*n)++] = sql_text(c->handler);
    }
    if (c->from != WALL_NONE) {
        buf_addz(b, " AND execute_time >= ?");
        params[(*n)++] = sql_time(c->from);
    }
    if (c->to != WALL_NONE) {
        buf_addz(b, " AND execute_time < ?");
        params[(*n)++] = sql_time(c->to);
    }
}

static int run_text(struct sql *db, struct buf *b, const struct sql_value *params, size_t n,
                    sql_row_fn *on_row, void *ctx, struct err *err)
{
    buf_addc(b, '\0');
    if (!buf_ok(b))
        return err_set(err, ERR_NOMEM, "no memory for a statement");
    return sql_run(db,
                   &(struct sql_query){.text = b->data,
                                       .once = true,
                                       .params = params,
                                       .n_params = n,
                                       .on_row = on_row,
                                       .ctx = ctx},
                   err);
}

/* The last id of the window, if the window is full. */
static int read_floor(struct sql *db, const char *table, const struct call_list *c, int64_t *ret,
                      struct err *err)
{
    const struct sql_value params[] = {sql_int(c->before_id), sql_int(c->look_limit - 1)};
    struct buf b = BUF_INIT;
    int rc;

    *ret = 0;
    buf_addf(&b, "SELECT id FROM %s WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?", table);
    rc = run_text(db, &b, params, 2, sql_on_int, ret, err);
    buf_fini(&b);
    return rc;
}

static int read_page(struct sql *db, const char *table, const char *columns,
                     const struct call_list *c, struct page *p, struct err *err)
{
    struct sql_value params[LIST_PARAMS_MAX];
    struct buf b = BUF_INIT;
    size_t n = 0;
    int rc;

    *p = (struct page){.tasks = calloc(c->limit, sizeof(struct task *)), .cap = c->limit};
    if (!p->tasks)
        return err_set(err, ERR_NOMEM, "no memory for a page");
    rc = read_floor(db, table, c, &p->floor, err);
    if (rc)
        return rc;
    params[n++] = sql_int(c->before_id);
    params[n++] = sql_int(p->floor);
    buf_addf(&b, "SELECT %s FROM %s WHERE id < ? AND id >= ?", columns, table);
    put_filters(&b, c, params, &n);
    buf_addz(&b, " ORDER BY id DESC LIMIT ?");
    params[n++] = sql_int(c->limit);
    rc = run_text(db, &b, params, n, on_task, p, err);
    buf_fini(&b);
    if (!rc && p->n == c->limit)
        p->floor = p->tasks[p->n - 1]->id;
    return rc;
}

/* Moves the newer of the two first tasks into the result; of a task in both, history's. */
static void merge(struct call_list *c, struct page *live, struct page *history)
{
    int64_t floor = live->floor > history->floor ? live->floor : history->floor;
    size_t l = 0;
    size_t h = 0;

    while (c->n < c->limit && (l < live->n || h < history->n)) {
        struct page *from = history;
        size_t *at = &h;
        struct task *t;

        if (h == history->n || (l < live->n && live->tasks[l]->id > history->tasks[h]->id)) {
            from = live;
            at = &l;
        } else if (l < live->n && live->tasks[l]->id == history->tasks[h]->id) {
            l++;
        }
        t = from->tasks[*at];
        if (t->id < floor)
            break;
        from->tasks[(*at)++] = NULL;
        c->tasks[c->n++] = t;
    }
    if (c->n == c->limit && c->n)
        floor = c->tasks[c->n - 1]->id;
    c->next_before_id = floor;
}

int call_list(struct sql *db, struct call_list *c, struct err *err)
{
    struct page live = {0};
    struct page history = {0};
    int rc = read_page(db, "job_delay_task", LIVE_COLUMNS, c, &live, err);

    c->tasks = NULL;
    c->n = 0;
    if (!rc)
        rc = read_page(db, "job_delay_task_history", HISTORY_COLUMNS, c, &history, err);
    if (!rc) {
        c->tasks = calloc(c->limit, sizeof(struct task *));
        if (c->tasks)
            merge(c, &live, &history);
        else
            rc = err_set(err, ERR_NOMEM, "no memory for a page");
    }
    page_fini(&live);
    page_fini(&history);
    return rc;
}
