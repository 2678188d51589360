/* SPDX-License-Identifier: Apache-2.0 */
/* What only a database in a file has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/store/rig.h"

/* Runs this program again, collects what it prints, and returns its exit status. */
static int run_again(struct world *w, const char *what, const char *url, char *out, size_t cap)
{
    char self[URL_SIZE];
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    size_t n;
    int status;
    FILE *f;

    assert_true(len > 0);
    self[len] = '\0';
    f = popen(world_text(w, "'%s' %s '%s'", self, what, url).p, "re");
    assert_non_null(f);
    n = fread(out, 1, cap - 1, f);
    out[n] = '\0';
    status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_a_second_process_is_refused(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    const char *file = strchr(w->url, ':') + 1;
    char out[1024];

    assert_int_equal(run_again(w, "probe", w->url, out, sizeof(out)), 1);
    if (!strstr(out, file))
        fail_msg("which file? %s", out);
    rig_post(r, rig_claim_job(r, 1, 0)); /* and the first one goes on */
    rig_wait(r);
}

/* The lock is the process's, whichever of its connections comes and goes. */
static void test_a_closed_connection_lets_nobody_in(struct world *w)
{
    const struct driver_options opt = {.statement_timeout_ms = 1000, .named_statements = true};
    struct driver_conn *second = NULL;
    char *warning = NULL;
    struct err err = {0};
    char out[1024];

    assert_int_equal(w->d->open(w->url, &opt, &second, &warning, &err), 0);
    free(warning);
    w->d->close(second);
    assert_int_equal(run_again(w, "probe", w->url, out, sizeof(out)), 1);
    (void)put_key(w, "k");
}

static void test_the_next_process_may_have_it(struct world *w)
{
    const char *url = world_empty(w);
    char out[1024];

    assert_int_equal(run_again(w, "probe", url, out, sizeof(out)), 0);
    assert_int_equal(run_again(w, "probe", url, out, sizeof(out)), 0);
}

/* People look into the file with their own tools while the node runs. */
static void test_other_programs_read_meanwhile(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    struct job *j = rig_submit_job(r, 3);
    char out[1024];

    for (size_t i = 0; i < 3; i++)
        j->tasks[i].biz_uuid = world_text(w, "k%zu", i);
    rig_post(r, j);
    rig_wait(r);
    assert_int_equal(run_again(w, "count", w->url, out, sizeof(out)), 0);
    assert_string_equal(out, "3\n");
}

/* A reader with an open snapshot holds up neither writes nor other reads. */
static void test_a_long_reader_holds_nothing_up(struct world *w)
{
    struct rig *r = rig_start(w, rig_config(w), true);
    void *held = w->backend->hold(w->url, w->backend->old_snapshot);
    struct job *j = rig_submit_job(r, 1);

    j->tasks[0].biz_uuid = STR("k");
    rig_post(r, j);
    rig_wait(r);
    w->backend->release(held, false);
    assert_int_equal(j->op.rc, 0);
    assert_int_equal(j->items[0].result, SUBMIT_CREATED);
}

/* ---- A file that can only be read ---------------------------------------------------------- */

enum { NOBODY = 65534 };

/* To the superuser every file is writable: threads that are started from here on are nobody's. */
static void drop_rights(struct world *w)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    const char *file = strchr(w->url, ':') + 1;
    struct str dir = {file, (size_t)(strrchr(file, '/') - file)};

    if (geteuid() != 0)
        return;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        assert_int_equal(chown(world_text(w, "%s%s", file, ends[i]).p, NOBODY, NOBODY), 0);
    assert_int_equal(chown(world_text(w, STR_FMT, STR_ARG(dir)).p, NOBODY, 0), 0);
    (void)setfsuid(NOBODY);
}

static void test_a_read_only_file(struct world *w)
{
    const char *file = strchr(w->url, ':') + 1;
    struct store_config cfg = rig_config(w);
    struct job *j;
    struct rig *r;
    int refused;

    (void)put_key(w, "k");
    assert_int_equal(chmod(file, 0444), 0);
    drop_rights(w);
    cfg.give_up_ms = 300;
    r = rig_start(w, cfg, true); /* it can be read, so what is there can be seen */
    (void)setfsuid(geteuid());
    rig_wait_down(r);
    j = rig_submit_job(r, 1);
    j->tasks[0].biz_uuid = STR("other");
    refused = rig_try(r, j);
    assert_int_equal(chmod(file, 0644), 0);
    assert_int_equal(refused, ERR_UNAVAILABLE);
    if (!strstr(r->down_text, "readonly"))
        fail_msg("why? %s", r->down_text);
    rig_wait_up(r);
    rig_post(r, j);
    rig_wait(r);
    assert_int_equal(j->op.rc, 0);
    assert_int_equal(j->items[0].result, SUBMIT_CREATED);
    assert_status(w, "k", TASK_PENDING);
}

static void test_durable_settings(struct world *w)
{
    const struct driver_options opt = {.statement_timeout_ms = 1000, .named_statements = true};
    const char *warning = NULL;

    (void)world_connect_to(w, w->url, &opt, &warning);
    assert_null(warning);
    assert_int_equal(sql_value(w, "SELECT journal_mode = 'wal' FROM pragma_journal_mode"), 1);
}

static const struct test_case cases[] = {
    {"sqlite: a second process is refused", test_a_second_process_is_refused, NEEDS_FILE},
    {"sqlite: a closed connection lets nobody in", test_a_closed_connection_lets_nobody_in,
     NEEDS_FILE},
    {"sqlite: the next process may have it", test_the_next_process_may_have_it, NEEDS_FILE},
    {"sqlite: other programs read meanwhile", test_other_programs_read_meanwhile, NEEDS_FILE},
    {"sqlite: a long reader holds nothing up", test_a_long_reader_holds_nothing_up, NEEDS_FILE},
    {"sqlite: a read-only file", test_a_read_only_file, NEEDS_FILE},
    {"sqlite: durable settings", test_durable_settings, NEEDS_FILE},
};

const struct case_list sqlite_cases = CASE_LIST(cases);
