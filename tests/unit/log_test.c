/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/json.h"
#include "common/log.h"
#include "common/timefmt.h"

struct fixture {
    struct log *log;
    int fd;
    char text[65536];
};

static void setup(struct fixture *fx, enum log_format format, enum log_level level)
{
    *fx = (struct fixture){.fd = memfd_create("log", MFD_CLOEXEC)};
    assert_true(fx->fd >= 0);
    assert_int_equal(log_new(fx->fd, format, level, &fx->log), 0);
}

static void teardown(struct fixture *fx)
{
    log_free(fx->log);
    close(fx->fd);
}

/* All that was written so far, without the first line's time (checked here). */
static const char *content(struct fixture *fx, const char *prefix)
{
    ssize_t n = pread(fx->fd, fx->text, sizeof(fx->text) - 1, 0);
    assert_true(n >= 0);
    fx->text[n] = '\0';
    size_t skip = strlen(prefix);
    assert_memory_equal(fx->text, prefix, skip);
    wall_ms t;
    assert_int_equal(time_parse((struct str){fx->text + skip, TIME_TEXT_LEN}, &t, NULL), 0);
    assert_true(t <= clock_wall());
    return fx->text + skip + TIME_TEXT_LEN;
}

static void test_logfmt(void **state)
{
    (void)state;
    struct fixture fx;
    setup(&fx, LOG_LOGFMT, LOG_INFO);
    LOG(fx.log, LOG_INFO, "node.started", "Listening", F_Z("addr", "127.0.0.1:8080"),
        F_INT("n", -5), F_Z("absent", NULL), F_STR("empty", STR("")));
    assert_string_equal(content(&fx, "time="), " level=info event=node.started addr=127.0.0.1:8080"
                                               " n=-5 empty=\"\" msg=Listening\n");
    teardown(&fx);
}

static void test_logfmt_quoting(void **state)
{
    (void)state;
    struct fixture fx;
    setup(&fx, LOG_LOGFMT, LOG_DEBUG);
    LOG(fx.log, LOG_WARN, "a.b", "two words", F_Z("a", "x=y"), F_Z("b", "q\"q"), F_Z("c", "b\\b"),
        F_Z("d", "l\nl\r\t"), F_STR("e", STR("\0\x1B[31m\x7F")), F_Z("f", "\xE6\xB1\x89"),
        F_Z("g", "\xFF\xC2\x9B\xE2\x80\xA8"), F_Z("h", "a/b:c,d{}"));
    assert_string_equal(content(&fx, "time="),
                        " level=warn event=a.b a=\"x=y\" b=\"q\\\"q\" c=\"b\\\\b\""
                        " d=\"l\\nl\\r\\t\" e=\"\\u0000\\u001b[31m\\u007f\" f=\"\xE6\xB1\x89\""
                        " g=\"\xEF\xBF\xBD\\u009b\\u2028\" h=a/b:c,d{} msg=\"two words\"\n");
    teardown(&fx);
}

static void test_json(void **state)
{
    (void)state;
    struct fixture fx;
    setup(&fx, LOG_JSON, LOG_INFO);
    LOG(fx.log, LOG_ERROR, "task.failed", "It \"broke\"", F_INT("n", INT64_MIN),
        F_STR("bytes", STR("\0\xFF\n")), F_Z("absent", NULL));
    const char *rest = content(&fx, "{\"time\":\"");
    assert_string_equal(
        rest, "\",\"level\":\"error\",\"event\":\"task.failed\",\"n\":-922337203685477"
              "5808,\"bytes\":\"\\u0000\xEF\xBF\xBD\\n\",\"msg\":\"It \\\"broke\\\"\"}\n");
    teardown(&fx);
}

/* Any byte in a value gives one line of valid JSON that reads back, and one line of logfmt. */
static void test_any_bytes(void **state)
{
    (void)state;
    for (int c = 1; c < 256; c++) {
        char value[] = {'a', (char)c, 'b', '\0'};
        struct fixture fx;
        setup(&fx, LOG_JSON, LOG_INFO);
        LOG(fx.log, LOG_INFO, "a.b", NULL, F_Z("v", value));
        content(&fx, "{\"time\":\"");
        struct json_doc doc = JSON_DOC_INIT;
        struct buf b = BUF_INIT;
        assert_int_equal(json_parse(&doc, str_from(fx.text), 100, NULL), 0);
        assert_true(json_unescape(&doc.tokens[json_find(&doc, 0, "v")], &b));
        assert_true(str_eqz(buf_str(&b), c < 0x80 ? value
                                                  : "a\xEF\xBF\xBD"
                                                    "b"));
        buf_fini(&b);
        json_doc_fini(&doc);
        teardown(&fx);

        setup(&fx, LOG_LOGFMT, LOG_INFO);
        LOG(fx.log, LOG_INFO, "a.b", NULL, F_Z("v", value));
        content(&fx, "time=");
        assert_ptr_equal(strchr(fx.text, '\n'), fx.text + strlen(fx.text) - 1);
        teardown(&fx);
    }
}

static void test_long_values_are_cut(void **state)
{
    (void)state;
    static const enum log_format formats[] = {LOG_LOGFMT, LOG_JSON};
    for (int i = 0; i < 2; i++) {
        struct fixture fx;
        char value[10001];
        memset(value, 'x', 10000);
        memcpy(value + 4095, "\xE6\xB1\x89", 3); /* lies across the limit */
        value[10000] = '\0';
        setup(&fx, formats[i], LOG_INFO);
        LOG(fx.log, LOG_INFO, "a.b", NULL, F_Z("v", value), F_INT("n", 1));
        content(&fx, i ? "{\"time\":\"" : "time=");
        value[4095] = '\0';
        char *cut = strstr(fx.text, value);
        assert_non_null(cut);
        const char *expected = i ? "\xE2\x80\xA6\",\"n\":1}\n" : "\xE2\x80\xA6\" n=1\n";
        assert_string_equal(cut + 4095, expected);
        teardown(&fx);
    }
}

static void test_value_at_the_limit(void **state)
{
    (void)state;
    struct fixture fx;
    char value[4097];
    memset(value, 'x', 4096);
    value[4096] = '\0';
    setup(&fx, LOG_LOGFMT, LOG_INFO);
    LOG(fx.log, LOG_INFO, "a.b", NULL, F_Z("v", value));
    const char *rest = content(&fx, "time=");
    assert_string_equal(strstr(rest, " v=") + 3 + 4096, "\n");
    teardown(&fx);
}

static void test_levels(void **state)
{
    (void)state;
    struct fixture fx;
    setup(&fx, LOG_LOGFMT, LOG_WARN);
    assert_false(log_enabled(fx.log, LOG_DEBUG));
    assert_false(log_enabled(fx.log, LOG_INFO));
    assert_true(log_enabled(fx.log, LOG_WARN));
    assert_true(log_enabled(fx.log, LOG_ERROR));
    assert_false(log_enabled(NULL, LOG_ERROR));
    LOG(fx.log, LOG_INFO, "a.b", "not written");
    log_event(fx.log, LOG_INFO, "a.b", NULL, 0, "not written");
    log_event(NULL, LOG_ERROR, "a.b", NULL, 0, "nowhere");
    LOG(fx.log, LOG_WARN, "a.c", NULL);
    assert_string_equal(content(&fx, "time="), " level=warn event=a.c\n");
    teardown(&fx);
    log_free(NULL);
}

static void test_errno_is_kept(void **state)
{
    (void)state;
    struct fixture fx;
    setup(&fx, LOG_LOGFMT, LOG_INFO);
    close(fx.fd);
    errno = ENOSPC;
    LOG(fx.log, LOG_INFO, "a.b", NULL);
    assert_int_equal(errno, ENOSPC);
    log_free(fx.log);
}

#define N_THREADS 4
#define N_LINES 500

static void *write_lines(void *arg)
{
    struct fixture *fx = arg;
    char value[600];
    for (int i = 0; i < N_LINES; i++) {
        size_t len = (size_t)(i % 599);
        memset(value, 'v', len);
        value[len] = '\0';
        LOG(fx->log, LOG_INFO, "a.b", NULL, F_INT("n", i), F_Z("v", value), F_INT("end", i));
    }
    return NULL;
}

static void check_whole_line(const char *line)
{
    int n;
    int end;
    assert_int_equal(sscanf(line, "time=%*s level=info event=a.b n=%d v=%*s end=%d", &n, &end), 2);
    assert_int_equal(n, end);
}

static void test_threads_do_not_mix_lines(void **state)
{
    (void)state;
    struct fixture fx;
    pthread_t threads[N_THREADS];
    setup(&fx, LOG_LOGFMT, LOG_INFO);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, &fx), 0);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    lseek(fx.fd, 0, SEEK_SET);
    FILE *f = fdopen(dup(fx.fd), "r");
    assert_non_null(f);
    char line[1024];
    int n = 0;
    for (; fgets(line, sizeof(line), f); n++)
        check_whole_line(line);
    assert_int_equal(n, N_THREADS * N_LINES);
    fclose(f);
    teardown(&fx);
}

/* Reads what a pipe holds, and no more. */
static void drain(int fd, struct buf *b)
{
    ssize_t n;
    while ((n = read(fd, buf_room(b, 65536), 65536)) > 0)
        b->len += (size_t)n;
    assert_true(n < 0 && errno == EAGAIN);
}

/* A reader that stops: lines are dropped and counted; when it goes on, the next line begins on a
 * line of its own. */
static void test_full_pipe(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, 8192) >= 0);
    struct log *l;
    assert_int_equal(log_new(fds[1], LOG_LOGFMT, LOG_INFO, &l), 0);
    /* A line longer than the pipe, so that its write stops half-way. */
    char value[4001];
    memset(value, 'x', 4000);
    value[4000] = '\0';
    for (int i = 0; i < 6; i++)
        LOG(l, LOG_INFO, "a.b", NULL, F_Z("u", value), F_Z("v", value), F_Z("w", value));
    struct buf b = BUF_INIT;
    drain(fds[0], &b);
    assert_int_equal(b.len, 8192);
    assert_null(memchr(b.data, '\n', b.len));
    buf_clear(&b);

    LOG(l, LOG_INFO, "a.c", "again");
    LOG(l, LOG_INFO, "a.d", "again");
    drain(fds[0], &b);
    buf_addc(&b, '\0');
    assert_memory_equal(b.data, "\ntime=", 6);
    assert_non_null(strstr(b.data, " event=a.c lines_lost=6 msg=again\n"));
    assert_non_null(strstr(b.data, " event=a.d msg=again\n"));
    buf_fini(&b);
    log_free(l);
    close(fds[0]);
    close(fds[1]);
}

static void test_limit(void **state)
{
    (void)state;
    struct log_limit rl = {0};
    uint64_t suppressed = 99;
    assert_true(log_limit_pass(&rl, INT64_MAX, &suppressed));
    assert_int_equal(suppressed, 0);
    suppressed = 99;
    for (int i = 0; i < 5; i++)
        assert_false(log_limit_pass(&rl, INT64_MAX, &suppressed));
    assert_int_equal(suppressed, 99);
    assert_true(log_limit_pass(&rl, 0, &suppressed));
    assert_int_equal(suppressed, 5);
    assert_true(log_limit_pass(&rl, 0, &suppressed));
    assert_int_equal(suppressed, 0);
}

static void test_names(void **state)
{
    (void)state;
    enum log_level level = LOG_DEBUG;
    enum log_format format = LOG_LOGFMT;
    assert_true(log_level_parse(STR("error"), &level));
    assert_int_equal(level, LOG_ERROR);
    assert_true(log_level_parse(STR("debug"), &level));
    assert_int_equal(level, LOG_DEBUG);
    assert_true(log_level_parse(STR("warn"), &level));
    assert_int_equal(level, LOG_WARN);
    assert_false(log_level_parse(STR("WARN"), &level));
    assert_false(log_level_parse(STR("warning"), &level));
    assert_false(log_level_parse(STR(""), &level));
    assert_int_equal(level, LOG_WARN);
    assert_true(log_format_parse(STR("json"), &format));
    assert_int_equal(format, LOG_JSON);
    assert_true(log_format_parse(STR("logfmt"), &format));
    assert_int_equal(format, LOG_LOGFMT);
    assert_false(log_format_parse(STR("xml"), &format));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logfmt),
        cmocka_unit_test(test_logfmt_quoting),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_long_values_are_cut),
        cmocka_unit_test(test_value_at_the_limit),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_errno_is_kept),
        cmocka_unit_test(test_threads_do_not_mix_lines),
        cmocka_unit_test(test_full_pipe),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
