/* SPDX-License-Identifier: Apache-2.0 */
/* A line is built in a buffer that is used again and written under a mutex, so lines of different
 * threads never mix, even where a write stops half-way. */
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/timefmt.h"

#define VALUE_MAX 4096
#define ELLIPSIS "\xE2\x80\xA6"
#define REPLACEMENT "\xEF\xBF\xBD"
#define FULL_WAIT_MS 200 /* for the reader of a non-blocking descriptor */
#define KEEP_CAP 65536   /* a buffer that grew beyond this is given back */

struct log {
    pthread_mutex_t mutex; /* of all below it */
    struct buf line;
    uint64_t n_lost; /* lines that could not be written since the last that could */
    bool torn;       /* the last line was written in part: its end is missing */
    int fd;
    enum log_format format;
    enum log_level level;
};

static const char *const level_names[] = {
    [LOG_DEBUG] = "debug", [LOG_INFO] = "info", [LOG_WARN] = "warn", [LOG_ERROR] = "error"};
static const char *const format_names[] = {[LOG_LOGFMT] = "logfmt", [LOG_JSON] = "json"};

int log_new(int fd, enum log_format format, enum log_level level, struct log **ret)
{
    struct log *l = calloc(1, sizeof(*l));
    if (!l)
        return ERR_NOMEM;
    if (pthread_mutex_init(&l->mutex, NULL) != 0) {
        free(l);
        return ERR_NOMEM;
    }
    l->fd = fd;
    l->format = format;
    l->level = level;
    *ret = l;
    return 0;
}

void log_free(struct log *l)
{
    if (!l)
        return;
    pthread_mutex_destroy(&l->mutex);
    buf_fini(&l->line);
    free(l);
}

bool log_enabled(const struct log *l, enum log_level level)
{
    return l && level >= l->level;
}

/* Between quotes, for both formats: no byte can end the line, the value or steer a terminal. */
static void put_escaped(struct buf *b, struct str s)
{
    for (size_t i = 0; i < s.len;) {
        uint32_t c;
        size_t n = utf8_step((struct str){s.p + i, s.len - i}, &c);
        if (c == UTF8_BAD)
            buf_addz(b, REPLACEMENT);
        else if (c == '\n')
            buf_addz(b, "\\n");
        else if (c == '\r')
            buf_addz(b, "\\r");
        else if (c == '\t')
            buf_addz(b, "\\t");
        else if (utf8_is_control(c))
            buf_addf(b, "\\u%04x", (unsigned)c);
        else {
            if (c == '"' || c == '\\')
                buf_addc(b, '\\');
            buf_add(b, s.p + i, n);
        }
        i += n;
    }
}

static bool needs_quotes(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c <= ' ' || c >= 0x7F || c == '"' || c == '\\' || c == '=')
            return true;
    }
    return s.len == 0;
}

static void put_key(struct buf *b, enum log_format format, const char *key)
{
    if (format == LOG_JSON) {
        buf_addz(b, b->len > 0 ? ",\"" : "{\"");
        buf_addz(b, key);
        buf_addz(b, "\":");
    } else {
        if (b->len > 0)
            buf_addc(b, ' ');
        buf_addz(b, key);
        buf_addc(b, '=');
    }
}

static void put_text(struct buf *b, enum log_format format, const char *key, struct str s)
{
    if (!s.p)
        return;
    size_t len = utf8_cut(s, VALUE_MAX);
    struct str kept = {s.p, len};
    put_key(b, format, key);
    if (format == LOG_LOGFMT && len == s.len && !needs_quotes(s)) {
        buf_adds(b, s);
        return;
    }
    buf_addc(b, '"');
    put_escaped(b, kept);
    if (len < s.len)
        buf_addz(b, ELLIPSIS);
    buf_addc(b, '"');
}

static void put_int(struct buf *b, enum log_format format, const char *key, int64_t v)
{
    put_key(b, format, key);
    buf_addi(b, v);
}

static void build_line(struct log *l, enum log_level level, const char *event,
                       const struct log_field *fields, size_t n_fields, const char *msg)
{
    struct buf *b = &l->line;
    char time[TIME_TEXT_LEN + 1];
    time_format(clock_wall(), time);
    buf_clear(b);
    put_text(b, l->format, "time", str_from(time));
    put_text(b, l->format, "level", str_from(level_names[level]));
    put_text(b, l->format, "event", str_from(event));
    for (size_t i = 0; i < n_fields; i++) {
        const struct log_field *f = &fields[i];
        if (f->is_int)
            put_int(b, l->format, f->key, f->i);
        else
            put_text(b, l->format, f->key, f->s);
    }
    if (l->n_lost > 0)
        put_int(b, l->format, "lines_lost", (int64_t)l->n_lost);
    put_text(b, l->format, "msg", str_from(msg));
    buf_addz(b, l->format == LOG_JSON ? "}\n" : "\n");
}

/* One write() unless the descriptor takes less; if it is full, waits for at most wait_ms in all.
 * Returns how much was written. */
static size_t write_all(int fd, struct str s, int64_t wait_ms)
{
    size_t done = 0;
    mono_ms until = clock_mono() + wait_ms;
    while (done < s.len) {
        ssize_t n = write(fd, s.p + done, s.len - done);
        if (n > 0) {
            done += (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            mono_ms left = until - clock_mono();
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            if (left <= 0 || poll(&p, 1, (int)left) == 0)
                break;
        } else if (n == 0 || errno != EINTR) {
            break;
        }
    }
    return done;
}

static bool write_line(struct log *l)
{
    if (!buf_ok(&l->line))
        return false;
    /* Only the first line that meets a full descriptor waits: a stuck reader must not slow down
     * whoever logs. */
    int64_t wait_ms = l->n_lost > 0 ? 0 : FULL_WAIT_MS;
    if (l->torn && write_all(l->fd, STR("\n"), wait_ms) != 1)
        return false;
    size_t done = write_all(l->fd, buf_str(&l->line), wait_ms);
    l->torn = done > 0 && done < l->line.len;
    return done == l->line.len;
}

void log_event(struct log *l, enum log_level level, const char *event,
               const struct log_field *fields, size_t n_fields, const char *msg)
{
    if (!log_enabled(l, level))
        return;
    int saved_errno = errno;
    pthread_mutex_lock(&l->mutex);
    build_line(l, level, event, fields, n_fields, msg);
    l->n_lost = write_line(l) ? 0 : l->n_lost + 1;
    if (l->line.cap > KEEP_CAP)
        buf_fini(&l->line);
    pthread_mutex_unlock(&l->mutex);
    errno = saved_errno;
}

bool log_limit_pass(struct log_limit *rl, int64_t interval_ms, uint64_t *ret_suppressed)
{
    mono_ms now = clock_mono();
    if (rl->used && now - rl->last < interval_ms) {
        rl->suppressed++;
        return false;
    }
    *ret_suppressed = rl->suppressed;
    *rl = (struct log_limit){.last = now, .used = true};
    return true;
}

static int find_name(struct str s, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (str_eqz(s, names[i]))
            return (int)i;
    }
    return -1;
}

bool log_level_parse(struct str s, enum log_level *ret)
{
    int i = find_name(s, level_names, sizeof(level_names) / sizeof(level_names[0]));
    if (i >= 0)
        *ret = (enum log_level)i;
    return i >= 0;
}

bool log_format_parse(struct str s, enum log_format *ret)
{
    int i = find_name(s, format_names, sizeof(format_names) / sizeof(format_names[0]));
    if (i >= 0)
        *ret = (enum log_format)i;
    return i >= 0;
}
