/* SPDX-License-Identifier: Apache-2.0 */
#include "common/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/str.h"

/* Formats into dst and returns the length, cut on a character boundary. */
static size_t format_cut(char *dst, size_t cap, const char *fmt, va_list args)
{
    int n = vsnprintf(dst, cap, fmt, args);
    if (n < 0) {
        dst[0] = '\0';
        return 0;
    }
    if ((size_t)n < cap)
        return (size_t)n;
    size_t len = utf8_cut((struct str){dst, cap - 1}, cap - 1);
    dst[len] = '\0';
    return len;
}

int err_set(struct err *err, int code, const char *fmt, ...)
{
    if (!err)
        return code;
    /* Not straight into err->text: the arguments may point into it. */
    char text[sizeof(err->text)];
    va_list args;
    va_start(args, fmt);
    size_t len = format_cut(text, sizeof(text), fmt, args);
    va_end(args);
    memcpy(err->text, text, len + 1);
    return code;
}

void err_wrap(struct err *err, const char *fmt, ...)
{
    if (!err)
        return;
    char prefix[sizeof(err->text)];
    va_list args;
    va_start(args, fmt);
    format_cut(prefix, sizeof(prefix), fmt, args);
    va_end(args);
    err_set(err, 0, "%s: %s", prefix, err->text);
}

const char *err_name(int code)
{
    static const char *const names[] = {
        [0] = "ok",
        [-ERR_NOMEM] = "out of memory",
        [-ERR_INVALID] = "invalid",
        [-ERR_NOT_FOUND] = "not found",
        [-ERR_EXISTS] = "exists",
        [-ERR_CONFLICT] = "conflict",
        [-ERR_BUSY] = "busy",
        [-ERR_TIMEOUT] = "timeout",
        [-ERR_CANCELLED] = "cancelled",
        [-ERR_UNAVAILABLE] = "unavailable",
        [-ERR_PROTOCOL] = "protocol",
        [-ERR_CORRUPT] = "corrupt",
        [-ERR_IO] = "io",
        [-ERR_TOO_BIG] = "too big",
        [-ERR_SHUTDOWN] = "shutting down",
    };
    const int n = sizeof(names) / sizeof(names[0]);
    if (code > 0 || code <= -n)
        return "unknown";
    return names[-code];
}
