/* SPDX-License-Identifier: Apache-2.0 */
/* The signatures of what members tell one another. */
#include <stdio.h>
#include <string.h>

#include "node/forward.h"

#define FORWARD_STAMP_TOLERANCE_S 60
#define FORWARD_ID_MAX (MEMBER_NAME_MAX + 64)

int forward_signature(const struct config *cfg, struct str name, struct str path, int64_t stamp,
                      struct str body, char ret[SIGN_TEXT_MAX])
{
    char id[FORWARD_ID_MAX];
    int len = snprintf(id, sizeof(id), STR_FMT STR_FMT, STR_ARG(name), STR_ARG(path));

    if (len < 0 || (size_t)len >= sizeof(id))
        return ERR_INVALID;
    return sign_webhook(str_from(cfg->cluster_secret), str_from(id), stamp, body, ret);
}

/* Takes as long wherever the two differ. */
static bool same_text(struct str a, const char *b)
{
    size_t len = strlen(b);
    unsigned char differs = a.len != len;

    for (size_t i = 0; i < a.len && i < len; i++)
        differs |= (unsigned char)(a.p[i] ^ b[i]);
    return !differs;
}

int forward_sign(const struct config *cfg, struct str path, struct str body, wall_ms now,
                 struct buf *dst)
{
    char signature[SIGN_TEXT_MAX];
    int rc;

    if (!cfg->cluster_secret)
        return ERR_INVALID;
    rc = forward_signature(cfg, str_from(cfg->node_name), path, now / 1000, body, signature);
    if (rc)
        return rc;
    buf_addi(dst, now / 1000);
    buf_addc(dst, ' ');
    buf_addz(dst, signature);
    return buf_ok(dst) ? 0 : ERR_NOMEM;
}

bool forward_verify(const struct config *cfg, struct str name, struct str path, struct str stamp,
                    struct str signature, struct str body, wall_ms now)
{
    char wanted[SIGN_TEXT_MAX];
    int64_t at;

    if (!cfg->cluster_secret || !str_to_i64(stamp, &at) ||
        at < now / 1000 - FORWARD_STAMP_TOLERANCE_S || at > now / 1000 + FORWARD_STAMP_TOLERANCE_S)
        return false;
    return !forward_signature(cfg, name, path, at, body, wanted) && same_text(signature, wanted);
}
