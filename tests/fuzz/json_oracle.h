/* SPDX-License-Identifier: Apache-2.0 */
/* What another JSON library thinks. Its names clash with those of common/json.h, so it is kept
 * behind this. */
#ifndef TEST_JSON_ORACLE_H
#define TEST_JSON_ORACLE_H

#include "common/buf.h"

/* NONE: its own limits (nesting beyond 2048, a number beyond a double) kept it from judging. */
enum oracle_opinion { ORACLE_NONE, ORACLE_REFUSES, ORACLE_ACCEPTS };

/* On ACCEPTS, unless dst is NULL, appends the text's values: n, t and f; d and a double;
 * s, the length and the bytes; [ or {, the number of children and these, in order. */
enum oracle_opinion oracle_read(struct str text, struct buf *dst);

void oracle_put_double(struct buf *dst, double v);
void oracle_put_string(struct buf *dst, struct str s);
void oracle_put_open(struct buf *dst, char bracket, size_t n);

/* Of the member of the root object. NO_OBJECT: the text is no JSON object, or not surely one. */
enum oracle_member { MEMBER_NO_OBJECT, MEMBER_ABSENT, MEMBER_TRUE, MEMBER_FALSE, MEMBER_OTHER };
enum oracle_member oracle_root_member(struct str text, const char *key);

#endif
