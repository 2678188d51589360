/* SPDX-License-Identifier: Apache-2.0 */
/* Calls about many items at once: the body is one array, and the answer has a result for each item,
 * in order; a bad one does not fail the others. */
#ifndef JF_API_RESULTS_H
#define JF_API_RESULTS_H

#include "node/api/api_impl.h"

#define RESULTS_MAX 1000 /* items in one call */

/* Finds the array `name`, which has to be all that the parsed body has, with 1 to RESULTS_MAX items
 * (`what` they are is for people). Returns its token, or 0: *p says why not. */
uint32_t results_open(const struct api_call *c, const char *name, const char *what,
                      struct problem *p);

/* A problem that is one item's result, kept with others in a buffer until the answer is written. */
struct result_problem {
    int status; /* 0 = there is none */
    size_t at;
    size_t len;
};
/* Returns the buffer, for further members; result_problem_close ends it. */
struct buf *result_problem_open(struct buf *problems, const struct problem *p,
                                struct result_problem *ret);
void result_problem_close(struct buf *problems, struct result_problem *r);
/* The whole result. */
void result_problem_put(struct buf *b, const struct buf *problems, const struct result_problem *r);

/* Answers with n results, each written by `put`. Ends the call. */
void results_answer(struct api_call *c, const struct buf *problems, size_t n,
                    void (*put)(struct api_call *c, struct buf *b, size_t i));

#endif
