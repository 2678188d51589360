/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server and the routes behind it, over a store in memory, on one thread. The input's
 * first line says under which conditions (its first byte, see `mode`) and in which pieces it comes
 * (the other bytes, see fake_wire.c); the rest is what a client sends.
 *
 * Each input is fed twice, whole and in pieces, to stores that begin alike. What is checked:
 *   - both runs send the same answers and leave the same tasks;
 *   - each request is answered once, in order, by well-formed HTTP with a documented status, and
 *     nothing follows an answer that closes;
 *   - a payload reaches the store, and comes back, byte for byte as it stands in the request;
 *   - the connection ends, and gives back all it was charged for. */
#include <assert.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "node/api/api_impl.h"
#include "node/api/http_impl.h"
#include "tests/fuzz/fake_wire.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/http_check.h"
#include "tests/fuzz/json_scan.h"
#include "tests/unit/api_fixture.h"

#define MAX_INPUT 16384
#define MAX_ASKED 1024 /* the shortest request has more than 16 bytes */
#define FOREVER_MS INT64_C(86400000)

/* Bits of the first byte, from '0' on. */
enum mode {
    MODE_STORE_FULL = 1,
    MODE_STORE_FAILS = 2,
    MODE_NOT_READY = 4,
    MODE_DEADLINE = 8, /* the client falls silent and does not close */
    MODE_REFUSED = 16, /* one connection too many */
    MODE_FINISH_LOST = 32,
};

/* A request that the handler was given. */
struct asked {
    bool is_head;
    bool is_submit;
    struct buf payload; /* of a single submission; "null" when it has none */
};

struct rig {
    struct api_fixture fixture;
    struct api api;
    struct http_server server;
    struct wire wire;
    struct http_request *request; /* the last one */
    struct asked asked[MAX_ASKED];
    size_t n_asked;
};

/* The loop outlives the inputs: to make one costs more than to run them. */
static struct http_loop loop;
static struct api_loop api_loop;

/* ---- What the handler and the store see -------------------------------------------------- */

static void on_request(void *ctx, struct http_request *req)
{
    struct rig *r = ctx;
    assert(r->n_asked < MAX_ASKED);
    struct asked *a = &r->asked[r->n_asked++];
    r->request = req;
    a->is_head = ((struct conn *)req)->is_head;
    a->is_submit = req->verb == VERB_POST && str_eqz(req->path, "/api/delay-tasks");
    route_request(&r->api, req);
}

/* A task that is about to be stored is one of those in the request, in their order. */
static void check_submission(struct rig *r, const struct submit_op *op)
{
    struct str rest = scan_member(r->request->body, "tasks");
    struct str element = r->request->body;
    struct asked *a = &r->asked[r->n_asked - 1];
    for (size_t i = 0; i < op->n; i++) {
        const struct task *t = op->items[i].task;
        struct str payload;
        bool found;
        do {
            bool more = a->is_submit || scan_next(&rest, &element);
            assert(more);
            payload = scan_member(element, "payload");
            found = scan_is_text(scan_member(element, "bizUuid"), t->biz_uuid) &&
                    str_eq(payload, t->payload);
            assert(found || !a->is_submit);
        } while (!found);
        assert(scan_is_text(scan_member(element, "serviceName"), t->service_name));
        assert(scan_is_text(scan_member(element, "handler"), t->handler));
        assert(t->execute_time >= api_now(&r->api) && t->priority >= 0 && t->priority <= 9);
    }
    if (a->is_submit)
        buf_adds(&a->payload,
                 op->items[0].task->payload.p ? op->items[0].task->payload : STR("null"));
}

static int on_post(void *ctx, struct store_op *op)
{
    struct rig *r = ctx;
    if (op->kind == STORE_SUBMIT)
        check_submission(r, (const struct submit_op *)op);
    if (op->kind == STORE_CALL && ((const struct store_call *)op)->what == CALL_MOVE) {
        const struct call_move *m = (const struct call_move *)op;
        assert(!m->set_payload || str_eq(m->payload, scan_member(r->request->body, "payload")));
    }
    return fake_post(&r->fixture.store, op);
}

/* ---- One run ----------------------------------------------------------------------------- */

/* A task in each state that requests can find one in: "t0" to "t7". */
static void add_tasks(struct fake_store *s)
{
    static char names[TASK_N_STATUSES][3];
    for (size_t i = 0; i < TASK_N_STATUSES; i++) {
        struct task t = task_empty();
        (void)snprintf(names[i], sizeof(names[i]), "t%zu", i);
        t.id = s->next_id++;
        t.biz_uuid = str_from(names[i]);
        t.service_name = STR("orders");
        t.handler = STR("close");
        t.payload = STR("{\"n\": 1.10}");
        t.status = (enum task_status)i;
        t.execute_time = t.next_attempt_time = t.created_at = t.updated_at = 1000;
        t.attempt = 1;
        t.max_retry = 3;
        trace_id_make(t.id, UINT64_C(0x1234), t.trace_id);
        s->tasks[s->n_tasks] = task_dup(&t);
        assert(s->tasks[s->n_tasks++]);
    }
}

static void rig_init(struct rig *r, enum mode mode)
{
    struct fake_store *store = &r->fixture.store;
    fake_init(store);
    add_tasks(store);
    r->api.cfg = api_fixture_config();
    r->api.cfg.max_payload = 1024;
    r->api.env = api_fixture_env(&r->fixture);
    r->api.env.store = (struct store_port){on_post, r};
    r->api.loops = &api_loop;
    api_loop.rng.state = 1;
    r->server.cfg = (struct http_config){
        .threads = 1,
        .max_connections = 1,
        .max_header = 1024,
        .max_body = 8192,
        .max_memory = (size_t)1 << 26,
        .header_timeout_ms = FOREVER_MS,
        .body_timeout_ms = FOREVER_MS,
        .idle_timeout_ms = FOREVER_MS,
        .write_timeout_ms = FOREVER_MS,
        .handler = on_request,
        .ctx = r,
    };
    r->server.loops = &loop;
    loop.server = &r->server;
    atomic_store(&store->refuse, mode & MODE_STORE_FULL ? ERR_BUSY : 0);
    atomic_store(&store->fail, mode & MODE_STORE_FAILS ? ERR_TIMEOUT : 0);
    atomic_store(&store->lose_finish, (mode & MODE_FINISH_LOST) != 0);
    atomic_store(&r->fixture.is_ready, !(mode & MODE_NOT_READY));
    atomic_store(&r->fixture.knows_services, !(mode & MODE_NOT_READY));
}

static void rig_fini(struct rig *r)
{
    fake_fini(&r->fixture.store);
    wire_fini(&r->wire);
    for (size_t i = 0; i < r->n_asked; i++)
        buf_fini(&r->asked[i].payload);
    free(r);
}

/* Until nothing moves any more. In pieces, the store is slow: it answers when all has been read
 * that can be. */
static void settle(struct rig *r)
{
    for (unsigned idle = 0, passes = 0; idle < 2; passes++) {
        unsigned before = r->wire.n_steps;
        assert(passes < 200000);
        event_base_loop(loop.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
        conn_reclaim(&loop);
        bool moved = r->wire.n_steps != before;
        unsigned n = r->wire.is_whole || !moved ? fake_run(&r->fixture.store) : 0;
        idle = moved || n > 0 ? 0 : idle + 1;
    }
}

static void serve(struct rig *r, enum mode mode)
{
    wire_open(&r->wire);
    atomic_fetch_add(&r->server.n_conns, 1);
    conn_open(&loop, r->wire.fd, mode & MODE_REFUSED);
    settle(r);
    if (!(mode & MODE_DEADLINE)) {
        r->wire.eof = true;
        settle(r);
    }
    for (int i = 0; i < 2 && loop.conns; i++) { /* what is left waits: one to answer, one to end */
        conn_on_deadline(loop.conns);
        settle(r);
    }
    assert(!loop.conns && loop.n_busy == 0);
    assert(r->server.n_conns == 0 && r->server.n_requests == 0 && r->server.memory == 0);
}

static struct rig *run(struct str input, struct str sizes, bool is_whole, enum mode mode)
{
    struct rig *r = calloc(1, sizeof(*r));
    assert(r);
    r->wire = (struct wire){.in = input, .sizes = sizes, .is_whole = is_whole};
    rig_init(r, mode);
    serve(r, mode);
    return r;
}

/* ---- What came of it --------------------------------------------------------------------- */

static struct checked_answer take_final(struct str *out, enum body_rule rule)
{
    struct checked_answer a;
    http_check_answer(out, rule, &a);
    if (a.status == 100)
        http_check_answer(out, rule, &a);
    assert(a.status != 100);
    return a;
}

/* The record of a new task has the payload as it was sent. */
static void check_record(const struct asked *asked, const struct checked_answer *a)
{
    if (!asked->is_submit || a->status != 201)
        return;
    fuzz_same("the payload", scan_member(a->body, "payload"), buf_str(&asked->payload));
}

/* What came instead of a request: one answer, the last. `status` 0 = none came. */
struct fault {
    int status;
    struct str type; /* absent where the body was left out */
    size_t at;       /* in what was sent */
};

static struct fault take_fault(struct str out)
{
    /* Whether it was to be a HEAD shows in what follows. */
    const char *end = memmem(out.p, out.len, "\r\n\r\n", 4);
    bool has_body = end && end + 4 < out.p + out.len;
    struct checked_answer a = take_final(&out, has_body ? BODY_THERE : BODY_LEFT_OUT);
    assert(a.closes && a.status >= 400 && out.len == 0);
    return (struct fault){.status = a.status, .type = scan_member(a.body, "type")};
}

static struct fault check_answers(const struct rig *r)
{
    struct str out = buf_str(&r->wire.out);
    struct fault f = {0};
    bool closes = false;
    for (size_t i = 0; i < r->n_asked; i++) {
        const struct asked *asked = &r->asked[i];
        assert(!closes);
        struct checked_answer a = take_final(&out, asked->is_head ? BODY_LEFT_OUT : BODY_THERE);
        check_record(asked, &a);
        closes = a.closes;
    }
    assert(out.len == 0 || !closes);
    if (out.len > 0)
        f = take_fault(out);
    f.at = r->wire.out.len - out.len;
    return f;
}

static void put_tasks(const struct rig *r, struct buf *dst)
{
    const struct fake_store *s = &r->fixture.store;
    for (size_t i = 0; i < s->n_tasks; i++) {
        task_put_record(dst, s->tasks[i]);
        buf_addf(dst, ",\"shard\":%d,\"lane\":%d}\n", (int)s->tasks[i]->shard,
                 (int)s->tasks[i]->lane);
    }
    for (size_t i = 0; i < s->n_services; i++)
        buf_addf(dst, STR_FMT " " STR_FMT " %d\n", STR_ARG(s->services[i].s.name),
                 STR_ARG(s->services[i].s.base_url), (int)s->services[i].s.version);
}

/* Of a fault the text for people may differ: the parser looks at the bytes that it was given, and
 * may find more than one thing wrong. Whether the head came to its end by then decides whether the
 * answer to a HEAD has a body. */
static void check_same(const struct rig *whole, const struct rig *pieces)
{
    struct buf a = BUF_INIT;
    struct buf b = BUF_INIT;
    struct fault f = check_answers(whole);
    struct fault g = check_answers(pieces);
    bool same_type = !f.type.p || !g.type.p || str_eq(f.type, g.type);
    if (f.at != g.at || f.status != g.status || !same_type)
        fuzz_same("the fault", buf_str(&whole->wire.out), buf_str(&pieces->wire.out));
    fuzz_same("the answers", (struct str){whole->wire.out.data, f.at},
              (struct str){pieces->wire.out.data, g.at});
    put_tasks(whole, &a);
    put_tasks(pieces, &b);
    fuzz_same("the tasks", buf_str(&a), buf_str(&b));
    buf_fini(&a);
    buf_fini(&b);
}

static void loop_once(void)
{
    static struct http_server nobody = {.cfg = {.header_timeout_ms = FOREVER_MS,
                                                .body_timeout_ms = FOREVER_MS,
                                                .idle_timeout_ms = FOREVER_MS,
                                                .write_timeout_ms = FOREVER_MS},
                                        .listen_fd = -1};
    int rc = loop.base ? 0 : http_loop_init(&loop, &nobody, 0);
    assert(rc == 0);
}

void fuzz_one(struct str input)
{
    struct str sizes = fuzz_take_line(&input);
    if (input.len > MAX_INPUT)
        return;
    enum mode mode = sizes.len > 0 ? ((uint8_t)*sizes.p - '0') & 63 : 0;
    sizes.p += sizes.len > 0;
    sizes.len -= sizes.len > 0;
    loop_once();
    struct rig *whole = run(input, sizes, true, mode);
    struct rig *pieces = run(input, sizes, false, mode);
    check_same(whole, pieces);
    rig_fini(whole);
    rig_fini(pieces);
}
