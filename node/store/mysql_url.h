/* SPDX-License-Identifier: Apache-2.0 */
/* mysql://user:password@host:port/database?sslmode=…&sslrootcert=… (or mariadb://). Everything
 * between the separators may be percent-encoded; an IPv6 address stands in brackets. */
#ifndef JF_STORE_MYSQL_URL_H
#define JF_STORE_MYSQL_URL_H

#include <stdbool.h>

#include "common/err.h"

enum mysql_tls {
    MYSQL_TLS_OFF,      /* sslmode=disable, or nothing */
    MYSQL_TLS_REQUIRED, /* sslmode=require */
    MYSQL_TLS_VERIFIED  /* sslmode=verify-full: by sslrootcert, else by the system's authorities */
};

struct mysql_url {
    char *block; /* owned: holds the strings */
    const char *user;
    const char *password; /* NULL: none */
    const char *host;
    const char *database;
    const char *ca_file; /* NULL: none */
    unsigned port;
    enum mysql_tls tls;
};

/* The error's text never has a part of the URL that could be a secret.
 * Errors: ERR_INVALID, ERR_NOMEM; *ret is then empty. */
MUST_CHECK int mysql_url_parse(const char *url, struct mysql_url *ret, struct err *err);
void mysql_url_fini(struct mysql_url *u);

#endif
