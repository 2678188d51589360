/* SPDX-License-Identifier: Apache-2.0 */
/* Byte spans, and what this code base asks of UTF-8. */
#ifndef JF_COMMON_STR_H
#define JF_COMMON_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A span of bytes owned by somebody else; the holder's comment says until when. p == NULL means
 * "absent", which differs from an empty span. Never NUL-terminated unless it says so. */
struct str {
    const char *p;
    size_t len;
};

#define STR(literal) ((struct str){(literal), sizeof(literal) - 1})
#define STR_FMT "%.*s"
#define STR_ARG(s) (int)(s).len, (s).p ? (s).p : ""

struct str str_from(const char *z);      /* z may be NULL: gives an absent span */
bool str_eq(struct str a, struct str b); /* byte for byte; absent equals only absent */
bool str_eqz(struct str a, const char *z);
int str_cmp(struct str a, struct str b); /* byte order, as memcmp; shorter first */

/* True if the bytes are well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF). */
bool utf8_valid(struct str s);

/* Decodes one character of s, which is not empty: returns how many bytes it takes (1 to 4) and sets
 * *ret to the code point, or to UTF8_BAD for an ill-formed sequence; then the count is that of the
 * bytes that one replacement character stands for. */
#define UTF8_BAD UINT32_MAX
size_t utf8_step(struct str s, uint32_t *ret);

/* The length of the longest prefix of at most max bytes that does not end inside a character. */
size_t utf8_cut(struct str s, size_t max);

/* A control character (C0, DEL, C1), U+2028 or U+2029. */
bool utf8_is_control(uint32_t c);
bool utf8_has_control(struct str s); /* s is valid UTF-8 */

/* True if s (valid UTF-8) begins or ends with Unicode white space. */
bool utf8_has_edge_space(struct str s);

/* Makes any bytes storable everywhere: each ill-formed sequence and each NUL or other control
 * character (tab and newline become a space) turns into U+FFFD or a space, and the result is cut
 * to at most cap-1 bytes on a character boundary and NUL-terminated. Returns its length.
 * cap >= 1; dst and src do not overlap. */
size_t utf8_clean(char *dst, size_t cap, struct str src);

/* True for a service, handler, policy or node name: [A-Za-z0-9._-]{1,max}, but neither "." nor
 * "..", which lead out of a URL's path. */
bool name_valid(struct str s, size_t max);
bool name_char_valid(char c); /* [A-Za-z0-9._-] */

int hex_digit(char c); /* 0 to 15; -1 = none */

/* Parses a whole span as a decimal integer without white space or leading '+'. Returns false on
 * anything else or on overflow, and leaves *ret untouched. */
bool str_to_i64(struct str s, int64_t *ret);

#endif
