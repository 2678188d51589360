/* SPDX-License-Identifier: Apache-2.0 */
/* 64 MiB of payload at once: all of it goes in and comes out byte for byte, in batches of a few
 * megabytes, and the node's memory does not grow with it. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/store/rig.h"

enum { TASKS = 1024, PAYLOAD = 65536, CLAIMED_AT_ONCE = 128 };

#define BATCH_BYTES ((size_t)4 << 20)
/* What is on its way at once: a few batches, each as text for the server. */
#define MEMORY_KB (6 * (long)(BATCH_BYTES >> 10))

/* A JSON string of exactly PAYLOAD bytes, another one for each task, with what needs escaping. */
static void fill(char *p, size_t number)
{
    static const char unit[] = "'\\\\ \\\" % \xf0\x9f\x90\x98 \xc3\xa9 \\u0000 ";
    int at = snprintf(p, PAYLOAD, "\"%zu %0*d", number, (int)(number % sizeof(unit)) + 1, 0);

    assert_true(at > 0);
    for (size_t i = (size_t)at; i < PAYLOAD; i += sizeof(unit) - 1) {
        bool fits = PAYLOAD - 1 - i >= sizeof(unit) - 1;

        if (fits)
            memcpy(p + i, unit, sizeof(unit) - 1);
        else
            memset(p + i, 'x', PAYLOAD - i);
    }
    p[PAYLOAD - 1] = '"';
}

/* A line of this process's status, in KiB; 0 when there is none. */
static long memory_kb(const char *name)
{
    char line[128];
    long kb = 0;
    FILE *f = fopen("/proc/self/status", "re");

    while (f && fgets(line, sizeof(line), f)) {
        if (!strncmp(line, name, strlen(name)))
            kb = strtol(line + strlen(name), NULL, 10);
    }
    if (f)
        (void)fclose(f);
    return kb;
}

/* The peak begins anew. False where that cannot be done. */
static bool forget_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "we");
    bool ok = f && fputs("5", f) >= 0;

    return f && fclose(f) == 0 && ok;
}

/* Sanitizers keep what is freed. */
static void assert_bounded(long before_kb, bool measured)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    long peak_kb = memory_kb("VmHWM:");

    if (!measured)
        return;
    print_message("# the peak was %ld KiB above %ld KiB, of which the payloads are %d\n",
                  peak_kb - before_kb, before_kb, TASKS * PAYLOAD / 1024);
    assert_true(peak_kb - before_kb < MEMORY_KB);
#else
    (void)before_kb;
    (void)measured;
#endif
}

static struct job *submit_all(struct world *w, struct rig *r, char *payloads)
{
    struct job *j = rig_submit_job(r, TASKS);

    for (size_t i = 0; i < TASKS; i++) {
        char *p = payloads + i * PAYLOAD;

        fill(p, i);
        j->tasks[i].biz_uuid = world_text(w, "bulk%04zu", i);
        j->tasks[i].payload = (struct str){p, PAYLOAD};
    }
    return j;
}

/* Claims them, which brings them back as they are delivered. */
static void check_all(struct world *w, const struct job *j)
{
    struct claim_item items[CLAIMED_AT_ONCE];
    struct claim_item *list[CLAIMED_AT_ONCE];
    struct err err = {0};

    for (size_t from = 0; from < TASKS; from += CLAIMED_AT_ONCE) {
        bool same = true;

        for (size_t i = 0; i < CLAIMED_AT_ONCE; i++) {
            items[i] = claim_of(j->tasks[from + i].id, 0);
            list[i] = &items[i];
        }
        assert_int_equal(w->d->claim(w->conn, list, CLAIMED_AT_ONCE, STR(NODE), MARGIN_MS, &err),
                         0);
        for (size_t i = 0; i < CLAIMED_AT_ONCE; i++) {
            same = same && items[i].result == CLAIM_WON &&
                   str_eq(items[i].task->payload, j->tasks[from + i].payload);
            task_free(items[i].task);
        }
        assert_true(same);
    }
}

static void test_sixty_four_megabytes(struct world *w)
{
    struct store_config cfg = rig_config(w);
    char *payloads = world_keep(w, malloc((size_t)TASKS * PAYLOAD));
    struct store_stats stats;
    struct rig *r;
    struct job *j;
    bool measured;
    long before_kb;

    assert_non_null(payloads);
    cfg.batch_rows = TASKS;
    cfg.batch_bytes = BATCH_BYTES;
    r = rig_start(w, cfg, true);
    j = submit_all(w, r, payloads);
    measured = forget_peak();
    before_kb = memory_kb("VmRSS:");
    rig_post(r, j);
    rig_wait(r);
    assert_bounded(before_kb, measured);
    assert_int_equal(j->op.rc, 0);
    for (size_t i = 0; i < TASKS; i++)
        assert_int_equal(j->items[i].result, SUBMIT_CREATED);
    store_stats(r->store, &stats);
    assert_int_equal(stats.rows[STORE_SUBMIT], TASKS);
    assert_int_equal(stats.batches[STORE_SUBMIT], TASKS * (PAYLOAD >> 10) / (BATCH_BYTES >> 10));
    check_all(w, j);
}

static const struct test_case cases[] = {
    {"bulk: 64 MiB of payload at once", test_sixty_four_megabytes, NEEDS_THREADS},
};

const struct case_list bulk_cases = CASE_LIST(cases);
