/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/cluster/etcd_stream.h"

#define MAX 1000

static const char *const objects[] = {
    "{}",
    "{\"result\":{\"header\":{},\"events\":[{},{\"kv\":{}}]}}",
    "{\"a\":\"}{][\\\"}\\\\\",\"b\":[\"\\\\\"]}",
    "{ \"x\" : [ [ ] , { } ] }",
};
#define N_OBJECTS (sizeof(objects) / sizeof(objects[0]))

/* Takes all that is there; each has to be the next of `objects`. */
static void take(struct etcd_stream *s, size_t *n)
{
    struct str got;
    int rc;

    while ((rc = etcd_stream_next(s, MAX, &got)) == 1) {
        assert_true(*n < N_OBJECTS);
        assert_true(str_eqz(got, objects[*n]));
        (*n)++;
    }
    assert_int_equal(rc, 0);
}

static void join(struct buf *text, const char *between)
{
    for (size_t i = 0; i < N_OBJECTS; i++) {
        buf_addz(text, between);
        buf_addz(text, objects[i]);
    }
    buf_addz(text, between);
}

static void test_cut_anywhere(void **state)
{
    static const char *const between[] = {"", "\n", " \r\n\t"};

    (void)state;
    for (size_t k = 0; k < 3; k++) {
        struct buf text = BUF_INIT;
        join(&text, between[k]);
        for (size_t cut = 0; cut <= text.len; cut++) {
            struct etcd_stream s = {0};
            size_t n = 0;
            assert_int_equal(etcd_stream_push(&s, (struct str){text.data, cut}), 0);
            take(&s, &n);
            assert_int_equal(etcd_stream_push(&s, (struct str){text.data + cut, text.len - cut}),
                             0);
            take(&s, &n);
            assert_int_equal(n, N_OBJECTS);
            etcd_stream_fini(&s);
        }
        buf_fini(&text);
    }
}

static void test_byte_by_byte(void **state)
{
    struct etcd_stream s = {0};
    struct buf text = BUF_INIT;
    size_t n = 0;

    (void)state;
    join(&text, "\n");
    for (size_t i = 0; i < text.len; i++) {
        assert_int_equal(etcd_stream_push(&s, (struct str){text.data + i, 1}), 0);
        take(&s, &n);
        assert_true(s.in.len <= strlen(objects[1]));
    }
    assert_int_equal(n, N_OBJECTS);
    etcd_stream_fini(&s);
    buf_fini(&text);
}

static void test_what_is_no_object(void **state)
{
    static const char *const bad[] = {"[1]", "}", "1", "\"x\"", "<html>", "{} x", "null"};
    struct str got;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct etcd_stream s = {0};
        int rc;
        assert_int_equal(etcd_stream_push(&s, str_from(bad[i])), 0);
        while ((rc = etcd_stream_next(&s, MAX, &got)) == 1)
            ;
        assert_int_equal(rc, ERR_PROTOCOL);
        etcd_stream_fini(&s);
    }
}

/* The limit is that of one object, whole or not, not of what came at once. */
static void test_limit(void **state)
{
    struct etcd_stream s = {0};
    struct str got;
    int n = 0;

    (void)state;
    for (int i = 0; i < 50; i++)
        assert_int_equal(etcd_stream_push(&s, STR("{\"a\":1}")), 0);
    while (etcd_stream_next(&s, 7, &got) == 1)
        n++;
    assert_int_equal(n, 50);
    assert_int_equal(etcd_stream_push(&s, STR("{\"a\":12}")), 0);
    assert_int_equal(etcd_stream_next(&s, 7, &got), ERR_TOO_BIG);
    etcd_stream_reset(&s);
    assert_int_equal(etcd_stream_push(&s, STR("{\"a\":\"12")), 0);
    assert_int_equal(etcd_stream_next(&s, 7, &got), ERR_TOO_BIG);
    etcd_stream_fini(&s);
}

/* Nothing of the old stream is left, not even that it ended inside a string. */
static void test_reset(void **state)
{
    struct etcd_stream s = {0};
    struct str got;

    (void)state;
    assert_int_equal(etcd_stream_push(&s, STR("{} {\"cut \\")), 0);
    assert_int_equal(etcd_stream_next(&s, MAX, &got), 1);
    assert_int_equal(etcd_stream_next(&s, MAX, &got), 0);
    etcd_stream_reset(&s);
    assert_int_equal(etcd_stream_push(&s, STR("{\"b\":2}")), 0);
    assert_int_equal(etcd_stream_next(&s, MAX, &got), 1);
    assert_true(str_eqz(got, "{\"b\":2}"));
    etcd_stream_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_byte_by_byte),
        cmocka_unit_test(test_what_is_no_object),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_reset),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
