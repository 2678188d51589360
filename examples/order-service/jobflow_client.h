/* SPDX-License-Identifier: Apache-2.0 */
/* The three calls of JobFlow's HTTP interface that a service needs. */
#ifndef EXAMPLE_JOBFLOW_CLIENT_H
#define EXAMPLE_JOBFLOW_CLIENT_H

#include <jansson.h>

struct jobflow;

/* NULL: no memory. `url` is the node's, such as "http://127.0.0.1:8080"; borrowed. */
struct jobflow *jobflow_new(const char *url);
void jobflow_free(struct jobflow *j);

/* Each returns the HTTP status, or 0 when no answer came, and sets *ret to the answer's JSON (or
 * NULL), which the caller releases. */

/* Tells JobFlow where this service is called back. */
long jobflow_register(struct jobflow *j, const char *service, const char *base_url, json_t **ret);

/* Submits a task; safe to repeat: one bizUuid is one task. Takes `task`. */
long jobflow_submit(struct jobflow *j, json_t *task, json_t **ret);

/* 409: its attempt is under way, or it has ended otherwise. */
long jobflow_cancel(struct jobflow *j, const char *biz_uuid, json_t **ret);

#endif
