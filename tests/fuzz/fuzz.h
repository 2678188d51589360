/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz target is one file, NAME_fuzz.c, with fuzz_one() in it, and one line in meson.build. It is
 * linked twice: with libFuzzer (-Dfuzz=true, see scripts/fuzz), and with replay.c into a test that
 * runs the corpus, which needs no clang. A finding is an abort: a failed assert or a sanitizer's.
 *
 *   corpus/NAME/   seeds, and the inputs that once were findings
 *   NAME.dict      words for the mutator; optional */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include "common/str.h"

/* Runs one input, which lies in memory of just its size. Keeps nothing that a later run can see. */
void fuzz_one(struct str input);

/* Cuts the first line off, without its line feed: where a target has to be told more than one
 * text, so that the seeds stay readable. */
struct str fuzz_take_line(struct str *input);

/* Takes the decimal digits at the front, at most nine; 0 when there are none. */
int32_t fuzz_take_number(struct str *s);

/* Says what is wrong with the two, then aborts, unless they are the same. */
void fuzz_same(const char *what, struct str a, struct str b);

/* A text for people or the database: valid UTF-8, no control characters. Aborts if it is not. */
void fuzz_clean_text(const char *what, struct str s);

#endif
