/* SPDX-License-Identifier: Apache-2.0 */
#include <mysql.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/dbserver_kind.h"

/* The first of these that can be run. */
static bool find(struct dbserver_place *p)
{
    const char *const servers[] = {getenv("MARIADBD"), "/usr/sbin/mariadbd",
                                   "/usr/libexec/mariadbd", "/usr/local/sbin/mariadbd"};

    for (size_t i = 0; i < sizeof(servers) / sizeof(servers[0]); i++) {
        if (servers[i] && access(servers[i], X_OK) == 0) {
            (void)snprintf(p->bin, sizeof(p->bin), "%s", servers[i]);
            return true;
        }
    }
    return false;
}

/* A server that starts deletes the temporary tables in its tmpdir, also those of others. */
static void put_tmpdir(const struct dbserver_place *p, struct dbserver_words *w)
{
    dbserver_word(w, "--tmpdir=%s", p->dir);
}

/* The script finds the server by itself. */
static void create(const struct dbserver_place *p, struct dbserver_words *w)
{
    dbserver_word(w, "/usr/bin/env");
    dbserver_word(w, "mariadb-install-db");
    dbserver_word(w, "--no-defaults");
    dbserver_word(w, "--datadir=%s/data", p->dir);
    put_tmpdir(p, w);
    dbserver_word(w, "--auth-root-authentication-method=normal");
    dbserver_word(w, "--skip-test-db");
    dbserver_word(w, "--skip-name-resolve");
    dbserver_word(w, "--innodb-log-file-size=16M");
}

static void serve(const struct dbserver_place *p, struct dbserver_words *w)
{
    static const char *const settings[] = {
        "--bind-address=127.0.0.1",   "--innodb-flush-log-at-trx-commit=1",
        "--innodb-doublewrite=ON",    "--innodb-buffer-pool-size=128M",
        "--innodb-log-file-size=64M", "--skip-log-bin",
        "--skip-name-resolve",        "--max-connections=50",
    };

    dbserver_word(w, "%s", p->bin);
    dbserver_word(w, "--no-defaults"); /* first */
    dbserver_word(w, "--datadir=%s/data", p->dir);
    put_tmpdir(p, w);
    dbserver_word(w, "--socket=%s/socket", p->dir);
    dbserver_word(w, "--pid-file=%s/data/pid", p->dir);
    dbserver_word(w, "--port=%d", p->port);
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        dbserver_word(w, "%s", settings[i]);
}

static bool is_up(const struct dbserver_place *p)
{
    const unsigned tcp = MYSQL_PROTOCOL_TCP;
    MYSQL *my = mysql_init(NULL);
    bool up;

    if (!my || mysql_optionsv(my, MYSQL_OPT_PROTOCOL, &tcp))
        abort();
    up =
        mysql_real_connect(my, "127.0.0.1", "root", NULL, NULL, (unsigned)p->port, NULL, 0) != NULL;
    mysql_close(my);
    return up;
}

static void make_url(const struct dbserver_place *p, const char *database,
                     char dst[DBSERVER_URL_MAX])
{
    (void)snprintf(dst, DBSERVER_URL_MAX, "mysql://root@127.0.0.1:%d/%s", p->port, database);
}

const struct dbserver_kind dbserver_mariadb = {
    .name = "MariaDB",
    .user = "mysql",
    .pid_file = "data/pid",
    .stop_signal = SIGTERM,
    .crash_signal = SIGKILL,
    .find = find,
    .create = create,
    .serve = serve,
    .is_up = is_up,
    .url = make_url,
};
