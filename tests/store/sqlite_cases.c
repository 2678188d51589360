/* SPDX-License-Identifier: Apache-2.0 */
/* What only a database in a file has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    void *held = w->backend->hold(w->url, "ROLLBACK; BEGIN; SELECT count(*) FROM job_delay_task");
    struct job *j = rig_submit_job(r, 1);

    j->tasks[0].biz_uuid = STR("k");
    rig_post(r, j);
    rig_wait(r);
    w->backend->release(held, false);
    assert_int_equal(j->op.rc, 0);
    assert_int_equal(j->items[0].result, SUBMIT_CREATED);
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
    {"sqlite: durable settings", test_durable_settings, NEEDS_FILE},
};

const struct case_list sqlite_cases = CASE_LIST(cases);
