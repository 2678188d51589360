/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures after the Standard Webhooks specification: HMAC-SHA256 over "id.timestamp.body". */
#ifndef JF_DISPATCH_SIGN_H
#define JF_DISPATCH_SIGN_H

#include "common/err.h"
#include "common/str.h"

#define SIGN_TEXT_MAX 64 /* "v1," and base64 of 32 bytes, with room */

/* A secret is "whsec_" + base64 of 16 to 64 bytes, or any text of 16 to 128 bytes used as it is.
 * Errors: ERR_INVALID with what is allowed. */
MUST_CHECK int sign_check_secret(struct str secret, struct err *err);

/* Writes "v1,<base64>" and a NUL. The secret has passed sign_check_secret.
 * Errors: ERR_INVALID, ERR_NOMEM. */
MUST_CHECK int sign_webhook(struct str secret, struct str id, int64_t timestamp_s, struct str body,
                            char dst[SIGN_TEXT_MAX]);

#endif
