/* SPDX-License-Identifier: Apache-2.0 */
/* Percent-encoding of paths and query strings. A '+' stands for itself: no value here can hold a
 * space, and times with an offset ("…+02:00") often come unencoded. */
#ifndef JF_API_URI_H
#define JF_API_URI_H

#include "common/buf.h"

/* Decodes s, appended to `text` unless nothing is encoded; then *ret is s itself. `text` has
 * room for s. False for a bad encoding, ill-formed UTF-8 or a NUL. */
bool uri_decode(struct str s, struct buf *text, struct str *ret);

/* Appends s with everything encoded but unreserved characters. */
void uri_encode(struct buf *b, struct str s);

/* Takes the next "key=value" off a query string, not decoded. False at the end. A key without
 * '=' has an absent value; empty pairs ("&&") are skipped. */
bool uri_next_pair(struct str *rest, struct str *ret_key, struct str *ret_value);

#endif
