/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/world.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum kept_kind { KEPT_BLOCK, KEPT_TASK, KEPT_CONN, KEPT_DATABASE };

struct kept {
    enum kept_kind kind;
    void *p;
    struct kept *next;
};

static void keep(struct world *w, enum kept_kind kind, void *p)
{
    struct kept *k = malloc(sizeof(*k));

    if (!k)
        abort();
    *k = (struct kept){.kind = kind, .p = p, .next = w->kept};
    w->kept = k;
}

void *world_keep(struct world *w, void *block)
{
    if (block)
        keep(w, KEPT_BLOCK, block);
    return block;
}

const struct task *world_keep_task(struct world *w, struct task *t)
{
    if (t)
        keep(w, KEPT_TASK, t);
    return t;
}

struct str world_text(struct world *w, const char *fmt, ...)
{
    char *text;
    va_list args;
    int len;

    va_start(args, fmt);
    len = vasprintf(&text, fmt, args);
    va_end(args);
    if (len < 0)
        abort();
    (void)world_keep(w, text);
    return (struct str){text, (size_t)len};
}

struct str world_fill(struct world *w, const char *unit, size_t n)
{
    size_t len = strlen(unit);
    char *text = malloc(n + 1);

    if (!text)
        abort();
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % len];
    text[n] = '\0';
    (void)world_keep(w, text);
    return (struct str){text, n};
}

/* ---- Birth and death ----------------------------------------------------------------------- */

struct driver_conn *world_connect_to(struct world *w, const char *url,
                                     const struct driver_options *opt, const char **ret_warning)
{
    struct driver_conn *conn = NULL;
    struct err err = {0};
    char *warning = NULL;
    int rc = w->d->open(url, opt, &conn, &warning, &err);

    if (rc)
        fail_msg("open %s: %s: %s", url, err_name(rc), err.text);
    (void)world_keep(w, warning);
    keep(w, KEPT_CONN, conn);
    if (ret_warning)
        *ret_warning = warning;
    return conn;
}

struct driver_conn *world_connect(struct world *w)
{
    const struct driver_options opt = {.statement_timeout_ms = 30000, .named_statements = true};

    return world_connect_to(w, w->url, &opt, NULL);
}

const char *world_empty(struct world *w)
{
    char *url = malloc(URL_SIZE);

    if (!url)
        abort();
    w->backend->create(w->backend, url);
    keep(w, KEPT_DATABASE, url);
    return url;
}

static void migrate(struct world *w)
{
    size_t n;
    const struct migration *m = w->backend->migrations(w->backend, &n);
    struct err err = {0};
    int from;
    int to;
    int rc = w->d->migrate(w->conn, m, n, false, &from, &to, &err);

    if (rc)
        fail_msg("migrate: %s: %s", err_name(rc), err.text);
}

struct world *world_new(const struct backend *b)
{
    struct world *w = calloc(1, sizeof(*w));

    if (!w)
        abort();
    w->backend = b;
    w->d = b->driver;
    b->create(b, w->url);
    w->conn = world_connect(w);
    migrate(w);
    return w;
}

void world_free(struct world *w)
{
    if (!w)
        return;
    if (w->rig)
        w->stop_rig(w->rig);
    while (w->kept) {
        struct kept *k = w->kept;

        w->kept = k->next;
        if (k->kind == KEPT_CONN)
            w->d->close(k->p);
        else if (k->kind == KEPT_TASK)
            task_free(k->p);
        else if (k->kind == KEPT_DATABASE)
            w->backend->drop(w->backend, k->p);
        if (k->kind == KEPT_BLOCK || k->kind == KEPT_DATABASE)
            free(k->p);
        free(k);
    }
    w->backend->drop(w->backend, w->url);
    free(w);
}

/* ---- Time and SQL -------------------------------------------------------------------------- */

void nap(void)
{
    const struct timespec ts = {.tv_nsec = 1000000};

    (void)nanosleep(&ts, NULL);
}

wall_ms world_now(struct world *w)
{
    struct call_clock c = {0};

    assert_int_equal(call(w, &c.call, CALL_CLOCK), 0);
    return c.now_us / 1000;
}

void world_wait_past(struct world *w, wall_ms t)
{
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (world_now(w) <= t) {
        assert_true(clock_mono() < until);
        nap();
    }
}

bool has_sql(const struct world *w)
{
    return (w->backend->has & NEEDS_SQL) != 0;
}

int64_t sql_value(struct world *w, const char *fmt, ...)
{
    struct err err = {0};
    char sql[2048];
    va_list args;
    int64_t v;
    int len;

    va_start(args, fmt);
    len = vsnprintf(sql, sizeof(sql), fmt, args);
    va_end(args);
    assert_true(len > 0 && (size_t)len < sizeof(sql));
    if (!w->backend->query(w->url, sql, &v, &err))
        fail_msg("%s: %s", sql, err.text);
    return v;
}

/* ---- Looking ------------------------------------------------------------------------------- */

int call(struct world *w, struct store_call *c, enum call_what what)
{
    struct err err = {0};
    int rc;

    c->op.kind = STORE_CALL;
    c->what = what;
    rc = w->d->call(w->conn, c, &err);
    if (rc && rc != ERR_NOT_FOUND && rc != ERR_CONFLICT)
        fail_msg("call %d: %s: %s", what, err_name(rc), err.text);
    return rc;
}

static const struct task *get(struct world *w, struct call_get *c)
{
    int rc = call(w, &c->call, CALL_GET);

    if (rc) {
        assert_int_equal(rc, ERR_NOT_FOUND);
        assert_null(c->task);
        return NULL;
    }
    assert_non_null(c->task);
    (void)world_keep(w, c->attempts);
    return world_keep_task(w, c->task);
}

const struct task *look_key(struct world *w, struct str biz_uuid)
{
    struct call_get c = {.biz_uuid = biz_uuid};

    return get(w, &c);
}

const struct task *look(struct world *w, const char *biz_uuid)
{
    return look_key(w, str_from(biz_uuid));
}

const struct task *look_id(struct world *w, int64_t id)
{
    struct call_get c = {.id = id};

    return get(w, &c);
}

struct call_get look_attempts(struct world *w, int64_t id)
{
    struct call_get c = {.id = id, .with_attempts = true};

    assert_non_null(get(w, &c));
    return c;
}

size_t count_alerts(struct world *w)
{
    struct call_alert_list c = {.limit = 1000, .lease_ms = 0};

    assert_int_equal(call(w, &c.call, CALL_ALERT_LIST), 0);
    (void)world_keep(w, c.alerts);
    for (size_t i = 0; i < c.n; i++)
        (void)world_keep_task(w, c.alerts[i].task);
    return c.n;
}

void assert_status(struct world *w, const char *biz_uuid, enum task_status status)
{
    const struct task *t = look(w, biz_uuid);

    assert_non_null(t);
    assert_string_equal(task_status_name(t->status), task_status_name(status));
}

void assert_str_at(struct str s, const char *z, const char *file, int line)
{
    if (str_eqz(s, z))
        return;
    print_error("\"" STR_FMT "\" is not \"%s\"\n", STR_ARG(s), z);
    _fail(file, line);
}

#define SAME_SPAN(field)                                                                           \
    do {                                                                                           \
        if (!str_eq(a->field, b->field)) {                                                         \
            print_error(#field ": \"" STR_FMT "\" and \"" STR_FMT "\"\n", STR_ARG(a->field),       \
                        STR_ARG(b->field));                                                        \
            _fail(file, line);                                                                     \
        }                                                                                          \
    } while (0)
#define SAME_INT(field)                                                                            \
    do {                                                                                           \
        if (a->field != b->field) {                                                                \
            print_error(#field ": %" PRId64 " and %" PRId64 "\n", (int64_t)a->field,               \
                        (int64_t)b->field);                                                        \
            _fail(file, line);                                                                     \
        }                                                                                          \
    } while (0)

static void assert_same_texts(const struct task *a, const struct task *b, const char *file,
                              int line)
{
    if (strcmp(a->trace_id, b->trace_id) != 0) {
        print_error("trace_id: %s and %s\n", a->trace_id, b->trace_id);
        _fail(file, line);
    }
    SAME_SPAN(biz_uuid);
    SAME_SPAN(service_name);
    SAME_SPAN(handler);
    SAME_SPAN(payload);
    SAME_SPAN(policy);
    SAME_SPAN(claimed_by);
    SAME_SPAN(last_error);
}

void assert_same_task_at(const struct task *a, const struct task *b, const char *file, int line)
{
    if (!a || !b) {
        print_error("one of the tasks is absent\n");
        _fail(file, line);
    }
    assert_same_texts(a, b, file, line);
    SAME_INT(id);
    SAME_INT(status);
    SAME_INT(execute_time);
    SAME_INT(next_attempt_time);
    SAME_INT(claimed_at);
    SAME_INT(deadline_at);
    SAME_INT(failed_at);
    SAME_INT(finished_at);
    SAME_INT(created_at);
    SAME_INT(updated_at);
    SAME_INT(shard);
    SAME_INT(lane);
    SAME_INT(priority);
    SAME_INT(attempt);
    SAME_INT(retry_count);
    SAME_INT(max_retry);
    SAME_INT(snooze_count);
    SAME_INT(timeout_ms);
    SAME_INT(last_http_status);
}
