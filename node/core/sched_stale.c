/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that a scan read before the scheduler took their tasks further.
 *
 * A scan reads what stood there some time after it was asked, and under load it is out for a while.
 * A task that ends meanwhile comes back with it as if it still waited, and is claimed in vain. So
 * what became of an attempt is noted until the scan is back that is out. One that is asked later
 * reads it in the row.
 *
 * The steps of a task are numbered in the order in which it takes them, and its row tells which it
 * has come to: claims count the attempt up, and nothing counts it down (neither a person who runs
 * the task again, nor a replacement, nor a claim that is given back). So a row of an earlier step
 * than the one noted is old, whatever has become of the task since.
 *
 * Failures: a task has one place among the notes, by its id, and takes it from whoever had it
 * before. Ids that live at the same time are mostly consecutive. An old row that is not recognised
 * is claimed or rescued in vain; if the store has refused the end of its attempt, that claim is
 * taken for the first one, and the task is sent again. A database that loses commits which it had
 * acknowledged, while a scan is out, brings rows that are true and are left out: the next read of
 * that stretch, the next full read at the latest, has another number and is believed. */
#include "node/core/sched_internal.h"

#include <stdlib.h>

#define N_NOTES (1u << 16)

struct note {
    int64_t id;
    int64_t step;  /* that the task has reached at least */
    uint32_t scan; /* number of the last scan that was asked: a later one is not judged by this */
};

static int64_t step_of(enum task_status status, int32_t attempt)
{
    int64_t over = 3 * (int64_t)attempt; /* that attempt: the task waits, or has ended */

    return status == TASK_SENDING ? over - 2 : status == TASK_SENT ? over - 1 : over;
}

static struct note *note_of(const struct sched *s, int64_t id)
{
    return &s->notes[(uint64_t)id % N_NOTES];
}

struct note *notes_new(void)
{
    return calloc(N_NOTES, sizeof(struct note));
}

void note_claimed(struct sched *s, int64_t id, int32_t attempt)
{
    *note_of(s, id) = (struct note){id, step_of(TASK_SENDING, attempt), s->scan_number};
}

void note_finished(struct sched *s, const struct finish_item *f)
{
    enum task_status status = f->kind == FINISH_SENT ? TASK_SENT : TASK_RETRYING;

    *note_of(s, f->id) = (struct note){f->id, step_of(status, f->attempt), s->scan_number};
}

bool is_stale(const struct sched *s, const struct scan_row *r)
{
    const struct note *n = note_of(s, r->id);

    return n->id == r->id && n->scan == s->scan_number && step_of(r->status, r->attempt) < n->step;
}
