/* SPDX-License-Identifier: Apache-2.0 */
/* A private database server for one test program: a new data directory under $TMPDIR, a free port
 * of 127.0.0.1, with durable settings. As root it runs as the user `postgres` or `mysql`, since the
 * server refuses root.
 *
 * The server ends and its directory goes when dbserver_free() is called, when the program exits,
 * and when it is killed: a guardian process of its own session waits for that, and the kernel ends
 * the server with its parent. Start it from the thread that lives longest. */
#ifndef JF_TESTS_DBSERVER_H
#define JF_TESTS_DBSERVER_H

#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>

#define DBSERVER_URL_MAX 128

struct dbserver;
struct dbserver_kind;

/* $PG_BINDIR, or /usr/lib/postgresql/<version>/bin. A superuser `postgres` and a database
 * `postgres`. */
extern const struct dbserver_kind dbserver_postgres;
/* MariaDB: $MARIADBD, or where distributions put it. A superuser `root`. */
extern const struct dbserver_kind dbserver_mariadb;

/* False when the server's programs are not installed. */
bool dbserver_is_installed(const struct dbserver_kind *kind);

/* Creates the data directory and waits until the server takes connections.
 * Errors: ERR_NOT_FOUND (no binaries, or no user to run it), ERR_IO, ERR_TIMEOUT, ERR_NOMEM. */
MUST_CHECK int dbserver_new(const struct dbserver_kind *kind, struct dbserver **ret,
                            struct err *err);
void dbserver_free(struct dbserver *s);

/* Stops the server and waits for its end; `crash`: without a checkpoint, as after a power cut
 * of the process. A stopped server stays stopped. Errors: ERR_IO, ERR_TIMEOUT. */
MUST_CHECK int dbserver_stop(struct dbserver *s, bool crash, struct err *err);

/* Starts it again on the same data and port. Errors: as dbserver_new. */
MUST_CHECK int dbserver_start(struct dbserver *s, struct err *err);

bool dbserver_is_running(const struct dbserver *s);

/* The superuser's, without a password. */
void dbserver_url(const struct dbserver *s, const char *database, char dst[DBSERVER_URL_MAX]);

#endif
