/* SPDX-License-Identifier: Apache-2.0 */
/* What the json_*.c files share. Not for use outside of them. */
#ifndef JF_COMMON_JSON_IMPL_H
#define JF_COMMON_JSON_IMPL_H

#include "common/json.h"

/* The bytes between the quotes of a string token. */
static inline struct str json_inside(const struct json_token *t)
{
    return (struct str){t->raw.p + 1, t->raw.len - 2};
}

/* Whether two string tokens stand for the same text. Allocates nothing. */
bool json_same_string(const struct json_token *a, const struct json_token *b);

/* Fills keys[0] to keys[object->n - 1] with the key tokens of an object, sorted by text. */
void json_sorted_keys(const struct json_doc *doc, const struct json_token *object,
                      const struct json_token **keys);

#endif
