/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks that arrived, and how late each was: this machine's clock less its executeTime. One thread
 * notes; others may read the count meanwhile. Functions abort the program on errors. */
#ifndef JF_BENCH_TALLY_H
#define JF_BENCH_TALLY_H

#include <stdatomic.h>

#include "common/clock.h"
#include "common/str.h"

struct tally {
    atomic_uint_fast64_t n;
    _Atomic int64_t first_us; /* clock_mono_us of the first; 0 before */
    int32_t *late;            /* owned; milliseconds */
    size_t cap;
};

void tally_init(struct tally *t, size_t cap); /* keeps up to cap samples, and counts on */
void tally_fini(struct tally *t);
/* Notes each task of the text: one for each "executeTime". Returns how many. */
size_t tally_note(struct tally *t, struct str text);
uint64_t tally_count(const struct tally *t);

/* Prints the members "p50_ms" … "max_ms" and "histogram" ([[ms, count], …]) of a JSON object. While
 * nobody notes. There is at least one sample. */
void tally_print(struct tally *t);

#endif
