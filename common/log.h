/* SPDX-License-Identifier: Apache-2.0 */
/* Structured log: one line per event, logfmt or JSON, written to a file descriptor with one
 * write(). Lower layers return errors; only the top layer (node/, the command's main) logs. */
#ifndef JF_COMMON_LOG_H
#define JF_COMMON_LOG_H

#include "common/clock.h"
#include "common/err.h"
#include "common/str.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_LOGFMT, LOG_JSON };

struct log; /* thread safe */

/* Errors: ERR_NOMEM. `fd` stays the caller's. */
MUST_CHECK int log_new(int fd, enum log_format format, enum log_level level, struct log **ret);
void log_free(struct log *l);
bool log_enabled(const struct log *l, enum log_level level);

/* One field. Build with F_STR, F_Z, F_INT; a value that is absent (NULL) is left out. */
struct log_field {
    const char *key;
    struct str s;
    int64_t i;
    bool is_int;
};
#define F_STR(k, v) ((struct log_field){.key = (k), .s = (v)})
#define F_Z(k, v) ((struct log_field){.key = (k), .s = str_from(v)})
#define F_INT(k, v) ((struct log_field){.key = (k), .i = (v), .is_int = true})

/* Writes time, level, event ("task.delivered": noun.verb, stable, for machines), the fields, then
 * msg for people (may be NULL). l may be NULL: does nothing. Values may be any bytes: control
 * characters are escaped, ill-formed UTF-8 is replaced, and what is beyond 4 KiB is cut. Keys are
 * literals of ours: [a-z0-9_]. Keeps errno. A line that cannot be written is dropped and counted:
 * the next one that can be carries the field lines_lost. */
void log_event(struct log *l, enum log_level level, const char *event,
               const struct log_field *fields, size_t n_fields, const char *msg);

#define LOG(l, level, event, msg, ...)                                                             \
    do {                                                                                           \
        if (log_enabled((l), (level))) {                                                           \
            const struct log_field log_fields_[] = {__VA_ARGS__};                                  \
            log_event((l), (level), (event), log_fields_,                                          \
                      sizeof(log_fields_) / sizeof(log_fields_[0]), (msg));                        \
        }                                                                                          \
    } while (0)

/* Rate limit for repeats: lets one through per interval and counts the rest. Zero-initialise; for
 * one thread. Returns true when the line should be written, and sets *ret_suppressed to how many
 * were left out since the last one. */
struct log_limit {
    mono_ms last;
    bool used;
    uint64_t suppressed;
};
bool log_limit_pass(struct log_limit *rl, int64_t interval_ms, uint64_t *ret_suppressed);

/* "debug", "info", "warn", "error"; "logfmt", "json". Return false when unknown. */
bool log_level_parse(struct str s, enum log_level *ret);
bool log_format_parse(struct str s, enum log_format *ret);

#endif
