/* SPDX-License-Identifier: Apache-2.0 */
/* What an etcd answers. The input's first line is a digit, what was asked (the call, t = a token,
 * w = a watch), and the HTTP status; the rest is the answer. A watch's stream is also cut in two at
 * the status's place. */
#include <assert.h>
#include <string.h>

#include "node/cluster/etcd_json.h"
#include "node/cluster/etcd_stream.h"
#include "tests/fuzz/fuzz.h"

#define OBJECT_MAX 4096

static void check_fault(int rc, const struct etcd_fault *fault)
{
    size_t len = strnlen(fault->text, sizeof(fault->text));

    assert(rc == fault->rc && rc <= 0 && len < sizeof(fault->text));
    if (rc)
        fuzz_clean_text("the fault", (struct str){fault->text, len});
    else
        assert(len == 0);
}

/* Reads each byte, for the sanitizers. */
static void check_span(struct str s)
{
    unsigned sum = 0;

    assert(s.p);
    for (size_t i = 0; i < s.len; i++)
        sum += (unsigned char)s.p[i];
    assert(sum <= s.len * 255);
}

static void check_kv(const struct etcd_kv *kv)
{
    assert(kv->key.len > 0 && kv->create_revision >= 0 && kv->mod_revision >= 0 && kv->lease >= 0);
    check_span(kv->key);
    check_span(kv->value);
}

static void check_answer(const struct etcd_call *c, const struct etcd_answer *a)
{
    assert(a->revision >= 0 && a->n_deleted >= 0 && !a->kvs == !a->n_kvs);
    for (size_t i = 0; i < a->n_kvs; i++)
        check_kv(&a->kvs[i]);
    if (c->op == ETCD_LEASE_GRANT || c->op == ETCD_LEASE_KEEP_ALIVE)
        assert(a->lease > 0 && a->ttl_s > 0);
    if (c->op == ETCD_LEASE_TTL)
        assert(a->lease == c->lease && a->ttl_s >= 0 && a->granted_ttl_s >= 0);
    if (c->op == ETCD_CREATE && !a->is_done)
        assert(a->n_kvs == 1);
}

static void read_call(struct etcd_decoder *d, enum etcd_op op, int status, struct str body)
{
    struct etcd_call c = {.op = op, .key = STR("a"), .value = STR("v"), .lease = 5};
    struct etcd_answer a = {0};
    struct etcd_fault fault;
    int rc = etcd_decode_answer(d, &c, status, body, &a, &fault);

    check_fault(rc, &fault);
    if (!rc)
        check_answer(&c, &a);
}

static void read_token(struct etcd_decoder *d, int status, struct str body)
{
    struct str token = {0};
    struct etcd_fault fault;
    int rc = etcd_decode_token(d, status, body, &token, &fault);

    check_fault(rc, &fault);
    for (size_t i = 0; !rc && i < token.len; i++)
        assert(token.p[i] > ' ' && token.p[i] <= '~');
    assert(rc || token.len > 0);
}

static void read_message(struct etcd_decoder *d, struct str object)
{
    struct etcd_message m = {0};
    struct etcd_fault fault;
    int rc = etcd_decode_message(d, object, &m, &fault);

    check_fault(rc, &fault);
    if (rc)
        return;
    assert(m.revision >= 0 && m.compact_revision >= 0 && (!m.is_canceled || m.compact_revision));
    for (size_t i = 0; i < m.n_events; i++) {
        check_kv(&m.events[i].kv);
        assert(m.events[i].kv.mod_revision > 0);
        if (m.events[i].has_prev)
            check_kv(&m.events[i].prev);
    }
}

/* The objects, each with a line feed, and how the stream ended, into dst. */
static void split(struct etcd_decoder *d, struct str bytes, size_t cut, struct buf *dst)
{
    struct str parts[2] = {{bytes.p, cut}, {bytes.p + cut, bytes.len - cut}};
    struct etcd_stream s = {0};
    struct str object;
    int rc = 0;

    for (size_t i = 0; !rc && i < 2; i++) {
        assert(etcd_stream_push(&s, parts[i]) == 0);
        while ((rc = etcd_stream_next(&s, OBJECT_MAX, &object)) == 1) {
            assert(object.len <= OBJECT_MAX && object.p[0] == '{');
            buf_adds(dst, object);
            buf_addc(dst, '\n');
            if (d)
                read_message(d, object);
        }
    }
    assert(rc == 0 || rc == ERR_PROTOCOL || rc == ERR_TOO_BIG);
    buf_addi(dst, rc);
    etcd_stream_fini(&s);
}

static void read_watch(struct etcd_decoder *d, size_t cut, struct str bytes)
{
    struct buf whole = BUF_INIT;
    struct buf cut_up = BUF_INIT;

    split(d, bytes, bytes.len, &whole);
    split(NULL, bytes, cut < bytes.len ? cut : bytes.len, &cut_up);
    assert(buf_ok(&whole) && buf_ok(&cut_up));
    fuzz_same("a stream in one piece and in two", buf_str(&whole), buf_str(&cut_up));
    buf_fini(&whole);
    buf_fini(&cut_up);
}

void fuzz_one(struct str input)
{
    struct str line = fuzz_take_line(&input);
    char what = line.len > 0 ? line.p[0] : 'w';
    struct str rest = line.len > 0 ? (struct str){line.p + 1, line.len - 1} : line;
    int status = (int)fuzz_take_number(&rest) % 1000;
    struct etcd_decoder d = {0};

    if (what >= '0' && what <= '0' + ETCD_LEASE_TTL)
        read_call(&d, (enum etcd_op)(what - '0'), status, input);
    else if (what == 't')
        read_token(&d, status, input);
    else
        read_watch(&d, (size_t)status, input);
    etcd_decoder_fini(&d);
}
