/* SPDX-License-Identifier: Apache-2.0 */
#include "node/config_internal.h"

#include <string.h>

void config_origin_put(const struct config_origins *o, size_t key, struct origin where,
                       struct buf *dst)
{
    char name[CONFIG_NAME_MAX];
    switch (where.kind) {
    case ORIGIN_DEFAULT:
        buf_addz(dst, "default");
        break;
    case ORIGIN_FILE:
        buf_addf(dst, "%s:%u", o->file, where.line);
        break;
    case ORIGIN_ENV:
        config_env_name(&config_keys[key], name);
        buf_addz(dst, name);
        break;
    case ORIGIN_FLAG:
        buf_addz(dst, config_keys[key].flag);
        break;
    }
}

static void put_line(const struct config *c, size_t key, const char *indent, size_t shift,
                     struct origin where, struct buf *b)
{
    const struct config_key *k = &config_keys[key];
    struct buf origin = BUF_INIT;
    char shown[256];
    config_origin_put(c->origins, key, where, &origin);
    utf8_clean(shown, sizeof(shown), buf_str(&origin)); /* a file's name may hold anything */
    b->failed = b->failed || origin.failed;
    buf_fini(&origin);
    buf_addf(b, "%s%s: ", indent, strrchr(k->name, '.') + 1);
    config_value_put(k, (const char *)c + k->offset + shift, b);
    buf_addf(b, "  # %s\n", shown);
}

static void put_policies(const struct config *c, struct buf *b)
{
    size_t first = config_first_policy_key();
    for (size_t i = 0; i < c->n_policies; i++) {
        buf_addf(b, "  \"%s\":\n", c->policies[i].name);
        for (size_t j = 0; j < CONFIG_POLICY_KEYS; j++) {
            struct origin where = i == 0 ? c->origins->keys[first + j] : c->origins->policies[i][j];
            put_line(c, first + j, "    ", i * sizeof(struct retry_policy), where, b);
        }
    }
}

void config_print(const struct config *c, FILE *to)
{
    struct buf b = BUF_INIT;
    char section[CONFIG_NAME_MAX] = "";
    size_t first_policy = config_first_policy_key();
    for (size_t i = 0; i < config_n_keys; i++) {
        char current[CONFIG_NAME_MAX];
        config_name_at(NAMES_SECTIONS, STR(""), i, current);
        if (strcmp(section, current) != 0) {
            memcpy(section, current, sizeof(section));
            buf_addf(&b, "%s:\n", section);
        }
        if (i == first_policy)
            put_policies(c, &b);
        if (i < first_policy || i >= first_policy + CONFIG_POLICY_KEYS)
            put_line(c, i, "  ", 0, c->origins->keys[i], &b);
    }
    if (buf_ok(&b))
        fwrite(b.data, 1, b.len, to);
    buf_fini(&b);
}

static void print_flag(FILE *to, const char *flag, const char *hint, const char *help)
{
    char left[64];
    snprintf(left, sizeof(left), "%s %s", flag, hint);
    fprintf(to, "  %-26s %s\n", left, help);
}

void config_print_help(FILE *to)
{
    fputs("jobflowd " JF_VERSION " - runs delayed tasks at their time, by calling services back\n"
          "\n"
          "Usage: jobflowd [flags]\n"
          "\n",
          to);
    print_flag(to, "--config", "FILE", "YAML; also from the variable JOBFLOW_CONFIG");
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];
        if (k->flag)
            print_flag(to, k->flag, k->flag_hint, k->flag_help);
    }
    print_flag(to, "--check-config", "", "print the configuration in force, and leave");
    print_flag(to, "--migrate-only", "", "bring the database's schema up to date, and leave");
    print_flag(to, "--version", "", "print the version, and leave");
    print_flag(to, "--help", "", "print this, and leave");
    fputs("\nEach key of the file is also a variable: http.max_body is JOBFLOW_HTTP_MAX_BODY.\n"
          "A flag goes before a variable, a variable before the file. docs/configuration.md\n"
          "lists all keys.\n",
          to);
}
