/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/task.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char *const status_names[TASK_N_STATUSES] = {
    [TASK_PENDING] = "PENDING",
    [TASK_SENDING] = "SENDING",
    [TASK_SENT] = "SENT",
    [TASK_RETRYING] = "RETRYING",
    [TASK_SUCCESS] = "SUCCESS",
    [TASK_FAILED] = "FAILED",
    [TASK_MANUAL_REQUIRED] = "MANUAL_REQUIRED",
    [TASK_CANCELLED] = "CANCELLED",
};

const char *task_status_name(enum task_status s)
{
    assert(s >= 0 && s < TASK_N_STATUSES);
    return status_names[s];
}

bool task_status_parse(struct str s, enum task_status *ret)
{
    for (int i = 0; i < TASK_N_STATUSES; i++) {
        if (str_eqz(s, status_names[i])) {
            *ret = (enum task_status)i;
            return true;
        }
    }
    return false;
}

/* An attempt's end: PENDING is a claim given back, or a snooze; RETRYING a retry, or a claim given
 * back that was one already. */
#define ATTEMPT_ENDS                                                                               \
    (1u << TASK_SUCCESS | 1u << TASK_RETRYING | 1u << TASK_FAILED | 1u << TASK_PENDING)

static const unsigned allowed_moves[TASK_N_STATUSES] = {
    [TASK_PENDING] = 1u << TASK_SENDING | 1u << TASK_CANCELLED,
    [TASK_SENDING] = ATTEMPT_ENDS | 1u << TASK_SENT,
    [TASK_SENT] = ATTEMPT_ENDS,
    [TASK_RETRYING] = 1u << TASK_SENDING | 1u << TASK_CANCELLED,
    [TASK_SUCCESS] = 0,
    [TASK_FAILED] = 1u << TASK_MANUAL_REQUIRED | 1u << TASK_PENDING | 1u << TASK_CANCELLED,
    [TASK_MANUAL_REQUIRED] = 1u << TASK_PENDING | 1u << TASK_CANCELLED,
    [TASK_CANCELLED] = 0,
};

bool task_status_can(enum task_status from, enum task_status to)
{
    assert(from >= 0 && from < TASK_N_STATUSES);
    assert(to >= 0 && to < TASK_N_STATUSES);
    return allowed_moves[from] & task_status_bit(to);
}

struct task task_empty(void)
{
    return (struct task){
        .execute_time = WALL_NONE,
        .next_attempt_time = WALL_NONE,
        .claimed_at = WALL_NONE,
        .deadline_at = WALL_NONE,
        .failed_at = WALL_NONE,
        .finished_at = WALL_NONE,
        .created_at = WALL_NONE,
        .updated_at = WALL_NONE,
        .priority = TASK_PRIORITY_DEFAULT,
    };
}

#define N_SPANS 7

static void list_spans(struct task *t, struct str *ret[N_SPANS])
{
    ret[0] = &t->biz_uuid;
    ret[1] = &t->service_name;
    ret[2] = &t->handler;
    ret[3] = &t->payload;
    ret[4] = &t->policy;
    ret[5] = &t->claimed_by;
    ret[6] = &t->last_error;
}

struct task *task_dup(const struct task *view)
{
    struct task copy = *view;
    struct str *spans[N_SPANS];
    size_t size = sizeof(copy);

    list_spans(&copy, spans);
    for (size_t i = 0; i < N_SPANS; i++)
        size += spans[i]->len;
    struct task *t = malloc(size);
    if (!t)
        return NULL;
    /* The texts follow the struct; an empty text keeps a pointer, since that is not an absent one.
     */
    char *end = (char *)(t + 1);
    for (size_t i = 0; i < N_SPANS; i++) {
        if (!spans[i]->p)
            continue;
        memcpy(end, spans[i]->p, spans[i]->len);
        spans[i]->p = end;
        end += spans[i]->len;
    }
    *t = copy;
    return t;
}

void task_free(struct task *t)
{
    free(t);
}
