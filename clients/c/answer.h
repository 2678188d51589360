/* SPDX-License-Identifier: Apache-2.0 */
/* What is sent for an answer: the same JSON in a response and in a result. */
#ifndef JFX_ANSWER_H
#define JFX_ANSWER_H

#include "jobflow_executor.h"

/* Mends what a handler may have got wrong: an unknown outcome is RETRY, waits are in range, the
 * message ends and is well-formed UTF-8. */
void jfx_answer_mend(struct jobflow_answer *a);

/* Of a mended answer. To be freed by free(). NULL when out of memory. */
char *jfx_answer_encode(const struct jobflow_answer *a);

/* 200, 202, 422 for FAIL, 500 for RETRY: whoever sees nothing but the status takes no failure for a
 * success. Not 503: proxies that send a 503 again would repeat work. */
int jfx_answer_status(const struct jobflow_answer *a);

#endif
