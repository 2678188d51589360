/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/mysql_url.h"

#include <stdlib.h>
#include <string.h>

#include "common/str.h"

#define PORT_DEFAULT 3306

/* Decodes in place. False for a bad encoding or a NUL. */
static bool decode(char *s)
{
    char *to = s;

    while (*s) {
        int high;
        int low;

        if (*s != '%') {
            *to++ = *s++;
            continue;
        }
        high = hex_digit(s[1]);
        low = high < 0 ? -1 : hex_digit(s[2]);
        if (low < 0 || (!high && !low))
            return false;
        *to++ = (char)(high << 4 | low);
        s += 3;
    }
    *to = '\0';
    return true;
}

/* Ends the string before `at`; returns what follows, or NULL. */
static char *cut(char *at)
{
    if (!at)
        return NULL;
    *at = '\0';
    return at + 1;
}

static bool parse_port(const char *s, unsigned *ret)
{
    int64_t port;

    if (!str_to_i64(str_from(s), &port) || port < 1 || port > 65535)
        return false;
    *ret = (unsigned)port;
    return true;
}

/* "host", "host:port", "[::1]:port" */
static int parse_host(char *s, struct mysql_url *u, struct err *err)
{
    char *port = NULL;

    if (*s == '[') {
        char *after = cut(strchr(s, ']'));

        if (!after || (*after && *after != ':'))
            return err_set(err, ERR_INVALID, "the store's URL has an open bracket in its host");
        s++;
        port = *after ? after + 1 : NULL;
    } else {
        port = cut(strchr(s, ':'));
    }
    u->port = PORT_DEFAULT;
    if (port && !parse_port(port, &u->port))
        return err_set(err, ERR_INVALID, "the store's URL has a bad port");
    u->host = s;
    if (!*s || !decode(s))
        return err_set(err, ERR_INVALID, "the store's URL names no host");
    return 0;
}

static int parse_user(char *s, struct mysql_url *u, struct err *err)
{
    char *password = cut(strchr(s, ':'));

    u->user = s;
    u->password = password;
    if (!*s || !decode(s) || (password && !decode(password)))
        return err_set(err, ERR_INVALID,
                       "the store's URL names no user, or its user or password is not properly "
                       "percent-encoded");
    return 0;
}

static int parse_tls(const char *value, struct mysql_url *u, struct err *err)
{
    static const char *const modes[] = {"disable", "require", "verify-full"};

    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(value, modes[i]) == 0) {
            u->tls = (enum mysql_tls)i;
            return 0;
        }
    }
    return err_set(err, ERR_INVALID,
                   "sslmode in the store's URL: expected disable, require or verify-full");
}

static int parse_parameters(char *s, struct mysql_url *u, struct err *err)
{
    for (char *next; s && *s; s = next) {
        char *value;
        int rc = 0;

        next = cut(strchr(s, '&'));
        value = cut(strchr(s, '='));
        if (!value || !decode(value))
            return err_set(err, ERR_INVALID, "the store's URL has a parameter without a value");
        if (strcmp(s, "sslmode") == 0)
            rc = parse_tls(value, u, err);
        else if (strcmp(s, "sslrootcert") == 0)
            u->ca_file = value;
        else
            return err_set(err, ERR_INVALID,
                           "the store's URL has a parameter other than sslmode and sslrootcert");
        if (rc)
            return rc;
    }
    return 0;
}

static int parse(char *s, struct mysql_url *u, struct err *err)
{
    char *parameters = cut(strchr(s, '?'));
    char *database = cut(strchr(s, '/'));
    char *host = cut(strrchr(s, '@'));
    int rc;

    if (!host)
        return err_set(err, ERR_INVALID,
                       "the store's URL names no user: mysql://user:password@"
                       "host:port/database");
    u->database = database;
    if (!database || !*database || strchr(database, '/') || !decode(database))
        return err_set(err, ERR_INVALID,
                       "the store's URL names no database: mysql://user:"
                       "password@host:port/database");
    rc = parse_user(s, u, err);
    if (!rc)
        rc = parse_host(host, u, err);
    return rc ? rc : parse_parameters(parameters, u, err);
}

int mysql_url_parse(const char *url, struct mysql_url *ret, struct err *err)
{
    const char *rest = strstr(url, "://");
    int rc;

    *ret = (struct mysql_url){0};
    if (!rest)
        return err_set(err, ERR_INVALID,
                       "the store's URL: expected mysql://user:password@host:"
                       "port/database");
    ret->block = strdup(rest + 3);
    if (!ret->block)
        return err_set(err, ERR_NOMEM, "no memory for a connection");
    rc = parse(ret->block, ret, err);
    if (rc)
        mysql_url_fini(ret);
    return rc;
}

void mysql_url_fini(struct mysql_url *u)
{
    free(u->block);
    *u = (struct mysql_url){0};
}
