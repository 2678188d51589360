/* SPDX-License-Identifier: Apache-2.0 */
/* The one table of error codes, by what the caller can do about them, and the error text that a
 * person reads. Fallible functions return 0 or one of these negative codes. */
#ifndef JF_COMMON_ERR_H
#define JF_COMMON_ERR_H

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

enum err_code {
    ERR_NOMEM = -1,       /* no memory; the operation had no effect */
    ERR_INVALID = -2,     /* the input is wrong; repeating it cannot help */
    ERR_NOT_FOUND = -3,   /* the thing named does not exist */
    ERR_EXISTS = -4,      /* the thing to create exists already */
    ERR_CONFLICT = -5,    /* the thing is in a state that forbids this */
    ERR_BUSY = -6,        /* a bounded resource is full now; try again later */
    ERR_TIMEOUT = -7,     /* a limit of time ran out; the effect is unknown */
    ERR_CANCELLED = -8,   /* given up on the caller's own request */
    ERR_UNAVAILABLE = -9, /* the other side cannot be reached or refuses work now */
    ERR_PROTOCOL = -10,   /* the other side said something that its protocol does not allow */
    ERR_CORRUPT = -11,    /* stored data breaks its own rules */
    ERR_IO = -12,         /* the operating system refused */
    ERR_TOO_BIG = -13,    /* a limit of size was passed */
    ERR_SHUTDOWN = -14,   /* the node is stopping */
};

/* A text for a person. Zero-initialise it; it never owns memory. */
struct err {
    char text[320];
};

/* Sets the text and returns `code`, so that `return err_set(err, ERR_INVALID, …)` reads well.
 * `err` may be NULL. A longer text is cut on a character boundary. */
int err_set(struct err *err, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Puts "<prefix>: " before the text: once per layer, on the way up. `err` may be NULL. */
void err_wrap(struct err *err, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A short static name of the code, such as "unavailable". */
const char *err_name(int code);

#endif
