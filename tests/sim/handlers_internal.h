/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the business services share. Only handlers*.c include this. */
#ifndef JF_SIM_HANDLERS_INTERNAL_H
#define JF_SIM_HANDLERS_INTERNAL_H

#include "tests/sim/actors.h"

struct handlers {
    uint32_t total; /* of the weights */
    size_t body_max[SIM_SERVICES_MAX];
    char last_trace_id[TRACE_ID_LEN + 1]; /* of an earlier batch; "" = none */
};

enum reaction handlers_draw(struct sim *s, const struct task *t);
/* The request is done and the work goes on: it brings a result later, or not. */
void handlers_async(struct sim *s, const struct task *t);
/* So many signs of life, and then nothing. */
void handlers_beat(struct sim *s, const struct task *t, int n_beats, int64_t beat_ms);
void handlers_fail(struct reply *ret, const char *why); /* no answer comes; `why` is borrowed */
/* How long an ordinary answer takes. */
int64_t handlers_pace(struct sim *s);

#endif
