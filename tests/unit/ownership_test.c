/* SPDX-License-Identifier: Apache-2.0 */
/* Who owns what: the fixed test vectors, an even spread, and how much moves when a member comes or
 * goes. */
#include "node/core/ownership.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#define N_SERVICES 20000
#define MEMBERS_MAX 12

static struct str json_str(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    assert_non_null(text);
    return str_from(text);
}

/* proto/ownership_vectors.json fixes the function for all nodes and all who recompute it. */
static void test_vectors(void **state)
{
    json_error_t error;
    json_t *root = json_load_file(getenv("OWNERSHIP_VECTORS"), 0, &error);
    json_t *v;
    size_t i;

    (void)state;
    assert_non_null(root);
    assert_int_equal(json_integer_value(json_object_get(root, "version")), OWNERSHIP_HASH_VERSION);
    assert_true(json_array_size(json_object_get(root, "weights")) >= 6);
    json_array_foreach(json_object_get(root, "weights"), i, v)
    {
        uint64_t wanted = strtoull(json_str(v, "weight").p, NULL, 16);
        int32_t shard = (int32_t)json_integer_value(json_object_get(v, "shard"));

        assert_true(ownership_weight(json_str(v, "member"), json_str(v, "service"), shard) ==
                    wanted);
    }
    assert_true(json_array_size(json_object_get(root, "owners")) >= 4);
    json_array_foreach(json_object_get(root, "owners"), i, v)
    {
        struct str members[MEMBERS_MAX];
        json_t *names = json_object_get(v, "members");
        int32_t shard = (int32_t)json_integer_value(json_object_get(v, "shard"));
        size_t n = json_array_size(names);
        size_t owner;

        for (size_t k = 0; k < n; k++)
            members[k] = str_from(json_string_value(json_array_get(names, k)));
        owner = ownership_find(members, n, json_str(v, "service"), shard);
        assert_true(owner < n && str_eq(members[owner], json_str(v, "owner")));
    }
    json_decref(root);
}

static void test_nobody_and_order(void **state)
{
    const struct str members[] = {STR("a"), STR("b"), STR("c")};
    const struct str turned[] = {STR("c"), STR("a"), STR("b")};

    (void)state;
    assert_true(ownership_find(NULL, 0, STR("orders"), 0) == OWNERSHIP_NOBODY);
    for (int32_t shard = 0; shard < 256; shard++) {
        size_t x = ownership_find(members, 3, STR("orders"), shard);
        size_t y = ownership_find(turned, 3, STR("orders"), shard);

        assert_true(str_eq(members[x], turned[y]));
    }
}

struct spread {
    char names[MEMBERS_MAX][32];
    struct str members[MEMBERS_MAX];
};

static void spread_init(struct spread *s)
{
    for (int i = 0; i < MEMBERS_MAX; i++) {
        (void)snprintf(s->names[i], sizeof(s->names[i]), "jobflow-%d", i);
        s->members[i] = str_from(s->names[i]);
    }
}

/* Services with one shard, or one service with that many: what falls to each of n members is within
 * a fifth of its share, and of n + 1 members the last one takes within a fifth of 1/(n + 1), from
 * the others only. */
static void check_moves(const struct spread *s, size_t n, bool by_shard)
{
    size_t load[MEMBERS_MAX] = {0};
    size_t moved = 0;
    double share = (double)N_SERVICES / (double)n;
    double wanted = (double)N_SERVICES / (double)(n + 1);

    for (int32_t i = 0; i < N_SERVICES; i++) {
        char name[32];
        struct str service = STR("orders");
        size_t before;
        size_t after;

        if (!by_shard) {
            (void)snprintf(name, sizeof(name), "service-%d", i);
            service = str_from(name);
        }
        before = ownership_find(s->members, n, service, by_shard ? i : 0);
        after = ownership_find(s->members, n + 1, service, by_shard ? i : 0);
        load[before]++;
        moved += before != after;
        assert_true(before == after || after == n);
    }
    print_message("# %zu -> %zu members: %.2f %% of the %s moved, 1/%zu is %.2f %%\n", n, n + 1,
                  100.0 * (double)moved / N_SERVICES, by_shard ? "shards" : "services", n + 1,
                  100.0 / (double)(n + 1));
    assert_true((double)moved > 0.8 * wanted && (double)moved < 1.2 * wanted);
    for (size_t i = 0; i < n; i++)
        assert_true((double)load[i] > 0.8 * share && (double)load[i] < 1.2 * share);
}

static void test_moves_of_services(void **state)
{
    struct spread s;

    (void)state;
    spread_init(&s);
    for (size_t n = 1; n < MEMBERS_MAX; n++)
        check_moves(&s, n, false);
}

static void test_moves_of_shards(void **state)
{
    struct spread s;

    (void)state;
    spread_init(&s);
    for (size_t n = 1; n < MEMBERS_MAX; n++)
        check_moves(&s, n, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_nobody_and_order),
        cmocka_unit_test(test_moves_of_services),
        cmocka_unit_test(test_moves_of_shards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
