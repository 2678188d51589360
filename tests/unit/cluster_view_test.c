/* SPDX-License-Identifier: Apache-2.0 */
/* The document of GET /api/cluster: members, owners, and what is left out. */
#include "node/cluster_view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "node/core/ownership.h"

#define NOW 100000

static struct config cfg;
static struct service_table services;
static struct member members[3];
static struct members_snapshot view;

static void add_member(size_t i, const char *name, enum member_state state)
{
    members[i] = (struct member){.state = state,
                                 .epoch = (int64_t)i + 1,
                                 .hash_version = OWNERSHIP_HASH_VERSION,
                                 .started_at = 0};
    snprintf(members[i].name, sizeof(members[i].name), "%s", name);
    snprintf(members[i].address, sizeof(members[i].address), "h:%zu", i);
    snprintf(members[i].version, sizeof(members[i].version), "1");
}

/* `n` services named s00000, …, with so many shards each. */
static void set_services(size_t n, int32_t shards)
{
    struct service *list = calloc(1, n * (sizeof(*list) + 8) + 1);
    char *p = (char *)(list + n);

    for (size_t i = 0; i < n; i++) {
        snprintf(p, 8, "s%05zu", i);
        list[i] = (struct service){.name = str_from(p), .shards = shards, .shards_seen = shards};
        p += 8;
    }
    service_table_set(&services, list, n);
}

static int setup(void **state)
{
    (void)state;
    cfg = (struct config){.cluster = "c1", .node_name = "b"};
    assert_int_equal(service_table_init(&services), 0);
    add_member(0, "a", MEMBER_ACTIVE);
    add_member(1, "b", MEMBER_ACTIVE);
    add_member(2, "c", MEMBER_DRAINING);
    view = (struct members_snapshot){.source = VIEW_ETCD,
                                     .asked_at = NOW - 70,
                                     .members = members,
                                     .n = 3,
                                     .state = MEMBER_ACTIVE,
                                     .can_own = true};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    service_table_fini(&services);
    return 0;
}

static json_t *document(struct str service_name)
{
    struct buf b = BUF_INIT;
    json_error_t error;
    json_t *root;

    assert_true(cluster_view_put(&b, &cfg, &view, &services, NOW, service_name));
    assert_true(buf_ok(&b));
    root = json_loadb(b.data, b.len, 0, &error);
    assert_non_null(root);
    buf_fini(&b);
    return root;
}

static const char *text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static int64_t number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* Shards that some member owns, by what the members' rows say. */
static int64_t all_owned(const json_t *root)
{
    json_t *m;
    size_t i;
    int64_t sum = 0;

    json_array_foreach(json_object_get(root, "members"), i, m) sum += number(m, "ownedShards");
    return sum;
}

static void test_members_and_owners(void **state)
{
    (void)state;
    set_services(2, 8);
    json_t *root = document((struct str){0});
    json_t *m = json_array_get(json_object_get(root, "members"), 2);
    json_t *s = json_array_get(json_object_get(root, "services"), 1);
    json_t *owner;
    size_t shard;

    assert_string_equal(text(root, "cluster"), "c1");
    assert_string_equal(text(root, "node"), "b");
    assert_string_equal(text(root, "source"), "etcd");
    assert_int_equal(number(root, "viewAgeMs"), 70);
    assert_string_equal(text(m, "name"), "c");
    assert_string_equal(text(m, "state"), "draining");
    assert_int_equal(number(m, "ownedShards"), 0);
    assert_int_equal(all_owned(root), 16);
    assert_string_equal(text(s, "serviceName"), "s00001");
    assert_int_equal(json_array_size(json_object_get(s, "owners")), 8);
    json_array_foreach(json_object_get(s, "owners"), shard, owner)
    {
        const struct str active[] = {STR("a"), STR("b")};
        size_t wanted = ownership_find(active, 2, STR("s00001"), (int32_t)shard);

        assert_true(str_eqz(active[wanted], json_string_value(owner)));
    }
    json_decref(root);
}

/* What the witness still says of this node is older than what the node knows. */
static void test_a_draining_node_owns_nothing(void **state)
{
    (void)state;
    set_services(1, 64);
    view.state = MEMBER_DRAINING;
    view.can_own = false;
    json_t *root = document((struct str){0});

    assert_int_equal(number(json_array_get(json_object_get(root, "members"), 0), "ownedShards"),
                     64);
    assert_string_equal(text(root, "state"), "draining");
    json_decref(root);
}

static void test_nobody(void **state)
{
    (void)state;
    set_services(1, 2);
    view = (struct members_snapshot){.source = VIEW_NONE, .members = members};
    json_t *root = document((struct str){0});
    json_t *s = json_array_get(json_object_get(root, "services"), 0);

    assert_true(json_is_null(json_object_get(root, "viewAgeMs")));
    assert_true(json_is_null(json_array_get(json_object_get(s, "owners"), 0)));
    assert_int_equal(json_array_size(json_object_get(root, "members")), 0);
    json_decref(root);
}

static void test_one_service(void **state)
{
    struct buf b = BUF_INIT;

    (void)state;
    set_services(3000, 1);
    json_t *root = document(STR("s02999")); /* beyond what a list without a name holds */

    assert_int_equal(json_array_size(json_object_get(root, "services")), 1);
    assert_true(json_is_false(json_object_get(root, "more")));
    assert_int_equal(all_owned(root), 3000);
    json_decref(root);
    assert_false(cluster_view_put(&b, &cfg, &view, &services, NOW, STR("nobody")));
    assert_int_equal(b.len, 0);
}

static void test_many_services(void **state)
{
    (void)state;
    set_services(CLUSTER_VIEW_SERVICES_MAX + 1, 1);
    json_t *root = document((struct str){0});

    assert_int_equal(json_array_size(json_object_get(root, "services")), CLUSTER_VIEW_SERVICES_MAX);
    assert_true(json_is_true(json_object_get(root, "more")));
    assert_int_equal(all_owned(root), CLUSTER_VIEW_SERVICES_MAX + 1);
    json_decref(root);
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_members_and_owners),
        TEST(test_a_draining_node_owns_nothing),
        TEST(test_nobody),
        TEST(test_one_service),
        TEST(test_many_services),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
