/* SPDX-License-Identifier: Apache-2.0 */
#include "node/outgoing.h"

#include <string.h>

#include "node/dispatch/sign.h"
#include "node/node_internal.h"

#define HEADERS_ROOM 512 /* all of a signed request's */

void outgoing_fini(struct outgoing *o)
{
    if (!o)
        return;
    buf_fini(&o->body);
    buf_fini(&o->url);
    buf_fini(&o->text);
}

void outgoing_clear(struct outgoing *o)
{
    struct outgoing kept = {.body = o->body, .url = o->url, .text = o->text};

    buf_clear(&kept.body);
    buf_clear(&kept.url);
    buf_clear(&kept.text);
    *o = kept;
}

/* ---- The address ---------------------------------------------------------------------------- */

/* Puts the template's {service} and {namespace} in place. */
static void put_template(struct buf *b, const struct config *cfg, struct str service)
{
    const char *p = cfg->url_template;

    while (*p) {
        if (!strncmp(p, "{service}", 9)) {
            buf_adds(b, service);
            p += 9;
        } else if (!strncmp(p, "{namespace}", 11)) {
            buf_addz(b, cfg->url_namespace);
            p += 11;
        } else {
            buf_addc(b, *p++);
        }
    }
}

/* Ends a URL of which the base stands. */
static void put_handler(struct outgoing *o)
{
    if (o->url.len && o->url.data[o->url.len - 1] != '/')
        buf_addc(&o->url, '/');
    buf_adds(&o->url, o->handler);
    buf_addc(&o->url, '\0');
}

/* Makes the URL of the next instance in turn that was not tried. False when there is none. */
static bool put_instance_url(struct outgoing *o)
{
    struct node *n = o->node;
    uint64_t id;

    if (o->n_tried == OUTGOING_TRIES_MAX)
        return false;
    buf_clear(&o->url);
    id = instances_pick(&n->instances, o->service_name, store_clock_now(&n->clock), o->tried,
                        o->n_tried, &o->url);
    if (!id)
        return false;
    o->tried[o->n_tried++] = id;
    put_handler(o);
    return true;
}

int outgoing_address(struct outgoing *o, const struct service *service, struct err *err)
{
    const struct node *n = o->node;

    if (put_instance_url(o))
        return 0;
    if (service->base_url.p)
        buf_adds(&o->url, service->base_url);
    else if (n->cfg->url_template)
        put_template(&o->url, n->cfg, o->service_name);
    else
        return err_set(err, ERR_NOT_FOUND,
                       "no address for service " STR_FMT ": PUT /api/services/" STR_FMT
                       " with its baseUrl, or let an instance register itself",
                       STR_ARG(o->service_name), STR_ARG(o->service_name));
    put_handler(o);
    return 0;
}

/* ---- Headers -------------------------------------------------------------------------------- */

void outgoing_common_headers(struct outgoing *o)
{
    (void)buf_room(&o->text, HEADERS_ROOM);
    buf_adds(&o->text, STR("Content-Type: application/json\r\nUser-Agent: JobFlow/" JF_VERSION));
}

void outgoing_header(struct outgoing *o, struct str name, struct str value)
{
    buf_adds(&o->text, STR("\r\n"));
    buf_adds(&o->text, name);
    buf_adds(&o->text, value);
}

void outgoing_header_int(struct outgoing *o, struct str name, int64_t value)
{
    outgoing_header(o, name, STR(""));
    buf_addi(&o->text, value);
}

int outgoing_sign(struct outgoing *o, const struct service *service, const char *id, wall_ms now)
{
    char signature[SIGN_TEXT_MAX];
    int rc;

    if (!service->secret.p)
        return 0;
    rc = sign_webhook(service->secret, str_from(id), now / 1000, buf_str(&o->body), signature);
    if (rc)
        return rc;
    outgoing_header_int(o, STR("webhook-timestamp: "), now / 1000);
    outgoing_header(o, STR("webhook-signature: "), str_from(signature));
    return 0;
}

/* ---- Sending -------------------------------------------------------------------------------- */

int outgoing_send(struct outgoing *o, struct err *err)
{
    if (!o->headers) /* else it is sent again */
        buf_addc(&o->text, '\0');
    if (!buf_ok(&o->body) || !buf_ok(&o->text) || !buf_ok(&o->url))
        return err_set(err, ERR_NOMEM, "no memory for the request");
    o->headers = o->text.data;
    o->request.headers = &o->headers;
    o->request.n_headers = 1;
    o->request.body = buf_str(&o->body);
    o->request.url = o->url.data;
    o->request.timeout_ms = o->ends_at - clock_mono();
    return dispatch_start(o->node->dispatch, &o->request, err);
}

/* Takes note of whether the instance could be connected to. */
static void note_instance(struct outgoing *o)
{
    struct node *n = o->node;
    wall_ms now = store_clock_now(&n->clock);
    bool failed = o->request.is_unsent;

    if (!o->request.answer.sent) /* the fence says nothing about it */
        return;
    if (instances_set_aside(&n->instances, o->service_name, o->tried[o->n_tried - 1], now,
                            failed ? now + n->cfg->instance_set_aside_ms : WALL_NONE) &&
        failed)
        LOG(n->log, LOG_WARN, "instance.set_aside", "it could not be connected to",
            F_STR("service", o->service_name), F_Z("url", o->request.url),
            F_INT("forMs", n->cfg->instance_set_aside_ms),
            F_STR("error", o->request.answer.failure));
}

/* After a request that did not leave: sends it to the next instance, or says in `err` how the
 * attempt has failed, and returns false. */
static bool try_next(struct outgoing *o, struct err *err)
{
    mono_ms now = clock_mono();

    if (now < o->request.send_by && now < o->ends_at && put_instance_url(o))
        return !outgoing_send(o, err);
    err_set(err, ERR_UNAVAILABLE,
            "no instance could be connected to, %zu tried; the last: " STR_FMT, o->n_tried,
            STR_ARG(o->request.answer.failure));
    return false;
}

bool outgoing_goes_on(struct outgoing *o, struct err *err)
{
    struct dispatch_request *r = &o->request;

    if (!o->n_tried)
        return false;
    note_instance(o);
    /* A try that came too late is given back, but not after another one failed: the attempts of a
     * task of which no instance is ever connected to in time would not be counted. */
    if (r->is_unsent || (!r->answer.sent && o->n_tried > 1)) {
        if (try_next(o, err))
            return true;
        r->answer = (struct answer){.failure = str_from(err->text), .sent = true};
    }
    return false;
}
