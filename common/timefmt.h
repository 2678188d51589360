/* SPDX-License-Identifier: Apache-2.0 */
/* Times and durations as people write them. All arithmetic is proleptic Gregorian UTC and passes
 * 2038; nothing depends on the host's zone or locale. */
#ifndef JF_COMMON_TIMEFMT_H
#define JF_COMMON_TIMEFMT_H

#include "common/clock.h"
#include "common/err.h"
#include "common/str.h"

#define TIME_TEXT_LEN 24 /* "2026-01-31T12:34:56.789Z" */

/* The years 0000 to 9999: what has a text, and what every database can store. */
#define TIME_MIN (-INT64_C(62167219200000)) /* 0000-01-01T00:00:00.000Z */
#define TIME_MAX INT64_C(253402300799999)   /* 9999-12-31T23:59:59.999Z */

/* Writes RFC 3339 in UTC with milliseconds, NUL-terminated. A time outside of TIME_MIN to TIME_MAX
 * is clamped. */
void time_format(wall_ms t, char dst[TIME_TEXT_LEN + 1]);

/* Parses RFC 3339 with a zone ("Z" or "+hh:mm"; any number of fraction digits, cut to ms; leap
 * second :60 reads as :59.999). Errors: ERR_INVALID, with a text that says what is allowed. */
MUST_CHECK int time_parse(struct str s, wall_ms *ret, struct err *err);

/* Parses a duration: "500ms", "30s", "1h30m", "1.5h", "2d", ISO 8601 "PT30M" / "P1DT2H" (weeks,
 * days, hours, minutes, seconds with fraction; no years or months), or a plain number of seconds
 * ("90", "0.5"). Never negative. Fractions below a millisecond round up.
 * Errors: ERR_INVALID (not a duration, or above 100 years). */
MUST_CHECK int duration_parse(struct str s, int64_t *ret_ms, struct err *err);

/* Writes the shortest exact form, such as "1h30m", "60s" is "1m", "1.5s" is "1s500ms". */
#define DURATION_TEXT_LEN 47
void duration_format(int64_t ms, char dst[DURATION_TEXT_LEN + 1]);

/* Parses an HTTP-date (RFC 9110, all three forms; `now` tells the century of a year with two
 * digits). Errors: ERR_INVALID. */
MUST_CHECK int http_date_parse(struct str s, wall_ms now, wall_ms *ret);

#endif
