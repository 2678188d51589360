/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the parts in order, runs the loop, and stops them in the reverse order.
 *
 * Stopping: a signal makes the HTTP interface drain and the scheduler stop claiming; claims that
 * come back unsent are given back; the loop ends when nothing is in flight any more, or with the
 * grace time. What is still being delivered then stays SENDING and is rescued by the next process
 * of this name at once, or by others at its deadline. */
#include "node/node.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/ids.h"
#include "node/node_internal.h"

static void on_mail(evutil_socket_t fd, short what, void *arg)
{
    struct node *n = arg;

    (void)fd;
    (void)what;
    (void)mailbox_deliver(n->mailbox);
}

static void on_left(struct node *n)
{
    (void)event_base_loopbreak(n->base);
}

static void leave(struct node *n)
{
    n->leaving = true;
    members_leave(n->members, on_left);
}

static void on_pass(evutil_socket_t fd, short what, void *arg)
{
    struct node *n = arg;

    (void)fd;
    (void)what;
    runner_pass(n);
    if (n->stopping && !n->leaving && sched_is_idle(n->sched) && api_is_drained(n->api))
        leave(n);
}

static void on_grace(evutil_socket_t fd, short what, void *arg)
{
    struct node *n = arg;

    (void)fd;
    (void)what;
    if (n->leaving) /* nothing is in flight any more */
        return;
    LOG(n->log, LOG_WARN, "node.grace_over",
        "attempts still under way are left to the rescue of their ghosts",
        F_INT("inFlight", dispatch_in_flight(n->dispatch)));
    leave(n);
}

static void set_stopping(struct node *n)
{
    n->stopping = true;
    pthread_mutex_lock(&n->status.lock);
    n->status.stopping = true;
    pthread_mutex_unlock(&n->status.lock);
}

static void on_signal(evutil_socket_t number, short what, void *arg)
{
    struct node *n = arg;
    const struct timeval grace = {n->cfg->stop_grace_ms / 1000,
                                  n->cfg->stop_grace_ms % 1000 * 1000};

    (void)what;
    if (n->stopping) {
        (void)event_base_loopbreak(n->base);
        return;
    }
    LOG(n->log, LOG_INFO, "node.stopping", "no new work; waiting for what is in flight",
        F_INT("signal", (int64_t)number), F_INT("inFlight", dispatch_in_flight(n->dispatch)),
        F_INT("graceMs", n->cfg->stop_grace_ms));
    set_stopping(n);
    members_stop(n->members); /* first of all: others take over while this node winds up */
    api_drain(n->api, n->cfg->stop_grace_ms);
    leases_stop(n->leases);
    parcels_stop(n->parcels);
    sched_stop(n->sched, store_clock_now(&n->clock), &n->actions);
    if (event_add(n->grace_event, &grace))
        (void)event_base_loopbreak(n->base);
    runner_later(n);
}

static int loop_init(struct node *n)
{
    struct event_config *ec = event_config_new();
    int rc;

    if (!ec)
        return ERR_NOMEM;
    /* epoll's own time-outs are whole milliseconds, rounded up; this flag asks for a timerfd. */
    (void)event_config_set_flag(ec, EVENT_BASE_FLAG_PRECISE_TIMER);
    n->base = event_base_new_with_config(ec);
    event_config_free(ec);
    if (!n->base)
        return ERR_NOMEM;
    rc = mailbox_new(&n->mailbox);
    if (rc)
        return rc;
    n->mail_event = event_new(n->base, mailbox_fd(n->mailbox), EV_READ | EV_PERSIST, on_mail, n);
    n->pass_event = event_new(n->base, -1, 0, on_pass, n);
    n->wake_event = event_new(n->base, -1, 0, on_pass, n);
    n->grace_event = event_new(n->base, -1, 0, on_grace, n);
    n->term_event = event_new(n->base, SIGTERM, EV_SIGNAL | EV_PERSIST, on_signal, n);
    n->int_event = event_new(n->base, SIGINT, EV_SIGNAL | EV_PERSIST, on_signal, n);
    if (!n->mail_event || !n->pass_event || !n->wake_event || !n->grace_event || !n->term_event ||
        !n->int_event || event_add(n->mail_event, NULL) || event_add(n->term_event, NULL) ||
        event_add(n->int_event, NULL))
        return ERR_NOMEM;
    return 0;
}

static int sched_init(struct node *n)
{
    const struct config *c = n->cfg;
    struct sched_config sc = {
        .lookahead_ms = c->lookahead_ms,
        .scan_interval_ms = c->scan_interval_ms,
        .slack_ms = c->slack_ms,
        .full_read_ms = c->full_read_ms,
        .ghost_margin_ms = c->ghost_margin_ms,
        .default_timeout_ms = c->timeout_ms,
        .default_concurrency = c->concurrency,
        .lane_limit = c->lane_limit,
        .max_tracked = c->max_tracked,
        .max_in_flight = c->max_in_flight,
        .policies = &n->policies,
        .node = str_from(c->node_name),
        .alerts = c->alert_url != NULL,
    };
    uint64_t seed;

    random_bytes(&seed, sizeof(seed));
    return sched_new(&sc, seed, &n->sched);
}

static int store_init(struct node *n, struct err *err)
{
    const struct config *c = n->cfg;
    struct store_config sc = {
        .url = c->store,
        .connections = c->store_connections,
        .queue_limit = c->store_queue_limit,
        .batch_rows = c->store_batch_rows,
        .batch_bytes = 4 << 20, /* max_allowed_packet is 16 MiB on MariaDB */
        .give_up_ms = c->store_give_up_ms,
        .reconnect_max_ms = 2000,
        .driver = {.statement_timeout_ms = c->statement_timeout_ms,
                   .named_statements = c->store_named_statements},
        .on_committed = node_on_committed,
        .on_state = node_on_state,
        .on_warning = node_on_warning,
        .ctx = n,
    };
    int rc = store_start(&sc, NULL, &n->store, err);

    if (!rc)
        n->port = store_port(n->store);
    return rc;
}

/* Descriptors that are neither a client's nor a task's: database, log, loops. */
#define NODE_OWN_FILES 64

/* How many clients may be connected: what the process may open, less what deliveries and the node
 * itself need, so that idle clients never keep a task from leaving. */
static uint32_t client_limit(const struct node *n)
{
    const struct config *c = n->cfg;
    uint64_t kept = (uint64_t)c->max_in_flight + c->store_connections + NODE_OWN_FILES;
    struct rlimit files;
    uint64_t left;

    if (getrlimit(RLIMIT_NOFILE, &files))
        return c->max_connections;
    if (files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
        (void)getrlimit(RLIMIT_NOFILE, &files);
    }
    left = files.rlim_cur > 2 * kept ? files.rlim_cur - kept : files.rlim_cur / 2;
    if (left >= c->max_connections)
        return c->max_connections;
    LOG(n->log, LOG_WARN, "node.few_files",
        "the process may open too few files for http.max_connections: fewer clients are let in. "
        "Raise the limit (ulimit -n, LimitNOFILE)",
        F_INT("maxFiles", (int64_t)files.rlim_cur), F_INT("keptForDelivery", (int64_t)kept),
        F_INT("maxConnections", (int64_t)left));
    return (uint32_t)left;
}

static int api_init(struct node *n, struct err *err)
{
    const struct config *c = n->cfg;
    struct api_env env;
    struct api_config ac = {
        .listen = c->listen,
        .threads = c->http_threads,
        .max_connections = client_limit(n),
        .max_header = c->max_header,
        .max_body = c->max_body,
        .header_timeout_ms = c->header_timeout_ms,
        .body_timeout_ms = c->body_timeout_ms,
        .idle_timeout_ms = c->idle_timeout_ms,
        .write_timeout_ms = c->write_timeout_ms,
        .max_payload = c->max_payload,
        .max_ahead_ms = c->max_ahead_ms,
        .default_concurrency = c->concurrency,
        .default_timeout_ms = c->timeout_ms,
        .max_timeout_ms = c->max_timeout_ms,
        .ghost_margin_ms = c->ghost_margin_ms,
        .alerts = c->alert_url != NULL,
    };

    node_api_env(n, &env);
    return api_start(&ac, &env, &n->api, err);
}

/* Where others reach this node: as configured, or as it listens, with the host's name in the place
 * of an address that stands for all. */
static int advertise_init(struct node *n)
{
    const char *own = api_address(n->api);
    const char *port = strrchr(own, ':');
    char host[HOST_NAME_MAX + 1] = "localhost";
    bool is_any = !strncmp(own, "0.0.0.0:", 8) || !strncmp(own, "[::]:", 5);

    if (n->cfg->advertise) {
        n->advertise = strdup(n->cfg->advertise);
    } else if (!is_any) {
        n->advertise = strdup(own);
    } else {
        (void)gethostname(host, sizeof(host) - 1);
        if (asprintf(&n->advertise, "%s%s", host, port) < 0)
            n->advertise = NULL;
    }
    return n->advertise ? 0 : ERR_NOMEM;
}

static int dispatch_init(struct node *n, struct err *err)
{
    const struct config *c = n->cfg;
    const char *own = api_address(n->api);
    struct dispatch_config dc = {
        .connect_timeout_ms = c->connect_timeout_ms,
        .low_speed_ms = c->low_speed_ms,
        .max_answer = c->max_answer,
        .refresh_ms = c->refresh_ms,
        .max_connections = c->max_in_flight,
        .max_per_host = c->max_per_host,
        .ca_file = c->ca_file,
        .forbidden = &own,
        .n_forbidden = 1,
    };
    struct dispatch *d;
    int rc = dispatch_new(n->base, &dc, &d, err);

    if (!rc)
        n->dispatch = d;
    return rc;
}

static int node_start(struct node *n, struct err *err)
{
    int rc;

    rc = loop_init(n);
    if (rc)
        return err_set(err, rc, "the event loop could not be made");
    n->policies = (struct retry_policies){
        .policies = n->cfg->policies,
        .n = n->cfg->n_policies,
        .retry_after_cap_ms = n->cfg->retry_after_cap_ms,
        .snooze_cap_ms = n->cfg->snooze_cap_ms,
        .max_snoozes = n->cfg->max_snoozes,
    };
    rc = sched_init(n);
    if (!rc)
        rc = service_table_init(&n->services);
    if (!rc)
        rc = instances_init(&n->instances);
    if (!rc)
        rc = house_new(n, &n->house);
    if (!rc)
        rc = forward_new(n, &n->forward);
    if (!rc)
        rc = leases_new(n, &n->leases);
    if (!rc)
        rc = parcels_new(n, &n->parcels);
    if (!rc && n->cfg->alert_url)
        rc = alerts_new(n, &n->alerts);
    if (rc)
        return err_set(err, rc, "the scheduler could not be made");
    rc = store_init(n, err);
    if (rc)
        return rc;
    rc = api_init(n, err);
    if (rc)
        return rc;
    rc = dispatch_init(n, err);
    if (rc)
        return rc;
    if (advertise_init(n))
        return err_set(err, ERR_NOMEM, "no memory for the node's address");
    struct members *members;
    rc = members_new(n, &members, err);
    if (rc)
        return rc;
    n->members = members;
    LOG(n->log, LOG_INFO, "node.started", "the HTTP interface listens",
        F_Z("address", api_address(n->api)), F_Z("node", n->cfg->node_name),
        F_Z("version", JF_VERSION), F_INT("pid", getpid()));
    return 0;
}

static int post_refused(void *impl, struct store_op *op)
{
    (void)impl;
    (void)op;
    return ERR_SHUTDOWN;
}

static void node_stop_parts(struct node *n)
{
    set_stopping(n);
    if (n->mailbox)
        (void)mailbox_deliver(n->mailbox); /* questions of the API, asked before it was told */
    leases_close(n->leases);
    store_draining(n->store); /* a stuck database keeps nobody waiting */
    api_stop(n->api);
    n->api = NULL;
    if (n->mailbox)
        (void)mailbox_deliver(n->mailbox); /* what it gave back, while there is a store */
    if (n->store)
        house_leave(n->house);
    store_stop(n->store);
    n->store = NULL;
    n->port = (struct store_port){.post = post_refused};
    while (n->mailbox && mailbox_deliver(n->mailbox) > 0)
        ;
    dispatch_free(n->dispatch);
    n->dispatch = NULL;
}

static void free_event(struct event *e)
{
    if (e)
        event_free(e);
}

static void node_free(struct node *n)
{
    parcels_free(n->parcels);
    runner_free_flights(n);
    members_free(n->members);
    free(n->advertise);
    alerts_free(n->alerts);
    leases_free(n->leases);
    forward_free(n->forward);
    house_free(n->house);
    sched_free(n->sched);
    actions_fini(&n->actions);
    service_table_fini(&n->services);
    instances_fini(&n->instances);
    free_event(n->mail_event);
    free_event(n->pass_event);
    free_event(n->wake_event);
    free_event(n->grace_event);
    free_event(n->term_event);
    free_event(n->int_event);
    if (n->base)
        event_base_free(n->base);
    mailbox_free(n->mailbox);
    pthread_mutex_destroy(&n->status.lock);
    free(n->claimed_by);
    free(n);
}

int node_run(const struct config *cfg, struct log *log)
{
    struct node *n = calloc(1, sizeof(*n));
    struct err err = {0};
    int status;

    if (!n)
        return 1;
    n->cfg = cfg;
    n->log = log;
    n->port = (struct store_port){.post = post_refused};
    node_state_init(n);
    if (pthread_mutex_init(&n->status.lock, NULL)) {
        free(n);
        return 1;
    }
    if (node_start(n, &err)) {
        LOG(log, LOG_ERROR, "node.start_failed", err.text, F_Z("node", cfg->node_name));
        n->exit_status = 1;
    } else {
        runner_later(n);
        (void)event_base_dispatch(n->base);
    }
    node_stop_parts(n);
    status = n->exit_status;
    LOG(log, LOG_INFO, "node.stopped", NULL, F_Z("node", cfg->node_name), F_INT("status", status));
    node_free(n);
    return status;
}
