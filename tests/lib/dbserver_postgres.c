/* SPDX-License-Identifier: Apache-2.0 */
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "tests/lib/dbserver_kind.h"

static bool find(struct dbserver_place *p)
{
    const char *given = getenv("PG_BINDIR");
    glob_t found;
    bool ok = false;

    if (given) {
        (void)snprintf(p->bin, sizeof(p->bin), "%s", given);
        return true;
    }
    if (glob("/usr/lib/postgresql/*/bin/initdb", 0, NULL, &found) == 0) {
        const char *last = found.gl_pathv[found.gl_pathc - 1];

        (void)snprintf(p->bin, sizeof(p->bin), "%.*s", (int)(strlen(last) - strlen("/initdb")),
                       last);
        ok = true;
    }
    globfree(&found);
    return ok;
}

static void create(const struct dbserver_place *p, struct dbserver_words *w)
{
    static const char *const words[] = {"-U", "postgres", "-A",          "trust",
                                        "-E", "UTF8",     "--no-locale", "-N"};

    dbserver_word(w, "%s/initdb", p->bin);
    dbserver_word(w, "-D");
    dbserver_word(w, "%s/data", p->dir);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        dbserver_word(w, "%s", words[i]);
}

static void serve(const struct dbserver_place *p, struct dbserver_words *w)
{
    static const char *const settings[] = {"listen_addresses=127.0.0.1", "fsync=on",
                                           "synchronous_commit=on",      "max_connections=50",
                                           "shared_buffers=64MB",        "autovacuum_naptime=1s"};

    dbserver_word(w, "%s/postgres", p->bin);
    dbserver_word(w, "-D");
    dbserver_word(w, "%s/data", p->dir);
    dbserver_word(w, "-p");
    dbserver_word(w, "%d", p->port);
    dbserver_word(w, "-k");
    dbserver_word(w, "%s", p->dir);
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        dbserver_word(w, "-c");
        dbserver_word(w, "%s", settings[i]);
    }
}

static void make_url(const struct dbserver_place *p, const char *database,
                     char dst[DBSERVER_URL_MAX])
{
    (void)snprintf(dst, DBSERVER_URL_MAX, "postgres://postgres@127.0.0.1:%d/%s", p->port, database);
}

static bool is_up(const struct dbserver_place *p)
{
    char url[DBSERVER_URL_MAX];

    make_url(p, "postgres", url);
    return PQping(url) == PQPING_OK;
}

const struct dbserver_kind dbserver_postgres = {
    .name = "PostgreSQL",
    .user = "postgres",
    .pid_file = "data/postmaster.pid",
    .stop_signal = SIGINT,
    .crash_signal = SIGQUIT,
    .find = find,
    .create = create,
    .serve = serve,
    .is_up = is_up,
    .url = make_url,
};
