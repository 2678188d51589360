/* SPDX-License-Identifier: Apache-2.0 */
#include "node/config_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct err last_err;

/* Loads with argv = "jobflowd" and the words of `flags`, env = the words of `env`. */
static int load(const char *flags, const char *env, struct config *ret, enum config_command *cmd)
{
    char *argv[16] = {(char *)"jobflowd"};
    char *envv[16] = {NULL};
    char *f = strdup(flags);
    char *e = strdup(env);
    int argc = 1;
    for (char *save, *w = strtok_r(f, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    int n = 0;
    for (char *save, *w = strtok_r(e, " ", &save); w; w = strtok_r(NULL, " ", &save))
        envv[n++] = w;
    assert_true(argc < 16 && n < 16);
    memset(&last_err, 0, sizeof(last_err));
    int rc = config_load(argc, argv, envv, ret, cmd, &last_err);
    free(f);
    free(e);
    return rc;
}

static int load_env(const char *env, struct config *ret)
{
    enum config_command cmd;
    return load("", env, ret, &cmd);
}

static char *write_file(const char *text, size_t len)
{
    char *path = strdup("/tmp/jobflow-config-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), (ssize_t)len);
    close(fd);
    return path;
}

static int load_text(const char *text, struct config *ret)
{
    enum config_command cmd;
    char flags[128];
    char *path = write_file(text, strlen(text));
    snprintf(flags, sizeof(flags), "--config %s", path);
    int rc = load(flags, "", ret, &cmd);
    unlink(path);
    free(path);
    return rc;
}

static void assert_says(const char *what)
{
    if (!strstr(last_err.text, what))
        fail_msg("\"%s\" does not say \"%s\"", last_err.text, what);
}

/* The text is refused on that line for that reason. */
static void assert_refused(const char *text, unsigned line, const char *why)
{
    struct config c;
    char where[32];
    assert_int_equal(load_text(text, &c), ERR_INVALID);
    snprintf(where, sizeof(where), ":%u: ", line);
    assert_says(where);
    assert_says(why);
    assert_null(c.store); /* empty after an error */
}

static char *printed(const struct config *c)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    config_print(c, f);
    fclose(f);
    return text;
}

static void test_defaults(void **state)
{
    (void)state;
    struct config c;
    assert_int_equal(load_env("", &c), 0);
    assert_string_equal(c.listen, "127.0.0.1:8080");
    assert_string_equal(c.store, "sqlite:jobflow.db");
    assert_string_equal(c.cluster, "default");
    assert_true(name_valid(str_from(c.node_name), 64));
    assert_null(c.etcd);
    assert_null(c.alert_url);
    assert_int_equal(c.n_policies, 1);
    assert_string_equal(c.policies[0].name, "default");
    assert_int_equal(c.policies[0].backoff.initial_ms, 5000);
    assert_int_equal(c.policies[0].backoff.cap_ms, 3600000);
    assert_true(c.policies[0].backoff.multiplier == 2.0);
    assert_true(c.policies[0].backoff.jitter == 0.2);
    assert_int_equal(c.policies[0].max_retry, 10);
    assert_int_equal(c.max_body, 8 << 20);
    assert_int_equal(c.log_format, LOG_LOGFMT);
    assert_int_equal(c.log_level, LOG_INFO);
    assert_true(c.store_named_statements);
    assert_int_equal(c.max_ahead_ms, INT64_C(3650) * 86400000);
    config_fini(&c);
}

/* The table is what the header says: ascending, with distinct variables; each default is inside its
 * own limits, which loading the defaults asserts. */
static void test_table(void **state)
{
    (void)state;
    for (size_t i = 1; i < config_n_keys; i++) {
        char a[CONFIG_NAME_MAX];
        char b[CONFIG_NAME_MAX];
        assert_true(strcmp(config_keys[i - 1].name, config_keys[i].name) < 0);
        for (size_t j = 0; j < i; j++) {
            config_env_name(&config_keys[i], a);
            config_env_name(&config_keys[j], b);
            assert_string_not_equal(a, b);
            assert_int_not_equal(config_keys[i].offset, config_keys[j].offset);
        }
    }
    size_t first = config_first_policy_key();
    for (size_t i = 0; i < config_n_keys; i++) {
        bool in_prefix = strncmp(config_keys[i].name, "policies.default.", 17) == 0;
        assert_int_equal(in_prefix, i >= first && i < first + CONFIG_POLICY_KEYS);
    }
}

static void test_docs_name_every_key(void **state)
{
    (void)state;
    const char *path = getenv("CONFIG_DOC");
    assert_non_null(path);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    static char doc[65536];
    doc[fread(doc, 1, sizeof(doc) - 1, f)] = '\0';
    fclose(f);
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];
        char row[160];
        snprintf(row, sizeof(row), k->preset ? "\n| `%s` | `%s` | " : "\n| `%s` | none | ", k->name,
                 k->preset);
        if (!strstr(doc, row))
            fail_msg("docs/configuration.md lacks the row%s", row);
        if (k->flag) {
            snprintf(row, sizeof(row), "\n| `%s %s` | `%s` |", k->flag, k->flag_hint, k->name);
            if (!strstr(doc, row))
                fail_msg("docs/configuration.md lacks the row%s", row);
        }
    }
    /* And nothing else: as many rows as keys. */
    size_t n = 0;
    for (const char *p = doc; (p = strstr(p, "\n| `")) != NULL; p++)
        n += p[4] != '-';
    assert_int_equal(n, config_n_keys);
}

static void test_file(void **state)
{
    (void)state;
    struct config c;
    assert_int_equal(load_text("http:\n"
                               "  listen: '[::1]:0'\n"
                               "  max_body: 65536\n"
                               "alert: {url: 'https://h/x', timeout: 1500ms, secret: null}\n"
                               "tasks:\n" /* a section may be empty */
                               "store:\n"
                               "  named_statements: false\n"
                               "log: {format: json, level: debug}\n"
                               "policies:\n"
                               "  patient:\n"
                               "    cap: 2h\n"
                               "    jitter: 0\n"
                               "    max_retry: 3\n"
                               "  default:\n"
                               "    initial: 1m\n"
                               "    multiplier: 1.5\n",
                               &c),
                     0);
    assert_string_equal(c.listen, "[::1]:0");
    assert_int_equal(c.max_body, 65536);
    assert_string_equal(c.alert_url, "https://h/x");
    assert_int_equal(c.alert_timeout_ms, 1500);
    assert_false(c.store_named_statements);
    assert_int_equal(c.log_format, LOG_JSON);
    assert_int_equal(c.log_level, LOG_DEBUG);
    assert_int_equal(c.n_policies, 2);
    assert_string_equal(c.policies[1].name, "patient");
    /* Said itself … */
    assert_int_equal(c.policies[1].backoff.cap_ms, 7200000);
    assert_true(c.policies[1].backoff.jitter == 0.0);
    assert_int_equal(c.policies[1].max_retry, 3);
    /* … and taken from the default, although that stands below. */
    assert_int_equal(c.policies[1].backoff.initial_ms, 60000);
    assert_true(c.policies[1].backoff.multiplier == 1.5);
    assert_int_equal(c.policies[0].backoff.cap_ms, 3600000);
    config_fini(&c);
}

static void test_empty_files(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "# nothing\n", "---\n", "---\n...\n", "{}\n", "null\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct config c;
        assert_int_equal(load_text(texts[i], &c), 0);
        assert_string_equal(c.listen, "127.0.0.1:8080");
        config_fini(&c);
    }
}

static void test_unknown_keys(void **state)
{
    (void)state;
    assert_refused("http:\n  max_boddy: 1MiB\n", 2,
                   "unknown key http.max_boddy (did you mean max_body?)");
    assert_refused("\n\nhttps:\n  listen: a\n", 3, "unknown key https (did you mean http?)");
    assert_refused("http:\n  zzzzzzz: 1\n", 2, "unknown key http.zzzzzzz");
    assert_null(strstr(last_err.text, "did you mean"));
    assert_refused("http.listen: 127.0.0.1:1\n", 1, "nested, not dotted");
    assert_refused("policies:\n  default:\n    url: x\n", 3, "unknown key policies.default.url");
    assert_refused("policies:\n  initial: 5s\n", 2, "policies.initial: expected keys below it");
    assert_refused("policies:\n  'a b':\n    cap: 5s\n", 2, "a policy's name is");
    assert_refused("? [a]\n: b\n", 1, "expected the name of a key");
}

static void test_duplicates(void **state)
{
    (void)state;
    assert_refused("http:\n  threads: 1\n  listen: '127.0.0.1:1'\n  threads: 1\n", 4,
                   "http.threads stands here twice, first on line 2");
    assert_refused("http:\n  threads: 1\nlog:\n  level: info\nhttp:\n  max_body: 1MiB\n", 5,
                   "http stands here twice, first on line 1");
    assert_refused("policies:\n  a:\n    cap: 5m\n  a:\n    jitter: 0\n", 4,
                   "policies.a stands here twice, first on line 2");
    assert_refused("policies:\n  a:\n    cap: 5m\n    cap: 5m\n", 4,
                   "stands here twice, first on line 3");
}

static void test_wrong_values(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *why;
    } cases[] = {
        {"http:\n  threads: many", "http.threads: \"many\": expected a whole number"},
        {"http:\n  threads: 0", "http.threads: \"0\": out of range: 1 to 256 is allowed"},
        {"http:\n  threads: -1", "out of range"},
        {"http:\n  threads: 1.5", "expected a whole number"},
        {"http:\n  threads: 99999999999999999999", "expected a whole number"},
        {"http:\n  threads: null", "http.threads needs a value"},
        {"http:\n  threads:", "http.threads needs a value"},
        {"http:\n  threads: [1]", "expected one value, not a list"},
        {"http:\n  threads: {a: 1}", "expected one value, not a mapping"},
        {"http:\n  threads: !!int 3", "tags are not supported"},
        {"http:\n  max_body: 8MB", "expected a size such as"},
        {"http:\n  max_body: -8", "expected a size such as"},
        {"http:\n  max_body: 2GiB", "out of range: 1KiB to 1GiB is allowed"},
        {"http:\n  listen: 8080", "expected ADDR:PORT"},
        {"http:\n  listen: ':8080'", "expected ADDR:PORT"},
        {"http:\n  listen: '127.0.0.1:65536'", "expected ADDR:PORT"},
        {"http:\n  listen: '127.0.0.1:'", "expected ADDR:PORT"},
        {"http:\n  listen: '::1:8080'", "expected ADDR:PORT"},
        {"http:\n  listen: \"a\\0b:1\"", "control characters"},
        {"store:\n  url: \"sqlite:\\uFFFE\"", "control characters"},
        {"store:\n  url: \"sqlite:a\\uFFFFb\"", "control characters"},
        {"delivery:\n  timeout: soon", "expected a duration such as"},
        {"delivery:\n  timeout: 0s", "out of range"},
        {"delivery:\n  url_template: http://h/x", "{service} is missing"},
        {"delivery:\n  url_template: http://{service}.{zone}/", "only {service} and {namespace}"},
        {"delivery:\n  url_template: '{service}'", "http:// or https://"},
        {"delivery:\n  namespace: a/b", "expected 1 to 64 of the characters"},
        {"alert:\n  url: ftp://h", "http:// or https://"},
        {"dispatch:\n  ca_file: /no/such/file", "cannot be opened: No such file"},
        {"dispatch:\n  ca_file: /tmp", "cannot be read: Is a directory"},
        {"dispatch:\n  ca_file: /dev/null", "cannot be read: it is empty"},
        {"dispatch:\n  max_per_host: -1", "out of range"},
        {"dispatch:\n  refresh: 999ms", "out of range: 1s to"},
        {"cluster:\n  node_name: ä", "expected 1 to 64 of the characters"},
        {"log:\n  format: xml", "log.format: \"xml\": expected logfmt or json"},
        {"log:\n  level: INFO", "expected debug, info, warn or error"},
        {"store:\n  named_statements: yes", "expected true or false"},
        {"store:\n  url: oracle://h", "expected sqlite:FILE or postgres://"},
        {"store:\n  url: 'sqlite:'", "expected a file"},
        {"store:\n  url: mysqlx://u:pw@h/d", "or mysql://user:password@host:port/db"},
        {"store:\n  url: postgres://u:***@h/d", "the password is the mask"},
        {"tasks:\n  - a", "tasks: expected keys below it"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_refused(cases[i].text, cases[i].text[0] == 't' ? 1 : 2, cases[i].why);
    assert_refused("policies:\n  p:\n    jitter: 1.5\n", 3, "out of range: 0 to 1 is allowed");
    assert_refused("policies:\n  p:\n    jitter: nan\n", 3, "expected a number");
    assert_refused("policies:\n  p:\n    jitter: 0.000000000000000000001\n", 3,
                   "expected a number");
}

static void test_not_a_configuration(void **state)
{
    (void)state;
    struct config c;
    enum config_command cmd;
    assert_refused("http:\n  listen: 'a\n", 3, "not YAML");
    assert_refused("- a\n", 1, "expected sections");
    assert_refused("text\n", 1, "expected sections");
    assert_refused("http:\n  threads: 1\n---\nlog: {}\n", 3, "a second document");
    assert_refused("http: &a\n  threads: 1\nlog: *a\n", 3, "aliases are not supported");
    assert_int_equal(load("--config /nonexistent/file", "", &c, &cmd), ERR_IO);
    assert_says("/nonexistent/file: No such file");
    assert_int_equal(load("--config /tmp", "", &c, &cmd), ERR_IO);
    char *big = malloc((1 << 20) + 1);
    memset(big, '#', (1 << 20) + 1);
    char flags[64];
    char *path = write_file(big, (1 << 20) + 1);
    snprintf(flags, sizeof(flags), "--config=%s", path);
    assert_int_equal(load(flags, "", &c, &cmd), ERR_INVALID);
    assert_says("larger than 1 MiB");
    unlink(path);
    free(path);
    free(big);
}

static void test_too_many_policies(void **state)
{
    (void)state;
    struct config c;
    struct buf text = BUF_INIT;
    buf_addz(&text, "policies:\n");
    for (int i = 1; i < CONFIG_MAX_POLICIES; i++)
        buf_addf(&text, "  p%d: {max_retry: %d}\n", i, i);
    buf_addc(&text, '\0');
    assert_int_equal(load_text(text.data, &c), 0);
    assert_int_equal(c.n_policies, CONFIG_MAX_POLICIES);
    assert_int_equal(c.policies[63].max_retry, 63);
    config_fini(&c);
    text.len--;
    buf_addz(&text, "  one_more: {}\n");
    buf_addc(&text, '\0');
    assert_refused(text.data, CONFIG_MAX_POLICIES + 1, "more than 64 policies");
    buf_fini(&text);
}

static void test_contradictions(void **state)
{
    (void)state;
    struct config c;
    assert_int_equal(load_env("JOBFLOW_SCHEDULER_SLACK=5s", &c), ERR_INVALID);
    assert_says("scheduler.slack (5s, JOBFLOW_SCHEDULER_SLACK) must be above "
                "store.statement_timeout (5s, default)");
    assert_int_equal(load_env("JOBFLOW_TASKS_MAX_TIMEOUT=30s", &c), ERR_INVALID);
    assert_says("delivery.timeout (1m, default) must be at most tasks.max_timeout (30s");
    assert_int_equal(load_env("JOBFLOW_HTTP_MAX_BODY=1KiB", &c), ERR_INVALID);
    assert_says("tasks.max_payload (64KiB, default) must be at most http.max_body (1KiB");
    assert_int_equal(load_env("JOBFLOW_SCHEDULER_LOOKAHEAD=999ms", &c), ERR_INVALID);
    assert_says("must be at least scheduler.scan_interval (1s, default)");
    assert_int_equal(load_env("JOBFLOW_SCHEDULER_FULL_READ=900ms", &c), ERR_INVALID);
    assert_says("must be at least scheduler.scan_interval");
    assert_int_equal(load_env("JOBFLOW_SCHEDULER_LANE_LIMIT=200001", &c), ERR_INVALID);
    assert_says("scheduler.lane_limit (200001, JOBFLOW_SCHEDULER_LANE_LIMIT) must be at most "
                "scheduler.max_tracked (200000, default)");
    assert_int_equal(load_env("JOBFLOW_SCHEDULER_MAX_TRACKED=4999", &c), 0);
    assert_int_equal(c.lane_limit, 4999);
    config_fini(&c);
    assert_int_equal(load_env("JOBFLOW_POLICIES_DEFAULT_CAP=4s", &c), ERR_INVALID);
    assert_says("JOBFLOW_POLICIES_DEFAULT_CAP: policies.default: cap (4000ms) must be at least");
    assert_refused("policies:\n  p:\n    initial: 2h\n    cap: 1h\n", 4, "policies.p: cap");
    assert_int_equal(load_env("JOBFLOW_ALERT_SECRET=0123456789abcdef", &c), ERR_INVALID);
    assert_says("JOBFLOW_ALERT_SECRET: alert.secret: there is nothing to sign");
    assert_refused("alert:\n  secret: 0123456789abcdef\n", 2, "alert.url is not set");
    assert_refused("cluster:\n  name: a\n  etcd: http://h:2379\n", 3, "SQLite is for one node");
    assert_refused("cluster:\n  etcd_user: root\n", 2, "etcd_user and etcd_password go together");
    assert_refused("cluster:\n  etcd_key_file: /etc/passwd\n", 2, "go together");
}

static void test_environment(void **state)
{
    (void)state;
    struct config c;
    assert_int_equal(
        load_env("PATH=/bin JOBFLOWD=x JOBFLOW_HTTP_MAX_BODY=1MiB JOBFLOW_CLUSTER_ETCD= "
                 "JOBFLOW_POLICIES_DEFAULT_INITIAL=7s JOBFLOW_STORE_NAMED_STATEMENTS=false",
                 &c),
        0);
    assert_int_equal(c.max_body, 1 << 20);
    assert_int_equal(c.policies[0].backoff.initial_ms, 7000);
    assert_false(c.store_named_statements);
    config_fini(&c);
    assert_int_equal(load_env("JOBFLOW_HTTP_MAX_BODDY=1", &c), ERR_INVALID);
    assert_says("unknown variable JOBFLOW_HTTP_MAX_BODDY in the environment (did you mean "
                "JOBFLOW_HTTP_MAX_BODY?)");
    assert_int_equal(load_env("JOBFLOW_LISTEN=127.0.0.1:1", &c), ERR_INVALID);
    assert_int_equal(load_env("JOBFLOW_POLICIES_PATIENT_CAP=1h", &c), ERR_INVALID);
    assert_int_equal(load_env("JOBFLOW_HTTP_THREADS=x", &c), ERR_INVALID);
    assert_says("JOBFLOW_HTTP_THREADS: http.threads: \"x\": expected a whole number");
    assert_int_equal(load_env("JOBFLOW_HTTP_LISTEN=", &c), ERR_INVALID);
    assert_says("http.listen needs a value");
}

static void test_connections(void **state)
{
    (void)state;
    struct config c;
    char env[256];
    char *path = write_file("x", 1);
    assert_int_equal(load_env("", &c), 0);
    assert_null(c.ca_file);
    assert_int_equal(c.max_per_host, 0);
    assert_int_equal(c.refresh_ms, 30000);
    config_fini(&c);
    snprintf(env, sizeof(env),
             "JOBFLOW_DISPATCH_CA_FILE=%s JOBFLOW_DISPATCH_MAX_PER_HOST=7 "
             "JOBFLOW_DISPATCH_REFRESH=1s",
             path);
    assert_int_equal(load_env(env, &c), 0);
    assert_string_equal(c.ca_file, path);
    assert_int_equal(c.max_per_host, 7);
    assert_int_equal(c.refresh_ms, 1000);
    config_fini(&c);
    unlink(path);
    free(path);
}

static void test_kubernetes_variables(void **state)
{
    (void)state;
    struct config c;
    assert_int_equal(load_env("JOBFLOW_SERVICE_HOST=10.0.0.1 JOBFLOW_SERVICE_PORT=80 "
                              "JOBFLOW_SERVICE_PORT_HTTP=80 JOBFLOW_PORT=tcp://10.0.0.1:80 "
                              "JOBFLOW_PORT_80_TCP_ADDR=10.0.0.1 JOBFLOW_HEADLESS_SERVICE_HOST=x",
                              &c),
                     0);
    config_fini(&c);
}

static void test_precedence(void **state)
{
    (void)state;
    struct config c;
    enum config_command cmd;
    char flags[128];
    char env[128];
    char *path =
        write_file("http: {listen: '127.0.0.1:1'}\nlog: {level: warn}\ncluster: {name: f}\n", 67);
    snprintf(flags, sizeof(flags), "--listen 127.0.0.1:3");
    snprintf(env, sizeof(env),
             "JOBFLOW_CONFIG=%s JOBFLOW_HTTP_LISTEN=127.0.0.1:2 JOBFLOW_LOG_LEVEL=error", path);
    assert_int_equal(load(flags, env, &c, &cmd), 0);
    assert_int_equal(cmd, CONFIG_RUN);
    assert_string_equal(c.listen, "127.0.0.1:3");
    assert_int_equal(c.log_level, LOG_ERROR);
    assert_string_equal(c.cluster, "f");
    char *text = printed(&c);
    assert_non_null(strstr(text, "  listen: \"127.0.0.1:3\"  # --listen\n"));
    assert_non_null(strstr(text, "  level: error  # JOBFLOW_LOG_LEVEL\n"));
    assert_non_null(strstr(text, ":3\n")); /* the file's line 3 */
    assert_non_null(strstr(text, "  threads: 2  # default\n"));
    free(text);
    config_fini(&c);
    /* --config goes before JOBFLOW_CONFIG. */
    snprintf(flags, sizeof(flags), "--config=%s", path);
    assert_int_equal(load(flags, "JOBFLOW_CONFIG=/nonexistent", &c, &cmd), 0);
    config_fini(&c);
    assert_int_equal(load("", "JOBFLOW_CONFIG=/nonexistent", &c, &cmd), ERR_IO);
    unlink(path);
    free(path);
}

static void test_flags(void **state)
{
    (void)state;
    struct config c;
    enum config_command cmd;
    assert_int_equal(load("--listen=0.0.0.0:80 --store postgres://u@h/d --cluster=c --node-name n1 "
                          "--log-format json --log-level=debug --check-config",
                          "", &c, &cmd),
                     0);
    assert_int_equal(cmd, CONFIG_CHECK);
    assert_string_equal(c.store, "postgres://u@h/d");
    assert_string_equal(c.node_name, "n1");
    assert_int_equal(c.log_format, LOG_JSON);
    config_fini(&c);
    assert_int_equal(load("--migrate-only", "", &c, &cmd), 0);
    assert_int_equal(cmd, CONFIG_MIGRATE);
    config_fini(&c);
    static const struct {
        const char *flags;
        const char *why;
    } cases[] = {
        {"--lissten a", "unknown flag --lissten (did you mean --listen?)"},
        {"run", "unexpected argument \"run\""},
        {"--listen", "--listen needs a value"},
        {"--listen a:1 --listen=b:1", "--listen is given twice"},
        {"--check-config=yes", "--check-config takes no value"},
        {"--check-config --migrate-only", "exclude each other"},
        {"--listen nonsense", "--listen: http.listen: \"nonsense\": expected ADDR:PORT"},
        {"--etcd http://h", "--etcd: cluster.etcd: SQLite is for one node"},
        {"--etcd http://h,h2", "--etcd: cluster.etcd: expected a URL that begins with"},
        {"--store=", "--store: store.url: needs a value"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) - 1; i++) {
        assert_int_equal(load(cases[i].flags, "", &c, &cmd), ERR_INVALID);
        assert_says(cases[i].why);
    }
    assert_int_equal(load("--store=", "", &c, &cmd), ERR_INVALID);
    assert_says("--store: store.url needs a value");
}

/* --help and --version answer whatever else is wrong. */
static void test_help(void **state)
{
    (void)state;
    struct config c;
    enum config_command cmd;
    assert_int_equal(load("--config /nonexistent --help --check-config", "JOBFLOW_X=1", &c, &cmd),
                     0);
    assert_int_equal(cmd, CONFIG_HELP);
    config_fini(&c);
    assert_int_equal(load("--check-config --version", "JOBFLOW_X=1", &c, &cmd), 0);
    assert_int_equal(cmd, CONFIG_VERSION);
    config_fini(&c);
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    config_print_help(f);
    fclose(f);
    for (size_t i = 0; i < config_n_keys; i++) {
        if (config_keys[i].flag)
            assert_non_null(strstr(text, config_keys[i].flag));
    }
    free(text);
}

static void test_secrets_are_masked(void **state)
{
    (void)state;
    struct config c;
    assert_int_equal(
        load_env("JOBFLOW_STORE_URL=postgres://u:hunter2@h:1/d?sslmode=x&password=hunter2&a=b "
                 "JOBFLOW_ALERT_URL=https://x:hunter2@h/p?token=hunter2 "
                 "JOBFLOW_ALERT_SECRET=hunter2hunter2hunter2",
                 &c),
        0);
    char *text = printed(&c);
    assert_null(strstr(text, "hunter2"));
    assert_non_null(strstr(text, "\"postgres://u:***@h:1/d?sslmode=x&password=***&a=b\""));
    assert_non_null(strstr(text, "\"https://x:***@h/p?token=***\""));
    assert_non_null(strstr(text, "  secret: \"***\"  # JOBFLOW_ALERT_SECRET\n"));
    free(text);
    config_fini(&c);
    assert_int_equal(load_env("JOBFLOW_STORE_URL=mysql://u:hunter2@h:1/d", &c), 0);
    text = printed(&c);
    assert_null(strstr(text, "hunter2"));
    assert_non_null(strstr(text, "\"mysql://u:***@h:1/d\""));
    free(text);
    config_fini(&c);
    /* What looks like an address in a parameter is none. */
    assert_int_equal(load_env("JOBFLOW_STORE_URL=sqlite:/d?x://u:p@h", &c), 0);
    text = printed(&c);
    assert_non_null(strstr(text, "\"sqlite:/d?x://u:p@h\""));
    free(text);
    config_fini(&c);
    /* Nor do errors show them, and a mask never becomes a secret. */
    assert_int_equal(load_env("JOBFLOW_ALERT_SECRET=hunter2", &c), ERR_INVALID);
    assert_null(strstr(last_err.text, "hunter2"));
    assert_int_equal(load_env("JOBFLOW_STORE_URL=oracle://u:hunter2@h/d", &c), ERR_INVALID);
    assert_null(strstr(last_err.text, "hunter2"));
    assert_refused("alert:\n  secret: '***'\n", 2, "this is the mask");
}

/* Without the comments that say where a value comes from. */
static void strip_origins(char *text)
{
    char *to = text;
    for (char *p = text; *p != '\0';) {
        char *comment = strstr(p, "  # ");
        char *end = strchr(p, '\n');
        char *stop = comment && comment < end ? comment : end;
        memmove(to, p, (size_t)(stop - p));
        to += stop - p;
        *to++ = '\n';
        p = end + 1;
    }
    *to = '\0';
}

static void test_printed_reads_back(void **state)
{
    (void)state;
    static const char of_all_kinds[] =
        "JOBFLOW_HTTP_MAX_BODY=1234567 JOBFLOW_STORE_GIVE_UP=61001ms "
        "JOBFLOW_POLICIES_DEFAULT_JITTER=0.1 JOBFLOW_POLICIES_DEFAULT_MULTIPLIER=1.23456789 "
        "JOBFLOW_STORE_URL=sqlite:\"\\'#: JOBFLOW_CLUSTER_NAME=null JOBFLOW_STOP_GRACE=0 "
        "JOBFLOW_DELIVERY_URL_TEMPLATE=http://{service}.{namespace}.svc:8080/j#x";
    static const char *const envs[] = {
        "",
        of_all_kinds,
        "JOBFLOW_POLICIES_DEFAULT_JITTER=0.00001 JOBFLOW_POLICIES_DEFAULT_MULTIPLIER=20",
        "JOBFLOW_POLICIES_DEFAULT_JITTER=.12345678901234567891",
        "JOBFLOW_POLICIES_DEFAULT_MULTIPLIER=100",
        "JOBFLOW_POLICIES_DEFAULT_JITTER=0.00000000000000000001",
    };
    for (size_t i = 0; i < sizeof(envs) / sizeof(envs[0]); i++) {
        struct config a;
        struct config b;
        if (load_env(envs[i], &a) != 0)
            fail_msg("%s", last_err.text);
        memcpy(a.policies[1].name, "p.1", 4);
        a.policies[1] = a.policies[0];
        memcpy(a.policies[1].name, "1e3", 4);
        a.policies[1].backoff.cap_ms = 12345678;
        a.n_policies = 2;
        char *first = printed(&a);
        assert_int_equal(load_text(first, &b), 0);
        char *second = printed(&b);
        strip_origins(first);
        strip_origins(second);
        assert_string_equal(first, second);
        free(first);
        free(second);
        for (size_t k = 0; k < config_n_keys; k++) {
            if (config_keys[k].kind == KIND_DOUBLE)
                assert_memory_equal(config_field(&a, &config_keys[k]),
                                    config_field(&b, &config_keys[k]), sizeof(double));
        }
        assert_int_equal(b.policies[1].backoff.cap_ms, 12345678);
        config_fini(&a);
        config_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_docs_name_every_key),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_empty_files),
        cmocka_unit_test(test_unknown_keys),
        cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_not_a_configuration),
        cmocka_unit_test(test_too_many_policies),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_connections),
        cmocka_unit_test(test_kubernetes_variables),
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_secrets_are_masked),
        cmocka_unit_test(test_printed_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
