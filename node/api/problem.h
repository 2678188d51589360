/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that can be wrong, as RFC 9457 problem documents: one table of kinds with their stable
 * type, title and status. */
#ifndef JF_API_PROBLEM_H
#define JF_API_PROBLEM_H

#include "common/buf.h"

#define PROBLEM_CONTENT_TYPE "application/problem+json"

enum problem_kind {
    PROBLEM_BAD_REQUEST,
    PROBLEM_INVALID_JSON,
    PROBLEM_INVALID_FIELD,
    PROBLEM_MISSING_FIELD,
    PROBLEM_UNKNOWN_FIELD,
    PROBLEM_NO_SUCH_PATH,
    PROBLEM_NOT_FOUND,
    PROBLEM_METHOD_NOT_ALLOWED,
    PROBLEM_REQUEST_TIMEOUT,
    PROBLEM_KEY_TAKEN,
    PROBLEM_ALREADY_EXISTS,
    PROBLEM_IN_FLIGHT,
    PROBLEM_FINISHED,
    PROBLEM_STALE_ATTEMPT,
    PROBLEM_NOT_PULLED,
    PROBLEM_IN_USE,
    PROBLEM_LIMIT,
    PROBLEM_TOO_LARGE,
    PROBLEM_MEDIA_TYPE,
    PROBLEM_EXPECTATION,
    PROBLEM_NOT_STORABLE,
    PROBLEM_HEADER_TOO_LARGE,
    PROBLEM_INTERNAL,
    PROBLEM_UNAVAILABLE,
    PROBLEM_OVERLOADED,
    PROBLEM_NOT_READY,
    PROBLEM_HTTP_VERSION,
    PROBLEM_N_KINDS
};

#define PROBLEM_FIELD_MAX 160

struct problem {
    enum problem_kind kind;
    char field[PROBLEM_FIELD_MAX]; /* "" = none */
    char detail[400];
    char hint[320]; /* "" = none */
};

/* Fills the problem; a text that is too long is cut on a character boundary. Returns false, so that
 * a parser may say `return problem_set(…)`. `field` may be NULL. */
bool problem_set(struct problem *p, enum problem_kind kind, const char *field, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
void problem_field(struct problem *p, struct str field);
void problem_hint(struct problem *p, const char *fmt, ...) PRINTF_LIKE(2, 3);

int problem_status(enum problem_kind kind);

/* Appends the document, without its closing brace, so that the caller may add members. */
void problem_put_open(struct buf *b, const struct problem *p);
void problem_put(struct buf *b, const struct problem *p);

#endif
