/* SPDX-License-Identifier: Apache-2.0 */
/* A validating JSON tokenizer (RFC 8259) that yields byte spans, so that a payload can be handed on
 * byte for byte, and a writer into a buffer. Control documents may use jansson; requests and the
 * answers of services come through here.
 *
 * Refused: ill-formed UTF-8, unescaped control characters, U+0000 in any string (also escaped),
 * lone surrogates, duplicate keys in an object, nesting beyond JSON_MAX_DEPTH, trailing bytes,
 * a byte-order mark. Numbers are checked for syntax only and kept as text. */
#ifndef JF_COMMON_JSON_H
#define JF_COMMON_JSON_H

#include "common/buf.h"

#define JSON_MAX_DEPTH 64

enum json_type {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

struct json_token {
    enum json_type type;
    bool has_escape; /* a string that holds a backslash: decode before use */
    uint32_t n;      /* children: elements of an array, members of an object */
    uint32_t next;   /* index of the token after this value and all that is in it */
    struct str raw;  /* the value's bytes in the text, quotes included */
};

/* A parsed text. Tokens stand in text order: an object's members as key token, value token, …; an
 * array's elements in a row. tokens[0] is the root. */
struct json_doc {
    struct json_token *tokens; /* owned; NULL before the first parse */
    uint32_t n_tokens;         /* 0 after a failed parse */
    uint32_t cap;
    size_t err_offset; /* of a failed parse: where */
};

#define JSON_DOC_INIT ((struct json_doc){0})

/* Parses the whole text. `doc` is zeroed or was used before (its memory is used again); the tokens
 * point into `text`, which must outlive them.
 * max_tokens bounds the memory.
 * Errors: ERR_INVALID (what is wrong, and at which byte), ERR_TOO_BIG (too many tokens or too
 * deep), ERR_NOMEM. */
MUST_CHECK int json_parse(struct json_doc *doc, struct str text, uint32_t max_tokens,
                          struct err *err);

void json_doc_fini(struct json_doc *doc);

/* The value token's index for a key of the object at index `obj`, or 0 when there is none (0 is
 * always the root, so it can never be a member). Keys compare after unescaping. */
uint32_t json_find(const struct json_doc *doc, uint32_t obj, const char *key);

/* Text of a string token, unescaped into dst (appended). Returns false when out of memory. */
bool json_unescape(const struct json_token *t, struct buf *dst);

/* The string's content without quotes when it has no escape; else an absent span. */
struct str json_plain(const struct json_token *t);

/* A number token as an integer: accepts only integers in int64 (no fraction, no exponent).
 * Returns false otherwise. */
bool json_to_i64(const struct json_token *t, int64_t *ret);

/* Compares two JSON texts as values: objects regardless of order and white space, numbers by their
 * text after the same normalisation of "-0", strings after unescaping. Ill-formed texts compare by
 * bytes. Used to tell whether a repeated submission differs. */
bool json_same_value(struct str a, struct str b);

/* Writing. Strings must be valid UTF-8; they are escaped as JSON asks, nothing more. */
void json_put_string(struct buf *b, struct str s); /* with quotes; absent gives null */
void json_put_stringz(struct buf *b, const char *z);

/* "key": with a comma before it unless it is the first member (*first is set to false). The key
 * is written as is. */
void json_put_key(struct buf *b, bool *first, const char *key);

#endif
