/* SPDX-License-Identifier: Apache-2.0 */
/* How due tasks reach a service, as its settings say and show it. */
#include "common/timefmt.h"
#include "node/api/api_impl.h"
#include "node/api/fields.h"

#define BATCH_SIZE_DEFAULT 100
#define BATCH_WAIT_DEFAULT_MS 5

struct settings {
    enum delivery_mode mode;
    int64_t size;    /* 0 = not said */
    int64_t wait_ms; /* < 0 = not said */
};

static bool read_mode(struct fields *f, const struct json_token *value)
{
    struct settings *s = f->ctx;
    struct str text;

    if (!field_string(f, value, &text))
        return false;
    return delivery_mode_parse(text, &s->mode) ||
           problem_set(f->problem, PROBLEM_INVALID_FIELD, f->name,
                       "%s has to be \"push\", \"batch\" or \"pull\"", f->name);
}

static bool read_size(struct fields *f, const struct json_token *value)
{
    return field_int(f, value, 1, SERVICE_BATCH_MAX, &((struct settings *)f->ctx)->size);
}

static bool read_wait(struct fields *f, const struct json_token *value)
{
    return field_duration(f, value, 0, SERVICE_BATCH_WAIT_MAX_MS,
                          &((struct settings *)f->ctx)->wait_ms);
}

bool delivery_read(struct fields *f, const struct json_token *value, struct service *ret)
{
    static const struct field table[] = {
        {"mode", read_mode, .required = true},
        {"maxSize", read_size},
        {"maxWait", read_wait},
    };
    struct settings s = {.wait_ms = -1};

    if (!field_object(f, value, table, sizeof(table) / sizeof(table[0]), &s))
        return false;
    ret->delivery = s.mode;
    if (s.mode == DELIVERY_BATCH) {
        ret->batch_size = (int32_t)(s.size ? s.size : BATCH_SIZE_DEFAULT);
        ret->batch_wait_ms = (int32_t)(s.wait_ms >= 0 ? s.wait_ms : BATCH_WAIT_DEFAULT_MS);
    } else if (s.size || s.wait_ms >= 0) {
        return problem_set(f->problem, PROBLEM_INVALID_FIELD,
                           s.size ? "delivery.maxSize" : "delivery.maxWait",
                           "maxSize and maxWait go with the mode \"batch\" only");
    }
    return true;
}

void delivery_put(struct buf *b, const struct service *s)
{
    char wait[DURATION_TEXT_LEN + 1];

    buf_addf(b, "{\"mode\":\"%s\"", delivery_mode_name(s->delivery));
    if (s->delivery == DELIVERY_BATCH) {
        duration_format(s->batch_wait_ms, wait);
        buf_addf(b, ",\"maxSize\":%d,\"maxWait\":\"%s\"", (int)s->batch_size, wait);
    }
    buf_addc(b, '}');
}
