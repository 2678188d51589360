/* SPDX-License-Identifier: Apache-2.0 */
/* Base64 with the standard alphabet and padding (RFC 4648, section 4). */
#ifndef JF_COMMON_BASE64_H
#define JF_COMMON_BASE64_H

#include "common/buf.h"

int base64_digit(char c); /* 0 to 63; -1 = none */

/* Appends the text of the bytes; out of memory sticks in dst. */
void base64_encode(struct str bytes, struct buf *dst);

/* Appends the bytes of a text, at most len / 4 * 3. Returns false, and appends nothing, when it is
 * not what base64_encode writes: no white space, full padding, no bits left over. Out of memory
 * sticks in dst. */
MUST_CHECK bool base64_decode(struct str text, struct buf *dst);

#endif
