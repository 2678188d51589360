/* SPDX-License-Identifier: Apache-2.0 */
/* store_conformance_test sqlite|postgres|mysql [PATTERN]   runs the suite
 * store_conformance_test probe URL    opens a database, as another process
 * store_conformance_test count URL    counts the tasks in a file, as another program
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/store/backends.h"

static int probe(const char *url)
{
    const struct driver_options opt = {.statement_timeout_ms = 1000, .named_statements = true};
    const struct driver *d = driver_find(url);
    struct driver_conn *conn = NULL;
    char *warning = NULL;
    struct err err = {0};
    int rc;

    if (!d)
        return 2;
    rc = d->open(url, &opt, &conn, &warning, &err);
    free(warning);
    if (rc) {
        (void)printf("%s: %s\n", err_name(rc), err.text);
        return 1;
    }
    d->close(conn);
    return 0;
}

static int count(const char *url)
{
    struct backend *b = sqlite_backend_new();
    struct err err = {0};
    int64_t n;
    bool ok = b->query(url, "SELECT count(*) FROM job_delay_task", &n, &err);

    (void)printf("%" PRId64 "\n%s", n, err.text);
    sqlite_backend_free(b);
    return ok ? 0 : 1;
}

static int run_sqlite(const char *pattern)
{
    struct backend *b = sqlite_backend_new();
    int failed = conformance_run(b, pattern);

    sqlite_backend_free(b);
    return failed;
}

static int run_server(struct backend *(*make)(struct err *err), void (*end)(struct backend *b),
                      const char *pattern)
{
    struct err err = {0};
    struct backend *b = make(&err);
    int failed;

    if (!b) {
        (void)printf("1..0 # SKIP %s\n", err.text);
        return 0;
    }
    failed = conformance_run(b, pattern);
    end(b);
    return failed;
}

int main(int argc, char **argv)
{
    const char *pattern = argc > 2 ? argv[2] : NULL;

    if (argc == 3 && !strcmp(argv[1], "probe"))
        return probe(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "count"))
        return count(argv[2]);
    if (argc > 1 && !strcmp(argv[1], "sqlite"))
        return run_sqlite(pattern);
    if (argc > 1 && !strcmp(argv[1], "postgres"))
        return run_server(postgres_backend_new, postgres_backend_free, pattern);
    if (argc > 1 && !strcmp(argv[1], "mysql"))
        return run_server(mysql_backend_new, mysql_backend_free, pattern);
    (void)fprintf(stderr, "usage: %s sqlite|postgres|mysql [PATTERN]\n", argv[0]);
    return 2;
}
