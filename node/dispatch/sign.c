/* SPDX-License-Identifier: Apache-2.0 */
#include "node/dispatch/sign.h"

#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/base64.h"
#include "common/buf.h"

#define PREFIX "whsec_"
#define PREFIX_LEN (sizeof(PREFIX) - 1)
#define KEY_MIN 16
#define KEY_MAX 64
#define TEXT_MAX 128
#define MAC_LEN 32

#define ALLOWED                                                                                    \
    "a secret is \"whsec_\" and base64 of 16 to 64 bytes, or 16 to 128 bytes of plain text"

struct key {
    unsigned char bytes[TEXT_MAX];
    size_t len;
};

/* Padding may be left out, as some generators do; anything else is refused. */
static bool decode_base64(struct str text, struct key *ret)
{
    unsigned bits = 0;
    unsigned n_bits = 0;
    bool padded = text.len > 0 && text.p[text.len - 1] == '=';

    if (padded && text.len % 4 != 0)
        return false;
    for (int i = 0; i < 2 && text.len > 0 && text.p[text.len - 1] == '='; i++)
        text.len--;
    if (text.len % 4 == 1)
        return false;
    ret->len = 0;
    for (size_t i = 0; i < text.len; i++) {
        int digit = base64_digit(text.p[i]);
        if (digit < 0)
            return false;
        bits = (bits << 6 | (unsigned)digit) & 0xFFFF;
        n_bits += 6;
        if (n_bits < 8)
            continue;
        if (ret->len == KEY_MAX)
            return false;
        n_bits -= 8;
        ret->bytes[ret->len++] = (unsigned char)(bits >> n_bits);
    }
    return true;
}

static bool read_key(struct str secret, struct key *ret)
{
    if (secret.len >= PREFIX_LEN && !memcmp(secret.p, PREFIX, PREFIX_LEN)) {
        struct str text = {secret.p + PREFIX_LEN, secret.len - PREFIX_LEN};
        return decode_base64(text, ret) && ret->len >= KEY_MIN;
    }
    if (secret.len < KEY_MIN || secret.len > TEXT_MAX)
        return false;
    if (!utf8_valid(secret) || utf8_has_control(secret) || utf8_has_edge_space(secret))
        return false;
    memcpy(ret->bytes, secret.p, secret.len);
    ret->len = secret.len;
    return true;
}

int sign_check_secret(struct str secret, struct err *err)
{
    struct key key;
    bool ok = read_key(secret, &key);

    OPENSSL_cleanse(&key, sizeof(key));
    return ok ? 0 : err_set(err, ERR_INVALID, ALLOWED);
}

static int sign_bytes(const struct key *key, const struct buf *signed_bytes,
                      char dst[SIGN_TEXT_MAX])
{
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned int len = 0;

    if (!buf_ok(signed_bytes))
        return ERR_NOMEM;
    if (!HMAC(EVP_sha256(), key->bytes, (int)key->len, (const unsigned char *)signed_bytes->data,
              signed_bytes->len, mac, &len) ||
        len != MAC_LEN)
        return ERR_NOMEM;
    memcpy(dst, "v1,", 3);
    (void)EVP_EncodeBlock((unsigned char *)dst + 3, mac, MAC_LEN); /* ends it with NUL */
    return 0;
}

int sign_webhook(struct str secret, struct str id, int64_t timestamp_s, struct str body,
                 char dst[SIGN_TEXT_MAX])
{
    struct key key;
    struct buf signed_bytes = BUF_INIT;
    int rc = ERR_INVALID;

    if (read_key(secret, &key)) {
        buf_adds(&signed_bytes, id);
        buf_addc(&signed_bytes, '.');
        buf_addi(&signed_bytes, timestamp_s);
        buf_addc(&signed_bytes, '.');
        buf_adds(&signed_bytes, body);
        rc = sign_bytes(&key, &signed_bytes, dst);
        buf_fini(&signed_bytes);
    }
    OPENSSL_cleanse(&key, sizeof(key));
    return rc;
}
