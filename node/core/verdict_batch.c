/* SPDX-License-Identifier: Apache-2.0 */
#include "node/core/verdict_batch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "node/core/verdict_body.h"

/* Room for what handlers add to their results. */
#define TOKENS_BASE 32768
#define TOKENS_PER_TASK 32
#define MENDED_KEEP_MAX (64 * 1024)

#define NO_PART 0 /* the root's token can be nobody's */
#define CONTRADICTION UINT32_MAX
#define FEWER_AFTER_MS 1

/* Finds tasks by trace id: in the request's order without looking anything up, else by a table that
 * is made when it is needed first. */
#define INDEX_SLOTS 2048 /* a power of two, twice as many as there are tasks */
struct index {
    const char *const *trace_ids;
    size_t n;
    bool is_made;
    uint16_t slots[INDEX_SLOTS]; /* index + 1; 0 = free */
};

static_assert(INDEX_SLOTS >= 2 * SERVICE_BATCH_MAX, "probing needs free slots");

void verdict_batch_fini(struct verdict_batch *b)
{
    if (!b)
        return;
    free(b->parts);
    buf_fini(&b->mended);
    json_doc_fini(&b->doc);
}

static bool is_id(struct str s, const char *trace_id)
{
    return s.len == TRACE_ID_LEN && !memcmp(s.p, trace_id, TRACE_ID_LEN);
}

static size_t index_slot(struct str id)
{
    return hash_bytes(id, 0) & (INDEX_SLOTS - 1);
}

static void index_make(struct index *x)
{
    for (size_t i = 0; i < x->n; i++) {
        size_t at = index_slot(str_from(x->trace_ids[i]));

        while (x->slots[at])
            at = (at + 1) & (INDEX_SLOTS - 1);
        x->slots[at] = (uint16_t)(i + 1);
    }
    x->is_made = true;
}

/* The task's index, or n. */
static size_t index_find(struct index *x, struct str id, size_t guess)
{
    if (guess < x->n && is_id(id, x->trace_ids[guess]))
        return guess;
    if (id.len != TRACE_ID_LEN)
        return x->n;
    if (!x->is_made)
        index_make(x);
    for (size_t at = index_slot(id); x->slots[at]; at = (at + 1) & (INDEX_SLOTS - 1)) {
        if (is_id(id, x->trace_ids[x->slots[at] - 1]))
            return (size_t)x->slots[at] - 1;
    }
    return x->n;
}

/* The plain text of the object's member; absent when there is none, or it is no such text. */
static struct str member_text(const struct json_doc *doc, uint32_t obj, const char *key)
{
    uint32_t at = doc->tokens[obj].type == JSON_OBJECT ? json_find(doc, obj, key) : 0;

    return at && doc->tokens[at].type == JSON_STRING ? json_plain(&doc->tokens[at])
                                                     : (struct str){0};
}

static void take_part(struct verdict_batch *b, size_t i, uint32_t token)
{
    const struct json_token *tokens = b->doc.tokens;
    uint32_t *part = &b->parts[i];

    if (*part == NO_PART)
        *part = token;
    else if (*part != CONTRADICTION && !json_same_value(tokens[*part].raw, tokens[token].raw))
        *part = CONTRADICTION;
}

static void take_parts(struct verdict_batch *b, const char *const *trace_ids, uint32_t array)
{
    const struct json_token *tokens = b->doc.tokens;
    struct index x = {.trace_ids = trace_ids, .n = b->n};
    uint32_t token = array + 1;

    b->n_alien = 0;
    for (uint32_t k = 0; k < tokens[array].n; k++, token = tokens[token].next) {
        struct str id = member_text(&b->doc, token, "traceId");
        size_t i = id.p ? index_find(&x, id, k) : b->n;

        if (i < b->n)
            take_part(b, i, token);
        else
            b->n_alien++;
    }
}

/* The same for all. */
static void not_done(struct verdict_batch *b, const char *why, struct str text)
{
    b->is_whole = true;
    verdict_not_done(&b->verdict, b->http_status, why, text);
}

static bool parts_room(struct verdict_batch *b)
{
    if (b->cap < b->n) {
        uint32_t *parts = reallocarray(b->parts, b->n, sizeof(*parts));

        if (!parts)
            return false;
        b->parts = parts;
        b->cap = b->n;
    }
    memset(b->parts, 0, b->n * sizeof(*b->parts));
    return true;
}

static void read_results(struct verdict_batch *b, const struct answer *a,
                         const char *const *trace_ids)
{
    uint32_t array = 0;
    int rc;

    if (a->body_cut) {
        not_done(b, "the answer is longer than may be, so that none of its results counts",
                 a->body);
        return;
    }
    rc = verdict_parse(&b->doc, &b->mended, a->body, false,
                       TOKENS_BASE + (uint32_t)b->n * TOKENS_PER_TASK);
    if (!rc)
        array = json_find(&b->doc, 0, "results");
    if (rc == ERR_NOMEM || !parts_room(b))
        not_done(b, "no memory to read the answer", (struct str){0});
    else if (rc == ERR_TOO_BIG)
        not_done(b, "the answer says too much, or too deeply nested, to be read", a->body);
    else if (rc)
        not_done(b, "the answer to a batch has to be a JSON object with \"results\", not", a->body);
    else if (!array || b->doc.tokens[array].type != JSON_ARRAY)
        not_done(b, "the answer has no array \"results\"", a->body);
    else
        take_parts(b, trace_ids, array);
}

bool verdict_wants_fewer(int32_t last_http_status)
{
    return verdict_is_final(last_http_status) && last_http_status != 410; /* gone for all of them */
}

void verdict_batch_read(struct verdict_batch *b, const struct answer *a,
                        const char *const *trace_ids, size_t n, const struct verdict_limits *limits,
                        wall_ms now)
{
    assert(n > 0 && n <= SERVICE_BATCH_MAX);
    b->limits = limits;
    b->now = now;
    b->http_status = a->http_status;
    b->n = n;
    b->n_alien = 0;
    b->is_whole = !a->sent || a->failure.p || !verdict_is_ok(a->http_status);
    if (b->mended.cap > MENDED_KEEP_MAX)
        buf_fini(&b->mended);
    if (!b->is_whole) {
        read_results(b, a, trace_ids);
        return;
    }
    verdict_read(a, limits, now, &b->verdict);
    if (n > 1 && a->sent && !a->failure.p && verdict_wants_fewer(a->http_status)) {
        b->verdict.kind = VERDICT_SNOOZE;
        b->verdict.retry_after_ms = FEWER_AFTER_MS;
    }
}

/* Reads what the single answer does not know. Returns what is wrong with it, or NULL. */
static const char *read_status(const struct json_doc *doc, uint32_t obj, int32_t *status)
{
    uint32_t said = json_find(doc, obj, "status");
    uint32_t accepted = json_find(doc, obj, "accepted");
    int64_t n;

    if (said) {
        if (doc->tokens[said].type != JSON_NUMBER || !json_to_i64(&doc->tokens[said], &n) ||
            n < 200 || n > 599)
            return "the result's \"status\" is no HTTP status from 200 to 599";
        *status = (int32_t)n;
    }
    if (accepted) {
        enum json_type type = doc->tokens[accepted].type;

        if (type != JSON_TRUE && type != JSON_FALSE)
            return "the result's \"accepted\" is neither true nor false";
        if (type == JSON_TRUE && verdict_is_ok(*status))
            *status = 202;
    }
    return NULL;
}

static void judge_part(struct verdict_batch *b, uint32_t obj)
{
    struct answer a = {.http_status = b->http_status, .sent = true};
    struct verdict_body body = VERDICT_BODY_INIT;
    const char *wrong = read_status(&b->doc, obj, &a.http_status);

    if (wrong)
        verdict_not_done(&b->verdict, a.http_status, wrong, (struct str){0});
    else if (verdict_body_read_object(&body, &b->doc, obj))
        verdict_not_done(&b->verdict, a.http_status, "no memory to read the answer",
                         (struct str){0});
    else
        verdict_judge(&a, &body, b->limits, b->now, &b->verdict);
    verdict_body_fini(&body);
}

const struct verdict *verdict_batch_get(struct verdict_batch *b, size_t i)
{
    assert(i < b->n);
    if (b->is_whole)
        return &b->verdict;
    if (b->parts[i] == NO_PART)
        verdict_not_done(&b->verdict, b->http_status, "the answer has no result for this task",
                         (struct str){0});
    else if (b->parts[i] == CONTRADICTION)
        verdict_not_done(&b->verdict, b->http_status,
                         "the answer has results for this task that contradict each other",
                         (struct str){0});
    else
        judge_part(b, b->parts[i]);
    return &b->verdict;
}
