/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/store_fake.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_STORED 4096
#define DEADLINE_S 20

struct driver_conn {
    atomic_bool in_use;
};

struct fault {
    uint32_t skip;
    uint32_t times;
    int rc;
    bool after; /* the effect is there, the answer is lost */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct fault faults[FAKE_N];
    bool blocked[FAKE_N];
    unsigned n_inside[FAKE_N];
    unsigned n_calls[FAKE_N];
    size_t rows[FAKE_N][FAKE_MAX_LOG];
    char first[FAKE_N][FAKE_MAX_LOG][24];
    char warning[64];
    unsigned n_open;
    int64_t next_id;
    struct {
        char key[24];
        int64_t id;
    } stored[MAX_STORED];
    size_t n_stored;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void fake_reset(void)
{
    pthread_mutex_lock(&fake.lock);
    assert(!fake.n_open);
    memset(fake.faults, 0, sizeof(fake.faults));
    memset(fake.blocked, 0, sizeof(fake.blocked));
    memset(fake.n_calls, 0, sizeof(fake.n_calls));
    fake.warning[0] = '\0';
    fake.next_id = 1;
    fake.n_stored = 0;
    pthread_mutex_unlock(&fake.lock);
}

static void set_fault(enum fake_fn fn, struct fault f)
{
    pthread_mutex_lock(&fake.lock);
    fake.faults[fn] = f;
    pthread_mutex_unlock(&fake.lock);
}

void fake_fail(enum fake_fn fn, int rc, uint32_t times)
{
    set_fault(fn, (struct fault){.rc = rc, .times = times});
}

void fake_lose(enum fake_fn fn, int rc, uint32_t times)
{
    set_fault(fn, (struct fault){.rc = rc, .times = times, .after = true});
}

void fake_fail_later(enum fake_fn fn, uint32_t skip, int rc, uint32_t times)
{
    set_fault(fn, (struct fault){.skip = skip, .rc = rc, .times = times});
}

void fake_warn(const char *text)
{
    pthread_mutex_lock(&fake.lock);
    (void)snprintf(fake.warning, sizeof(fake.warning), "%s", text);
    pthread_mutex_unlock(&fake.lock);
}

static void set_blocked(enum fake_fn fn, bool blocked)
{
    pthread_mutex_lock(&fake.lock);
    fake.blocked[fn] = blocked;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

void fake_block(enum fake_fn fn)
{
    set_blocked(fn, true);
}

void fake_release(enum fake_fn fn)
{
    set_blocked(fn, false);
}

void fake_wait_inside(enum fake_fn fn, unsigned n)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DEADLINE_S;
    pthread_mutex_lock(&fake.lock);
    while (fake.n_inside[fn] < n) {
        if (pthread_cond_timedwait(&fake.changed, &fake.lock, &until)) {
            (void)fprintf(stderr, "function %d: %u calls inside, not %u\n", (int)fn,
                          fake.n_inside[fn], n);
            abort();
        }
    }
    pthread_mutex_unlock(&fake.lock);
}

unsigned fake_inside(enum fake_fn fn)
{
    pthread_mutex_lock(&fake.lock);
    unsigned n = fake.n_inside[fn];
    pthread_mutex_unlock(&fake.lock);
    return n;
}

unsigned fake_calls(enum fake_fn fn)
{
    pthread_mutex_lock(&fake.lock);
    unsigned n = fake.n_calls[fn];
    pthread_mutex_unlock(&fake.lock);
    return n;
}

size_t fake_rows(enum fake_fn fn, unsigned i)
{
    pthread_mutex_lock(&fake.lock);
    assert(i < FAKE_MAX_LOG && i < fake.n_calls[fn]);
    size_t n = fake.rows[fn][i];
    pthread_mutex_unlock(&fake.lock);
    return n;
}

const char *fake_first(enum fake_fn fn, unsigned i)
{
    assert(i < FAKE_MAX_LOG && i < fake_calls(fn));
    return fake.first[fn][i];
}

unsigned fake_open_connections(void)
{
    pthread_mutex_lock(&fake.lock);
    unsigned n = fake.n_open;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

/* ---- The table --------------------------------------------------------------------------- */

/* Records the call, waits while its function is blocked, and then leaves the lock held. *ret_lost:
 * do the work, then return the code. */
static int enter(struct driver_conn *c, enum fake_fn fn, size_t n, const char *first,
                 bool *ret_lost)
{
    struct fault *f = &fake.faults[fn];

    if (c && atomic_exchange(&c->in_use, true))
        abort();
    pthread_mutex_lock(&fake.lock);
    unsigned i = fake.n_calls[fn]++;
    if (i < FAKE_MAX_LOG) {
        fake.rows[fn][i] = n;
        (void)snprintf(fake.first[fn][i], sizeof(fake.first[fn][i]), "%s", first);
    }
    fake.n_inside[fn]++;
    pthread_cond_broadcast(&fake.changed);
    while (fake.blocked[fn])
        pthread_cond_wait(&fake.changed, &fake.lock);
    fake.n_inside[fn]--;
    *ret_lost = f->after;
    if (f->skip) {
        f->skip--;
        return 0;
    }
    if (!f->times)
        return 0;
    if (f->times != FAKE_FOR_EVER)
        f->times--;
    return f->rc;
}

static int leave(struct driver_conn *c, int rc, struct err *err)
{
    pthread_mutex_unlock(&fake.lock);
    if (c)
        atomic_store(&c->in_use, false);
    return rc ? err_set(err, rc, "scripted: %s", err_name(rc)) : 0;
}

static int fake_open(const char *url, const struct driver_options *opt, struct driver_conn **ret,
                     char **ret_warning, struct err *err)
{
    bool lost;
    int rc = enter(NULL, FAKE_OPEN, 0, url, &lost);

    (void)opt;
    if (!rc) {
        *ret = calloc(1, sizeof(**ret));
        assert(*ret);
        *ret_warning = fake.warning[0] ? strdup(fake.warning) : NULL;
        fake.n_open++;
    }
    return leave(NULL, rc, err);
}

static void fake_close(struct driver_conn *c)
{
    if (atomic_exchange(&c->in_use, true))
        abort();
    pthread_mutex_lock(&fake.lock);
    fake.n_open--;
    pthread_mutex_unlock(&fake.lock);
    free(c);
}

static int fake_migrate(struct driver_conn *c, const struct migration *m, size_t n, bool check_only,
                        int *ret_from, int *ret_to, struct err *err)
{
    bool lost;
    int rc = enter(c, FAKE_MIGRATE, n, "", &lost);

    (void)m;
    (void)check_only;
    if (!rc) {
        *ret_from = 3;
        *ret_to = 5;
    }
    return leave(c, rc, err);
}

static int fake_take_ids(struct driver_conn *c, int64_t *ret_first, int64_t *ret_n, struct err *err)
{
    bool lost;
    int rc = enter(c, FAKE_TAKE_IDS, 0, "", &lost);

    if (!rc) {
        *ret_first = fake.next_id;
        *ret_n = FAKE_ID_BLOCK;
        fake.next_id += FAKE_ID_BLOCK;
    }
    return leave(c, rc, err);
}

static int64_t store_row(const struct task *t)
{
    for (size_t i = 0; i < fake.n_stored; i++) {
        if (str_eqz(t->biz_uuid, fake.stored[i].key))
            return fake.stored[i].id;
    }
    assert(fake.n_stored < MAX_STORED);
    (void)snprintf(fake.stored[fake.n_stored].key, sizeof(fake.stored[0].key), STR_FMT,
                   STR_ARG(t->biz_uuid));
    fake.stored[fake.n_stored++].id = t->id;
    return t->id;
}

/* Keys that begin with "bad" can never be written. */
static bool is_bad(const struct submit_item *item)
{
    return item->task->biz_uuid.len > 3 && !memcmp(item->task->biz_uuid.p, "bad", 3);
}

static void put_row(struct submit_item *item)
{
    int64_t id = store_row(item->task);

    item->result = id == item->task->id ? SUBMIT_CREATED : SUBMIT_DUPLICATE;
    item->existing = NULL;
    if (id == item->task->id)
        return;
    item->existing = task_dup(item->task);
    assert(item->existing);
    item->existing->id = id;
}

static int fake_submit(struct driver_conn *c, struct submit_item **items, size_t n, struct err *err)
{
    bool lost;
    int rc;

    for (size_t i = 0; i < n; i++) {
        const struct task *t = items[i]->task;

        assert(t->id > 0 && trace_id_task(str_from(t->trace_id)) == t->id);
        assert(i == 0 || str_cmp(items[i - 1]->task->biz_uuid, t->biz_uuid) < 0);
    }
    rc = enter(c, FAKE_SUBMIT, n, items[0]->task->biz_uuid.p, &lost);
    for (size_t i = 0; i < n && !rc; i++)
        rc = is_bad(items[i]) ? ERR_INVALID : 0;
    for (size_t i = 0; i < n && (!rc || lost); i++) {
        put_row(items[i]);
        if (rc) { /* nobody hears of it */
            task_free(items[i]->existing);
            items[i]->existing = NULL;
        }
    }
    return leave(c, rc, err);
}

static int fake_claim(struct driver_conn *c, struct claim_item **items, size_t n,
                      struct str claimed_by, int64_t margin_ms, struct err *err)
{
    char first[24];
    bool lost;
    int rc;

    assert(str_eq(claimed_by, STR("me/1")) && margin_ms == 7);
    for (size_t i = 1; i < n; i++)
        assert(items[i - 1]->id < items[i]->id);
    (void)snprintf(first, sizeof(first), "%lld", (long long)items[0]->id);
    rc = enter(c, FAKE_CLAIM, n, first, &lost);
    for (size_t i = 0; i < n && !rc; i++) {
        struct task t = task_empty();

        t.id = items[i]->id;
        items[i]->result = CLAIM_WON;
        items[i]->task = task_dup(&t);
        assert(items[i]->task);
    }
    return leave(c, rc, err);
}

static int fake_finish(struct driver_conn *c, struct finish_item **items, size_t n, struct err *err)
{
    char first[24];
    bool lost;
    int rc;

    for (size_t i = 1; i < n; i++)
        assert(items[i - 1]->id < items[i]->id);
    (void)snprintf(first, sizeof(first), "%lld", (long long)items[0]->id);
    rc = enter(c, FAKE_FINISH, n, first, &lost);
    for (size_t i = 0; i < n && !rc; i++)
        items[i]->result = FINISH_DONE;
    return leave(c, rc, err);
}

static int fake_cancel(struct driver_conn *c, struct cancel_op **items, size_t n, struct err *err)
{
    bool lost;
    int rc;

    for (size_t i = 1; i < n; i++)
        assert(str_cmp(items[i - 1]->biz_uuid, items[i]->biz_uuid) < 0);
    rc = enter(c, FAKE_CANCEL, n, items[0]->biz_uuid.p, &lost);
    for (size_t i = 0; i < n && !rc; i++)
        items[i]->result = CANCEL_NOT_FOUND;
    return leave(c, rc, err);
}

static int fake_scan(struct driver_conn *c, struct scan_op *op, struct err *err)
{
    bool lost;
    int rc = enter(c, FAKE_SCAN, 1, "", &lost);

    if (!rc) {
        op->rows = NULL;
        op->n_rows = 0;
    }
    return leave(c, rc, err);
}

static int fake_call(struct driver_conn *c, struct store_call *call, struct err *err)
{
    bool lost;

    (void)call;
    return leave(c, enter(c, FAKE_CALL, 1, "", &lost), err);
}

#define FAKE_TABLE                                                                                 \
    .scheme = "fake", .open = fake_open, .close = fake_close, .migrate = fake_migrate,             \
    .take_ids = fake_take_ids, .submit = fake_submit, .claim = fake_claim, .finish = fake_finish,  \
    .cancel = fake_cancel, .scan = fake_scan, .call = fake_call

const struct driver fake_driver = {FAKE_TABLE};
const struct driver fake_one_writer = {FAKE_TABLE, .one_writer = true};

/* These stand in for driver.c, so that the store is tested without a database. */
const struct driver *driver_find(const char *url)
{
    return strncmp(url, "fake:", 5) ? NULL : &fake_driver;
}

const struct migration *driver_migrations(const struct driver *d, size_t *ret_n)
{
    (void)d;
    *ret_n = 0;
    return NULL;
}
