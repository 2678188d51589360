/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a server sent, to the letter. Whatever is not well-formed HTTP/1.1, has a status that
 * is not documented, or a body that is not what its Content-Type says, aborts. */
#ifndef TEST_HTTP_CHECK_H
#define TEST_HTTP_CHECK_H

#include "common/str.h"

struct checked_answer {
    int status;
    bool closes; /* Connection: close */
    bool is_json;
    struct str body; /* points into the input */
};

enum body_rule {
    BODY_THERE,   /* as long as Content-Length says */
    BODY_LEFT_OUT /* the answer to HEAD */
};

/* Takes one answer off *out. An interim answer (100) is one too. */
void http_check_answer(struct str *out, enum body_rule rule, struct checked_answer *ret);

#endif
