/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a request's body, the envelope of one attempt. */
#ifndef JFX_TASK_H
#define JFX_TASK_H

#include <stdint.h>

#include "jobflow_executor.h"

/* The task that handlers see, and what it stands on. */
struct jfx_task {
    struct jobflow_task task; /* first: jobflow_task_remaining_ms goes back from it */
    int64_t received_ms;      /* monotonic */
    struct cJSON *envelope;   /* without the payload; owned, as the rest */
    struct cJSON *payload;
    char *payload_text;
};

/* Errors: EINVAL (*ret_why says what is wrong with it; a constant), ENOMEM. */
int jfx_task_read(const char *body, size_t len, struct jfx_task *ret, const char **ret_why);
void jfx_task_fini(struct jfx_task *t);

/* Letters, digits and ._- , 1 to 128 of them. */
bool jfx_name_valid(const char *name);

/* A clock that no one sets. */
int64_t jfx_now_ms(void);

#endif
