/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/ids.h"

static void test_xxh64_vectors(void **state)
{
    (void)state;
    assert_true(hash_bytes(STR(""), 0) == UINT64_C(0xEF46DB3751D8E999));
    assert_true(hash_bytes((struct str){0}, 0) == UINT64_C(0xEF46DB3751D8E999));
    assert_true(hash_bytes(STR("a"), 0) == UINT64_C(0xD24EC4F1A98C6E5B));
    assert_true(hash_bytes(STR("abc"), 0) == UINT64_C(0x44BC2CF5AD770999));
    assert_true(hash_bytes(STR("abc"), 1) != hash_bytes(STR("abc"), 0));
}

/* These stand for ever: rows in databases carry the shard. */
static void test_shard_vectors(void **state)
{
    (void)state;
    static const struct {
        const char *biz_uuid;
        int32_t of_2, of_16, of_1000, of_max;
    } cases[] = {
        {"", 1, 9, 921, 812032011},
        {"order-1", 1, 13, 701, 564273903},
        {"order-4", 0, 10, 482, 399304419},
        {"A", 0, 4, 980, 1990783237},
        {"0", 0, 12, 28, 1487756797},
        {"order-2", 1, 13, 53, 565868492},
        {"ORDER-1", 1, 13, 749, 821175269},
        {"3f2504e0-4f89-41d3-9a0c-0305e82c3301", 1, 9, 585, 556869098},
        {"\xE8\xAE\xA2\xE5\x8D\x95-20260131-0001", 1, 5, 613, 2123450536},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct str s = str_from(cases[i].biz_uuid);
        assert_int_equal(hash_shard(s, 1), 0);
        assert_int_equal(hash_shard(s, 2), cases[i].of_2);
        assert_int_equal(hash_shard(s, 16), cases[i].of_16);
        assert_int_equal(hash_shard(s, 1000), cases[i].of_1000);
        assert_int_equal(hash_shard(s, INT32_MAX), cases[i].of_max);
    }
}

static void test_map_basics(void **state)
{
    (void)state;
    struct map64 m = {0};
    int a;
    int b;
    assert_null(map64_find(&m, 1));
    assert_null(map64_remove(&m, 1));
    assert_int_equal(map64_put(&m, 1, &a), 0);
    assert_int_equal(map64_put(&m, UINT64_MAX, &b), 0);
    assert_ptr_equal(map64_find(&m, 1), &a);
    assert_ptr_equal(map64_find(&m, UINT64_MAX), &b);
    assert_int_equal(map64_put(&m, 1, &b), 0);
    assert_ptr_equal(map64_find(&m, 1), &b);
    assert_int_equal(m.n, 2);
    assert_ptr_equal(map64_remove(&m, 1), &b);
    assert_null(map64_find(&m, 1));
    assert_null(map64_remove(&m, 1));
    assert_int_equal(m.n, 1);
    map64_fini(&m);
    assert_int_equal(m.n, 0);
    map64_fini(NULL);
}

#define N_KEYS 2000

/* Compares the map with a plain array through many random changes. */
static void check_random(uint64_t seed, uint64_t stride)
{
    static char values[N_KEYS];
    void *model[N_KEYS] = {0};
    struct map64 m = {0};
    struct rng rng = {seed};
    size_t n = 0;
    for (int step = 0; step < 40000; step++) {
        size_t i = rng_below(&rng, N_KEYS);
        uint64_t key = (i + 1) * stride;
        if (rng_below(&rng, 5) < 3) {
            n += !model[i];
            model[i] = &values[rng_below(&rng, N_KEYS)];
            assert_int_equal(map64_put(&m, key, model[i]), 0);
        } else {
            n -= model[i] != NULL;
            assert_ptr_equal(map64_remove(&m, key), model[i]);
            model[i] = NULL;
        }
        assert_int_equal(m.n, n);
        if (step % 1000 == 0) {
            for (size_t k = 0; k < N_KEYS; k++)
                assert_ptr_equal(map64_find(&m, (k + 1) * stride), model[k]);
        }
    }
    size_t pos = 0;
    uint64_t key;
    for (void *v; (v = map64_each(&m, &pos, &key)); n--)
        assert_ptr_equal(v, model[key / stride - 1]);
    assert_int_equal(n, 0);
    map64_fini(&m);
}

static void test_map_random(void **state)
{
    (void)state;
    check_random(1, 1);
    check_random(2, 1024);
    check_random(3, UINT64_C(1) << 48);
}

static void test_map_each_of_empty(void **state)
{
    (void)state;
    struct map64 m = {0};
    size_t pos = 0;
    assert_null(map64_each(&m, &pos, NULL));
    int a;
    assert_int_equal(map64_put(&m, 9, &a), 0);
    assert_ptr_equal(map64_each(&m, &pos, NULL), &a);
    assert_null(map64_each(&m, &pos, NULL));
    map64_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xxh64_vectors),     cmocka_unit_test(test_shard_vectors),
        cmocka_unit_test(test_map_basics),        cmocka_unit_test(test_map_random),
        cmocka_unit_test(test_map_each_of_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
