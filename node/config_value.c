/* SPDX-License-Identifier: Apache-2.0 */
/* Values as text, both ways. */
#include "node/config_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/timefmt.h"

struct size_unit {
    const char *name;
    uint64_t bytes;
};
static const struct size_unit size_units[] = {
    {"GiB", UINT64_C(1) << 30}, {"MiB", UINT64_C(1) << 20}, {"KiB", UINT64_C(1) << 10}, {"B", 1}};
#define N_SIZE_UNITS (sizeof(size_units) / sizeof(size_units[0]))

#define MAX_DECIMALS 20 /* of a number with a fraction, read and written */

/* A limit or value in the form in which the key is written. */
static void put_number(const struct config_key *k, double v, struct buf *b)
{
    if (k->kind == KIND_DURATION) {
        char text[DURATION_TEXT_LEN + 1];
        duration_format((int64_t)v, text);
        buf_addz(b, text);
    } else if (k->kind == KIND_SIZE) {
        uint64_t bytes = (uint64_t)v;
        size_t u = 0;
        while (bytes % size_units[u].bytes != 0)
            u++;
        if (u == N_SIZE_UNITS - 1)
            buf_addi(b, (int64_t)bytes);
        else
            buf_addf(b, "%lld%s", (long long)(bytes / size_units[u].bytes), size_units[u].name);
    } else if (k->kind == KIND_DOUBLE) {
        char text[32];
        int decimals = 0;
        do
            snprintf(text, sizeof(text), "%.*f", decimals++, v);
        while (decimals <= MAX_DECIMALS && strtod(text, NULL) != v);
        buf_addz(b, text);
    } else {
        buf_addi(b, (int64_t)v);
    }
}

static bool parse_size(struct str s, double *ret)
{
    size_t digits = 0;
    while (digits < s.len && s.p[digits] >= '0' && s.p[digits] <= '9')
        digits++;
    struct str unit = {s.p + digits, s.len - digits};
    int64_t n;
    if (!str_to_i64((struct str){s.p, digits}, &n))
        return false;
    if (unit.len == 0) {
        *ret = (double)n;
        return true;
    }
    for (size_t i = 0; i < N_SIZE_UNITS; i++) {
        if (str_eqz(unit, size_units[i].name)) {
            *ret = (double)n * (double)size_units[i].bytes;
            return true;
        }
    }
    return false;
}

static bool parse_double(struct str s, double *ret)
{
    char text[32];
    const char *point = s.len > 0 ? memchr(s.p, '.', s.len) : NULL;
    size_t decimals = point ? (size_t)(s.p + s.len - point) - 1 : 0;
    bool plain = s.len > 0 && s.len < sizeof(text) && decimals <= MAX_DECIMALS;
    for (size_t i = 0; plain && i < s.len; i++)
        plain = (s.p[i] >= '0' && s.p[i] <= '9') || s.p[i] == '.';
    if (!plain)
        return false;
    memcpy(text, s.p, s.len);
    text[s.len] = '\0';
    char *end;
    double v = strtod(text, &end);
    if (*end != '\0' || end == text)
        return false;
    *ret = v;
    return true;
}

static int parse_number(const struct config_key *k, struct str text, double *ret, struct err *err)
{
    const char *expected = "a whole number";
    int64_t whole = 0;
    bool ok;
    if (k->kind == KIND_DURATION) {
        ok = duration_parse(text, &whole, NULL) == 0;
        expected = "a duration such as 500ms, 30s, 5m, 1h30m or 7d";
        *ret = (double)whole;
    } else if (k->kind == KIND_SIZE) {
        ok = parse_size(text, ret);
        expected = "a size such as 65536, 64KiB, 8MiB or 1GiB";
    } else if (k->kind == KIND_DOUBLE) {
        ok = parse_double(text, ret);
        expected = "a number such as 2 or 0.5";
    } else {
        ok = str_to_i64(text, &whole);
        *ret = (double)whole;
    }
    if (!ok)
        return err_set(err, ERR_INVALID, "expected %s", expected);
    return 0;
}

static void store_number(const struct config_key *k, double v, void *field)
{
    switch (k->kind) {
    case KIND_DURATION:
        *(int64_t *)field = (int64_t)v;
        break;
    case KIND_SIZE:
        *(size_t *)field = (size_t)v;
        break;
    case KIND_U32:
        *(uint32_t *)field = (uint32_t)v;
        break;
    case KIND_I32:
        *(int32_t *)field = (int32_t)v;
        break;
    default:
        assert(k->kind == KIND_DOUBLE);
        *(double *)field = v;
    }
}

static int set_number(const struct config_key *k, struct str text, void *field, struct err *err)
{
    double v = 0;
    int rc = parse_number(k, text, &v, err);
    if (rc != 0)
        return rc;
    if (v >= k->min && v <= k->max) {
        store_number(k, v, field);
        return 0;
    }
    struct buf limits = BUF_INIT;
    put_number(k, k->min, &limits);
    buf_addz(&limits, " to ");
    put_number(k, k->max, &limits);
    rc = err_set(err, ERR_INVALID, "out of range: " STR_FMT " is allowed",
                 STR_ARG(buf_str(&limits)));
    buf_fini(&limits);
    return rc;
}

/* U+FFFE or U+FFFF, which no YAML file can hold: the value could not be printed. */
static bool has_noncharacter(struct str s)
{
    for (size_t i = 0; i < s.len;) {
        uint32_t c;
        i += utf8_step((struct str){s.p + i, s.len - i}, &c);
        if (c == 0xFFFE || c == 0xFFFF)
            return true;
    }
    return false;
}

static int set_string(const struct config_key *k, struct str text, char **field, struct err *err)
{
    if (text.len > 0) {
        if (!utf8_valid(text) || utf8_has_control(text) || has_noncharacter(text))
            return err_set(err, ERR_INVALID, "expected UTF-8 without control characters");
        int rc = k->check ? k->check(text, err) : 0;
        if (rc != 0)
            return rc;
    }
    char *copy = NULL;
    if (text.len > 0) {
        copy = strndup(text.p, text.len);
        if (!copy)
            return err_set(err, ERR_NOMEM, "out of memory");
    }
    free(*field);
    *field = copy;
    return 0;
}

static int set_any(const struct config_key *k, struct str text, void *field, struct err *err)
{
    switch (k->kind) {
    case KIND_STRING:
        return set_string(k, text, field, err);
    case KIND_BOOL:
        if (!str_eqz(text, "true") && !str_eqz(text, "false"))
            return err_set(err, ERR_INVALID, "expected true or false");
        *(bool *)field = str_eqz(text, "true");
        return 0;
    case KIND_LOG_FORMAT:
        if (!log_format_parse(text, field))
            return err_set(err, ERR_INVALID, "expected logfmt or json");
        return 0;
    case KIND_LOG_LEVEL:
        if (!log_level_parse(text, field))
            return err_set(err, ERR_INVALID, "expected debug, info, warn or error");
        return 0;
    default:
        return set_number(k, text, field, err);
    }
}

int config_value_set(const struct config_key *k, struct str text, void *field, struct err *err)
{
    if (text.len == 0 && k->preset)
        return err_set(err, ERR_INVALID, "%s needs a value", k->name);
    int rc = set_any(k, text, field, err);
    if (rc != ERR_INVALID)
        return rc;
    if (k->secret || k->url) {
        err_wrap(err, "%s", k->name);
    } else {
        char shown[64];
        utf8_clean(shown, sizeof(shown), text);
        err_wrap(err, "%s: \"%s\"", k->name, shown);
    }
    return rc;
}

static const char *const secret_words[] = {"password", "secret", "token", "key"};

static bool is_secret_parameter(struct str name)
{
    for (size_t i = 0; i < sizeof(secret_words) / sizeof(secret_words[0]); i++) {
        if (memmem(name.p, name.len, secret_words[i], strlen(secret_words[i])))
            return true;
    }
    return false;
}

/* "a=1&password=x" → "a=1&password=***". */
static void mask_query(struct str query, struct buf *dst)
{
    while (query.len > 0) {
        const char *amp = memchr(query.p, '&', query.len);
        size_t len = amp ? (size_t)(amp - query.p) : query.len;
        const char *eq = memchr(query.p, '=', len);
        if (eq && is_secret_parameter((struct str){query.p, (size_t)(eq - query.p)})) {
            buf_add(dst, query.p, (size_t)(eq - query.p) + 1);
            buf_addz(dst, "***");
        } else {
            buf_add(dst, query.p, len);
        }
        if (amp)
            buf_addc(dst, '&');
        query.p += len + (amp ? 1 : 0);
        query.len -= len + (amp ? 1 : 0);
    }
}

void config_mask_url(struct str url, struct buf *dst)
{
    const char *question = memchr(url.p, '?', url.len);
    size_t end = question ? (size_t)(question - url.p) : url.len;
    const char *sep = memmem(url.p, end, "://", 3);
    size_t start = sep ? (size_t)(sep - url.p) + 3 : 0;
    /* A password may hold anything but must escape these; the last @ ends it even if it does not.
     */
    const char *at = sep ? memrchr(url.p + start, '@', end - start) : NULL;
    const char *colon = at ? memchr(url.p + start, ':', (size_t)(at - url.p) - start) : NULL;
    if (colon) {
        buf_add(dst, url.p, (size_t)(colon - url.p) + 1);
        buf_addz(dst, "***");
        buf_add(dst, at, (size_t)(url.p + end - at));
    } else {
        buf_add(dst, url.p, end);
    }
    if (question) {
        buf_addc(dst, '?');
        mask_query((struct str){question + 1, url.len - end - 1}, dst);
    }
}

static void put_string(const struct config_key *k, const char *value, struct buf *dst)
{
    struct buf masked = BUF_INIT;
    if (!value) {
        buf_addz(dst, "null");
    } else if (k->secret) {
        buf_addz(dst, "\"***\"");
    } else if (k->url) {
        config_mask_url(str_from(value), &masked);
        json_put_string(dst, buf_str(&masked)); /* a JSON string is a YAML string */
    } else {
        json_put_string(dst, str_from(value));
    }
    dst->failed = dst->failed || masked.failed;
    buf_fini(&masked);
}

void config_value_put(const struct config_key *k, const void *field, struct buf *dst)
{
    switch (k->kind) {
    case KIND_STRING:
        put_string(k, *(char *const *)field, dst);
        break;
    case KIND_BOOL:
        buf_addz(dst, *(const bool *)field ? "true" : "false");
        break;
    case KIND_LOG_FORMAT:
        buf_addz(dst, *(const enum log_format *)field == LOG_JSON ? "json" : "logfmt");
        break;
    case KIND_LOG_LEVEL: {
        static const char *const names[] = {"debug", "info", "warn", "error"};
        buf_addz(dst, names[*(const enum log_level *)field]);
        break;
    }
    case KIND_DURATION:
        put_number(k, (double)*(const int64_t *)field, dst);
        break;
    case KIND_SIZE:
        put_number(k, (double)*(const size_t *)field, dst);
        break;
    case KIND_U32:
        put_number(k, *(const uint32_t *)field, dst);
        break;
    case KIND_I32:
        put_number(k, *(const int32_t *)field, dst);
        break;
    case KIND_DOUBLE:
        put_number(k, *(const double *)field, dst);
        break;
    }
}
