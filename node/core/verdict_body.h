/* SPDX-License-Identifier: Apache-2.0 */
/* What a handler's body says about its attempt. */
#ifndef JF_CORE_VERDICT_BODY_H
#define JF_CORE_VERDICT_BODY_H

#include "common/json.h"
#include "node/core/verdict.h"

enum said { SAID_NOTHING, SAID_NO, SAID_YES };

struct verdict_body {
    enum said success; /* NO also when it is neither true nor false */
    enum said retryable;
    enum said snooze;       /* NO: said, but it is no duration */
    int64_t snooze_ms;      /* of a snooze that is YES */
    int64_t retry_after_ms; /* < 0 = not said, or no duration */
    struct str message;     /* absent = none; points into `text` */
    struct buf text;
    /* Where the tokens and the text they point to live. */
    struct json_doc doc;
    struct buf mended;
};

static inline bool verdict_is_ok(int32_t http_status)
{
    return http_status >= 200 && http_status <= 299;
}

/* Trying the same request again cannot help. */
static inline bool verdict_is_final(int32_t http_status)
{
    return http_status == 400 || http_status == 410 || http_status == 413 || http_status == 422;
}

#define VERDICT_BODY_INIT ((struct verdict_body){.retry_after_ms = -1})

void verdict_body_fini(struct verdict_body *b);

/* Reads a handler's answer, generously: what is no JSON object says nothing; a character that JSON
 * or the store refuses stands for U+FFFD; of a cut answer the members before the cut count; what is
 * nested may be as deep as it likes; members of an unknown name or a wrong type are passed over,
 * but a "success" of a wrong type is none. `b` is VERDICT_BODY_INIT; `body` outlives it. Errors:
 * ERR_NOMEM. */
MUST_CHECK int verdict_body_read(struct verdict_body *b, struct str body, bool cut);

/* The same of an object inside of a document, which outlives `b`. Errors: ERR_NOMEM. */
MUST_CHECK int verdict_body_read_object(struct verdict_body *b, const struct json_doc *doc,
                                        uint32_t obj);

/* Parses an answer that is an object, with what is ill-formed mended as above. The tokens point
 * into `body` or into `mended`. Errors: ERR_INVALID (it is none), ERR_TOO_BIG (too many tokens, too
 * deep), ERR_NOMEM. */
MUST_CHECK int verdict_parse(struct json_doc *doc, struct buf *mended, struct str body, bool cut,
                             uint32_t max_tokens);

/* What an answer with this body means; a->body is only quoted. In verdict.c. */
void verdict_judge(const struct answer *a, const struct verdict_body *b,
                   const struct verdict_limits *limits, wall_ms now, struct verdict *ret);

/* A failed attempt, to be tried again: "<why>: <text>", or either alone. In verdict.c. */
void verdict_not_done(struct verdict *ret, int32_t http_status, const char *why, struct str text);

/* Reads a result that a handler sends by itself, strictly: an object of the known members, each of
 * its type, that says "success" or "snooze".
 * Errors: ERR_INVALID (says which member and what is allowed), ERR_NOMEM. */
MUST_CHECK int verdict_body_read_strictly(struct verdict_body *b, struct str body, struct err *err);

#endif
