/* SPDX-License-Identifier: Apache-2.0 */
/* proto/openapi.yaml, built in (embed.py). */
#ifndef JF_API_OPENAPI_TEXT_H
#define JF_API_OPENAPI_TEXT_H

#include <stddef.h>

extern const unsigned char openapi_text[];
extern const size_t openapi_text_len;

#endif
