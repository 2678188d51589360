/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/json_scan.h"

#include <assert.h>
#include <string.h>

#include "tests/fuzz/json_oracle.h"

static void skip(struct str *s, size_t n)
{
    assert(n <= s->len);
    s->p += n;
    s->len -= n;
}

static void skip_space(struct str *s)
{
    while (s->len > 0 && strchr(" \t\r\n", *s->p))
        skip(s, 1);
}

static size_t string_len(struct str s)
{
    size_t i = 1;
    while (s.p[i] != '"')
        i += s.p[i] == '\\' ? 2 : 1;
    return i + 1;
}

static size_t container_len(struct str s)
{
    size_t depth = 0;
    size_t i = 0;
    do {
        if (s.p[i] == '"') {
            i += string_len((struct str){s.p + i, s.len - i});
            continue;
        }
        depth += s.p[i] == '{' || s.p[i] == '[';
        depth -= s.p[i] == '}' || s.p[i] == ']';
        i++;
    } while (depth > 0);
    return i;
}

/* Takes the value at the front, and the space behind it. */
static struct str take_value(struct str *s)
{
    struct str value = {s->p, 0};
    assert(s->len > 0);
    if (*s->p == '"')
        value.len = string_len(*s);
    else if (*s->p == '{' || *s->p == '[')
        value.len = container_len(*s);
    else
        while (value.len < s->len && !strchr(",]} \t\r\n", s->p[value.len]))
            value.len++;
    skip(s, value.len);
    skip_space(s);
    return value;
}

struct str scan_member(struct str object, const char *key)
{
    skip_space(&object);
    if (object.len == 0 || *object.p != '{')
        return (struct str){0};
    skip(&object, 1);
    skip_space(&object);
    while (*object.p == '"') {
        struct str name = take_value(&object);
        skip(&object, 1); /* the colon */
        skip_space(&object);
        struct str value = take_value(&object);
        if (scan_is_text(name, str_from(key)))
            return value;
        skip(&object, *object.p == ',' ? 1 : 0);
        skip_space(&object);
    }
    return (struct str){0};
}

bool scan_next(struct str *rest, struct str *ret)
{
    skip(rest, 1); /* the bracket or the comma */
    skip_space(rest);
    if (rest->len == 0 || *rest->p == ']')
        return false;
    *ret = take_value(rest);
    return true;
}

bool scan_is_text(struct str value, struct str text)
{
    struct buf wanted = BUF_INIT;
    struct buf read = BUF_INIT;
    oracle_put_string(&wanted, text);
    bool same = value.len >= text.len && oracle_read(value, &read) == ORACLE_ACCEPTS &&
                str_eq(buf_str(&wanted), buf_str(&read));
    buf_fini(&wanted);
    buf_fini(&read);
    return same;
}
