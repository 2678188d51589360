/* SPDX-License-Identifier: Apache-2.0 */
/* What machines ask: health, readiness, metrics, and the document that describes all of it. */
#include "node/api/api_impl.h"
#include "node/api/openapi_text.h"

static void healthz_handle(struct api_call *c)
{
    buf_addz(call_out(c), "{\"status\":\"ok\"}");
    call_send_json(c, 200);
}

static void readyz_handle(struct api_call *c)
{
    const struct api_env *env = &c->api->env;
    struct buf why = BUF_INIT;
    if (env->ready(env->ctx, &why)) {
        buf_addz(call_out(c), "{\"status\":\"ready\"}");
        call_send_json(c, 200);
    } else {
        struct problem p;
        problem_set(&p, PROBLEM_NOT_READY, NULL, STR_FMT, STR_ARG(buf_str(&why)));
        call_problem(c, &p);
    }
    buf_fini(&why);
}

static void metrics_handle(struct api_call *c)
{
    const struct api_env *env = &c->api->env;
    env->metrics(env->ctx, call_out(c));
    call_send(c, 200, "text/plain; version=0.0.4; charset=utf-8");
}

static void openapi_handle(struct api_call *c)
{
    buf_add(call_out(c), openapi_text, openapi_text_len);
    call_send(c, 200, "application/yaml");
}

const struct route meta_routes[4] = {
    {VERB_GET, "/healthz", sizeof(struct api_call), healthz_handle, NULL},
    {VERB_GET, "/metrics", sizeof(struct api_call), metrics_handle, NULL},
    {VERB_GET, "/openapi.yaml", sizeof(struct api_call), openapi_handle, NULL},
    {VERB_GET, "/readyz", sizeof(struct api_call), readyz_handle, NULL},
};
