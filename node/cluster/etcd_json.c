/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding. The readers of fields keep the first thing that is wrong in struct reader, so that a
 * message is read straight through and judged once, at its end. Fields that are not asked for are
 * skipped: later versions add some. */
#include "node/cluster/etcd_json.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base64.h"
#include "node/cluster/etcd_fault.h"

#define TOKENS_MAX ((uint32_t)1 << 20)
#define TOKEN_LEN_MAX 8192

struct reader {
    struct etcd_decoder *d;
    struct etcd_fault *fault;
};

void etcd_decoder_fini(struct etcd_decoder *d)
{
    json_doc_fini(&d->doc);
    buf_fini(&d->bytes);
    buf_fini(&d->scratch);
    free(d->kvs);
    free(d->events);
}

static int fail_field(struct reader *r, const char *key)
{
    return etcd_fault_set(r->fault, ERR_PROTOCOL, ETCD_CURE_ENDPOINT,
                          "the answer's \"%s\" is not etcd's", key);
}

/* ---- Fields -------------------------------------------------------------------------------- */

static const struct json_token *token(const struct reader *r, uint32_t i)
{
    return &r->d->doc.tokens[i];
}

/* The value's index, 0 when it is absent or null. obj 0 is the root. */
static uint32_t find(const struct reader *r, uint32_t obj, const char *key)
{
    uint32_t i = token(r, obj)->type == JSON_OBJECT ? json_find(&r->d->doc, obj, key) : 0;

    return i && token(r, i)->type == JSON_NULL ? 0 : i;
}

static uint32_t find_type(struct reader *r, uint32_t obj, const char *key, enum json_type type)
{
    uint32_t i = find(r, obj, key);

    if (i && token(r, i)->type != type) {
        (void)fail_field(r, key);
        return 0;
    }
    return i;
}

static int64_t read_i64(struct reader *r, uint32_t obj, const char *key)
{
    uint32_t i = find(r, obj, key);
    int64_t v = 0;

    if (!i || json_to_i64(token(r, i), &v))
        return v;
    if (!str_to_i64(json_plain(token(r, i)), &v))
        (void)fail_field(r, key);
    return v;
}

/* Revisions, leases and times to live are never negative. */
static int64_t read_count(struct reader *r, uint32_t obj, const char *key)
{
    int64_t v = read_i64(r, obj, key);

    if (v < 0)
        (void)fail_field(r, key);
    return v;
}

static bool read_bool(struct reader *r, uint32_t obj, const char *key)
{
    uint32_t i = find(r, obj, key);

    if (i && token(r, i)->type != JSON_TRUE && token(r, i)->type != JSON_FALSE)
        (void)fail_field(r, key);
    return i && token(r, i)->type == JSON_TRUE;
}

/* The text of a string, in the message or in the scratch buffer (until the next one). */
static struct str read_text(struct reader *r, uint32_t obj, const char *key)
{
    uint32_t i = find_type(r, obj, key, JSON_STRING);

    if (!i)
        return STR("");
    if (!token(r, i)->has_escape)
        return json_plain(token(r, i));
    buf_clear(&r->d->scratch);
    if (!json_unescape(token(r, i), &r->d->scratch))
        (void)etcd_fault_nomem(r->fault);
    return buf_str(&r->d->scratch);
}

/* d->bytes has room for all that the message can hold, so it does not move. */
static struct str read_bytes(struct reader *r, uint32_t obj, const char *key)
{
    struct buf *b = &r->d->bytes;
    struct str text = read_text(r, obj, key);
    size_t begin = b->len;

    assert(text.len <= b->cap - b->len);
    if (!base64_decode(text, b)) {
        (void)fail_field(r, key);
        return STR("");
    }
    return (struct str){b->data + begin, b->len - begin};
}

static void read_kv(struct reader *r, uint32_t obj, struct etcd_kv *ret)
{
    *ret = (struct etcd_kv){
        .key = read_bytes(r, obj, "key"),
        .value = read_bytes(r, obj, "value"),
        .create_revision = read_count(r, obj, "create_revision"),
        .mod_revision = read_count(r, obj, "mod_revision"),
        .lease = read_count(r, obj, "lease"),
    };
    if (ret->key.len == 0)
        (void)fail_field(r, "key");
}

/* Makes room for n elements; NULL when out of memory. */
static void *grow(void *p, size_t *cap, size_t n, size_t size)
{
    if (n <= *cap)
        return p;
    void *grown = reallocarray(p, n, size);
    if (grown)
        *cap = n;
    return grown;
}

/* Returns how many there are, and sets *ret to NULL when there are none. */
static size_t read_kvs(struct reader *r, uint32_t obj, struct etcd_kv **ret)
{
    struct etcd_decoder *d = r->d;
    uint32_t array = find_type(r, obj, "kvs", JSON_ARRAY);
    size_t n = array ? token(r, array)->n : 0;

    *ret = NULL;
    if (n == 0)
        return 0;
    struct etcd_kv *kvs = grow(d->kvs, &d->kvs_cap, n, sizeof(*kvs));
    if (!kvs) {
        (void)etcd_fault_nomem(r->fault);
        return 0;
    }
    d->kvs = kvs;
    uint32_t element = array + 1;
    for (size_t i = 0; i < n; i++) {
        read_kv(r, element, &kvs[i]);
        element = token(r, element)->next;
    }
    *ret = kvs;
    return n;
}

/* ---- Whole messages ------------------------------------------------------------------------ */

static int parse(struct reader *r, struct str text)
{
    struct etcd_decoder *d = r->d;
    struct err err = {0};
    int rc = json_parse(&d->doc, text, TOKENS_MAX, &err);

    if (rc == ERR_NOMEM)
        return etcd_fault_nomem(r->fault);
    if (rc)
        return etcd_fault_set(r->fault, ERR_PROTOCOL, ETCD_CURE_ENDPOINT,
                              "the answer is no JSON: %s", err.text);
    if (token(r, 0)->type != JSON_OBJECT)
        return etcd_fault_set(r->fault, ERR_PROTOCOL, ETCD_CURE_ENDPOINT,
                              "the answer is no JSON object");
    buf_clear(&d->bytes);
    if (!buf_room(&d->bytes, text.len))
        return etcd_fault_nomem(r->fault);
    return 0;
}

/* Errors come as {"error":"…","code":n} or {"message":"…","code":n}, those inside of streams as
 * {"error":{"message":"…","grpc_code":n}}. Returns 0 when the root is none. */
static int read_error(struct reader *r)
{
    uint32_t error = find(r, 0, "error");
    uint32_t obj = 0;
    const char *code_key = "code";

    if (error && token(r, error)->type == JSON_OBJECT) {
        obj = error;
        code_key = find(r, obj, "grpc_code") ? "grpc_code" : "code";
    } else if (!find(r, 0, "code")) {
        return 0;
    }
    int64_t code = read_i64(r, obj, code_key);
    struct str text = read_text(r, obj, "message");
    if (text.len == 0 && obj == 0)
        text = read_text(r, 0, "error");
    return etcd_fault_by_code(r->fault, code, text);
}

int etcd_decode_refusal(struct etcd_decoder *d, int http_status, struct str body,
                        struct etcd_fault *fault)
{
    struct etcd_fault unread = {0};
    struct reader r = {d, &unread};
    bool is_passing = http_status >= 500 || http_status == 408 || http_status == 429;

    *fault = (struct etcd_fault){0};
    if (parse(&r, body) == 0) {
        r.fault = fault;
        if (read_error(&r))
            return fault->rc;
    }
    return etcd_fault_set(fault, is_passing ? ERR_UNAVAILABLE : ERR_PROTOCOL, ETCD_CURE_ENDPOINT,
                          "HTTP status %d with an answer that is not etcd's", http_status);
}

/* Parses an answer and finds the object that holds the header; *ret_obj is its index. */
static int open_answer(struct reader *r, int http_status, struct str body, bool is_stream,
                       uint32_t *ret_obj)
{
    *r->fault = (struct etcd_fault){0};
    if (http_status != 200)
        return etcd_decode_refusal(r->d, http_status, body, r->fault);
    if (parse(r, body) || read_error(r))
        return r->fault->rc;
    uint32_t obj = is_stream ? find_type(r, 0, "result", JSON_OBJECT) : 0;
    if (is_stream && !obj)
        return fail_field(r, "result");
    if (!find_type(r, obj, "header", JSON_OBJECT))
        return fail_field(r, "header");
    *ret_obj = obj;
    return r->fault->rc;
}

static void read_txn(struct reader *r, const struct etcd_call *c, struct etcd_answer *a)
{
    uint32_t responses = find_type(r, 0, "responses", JSON_ARRAY);

    a->is_done = read_bool(r, 0, "succeeded");
    if (!responses || token(r, responses)->n != 1) {
        (void)fail_field(r, "responses");
        return;
    }
    if (a->is_done)
        return;
    uint32_t range = find_type(r, responses + 1, "response_range", JSON_OBJECT);
    if (!range) {
        (void)fail_field(r, "response_range");
        return;
    }
    a->n_kvs = read_kvs(r, range, &a->kvs);
    if (c->op != ETCD_CREATE)
        return;
    if (a->n_kvs != 1) /* it is there, or else it would have been put */
        (void)fail_field(r, "kvs");
    else
        a->is_done =
            c->lease && a->kvs[0].lease == c->lease && str_cmp(a->kvs[0].value, c->value) == 0;
}

static void read_lease(struct reader *r, const struct etcd_call *c, uint32_t obj,
                       struct etcd_answer *a)
{
    a->lease = read_count(r, obj, "ID");
    a->ttl_s = read_count(r, obj, "TTL");
    if (c->op == ETCD_LEASE_GRANT ? !a->lease : a->lease != c->lease)
        (void)fail_field(r, "ID");
    if (a->ttl_s)
        return;
    if (c->op == ETCD_LEASE_GRANT)
        (void)fail_field(r, "TTL");
    else
        (void)etcd_fault_set(r->fault, ERR_NOT_FOUND, ETCD_CURE_NONE,
                             "the lease does not exist any more");
}

/* Less than a second left is no field at all, and a lease that is gone has -1. */
static void read_lease_ttl(struct reader *r, const struct etcd_call *c, struct etcd_answer *a)
{
    a->lease = read_count(r, 0, "ID");
    a->ttl_s = read_i64(r, 0, "TTL");
    a->granted_ttl_s = read_count(r, 0, "grantedTTL");
    if (a->lease != c->lease)
        (void)fail_field(r, "ID");
    else if (a->ttl_s < 0)
        (void)etcd_fault_set(r->fault, ERR_NOT_FOUND, ETCD_CURE_NONE,
                             "the lease does not exist any more");
}

static void read_answer(struct reader *r, const struct etcd_call *c, uint32_t obj,
                        struct etcd_answer *a)
{
    a->revision = read_count(r, find(r, obj, "header"), "revision");
    switch (c->op) {
    case ETCD_LEASE_GRANT:
    case ETCD_LEASE_KEEP_ALIVE:
        read_lease(r, c, obj, a);
        break;
    case ETCD_RANGE:
        a->n_kvs = read_kvs(r, obj, &a->kvs);
        break;
    case ETCD_DELETE:
        a->n_deleted = read_count(r, obj, "deleted");
        break;
    case ETCD_CREATE:
    case ETCD_DELETE_IF:
        read_txn(r, c, a);
        break;
    case ETCD_LEASE_TTL:
        read_lease_ttl(r, c, a);
        break;
    case ETCD_LEASE_REVOKE:
    case ETCD_PUT:
        break;
    }
}

int etcd_decode_answer(struct etcd_decoder *d, const struct etcd_call *c, int http_status,
                       struct str body, struct etcd_answer *ret, struct etcd_fault *fault)
{
    struct reader r = {d, fault};
    struct etcd_answer a = {0};
    uint32_t obj;

    if (open_answer(&r, http_status, body, c->op == ETCD_LEASE_KEEP_ALIVE, &obj))
        return fault->rc;
    read_answer(&r, c, obj, &a);
    if (!fault->rc)
        *ret = a;
    return fault->rc;
}

static bool is_visible(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        if (s.p[i] <= ' ' || s.p[i] > '~')
            return false;
    }
    return s.len > 0;
}

int etcd_decode_token(struct etcd_decoder *d, int http_status, struct str body, struct str *ret,
                      struct etcd_fault *fault)
{
    struct reader r = {d, fault};
    uint32_t obj;

    if (open_answer(&r, http_status, body, false, &obj))
        return fault->rc;
    struct str text = read_text(&r, obj, "token");
    if (!fault->rc && (!is_visible(text) || text.len > TOKEN_LEN_MAX))
        (void)fail_field(&r, "token");
    if (!fault->rc)
        *ret = text;
    return fault->rc;
}

static void read_event(struct reader *r, uint32_t obj, struct etcd_event *ret)
{
    uint32_t kv = find_type(r, obj, "kv", JSON_OBJECT);
    uint32_t prev = find_type(r, obj, "prev_kv", JSON_OBJECT);
    struct str type = read_text(r, obj, "type");
    bool is_delete = str_eqz(type, "DELETE");

    *ret = (struct etcd_event){.type = is_delete ? ETCD_EVENT_DELETE : ETCD_EVENT_PUT};
    if (!is_delete && type.len > 0 && !str_eqz(type, "PUT"))
        (void)fail_field(r, "type");
    if (!kv) {
        (void)fail_field(r, "kv");
        return;
    }
    read_kv(r, kv, &ret->kv);
    if (ret->kv.mod_revision == 0)
        (void)fail_field(r, "mod_revision");
    ret->has_prev = prev != 0;
    if (prev)
        read_kv(r, prev, &ret->prev);
}

static void read_events(struct reader *r, uint32_t obj, struct etcd_message *m)
{
    struct etcd_decoder *d = r->d;
    uint32_t array = find_type(r, obj, "events", JSON_ARRAY);
    size_t n = array ? token(r, array)->n : 0;

    if (n == 0)
        return;
    struct etcd_event *events = grow(d->events, &d->events_cap, n, sizeof(*events));
    if (!events) {
        (void)etcd_fault_nomem(r->fault);
        return;
    }
    d->events = events;
    uint32_t element = array + 1;
    for (size_t i = 0; i < n; i++) {
        read_event(r, element, &events[i]);
        element = token(r, element)->next;
    }
    m->events = events;
    m->n_events = n;
}

int etcd_decode_message(struct etcd_decoder *d, struct str object, struct etcd_message *ret,
                        struct etcd_fault *fault)
{
    struct reader r = {d, fault};
    struct etcd_message m = {0};
    uint32_t obj;

    if (open_answer(&r, 200, object, true, &obj))
        return fault->rc;
    m.revision = read_count(&r, find(&r, obj, "header"), "revision");
    m.compact_revision = read_count(&r, obj, "compact_revision");
    m.is_created = read_bool(&r, obj, "created");
    m.is_canceled = read_bool(&r, obj, "canceled");
    read_events(&r, obj, &m);
    if (m.is_canceled && !m.compact_revision)
        (void)etcd_fault_by_reason(fault, read_text(&r, obj, "cancel_reason"));
    if (!fault->rc)
        *ret = m;
    return fault->rc;
}
