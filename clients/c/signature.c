/* SPDX-License-Identifier: Apache-2.0 */
#include "signature.h"

#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#define PREFIX "whsec_"
#define PREFIX_LEN (sizeof(PREFIX) - 1)
#define KEY_MIN 16
#define KEY_OF_BASE64_MAX 64
#define MAC_LEN 32
#define MAC_BASE64_LEN 44
#define TIMESTAMP_LEN_MAX 12
#define SIGNATURES_MAX 16 /* looked at in one header */

static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

/* Padding may be left out, as some generators do. */
static bool decode_base64(const char *text, struct jfx_key *ret)
{
    size_t len = strlen(text);
    unsigned bits = 0;
    unsigned n_bits = 0;

    if (len > 0 && text[len - 1] == '=' && len % 4 != 0)
        return false;
    for (int i = 0; i < 2 && len > 0 && text[len - 1] == '='; i++)
        len--;
    if (len % 4 == 1)
        return false;
    ret->len = 0;
    for (size_t i = 0; i < len; i++) {
        int digit = base64_digit(text[i]);
        if (digit < 0)
            return false;
        bits = (bits << 6 | (unsigned)digit) & 0xFFFF;
        n_bits += 6;
        if (n_bits < 8)
            continue;
        if (ret->len == KEY_OF_BASE64_MAX)
            return false;
        n_bits -= 8;
        ret->bytes[ret->len++] = (unsigned char)(bits >> n_bits);
    }
    return true;
}

bool jfx_key_read(const char *secret, struct jfx_key *ret)
{
    if (strncmp(secret, PREFIX, PREFIX_LEN) == 0)
        return decode_base64(secret + PREFIX_LEN, ret) && ret->len >= KEY_MIN;
    ret->len = strlen(secret);
    if (ret->len < KEY_MIN || ret->len > JFX_KEY_MAX)
        return false;
    memcpy(ret->bytes, secret, ret->len);
    return true;
}

/* Writes base64 and a NUL. */
static bool sign(const struct jfx_key *key, const struct jfx_signature *s, const void *body,
                 size_t len, char dst[MAC_BASE64_LEN + 1])
{
    unsigned char mac[EVP_MAX_MD_SIZE];
    size_t mac_len = sizeof(mac);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    EVP_PKEY *pkey = EVP_PKEY_new_raw_private_key(EVP_PKEY_HMAC, NULL, key->bytes, key->len);
    bool ok = ctx && pkey && EVP_DigestSignInit(ctx, NULL, EVP_sha256(), NULL, pkey) == 1 &&
              EVP_DigestSignUpdate(ctx, s->id, strlen(s->id)) == 1 &&
              EVP_DigestSignUpdate(ctx, ".", 1) == 1 &&
              EVP_DigestSignUpdate(ctx, s->timestamp, strlen(s->timestamp)) == 1 &&
              EVP_DigestSignUpdate(ctx, ".", 1) == 1 && EVP_DigestSignUpdate(ctx, body, len) == 1 &&
              EVP_DigestSignFinal(ctx, mac, &mac_len) == 1 && mac_len == MAC_LEN;

    if (ok)
        (void)EVP_EncodeBlock((unsigned char *)dst, mac, MAC_LEN);
    EVP_PKEY_free(pkey);
    EVP_MD_CTX_free(ctx);
    return ok;
}

static bool is_among(const char *expected, const char *signatures)
{
    bool found = false;

    for (int n = 0; *signatures && n < SIGNATURES_MAX; n++) {
        size_t len = strcspn(signatures, " ");
        if (len == 3 + MAC_BASE64_LEN && memcmp(signatures, "v1,", 3) == 0 &&
            CRYPTO_memcmp(signatures + 3, expected, MAC_BASE64_LEN) == 0)
            found = true;
        signatures += len;
        signatures += strspn(signatures, " ");
    }
    return found;
}

static bool read_seconds(const char *text, int64_t *ret)
{
    size_t len = strspn(text, "0123456789");

    if (len == 0 || len > TIMESTAMP_LEN_MAX || text[len])
        return false;
    *ret = 0;
    for (size_t i = 0; i < len; i++)
        *ret = *ret * 10 + (text[i] - '0');
    return true;
}

const char *jfx_signature_refusal(const struct jfx_signature *s, const void *body, size_t len,
                                  const struct jfx_key *keys, size_t n_keys, int64_t now_s,
                                  int64_t tolerance_s)
{
    char expected[MAC_BASE64_LEN + 1];
    int64_t then;
    bool is_right = false;

    if (!s->id || !s->timestamp || !s->signatures)
        return "the request is not signed";
    if (!read_seconds(s->timestamp, &then))
        return "webhook-timestamp is no number of seconds";
    for (size_t i = 0; i < n_keys; i++) {
        if (!sign(&keys[i], s, body, len, expected))
            return "the signature could not be computed";
        is_right = is_among(expected, s->signatures) || is_right;
    }
    if (!is_right)
        return "the signature is wrong";
    if (then < now_s - tolerance_s || then > now_s + tolerance_s)
        return "the signature is too old, or from the future";
    return NULL;
}
