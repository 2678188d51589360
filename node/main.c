/* SPDX-License-Identifier: Apache-2.0 */
/* jobflowd: reads the configuration and does what it says. */
#include <curl/curl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "node/config.h"
#include "node/node.h"
#include "node/store/store.h"

static int migrate(const struct config *cfg)
{
    const struct driver_options opt = {.statement_timeout_ms = 10 * cfg->statement_timeout_ms,
                                       .named_statements = cfg->store_named_statements};
    struct err err = {0};
    int from;
    int to;

    if (store_migrate(cfg->store, &opt, &from, &to, &err)) {
        (void)fprintf(stderr, "jobflowd: %s\n", err.text);
        return 1;
    }
    if (from == to)
        (void)printf("schema version %d: nothing to do\n", to);
    else
        (void)printf("schema migrated from version %d to %d\n", from, to);
    return 0;
}

static int run(const struct config *cfg)
{
    struct log *log;
    int status;

    if (log_new(STDERR_FILENO, cfg->log_format, cfg->log_level, &log)) {
        (void)fprintf(stderr, "jobflowd: no memory for the log\n");
        return 1;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    /* A few threads that allocate and free across one another: one arena each would only keep
     * memory. */
    (void)mallopt(M_ARENA_MAX, 2);
    /* Fixed, or they would grow with the largest block ever freed, up to 32 and 64 MiB: after a
     * burst of large bodies and answers the process would keep as much. */
    (void)mallopt(M_MMAP_THRESHOLD, 512 * 1024);
    (void)mallopt(M_TRIM_THRESHOLD, 1024 * 1024);
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) {
        (void)fprintf(stderr, "jobflowd: libcurl could not be initialised\n");
        log_free(log);
        return 1;
    }
    status = node_run(cfg, log);
    curl_global_cleanup();
    log_free(log);
    return status;
}

int main(int argc, char **argv)
{
    struct config cfg;
    enum config_command command;
    struct err err = {0};
    int status = 0;

    if (config_load(argc, argv, environ, &cfg, &command, &err)) {
        (void)fprintf(stderr, "jobflowd: %s\n", err.text);
        return 2;
    }
    switch (command) {
    case CONFIG_HELP:
        config_print_help(stdout);
        break;
    case CONFIG_VERSION:
        (void)printf("jobflowd %s\n", JF_VERSION);
        break;
    case CONFIG_CHECK:
        config_print(&cfg, stdout);
        break;
    case CONFIG_MIGRATE:
        status = migrate(&cfg);
        break;
    case CONFIG_RUN:
        status = run(&cfg);
        break;
    }
    config_fini(&cfg);
    return status;
}
