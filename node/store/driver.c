/* SPDX-License-Identifier: Apache-2.0 */
#include "node/store/driver.h"

#include <assert.h>
#include <string.h>

#include "node/store/migrations.h"

const struct driver *driver_find(const char *url)
{
    static const struct {
        const char *scheme;
        const struct driver *driver;
    } schemes[] = {
        {"sqlite", &sqlite_driver},       {"postgres", &postgres_driver},
        {"postgresql", &postgres_driver}, {"mysql", &mysql_driver},
        {"mariadb", &mysql_driver},
    };

    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        size_t len = strlen(schemes[i].scheme);

        if (!strncmp(url, schemes[i].scheme, len) && url[len] == ':')
            return schemes[i].driver;
    }
    return NULL;
}

const struct migration *driver_migrations(const struct driver *d, size_t *ret_n)
{
    *ret_n = 0;
    if (d == &sqlite_driver) {
        *ret_n = sqlite_n_migrations;
        return sqlite_migrations;
    }
    if (d == &postgres_driver) {
        *ret_n = postgres_n_migrations;
        return postgres_migrations;
    }
    if (d == &mysql_driver) {
        *ret_n = mysql_n_migrations;
        return mysql_migrations;
    }
    return NULL;
}
