/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the members of a JSON object under strict rules: unknown names, wrong types and null are
 * refused, and the problem names the field. */
#ifndef JF_API_FIELDS_H
#define JF_API_FIELDS_H

#include "common/clock.h"
#include "common/json.h"
#include "node/api/problem.h"

/* What readers work on. Strings that they return point into the document's text or into `text`. */
struct fields {
    const struct json_doc *doc;
    struct buf *text;        /* for unescaped strings; has room for all of them */
    struct problem *problem; /* filled by the reader that returns false */
    const char *name;        /* of the member being read */
    void *ctx;               /* where the values go */
};

typedef bool field_reader(struct fields *f, const struct json_token *value);

struct field {
    const char *name;
    field_reader *read;
    bool required;
    bool nullable;
};

/* Reads the object at token `obj`; n <= 32. */
bool fields_read(struct fields *f, uint32_t obj, const struct field *table, size_t n);

/* An object inside: its members are read by the table with `ctx` as their ctx; a problem with one
 * of them names "<field>.<member>". */
bool field_object(struct fields *f, const struct json_token *value, const struct field *table,
                  size_t n, void *ctx);
bool field_string(struct fields *f, const struct json_token *value, struct str *ret);
/* As name_valid has it. */
bool field_name(struct fields *f, const struct json_token *value, size_t max, struct str *ret);
bool field_int(struct fields *f, const struct json_token *value, int64_t min, int64_t max,
               int64_t *ret);
/* A text such as "1h30m", or a number of seconds. */
bool field_duration(struct fields *f, const struct json_token *value, int64_t min_ms,
                    int64_t max_ms, int64_t *ret);
/* RFC 3339, or an integer of epoch milliseconds; from TIME_MIN to TIME_MAX. */
bool field_time(struct fields *f, const struct json_token *value, wall_ms *ret);

/* The rules of a name or a bizUuid that comes as text; `field` is what the problem names. */
bool check_name(struct problem *p, const char *field, struct str s, size_t max);
bool check_biz_uuid(struct problem *p, const char *field, struct str s);
bool check_time(struct problem *p, const char *field, struct str s, wall_ms *ret);
bool check_time_range(struct problem *p, const char *field, wall_ms t);
bool check_trace_id(struct problem *p, struct str s, int64_t *ret_id);

/* The name of the top-level member that the byte at `offset` belongs to, as it stands in the text;
 * absent when there is none. What stands before `offset` is well-formed so far. */
struct str fields_locate(struct str text, size_t offset);

#endif
