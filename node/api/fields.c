/* SPDX-License-Identifier: Apache-2.0 */
#include "node/api/fields.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/timefmt.h"
#include "proto/task.h"

static const char *type_name(enum json_type type)
{
    static const char *const names[] = {
        [JSON_NULL] = "null",     [JSON_FALSE] = "false",   [JSON_TRUE] = "true",
        [JSON_NUMBER] = "number", [JSON_STRING] = "string", [JSON_ARRAY] = "array",
        [JSON_OBJECT] = "object",
    };
    return names[type];
}

static bool wrong_type(struct fields *f, const struct json_token *value, const char *wanted)
{
    return problem_set(f->problem, PROBLEM_INVALID_FIELD, f->name, "%s has to be %s, not %s",
                       f->name, wanted, type_name(value->type));
}

static bool unescape(struct fields *f, const struct json_token *value, struct str *ret)
{
    if (!value->has_escape) {
        *ret = json_plain(value);
        return true;
    }
    size_t from = f->text->len;
    assert(f->text->cap - from >= value->raw.len);
    if (!json_unescape(value, f->text))
        return problem_set(f->problem, PROBLEM_OVERLOADED, NULL, "out of memory");
    *ret = (struct str){f->text->data + from, f->text->len - from};
    return true;
}

static bool unknown_field(struct fields *f, struct str name, const struct field *table, size_t n)
{
    char allowed[320];
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        size_t name_len = strlen(table[i].name);
        assert(len + name_len + 2 < sizeof(allowed));
        memcpy(allowed + len, table[i].name, name_len);
        memcpy(allowed + len + name_len, ", ", 2);
        len += name_len + 2;
    }
    allowed[len - 2] = '\0';
    problem_set(f->problem, PROBLEM_UNKNOWN_FIELD, NULL, "there is no field \"%.*s\" here",
                (int)utf8_cut(name, 64), name.p);
    problem_field(f->problem, name);
    problem_hint(f->problem, "Fields are: %s.", allowed);
    return false;
}

static bool read_member(struct fields *f, const struct json_token *key, const struct field *table,
                        size_t n, uint32_t *seen)
{
    struct str name;
    if (!unescape(f, key, &name))
        return false;
    const struct json_token *value = key + 1;
    for (size_t i = 0; i < n; i++) {
        if (!str_eqz(name, table[i].name))
            continue;
        f->name = table[i].name;
        *seen |= UINT32_C(1) << i;
        if (value->type == JSON_NULL && !table[i].nullable) {
            problem_set(f->problem, PROBLEM_INVALID_FIELD, f->name, "%s may not be null", f->name);
            problem_hint(f->problem, "Leave the field out instead.");
            return false;
        }
        return table[i].read(f, value);
    }
    return unknown_field(f, name, table, n);
}

bool fields_read(struct fields *f, uint32_t obj, const struct field *table, size_t n)
{
    const struct json_token *tokens = f->doc->tokens;
    uint32_t index = obj + 1;
    uint32_t seen = 0;
    assert(n <= 32 && tokens[obj].type == JSON_OBJECT);
    for (uint32_t i = 0; i < tokens[obj].n; i++) {
        if (!read_member(f, &tokens[index], table, n, &seen))
            return false;
        index = tokens[index + 1].next;
    }
    for (size_t i = 0; i < n; i++) {
        if (table[i].required && !(seen & UINT32_C(1) << i))
            return problem_set(f->problem, PROBLEM_MISSING_FIELD, table[i].name, "%s is required",
                               table[i].name);
    }
    return true;
}

bool field_object(struct fields *f, const struct json_token *value, const struct field *table,
                  size_t n, void *ctx)
{
    struct fields inside = *f;
    char path[PROBLEM_FIELD_MAX];

    if (value->type != JSON_OBJECT)
        return wrong_type(f, value, "an object");
    inside.ctx = ctx;
    if (fields_read(&inside, (uint32_t)(value - f->doc->tokens), table, n))
        return true;
    if (f->problem->field[0]) {
        (void)snprintf(
            path, sizeof(path), "%s.%.*s", f->name,
            (int)utf8_cut(str_from(f->problem->field), sizeof(path) - strlen(f->name) - 2),
            f->problem->field);
        problem_field(f->problem, str_from(path));
    }
    return false;
}

bool field_string(struct fields *f, const struct json_token *value, struct str *ret)
{
    if (value->type != JSON_STRING)
        return wrong_type(f, value, "a string");
    return unescape(f, value, ret);
}

bool field_name(struct fields *f, const struct json_token *value, size_t max, struct str *ret)
{
    return field_string(f, value, ret) && check_name(f->problem, f->name, *ret, max);
}

bool field_int(struct fields *f, const struct json_token *value, int64_t min, int64_t max,
               int64_t *ret)
{
    if (value->type != JSON_NUMBER)
        return wrong_type(f, value, "a whole number");
    if (!json_to_i64(value, ret) || *ret < min || *ret > max)
        return problem_set(f->problem, PROBLEM_INVALID_FIELD, f->name,
                           "%s has to be a whole number from %lld to %lld", f->name, (long long)min,
                           (long long)max);
    return true;
}

bool field_duration(struct fields *f, const struct json_token *value, int64_t min_ms,
                    int64_t max_ms, int64_t *ret)
{
    struct str s;
    struct err err;
    if (value->type == JSON_NUMBER)
        s = value->raw;
    else if (value->type != JSON_STRING)
        return wrong_type(f, value, "a duration (text or seconds)");
    else if (!unescape(f, value, &s))
        return false;
    if (duration_parse(s, ret, &err)) {
        problem_set(f->problem, PROBLEM_INVALID_FIELD, f->name, "%s: %s", f->name, err.text);
        problem_hint(f->problem, "Such as \"30m\", \"1h30m\", \"PT30M\" or a number of seconds.");
        return false;
    }
    if (*ret < min_ms || *ret > max_ms) {
        char least[DURATION_TEXT_LEN + 1], most[DURATION_TEXT_LEN + 1];
        duration_format(min_ms, least);
        duration_format(max_ms, most);
        return problem_set(f->problem, PROBLEM_INVALID_FIELD, f->name, "%s has to be from %s to %s",
                           f->name, least, most);
    }
    return true;
}

bool field_time(struct fields *f, const struct json_token *value, wall_ms *ret)
{
    struct str s;
    if (value->type == JSON_STRING)
        return unescape(f, value, &s) && check_time(f->problem, f->name, s, ret);
    if (value->type != JSON_NUMBER)
        return wrong_type(f, value, "a time (RFC 3339 text or epoch milliseconds)");
    if (json_to_i64(value, ret))
        return check_time_range(f->problem, f->name, *ret);
    return problem_set(f->problem, PROBLEM_INVALID_FIELD, f->name,
                       "%s as a number has to be whole epoch milliseconds", f->name);
}

bool check_name(struct problem *p, const char *field, struct str s, size_t max)
{
    if (name_valid(s, max))
        return true;
    return problem_set(p, PROBLEM_INVALID_FIELD, field,
                       "%s has to be 1 to %zu characters out of A-Z a-z 0-9 . _ - and neither "
                       "\".\" nor \"..\"",
                       field, max);
}

bool check_biz_uuid(struct problem *p, const char *field, struct str s)
{
    if (s.len >= 1 && s.len <= TASK_BIZ_UUID_MAX && utf8_valid(s) && !utf8_has_control(s) &&
        !utf8_has_edge_space(s))
        return true;
    return problem_set(p, PROBLEM_INVALID_FIELD, field,
                       "%s has to be 1 to %d bytes of UTF-8 without control characters and "
                       "without white space at its ends",
                       field, TASK_BIZ_UUID_MAX);
}

bool check_time(struct problem *p, const char *field, struct str s, wall_ms *ret)
{
    struct err err;
    if (time_parse(s, ret, &err) == 0)
        return true;
    problem_set(p, PROBLEM_INVALID_FIELD, field, "%s: %s", field, err.text);
    problem_hint(p, "RFC 3339 with a zone, such as \"2026-01-31T12:00:00Z\", or epoch "
                    "milliseconds.");
    return false;
}

bool check_time_range(struct problem *p, const char *field, wall_ms t)
{
    if (t >= TIME_MIN && t <= TIME_MAX)
        return true;
    problem_set(p, PROBLEM_INVALID_FIELD, field,
                "%s has to lie within the years 0000 to 9999: epoch milliseconds from %lld to %lld",
                field, (long long)TIME_MIN, (long long)TIME_MAX);
    problem_hint(p, "A number means epoch milliseconds.");
    return false;
}

bool check_trace_id(struct problem *p, struct str s, int64_t *ret_id)
{
    *ret_id = trace_id_task(s);
    if (*ret_id > 0)
        return true;
    return problem_set(p, PROBLEM_INVALID_FIELD, "traceId",
                       "traceId has to be the %d lower-case hexadecimal digits that a submission "
                       "was answered with",
                       TRACE_ID_LEN);
}

/* The string that begins at `at`, without quotes; one that does not end reaches to the end. */
static struct str string_at(struct str text, size_t at)
{
    size_t from = ++at;
    while (at < text.len && text.p[at] != '"')
        at += text.p[at] == '\\' ? 2 : 1;
    return (struct str){text.p + from, (at < text.len ? at : text.len) - from};
}

struct str fields_locate(struct str text, size_t offset)
{
    struct str key = {0};
    unsigned depth = 0;
    bool wants_key = false;
    for (size_t i = 0; i < text.len && i <= offset; i++) {
        char c = text.p[i];
        if (c == '"') {
            struct str s = string_at(text, i);
            if (depth == 1 && wants_key)
                key = s;
            i += s.len + 1;
        } else if (c == '{' || c == '[') {
            wants_key = ++depth == 1 && c == '{';
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (c == ',' && depth == 1) {
            wants_key = true;
        } else if (c == ':' && depth == 1) {
            wants_key = false;
        }
    }
    return key;
}
