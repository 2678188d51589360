/* SPDX-License-Identifier: Apache-2.0 */
/* The migrations that proto/sql/embed.py builds in, ascending by version. */
#ifndef JF_STORE_MIGRATIONS_H
#define JF_STORE_MIGRATIONS_H

#include "node/store/driver.h"

extern const struct migration mysql_migrations[];
extern const size_t mysql_n_migrations;
extern const struct migration postgres_migrations[];
extern const size_t postgres_n_migrations;
extern const struct migration sqlite_migrations[];
extern const size_t sqlite_n_migrations;

#endif
