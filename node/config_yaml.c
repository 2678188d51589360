/* SPDX-License-Identifier: Apache-2.0 */
/* The file: sections of keys, and `policies`, whose sections have names of their own. Everything
 * that is not exactly that is refused with its line; depth and size are bounded by the shape. */
#include "node/config_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#define MAX_FILE_BYTES (1024 * 1024)

struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; deleted by the next step */
    struct config *config;
    struct err *err;
    unsigned section_lines[CONFIG_MAX_KEYS]; /* by the section's first key */
    unsigned policy_lines[CONFIG_MAX_POLICIES];
};

static unsigned line_of(const struct reader *r)
{
    return (unsigned)r->event.start_mark.line + 1;
}

static int refuse(struct reader *r, unsigned line, const char *fmt, ...) PRINTF_LIKE(3, 4);
static int refuse(struct reader *r, unsigned line, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return err_set(r->err, ERR_INVALID, "%s:%u: %s", r->config->origins->file, line, text);
}

static int next(struct reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        memset(&r->event, 0, sizeof(r->event));
        if (r->parser.error == YAML_MEMORY_ERROR)
            return err_set(r->err, ERR_NOMEM, "out of memory");
        return refuse(r, (unsigned)r->parser.problem_mark.line + 1, "not YAML: %s",
                      r->parser.problem ? r->parser.problem : "unreadable");
    }
    if (r->event.type == YAML_ALIAS_EVENT)
        return refuse(r, line_of(r), "aliases are not supported");
    return 0;
}

static struct str scalar_of(const struct reader *r)
{
    return (struct str){(const char *)r->event.data.scalar.value, r->event.data.scalar.length};
}

/* A plain null or ~ or nothing at all. */
static bool is_null(const struct reader *r)
{
    struct str s = scalar_of(r);
    return r->event.type == YAML_SCALAR_EVENT &&
           r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (s.len == 0 || str_eqz(s, "null") || str_eqz(s, "~"));
}

/* Takes the name before a value; the end of the mapping gives ret->p == NULL. */
static int take_name(struct reader *r, char dst[CONFIG_NAME_MAX], struct str *ret)
{
    int rc = next(r);
    if (rc != 0)
        return rc;
    if (r->event.type == YAML_MAPPING_END_EVENT) {
        *ret = (struct str){NULL, 0};
        return 0;
    }
    if (r->event.type != YAML_SCALAR_EVENT)
        return refuse(r, line_of(r), "expected the name of a key");
    size_t len = utf8_clean(dst, CONFIG_NAME_MAX, scalar_of(r));
    *ret = (struct str){dst, len};
    return 0;
}

static int take_value(struct reader *r, int key, void *field, struct origin *origin)
{
    const struct config_key *k = &config_keys[key];
    unsigned line = line_of(r);
    if (origin->kind == ORIGIN_FILE)
        return refuse(r, line, "%s stands here twice, first on line %u", k->name, origin->line);
    int rc = next(r);
    if (rc != 0)
        return rc;
    if (r->event.type != YAML_SCALAR_EVENT)
        return refuse(r, line, "%s: expected one value, not a %s", k->name,
                      r->event.type == YAML_MAPPING_START_EVENT ? "mapping" : "list");
    if (r->event.data.scalar.tag)
        return refuse(r, line, "%s: tags are not supported", k->name);
    *origin = (struct origin){ORIGIN_FILE, line};
    rc = config_value_set(k, is_null(r) ? (struct str){NULL, 0} : scalar_of(r), field, r->err);
    if (rc != 0)
        err_wrap(r->err, "%s:%u", r->config->origins->file, line);
    return rc;
}

/* Steps into the mapping that is the value of a section. *ret_empty: there is none. */
static int enter(struct reader *r, struct str name, bool *ret_empty)
{
    unsigned line = line_of(r);
    int rc = next(r);
    if (rc != 0)
        return rc;
    *ret_empty = is_null(r);
    if (!*ret_empty && r->event.type != YAML_MAPPING_START_EVENT)
        return refuse(r, line, "%.*s: expected keys below it", STR_ARG(name));
    return 0;
}

/* The keys of a section. Values lie `shift` bytes behind the places in the table, and their origins
 * at `origins` (by key, from `first` on): both differ for the policies. */
static int read_keys(struct reader *r, struct str section, const char *shown, size_t shift,
                     struct origin *origins, size_t first)
{
    char buf[CONFIG_NAME_MAX];
    char hint[CONFIG_HINT_MAX];
    for (;;) {
        struct str name;
        int rc = take_name(r, buf, &name);
        if (rc != 0 || !name.p)
            return rc;
        int key = config_key_find(section, name);
        if (key < 0)
            return refuse(r, line_of(r), "unknown key %s.%s%s", shown, buf,
                          config_hint(NAMES_KEYS, section, name, hint));
        char *field = config_field(r->config, &config_keys[key]);
        rc = take_value(r, key, field + shift, &origins[(size_t)key - first]);
        if (rc != 0)
            return rc;
    }
}

/* The policy's index; a new one is added with all keys unset. */
static int find_policy(struct reader *r, struct str name, size_t *ret)
{
    struct config *c = r->config;
    if (!name_valid(name, TASK_POLICY_MAX))
        return refuse(r, line_of(r),
                      "policies.%.*s: a policy's name is 1 to %d of the characters "
                      "A-Z a-z 0-9 . _ -",
                      STR_ARG(name), TASK_POLICY_MAX);
    for (size_t i = 0; i < c->n_policies; i++) {
        if (str_eqz(name, c->policies[i].name)) {
            *ret = i;
            return 0;
        }
    }
    if (c->n_policies == CONFIG_MAX_POLICIES)
        return refuse(r, line_of(r), "more than %d policies", CONFIG_MAX_POLICIES);
    memcpy(c->policies[c->n_policies].name, name.p, name.len);
    *ret = c->n_policies++;
    return 0;
}

static int read_policies(struct reader *r)
{
    char buf[CONFIG_NAME_MAX];
    char shown[CONFIG_NAME_MAX + 16];
    size_t first = config_first_policy_key();
    for (;;) {
        struct str name;
        size_t i = 0;
        bool empty;
        int rc = take_name(r, buf, &name);
        if (rc != 0 || !name.p)
            return rc;
        rc = find_policy(r, name, &i);
        if (rc != 0)
            return rc;
        if (r->policy_lines[i] > 0)
            return refuse(r, line_of(r), "policies.%s stands here twice, first on line %u", buf,
                          r->policy_lines[i]);
        r->policy_lines[i] = line_of(r);
        snprintf(shown, sizeof(shown), "policies.%s", buf);
        rc = enter(r, str_from(shown), &empty);
        struct config_origins *o = r->config->origins;
        struct origin *origins = i == 0 ? &o->keys[first] : o->policies[i];
        if (rc == 0 && !empty)
            rc = read_keys(r, STR("policies"), shown, i * sizeof(struct retry_policy), origins,
                           first);
        if (rc != 0)
            return rc;
    }
}

/* The section's first key, or -1. */
static int find_section(struct str name)
{
    char section[CONFIG_NAME_MAX];
    for (size_t i = 0; i < config_n_keys; i++) {
        if (config_name_at(NAMES_SECTIONS, name, i, section) && str_eqz(name, section))
            return (int)i;
    }
    return -1;
}

static int read_section(struct reader *r, struct str name)
{
    char hint[CONFIG_HINT_MAX];
    bool empty;
    int section = find_section(name);
    if (section < 0 && memchr(name.p, '.', name.len))
        return refuse(r, line_of(r), "unknown key %.*s: sections and keys are nested, not dotted",
                      STR_ARG(name));
    if (section < 0)
        return refuse(r, line_of(r), "unknown key %.*s%s", STR_ARG(name),
                      config_hint(NAMES_SECTIONS, name, name, hint));
    if (r->section_lines[section] > 0)
        return refuse(r, line_of(r), "%.*s stands here twice, first on line %u", STR_ARG(name),
                      r->section_lines[section]);
    r->section_lines[section] = line_of(r);
    int rc = enter(r, name, &empty);
    if (rc != 0 || empty)
        return rc;
    if (str_eqz(name, "policies"))
        return read_policies(r);
    return read_keys(r, name, name.p, 0, r->config->origins->keys, 0);
}

static int read_root(struct reader *r)
{
    char buf[CONFIG_NAME_MAX];
    if (is_null(r))
        return 0;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return refuse(r, line_of(r), "expected sections such as \"http:\" and keys below them");
    for (;;) {
        struct str name;
        int rc = take_name(r, buf, &name);
        if (rc != 0 || !name.p)
            return rc;
        rc = read_section(r, name);
        if (rc != 0)
            return rc;
    }
}

static int read_stream(struct reader *r)
{
    bool seen = false;
    for (;;) {
        int rc = next(r);
        if (rc != 0 || r->event.type == YAML_STREAM_END_EVENT)
            return rc;
        if (r->event.type != YAML_DOCUMENT_START_EVENT)
            continue;
        if (seen)
            return refuse(r, line_of(r), "a second document: one file is one document");
        seen = true;
        rc = next(r);
        if (rc == 0)
            rc = read_root(r);
        if (rc != 0)
            return rc;
    }
}

static int slurp(const char *path, struct buf *ret, struct err *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    char *room = buf_room(ret, MAX_FILE_BYTES + 1);
    if (room)
        ret->len = fread(room, 1, MAX_FILE_BYTES + 1, f);
    int read_errno = ferror(f) ? errno : 0;
    fclose(f);
    if (!room)
        return err_set(err, ERR_NOMEM, "out of memory");
    if (read_errno != 0)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(read_errno));
    if (ret->len > MAX_FILE_BYTES)
        return err_set(err, ERR_INVALID, "%s: larger than 1 MiB", path);
    return 0;
}

int config_read_file(struct config *c, const char *path, struct err *err)
{
    struct buf text = BUF_INIT;
    struct reader r = {.config = c, .err = err};
    int rc = slurp(path, &text, err);
    if (rc != 0)
        goto out_text;
    c->origins->file = strdup(path);
    if (!c->origins->file || !yaml_parser_initialize(&r.parser)) {
        rc = err_set(err, ERR_NOMEM, "out of memory");
        goto out_text;
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text.data, text.len);
    rc = read_stream(&r);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
out_text:
    buf_fini(&text);
    return rc;
}
