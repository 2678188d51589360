/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the bytes of a value in a JSON text that is known to be well-formed, by counting brackets
 * and quotes: another way than the tokenizer's. */
#ifndef TEST_JSON_SCAN_H
#define TEST_JSON_SCAN_H

#include "common/str.h"

/* The value of the object's member; absent when there is none. */
struct str scan_member(struct str object, const char *key);

/* Steps through an array: *rest is the array at first. False at the end. */
bool scan_next(struct str *rest, struct str *ret);

/* Whether the value is a string that, unescaped, is this text. */
bool scan_is_text(struct str value, struct str text);

#endif
