/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/store_fake.h"

#define DEADLINE_MS 20000
#define MAX_REPORTS 16

static struct {
    pthread_mutex_t lock;
    bool up[MAX_REPORTS];
    char texts[MAX_REPORTS][128];
    unsigned n;
    unsigned n_warnings;
} reports = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_committed(void *ctx, struct store_op *const *ops, size_t n)
{
    (void)ctx;
    assert(n > 0);
    for (size_t i = 0; i < n; i++) {
        assert(!ops[i]->rc);
        ((struct ask *)ops[i])->was_committed = true;
    }
}

static void on_state(void *ctx, bool up, const char *text)
{
    (void)ctx;
    pthread_mutex_lock(&reports.lock);
    assert(reports.n < MAX_REPORTS && up == !text);
    reports.up[reports.n] = up;
    (void)snprintf(reports.texts[reports.n], sizeof(reports.texts[0]), "%s", text ? text : "");
    reports.n++;
    pthread_mutex_unlock(&reports.lock);
}

static void on_warning(void *ctx, const char *text)
{
    (void)ctx;
    assert(text[0]);
    pthread_mutex_lock(&reports.lock);
    reports.n_warnings++;
    pthread_mutex_unlock(&reports.lock);
}

unsigned asker_reports(void)
{
    pthread_mutex_lock(&reports.lock);
    unsigned n = reports.n;
    pthread_mutex_unlock(&reports.lock);
    return n;
}

bool asker_report(unsigned i, const char **ret_text)
{
    assert(i < asker_reports());
    *ret_text = reports.texts[i];
    return reports.up[i];
}

unsigned asker_warnings(void)
{
    pthread_mutex_lock(&reports.lock);
    unsigned n = reports.n_warnings;
    pthread_mutex_unlock(&reports.lock);
    return n;
}

/* ---- Lifecycle --------------------------------------------------------------------------- */

void asker_init(struct asker *a)
{
    int rc;

    fake_reset();
    reports.n = 0;
    reports.n_warnings = 0;
    *a = (struct asker){.cfg = {.url = "fake:",
                                .connections = 1,
                                .queue_limit = 1000,
                                .batch_rows = 100,
                                .batch_bytes = 1 << 20,
                                .give_up_ms = 10000,
                                .reconnect_max_ms = 20,
                                .on_committed = on_committed,
                                .on_state = on_state,
                                .on_warning = on_warning}};
    rc = mailbox_new(&a->mailbox);
    assert(!rc);
}

void asker_start(struct asker *a, const struct driver *d)
{
    struct err err = {{0}};
    int rc = store_start(&a->cfg, d, &a->store, &err);

    assert(!rc);
    a->port = store_port(a->store);
}

void asker_start_up(struct asker *a, const struct driver *d)
{
    asker_start(a, d);
    asker_wait_state(a, true);
}

void asker_stop(struct asker *a)
{
    store_stop(a->store);
    a->store = NULL;
    (void)mailbox_deliver(a->mailbox);
}

void asker_fini(struct asker *a)
{
    asker_stop(a);
    mailbox_free(a->mailbox);
    assert(!fake_open_connections());
}

/* ---- Waiting ----------------------------------------------------------------------------- */

/* Delivers, or looks again after a moment. */
static void step(struct asker *a, mono_ms until)
{
    struct pollfd p = {.fd = a->mailbox ? mailbox_fd(a->mailbox) : -1, .events = POLLIN};

    if (clock_mono() > until) {
        (void)fprintf(stderr, "the condition did not come about\n");
        abort();
    }
    if (poll(&p, 1, 1) > 0)
        (void)mailbox_deliver(a->mailbox);
}

void asker_wait(struct asker *a, const struct ask *ask)
{
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (!ask->n_done)
        step(a, until);
}

void asker_wait_state(struct asker *a, bool up)
{
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (store_is_up(a->store) != up)
        step(a, until);
}

void asker_wait_reports(unsigned n)
{
    struct asker nobody = {0};
    mono_ms until = clock_mono() + DEADLINE_MS;

    while (asker_reports() < n)
        step(&nobody, until);
}

/* ---- Operations -------------------------------------------------------------------------- */

static unsigned n_delivered;

static void on_delivery(struct mail *m)
{
    struct ask *ask = (struct ask *)m;

    ask->n_done++;
    ask->order = ++n_delivered;
}

static void init(struct ask *ask, enum store_kind kind)
{
    memset(ask, 0, sizeof(*ask));
    ask->op.kind = kind;
    ask->op.mail.on_delivery = on_delivery;
}

static void set_row(struct ask *ask, unsigned i, const char *key)
{
    (void)snprintf(ask->keys[i], sizeof(ask->keys[i]), "%s", key);
    ask->tasks[i] = task_empty();
    ask->tasks[i].biz_uuid = str_from(ask->keys[i]);
    ask->submits[i].task = &ask->tasks[i];
}

void ask_submit(struct ask *ask, const char *key)
{
    init(ask, STORE_SUBMIT);
    set_row(ask, 0, key);
    ask->submit.items = ask->submits;
    ask->submit.n = 1;
}

void ask_submit_rows(struct ask *ask, const char *prefix, unsigned n)
{
    char key[24];

    assert(n <= ASK_ROWS);
    init(ask, STORE_SUBMIT);
    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(key, sizeof(key), "%s%02u", prefix, i);
        set_row(ask, i, key);
    }
    ask->submit.items = ask->submits;
    ask->submit.n = n;
}

void ask_claim(struct ask *ask, int64_t first, unsigned n)
{
    assert(n <= ASK_ROWS);
    init(ask, STORE_CLAIM);
    for (unsigned i = 0; i < n; i++)
        ask->claims[i].id = first + n - 1 - i; /* not sorted */
    ask->claim.items = ask->claims;
    ask->claim.n = n;
    ask->claim.claimed_by = STR("me/1");
    ask->claim.margin_ms = 7;
}

void ask_finish(struct ask *ask, int64_t first, unsigned n)
{
    assert(n <= ASK_ROWS);
    init(ask, STORE_FINISH);
    for (unsigned i = 0; i < n; i++)
        ask->finishes[i].id = first + n - 1 - i;
    ask->finish.items = ask->finishes;
    ask->finish.n = n;
}

void ask_cancel(struct ask *ask, const char *key)
{
    init(ask, STORE_CANCEL);
    (void)snprintf(ask->keys[0], sizeof(ask->keys[0]), "%s", key);
    ask->cancel.biz_uuid = str_from(ask->keys[0]);
}

void ask_scan(struct ask *ask)
{
    init(ask, STORE_SCAN);
}

void ask_call(struct ask *ask, enum call_what what)
{
    init(ask, STORE_CALL);
    ask->call.call.what = what;
}

void ask_free(struct ask *ask)
{
    for (size_t i = 0; ask->op.kind == STORE_SUBMIT && i < ask->submit.n; i++)
        task_free(ask->submits[i].existing);
    for (size_t i = 0; ask->op.kind == STORE_CLAIM && i < ask->claim.n; i++)
        task_free(ask->claims[i].task);
}

int asker_try(struct asker *a, struct ask *ask)
{
    ask->op.reply = a->mailbox;
    return store_post(&a->port, &ask->op);
}

void asker_post(struct asker *a, struct ask *ask)
{
    int rc = asker_try(a, ask);

    assert(!rc);
}
