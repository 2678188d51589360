/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/json_oracle.h"

#include <jansson.h>
#include <string.h>

/* Integers as reals: beyond 64 bits it would refuse them. */
#define FLAGS (JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL)

void oracle_put_double(struct buf *dst, double v)
{
    buf_addf(dst, "d%.17g ", v == 0 ? 0.0 : v); /* without the sign of a zero */
}

void oracle_put_string(struct buf *dst, struct str s)
{
    buf_addf(dst, "s%zu:", s.len);
    buf_adds(dst, s);
}

void oracle_put_open(struct buf *dst, char bracket, size_t n)
{
    buf_addf(dst, "%c%zu ", bracket, n);
}

static void put(struct buf *dst, json_t *v);

static void put_object(struct buf *dst, json_t *object)
{
    const char *key;
    json_t *value;
    oracle_put_open(dst, '{', json_object_size(object));
    json_object_foreach(object, key, value)
    {
        oracle_put_string(dst, str_from(key));
        put(dst, value);
    }
}

static void put_array(struct buf *dst, json_t *array)
{
    oracle_put_open(dst, '[', json_array_size(array));
    for (size_t i = 0; i < json_array_size(array); i++)
        put(dst, json_array_get(array, i));
}

static void put(struct buf *dst, json_t *v)
{
    if (json_is_object(v))
        put_object(dst, v);
    else if (json_is_array(v))
        put_array(dst, v);
    else if (json_is_string(v))
        oracle_put_string(dst, (struct str){json_string_value(v), json_string_length(v)});
    else if (json_is_number(v))
        oracle_put_double(dst, json_number_value(v));
    else
        buf_addc(dst, json_is_true(v) ? 't' : json_is_false(v) ? 'f' : 'n');
}

static json_t *load(struct str text, enum oracle_opinion *ret)
{
    json_error_t error;
    *ret = ORACLE_REFUSES;
    if (text.len > 0 && memchr(text.p, '\0', text.len)) /* this library passes over some of them */
        return NULL;
    json_t *root = json_loadb(text.p, text.len, FLAGS, &error);
    enum json_error_code code = root ? json_error_unknown : json_error_code(&error);
    bool is_limit = code == json_error_stack_overflow || code == json_error_numeric_overflow ||
                    code == json_error_out_of_memory;
    *ret = root ? ORACLE_ACCEPTS : is_limit ? ORACLE_NONE : ORACLE_REFUSES;
    return root;
}

enum oracle_opinion oracle_read(struct str text, struct buf *dst)
{
    enum oracle_opinion opinion;
    json_t *root = load(text, &opinion);
    if (root && dst)
        put(dst, root);
    json_decref(root);
    return opinion;
}

enum oracle_member oracle_root_member(struct str text, const char *key)
{
    enum oracle_opinion opinion;
    json_t *root = load(text, &opinion);
    enum oracle_member member = MEMBER_NO_OBJECT;
    if (json_is_object(root)) {
        json_t *value = json_object_get(root, key);
        member = !value                 ? MEMBER_ABSENT
                 : json_is_true(value)  ? MEMBER_TRUE
                 : json_is_false(value) ? MEMBER_FALSE
                                        : MEMBER_OTHER;
    }
    json_decref(root);
    return member;
}
