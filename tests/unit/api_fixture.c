/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/api_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/json.h"

static int32_t shards_of(void *ctx, struct str service_name)
{
    (void)ctx;
    return str_eqz(service_name, "sharded") ? 8 : 1;
}

static void policy_of(void *ctx, struct str service_name, char dst[TASK_POLICY_MAX + 1])
{
    (void)ctx;
    strcpy(dst, str_eqz(service_name, "patient") ? "slow" : "");
}

static bool services_known(void *ctx)
{
    struct api_fixture *f = ctx;
    return atomic_load(&f->knows_services);
}

static void explain(void *ctx, struct explain_query *q)
{
    struct api_fixture *f = ctx;
    q->answer = f->explanation;
    mailbox_post(q->reply, &q->mail);
}

/* Answers with what the test has put there: tasks are copied. The query of a worker that waits
 * comes back when it is cancelled. */
static void lease(void *ctx, struct lease_query *q)
{
    struct api_fixture *f = ctx;
    f->last_lease.max_tasks = q->max_tasks;
    f->last_lease.wait_ms = q->wait_ms;
    f->last_lease.visibility_ms = q->visibility_ms;
    q->outcome = f->last_lease.outcome;
    q->hand_by = f->last_lease.hand_by;
    q->n = f->n_leased;
    q->tasks = q->n ? calloc(q->n, sizeof(*q->tasks)) : NULL;
    for (size_t i = 0; i < q->n; i++)
        q->tasks[i] = task_dup(f->leased[i]);
    if (f->forwarded) {
        buf_addz(&q->body, f->forwarded);
        q->claims = calloc(1, sizeof(*q->claims) + sizeof(q->claims->list[0]));
        q->claims->service_name[0] = 's';
        q->claims->n = 1;
        q->claims->list[0] = (struct lease_claim){8, 3, 2, 4, 1};
    }
    if (atomic_load(&f->holds_leases)) {
        q->holder = f;
        atomic_fetch_add(&f->n_held, 1);
    } else {
        mailbox_post(q->reply, &q->mail);
    }
}

static bool lease_cancel(void *ctx, struct lease_query *q)
{
    struct api_fixture *f = ctx;
    atomic_fetch_add(&f->n_cancelled, 1);
    if (q->holder)
        mailbox_post(q->reply, &q->mail);
    q->holder = NULL;
    mailbox_post(q->reply, &q->cancel);
    return true;
}

static void give_back(void *ctx, struct lease_claims *claims)
{
    struct api_fixture *f = ctx;
    assert_string_equal(claims->service_name, "s");
    f->last_given_back = claims->list[claims->n - 1];
    atomic_fetch_add(&f->n_given_back, (unsigned)claims->n);
    free(claims);
}

static int sign(void *ctx, struct str path, struct str body, struct buf *dst)
{
    (void)ctx;
    assert_true(str_eqz(path, LEASE_CLAIMS_PATH));
    buf_addf(dst, "7 signed-%zu", body.len);
    return 0;
}

static bool is_pull(void *ctx, struct str service_name)
{
    (void)ctx;
    return str_eqz(service_name, "pulled");
}

static void services_changed(void *ctx)
{
    struct api_fixture *f = ctx;
    atomic_fetch_add(&f->n_services_changed, 1);
}

static void instance_put(void *ctx, const struct instance *in)
{
    struct api_fixture *f = ctx;
    (void)in;
    atomic_fetch_add(&f->n_instances_put, 1);
}

static void instance_removed(void *ctx, struct str service_name, struct str name)
{
    struct api_fixture *f = ctx;
    (void)service_name;
    (void)name;
    atomic_fetch_add(&f->n_instances_removed, 1);
}

static wall_ms aside_until(void *ctx, struct str service_name, struct str name)
{
    (void)ctx;
    (void)service_name;
    return str_eqz(name, "broken") ? 5000 : WALL_NONE;
}

static int cluster(void *ctx, struct str service_name, struct buf *dst)
{
    (void)ctx;
    if (str_eqz(service_name, "nobody"))
        return ERR_NOT_FOUND;
    buf_addz(dst, "{\"service\":");
    json_put_string(dst, service_name);
    buf_addc(dst, '}');
    return 0;
}

static bool drain(void *ctx, bool drains)
{
    struct api_fixture *f = ctx;
    atomic_store(&f->drains, drains);
    return atomic_load(&f->is_ready);
}

static bool is_member(void *ctx, struct str path, struct str stamp, struct str signature,
                      struct str body)
{
    (void)ctx;
    (void)path;
    (void)body;
    return str_eqz(stamp, "7") && str_eqz(signature, "v1,a+/=");
}

static bool notify(void *ctx, const struct hint *hint)
{
    struct api_fixture *f = ctx;

    f->last_hint = *hint;
    f->last_hint.service_name = (struct str){0};
    atomic_fetch_add(&f->n_notified, 1);
    return f->takes_notices;
}

static bool hints(void *ctx, const struct hint *list, size_t n, bool services)
{
    struct api_fixture *f = ctx;
    if (n)
        f->last_hint = list[n - 1];
    atomic_fetch_add(&f->n_hints, (int)n);
    atomic_fetch_add(&f->n_services_hints, services);
    return n < 1000;
}

static bool ready(void *ctx, struct buf *why)
{
    struct api_fixture *f = ctx;
    if (!atomic_load(&f->is_ready))
        buf_addz(why, "the database \"is\" away");
    return atomic_load(&f->is_ready);
}

static void metrics(void *ctx, struct buf *dst)
{
    (void)ctx;
    buf_addz(dst, "jobflow_up 1\n");
}

/* The rule itself is the sender's; here only what becomes of its verdicts is of interest. */
static int check_base_url(void *ctx, struct str url, struct err *err)
{
    (void)ctx;
    if (str_eqz(url, "http://starting"))
        return err_set(err, ERR_UNAVAILABLE, "the node is still starting");
    if (str_eqz(url, "http://no-memory"))
        return err_set(err, ERR_NOMEM, "out of memory");
    if (url.len > 255) /* what the store below has room for */
        return err_set(err, ERR_INVALID, "too long");
    return memmem(url.p, url.len, "169.254", 7) ? err_set(err, ERR_INVALID, "link-local") : 0;
}

static int check_secret(void *ctx, struct str secret, struct err *err)
{
    (void)ctx;
    return secret.len < 4 || secret.len > 255 ? err_set(err, ERR_INVALID, "length") : 0;
}

struct api_config api_fixture_config(void)
{
    return (struct api_config){
        .listen = "127.0.0.1:0",
        .threads = 2,
        .max_connections = 1000,
        .max_header = 16384,
        .max_body = (size_t)2 * 1024 * 1024,
        .header_timeout_ms = 10000,
        .body_timeout_ms = 10000,
        .idle_timeout_ms = 60000,
        .write_timeout_ms = 10000,
        .max_payload = 65536,
        .max_ahead_ms = INT64_C(3650) * 86400000,
        .default_concurrency = 64,
        .default_timeout_ms = 60000,
        .max_timeout_ms = 86400000,
        .ghost_margin_ms = 60000,
        .alerts = true,
    };
}

struct api_env api_fixture_env(struct api_fixture *f)
{
    f->policies[0] = (struct retry_policy){"default", {1000, 3600000, 2.0, 0.0}, 10};
    f->policies[1] = (struct retry_policy){"slow", {60000, 3600000, 2.0, 0.0}, 3};
    f->all_policies = (struct retry_policies){.policies = f->policies,
                                              .n = 2,
                                              .retry_after_cap_ms = 86400000,
                                              .snooze_cap_ms = 86400000,
                                              .max_snoozes = 5};
    atomic_store(&f->is_ready, true);
    atomic_store(&f->knows_services, true);
    atomic_store(&f->takes_notices, true);
    return (struct api_env){
        .store = {fake_post, &f->store},
        .clock = &f->clock,
        .counters = &f->counters,
        .policies = &f->all_policies,
        .node_name = "n1",
        .ctx = f,
        .shards_of = shards_of,
        .policy_of = policy_of,
        .services_known = services_known,
        .explain = explain,
        .lease = lease,
        .lease_cancel = lease_cancel,
        .give_back = give_back,
        .is_pull = is_pull,
        .services_changed = services_changed,
        .instance_put = instance_put,
        .instance_removed = instance_removed,
        .aside_until = aside_until,
        .ready = ready,
        .metrics = metrics,
        .cluster = cluster,
        .drain = drain,
        .is_member = is_member,
        .sign = sign,
        .hints = hints,
        .notify = notify,
        .check_base_url = check_base_url,
        .check_secret = check_secret,
    };
}

void api_fixture_start(struct api_fixture *f, const struct api_config *cfg)
{
    struct err err = {0};
    memset(f, 0, sizeof(*f));
    fake_start(&f->store);
    struct api_env env = api_fixture_env(f);
    if (api_start(cfg, &env, &f->api, &err))
        fail_msg("cannot start: %s", err.text);
    f->address = api_address(f->api);
}

void api_fixture_stop(struct api_fixture *f)
{
    api_stop(f->api);
    fake_stop(&f->store);
}

char *expect_call(struct api_fixture *f, const char *method, const char *path, const char *body,
                  int status)
{
    struct answer_text a;
    char type[64];
    client_call(f->address, method, path, body, &a);
    if (a.status != status)
        fail_msg("%s %s %.200s: %d instead of %d: %s", method, path, body ? body : "", a.status,
                 status, a.body);
    answer_header(&a, "Content-Type", type, sizeof(type));
    if (status >= 400)
        assert_string_equal(type, "application/problem+json");
    char *text = a.body;
    a.body = NULL;
    answer_free(&a);
    return text;
}

void expect_problem(struct api_fixture *f, const char *method, const char *path, const char *body,
                    int status, const char *field)
{
    char *text = expect_call(f, method, path, body, status);
    char wanted[200], value[200];
    snprintf(wanted, sizeof(wanted), "\"%s\"", field ? field : "");
    if (!json_at(text, "field", value, sizeof(value)))
        strcpy(value, "\"\"");
    if (strcmp(value, wanted) != 0)
        fail_msg("%s %s %.300s: names %s instead of %s: %s", method, path, body ? body : "", value,
                 wanted, text);
    snprintf(wanted, sizeof(wanted), "%d", status);
    expect_json(text, "status", wanted);
    assert_true(json_at(text, "type", value, sizeof(value)) &&
                json_at(text, "title", value, sizeof(value)) &&
                json_at(text, "detail", value, sizeof(value)));
    free(text);
}

/* The token index of one step: a member's name, or an element's number. 0 = none. */
static uint32_t step(const struct json_doc *doc, uint32_t at, const char *name)
{
    if (doc->tokens[at].type == JSON_OBJECT)
        return json_find(doc, at, name);
    uint32_t n = (uint32_t)atoi(name);
    if (doc->tokens[at].type != JSON_ARRAY || n >= doc->tokens[at].n)
        return 0;
    for (at++; n > 0; n--)
        at = doc->tokens[at].next;
    return at;
}

bool json_at(const char *json, const char *path, char *dst, size_t cap)
{
    struct json_doc doc = JSON_DOC_INIT;
    struct err err = {0};
    char steps[200], *rest = steps, *name;
    uint32_t at = 0;
    bool ok = true;
    if (json_parse(&doc, str_from(json), 1000000, &err))
        fail_msg("no JSON (%s): %.300s", err.text, json);
    strcpy(steps, path);
    while (ok && (name = strsep(&rest, "."))) {
        at = step(&doc, at, name);
        ok = at != 0;
    }
    if (ok)
        assert_true((size_t)snprintf(dst, cap, STR_FMT, STR_ARG(doc.tokens[at].raw)) < cap);
    json_doc_fini(&doc);
    return ok;
}

void expect_json(const char *json, const char *path, const char *wanted)
{
    char value[4096];
    if (!json_at(json, path, value, sizeof(value)))
        fail_msg("no %s in %.600s", path, json);
    if (strcmp(value, wanted) != 0)
        fail_msg("%s is %s instead of %s in %.600s", path, value, wanted, json);
}
