/* SPDX-License-Identifier: Apache-2.0 */
#include "node/api/results.h"

uint32_t results_open(const struct api_call *c, const char *name, const char *what,
                      struct problem *p)
{
    const struct json_doc *doc = &c->loop->doc;
    uint32_t array = json_find(doc, 0, name);
    if (doc->tokens[0].n != (array ? 1u : 0u)) {
        const struct json_token *key = &doc->tokens[1];
        if (array == 2)
            key = &doc->tokens[doc->tokens[2].next];
        problem_set(p, PROBLEM_UNKNOWN_FIELD, NULL, "there is no such field here");
        problem_field(p, (struct str){key->raw.p + 1, key->raw.len - 2});
        problem_hint(p, "The only field is %s.", name);
        return 0;
    }
    if (array == 0) {
        problem_set(p, PROBLEM_MISSING_FIELD, name, "%s is required", name);
        return 0;
    }
    const struct json_token *t = &doc->tokens[array];
    if (t->type != JSON_ARRAY || t->n == 0 || t->n > RESULTS_MAX) {
        problem_set(p, PROBLEM_INVALID_FIELD, name, "%s has to be an array of 1 to %d %s", name,
                    RESULTS_MAX, what);
        return 0;
    }
    return array;
}

struct buf *result_problem_open(struct buf *problems, const struct problem *p,
                                struct result_problem *ret)
{
    ret->status = problem_status(p->kind);
    ret->at = problems->len;
    problem_put_open(problems, p);
    return problems;
}

void result_problem_close(struct buf *problems, struct result_problem *r)
{
    buf_addc(problems, '}');
    r->len = problems->len - r->at;
}

void result_problem_put(struct buf *b, const struct buf *problems, const struct result_problem *r)
{
    buf_addf(b, "{\"status\":%d,\"problem\":", r->status);
    if (buf_ok(problems))
        buf_add(b, problems->data + r->at, r->len);
    buf_addc(b, '}');
}

void results_answer(struct api_call *c, const struct buf *problems, size_t n,
                    void (*put)(struct api_call *c, struct buf *b, size_t i))
{
    struct buf *b = call_out(c);
    b->failed |= !buf_ok(problems);
    buf_addz(b, "{\"results\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            buf_addc(b, ',');
        put(c, b, i);
    }
    buf_addz(b, "]}");
    call_send_json(c, 200);
}
