/* SPDX-License-Identifier: Apache-2.0 */
#include "node/members_internal.h"

#include <stdlib.h>
#include <string.h>

#include "node/core/ownership.h"

static void on_registered(void *ctx)
{
    struct members *m = ctx;

    m->is_held = false;
    LOG(m->node->log, LOG_INFO, "cluster.registered", "this node's key stands in etcd",
        F_Z("node", m->node->cfg->node_name), F_Z("cluster", m->node->cfg->cluster));
}

static void on_lost(void *ctx, const char *why)
{
    struct members *m = ctx;

    LOG(m->node->log, LOG_WARN, "cluster.lost",
        "this node's key is gone from etcd; it is being registered again",
        F_Z("node", m->node->cfg->node_name), F_Z("why", why));
}

static void on_held(void *ctx, const struct member *holder)
{
    struct members *m = ctx;

    m->is_held = true;
    LOG(m->node->log, LOG_WARN, "cluster.name_taken",
        "another process holds this node's name in etcd; waiting until it is gone. Give each node "
        "a name of its own (--node-name)",
        F_Z("node", m->node->cfg->node_name), F_Z("holder", holder->address),
        F_INT("holderEpoch", holder->epoch));
}

static void on_members(void *ctx, mono_ms asked_at, const struct member *list, size_t n)
{
    members_witness(ctx, VIEW_ETCD, asked_at, list, n);
}

static void on_trouble(void *ctx, int rc, const struct err *err)
{
    struct members *m = ctx;

    if (rc == ERR_CORRUPT || rc == ERR_TOO_BIG) { /* etcd is well; what stands in it is not */
        LOG(m->node->log, LOG_WARN, "cluster.bad_key", err->text,
            F_Z("node", m->node->cfg->node_name));
        return;
    }
    if (rc && !m->is_troubled)
        LOG(m->node->log, LOG_WARN, "etcd.down",
            "etcd does not answer as it should; the heartbeat rows decide when its view is too old",
            F_Z("error", err->text));
    else if (!rc && m->is_troubled)
        LOG(m->node->log, LOG_INFO, "etcd.up", "etcd answers again",
            F_Z("node", m->node->cfg->node_name));
    m->is_troubled = rc != 0;
}

/* Cuts the list of URLs; both are freed by the caller. */
static int cut_urls(const char *list, char **ret_text, const char ***ret_urls, size_t *ret_n)
{
    size_t n = 1;
    char *text = strdup(list);

    for (const char *p = list; *p; p++)
        n += *p == ',' || *p == ' ';
    const char **urls = calloc(n, sizeof(*urls));
    if (!text || !urls) {
        free(text);
        free(urls);
        return ERR_NOMEM;
    }
    char *save = NULL;
    n = 0;
    for (char *url = strtok_r(text, ", ", &save); url; url = strtok_r(NULL, ", ", &save))
        urls[n++] = url;
    *ret_text = text;
    *ret_urls = urls;
    *ret_n = n;
    return 0;
}

static int etcd_open(struct members *m, struct err *err)
{
    const struct config *c = m->node->cfg;
    const char **urls;
    size_t n_urls;
    char *text;
    int rc = cut_urls(c->etcd, &text, &urls, &n_urls);

    if (rc)
        return err_set(err, rc, "no memory for etcd's URLs");
    struct etcd_config ec = {
        .endpoints = urls,
        .n_endpoints = n_urls,
        .user = c->etcd_user,
        .password = c->etcd_password,
        .ca_file = c->etcd_ca_file,
        .cert_file = c->etcd_cert_file,
        .key_file = c->etcd_key_file,
        .request_timeout_ms = c->ttl_ms / 3,
        .watch_idle_ms = c->ttl_ms,
    };
    rc = etcd_new(m->node->base, &ec, &m->etcd, err);
    free(urls);
    free(text);
    return rc;
}

int members_etcd_join(struct members *m, struct err *err)
{
    struct node *n = m->node;
    struct membership_config mc = {
        .cluster = n->cfg->cluster,
        .ttl_ms = n->cfg->ttl_ms,
        .ctx = m,
        .on_registered = on_registered,
        .on_lost = on_lost,
        .on_held = on_held,
        .on_members = on_members,
        .on_trouble = on_trouble,
    };
    struct member self = {.state = MEMBER_JOINING,
                          .hash_version = OWNERSHIP_HASH_VERSION,
                          .started_at = clock_wall()};
    int rc;

    (void)member_set_text(self.name, sizeof(self.name), str_from(n->cfg->node_name));
    (void)member_set_text(self.address, sizeof(self.address), str_from(n->advertise));
    (void)member_set_text(self.version, sizeof(self.version), STR(JF_VERSION));
    rc = etcd_open(m, err);
    if (!rc)
        rc = membership_new(n->base, m->etcd, &mc, &self, &m->membership);
    return rc == ERR_NOMEM ? err_set(err, rc, "no memory for the membership") : rc;
}
