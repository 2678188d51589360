/* SPDX-License-Identifier: Apache-2.0 */
#include "node/config_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "node/dispatch/sign.h"
#include "proto/member.h"

#define KIB 1024.0
#define MIB (1024.0 * KIB)
#define GIB (1024.0 * MIB)
#define SECOND 1000.0
#define MINUTE (60.0 * SECOND)
#define HOUR (60.0 * MINUTE)
#define DAY (24.0 * HOUR)

static int check_name(struct str v, struct err *err)
{
    if (!name_valid(v, MEMBER_NAME_MAX))
        return err_set(err, ERR_INVALID, "expected 1 to %d of the characters A-Z a-z 0-9 . _ -",
                       MEMBER_NAME_MAX);
    return 0;
}

static bool has_prefix(struct str v, const char *prefix)
{
    size_t len = strlen(prefix);
    return v.len > len && memcmp(v.p, prefix, len) == 0;
}

static int check_http_url(struct str v, struct err *err)
{
    if (!has_prefix(v, "http://") && !has_prefix(v, "https://"))
        return err_set(err, ERR_INVALID, "expected a URL that begins with http:// or https://");
    return 0;
}

/* URLs with commas between them. */
static int check_etcd(struct str v, struct err *err)
{
    while (v.len) {
        const char *comma = memchr(v.p, ',', v.len);
        struct str url = {v.p, comma ? (size_t)(comma - v.p) : v.len};

        if (check_http_url(url, err))
            return ERR_INVALID;
        v.p += url.len + (comma ? 1 : 0);
        v.len -= url.len + (comma ? 1 : 0);
    }
    return 0;
}

/* Whatever stands in braces is a name that the node fills in. */
static int check_template(struct str v, struct err *err)
{
    bool has_service = false;
    int rc = check_http_url(v, err);
    for (size_t i = 0; i < v.len && rc == 0; i++) {
        if (v.p[i] != '{' && v.p[i] != '}')
            continue;
        struct str rest = {v.p + i, v.len - i};
        if (has_prefix(rest, "{service}") || str_eqz(rest, "{service}")) {
            has_service = true;
            i += strlen("{service}") - 1;
        } else if (has_prefix(rest, "{namespace}") || str_eqz(rest, "{namespace}")) {
            i += strlen("{namespace}") - 1;
        } else {
            rc = err_set(err, ERR_INVALID, "only {service} and {namespace} are filled in");
        }
    }
    if (rc == 0 && !has_service)
        rc = err_set(err, ERR_INVALID, "{service} is missing: all services would share one URL");
    return rc;
}

static int check_listen(struct str v, struct err *err)
{
    int64_t port;
    const char *colon = memrchr(v.p, ':', v.len);
    size_t host_len = colon ? (size_t)(colon - v.p) : 0;
    struct str digits = {colon ? colon + 1 : NULL, colon ? v.len - host_len - 1 : 0};
    bool bare_v6 = host_len > 0 && v.p[0] != '[' && memchr(v.p, ':', host_len);
    if (host_len == 0 || bare_v6 || !str_to_i64(digits, &port) || port < 0 || port > 65535)
        return err_set(err, ERR_INVALID,
                       "expected ADDR:PORT, such as 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080");
    return 0;
}

/* Reads a byte, since a folder can be opened as well. */
static int check_readable(struct str v, struct err *err)
{
    char path[PATH_MAX];
    FILE *f = NULL;

    errno = ENAMETOOLONG;
    if (v.len < sizeof(path)) {
        memcpy(path, v.p, v.len);
        path[v.len] = '\0';
        f = fopen(path, "re");
    }
    if (!f)
        return err_set(err, ERR_INVALID, "the file cannot be opened: %s", strerror(errno));
    errno = 0;
    bool has_content = fgetc(f) != EOF;
    const char *why = errno ? strerror(errno) : "it is empty";
    (void)fclose(f); /* nothing was written */
    return has_content ? 0 : err_set(err, ERR_INVALID, "the file cannot be read: %s", why);
}

static int check_secret(struct str v, struct err *err)
{
    if (str_eqz(v, "***"))
        return err_set(err, ERR_INVALID,
                       "this is the mask that --check-config prints: put the "
                       "real secret in its place");
    return sign_check_secret(v, err);
}

static int check_store(struct str v, struct err *err)
{
    if (str_eqz(v, "sqlite:") || has_prefix(v, "sqlite::") || has_prefix(v, "sqlite:file:"))
        return err_set(err, ERR_INVALID,
                       "expected a file, sqlite:FILE: tasks have to outlive the node");
    if (!has_prefix(v, "sqlite:") && !has_prefix(v, "postgres://") && !has_prefix(v, "mysql://") &&
        !has_prefix(v, "mariadb://"))
        return err_set(err, ERR_INVALID,
                       "expected sqlite:FILE or postgres://user:password@host:port/db or "
                       "mysql://user:password@host:port/db");
    if (memmem(v.p, v.len, ":***@", 5))
        return err_set(err, ERR_INVALID,
                       "the password is the mask that --check-config prints: "
                       "put the real one in its place");
    return 0;
}

#define AT(field) offsetof(struct config, field)
#define DURATION(field, def, lo, hi)                                                               \
    .kind = KIND_DURATION, .offset = AT(field), .preset = def, .min = lo, .max = hi
#define SIZE(field, def, lo, hi)                                                                   \
    .kind = KIND_SIZE, .offset = AT(field), .preset = def, .min = lo, .max = hi
#define U32(field, def, lo, hi)                                                                    \
    .kind = KIND_U32, .offset = AT(field), .preset = def, .min = lo, .max = hi
#define I32(field, def, lo, hi)                                                                    \
    .kind = KIND_I32, .offset = AT(field), .preset = def, .min = lo, .max = hi
#define DOUBLE(field, def, lo, hi)                                                                 \
    .kind = KIND_DOUBLE, .offset = AT(field), .preset = def, .min = lo, .max = hi
#define STRING(field, def) .kind = KIND_STRING, .offset = AT(field), .preset = def
#define FLAG(name, hint, help) .flag = name, .flag_hint = hint, .flag_help = help

/* clang-format off */
const struct config_key config_keys[] = {
    {"alert.secret", STRING(alert_secret, NULL), .check = check_secret, .secret = true},
    {"alert.timeout", DURATION(alert_timeout_ms, "10s", 100, HOUR)},
    {"alert.url", STRING(alert_url, NULL), .check = check_http_url, .url = true},
    {"cluster.advertise", STRING(advertise, NULL), .check = check_listen},
    {"cluster.etcd", STRING(etcd, NULL), .check = check_etcd, .url = true,
     FLAG("--etcd", "URL[,URL…]", "etcd, where the nodes of a cluster find one another")},
    {"cluster.etcd_ca_file", STRING(etcd_ca_file, NULL), .check = check_readable},
    {"cluster.etcd_cert_file", STRING(etcd_cert_file, NULL), .check = check_readable},
    {"cluster.etcd_key_file", STRING(etcd_key_file, NULL), .check = check_readable},
    {"cluster.etcd_password", STRING(etcd_password, NULL), .secret = true},
    {"cluster.etcd_user", STRING(etcd_user, NULL)},
    {"cluster.name", STRING(cluster, "default"), .check = check_name,
     FLAG("--cluster", "NAME", "the cluster's name")},
    {"cluster.node_name", STRING(node_name, NULL), .check = check_name,
     FLAG("--node-name", "NAME", "this node's name (default: the host's)")},
    {"cluster.secret", STRING(cluster_secret, NULL), .check = check_secret, .secret = true},
    {"cluster.ttl", DURATION(ttl_ms, "10s", SECOND, HOUR)},
    {"delivery.concurrency", I32(concurrency, "64", 1, 100000)},
    {"delivery.connect_timeout", DURATION(connect_timeout_ms, "5s", 10, HOUR)},
    {"delivery.low_speed", DURATION(low_speed_ms, "30s", SECOND, DAY)},
    {"delivery.max_answer", SIZE(max_answer, "64KiB", KIB, 16 * MIB)},
    {"delivery.max_in_flight", U32(max_in_flight, "2048", 1, 1e6)},
    {"delivery.namespace", STRING(url_namespace, "default"), .check = check_name},
    {"delivery.timeout", DURATION(timeout_ms, "60s", 10, 24 * DAY)},
    {"delivery.url_template", STRING(url_template, NULL), .check = check_template, .url = true},
    {"dispatch.ca_file", STRING(ca_file, NULL), .check = check_readable},
    {"dispatch.instance_set_aside", DURATION(instance_set_aside_ms, "10s", 1, HOUR)},
    {"dispatch.max_per_host", U32(max_per_host, "0", 0, 1e6)},
    {"dispatch.refresh", DURATION(refresh_ms, "30s", SECOND, DAY)},
    {"http.body_timeout", DURATION(body_timeout_ms, "20s", 100, DAY)},
    {"http.header_timeout", DURATION(header_timeout_ms, "10s", 100, DAY)},
    {"http.idle_timeout", DURATION(idle_timeout_ms, "75s", 100, DAY)},
    {"http.listen", STRING(listen, "127.0.0.1:8080"), .check = check_listen,
     FLAG("--listen", "ADDR:PORT", "where the HTTP interface listens; port 0 takes a free one")},
    {"http.max_body", SIZE(max_body, "8MiB", KIB, GIB)},
    {"http.max_connections", U32(max_connections, "10000", 1, 1e6)},
    {"http.max_header", SIZE(max_header, "16KiB", KIB, MIB)},
    {"http.threads", U32(http_threads, "2", 1, 256)},
    {"http.write_timeout", DURATION(write_timeout_ms, "20s", 100, DAY)},
    {"log.format", .kind = KIND_LOG_FORMAT, .offset = AT(log_format), .preset = "logfmt",
     FLAG("--log-format", "FORMAT", "logfmt or json")},
    {"log.level", .kind = KIND_LOG_LEVEL, .offset = AT(log_level), .preset = "info",
     FLAG("--log-level", "LEVEL", "debug, info, warn or error")},
    {"policies.default.cap", DURATION(policies[0].backoff.cap_ms, "1h", 1, 365 * DAY)},
    {"policies.default.initial", DURATION(policies[0].backoff.initial_ms, "5s", 1, 365 * DAY)},
    {"policies.default.jitter", DOUBLE(policies[0].backoff.jitter, "0.2", 0, 1)},
    {"policies.default.max_retry", I32(policies[0].max_retry, "10", 0, TASK_MAX_RETRY_MAX)},
    {"policies.default.multiplier", DOUBLE(policies[0].backoff.multiplier, "2", 1, 100)},
    {"pull.max_polls", U32(pull_max_polls, "4096", 1, 1e6)},
    {"pull.max_polls_per_service", U32(pull_max_polls_per_service, "1024", 1, 1e6)},
    {"retention.failed", DURATION(failed_retention_ms, "30d", SECOND, 36500 * DAY)},
    {"retention.history", DURATION(history_retention_ms, "7d", SECOND, 36500 * DAY)},
    {"retention.interval", DURATION(retention_interval_ms, "10m", SECOND, 7 * DAY)},
    {"retry.max_snoozes", I32(max_snoozes, "100", 0, 1e6)},
    {"retry.retry_after_cap", DURATION(retry_after_cap_ms, "24h", 1, 365 * DAY)},
    {"retry.snooze_cap", DURATION(snooze_cap_ms, "24h", 1, 365 * DAY)},
    {"scheduler.full_read", DURATION(full_read_ms, "60s", 100, DAY)},
    {"scheduler.ghost_margin", DURATION(ghost_margin_ms, "60s", 10, DAY)},
    {"scheduler.lane_limit", U32(lane_limit, "50000", 2, 1e6)},
    {"scheduler.lookahead", DURATION(lookahead_ms, "2s", 10, HOUR)},
    {"scheduler.max_tracked", U32(max_tracked, "200000", 1, 1e7)},
    {"scheduler.scan_interval", DURATION(scan_interval_ms, "1s", 10, HOUR)},
    {"scheduler.slack", DURATION(slack_ms, "6s", 2, HOUR)},
    {"stop.grace", DURATION(stop_grace_ms, "30s", 0, DAY)},
    {"store.batch_rows", U32(store_batch_rows, "500", 1, 10000)},
    {"store.connections", U32(store_connections, "4", 1, 256)},
    {"store.give_up", DURATION(store_give_up_ms, "10s", 10, HOUR)},
    {"store.named_statements", .kind = KIND_BOOL, .offset = AT(store_named_statements),
     .preset = "true"},
    {"store.queue_limit", U32(store_queue_limit, "10000", 1, 1e6)},
    {"store.statement_timeout", DURATION(statement_timeout_ms, "5s", 1, HOUR)},
    {"store.url", STRING(store, "sqlite:jobflow.db"), .check = check_store, .url = true,
     FLAG("--store", "URL", "sqlite:FILE, or postgres:// or mysql://user:password@host:port/db")},
    {"tasks.max_ahead", DURATION(max_ahead_ms, "3650d", SECOND, 36500 * DAY)},
    {"tasks.max_payload", SIZE(max_payload, "64KiB", 64, 4 * MIB)},
    {"tasks.max_timeout", DURATION(max_timeout_ms, "24h", 10, 24 * DAY)},
};
/* clang-format on */
const size_t config_n_keys = sizeof(config_keys) / sizeof(config_keys[0]);
