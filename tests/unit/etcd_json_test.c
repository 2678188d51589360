/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "node/cluster/etcd_json.h"

#define HEADER "\"header\":{\"cluster_id\":\"18446744073709551615\",\"revision\":\"7\"}"

struct fixture {
    struct etcd_decoder d;
    struct etcd_answer a;
    struct etcd_fault fault;
};

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    etcd_decoder_fini(&f->d);
    free(f);
    return 0;
}

/* ---- Requests ------------------------------------------------------------------------------ */

static void check_call(const struct etcd_call *c, const char *path, const char *json)
{
    struct buf b = BUF_INIT;

    etcd_encode_call(c, &b);
    assert_true(buf_ok(&b));
    assert_string_equal(etcd_path(c->op), path);
    buf_addc(&b, '\0');
    assert_string_equal(b.data, json);
    buf_fini(&b);
}

static void test_requests(void **state)
{
    (void)state;
    check_call(&(struct etcd_call){.op = ETCD_LEASE_GRANT, .ttl_s = 10}, "/v3/lease/grant",
               "{\"TTL\":\"10\"}");
    check_call(&(struct etcd_call){.op = ETCD_LEASE_KEEP_ALIVE, .lease = INT64_MAX},
               "/v3/lease/keepalive", "{\"ID\":\"9223372036854775807\"}");
    check_call(&(struct etcd_call){.op = ETCD_LEASE_REVOKE, .lease = 5}, "/v3/lease/revoke",
               "{\"ID\":\"5\"}");
    check_call(&(struct etcd_call){.op = ETCD_LEASE_TTL, .lease = 5}, "/v3/lease/timetolive",
               "{\"ID\":\"5\"}");
    check_call(
        &(struct etcd_call){.op = ETCD_PUT, .key = STR("a"), .value = STR("\0\xFF"), .lease = 3},
        "/v3/kv/put", "{\"key\":\"YQ==\",\"value\":\"AP8=\",\"lease\":\"3\"}");
    check_call(&(struct etcd_call){.op = ETCD_PUT, .key = STR("a")}, "/v3/kv/put",
               "{\"key\":\"YQ==\",\"value\":\"\"}");
    check_call(&(struct etcd_call){.op = ETCD_RANGE, .key = STR("a")}, "/v3/kv/range",
               "{\"key\":\"YQ==\"}");
    check_call(&(struct etcd_call){.op = ETCD_DELETE, .key = STR("a"), .is_prefix = true},
               "/v3/kv/deleterange", "{\"key\":\"YQ==\",\"range_end\":\"Yg==\"}");
}

static void test_transactions(void **state)
{
    (void)state;
    check_call(
        &(struct etcd_call){.op = ETCD_CREATE, .key = STR("a"), .value = STR("v"), .lease = 9},
        "/v3/kv/txn",
        "{\"compare\":[{\"key\":\"YQ==\",\"target\":\"CREATE\",\"result\":\"EQUAL\","
        "\"create_revision\":\"0\"}],"
        "\"success\":[{\"request_put\":{\"key\":\"YQ==\",\"value\":\"dg==\",\"lease\":\"9\"}}],"
        "\"failure\":[{\"request_range\":{\"key\":\"YQ==\"}}]}");
    check_call(&(struct etcd_call){.op = ETCD_DELETE_IF, .key = STR("a"), .mod_revision = 12},
               "/v3/kv/txn",
               "{\"compare\":[{\"key\":\"YQ==\",\"target\":\"MOD\",\"result\":\"EQUAL\","
               "\"mod_revision\":\"12\"}],"
               "\"success\":[{\"request_delete_range\":{\"key\":\"YQ==\"}}],"
               "\"failure\":[{\"request_range\":{\"key\":\"YQ==\"}}]}");
}

static void check_prefix(struct str prefix, const char *json)
{
    check_call(&(struct etcd_call){.op = ETCD_RANGE, .key = prefix, .is_prefix = true},
               "/v3/kv/range", json);
}

/* etcd-51: the end of a prefix is made of raw bytes before they are encoded. */
static void test_etcd_51_prefix(void **state)
{
    (void)state;
    check_prefix(STR("tglog"), "{\"key\":\"dGdsb2c=\",\"range_end\":\"dGdsb2g=\"}");
    check_prefix(STR("a\xFF\xFF"), "{\"key\":\"Yf//\",\"range_end\":\"Yg==\"}");
    check_prefix(STR("a\x7F"), "{\"key\":\"YX8=\",\"range_end\":\"YYA=\"}");
    check_prefix(STR("\xFE"), "{\"key\":\"/g==\",\"range_end\":\"/w==\"}");
    /* Nothing is behind these but all other keys that are greater. */
    check_prefix(STR("\xFF\xFF"), "{\"key\":\"//8=\",\"range_end\":\"AA==\"}");
}

static void test_other_requests(void **state)
{
    struct etcd_watch_config cfg = {.prefix = STR("/a"), .with_prev = true};
    struct buf b = BUF_INIT;

    (void)state;
    etcd_encode_watch(&cfg, INT64_C(9007199254740993), &b);
    assert_true(str_eqz(buf_str(&b), "{\"create_request\":{\"key\":\"L2E=\",\"range_end\":\"L2I=\","
                                     "\"start_revision\":\"9007199254740993\",\"prev_kv\":true,"
                                     "\"progress_notify\":true}}"));
    buf_clear(&b);
    cfg.with_prev = false;
    etcd_encode_watch(&cfg, 0, &b);
    assert_true(str_eqz(buf_str(&b), "{\"create_request\":{\"key\":\"L2E=\",\"range_end\":"
                                     "\"L2I=\",\"progress_notify\":true}}"));
    buf_clear(&b);
    etcd_encode_authenticate("ro\"ot", "p\\w", &b);
    assert_true(str_eqz(buf_str(&b), "{\"name\":\"ro\\\"ot\",\"password\":\"p\\\\w\"}"));
    buf_fini(&b);
}

/* ---- Answers ------------------------------------------------------------------------------- */

static int decode(struct fixture *f, const struct etcd_call *c, int status, const char *body)
{
    f->a = (struct etcd_answer){.revision = -1};
    f->fault = (struct etcd_fault){.rc = 1};
    int rc = etcd_decode_answer(&f->d, c, status, str_from(body), &f->a, &f->fault);

    assert_int_equal(f->fault.rc, rc);
    if (rc)
        assert_int_equal(f->a.revision, -1);
    return rc;
}

static int decode_range(struct fixture *f, const char *body)
{
    return decode(f, &(struct etcd_call){.op = ETCD_RANGE, .key = STR("a")}, 200, body);
}

/* etcd-51: as strings or, liberally, as numbers, and exact. */
static void test_etcd_51_numbers(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(decode_range(f, "{\"header\":{\"revision\":\"9007199254740993\"}}"), 0);
    assert_true(f->a.revision == INT64_C(9007199254740993));
    assert_int_equal(decode_range(f, "{\"header\":{\"revision\":9007199254740993}}"), 0);
    assert_true(f->a.revision == INT64_C(9007199254740993));
    assert_int_equal(decode_range(f, "{\"header\":{\"revision\":\"9223372036854775807\"}}"), 0);
    assert_true(f->a.revision == INT64_MAX);
    static const char *const bad[] = {"\"9223372036854775808\"",
                                      "\"-1\"",
                                      "1.5",
                                      "\"\"",
                                      "\"1e3\"",
                                      "1e3",
                                      "true",
                                      "[]",
                                      "{}",
                                      "\" 1\""};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char body[100];
        (void)snprintf(body, sizeof(body), "{\"header\":{\"revision\":%s}}", bad[i]);
        assert_int_equal(decode_range(f, body), ERR_PROTOCOL);
        assert_int_equal(f->fault.cure, ETCD_CURE_ENDPOINT);
    }
}

/* etcd-51: what is zero or empty is not written. */
static void test_etcd_51_absent(void **state)
{
    static const char *const none[] = {"{" HEADER "}", "{" HEADER ",\"kvs\":[]}",
                                       "{" HEADER ",\"kvs\":null,\"count\":null}"};
    struct fixture *f = *state;

    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(decode_range(f, none[i]), 0);
        assert_int_equal(f->a.n_kvs, 0);
        assert_null(f->a.kvs);
        assert_true(f->a.revision == 7);
    }
    assert_int_equal(decode_range(f, "{\"header\":{}}"), 0);
    assert_true(f->a.revision == 0);
    assert_int_equal(decode_range(f, "{" HEADER ",\"kvs\":[{\"key\":\"YQ==\"}]}"), 0);
    assert_int_equal(f->a.n_kvs, 1);
    const struct etcd_kv *kv = &f->a.kvs[0];
    assert_true(str_eqz(kv->key, "a"));
    assert_true(str_eqz(kv->value, ""));
    assert_true(kv->create_revision == 0 && kv->mod_revision == 0 && kv->lease == 0);
}

static void test_range(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(
        decode_range(f, "{" HEADER ",\"kvs\":["
                        "{\"key\":\"YQ==\",\"create_revision\":\"2\",\"mod_revision\":\"3\","
                        "\"version\":\"2\",\"value\":\"AP8=\",\"lease\":\"2324035702972086533\"},"
                        "{\"value\":\"\\/g==\",\"key\":\"Yg==\",\"new\":[{}]}],\"count\":\"2\"}"),
        0);
    assert_int_equal(f->a.n_kvs, 2);
    assert_true(str_eqz(f->a.kvs[0].key, "a"));
    assert_true(str_eq(f->a.kvs[0].value, STR("\0\xFF")));
    assert_true(f->a.kvs[0].create_revision == 2);
    assert_true(f->a.kvs[0].mod_revision == 3);
    assert_true(f->a.kvs[0].lease == INT64_C(2324035702972086533));
    assert_true(str_eqz(f->a.kvs[1].key, "b"));
    assert_true(str_eqz(f->a.kvs[1].value, "\xFE")); /* its digits were escaped */
}

/* As many as there may be, so that the first ones' memory must not move. */
static void test_range_of_many(void **state)
{
    struct fixture *f = *state;
    struct buf b = BUF_INIT;

    buf_addz(&b, "{" HEADER ",\"kvs\":[");
    for (int i = 0; i < 5000; i++)
        buf_addf(&b, "%s{\"key\":\"YQ==\",\"value\":\"MTIz\",\"lease\":\"%d\"}", i ? "," : "", i);
    buf_addz(&b, "]}");
    buf_addc(&b, '\0');
    assert_int_equal(decode_range(f, b.data), 0);
    assert_int_equal(f->a.n_kvs, 5000);
    for (int i = 0; i < 5000; i++) {
        assert_true(str_eqz(f->a.kvs[i].key, "a") && str_eqz(f->a.kvs[i].value, "123"));
        assert_true(f->a.kvs[i].lease == i);
    }
    buf_fini(&b);
}

static void test_what_is_not_etcd(void **state)
{
    static const char *const bad[] = {
        "",
        "<html>",
        "[]",
        "{}",
        "{\"header\":[]}",
        "{" HEADER,
        "{" HEADER "}{}",
        "{" HEADER ",\"kvs\":{}}",
        "{" HEADER ",\"kvs\":[1]}",
        "{" HEADER ",\"kvs\":[{}]}",
        "{" HEADER ",\"kvs\":[{\"key\":1}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"Y\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"YQ==\",\"value\":\"Y-==\"}]}",
    };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(decode_range(f, bad[i]), ERR_PROTOCOL);
        assert_int_equal(f->fault.cure, ETCD_CURE_ENDPOINT);
        assert_true(f->fault.text[0] != '\0');
    }
}

static void test_leases(void **state)
{
    struct fixture *f = *state;
    struct etcd_call grant = {.op = ETCD_LEASE_GRANT, .ttl_s = 10};
    struct etcd_call keep = {.op = ETCD_LEASE_KEEP_ALIVE, .lease = 5};

    assert_int_equal(decode(f, &grant, 200, "{" HEADER ",\"ID\":\"5\",\"TTL\":\"10\"}"), 0);
    assert_true(f->a.lease == 5 && f->a.ttl_s == 10);
    assert_int_equal(decode(f, &grant, 200, "{" HEADER ",\"TTL\":\"10\"}"), ERR_PROTOCOL);
    assert_int_equal(decode(f, &grant, 200, "{" HEADER ",\"ID\":\"5\"}"), ERR_PROTOCOL);

    assert_int_equal(
        decode(f, &keep, 200, "{\"result\":{" HEADER ",\"ID\":\"5\",\"TTL\":\"10\"}}\n"), 0);
    assert_true(f->a.ttl_s == 10);
    /* A lost lease: 200, and no TTL. */
    assert_int_equal(decode(f, &keep, 200, "{\"result\":{" HEADER ",\"ID\":\"5\"}}"),
                     ERR_NOT_FOUND);
    assert_int_equal(f->fault.cure, ETCD_CURE_NONE);
    /* Somebody else's answer. */
    assert_int_equal(decode(f, &keep, 200, "{\"result\":{" HEADER ",\"ID\":\"6\",\"TTL\":\"10\"}}"),
                     ERR_PROTOCOL);
    assert_int_equal(decode(f, &keep, 200, "{" HEADER ",\"ID\":\"5\",\"TTL\":\"10\"}"),
                     ERR_PROTOCOL);
}

static void test_lease_ttl(void **state)
{
    struct fixture *f = *state;
    struct etcd_call c = {.op = ETCD_LEASE_TTL, .lease = 5};

    assert_int_equal(
        decode(f, &c, 200, "{" HEADER ",\"ID\":\"5\",\"TTL\":\"7\",\"grantedTTL\":\"10\"}"), 0);
    assert_true(f->a.lease == 5 && f->a.ttl_s == 7 && f->a.granted_ttl_s == 10);
    assert_int_equal(decode(f, &c, 200, "{" HEADER ",\"ID\":\"5\",\"grantedTTL\":\"10\"}"), 0);
    assert_int_equal(f->a.ttl_s, 0); /* its last second */
    assert_int_equal(decode(f, &c, 200, "{" HEADER ",\"ID\":\"5\",\"TTL\":\"-1\"}"), ERR_NOT_FOUND);
    assert_int_equal(f->fault.cure, ETCD_CURE_NONE);
    assert_int_equal(decode(f, &c, 200, "{" HEADER ",\"ID\":\"6\",\"TTL\":\"7\"}"), ERR_PROTOCOL);
    assert_int_equal(decode(f, &c, 200, "{" HEADER ",\"TTL\":\"7\"}"), ERR_PROTOCOL);
    assert_int_equal(
        decode(f, &c, 200, "{" HEADER ",\"ID\":\"5\",\"TTL\":\"7\",\"grantedTTL\":\"-2\"}"),
        ERR_PROTOCOL);
}

#define HELD(lease)                                                                                \
    "{" HEADER ",\"responses\":[{\"response_range\":{\"header\":{},\"kvs\":[{\"key\":\"YQ==\","    \
    "\"value\":\"dg==\",\"lease\":\"" lease "\"}],\"count\":\"1\"}}]}"

static void test_create(void **state)
{
    struct fixture *f = *state;
    struct etcd_call c = {.op = ETCD_CREATE, .key = STR("a"), .value = STR("v"), .lease = 5};

    assert_int_equal(
        decode(f, &c, 200, "{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{}}]}"),
        0);
    assert_true(f->a.is_done);
    assert_int_equal(f->a.n_kvs, 0);

    assert_int_equal(decode(f, &c, 200, HELD("6")), 0);
    assert_false(f->a.is_done);
    assert_int_equal(f->a.n_kvs, 1);
    assert_true(f->a.kvs[0].lease == 6);

    /* It stands there already by a call whose answer was lost. */
    assert_int_equal(decode(f, &c, 200, HELD("5")), 0);
    assert_true(f->a.is_done);
    c.value = STR("other");
    assert_int_equal(decode(f, &c, 200, HELD("5")), 0);
    assert_false(f->a.is_done);
    c.value = STR("v");
    c.lease = 0;
    assert_int_equal(decode(f, &c, 200, HELD("0")), 0);
    assert_false(f->a.is_done);

    static const char *const bad[] = {"{" HEADER "}", "{" HEADER ",\"responses\":[]}",
                                      "{" HEADER ",\"responses\":[1]}",
                                      "{" HEADER ",\"responses\":[{\"response_range\":{}}]}",
                                      "{" HEADER ",\"succeeded\":\"true\",\"responses\":[{}]}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(decode(f, &c, 200, bad[i]), ERR_PROTOCOL);
}

static void test_delete_if(void **state)
{
    struct fixture *f = *state;
    struct etcd_call c = {.op = ETCD_DELETE_IF, .key = STR("a"), .mod_revision = 5};

    assert_int_equal(decode(f, &c, 200,
                            "{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_delete_"
                            "range\":{\"deleted\":\"1\"}}]}"),
                     0);
    assert_true(f->a.is_done);
    assert_int_equal(decode(f, &c, 200, HELD("6")), 0);
    assert_false(f->a.is_done);
    assert_int_equal(f->a.n_kvs, 1);
    assert_int_equal(decode(f, &c, 200, "{" HEADER ",\"responses\":[{\"response_range\":{}}]}"), 0);
    assert_false(f->a.is_done);
    assert_int_equal(f->a.n_kvs, 0);
    c = (struct etcd_call){.op = ETCD_DELETE, .key = STR("a")};
    assert_int_equal(decode(f, &c, 200, "{" HEADER ",\"deleted\":\"3\"}"), 0);
    assert_true(f->a.n_deleted == 3);
}

/* Errors as etcd 3.4 writes them, as later gateways do, inside of streams, and of what stands in
 * between. */
static void test_errors(void **state)
{
    static const struct {
        int status;
        const char *body;
        int rc;
        enum etcd_cure cure;
        const char *text;
    } rows[] = {
        {404, "{\"error\":\"x\",\"message\":\"lease not found\",\"code\":5}", ERR_NOT_FOUND,
         ETCD_CURE_NONE, "lease not found"},
        {404, "{\"code\":5,\"message\":\"lease not found\",\"details\":[]}", ERR_NOT_FOUND,
         ETCD_CURE_NONE, "lease not found"},
        {503, "{\"error\":\"etcdserver: request timed out\",\"code\":14}", ERR_UNAVAILABLE,
         ETCD_CURE_ENDPOINT, "etcdserver: request timed out"},
        {200,
         "{\"error\":{\"grpc_code\":14,\"http_code\":503,\"message\":\"etcdserver: no leader\"}}",
         ERR_UNAVAILABLE, ETCD_CURE_ENDPOINT, "etcdserver: no leader"},
        {500, "{\"error\":\"context deadline exceeded\",\"code\":2}", ERR_UNAVAILABLE,
         ETCD_CURE_ENDPOINT, "context deadline exceeded"},
        {401, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}", ERR_INVALID,
         ETCD_CURE_TOKEN, "etcdserver: invalid auth token"},
        {400, "{\"error\":\"etcdserver: user name is empty\",\"code\":3}", ERR_INVALID,
         ETCD_CURE_TOKEN, "etcdserver: user name is empty"},
        {400, "{\"error\":\"etcdserver: revision of auth store is old\",\"code\":3}", ERR_INVALID,
         ETCD_CURE_TOKEN, "etcdserver: revision of auth store is old"},
        {400, "{\"error\":\"authentication failed, invalid user ID or password\",\"code\":3}",
         ERR_INVALID, ETCD_CURE_NONE, "authentication failed, invalid user ID or password"},
        {403, "{\"error\":\"etcdserver: permission denied\",\"code\":7}", ERR_INVALID,
         ETCD_CURE_NONE, "etcdserver: permission denied"},
        {429, "{\"error\":\"etcdserver: too many requests\",\"code\":8}", ERR_BUSY, ETCD_CURE_NONE,
         "etcdserver: too many requests"},
        {500, "{\"error\":\"odd\",\"code\":\"99\"}", ERR_UNAVAILABLE, ETCD_CURE_ENDPOINT, "odd"},
        {502, "<html>Bad Gateway</html>", ERR_UNAVAILABLE, ETCD_CURE_ENDPOINT,
         "HTTP status 502 with an answer that is not etcd's"},
        {404, "Not Found", ERR_PROTOCOL, ETCD_CURE_ENDPOINT,
         "HTTP status 404 with an answer that is not etcd's"},
        {302, "{}", ERR_PROTOCOL, ETCD_CURE_ENDPOINT,
         "HTTP status 302 with an answer that is not etcd's"},
    };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct etcd_call c = {.op = ETCD_LEASE_KEEP_ALIVE, .lease = 1};
        assert_int_equal(decode(f, &c, rows[i].status, rows[i].body), rows[i].rc);
        assert_int_equal(f->fault.cure, rows[i].cure);
        assert_string_equal(f->fault.text, rows[i].text);
    }
}

static void test_token(void **state)
{
    static const char *const bad[] = {"{" HEADER "}", "{" HEADER ",\"token\":\"a b\"}",
                                      "{" HEADER ",\"token\":\"a\\r\\nX: y\"}",
                                      "{" HEADER ",\"token\":\"\xC3\xA9\"}", "{\"token\":\"x\"}"};
    struct fixture *f = *state;
    struct str token = {0};

    assert_int_equal(
        etcd_decode_token(&f->d, 200, STR("{" HEADER ",\"token\":\"yXO.22\"}"), &token, &f->fault),
        0);
    assert_true(str_eqz(token, "yXO.22"));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(etcd_decode_token(&f->d, 200, str_from(bad[i]), &token, &f->fault),
                         ERR_PROTOCOL);
    assert_int_equal(
        etcd_decode_token(
            &f->d, 400, STR("{\"error\":\"etcdserver: authentication is not enabled\",\"code\":9}"),
            &token, &f->fault),
        ERR_INVALID);
    assert_int_equal(f->fault.cure, ETCD_CURE_NO_TOKEN);
}

/* ---- Watches ------------------------------------------------------------------------------- */

static int decode_message(struct fixture *f, const char *text, struct etcd_message *m)
{
    f->fault = (struct etcd_fault){0};
    return etcd_decode_message(&f->d, str_from(text), m, &f->fault);
}

static void test_watch_events(void **state)
{
    struct fixture *f = *state;
    struct etcd_message m;

    assert_int_equal(decode_message(f, "{\"result\":{" HEADER ",\"created\":true}}", &m), 0);
    assert_true(m.is_created && !m.is_canceled && m.n_events == 0 && m.revision == 7);
    assert_int_equal(
        decode_message(f,
                       "{\"result\":{" HEADER ",\"events\":["
                       "{\"kv\":{\"key\":\"YQ==\",\"create_revision\":\"2\",\"mod_revision\":\"3\","
                       "\"value\":\"Yg==\",\"lease\":\"4\"}},"
                       "{\"type\":\"DELETE\",\"kv\":{\"key\":\"YQ==\",\"mod_revision\":\"4\"},"
                       "\"prev_kv\":{\"key\":\"YQ==\",\"value\":\"Yg==\",\"mod_revision\":\"3\"}},"
                       "{\"type\":\"PUT\",\"kv\":{\"key\":\"Yw==\",\"mod_revision\":\"4\"}}]}}",
                       &m),
        0);
    assert_int_equal(m.n_events, 3);
    assert_int_equal(m.events[0].type, ETCD_EVENT_PUT);
    assert_true(str_eqz(m.events[0].kv.value, "b"));
    assert_true(m.events[0].kv.lease == 4 && !m.events[0].has_prev);
    assert_int_equal(m.events[1].type, ETCD_EVENT_DELETE);
    assert_true(m.events[1].kv.mod_revision == 4);
    assert_true(m.events[1].has_prev && str_eqz(m.events[1].prev.value, "b"));
    assert_int_equal(m.events[2].type, ETCD_EVENT_PUT);

    static const char *const bad[] = {
        "{}",
        "{\"result\":[]}",
        "{\"result\":{\"created\":true}}",
        "{\"result\":{" HEADER ",\"created\":1}}",
        "{\"result\":{" HEADER ",\"events\":[{}]}}",
        "{\"result\":{" HEADER ",\"events\":[{\"kv\":{\"key\":\"YQ==\"}}]}}",
        "{\"result\":{" HEADER
        ",\"events\":[{\"type\":\"?\",\"kv\":{\"key\":\"YQ==\",\"mod_revision\":\"1\"}}]}}",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(decode_message(f, bad[i], &m), ERR_PROTOCOL);
}

/* etcd-47: "canceled" may be missing. */
static void test_etcd_47_compaction(void **state)
{
    struct fixture *f = *state;
    struct etcd_message m;

    assert_int_equal(
        decode_message(f, "{\"result\":{\"header\":{},\"compact_revision\":\"3\"}}", &m), 0);
    assert_true(m.compact_revision == 3);
    assert_int_equal(
        decode_message(
            f, "{\"result\":{\"header\":{},\"canceled\":true,\"compact_revision\":\"3\"}}", &m),
        0);
    assert_true(m.compact_revision == 3);
}

#define CANCELED(reason)                                                                           \
    "{\"result\":{" HEADER ",\"watch_id\":\"-1\",\"created\":true,\"canceled\":true,"              \
    "\"cancel_reason\":\"" reason "\"}}"

static void test_watch_cancelled(void **state)
{
    static const struct {
        const char *text;
        int rc;
        enum etcd_cure cure;
    } rows[] = {
        {CANCELED("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"),
         ERR_INVALID, ETCD_CURE_TOKEN},
        {CANCELED("rpc error: code = InvalidArgument desc = etcdserver: user name is empty"),
         ERR_INVALID, ETCD_CURE_TOKEN},
        {CANCELED("rpc error: code = PermissionDenied desc = etcdserver: permission denied"),
         ERR_INVALID, ETCD_CURE_NONE},
        {CANCELED("etcdserver: no leader"), ERR_CONFLICT, ETCD_CURE_ENDPOINT},
        {CANCELED(""), ERR_CONFLICT, ETCD_CURE_NONE},
        {"{\"result\":{" HEADER ",\"canceled\":true}}", ERR_CONFLICT, ETCD_CURE_NONE},
    };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct etcd_message m = {.revision = -1};
        assert_int_equal(decode_message(f, rows[i].text, &m), rows[i].rc);
        assert_int_equal(f->fault.cure, rows[i].cure);
        assert_true(m.revision == -1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_transactions),
        cmocka_unit_test(test_etcd_51_prefix),
        cmocka_unit_test(test_other_requests),
        cmocka_unit_test_setup_teardown(test_etcd_51_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_etcd_51_absent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_range, setup, teardown),
        cmocka_unit_test_setup_teardown(test_range_of_many, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_not_etcd, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leases, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lease_ttl, setup, teardown),
        cmocka_unit_test_setup_teardown(test_create, setup, teardown),
        cmocka_unit_test_setup_teardown(test_delete_if, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_token, setup, teardown),
        cmocka_unit_test_setup_teardown(test_watch_events, setup, teardown),
        cmocka_unit_test_setup_teardown(test_etcd_47_compaction, setup, teardown),
        cmocka_unit_test_setup_teardown(test_watch_cancelled, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
