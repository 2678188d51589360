/* SPDX-License-Identifier: Apache-2.0 */
/* How a member is written and read: what members of other versions, and people, may put there. */
#include "proto/member.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/timefmt.h"

#define TEXT                                                                                       \
    "{\"name\":\"node-1\",\"address\":\"10.0.0.1:8080\",\"state\":\"active\",\"epoch\":7,"         \
    "\"version\":\"1.2.3\",\"hashVersion\":1,\"startedAt\":\"2026-01-02T03:04:05.678Z\"}"

static struct member example(void)
{
    struct member m = {.epoch = 7, .state = MEMBER_ACTIVE, .hash_version = 1};
    struct err err = {0};

    assert_true(member_set_text(m.name, sizeof(m.name), STR("node-1")));
    assert_true(member_set_text(m.address, sizeof(m.address), STR("10.0.0.1:8080")));
    assert_true(member_set_text(m.version, sizeof(m.version), STR("1.2.3")));
    assert_int_equal(time_parse(STR("2026-01-02T03:04:05.678Z"), &m.started_at, &err), 0);
    return m;
}

static void assert_same(const struct member *a, const struct member *b)
{
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->address, b->address);
    assert_string_equal(a->version, b->version);
    assert_true(a->epoch == b->epoch);
    assert_int_equal(a->state, b->state);
    assert_int_equal(a->hash_version, b->hash_version);
    assert_true(a->started_at == b->started_at);
}

static void assert_round_trip(const struct member *m)
{
    struct buf b = BUF_INIT;
    struct err err = {0};
    struct member back;

    member_put(&b, m);
    assert_true(buf_ok(&b));
    if (member_parse(buf_str(&b), &back, &err))
        fail_msg("%s", err.text);
    assert_same(m, &back);
    buf_fini(&b);
}

static void test_written_as_one_line(void **state)
{
    struct member m = example();
    struct buf b = BUF_INIT;

    (void)state;
    member_put(&b, &m);
    buf_addc(&b, '\0');
    assert_string_equal(b.data, TEXT);
    buf_fini(&b);
}

static void test_round_trip(void **state)
{
    struct member m = example();

    (void)state;
    for (int i = 0; i < MEMBER_N_STATES; i++) {
        m.state = (enum member_state)i;
        assert_round_trip(&m);
    }
    m.epoch = INT64_MAX;
    m.hash_version = INT32_MAX;
    m.started_at = TIME_MAX;
    memset(m.name, 'n', MEMBER_NAME_MAX);
    memset(m.address, 'a', MEMBER_ADDRESS_MAX);
    memcpy(m.address + MEMBER_ADDRESS_MAX - 6, ":65535", 6);
    memset(m.version, 'v', MEMBER_VERSION_MAX);
    assert_round_trip(&m);
    m = example();
    (void)snprintf(m.address, sizeof(m.address), "%s", "[fe80::1%eth0]:80");
    (void)snprintf(m.version, sizeof(m.version), "%s", " \"\\/\n\xC3\xA9\xF0\x9F\x98\x80");
    assert_round_trip(&m);
    m.version[0] = '\0';
    m.epoch = 0;
    m.started_at = TIME_MIN;
    assert_round_trip(&m);
}

/* Reads TEXT with one part in the place of another. */
static int parse_with(const char *from, const char *to, struct member *ret, struct err *err)
{
    const char *at = strstr(TEXT, from);
    char text[1024];

    assert_non_null(at);
    (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - TEXT), TEXT, to, at + strlen(from));
    return member_parse(str_from(text), ret, err);
}

static void test_unknown_fields_are_ignored(void **state)
{
    struct member wanted = example();
    struct member m;
    struct err err = {0};

    (void)state;
    assert_int_equal(parse_with("{", "{\"zone\":{\"name\":[1,\"x\",null]},", &m, &err), 0);
    assert_same(&m, &wanted);
    assert_int_equal(parse_with("}", ",\"load\":1e400}", &m, &err), 0);
    assert_same(&m, &wanted);
    assert_int_equal(parse_with("}", " } ", &m, &err), 0);
    assert_int_equal(parse_with("node-1", "n\\u006fde-1", &m, &err), 0);
    assert_same(&m, &wanted);
}

static void assert_refused(const char *from, const char *to, const char *word)
{
    struct member m;
    struct member before;
    struct err err = {0};

    memset(&m, 0x5A, sizeof(m));
    before = m;
    if (parse_with(from, to, &m, &err) != ERR_INVALID)
        fail_msg("not refused: %s", to);
    if (!strstr(err.text, word))
        fail_msg("\"%s\" does not name \"%s\"", err.text, word);
    assert_memory_equal(&m, &before, sizeof(m)); /* untouched */
}

static void test_missing_fields(void **state)
{
    static const char *const fields[] = {"name",    "address",     "state",    "epoch",
                                         "version", "hashVersion", "startedAt"};

    (void)state;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "\"%s\"", fields[i]);
        assert_refused(key, "\"other\"", fields[i]);
    }
}

static void test_wrong_fields(void **state)
{
    static const char *const addresses[] = {
        "",        ":80",          "host",   "host:",         "host:0", "host:65536",
        "host:8o", "host:80/x?",   "a/b:80", "user@h:80",     "h:80#",  "h 1:80",
        "::1:80",  "[::1]:80/x:1", "[]:80",  "h:80\\r\\nX:1",
    };

    (void)state;
    assert_refused("\"node-1\"", "1", "name");
    assert_refused("node-1", "", "name");
    assert_refused("node-1", "..", "name");
    assert_refused("node-1", "node/1", "name");
    assert_refused("node-1",
                   "n\xC3\xB6"
                   "de",
                   "name");
    assert_refused("\"10.0.0.1:8080\"", "null", "address");
    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++)
        assert_refused("10.0.0.1:8080", addresses[i], "address");
    assert_refused("\"1.2.3\"", "[\"1.2.3\"]", "version");
    assert_refused("\"active\"", "\"ACTIVE\"", "state");
    assert_refused("\"active\"", "1", "state");
    assert_refused(":7,", ":\"7\",", "epoch");
    assert_refused(":7,", ":-1,", "epoch");
    assert_refused(":7,", ":7.0,", "epoch");
    assert_refused(":7,", ":9223372036854775808,", "epoch");
    assert_refused(":1,", ":2147483648,", "hashVersion");
    assert_refused(":1,", ":true,", "hashVersion");
    assert_refused("\"2026-01-02T03:04:05.678Z\"", "1767323045678", "startedAt");
    assert_refused("2026-01-02T03:04:05.678Z", "yesterday", "startedAt");
}

static void test_too_long_fields(void **state)
{
    char text[400];

    (void)state;
    memset(text, 'x', sizeof(text));
    text[MEMBER_NAME_MAX + 1] = '\0';
    assert_refused("node-1", text, "name");
    text[MEMBER_NAME_MAX + 1] = 'x';
    text[MEMBER_VERSION_MAX + 1] = '\0';
    assert_refused("1.2.3", text, "version");
    text[MEMBER_VERSION_MAX + 1] = 'x';
    text[MEMBER_ADDRESS_MAX + 1] = '\0';
    assert_refused("10.0.0.1:8080", text, "address");
}

static void test_no_member_at_all(void **state)
{
    static const char *const texts[] = {
        "", "hello", "null", "[]", "\"node-1\"", "{}", "{ ", "{\"name\":\"a\",\"name\":\"b\"}"};
    struct member m;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct err err = {0};
        if (member_parse(str_from(texts[i]), &m, &err) != ERR_INVALID)
            fail_msg("not refused: %s", texts[i]);
        assert_true(err.text[0] != '\0');
    }
    assert_refused("Z\"}", "Z\"}x", "");
    assert_refused("Z\"}", "Z\"", "");
    assert_refused("Z\"}", "Z\"}{}", "");
    assert_int_equal(member_parse(STR(TEXT), &m, NULL), 0);
    assert_int_equal(member_parse(STR("{}"), &m, NULL), ERR_INVALID);
}

static void test_bad_bytes(void **state)
{
    (void)state;
    assert_refused("10.0.0.1", "\xFF", "");
    assert_refused("10.0.0.1", "\xC3", "");
    assert_refused("10.0.0.1", "\xC0\xAF", "");
    assert_refused("10.0.0.1", "\xED\xA0\x80", "");
    assert_refused("10.0.0.1", "\\ud800", "");
    assert_refused("10.0.0.1", "\\u0000", "");
    assert_refused("10.0.0.1", "\n", "");
}

/* Too much to be a member is no member. */
static void test_too_many_values(void **state)
{
    struct buf b = BUF_INIT;
    struct member m;
    struct err err = {0};

    (void)state;
    buf_addz(&b, "{\"x\":[0");
    for (int i = 0; i < 1000; i++)
        buf_addz(&b, ",0");
    buf_addz(&b, "],");
    buf_addz(&b, &TEXT[1]);
    assert_int_equal(member_parse(buf_str(&b), &m, &err), ERR_INVALID);
    buf_clear(&b);
    for (int i = 0; i < 1000; i++)
        buf_addc(&b, '[');
    assert_int_equal(member_parse(buf_str(&b), &m, &err), ERR_INVALID);
    buf_fini(&b);
}

static void test_set_text(void **state)
{
    char dst[5];

    (void)state;
    assert_true(member_set_text(dst, sizeof(dst), STR("")));
    assert_string_equal(dst, "");
    assert_true(member_set_text(dst, sizeof(dst), (struct str){0}));
    assert_string_equal(dst, "");
    assert_true(member_set_text(dst, sizeof(dst), STR("1234")));
    assert_string_equal(dst, "1234");
    assert_false(member_set_text(dst, sizeof(dst), STR("12345")));
    assert_string_equal(dst, "1234");
    assert_false(member_set_text(dst, sizeof(dst), STR("123\xC3\xA9")));
    assert_string_equal(dst, "123"); /* no half character, which could not be written as JSON */
}

static void test_states(void **state)
{
    enum member_state s = MEMBER_LEFT;

    (void)state;
    for (int i = 0; i < MEMBER_N_STATES; i++) {
        assert_true(member_state_parse(str_from(member_state_name((enum member_state)i)), &s));
        assert_int_equal(s, i);
    }
    s = MEMBER_DRAINING;
    assert_false(member_state_parse(STR("activ"), &s));
    assert_false(member_state_parse((struct str){0}, &s));
    assert_int_equal(s, MEMBER_DRAINING);
    assert_string_equal(member_state_name(MEMBER_N_STATES), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_as_one_line),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_unknown_fields_are_ignored),
        cmocka_unit_test(test_missing_fields),
        cmocka_unit_test(test_wrong_fields),
        cmocka_unit_test(test_too_long_fields),
        cmocka_unit_test(test_no_member_at_all),
        cmocka_unit_test(test_bad_bytes),
        cmocka_unit_test(test_too_many_values),
        cmocka_unit_test(test_set_text),
        cmocka_unit_test(test_states),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
