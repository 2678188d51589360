/* SPDX-License-Identifier: Apache-2.0 */
#include "node/api/api.h"

#include <assert.h>
#include <stdlib.h>

#include "node/api/api_impl.h"

#define MIN_MEMORY ((size_t)64 * 1024 * 1024)
#define BODIES_IN_MEMORY 16 /* of the largest size, when that is more */

static void api_free(struct api *a)
{
    for (uint32_t i = 0; a->loops && i < a->cfg.threads; i++) {
        json_doc_fini(&a->loops[i].doc);
        buf_fini(&a->loops[i].out);
        buf_fini(&a->loops[i].headers);
    }
    free(a->loops);
    free(a);
}

static int check_config(const struct api_config *cfg, struct err *err)
{
    if (cfg->threads == 0 || cfg->max_payload == 0 || cfg->max_ahead_ms <= 0 ||
        cfg->default_timeout_ms <= 0 || cfg->default_timeout_ms > INT32_MAX ||
        cfg->max_timeout_ms < 1 || cfg->max_timeout_ms > INT32_MAX ||
        cfg->max_body > SIZE_MAX / BODIES_IN_MEMORY)
        return err_set(err, ERR_INVALID, "a limit of the HTTP interface is out of range");
    return 0;
}

static struct http_config http_config_of(const struct api_config *cfg, struct api *a)
{
    size_t memory = cfg->max_body * BODIES_IN_MEMORY;
    return (struct http_config){
        .listen = cfg->listen,
        .threads = cfg->threads,
        .max_connections = cfg->max_connections,
        .max_header = cfg->max_header,
        .max_body = cfg->max_body,
        .max_memory = memory > MIN_MEMORY ? memory : MIN_MEMORY,
        .header_timeout_ms = cfg->header_timeout_ms,
        .body_timeout_ms = cfg->body_timeout_ms,
        .idle_timeout_ms = cfg->idle_timeout_ms,
        .write_timeout_ms = cfg->write_timeout_ms,
        .handler = route_request,
        .ctx = a,
    };
}

int api_start(const struct api_config *cfg, const struct api_env *env, struct api **ret,
              struct err *err)
{
    int rc = check_config(cfg, err);
    if (rc)
        return rc;
    struct api *a = calloc(1, sizeof(*a));
    if (!a)
        return err_set(err, ERR_NOMEM, "out of memory");
    a->cfg = *cfg;
    a->env = *env;
    a->loops = calloc(cfg->threads, sizeof(a->loops[0]));
    if (!a->loops) {
        api_free(a);
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < cfg->threads; i++)
        random_bytes(&a->loops[i].rng, sizeof(a->loops[i].rng));
    struct http_config http = http_config_of(cfg, a);
    rc = http_server_start(&http, &a->http, err);
    if (rc) {
        api_free(a);
        return rc;
    }
    *ret = a;
    return 0;
}

const char *api_address(const struct api *a)
{
    return http_server_address(a->http);
}

void api_drain(struct api *a, int64_t grace_ms)
{
    http_server_drain(a->http, grace_ms);
}

bool api_is_drained(const struct api *a)
{
    return http_server_is_drained(a->http);
}

void api_stop(struct api *a)
{
    if (!a)
        return;
    http_server_stop(a->http);
    api_free(a);
}
