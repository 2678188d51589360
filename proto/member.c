/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/member.h"

#include <ctype.h>
#include <string.h>

#include "common/json.h"
#include "common/timefmt.h"

#define MEMBER_TOKENS_MAX 256

static const char *const state_names[MEMBER_N_STATES] = {
    [MEMBER_JOINING] = "joining",
    [MEMBER_ACTIVE] = "active",
    [MEMBER_DRAINING] = "draining",
    [MEMBER_LEFT] = "left",
};

const char *member_state_name(enum member_state s)
{
    return s >= 0 && s < MEMBER_N_STATES ? state_names[s] : "?";
}

bool member_state_parse(struct str s, enum member_state *ret)
{
    for (int i = 0; i < MEMBER_N_STATES; i++) {
        if (str_eqz(s, state_names[i])) {
            *ret = (enum member_state)i;
            return true;
        }
    }
    return false;
}

bool member_set_text(char *dst, size_t size, struct str src)
{
    size_t n = utf8_cut(src, size - 1);

    if (n)
        memcpy(dst, src.p, n);
    dst[n] = '\0';
    return n == src.len;
}

void member_put(struct buf *b, const struct member *m)
{
    char time[TIME_TEXT_LEN + 1];
    bool first = true;

    time_format(m->started_at, time);
    buf_addc(b, '{');
    json_put_key(b, &first, "name");
    json_put_stringz(b, m->name);
    json_put_key(b, &first, "address");
    json_put_stringz(b, m->address);
    json_put_key(b, &first, "state");
    json_put_stringz(b, member_state_name(m->state));
    json_put_key(b, &first, "epoch");
    buf_addi(b, m->epoch);
    json_put_key(b, &first, "version");
    json_put_stringz(b, m->version);
    json_put_key(b, &first, "hashVersion");
    buf_addi(b, m->hash_version);
    json_put_key(b, &first, "startedAt");
    json_put_stringz(b, time);
    buf_addc(b, '}');
}

/* ---- Reading ------------------------------------------------------------------------------- */

struct reader {
    struct json_doc doc;
    struct buf text; /* unescaped */
    struct err *err;
};

static int bad_field(struct reader *r, const char *key, const char *wanted)
{
    return err_set(r->err, ERR_INVALID, "member field %s: %s expected", key, wanted);
}

/* Borrowed until the next call. */
static int read_text(struct reader *r, const char *key, struct str *ret)
{
    uint32_t i = json_find(&r->doc, 0, key);

    if (!i || r->doc.tokens[i].type != JSON_STRING)
        return bad_field(r, key, "a string");
    r->text.len = 0;
    if (!json_unescape(&r->doc.tokens[i], &r->text))
        return ERR_NOMEM;
    *ret = buf_str(&r->text);
    return 0;
}

static int read_into(struct reader *r, const char *key, char *dst, size_t size)
{
    struct str text;
    int rc = read_text(r, key, &text);

    if (rc)
        return rc;
    return member_set_text(dst, size, text) ? 0 : bad_field(r, key, "a shorter string");
}

static int read_name(struct reader *r, struct member *m)
{
    int rc = read_into(r, "name", m->name, sizeof(m->name));

    if (!rc && !name_valid(str_from(m->name), MEMBER_NAME_MAX))
        rc = bad_field(r, "name", "A-Z a-z 0-9 . _ -");
    return rc;
}

/* host:port, [v6]:port. It stands in URLs, so that nothing else may stand in it. */
static bool is_address(struct str s)
{
    const char *colon = s.len ? memrchr(s.p, ':', s.len) : NULL;
    int64_t port;

    if (!colon || !str_to_i64((struct str){colon + 1, s.len - (size_t)(colon + 1 - s.p)}, &port) ||
        port < 1 || port > UINT16_MAX)
        return false;
    struct str host = {s.p, (size_t)(colon - s.p)};
    bool v6 = host.len > 2 && host.p[0] == '[' && host.p[host.len - 1] == ']';
    if (v6)
        host = (struct str){host.p + 1, host.len - 2};
    for (size_t i = 0; i < host.len; i++) {
        if (!isalnum((unsigned char)host.p[i]) && !strchr(v6 ? ":.%" : ".-_", host.p[i]))
            return false;
    }
    return host.len > 0;
}

static int read_address(struct reader *r, struct member *m)
{
    int rc = read_into(r, "address", m->address, sizeof(m->address));

    if (!rc && !is_address(str_from(m->address)))
        rc = bad_field(r, "address", "host:port");
    return rc;
}

static int read_i64(struct reader *r, const char *key, int64_t max, int64_t *ret)
{
    uint32_t i = json_find(&r->doc, 0, key);

    if (!i || r->doc.tokens[i].type != JSON_NUMBER || !json_to_i64(&r->doc.tokens[i], ret) ||
        *ret < 0 || *ret > max)
        return bad_field(r, key, "a whole number that is not negative");
    return 0;
}

static int read_state(struct reader *r, enum member_state *ret)
{
    struct str text;
    int rc = read_text(r, "state", &text);

    if (!rc && !member_state_parse(text, ret))
        rc = bad_field(r, "state", "joining, active, draining or left");
    return rc;
}

static int read_started_at(struct reader *r, wall_ms *ret)
{
    struct str text;
    int rc = read_text(r, "startedAt", &text);

    if (!rc && time_parse(text, ret, r->err))
        rc = bad_field(r, "startedAt", "a time");
    return rc;
}

static int read_all(struct reader *r, struct member *m)
{
    int64_t hash_version = 0;
    int rc = read_name(r, m);

    if (!rc)
        rc = read_address(r, m);
    if (!rc)
        rc = read_state(r, &m->state);
    if (!rc)
        rc = read_i64(r, "epoch", INT64_MAX, &m->epoch);
    if (!rc)
        rc = read_into(r, "version", m->version, sizeof(m->version));
    if (!rc)
        rc = read_i64(r, "hashVersion", INT32_MAX, &hash_version);
    if (!rc)
        rc = read_started_at(r, &m->started_at);
    m->hash_version = (int32_t)hash_version;
    return rc;
}

int member_parse(struct str json, struct member *ret, struct err *err)
{
    struct reader r = {.doc = JSON_DOC_INIT, .err = err};
    struct member m = {0};
    int rc = json_parse(&r.doc, json, MEMBER_TOKENS_MAX, err);

    if (!rc && r.doc.tokens[0].type != JSON_OBJECT)
        rc = err_set(err, ERR_INVALID, "member: an object expected");
    else if (!rc)
        rc = read_all(&r, &m);
    if (!rc)
        *ret = m;
    json_doc_fini(&r.doc);
    buf_fini(&r.text);
    return rc == ERR_TOO_BIG ? ERR_INVALID : rc;
}
