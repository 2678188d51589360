/* SPDX-License-Identifier: Apache-2.0 */
/* Fails each allocation of common/ in turn: the operation must report it, leave what it worked on
 * as it was, and leak nothing (the sanitizer build looks at that). The linker routes the calls
 * here, see meson.build. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/heap.h"
#include "common/json.h"
#include "common/log.h"
#include "common/mailbox.h"

static int fail_after; /* this many allocations succeed, the next fails; negative: all succeed */

static bool must_fail(void)
{
    if (fail_after != 0) {
        fail_after -= fail_after > 0;
        return false;
    }
    fail_after = -1;
    return true;
}

void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_reallocarray(void *p, size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);

void *__wrap_calloc(size_t n, size_t size)
{
    return must_fail() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return must_fail() ? NULL : __real_realloc(p, size);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
    return must_fail() ? NULL : __real_reallocarray(p, n, size);
}

static int reset(void **state)
{
    (void)state;
    fail_after = -1;
    return 0;
}

static void test_buf(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    fail_after = 0;
    buf_addz(&b, "a");
    assert_false(buf_ok(&b));
    assert_null(b.data);
    buf_clear(&b);
    buf_addz(&b, "kept");
    fail_after = 0;
    buf_addf(&b, "%100d", 1);
    assert_false(buf_ok(&b));
    assert_true(str_eqz(buf_str(&b), "kept"));
    assert_null(buf_steal(&b));
}

static void test_map(void **state)
{
    (void)state;
    struct map64 m = {0};
    int value;
    fail_after = 0;
    assert_int_equal(map64_put(&m, 1, &value), ERR_NOMEM);
    assert_null(map64_find(&m, 1));
    uint64_t key = 1;
    while (m.n == 0 || (m.n + 1) * 4 <= m.n_slots * 3)
        assert_int_equal(map64_put(&m, key++, &value), 0);
    fail_after = 0;
    assert_int_equal(map64_put(&m, key, &value), ERR_NOMEM);
    assert_int_equal(m.n, key - 1);
    assert_null(map64_find(&m, key));
    for (uint64_t k = 1; k < key; k++)
        assert_ptr_equal(map64_find(&m, k), &value);
    map64_fini(&m);
}

static void test_heap(void **state)
{
    (void)state;
    struct heap h = {0};
    struct heap_node nodes[64] = {0};
    unsigned n_failed = 0;
    for (int i = 0; i < 64; i++) {
        fail_after = 0;
        if (heap_add(&h, &nodes[i], -i) == 0)
            continue;
        n_failed++;
        assert_int_equal(nodes[i].pos, 0);
        heap_check(&h);
        fail_after = -1;
        assert_int_equal(heap_add(&h, &nodes[i], -i), 0);
    }
    assert_true(n_failed >= 2);
    assert_ptr_equal(heap_first(&h), &nodes[63]);
    heap_fini(&h);
}

/* An object with enough members for the token array to grow and the keys to be sorted. */
static void put_object(struct buf *b)
{
    buf_addc(b, '{');
    for (int i = 0; i < 100; i++)
        buf_addf(b, "%s\"k%d\":%d", i ? "," : "", i, i);
    buf_addc(b, '}');
    assert_true(buf_ok(b));
}

static void test_json_parse(void **state)
{
    (void)state;
    struct buf text = BUF_INIT;
    put_object(&text);
    int n = 0;
    for (;; n++) {
        struct json_doc doc = JSON_DOC_INIT;
        struct err err = {0};
        fail_after = n;
        int rc = json_parse(&doc, buf_str(&text), 1000, &err);
        if (rc == 0) {
            json_doc_fini(&doc);
            break;
        }
        assert_int_equal(rc, ERR_NOMEM);
        assert_string_equal(err.text, "out of memory");
        assert_int_equal(doc.n_tokens, 0);
        assert_int_equal(json_parse(&doc, buf_str(&text), 1000, &err), 0);
        json_doc_fini(&doc);
    }
    assert_true(n >= 3);
    buf_fini(&text);
}

static void test_json_same_value(void **state)
{
    (void)state;
    struct buf a = BUF_INIT;
    struct buf b = BUF_INIT;
    put_object(&a);
    put_object(&b);
    buf_addc(&b, ' ');
    int n = 0;
    for (fail_after = 0; !json_same_value(buf_str(&a), buf_str(&b)); fail_after = ++n)
        assert_int_equal(fail_after, -1);
    assert_true(n >= 6);
    buf_fini(&a);
    buf_fini(&b);
}

static void test_log(void **state)
{
    (void)state;
    struct log *l = NULL;
    int fds[2];
    char text[256];
    assert_int_equal(pipe(fds), 0);
    fail_after = 0;
    assert_int_equal(log_new(fds[1], LOG_LOGFMT, LOG_INFO, &l), ERR_NOMEM);
    assert_null(l);
    assert_int_equal(log_new(fds[1], LOG_LOGFMT, LOG_INFO, &l), 0);
    fail_after = 0;
    LOG(l, LOG_INFO, "a.b", NULL);
    LOG(l, LOG_INFO, "a.c", NULL);
    ssize_t len = read(fds[0], text, sizeof(text) - 1);
    assert_true(len > 0);
    text[len] = '\0';
    assert_null(strstr(text, "a.b"));
    assert_non_null(strstr(text, "event=a.c lines_lost=1\n"));
    log_free(l);
    close(fds[0]);
    close(fds[1]);
}

static void test_mailbox(void **state)
{
    (void)state;
    struct mailbox *mb = NULL;
    fail_after = 0;
    assert_int_equal(mailbox_new(&mb), ERR_NOMEM);
    assert_null(mb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_buf, reset),
        cmocka_unit_test_setup(test_map, reset),
        cmocka_unit_test_setup(test_heap, reset),
        cmocka_unit_test_setup(test_json_parse, reset),
        cmocka_unit_test_setup(test_json_same_value, reset),
        cmocka_unit_test_setup(test_log, reset),
        cmocka_unit_test_setup(test_mailbox, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
