/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/heap.h"
#include "common/ids.h"

static void test_empty(void **state)
{
    (void)state;
    struct heap h = {0};
    assert_null(heap_first(&h));
    heap_check(&h);
    heap_fini(&h);
    heap_fini(NULL);
}

static void test_sorts(void **state)
{
    (void)state;
    struct heap h = {0};
    struct heap_node nodes[100] = {0};
    for (int i = 0; i < 100; i++)
        assert_int_equal(heap_add(&h, &nodes[i], (i * 37) % 100 - 50), 0);
    heap_check(&h);
    for (int i = 0; i < 100; i++) {
        struct heap_node *first = heap_first(&h);
        assert_int_equal(first->key, i - 50);
        heap_remove(&h, first);
        assert_int_equal(first->pos, 0);
        heap_check(&h);
    }
    assert_null(heap_first(&h));
    heap_fini(&h);
}

static void test_ties_leave_in_order_of_arrival(void **state)
{
    (void)state;
    struct heap h = {0};
    struct heap_node nodes[50] = {0};
    for (int i = 0; i < 50; i++)
        assert_int_equal(heap_add(&h, &nodes[i], i % 2 ? INT64_MIN : INT64_MAX), 0);
    for (int i = 0; i < 50; i++) {
        int expected = i < 25 ? 2 * i + 1 : 2 * (i - 25);
        assert_ptr_equal(heap_first(&h), &nodes[expected]);
        heap_remove(&h, heap_first(&h));
    }
    heap_fini(&h);
}

static void test_nodes_can_return(void **state)
{
    (void)state;
    struct heap h = {0};
    struct heap_node a = {0};
    struct heap_node b = {0};
    assert_int_equal(heap_add(&h, &a, 1), 0);
    assert_int_equal(heap_add(&h, &b, 1), 0);
    heap_remove(&h, &a);
    assert_int_equal(heap_add(&h, &a, 1), 0);
    assert_ptr_equal(heap_first(&h), &b);
    heap_fini(&h);
}

#define N_NODES 200

static const struct heap_node *smallest(const struct heap_node *nodes)
{
    const struct heap_node *found = NULL;
    for (int i = 0; i < N_NODES; i++) {
        const struct heap_node *n = &nodes[i];
        if (n->pos == 0)
            continue;
        if (!found || n->key < found->key || (n->key == found->key && n->seq < found->seq))
            found = n;
    }
    return found;
}

static void test_random_against_a_plain_search(void **state)
{
    (void)state;
    struct heap h = {0};
    struct heap_node nodes[N_NODES] = {0};
    struct rng rng = {7};
    for (int step = 0; step < 20000; step++) {
        struct heap_node *n = &nodes[rng_below(&rng, N_NODES)];
        int64_t key = (int64_t)rng_below(&rng, 60) - 30;
        if (n->pos == 0)
            assert_int_equal(heap_add(&h, n, key), 0);
        else if (rng_below(&rng, 2))
            heap_move(&h, n, key);
        else
            heap_remove(&h, n);
        heap_check(&h);
        assert_ptr_equal(heap_first(&h), smallest(nodes));
    }
    heap_fini(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_sorts),
        cmocka_unit_test(test_ties_leave_in_order_of_arrival),
        cmocka_unit_test(test_nodes_can_return),
        cmocka_unit_test(test_random_against_a_plain_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
