/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>

#include "common/base64.h"
#include "node/cluster/etcd_json.h"

static void put_i64(struct buf *b, bool *first, const char *key, int64_t v)
{
    json_put_key(b, first, key);
    buf_addc(b, '"');
    buf_addi(b, v);
    buf_addc(b, '"');
}

static void put_bytes(struct buf *b, bool *first, const char *key, struct str s)
{
    json_put_key(b, first, key);
    buf_addc(b, '"');
    base64_encode(s, b);
    buf_addc(b, '"');
}

/* The first key behind all that begin with the prefix: the last byte that can grow by one does, and
 * what follows it goes. Without such a byte it is all keys behind, which etcd writes as one NUL. */
static void put_range_end(struct buf *b, bool *first, struct str prefix)
{
    struct buf end = BUF_INIT;

    while (prefix.len > 0 && (unsigned char)prefix.p[prefix.len - 1] == 0xFF)
        prefix.len--;
    buf_adds(&end, prefix);
    if (prefix.len == 0)
        buf_addc(&end, '\0');
    else if (buf_ok(&end))
        end.data[end.len - 1]++;
    put_bytes(b, first, "range_end", buf_str(&end));
    b->failed |= end.failed;
    buf_fini(&end);
}

static void put_keys(struct buf *b, bool *first, struct str key, bool is_prefix)
{
    assert(key.len > 0);
    put_bytes(b, first, "key", key);
    if (is_prefix)
        put_range_end(b, first, key);
}

static void put_put(struct buf *b, const struct etcd_call *c)
{
    bool first = true;

    buf_addc(b, '{');
    put_bytes(b, &first, "key", c->key);
    put_bytes(b, &first, "value", c->value);
    if (c->lease)
        put_i64(b, &first, "lease", c->lease);
    buf_addc(b, '}');
}

static void put_one_key(struct buf *b, struct str key)
{
    bool first = true;

    buf_addc(b, '{');
    put_bytes(b, &first, "key", key);
    buf_addc(b, '}');
}

/* If <field> of the key equals the value, do what `then` is; else read the key. */
static void put_compare(struct buf *b, const struct etcd_call *c, const char *target,
                        const char *field, int64_t value)
{
    bool first = true;

    buf_addz(b, "{\"compare\":[{");
    put_bytes(b, &first, "key", c->key);
    json_put_key(b, &first, "target");
    json_put_stringz(b, target);
    json_put_key(b, &first, "result");
    buf_addz(b, "\"EQUAL\"");
    put_i64(b, &first, field, value);
    buf_addz(b, "}],\"success\":[{");
    if (c->op == ETCD_CREATE) {
        buf_addz(b, "\"request_put\":");
        put_put(b, c);
    } else {
        buf_addz(b, "\"request_delete_range\":");
        put_one_key(b, c->key);
    }
    buf_addz(b, "}],\"failure\":[{\"request_range\":");
    put_one_key(b, c->key);
    buf_addz(b, "}]}");
}

static void put_keys_object(struct buf *b, const struct etcd_call *c)
{
    bool first = true;

    buf_addc(b, '{');
    put_keys(b, &first, c->key, c->is_prefix);
    buf_addc(b, '}');
}

static void put_number_object(struct buf *b, const char *key, int64_t v)
{
    bool first = true;

    buf_addc(b, '{');
    put_i64(b, &first, key, v);
    buf_addc(b, '}');
}

const char *etcd_path(enum etcd_op op)
{
    static const char *const paths[] = {
        [ETCD_LEASE_GRANT] = "/v3/lease/grant",
        [ETCD_LEASE_KEEP_ALIVE] = "/v3/lease/keepalive",
        [ETCD_LEASE_REVOKE] = "/v3/lease/revoke",
        [ETCD_PUT] = "/v3/kv/put",
        [ETCD_RANGE] = "/v3/kv/range",
        [ETCD_DELETE] = "/v3/kv/deleterange",
        [ETCD_CREATE] = "/v3/kv/txn",
        [ETCD_DELETE_IF] = "/v3/kv/txn",
        [ETCD_LEASE_TTL] = "/v3/lease/timetolive",
    };

    return paths[op];
}

void etcd_encode_call(const struct etcd_call *c, struct buf *dst)
{
    switch (c->op) {
    case ETCD_LEASE_GRANT:
        put_number_object(dst, "TTL", c->ttl_s);
        break;
    case ETCD_LEASE_KEEP_ALIVE:
    case ETCD_LEASE_REVOKE:
    case ETCD_LEASE_TTL:
        put_number_object(dst, "ID", c->lease);
        break;
    case ETCD_PUT:
        put_put(dst, c);
        break;
    case ETCD_RANGE:
    case ETCD_DELETE:
        put_keys_object(dst, c);
        break;
    case ETCD_CREATE:
        put_compare(dst, c, "CREATE", "create_revision", 0);
        break;
    case ETCD_DELETE_IF:
        put_compare(dst, c, "MOD", "mod_revision", c->mod_revision);
        break;
    }
}

void etcd_encode_authenticate(const char *user, const char *password, struct buf *dst)
{
    bool first = true;

    buf_addc(dst, '{');
    json_put_key(dst, &first, "name");
    json_put_stringz(dst, user);
    json_put_key(dst, &first, "password");
    json_put_stringz(dst, password);
    buf_addc(dst, '}');
}

void etcd_encode_watch(const struct etcd_watch_config *cfg, int64_t start_revision, struct buf *dst)
{
    bool first = true;

    buf_addz(dst, "{\"create_request\":{");
    put_keys(dst, &first, cfg->prefix, true);
    if (start_revision)
        put_i64(dst, &first, "start_revision", start_revision);
    if (cfg->with_prev) {
        json_put_key(dst, &first, "prev_kv");
        buf_addz(dst, "true");
    }
    json_put_key(dst, &first, "progress_notify");
    buf_addz(dst, "true}}");
}
