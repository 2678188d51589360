/* SPDX-License-Identifier: Apache-2.0 */
#include "node/lease_answer.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "node/forward.h"

#define STEP_BYTES ((size_t)16 << 20) /* of payloads that are all as large as may be */
#define STEP_FIRST 16                 /* tasks, while nothing is known of their payloads */
#define CLAIM_TOKENS_MAX (8 + 6 * LEASE_TASKS_MAX) /* of the line of claims */

/* ---- Room ---------------------------------------------------------------------------------- */

uint32_t lease_step(const struct lease_fill *f)
{
    size_t room = f->bytes < LEASE_BYTES_MAX ? LEASE_BYTES_MAX - f->bytes : 0;
    size_t most = STEP_BYTES / f->max_payload;
    size_t left = f->max_tasks - f->n;
    size_t n = f->task_bytes ? room / f->task_bytes : STEP_FIRST;

    if (n > most)
        n = most;
    if (n > left)
        n = left;
    return n ? (uint32_t)n : 1;
}

bool lease_has_room(const struct lease_fill *f)
{
    return f->n < f->max_tasks && f->bytes + f->task_bytes <= LEASE_BYTES_MAX;
}

/* ---- Of another member --------------------------------------------------------------------- */

/* Cuts the last line off; false when there is only one. */
static bool cut_line(struct str *text, struct str *ret_line)
{
    const char *end = memrchr(text->p, '\n', text->len);

    if (!end)
        return false;
    *ret_line = (struct str){end + 1, text->len - (size_t)(end + 1 - text->p)};
    text->len = (size_t)(end - text->p);
    return true;
}

static bool read_claim(const struct json_doc *doc, uint32_t at, struct lease_claim *ret)
{
    int64_t v[5];

    if (doc->tokens[at].type != JSON_ARRAY || doc->tokens[at].n != 5)
        return false;
    for (uint32_t i = 0; i < 5; i++) {
        if (!json_to_i64(&doc->tokens[at + 1 + i], &v[i]) ||
            (i > 0 && (v[i] < 0 || v[i] > INT_MAX)))
            return false;
    }
    *ret = (struct lease_claim){.id = v[0],
                                .attempt = (int32_t)v[1],
                                .retry_count = (int32_t)v[2],
                                .priority = (int32_t)v[3],
                                .shard = (int32_t)v[4]};
    return true;
}

/* NULL: these are no claims of that service. */
static struct lease_claims *read_claims(struct str service_name, struct str line)
{
    struct json_doc doc = JSON_DOC_INIT;
    struct lease_claims *ret = NULL;
    uint32_t name;
    uint32_t list;
    uint32_t at;
    struct err err;

    if (json_parse(&doc, line, CLAIM_TOKENS_MAX, &err) || doc.tokens[0].type != JSON_OBJECT)
        goto out;
    name = json_find(&doc, 0, "service");
    list = json_find(&doc, 0, "claims");
    if (!name || doc.tokens[name].type != JSON_STRING ||
        !str_eq(json_plain(&doc.tokens[name]), service_name) || !list ||
        doc.tokens[list].type != JSON_ARRAY || !doc.tokens[list].n)
        goto out;
    ret = calloc(1, sizeof(*ret) + doc.tokens[list].n * sizeof(ret->list[0]));
    if (!ret)
        goto out;
    assert(service_name.len < sizeof(ret->service_name));
    memcpy(ret->service_name, service_name.p, service_name.len);
    for (at = list + 1; ret->n < doc.tokens[list].n; at = doc.tokens[at].next) {
        if (!read_claim(&doc, at, &ret->list[ret->n++])) {
            free(ret);
            ret = NULL;
            goto out;
        }
    }
out:
    json_doc_fini(&doc);
    return ret;
}

bool lease_answer_read(const struct config *cfg, struct str member, struct str service_name,
                       struct str answer, wall_ms now, struct str *ret_tasks,
                       struct lease_claims **ret_claims)
{
    struct str text = answer;
    struct str signature;
    struct str stamp;
    struct str line;
    struct lease_claims *claims;
    const char *space;

    if (!text.len || !cut_line(&text, &signature))
        return false;
    space = memchr(signature.p, ' ', signature.len);
    if (!space)
        return false;
    stamp = (struct str){signature.p, (size_t)(space - signature.p)};
    signature = (struct str){space + 1, signature.len - stamp.len - 1};
    if (!forward_verify(cfg, member, STR(LEASE_CLAIMS_PATH), stamp, signature, text, now) ||
        !cut_line(&text, &line))
        return false;
    claims = read_claims(service_name, line);
    if (!claims)
        return false;
    *ret_tasks = text;
    *ret_claims = claims;
    return true;
}
