/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a service's base URL when it is registered. What passes here may still resolve to a
 * refused address later: that check stands where the socket is opened. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>

#include "common/buf.h"
#include "node/dispatch/dispatch_internal.h"

#define URL_MAX 2048

struct parts {
    char *scheme; /* these are libcurl's: curl_free */
    char *host;
    char *port;
};

static void parts_fini(struct parts *p)
{
    curl_free(p->scheme);
    curl_free(p->host);
    curl_free(p->port);
}

static int wrong_form(struct err *err)
{
    return err_set(
        err, ERR_INVALID,
        "the URL has to be http://host or https://host, then :port and a path if need be");
}

static int get_part(CURLU *u, CURLUPart what, unsigned flags, char **ret, struct err *err)
{
    CURLUcode rc = curl_url_get(u, what, ret, flags);

    if (rc == CURLUE_OUT_OF_MEMORY)
        return err_set(err, ERR_NOMEM, "out of memory");
    return rc == CURLUE_OK ? 0 : wrong_form(err);
}

static int parse(CURLU *u, const char *url, struct parts *ret, struct err *err)
{
    const char *host = strstr(url, "://");
    CURLUcode rc = curl_url_set(u, CURLUPART_URL, url, CURLU_DISALLOW_USER);

    if (rc == CURLUE_OUT_OF_MEMORY)
        return err_set(err, ERR_NOMEM, "out of memory");
    if (rc == CURLUE_USER_NOT_ALLOWED)
        return err_set(err, ERR_INVALID, "the URL must not have a user part");
    if (rc != CURLUE_OK || !host || host[3] == '/') /* libcurl takes more slashes than two */
        return wrong_form(err);
    int failed = get_part(u, CURLUPART_SCHEME, 0, &ret->scheme, err);
    if (!failed && strcmp(ret->scheme, "http") != 0 && strcmp(ret->scheme, "https") != 0)
        failed = wrong_form(err);
    if (!failed)
        failed = get_part(u, CURLUPART_HOST, 0, &ret->host, err);
    return failed ? failed : get_part(u, CURLUPART_PORT, CURLU_DEFAULT_PORT, &ret->port, err);
}

static int check_parts(const struct address_rules *rules, const struct parts *p, struct err *err)
{
    char *host = p->host;
    size_t len = strlen(host);
    long port = strtol(p->port, NULL, 10);

    if (port < 1 || port > UINT16_MAX)
        return err_set(err, ERR_INVALID, "the port has to be from 1 to 65535");
    if (host[0] == '[' && len > 1) {
        host[len - 1] = '\0';
        host++;
    }
    const char *why = address_refusal_host(rules, host, (uint16_t)port);
    if (why)
        return err_set(err, ERR_INVALID, "%s is %s, which tasks must not reach", p->host, why);
    return 0;
}

/* "." or "..", also written as %2e. */
static bool is_dot_segment(const char *p, size_t len)
{
    size_t n_dots = 0;

    for (size_t i = 0; i < len; n_dots++) {
        if (p[i] == '.')
            i++;
        else if (len - i >= 3 && strncasecmp(p + i, "%2e", 3) == 0)
            i += 3;
        else
            return false;
    }
    return n_dots == 1 || n_dots == 2;
}

/* Such segments would lead handlers to another place than the URL shows. */
static int check_path(const char *url, struct err *err)
{
    const char *at = strchr(strstr(url, "://") + 3, '/');

    while (at) {
        const char *end = strchr(++at, '/');
        if (is_dot_segment(at, end ? (size_t)(end - at) : strlen(at)))
            return err_set(err, ERR_INVALID, "the URL's path must not have the segments . or ..");
        at = end;
    }
    return 0;
}

static int check_characters(struct str url, struct err *err)
{
    if (url.len == 0 || url.len > URL_MAX)
        return err_set(err, ERR_INVALID, "the URL has to have 1 to %d bytes", URL_MAX);
    for (size_t i = 0; i < url.len; i++) {
        unsigned char c = (unsigned char)url.p[i];
        if (c == '?' || c == '#')
            return err_set(err, ERR_INVALID, "the URL must not have a query or a fragment");
        if (c <= ' ' || c >= 0x7F || c == '\\')
            return err_set(err, ERR_INVALID,
                           "the URL has to be printable ASCII without spaces; "
                           "write other characters as %%XX");
    }
    return 0;
}

int dispatch_check_base_url(const struct dispatch *d, struct str url, struct err *err)
{
    struct parts parts = {0};
    struct buf copy = BUF_INIT;
    int rc = check_characters(url, err);

    if (rc)
        return rc;
    CURLU *u = curl_url();
    buf_adds(&copy, url);
    char *text = buf_steal(&copy);
    if (!u || !text)
        rc = err_set(err, ERR_NOMEM, "out of memory");
    else
        rc = parse(u, text, &parts, err);
    if (!rc)
        rc = check_path(text, err);
    if (!rc)
        rc = check_parts(&d->rules, &parts, err);
    parts_fini(&parts);
    free(text);
    curl_url_cleanup(u);
    return rc;
}
