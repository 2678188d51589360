/* SPDX-License-Identifier: Apache-2.0 */
/* The node's configuration: defaults, then one YAML file, then JOBFLOW_… environment variables,
 * then flags. One alphabetical table of keys (config_table.c) drives all four, --check-config and
 * the test that docs/configuration.md names every key. */
#ifndef JF_NODE_CONFIG_H
#define JF_NODE_CONFIG_H

#include "common/err.h"
#include "common/log.h"
#include "node/core/retry.h"

#include <stdio.h>

#define CONFIG_MAX_POLICIES 64

/* In YAML the keys are nested: `http.max_body` is {http: {max_body: …}}; in the environment it is
 * JOBFLOW_HTTP_MAX_BODY. Durations are written "30s"; sizes "64KiB", "1MiB" or bytes. */
struct config {
    char *alert_secret;       /* alert.secret: signs the webhook; NULL = unsigned */
    int64_t alert_timeout_ms; /* alert.timeout, default 10s */
    char *alert_url;          /* alert.url: told of each FAILED task; NULL = nobody */
    char *cluster;            /* cluster.name (--cluster), default "default" */
    char *node_name; /* cluster.node_name (--node-name), default the host's name, cleaned to
                        [A-Za-z0-9._-] */
    char *advertise; /* cluster.advertise: "host:port" where other members reach this node's HTTP
                        interface; NULL = as it listens, or the host's name and that port */
    char *cluster_secret; /* cluster.secret: signs what members tell one another; NULL = no hints
                             between nodes: near tasks of other owners wait for a scan */
    char *etcd;           /* cluster.etcd (--etcd): URLs, comma separated; NULL = none */
    char *etcd_ca_file;   /* cluster.etcd_ca_file: PEM; NULL = the system's */
    char *etcd_cert_file; /* cluster.etcd_cert_file, with etcd_key_file: this node's own */
    char *etcd_key_file;
    char *etcd_password; /* cluster.etcd_password, with etcd_user */
    char *etcd_user;     /* cluster.etcd_user; NULL = no authentication */
    int64_t ttl_ms;      /* cluster.ttl, default 10s: the node's heartbeat is a third of it */
    int64_t connect_timeout_ms; /* delivery.connect_timeout, default 5s */
    int32_t concurrency;    /* delivery.concurrency, default 64: attempts per service at a time */
    int64_t low_speed_ms;   /* delivery.low_speed, default 30s: an answer standing still so long */
    size_t max_answer;      /* delivery.max_answer, default 64KiB */
    uint32_t max_in_flight; /* delivery.max_in_flight, default 2048 */
    int64_t timeout_ms;     /* delivery.timeout, default 60s */
    char *url_template;     /* delivery.url_template: for services without a baseUrl, such as
                               "http://{service}.{namespace}.svc:8080/jobflow"; NULL = none */
    char *url_namespace;    /* delivery.namespace: for the template, default "default" */
    char *ca_file;          /* dispatch.ca_file: PEM, in the place of the system's; NULL = those */
    uint32_t max_per_host;  /* dispatch.max_per_host, default 0: connections to one host, 0 = any */
    int64_t refresh_ms;     /* dispatch.refresh, default 30s: addresses and connections last so */
    int64_t instance_set_aside_ms; /* dispatch.instance_set_aside, default 10s */
    int64_t body_timeout_ms;       /* http.body_timeout, default 20s */
    int64_t header_timeout_ms;     /* http.header_timeout, default 10s */
    int64_t idle_timeout_ms;       /* http.idle_timeout, default 75s */
    char *listen;                  /* http.listen (--listen), default "127.0.0.1:8080" */
    size_t max_body;               /* http.max_body, default 8MiB */
    uint32_t max_connections;      /* http.max_connections, default 10000 */
    size_t max_header;             /* http.max_header, default 16KiB */
    uint32_t http_threads;         /* http.threads, default 2 */
    int64_t write_timeout_ms;      /* http.write_timeout, default 20s */
    enum log_format log_format;    /* log.format (--log-format): "logfmt", "json" */
    enum log_level log_level;      /* log.level (--log-level), default info */
    struct retry_policy policies[CONFIG_MAX_POLICIES]; /* policies.<name>.{initial, multiplier, cap,
                                 jitter, max_retry}; [0] is "default": 5s, 2.0, 1h, 0.2, 10. The
                                 default's keys also as JOBFLOW_POLICIES_DEFAULT_INITIAL … */
    size_t n_policies;
    uint32_t pull_max_polls;             /* pull.max_polls, default 4096 */
    uint32_t pull_max_polls_per_service; /* pull.max_polls_per_service, default 1024 */
    int64_t retry_after_cap_ms;          /* retry.retry_after_cap, default 24h */
    int32_t max_snoozes;                 /* retry.max_snoozes, default 100 */
    int64_t snooze_cap_ms;               /* retry.snooze_cap, default 24h */
    int64_t full_read_ms;                /* scheduler.full_read, default 60s */
    int64_t ghost_margin_ms;             /* scheduler.ghost_margin, default 60s */
    uint32_t lane_limit;                 /* scheduler.lane_limit, default 50000 */
    int64_t lookahead_ms;                /* scheduler.lookahead, default 2s */
    uint32_t max_tracked;                /* scheduler.max_tracked, default 200000 */
    int64_t scan_interval_ms;            /* scheduler.scan_interval, default 1s */
    int64_t slack_ms;                    /* scheduler.slack, default 6s */
    int64_t stop_grace_ms;               /* stop.grace, default 30s */
    uint32_t store_batch_rows;           /* store.batch_rows, default 500 */
    uint32_t store_connections;          /* store.connections, default 4 */
    int64_t store_give_up_ms;            /* store.give_up, default 10s */
    bool store_named_statements;   /* store.named_statements, default true; false behind a pooler */
    uint32_t store_queue_limit;    /* store.queue_limit, default 10000 */
    int64_t statement_timeout_ms;  /* store.statement_timeout, default 5s */
    char *store;                   /* store.url (--store), default "sqlite:jobflow.db" */
    int64_t max_ahead_ms;          /* tasks.max_ahead, default 10 years (3650d) */
    size_t max_payload;            /* tasks.max_payload, default 64KiB */
    int64_t max_timeout_ms;        /* tasks.max_timeout, default 24h */
    int64_t failed_retention_ms;   /* retention.failed, default 30d */
    int64_t history_retention_ms;  /* retention.history, default 7d */
    int64_t retention_interval_ms; /* retention.interval, default 10m: between walks over history */
    struct config_origins *origins; /* config.c's own: where each value comes from */
};

enum config_command { CONFIG_RUN, CONFIG_CHECK, CONFIG_MIGRATE, CONFIG_HELP, CONFIG_VERSION };

/* Reads everything there is to read. `env` is the process's environment. Unknown keys, wrong values
 * and contradictions are refused: err names the file and line, the variable or the flag, the value,
 * and what is allowed; unknown JOBFLOW_… variables likewise (with the nearest name).
 * Contradictions: slack <= statement_timeout is refused ("slack must be above statement_timeout"),
 * so is a delivery.timeout above tasks.max_timeout, a cap below an initial, a log format that does
 * not exist, … Errors: ERR_INVALID, ERR_IO (file not readable), ERR_NOMEM. On an error *ret is
 * empty. */
MUST_CHECK int config_load(int argc, char *const *argv, char *const *env, struct config *ret,
                           enum config_command *ret_command, struct err *err);
void config_fini(struct config *c);

/* Prints what is in force as YAML that config_load would read, one key a line with where it comes
 * from as a comment; passwords and secrets as "***". */
void config_print(const struct config *c, FILE *to);
void config_print_help(FILE *to);

#endif
