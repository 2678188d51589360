/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures after the Standard Webhooks specification: HMAC-SHA256 over "id.timestamp.body". */
#ifndef JFX_SIGNATURE_H
#define JFX_SIGNATURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JFX_KEY_MAX 128

struct jfx_key {
    unsigned char bytes[JFX_KEY_MAX];
    size_t len;
};

/* False when the text is no secret: "whsec_" and base64 of 16 to 64 bytes, or 16 to 128 bytes. */
bool jfx_key_read(const char *secret, struct jfx_key *ret);

/* The three headers of a signed request; NULL where one is absent. */
struct jfx_signature {
    const char *id;
    const char *timestamp;
    const char *signatures; /* "v1,<base64> v1,<base64> …" */
};

/* Whether one of the signatures is right for one of the keys, and its time is within the tolerance.
 * NULL, or why not. */
const char *jfx_signature_refusal(const struct jfx_signature *s, const void *body, size_t len,
                                  const struct jfx_key *keys, size_t n_keys, int64_t now_s,
                                  int64_t tolerance_s);

#endif
