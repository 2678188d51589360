/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file. What is refused is refused with the file's line; what is accepted and
 * printed is accepted again and the same, masked secrets aside. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "node/config_internal.h"
#include "tests/fuzz/fuzz.h"

struct loaded {
    struct config config;
    struct err err;
    char path[32];
    int rc;
};

/* From memory, by a name in /proc. */
static void load(struct str text, struct loaded *l)
{
    enum config_command command;
    int fd = memfd_create("jobflow.yaml", MFD_CLOEXEC);
    assert(fd >= 0 && write(fd, text.p, text.len) == (ssize_t)text.len);
    memset(&l->err, 0, sizeof(l->err));
    (void)snprintf(l->path, sizeof(l->path), "/proc/self/fd/%d", fd);
    char name[] = "jobflowd";
    char flag[] = "--config";
    char check[] = "--check-config";
    char *argv[] = {name, check, flag, l->path};
    l->rc = config_load(4, argv, NULL, &l->config, &command, &l->err);
    assert(l->rc != 0 || command == CONFIG_CHECK);
    close(fd);
}

static char *printed(const struct config *c, size_t *ret_len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, ret_len);
    assert(f);
    config_print(c, f);
    (void)fclose(f);
    assert(text && *ret_len > 0);
    return text;
}

/* "/proc/self/fd/3:17: …" somewhere in the text, with a line that there is. */
static void check_refusal(const struct loaded *l, struct str text)
{
    unsigned lines = 1;
    for (size_t i = 0; i < text.len; i++)
        lines += text.p[i] == '\n' || text.p[i] == '\r' || (uint8_t)text.p[i] >= 0x80;
    fuzz_clean_text("the reason", str_from(l->err.text));
    const char *at = strstr(l->err.text, l->path);
    unsigned line = 0;
    if (!at || sscanf(at + strlen(l->path), ":%u", &line) != 1 || line < 1 || line > lines + 1) {
        (void)fprintf(stderr, "no line, or not one of %u: %s\n", lines, l->err.text);
        abort();
    }
    assert(l->rc == ERR_INVALID && !l->config.store && !l->config.origins);
}

/* A value as it is printed. */
static void put_value(const struct config *c, size_t key, size_t shift, struct buf *dst)
{
    config_value_put(&config_keys[key], (const char *)c + config_keys[key].offset + shift, dst);
    buf_addc(dst, '\n');
}

static void put_all(const struct config *c, struct buf *dst)
{
    size_t first = config_first_policy_key();
    for (size_t i = 0; i < config_n_keys; i++)
        put_value(c, i, 0, dst);
    for (size_t i = 0; i < c->n_policies; i++) {
        buf_addz(dst, c->policies[i].name);
        for (size_t j = 0; j < CONFIG_POLICY_KEYS; j++)
            put_value(c, first + j, i * sizeof(c->policies[0]), dst);
    }
}

static void check_same(const struct config *a, const struct config *b)
{
    struct buf in_a = BUF_INIT;
    struct buf in_b = BUF_INIT;
    put_all(a, &in_a);
    put_all(b, &in_b);
    fuzz_same("what was read again", buf_str(&in_a), buf_str(&in_b));
    buf_fini(&in_a);
    buf_fini(&in_b);
}

/* Values are what their keys allow. */
static void check_ranges(const struct config *c)
{
    assert(c->n_policies >= 1 && c->n_policies <= CONFIG_MAX_POLICIES);
    assert(c->slack_ms > c->statement_timeout_ms && c->timeout_ms <= c->max_timeout_ms);
    assert(c->max_payload <= c->max_body && c->lane_limit <= c->max_tracked);
    for (size_t i = 0; i < c->n_policies; i++) {
        const struct retry_policy *p = &c->policies[i];
        assert(name_valid(str_from(p->name), TASK_POLICY_MAX));
        assert(p->backoff.initial_ms >= 1 && p->backoff.cap_ms >= p->backoff.initial_ms);
        assert(p->backoff.multiplier >= 1 && p->backoff.jitter >= 0 && p->backoff.jitter <= 1);
        assert(p->max_retry >= 0 && p->max_retry <= TASK_MAX_RETRY_MAX);
    }
    for (size_t i = 0; i < config_n_keys; i++) {
        const void *field = (const char *)c + config_keys[i].offset;
        if (config_keys[i].kind == KIND_STRING && *(char *const *)field)
            fuzz_clean_text(config_keys[i].name, str_from(*(char *const *)field));
    }
}

void fuzz_one(struct str input)
{
    struct loaded first;
    struct loaded again;
    load(input, &first);
    if (first.rc != 0) {
        check_refusal(&first, input);
        return;
    }
    size_t len;
    char *text = printed(&first.config, &len);
    check_ranges(&first.config);
    load((struct str){text, len}, &again);
    if (again.rc == 0) {
        check_same(&first.config, &again.config);
    } else if (!strstr(text, "***")) {
        (void)fprintf(stderr, "refused when read again: %s\n%s\n", again.err.text, text);
        abort();
    }
    free(text);
    config_fini(&first.config);
    config_fini(&again.config);
}
