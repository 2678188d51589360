/* SPDX-License-Identifier: Apache-2.0 */
/* What no single value shows: values that exclude each other. */
#include "node/config_internal.h"

#include <assert.h>
#include <string.h>

/* "store.statement_timeout (5s, jobflow.yaml:4)". */
static void put_value(const struct config *c, size_t key, struct buf *b)
{
    const struct config_key *k = &config_keys[key];
    buf_addf(b, "%s (", k->name);
    config_value_put(k, (const char *)c + k->offset, b);
    buf_addz(b, ", ");
    config_origin_put(c->origins, key, c->origins->keys[key], b);
    buf_addc(b, ')');
}

static int find_key(const char *section, const char *name)
{
    int key = config_key_find(str_from(section), str_from(name));
    assert(key >= 0);
    return key;
}

struct name {
    const char *section;
    const char *name;
};

/* "<a> must be <relation> <b>: <why>". */
static int contradiction(const struct config *c, struct name a, const char *relation, struct name b,
                         const char *why, struct err *err)
{
    struct buf text = BUF_INIT;
    put_value(c, (size_t)find_key(a.section, a.name), &text);
    buf_addf(&text, " must be %s ", relation);
    put_value(c, (size_t)find_key(b.section, b.name), &text);
    buf_addf(&text, ": %s", why);
    int rc = err_set(err, ERR_INVALID, STR_FMT, STR_ARG(buf_str(&text)));
    buf_fini(&text);
    return rc;
}

static int check_limits(const struct config *c, struct err *err)
{
    if (c->slack_ms <= c->statement_timeout_ms)
        return contradiction(c, (struct name){"scheduler", "slack"}, "above",
                             (struct name){"store", "statement_timeout"},
                             "a submission may commit that late, and scans must still see it", err);
    if (c->timeout_ms > c->max_timeout_ms)
        return contradiction(c, (struct name){"delivery", "timeout"}, "at most",
                             (struct name){"tasks", "max_timeout"},
                             "the time-out of tasks that have none of their own", err);
    if (c->max_payload > c->max_body)
        return contradiction(c, (struct name){"tasks", "max_payload"}, "at most",
                             (struct name){"http", "max_body"},
                             "such a payload could not be submitted", err);
    if (c->lookahead_ms < c->scan_interval_ms)
        return contradiction(c, (struct name){"scheduler", "lookahead"}, "at least",
                             (struct name){"scheduler", "scan_interval"},
                             "tasks due between two scans would be late", err);
    if (c->full_read_ms < c->scan_interval_ms)
        return contradiction(c, (struct name){"scheduler", "full_read"}, "at least",
                             (struct name){"scheduler", "scan_interval"},
                             "a full read is one of the scans", err);
    if (c->lane_limit > c->max_tracked)
        return contradiction(c, (struct name){"scheduler", "lane_limit"}, "at most",
                             (struct name){"scheduler", "max_tracked"},
                             "one lane is a part of the whole", err);
    return 0;
}

static int check_policies(const struct config *c, struct err *err)
{
    for (size_t i = 0; i < c->n_policies; i++) {
        const struct retry_policy *p = &c->policies[i];
        if (p->backoff.cap_ms >= p->backoff.initial_ms)
            continue;
        size_t first = config_first_policy_key();
        size_t key = (size_t)find_key("policies", "cap");
        struct origin where = i == 0 ? c->origins->keys[key] : c->origins->policies[i][key - first];
        struct buf text = BUF_INIT;
        config_origin_put(c->origins, key, where, &text);
        int rc = err_set(err, ERR_INVALID,
                         STR_FMT ": policies.%s: cap (%lldms) must be at least initial (%lldms)",
                         STR_ARG(buf_str(&text)), p->name, (long long)p->backoff.cap_ms,
                         (long long)p->backoff.initial_ms);
        buf_fini(&text);
        return rc;
    }
    return 0;
}

/* "<where it stands>: <section>.<name>: <why>". */
static int refuse_key(const struct config *c, struct name n, const char *why, struct err *err)
{
    size_t key = (size_t)find_key(n.section, n.name);
    struct buf where = BUF_INIT;
    config_origin_put(c->origins, key, c->origins->keys[key], &where);
    int rc = err_set(err, ERR_INVALID, STR_FMT ": %s: %s", STR_ARG(buf_str(&where)),
                     config_keys[key].name, why);
    buf_fini(&where);
    return rc;
}

static int check_cluster(const struct config *c, struct err *err)
{
    if (c->etcd && !strncmp(c->store, "sqlite:", 7))
        return refuse_key(c, (struct name){"cluster", "etcd"},
                          "SQLite is for one node, which needs no etcd: a cluster needs PostgreSQL "
                          "or MySQL/MariaDB (store.url)",
                          err);
    if (!c->etcd_user != !c->etcd_password)
        return refuse_key(c, (struct name){"cluster", c->etcd_user ? "etcd_user" : "etcd_password"},
                          "etcd_user and etcd_password go together", err);
    if (!c->etcd_cert_file != !c->etcd_key_file)
        return refuse_key(
            c, (struct name){"cluster", c->etcd_cert_file ? "etcd_cert_file" : "etcd_key_file"},
            "etcd_cert_file and etcd_key_file go together", err);
    return 0;
}

static int check_alert(const struct config *c, struct err *err)
{
    if (!c->alert_secret || c->alert_url)
        return 0;
    return refuse_key(c, (struct name){"alert", "secret"},
                      "there is nothing to sign, since alert.url is not set", err);
}

int config_check_contradictions(const struct config *c, struct err *err)
{
    int rc = check_alert(c, err);
    if (rc == 0)
        rc = check_cluster(c, err);
    if (rc == 0)
        rc = check_limits(c, err);
    if (rc == 0)
        rc = check_policies(c, err);
    return rc;
}
