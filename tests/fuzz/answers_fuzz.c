/* SPDX-License-Identifier: Apache-2.0 */
/* What a service answers: its status, its Retry-After, its body. The input's first line is the
 * status and up to three letters: c = the body was cut, f = the connection failed, u = nothing was
 * sent; its second line is the Retry-After header, "-" for none; the rest is the body. The same is
 * read as the answer to a request with the tasks of batch_ids. */
#include <assert.h>
#include <string.h>

#include "node/core/retry.h"
#include "node/core/verdict_batch.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_oracle.h"

#define NOW INT64_C(1700000000000)
#define BACKOFF_CAP_MS INT64_C(600000)
#define RETRY_AFTER_CAP_MS INT64_C(3600000)
#define SNOOZE_CAP_MS INT64_C(7200000)
#define RESULT_WAIT_MS INT64_C(120000)
#define MAX_SNOOZES 3

static const struct retry_policy policy = {"default", {1000, BACKOFF_CAP_MS, 2.0, 0.2}, 3};
static const struct retry_policies policies = {.policies = &policy,
                                               .n = 1,
                                               .retry_after_cap_ms = RETRY_AFTER_CAP_MS,
                                               .snooze_cap_ms = SNOOZE_CAP_MS,
                                               .max_snoozes = MAX_SNOOZES};
static const struct verdict_limits limits = {RETRY_AFTER_CAP_MS, SNOOZE_CAP_MS};

static struct answer read_answer(struct str input)
{
    struct str line = fuzz_take_line(&input);
    struct answer a = {.http_status = fuzz_take_number(&line) % 1000, .sent = true};
    for (size_t i = 0; i < line.len; i++) {
        a.body_cut = a.body_cut || line.p[i] == 'c';
        a.sent = a.sent && line.p[i] != 'u';
        if (line.p[i] == 'f')
            a.failure = input;
    }
    a.retry_after = fuzz_take_line(&input);
    if (str_eqz(a.retry_after, "-"))
        a.retry_after = (struct str){0};
    a.body = input;
    return a;
}

static bool is_2xx(const struct answer *a)
{
    return a->sent && !a->failure.p && a->http_status >= 200 && a->http_status <= 299;
}

static void check_verdict(const struct verdict *v)
{
    size_t len = strnlen(v->error, sizeof(v->error));
    bool is_good = v->kind == VERDICT_SUCCESS || v->kind == VERDICT_ACCEPTED;
    assert(len < sizeof(v->error) && *verdict_name(v->kind));
    fuzz_clean_text("the error", (struct str){v->error, len});
    assert(!is_good || (len == 0 && v->retry_after_ms == -1));
    if (v->kind == VERDICT_RETRY)
        assert(v->retry_after_ms >= -1 && v->retry_after_ms <= RETRY_AFTER_CAP_MS);
    else if (v->kind == VERDICT_SNOOZE)
        assert(v->retry_after_ms >= 0 && v->retry_after_ms <= SNOOZE_CAP_MS);
    else
        assert(v->retry_after_ms == -1);
    assert(is_good || v->kind == VERDICT_SNOOZE || v->kind == VERDICT_UNSENT || len > 0);
}

/* What another reader of the body takes it for. */
static void check_body(const struct answer *a, const struct verdict *v)
{
    enum oracle_member success = oracle_root_member(a->body, "success");
    enum oracle_member snooze = oracle_root_member(a->body, "snooze");
    enum oracle_member retryable = oracle_root_member(a->body, "retryable");
    bool is_good = v->kind == VERDICT_SUCCESS || v->kind == VERDICT_ACCEPTED;
    if (success == MEMBER_NO_OBJECT || a->body_cut)
        return;
    if (snooze != MEMBER_ABSENT)
        assert(v->kind == VERDICT_SNOOZE || v->kind == VERDICT_RETRY);
    else if (success == MEMBER_FALSE || success == MEMBER_OTHER)
        assert(v->kind == (retryable == MEMBER_FALSE ? VERDICT_FINAL : VERDICT_RETRY));
    else
        assert(is_good);
}

static void check_decision(const struct verdict *v, int32_t retry_count, int32_t snooze_count)
{
    struct retry_facts facts = {.id = 1,
                                .attempt = 1,
                                .retry_count = retry_count,
                                .max_retry = 3,
                                .snooze_count = snooze_count,
                                .priority = 5,
                                .result_wait_ms = RESULT_WAIT_MS,
                                .policy = STR("default")};
    struct rng rng = {.state = 1};
    struct finish_item f = {0};
    retry_decide(&policies, &facts, v, NOW, &rng, &f);
    int64_t wait = f.next_attempt_time == WALL_NONE ? 0 : f.next_attempt_time - NOW;
    assert((f.kind == FINISH_SUCCESS) == (v->kind == VERDICT_SUCCESS));
    assert((f.kind == FINISH_SENT) == (v->kind == VERDICT_ACCEPTED));
    if (f.kind == FINISH_SUCCESS || f.kind == FINISH_FAIL)
        assert(wait == 0);
    else
        assert(wait > 0 && wait <= SNOOZE_CAP_MS);
    if (f.kind == FINISH_RETRY)
        assert(retry_count < 3 && f.retry_count == retry_count + 1 && wait >= 500);
    if (f.snoozed)
        assert(f.kind == FINISH_PUT_BACK && snooze_count < MAX_SNOOZES &&
               f.retry_count == retry_count);
    fuzz_clean_text("the decision's error", f.error);
}

static void check_result(struct str body)
{
    struct verdict v;
    struct err err = {0};
    int rc = verdict_read_result(body, &limits, NOW, &v, &err);
    if (rc != 0) {
        assert(rc == ERR_INVALID && err.text[0] != '\0');
        assert(utf8_valid(str_from(err.text)));
        return;
    }
    struct answer a = {.body = body, .sent = true};
    check_verdict(&v);
    check_body(&a, &v);
    assert(v.kind != VERDICT_ACCEPTED && v.kind != VERDICT_UNSENT);
    assert(oracle_read(body, NULL) != ORACLE_REFUSES);
}

static const char *const batch_ids[] = {
    "000000000000000a00000000000000aa",
    "000000000000000b00000000000000bb",
    "000000000000000c00000000000000cc",
};
#define N_BATCH (sizeof(batch_ids) / sizeof(batch_ids[0]))

/* Nothing ends well of which the answer does not speak. */
static void check_part(const struct answer *a, const char *trace_id, const struct verdict *v)
{
    check_verdict(v);
    assert(v->kind != VERDICT_UNSENT);
    if (v->kind != VERDICT_RETRY)
        assert(memmem(a->body.p, a->body.len, trace_id, TRACE_ID_LEN));
    assert(v->kind == VERDICT_RETRY || !a->body_cut);
}

/* As for one alone, but that a refusal of many is none of each. */
static void check_whole(const struct verdict *single, const struct verdict *v, size_t n)
{
    if (n > 1 && single->kind != VERDICT_UNSENT && verdict_wants_fewer(single->http_status)) {
        assert(v->kind == VERDICT_SNOOZE && v->retry_after_ms == 1);
        return;
    }
    assert(v->kind == single->kind && v->retry_after_ms == single->retry_after_ms);
    assert(v->http_status == single->http_status && !strcmp(v->error, single->error));
}

static void check_batch(const struct answer *a, const struct verdict *single)
{
    struct verdict_batch b = VERDICT_BATCH_INIT;

    for (size_t n = 1; n <= N_BATCH; n++) {
        verdict_batch_read(&b, a, batch_ids, n, &limits, NOW);
        for (size_t i = 0; i < n; i++) {
            const struct verdict *v = verdict_batch_get(&b, i);

            if (is_2xx(a))
                check_part(a, batch_ids[i], v);
            else if (a->failure.p || !a->sent)
                assert(v->kind == single->kind);
            else
                check_whole(single, v, n);
        }
    }
    verdict_batch_fini(&b);
}

void fuzz_one(struct str input)
{
    struct answer a = read_answer(input);
    struct verdict v;
    verdict_read(&a, &limits, NOW, &v);
    check_verdict(&v);
    assert(v.http_status == a.http_status);
    assert((v.kind == VERDICT_UNSENT) == !a.sent);
    if (is_2xx(&a))
        check_body(&a, &v);
    else
        assert(v.kind == VERDICT_RETRY || v.kind == VERDICT_FINAL || v.kind == VERDICT_UNSENT);
    for (int32_t i = 0; i <= 3; i++)
        check_decision(&v, i, i);
    check_result(a.body);
    check_batch(&a, &v);
}
