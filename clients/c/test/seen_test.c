/* SPDX-License-Identifier: Apache-2.0 */
#include "seen.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define THREADS 4
#define ROUNDS 2000

static const char *trace(unsigned n)
{
    static _Thread_local char text[JFX_TRACE_LEN + 1];

    (void)snprintf(text, sizeof(text), "%032x", n);
    return text;
}

static void trace_ids_are_32_hex_digits(void **state)
{
    (void)state;
    assert_true(jfx_trace_valid("0123456789abcdef0123456789abcdef"));
    assert_false(jfx_trace_valid(""));
    assert_false(jfx_trace_valid("0123456789abcdef0123456789abcde"));
    assert_false(jfx_trace_valid("0123456789abcdef0123456789abcdef0"));
    assert_false(jfx_trace_valid("0123456789ABCDEF0123456789abcdef"));
}

static void one_life(void **state)
{
    struct jfx_seen *seen = jfx_seen_new(10);
    (void)state;

    assert_int_equal(jfx_seen_begin(seen, trace(1), 1), JFX_SEEN_NEW);
    assert_int_equal(jfx_seen_begin(seen, trace(1), 1), JFX_SEEN_RUNNING);
    assert_int_equal(jfx_seen_begin(seen, trace(1), 2), JFX_SEEN_RUNNING);
    jfx_seen_end(seen, trace(1), 1, JFX_SEEN_NEW); /* it failed */
    assert_int_equal(jfx_seen_begin(seen, trace(1), 2), JFX_SEEN_NEW);
    jfx_seen_end(seen, trace(1), 2, JFX_SEEN_DONE);
    assert_int_equal(jfx_seen_begin(seen, trace(1), 2), JFX_SEEN_DONE);
    assert_int_equal(jfx_seen_begin(seen, trace(1), 3), JFX_SEEN_DONE);
    jfx_seen_report(seen, trace(1), 3, false); /* too late: it was done */
    assert_int_equal(jfx_seen_begin(seen, trace(1), 4), JFX_SEEN_DONE);
    jfx_seen_free(seen);
}

static void an_asynchronous_life(void **state)
{
    struct jfx_seen *seen = jfx_seen_new(10);
    (void)state;

    assert_int_equal(jfx_seen_begin(seen, trace(1), 1), JFX_SEEN_NEW);
    jfx_seen_end(seen, trace(1), 1, JFX_SEEN_LATER);
    assert_int_equal(jfx_seen_begin(seen, trace(1), 1), JFX_SEEN_LATER);
    assert_int_equal(jfx_seen_begin(seen, trace(1), 2), JFX_SEEN_NEW);
    jfx_seen_end(seen, trace(1), 1, JFX_SEEN_DONE); /* of an attempt that was given up */
    assert_int_equal(jfx_seen_begin(seen, trace(1), 2), JFX_SEEN_RUNNING);
    jfx_seen_report(seen, trace(1), 1, false);
    assert_int_equal(jfx_seen_begin(seen, trace(1), 2), JFX_SEEN_RUNNING);
    jfx_seen_report(seen, trace(1), 1, true); /* whichever attempt did it: it is done */
    assert_int_equal(jfx_seen_begin(seen, trace(1), 2), JFX_SEEN_DONE);
    jfx_seen_end(seen, trace(1), 2, JFX_SEEN_LATER); /* the handler returns after its result */
    assert_int_equal(jfx_seen_begin(seen, trace(1), 3), JFX_SEEN_DONE);

    assert_int_equal(jfx_seen_begin(seen, trace(2), 1), JFX_SEEN_NEW);
    jfx_seen_end(seen, trace(2), 1, JFX_SEEN_LATER);
    jfx_seen_report(seen, trace(2), 1, false);
    assert_int_equal(jfx_seen_begin(seen, trace(2), 1), JFX_SEEN_NEW);
    jfx_seen_report(seen, trace(3), 5, true); /* of another process's time */
    assert_int_equal(jfx_seen_begin(seen, trace(3), 6), JFX_SEEN_DONE);
    jfx_seen_free(seen);
}

static void the_longest_unused_is_forgotten(void **state)
{
    struct jfx_seen *seen = jfx_seen_new(3);
    (void)state;

    for (unsigned i = 1; i <= 3; i++) {
        assert_int_equal(jfx_seen_begin(seen, trace(i), 1), JFX_SEEN_NEW);
        jfx_seen_end(seen, trace(i), 1, JFX_SEEN_DONE);
    }
    assert_int_equal(jfx_seen_begin(seen, trace(1), 1), JFX_SEEN_DONE); /* used */
    assert_int_equal(jfx_seen_begin(seen, trace(4), 1), JFX_SEEN_NEW);
    assert_int_equal(jfx_seen_begin(seen, trace(1), 1), JFX_SEEN_DONE);
    assert_int_equal(jfx_seen_begin(seen, trace(3), 1), JFX_SEEN_DONE);
    assert_int_equal(jfx_seen_begin(seen, trace(2), 1), JFX_SEEN_NEW);
    jfx_seen_free(seen);
}

static void what_runs_is_never_forgotten(void **state)
{
    struct jfx_seen *seen = jfx_seen_new(2);
    (void)state;

    assert_int_equal(jfx_seen_begin(seen, trace(1), 1), JFX_SEEN_NEW);
    assert_int_equal(jfx_seen_begin(seen, trace(2), 1), JFX_SEEN_NEW);
    assert_int_equal(jfx_seen_begin(seen, trace(3), 1), JFX_SEEN_FULL);
    jfx_seen_report(seen, trace(3), 1, true); /* no room, and no harm */
    assert_int_equal(jfx_seen_begin(seen, trace(1), 1), JFX_SEEN_RUNNING);
    jfx_seen_end(seen, trace(2), 1, JFX_SEEN_NEW);
    assert_int_equal(jfx_seen_begin(seen, trace(3), 1), JFX_SEEN_NEW);
    assert_int_equal(jfx_seen_begin(seen, trace(1), 1), JFX_SEEN_RUNNING);
    jfx_seen_free(seen);
}

/* Of each trace id at most one delivery is running at a time. */
static struct jfx_seen *shared;
static int running[8];

static void *deliver(void *ctx)
{
    unsigned seed = (unsigned)(size_t)ctx;

    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 1103515245 + 12345;
        unsigned n = seed >> 16 & 7;
        if (jfx_seen_begin(shared, trace(n), i) != JFX_SEEN_NEW)
            continue;
        if (__atomic_add_fetch(&running[n], 1, __ATOMIC_SEQ_CST) != 1)
            return (void *)1;
        __atomic_sub_fetch(&running[n], 1, __ATOMIC_SEQ_CST);
        jfx_seen_end(shared, trace(n), i, seed & 1 << 20 ? JFX_SEEN_DONE : JFX_SEEN_NEW);
    }
    return NULL;
}

static void threads_agree(void **state)
{
    pthread_t threads[THREADS];
    void *failed;
    (void)state;

    shared = jfx_seen_new(6); /* fewer than trace ids: things are forgotten all the time */
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, deliver, (void *)(i + 1)), 0);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    jfx_seen_free(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trace_ids_are_32_hex_digits),
        cmocka_unit_test(one_life),
        cmocka_unit_test(an_asynchronous_life),
        cmocka_unit_test(the_longest_unused_is_forgotten),
        cmocka_unit_test(what_runs_is_never_forgotten),
        cmocka_unit_test(threads_agree),
    };

    return cmocka_run_group_tests_name("clients/seen", tests, NULL, NULL);
}
