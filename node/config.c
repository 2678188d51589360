/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a value is found: flag, variable, file, default. Flags are looked at twice:
 * first for what decides everything else (--help, --config), last for their values. */
#include "node/config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node/config_internal.h"

#define ENV_PREFIX "JOBFLOW_"
#define FILE_VARIABLE "JOBFLOW_CONFIG"

static int set_node_name(struct config *c, struct err *err)
{
    char host[65] = "";
    if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0')
        strcpy(host, "node");
    for (char *p = host; *p != '\0'; p++) {
        if (!name_char_valid(*p))
            *p = '-';
    }
    c->node_name = strdup(host);
    return c->node_name ? 0 : err_set(err, ERR_NOMEM, "out of memory");
}

static int set_defaults(struct config *c, struct err *err)
{
    assert(config_n_keys <= CONFIG_MAX_KEYS);
    c->origins = calloc(1, sizeof(*c->origins));
    if (!c->origins)
        return err_set(err, ERR_NOMEM, "out of memory");
    strcpy(c->policies[0].name, "default");
    c->n_policies = 1;
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];
        if (!k->preset)
            continue;
        int rc = config_value_set(k, str_from(k->preset), config_field(c, k), err);
        assert(rc == 0 || rc == ERR_NOMEM);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- Variables --------------------------------------------------------------------------- */

/* Kubernetes gives each container variables about the services around it; one whose name begins
 * with "jobflow" looks like ours: JOBFLOW_SERVICE_HOST, JOBFLOW_PORT_8080_TCP_ADDR, …  */
static bool is_kubernetes(struct str name)
{
    static const char *const marks[] = {"_SERVICE_HOST", "_SERVICE_PORT", "_PORT"};
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        size_t len = strlen(marks[i]);
        const char *at = memmem(name.p, name.len, marks[i], len);
        size_t end = at ? (size_t)(at - name.p) + len : 0;
        if (at && (end == name.len || name.p[end] == '_'))
            return true;
    }
    return false;
}

static int find_variable(struct str name)
{
    char known[CONFIG_NAME_MAX];
    for (size_t i = 0; i < config_n_keys; i++) {
        config_env_name(&config_keys[i], known);
        if (str_eqz(name, known))
            return (int)i;
    }
    return -1;
}

static int read_variable(struct config *c, struct str name, const char *value, struct err *err)
{
    int key = find_variable(name);
    if (key < 0) {
        char hint[CONFIG_HINT_MAX];
        return err_set(err, ERR_INVALID, "unknown variable %.*s in the environment%s",
                       STR_ARG(name), config_hint(NAMES_VARIABLES, name, name, hint));
    }
    const struct config_key *k = &config_keys[key];
    int rc = config_value_set(k, str_from(value), config_field(c, k), err);
    if (rc != 0)
        err_wrap(err, "%.*s", STR_ARG(name));
    c->origins->keys[key] = (struct origin){.kind = ORIGIN_ENV};
    return rc;
}

static int read_environment(struct config *c, char *const *env, struct err *err)
{
    for (; env && *env; env++) {
        const char *eq = strchr(*env, '=');
        struct str name = {*env, eq ? (size_t)(eq - *env) : 0};
        if (name.len < strlen(ENV_PREFIX) || memcmp(name.p, ENV_PREFIX, strlen(ENV_PREFIX)) != 0 ||
            str_eqz(name, FILE_VARIABLE) || is_kubernetes(name))
            continue;
        int rc = read_variable(c, name, eq + 1, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static const char *file_variable(char *const *env)
{
    size_t len = strlen(FILE_VARIABLE);
    for (; env && *env; env++) {
        if (strncmp(*env, FILE_VARIABLE "=", len + 1) == 0 && (*env)[len + 1] != '\0')
            return *env + len + 1;
    }
    return NULL;
}

/* ---- Flags ------------------------------------------------------------------------------- */

struct flags {
    const char *file;
    enum config_command command;
    bool has_command;
    const char *values[CONFIG_MAX_KEYS]; /* borrowed from argv; by key */
};

static int set_command(struct flags *f, enum config_command command, struct err *err)
{
    bool asks = command == CONFIG_HELP || command == CONFIG_VERSION;
    bool asked = f->has_command && (f->command == CONFIG_HELP || f->command == CONFIG_VERSION);
    if (f->has_command && f->command != command && !asks && !asked)
        return err_set(err, ERR_INVALID, "--check-config and --migrate-only exclude each other");
    if (!asked)
        f->command = command;
    f->has_command = true;
    return 0;
}

static bool find_command(struct str name, enum config_command *ret)
{
    static const struct {
        const char *name;
        enum config_command command;
    } commands[] = {{"--check-config", CONFIG_CHECK},
                    {"--help", CONFIG_HELP},
                    {"--migrate-only", CONFIG_MIGRATE},
                    {"--version", CONFIG_VERSION}};
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (str_eqz(name, commands[i].name)) {
            *ret = commands[i].command;
            return true;
        }
    }
    return false;
}

/* Where the value of a flag goes; NULL for an unknown one. */
static const char **find_place(struct flags *f, struct str name)
{
    if (str_eqz(name, "--config"))
        return &f->file;
    for (size_t i = 0; i < config_n_keys; i++) {
        if (config_keys[i].flag && str_eqz(name, config_keys[i].flag))
            return &f->values[i];
    }
    return NULL;
}

static int unknown_flag(const char *arg, struct str name, struct err *err)
{
    char hint[CONFIG_HINT_MAX];
    if (arg[0] != '-')
        return err_set(err, ERR_INVALID, "unexpected argument \"%s\": see --help", arg);
    return err_set(err, ERR_INVALID, "unknown flag %.*s%s: see --help", STR_ARG(name),
                   config_hint(NAMES_FLAGS, name, name, hint));
}

static int read_flags(int argc, char *const *argv, struct flags *f, struct err *err)
{
    for (int i = 1; i < argc; i++) {
        const char *eq = strchr(argv[i], '=');
        struct str name = {argv[i], eq ? (size_t)(eq - argv[i]) : strlen(argv[i])};
        enum config_command command;
        int rc = 0;
        if (find_command(name, &command)) {
            rc = eq ? err_set(err, ERR_INVALID, "%.*s takes no value", STR_ARG(name))
                    : set_command(f, command, err);
        } else {
            const char **place = find_place(f, name);
            if (!place)
                rc = unknown_flag(argv[i], name, err);
            else if (*place)
                rc = err_set(err, ERR_INVALID, "%.*s is given twice", STR_ARG(name));
            else if (!eq && i + 1 >= argc)
                rc = err_set(err, ERR_INVALID, "%.*s needs a value", STR_ARG(name));
            else
                *place = eq ? eq + 1 : argv[++i];
        }
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int apply_flags(struct config *c, const struct flags *f, struct err *err)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        if (!f->values[i])
            continue;
        const struct config_key *k = &config_keys[i];
        int rc = config_value_set(k, str_from(f->values[i]), config_field(c, k), err);
        if (rc != 0) {
            err_wrap(err, "%s", k->flag);
            return rc;
        }
        c->origins->keys[i] = (struct origin){.kind = ORIGIN_FLAG};
    }
    return 0;
}

/* ---- All of it --------------------------------------------------------------------------- */

/* What a policy does not say it takes from the default. */
static void complete_policies(struct config *c)
{
    for (size_t i = 1; i < c->n_policies; i++) {
        struct retry_policy *p = &c->policies[i];
        struct retry_policy whole = c->policies[0];
        const struct origin *o = c->origins->policies[i];
        size_t first = config_first_policy_key();
        for (size_t j = 0; j < CONFIG_POLICY_KEYS; j++) {
            size_t at = config_keys[first + j].offset - offsetof(struct config, policies);
            /* Durations and doubles are equally wide. */
            bool narrow = config_keys[first + j].kind == KIND_I32;
            if (o[j].kind != ORIGIN_DEFAULT)
                memcpy((char *)&whole + at, (char *)p + at,
                       narrow ? sizeof(int32_t) : sizeof(int64_t));
        }
        memcpy(whole.name, p->name, sizeof(whole.name));
        *p = whole;
    }
}

/* Who sets a smaller whole need not set its part as well. */
static void fit_lane_limit(struct config *c)
{
    int key = config_key_find(STR("scheduler"), STR("lane_limit"));

    assert(key >= 0);
    if (c->origins->keys[key].kind == ORIGIN_DEFAULT && c->lane_limit > c->max_tracked)
        c->lane_limit = c->max_tracked;
}

static int load(struct config *c, const struct flags *f, char *const *env, struct err *err)
{
    int rc = set_defaults(c, err);
    const char *file = f->file ? f->file : file_variable(env);
    if (rc == 0 && file)
        rc = config_read_file(c, file, err);
    if (rc == 0)
        rc = read_environment(c, env, err);
    if (rc == 0)
        rc = apply_flags(c, f, err);
    if (rc == 0 && !c->node_name)
        rc = set_node_name(c, err);
    if (rc != 0)
        return rc;
    complete_policies(c);
    fit_lane_limit(c);
    return config_check_contradictions(c, err);
}

int config_load(int argc, char *const *argv, char *const *env, struct config *ret,
                enum config_command *ret_command, struct err *err)
{
    struct flags f = {.command = CONFIG_RUN};
    memset(ret, 0, sizeof(*ret));
    int rc = read_flags(argc, argv, &f, err);
    if (rc != 0)
        return rc;
    if (f.command != CONFIG_HELP && f.command != CONFIG_VERSION) {
        rc = load(ret, &f, env, err);
        if (rc != 0) {
            config_fini(ret);
            return rc;
        }
    }
    *ret_command = f.command;
    return 0;
}

void config_fini(struct config *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < config_n_keys; i++) {
        if (config_keys[i].kind == KIND_STRING)
            free(*(char **)config_field(c, &config_keys[i]));
    }
    if (c->origins)
        free(c->origins->file);
    free(c->origins);
    memset(c, 0, sizeof(*c));
}
