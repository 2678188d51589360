/* SPDX-License-Identifier: Apache-2.0 */
/* What a kind of database server tells dbserver.c about itself. */
#ifndef JF_TESTS_DBSERVER_KIND_H
#define JF_TESTS_DBSERVER_KIND_H

#include "tests/lib/dbserver.h"

#define DBSERVER_PATH_MAX 256
#define DBSERVER_WORDS_MAX 32

struct dbserver_place {
    char bin[DBSERVER_PATH_MAX]; /* folder of the programs, or the server's program */
    char dir[DBSERVER_PATH_MAX]; /* holds data/, the socket and the log */
    int port;
};

/* A command line. */
struct dbserver_words {
    char *argv[DBSERVER_WORDS_MAX];
    size_t n;
    char text[4096];
    size_t used;
};

/* Aborts when it does not fit. */
void dbserver_word(struct dbserver_words *w, const char *fmt, ...) PRINTF_LIKE(2, 3);

struct dbserver_kind {
    const char *name;
    const char *user;     /* whom it runs as when we are root */
    const char *pid_file; /* in the place's dir; begins with the server's process id */
    int stop_signal;
    int crash_signal;
    bool (*find)(struct dbserver_place *p); /* sets bin */
    void (*create)(const struct dbserver_place *p, struct dbserver_words *w);
    void (*serve)(const struct dbserver_place *p, struct dbserver_words *w);
    bool (*is_up)(const struct dbserver_place *p);
    void (*url)(const struct dbserver_place *p, const char *database, char dst[DBSERVER_URL_MAX]);
};

#endif
