/* SPDX-License-Identifier: Apache-2.0 */
/* How much is claimed for an answer, and what of another member's answer is believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/forward.h"
#include "node/lease_answer.h"

#define NOW INT64_C(1700000000000)
#define TASKS "{\"tasks\":[{\"traceId\":\"a\\nb\"},{\"n\":1}]}"
#define CLAIMS "{\"service\":\"s\",\"claims\":[[7,2,1,5,0],[-8,1,0,9,3]]}"

/* Of the member that is asked; the one that asks knows the same secret. */
static const struct config member = {.node_name = "node-b",
                                     .cluster_secret = "a secret of the cluster"};

static void test_steps(void **state)
{
    static const struct {
        struct lease_fill fill;
        uint32_t step;
        bool room;
    } rows[] = {
        /* Nothing is known: few, and no more than are wanted. */
        {{0, 1000, 0, 0, 65536}, 16, true},
        {{0, 5, 0, 0, 65536}, 5, true},
        /* As many as fit, rounded down, by what is known. */
        {{0, 1000, 0, 60000, 65536}, 69, true},
        {{16, 1000, 960000, 60000, 65536}, 53, true},
        {{0, 40, 0, 60000, 65536}, 40, true},
        /* Never more than 16 MiB, however small they are thought to be. */
        {{0, 1000, 0, 600, 65536}, 256, true},
        {{0, 1000, 0, 0, 4 << 20}, 4, true},
        {{0, 1000, 0, 600, 32 << 20}, 1, true},
        /* One at least, also where none is expected to fit. */
        {{0, 1000, 0, 5 << 20, 4 << 20}, 1, false},
        {{68, 1000, 68 * 60000, 60000, 65536}, 1, true},
        {{69, 1000, 69 * 60000, 60000, 65536}, 1, false},
        {{80, 1000, LEASE_BYTES_MAX + 1, 60000, 65536}, 1, false},
        /* To the last byte. */
        {{1, 1000, LEASE_BYTES_MAX - 600, 600, 65536}, 1, true},
        {{1, 1000, LEASE_BYTES_MAX - 599, 600, 65536}, 1, false},
        {{999, 1000, 999, 1, 4096}, 1, true},
        {{1000, 1000, 1000, 1, 4096}, 1, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t step = lease_step(&rows[i].fill);
        if (step != rows[i].step || lease_has_room(&rows[i].fill) != rows[i].room)
            fail_msg("row %zu: %u", i, step);
    }
}

/* The answer as the member signs it at that time. */
static struct buf answer_of(const char *tasks, const char *line, const char *path, wall_ms at)
{
    struct buf ret = BUF_INIT;
    struct buf signature = BUF_INIT;
    buf_addz(&ret, tasks);
    buf_addc(&ret, '\n');
    buf_addz(&ret, line);
    assert_int_equal(forward_sign(&member, str_from(path), buf_str(&ret), at, &signature), 0);
    buf_addc(&ret, '\n');
    buf_adds(&ret, buf_str(&signature));
    assert_true(buf_ok(&ret));
    buf_fini(&signature);
    return ret;
}

static bool is_believed(const struct config *cfg, const char *name, const char *service,
                        struct str answer)
{
    struct lease_claims *claims = NULL;
    struct str tasks = {0};
    bool ok =
        lease_answer_read(cfg, str_from(name), str_from(service), answer, NOW, &tasks, &claims);
    assert_int_equal(ok, claims != NULL);
    assert_int_equal(ok, tasks.p != NULL);
    free(claims);
    return ok;
}

static void test_a_whole_answer(void **state)
{
    struct buf b = answer_of(TASKS, CLAIMS, LEASE_CLAIMS_PATH, NOW - 1000);
    struct lease_claims *claims;
    struct str tasks;
    (void)state;
    assert_true(
        lease_answer_read(&member, STR("node-b"), STR("s"), buf_str(&b), NOW, &tasks, &claims));
    assert_true(str_eqz(tasks, TASKS));
    assert_string_equal(claims->service_name, "s");
    assert_int_equal(claims->n, 2);
    assert_int_equal(claims->list[0].id, 7);
    assert_int_equal(claims->list[0].attempt, 2);
    assert_int_equal(claims->list[0].retry_count, 1);
    assert_int_equal(claims->list[0].priority, 5);
    assert_int_equal(claims->list[0].shard, 0);
    assert_int_equal(claims->list[1].id, -8);
    assert_int_equal(claims->list[1].shard, 3);
    free(claims);
    buf_fini(&b);
}

/* By another member, for another service or path, with another secret or none, too old. */
static void test_whose_it_is(void **state)
{
    const struct config stranger = {.node_name = "node-b", .cluster_secret = "another secret...."};
    const struct config alone = {.node_name = "node-b"};
    struct buf b = answer_of(TASKS, CLAIMS, LEASE_CLAIMS_PATH, NOW);
    struct buf call = answer_of(TASKS, CLAIMS, "/internal/lease", NOW);
    struct buf old = answer_of(TASKS, CLAIMS, LEASE_CLAIMS_PATH, NOW - 62000);
    struct buf early = answer_of(TASKS, CLAIMS, LEASE_CLAIMS_PATH, NOW + 62000);
    (void)state;
    assert_true(is_believed(&member, "node-b", "s", buf_str(&b)));
    assert_false(is_believed(&member, "node-c", "s", buf_str(&b)));
    assert_false(is_believed(&member, "node-b", "t", buf_str(&b)));
    assert_false(is_believed(&member, "node-b", "s2", buf_str(&b)));
    assert_false(is_believed(&stranger, "node-b", "s", buf_str(&b)));
    assert_false(is_believed(&alone, "node-b", "s", buf_str(&b)));
    assert_false(is_believed(&member, "node-b", "s", buf_str(&call)));
    assert_false(is_believed(&member, "node-b", "s", buf_str(&old)));
    assert_false(is_believed(&member, "node-b", "s", buf_str(&early)));
    buf_fini(&b);
    buf_fini(&call);
    buf_fini(&old);
    buf_fini(&early);
}

/* No byte may be another one, and none may be missing. */
static void test_every_byte_counts(void **state)
{
    struct buf b = answer_of(TASKS, CLAIMS, LEASE_CLAIMS_PATH, NOW);
    (void)state;
    for (size_t i = 0; i < b.len; i++) {
        b.data[i] ^= 1;
        if (is_believed(&member, "node-b", "s", buf_str(&b)))
            fail_msg("byte %zu of %zu", i, b.len);
        b.data[i] ^= 1;
        if (is_believed(&member, "node-b", "s", (struct str){b.data, i}))
            fail_msg("%zu bytes of %zu", i, b.len);
    }
    assert_true(is_believed(&member, "node-b", "s", buf_str(&b)));
    buf_fini(&b);
}

/* Rightly signed, and no claims. */
static void test_malformed_claims(void **state)
{
    static const char *const lines[] = {
        "",
        "[]",
        "{\"service\":\"s\"}",
        "{\"claims\":[[7,2,1,5,0]]}",
        "{\"service\":7,\"claims\":[[7,2,1,5,0]]}",
        "{\"service\":\"s\",\"claims\":[]}",
        "{\"service\":\"s\",\"claims\":{}}",
        "{\"service\":\"s\",\"claims\":7}",
        "{\"service\":\"s\",\"claims\":[7]}",
        "{\"service\":\"s\",\"claims\":[[7,2,1,5]]}",
        "{\"service\":\"s\",\"claims\":[[7,2,1,5,0,0]]}",
        "{\"service\":\"s\",\"claims\":[[7,2,1,5,0],[7,2,1,5]]}",
        "{\"service\":\"s\",\"claims\":[[7,2,1,5,\"0\"]]}",
        "{\"service\":\"s\",\"claims\":[[7,2,[1],5,0]]}",
        "{\"service\":\"s\",\"claims\":[[7,-2,1,5,0]]}",
        "{\"service\":\"s\",\"claims\":[[7,2147483648,1,5,0]]}",
        "{\"service\":\"s\",\"claims\":[[7.5,2,1,5,0]]}",
        "{\"service\":\"s\",\"claims\":[[7,2,1,5,0]]",
        "{\"service\":\"s\",\"claims\":[[7,2,1,5,0]]}}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        struct buf b = answer_of(TASKS, lines[i], LEASE_CLAIMS_PATH, NOW);
        if (is_believed(&member, "node-b", "s", buf_str(&b)))
            fail_msg("%s", lines[i]);
        buf_fini(&b);
    }
    assert_false(is_believed(&member, "node-b", "s", STR(LEASE_NO_TASKS)));
    assert_false(is_believed(&member, "node-b", "s", STR("\n\n")));
    assert_false(is_believed(&member, "node-b", "s", STR("")));
    assert_false(is_believed(&member, "node-b", "s", (struct str){0}));
}

/* More claims than one answer has. */
static void test_too_many_claims(void **state)
{
    (void)state;
    for (int more = 0; more < 2; more++) {
        struct buf line = BUF_INIT;
        buf_addz(&line, "{\"service\":\"s\",\"claims\":[[1,1,0,5,0]");
        for (int i = 1; i < LEASE_TASKS_MAX + more * 100; i++)
            buf_addz(&line, ",[1,1,0,5,0]");
        buf_addz(&line, "]}");
        buf_addc(&line, '\0');
        assert_true(buf_ok(&line));
        struct buf b = answer_of(TASKS, line.data, LEASE_CLAIMS_PATH, NOW);
        assert_int_equal(is_believed(&member, "node-b", "s", buf_str(&b)), !more);
        buf_fini(&b);
        buf_fini(&line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_a_whole_answer),
        cmocka_unit_test(test_whose_it_is),
        cmocka_unit_test(test_every_byte_counts),
        cmocka_unit_test(test_malformed_claims),
        cmocka_unit_test(test_too_many_claims),
    };
    return cmocka_run_group_tests_name("lease_answer", tests, NULL, NULL);
}
