/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes know of this process. One thread does all of it: first the settings of each service,
 * if there are any, so that the first task is signed already; then a registration every third of
 * its ttl, so that two may be lost; at the end the farewell. A node that is away is asked again
 * with growing waits; tasks that arrive all the same are taken as ever. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "executor_internal.h"
#include "task.h"

#define INSTANCE_MAX 128
#define INSTANCE_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-"
#define TTL_S_MAX 600
#define REFUSED_TRIES 3 /* a node in the middle of an upgrade; later: a repair is waited for */
#define REFUSED_WAIT_MS 30000
#define RETRY_MS_MIN 1000 /* the longest wait, where a third of the ttl is less */
#define CALL_MS_MAX 5000
#define LEAVE_MS 3000 /* for all services; the last call may end later */
#define LEAVE_CALL_MS 1500
#define LEAVE_TRIES 3
#define LINGER_MS 500 /* for what was sent before the farewell was heard */
#define PATH_SIZE 448 /* two names and what stands between */

/* ---- What is sent ------------------------------------------------------------------------ */

static int make_base_url(struct jobflow_executor *ex, const struct jobflow_config *c)
{
    char url[512];
    const char *address = c->address;
    bool is_v6 = strchr(address, ':') != NULL;

    if (c->base_url) {
        ex->base_url = strdup(c->base_url);
    } else if (strcmp(address, "0.0.0.0") == 0 || strcmp(address, "::") == 0) {
        jfx_log(ex, "base_url is needed: no node reaches a service at %s", address);
        return JOBFLOW_EINVAL;
    } else {
        (void)snprintf(url, sizeof(url), is_v6 ? "http://[%s]:%u%s" : "http://%s:%u%s", address,
                       (unsigned)ex->port, ex->path);
        ex->base_url = strdup(url);
    }
    return ex->base_url ? 0 : JOBFLOW_ENOMEM;
}

static bool is_instance_name(const char *s)
{
    size_t len = strspn(s, INSTANCE_CHARS);

    return len > 0 && len <= INSTANCE_MAX && !s[len] && strcmp(s, ".") != 0 && strcmp(s, "..") != 0;
}

/* The host's name and the port: what is the same after a restart, so that a crash leaves no second
 * registration behind. */
static int make_instance(struct jobflow_executor *ex, const struct jobflow_config *c)
{
    char host[INSTANCE_MAX - 8] = "";
    char name[INSTANCE_MAX + 1];

    if (!c->instance) {
        if (gethostname(host, sizeof(host) - 1))
            host[0] = '\0';
        for (char *p = host; *(p += strspn(p, INSTANCE_CHARS)); p++)
            *p = '-';
        (void)snprintf(name, sizeof(name), "%s:%u", host[0] ? host : "localhost",
                       (unsigned)ex->port);
    } else if (!is_instance_name(c->instance)) {
        jfx_log(ex, "configuration: instance is letters, digits and ._:- , 1 to 128 of them, but "
                    "neither \".\" nor \"..\"");
        return JOBFLOW_EINVAL;
    }
    ex->instance = strdup(c->instance ? c->instance : name);
    return ex->instance ? 0 : JOBFLOW_ENOMEM;
}

static bool add_text(struct cJSON *o, const char *name, const char *text)
{
    return !text || cJSON_AddStringToObject(o, name, text);
}

static bool add_number(struct cJSON *o, const char *name, unsigned n)
{
    return n == 0 || cJSON_AddNumberToObject(o, name, n);
}

/* Errors: ENOMEM. */
static int make_settings(struct jobflow_executor *ex, const struct jobflow_config *c)
{
    if (!c->secrets[0] && !c->concurrency && !c->shards && !c->timeout && !c->policy)
        return 0;
    struct cJSON *o = cJSON_CreateObject();
    if (o && add_text(o, "baseUrl", ex->base_url) && add_text(o, "secret", c->secrets[0]) &&
        add_number(o, "concurrency", c->concurrency) && add_number(o, "shards", c->shards) &&
        add_text(o, "timeout", c->timeout) && add_text(o, "policy", c->policy))
        ex->settings = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return ex->settings ? 0 : JOBFLOW_ENOMEM;
}

/* Errors: ENOMEM. */
static int make_beat(struct jobflow_executor *ex)
{
    struct cJSON *o = cJSON_CreateObject();
    char ttl[32];

    (void)snprintf(ttl, sizeof(ttl), "%ds", (int)(ex->ttl_ms / 1000));
    if (o && add_text(o, "instance", ex->instance) && add_text(o, "baseUrl", ex->base_url) &&
        add_text(o, "ttl", ttl))
        ex->beat = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return ex->beat ? 0 : JOBFLOW_ENOMEM;
}

int jfx_registration_init(struct jobflow_executor *ex, const struct jobflow_config *c)
{
    ex->registers = c->node_url && !c->skip_registration;
    if (!ex->registers)
        return 0;
    if (c->ttl_s > TTL_S_MAX) {
        jfx_log(ex, "configuration: ttl_s is at most 600");
        return JOBFLOW_EINVAL;
    }
    ex->ttl_ms = c->ttl_s > 0 ? c->ttl_s * INT64_C(1000) : 15000;
    int rc = make_base_url(ex, c);
    if (rc == 0)
        rc = make_instance(ex, c);
    if (rc == 0)
        rc = make_settings(ex, c);
    if (rc == 0)
        rc = make_beat(ex);
    for (size_t i = 0; i < ex->n_services; i++)
        ex->services[i].is_settled = !ex->settings;
    return rc;
}

void jfx_registration_fini(struct jobflow_executor *ex)
{
    free(ex->beat);
    free(ex->settings);
    free(ex->instance);
    free(ex->base_url);
}

enum jobflow_registration jobflow_executor_registration(const struct jobflow_executor *ex)
{
    if (!ex->registers)
        return JOBFLOW_NOT_REGISTERING;
    if (atomic_load(&ex->stop))
        return JOBFLOW_LEFT;
    return atomic_load(&ex->lives_until_ms) > jfx_now_ms() ? JOBFLOW_REGISTERED
                                                           : JOBFLOW_REGISTERING;
}

/* ---- Registering ------------------------------------------------------------------------- */

int64_t jfx_beat_wait_ms(int64_t ttl_ms)
{
    int64_t third = ttl_ms / 3;
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return third - (t.tv_nsec / 1000) % (third / 10 + 1);
}

static void note_success(struct jobflow_executor *ex, struct jfx_service *s, int64_t sent_ms)
{
    bool is_news = s->is_failing || s->lives_until_ms == 0;
    int64_t all_ms = INT64_MAX;

    s->n_failed = 0;
    s->is_failing = false;
    s->next_ms = sent_ms + jfx_beat_wait_ms(ex->ttl_ms);
    s->lives_until_ms = sent_ms + ex->ttl_ms;
    for (size_t i = 0; i < ex->n_services; i++) {
        if (ex->services[i].lives_until_ms < all_ms)
            all_ms = ex->services[i].lives_until_ms;
    }
    atomic_store(&ex->lives_until_ms, all_ms);
    if (is_news)
        jfx_log(ex, "%s is registered at JobFlow: %s at %s", s->name, ex->instance, ex->base_url);
}

/* One log line for each new reason, not for each try. */
static void note_failure(struct jobflow_executor *ex, struct jfx_service *s,
                         const struct jfx_call *call, bool is_refused)
{
    int64_t longest_ms = ex->ttl_ms / 3 > RETRY_MS_MIN ? ex->ttl_ms / 3 : RETRY_MS_MIN;
    int64_t wait_ms = jfx_node_wait_ms(++s->n_failed, 0);

    if (wait_ms > longest_ms)
        wait_ms = longest_ms;
    if (wait_ms < call->asked_ms)
        wait_ms = call->asked_ms;
    if (is_refused && s->n_failed > REFUSED_TRIES)
        wait_ms = REFUSED_WAIT_MS;
    s->next_ms = jfx_now_ms() + wait_ms;
    if (!s->is_failing || s->failing_status != call->status)
        jfx_log(ex, "%s is not registered %s: HTTP %d %.200s", s->name,
                s->lives_until_ms > 0 ? "any more, or not for long" : "yet", call->status,
                call->answer ? call->answer : call->error);
    s->is_failing = true;
    s->failing_status = call->status;
}

static void tell(struct jobflow_executor *ex, struct jfx_service *s)
{
    char path[PATH_SIZE];
    bool settles = !s->is_settled;
    struct jfx_call call = {.method = settles ? "PUT" : "POST",
                            .path = path,
                            .body = settles ? ex->settings : ex->beat,
                            .tries = 1,
                            .abort = &ex->stop,
                            .timeout_ms = CALL_MS_MAX};
    int64_t sent_ms = jfx_now_ms();

    (void)snprintf(path, sizeof(path), "/api/services/%s%s", s->name, settles ? "" : "/instances");
    s->may_be_known |= !settles;
    int rc = jfx_node_call(ex->node, &call);
    bool is_taken = rc == 0 && (call.status == 200 || call.status == 201);
    if (is_taken && settles)
        s->is_settled = true;
    else if (is_taken)
        note_success(ex, s, sent_ms);
    else if (!atomic_load(&ex->stop))
        note_failure(ex, s, &call, rc == 0);
    free(call.answer);
}

/* ---- Leaving ----------------------------------------------------------------------------- */

/* Returns whether tasks may have been under way. */
static bool leave(struct jobflow_executor *ex, const struct jfx_service *s, int64_t end_ms)
{
    char path[PATH_SIZE];
    struct jfx_call call = {
        .method = "DELETE", .path = path, .tries = 1, .timeout_ms = LEAVE_CALL_MS};
    bool has_left = false;

    (void)snprintf(path, sizeof(path), "/api/services/%s/instances/%s", s->name, ex->instance);
    for (unsigned n = 1; !has_left && n <= LEAVE_TRIES && jfx_now_ms() < end_ms; n++) {
        if (n > 1)
            jfx_node_sleep(jfx_node_wait_ms(n - 1, 0), NULL);
        free(call.answer);
        int rc = jfx_node_call(ex->node, &call);
        has_left = rc == 0 && (call.status / 100 == 2 || call.status == 404);
    }
    bool was_known = has_left && call.status != 404;
    if (has_left)
        jfx_log(ex, "%s has left JobFlow: %s", s->name, ex->instance);
    else
        jfx_log(ex, "%s could not leave JobFlow, which forgets it in %d s: HTTP %d %.200s", s->name,
                (int)(ex->ttl_ms / 1000), call.status, call.answer ? call.answer : call.error);
    free(call.answer);
    return was_known;
}

/* ---- The thread -------------------------------------------------------------------------- */

static struct jfx_service *next_service(struct jobflow_executor *ex)
{
    struct jfx_service *next = &ex->services[0];

    for (size_t i = 1; i < ex->n_services; i++) {
        if (ex->services[i].next_ms < next->next_ms)
            next = &ex->services[i];
    }
    return next;
}

void *jfx_register(void *ctx)
{
    struct jobflow_executor *ex = ctx;
    struct pollfd halt = {.fd = ex->halt[0], .events = POLLIN};

    while (!atomic_load(&ex->stop)) {
        struct jfx_service *s = next_service(ex);
        int64_t wait_ms = s->next_ms - jfx_now_ms();
        if (wait_ms > 0)
            (void)poll(&halt, 1, (int)wait_ms);
        else
            tell(ex, s);
    }
    int64_t end_ms = jfx_now_ms() + LEAVE_MS;
    bool was_known = false;
    for (size_t i = 0; i < ex->n_services; i++) {
        if (ex->services[i].may_be_known)
            was_known |= leave(ex, &ex->services[i], end_ms);
    }
    if (was_known)
        jfx_node_sleep(LINGER_MS, NULL);
    atomic_store(&ex->has_left, true);
    jfx_wake(ex);
    return NULL;
}
