/* SPDX-License-Identifier: Apache-2.0 */
/* Which trace ids were seen lately: a bounded table that forgets what is longest unused. A trace id
 * whose handler is running is never forgotten. All memory is taken at once; any thread. */
#ifndef JFX_SEEN_H
#define JFX_SEEN_H

#include <stdbool.h>
#include <stdint.h>

#define JFX_TRACE_LEN 32 /* hex digits */

enum jfx_seen_state {
    JFX_SEEN_NEW,     /* begin: it is running from now on, the caller has to end it */
    JFX_SEEN_RUNNING, /* another delivery of it is being worked on */
    JFX_SEEN_LATER,   /* this very attempt was accepted, its result is not known yet */
    JFX_SEEN_DONE,    /* it succeeded */
    JFX_SEEN_FULL,    /* begin: each place is taken by one that is running */
};

struct jfx_seen;

bool jfx_trace_valid(const char *trace);

/* NULL when out of memory. */
struct jfx_seen *jfx_seen_new(uint32_t capacity);
void jfx_seen_free(struct jfx_seen *seen);

/* A delivery has come. A later attempt than the one in LATER is NEW: that one was given up. The
 * trace ids here and below are valid ones. */
enum jfx_seen_state jfx_seen_begin(struct jfx_seen *seen, const char *trace, int32_t attempt);

/* How the delivery that was NEW ended: LATER and DONE are remembered, NEW is forgotten. It changes
 * nothing when jfx_seen_report came first. */
void jfx_seen_end(struct jfx_seen *seen, const char *trace, int32_t attempt,
                  enum jfx_seen_state state);

/* The result of an attempt that was answered with LATER, or is about to be. */
void jfx_seen_report(struct jfx_seen *seen, const char *trace, int32_t attempt, bool success);

#endif
