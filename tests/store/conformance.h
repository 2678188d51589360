/* SPDX-License-Identifier: Apache-2.0 */
/* One suite for every driver of the store. A backend says how to get an empty database and how to
 * look at it from outside; the cases know nothing else about it. */
#ifndef JF_TESTS_CONFORMANCE_H
#define JF_TESTS_CONFORMANCE_H

#include "node/store/driver.h"

#define URL_SIZE 256

/* What a case needs of its backend; without it, the case is not part of the backend's suite. */
#define NEEDS_SQL 1u     /* the database can be asked in SQL from outside */
#define NEEDS_THREADS 2u /* several connections work in threads of their own */
#define NEEDS_SERVER 4u  /* a server that can be stopped and started */
#define NEEDS_FILE 8u    /* the database is a file */
#define NEEDS_POSTGRES 16u
#define NEEDS_MYSQL 32u

struct backend {
    const char *name;
    const struct driver *driver;
    unsigned has; /* bits of NEEDS_ */
    void *ctx;    /* the backend's */

    /* An empty database of its own, without a schema. Aborts when it cannot be made. */
    void (*create)(const struct backend *b, char url[URL_SIZE]);
    void (*drop)(const struct backend *b, const char *url);

    /* The schema's migrations, ascending. */
    const struct migration *(*migrations)(const struct backend *b, size_t *ret_n);

    /* Inputs that the database can never write: makes an item's task one of them. Returns false
     * when there is no such input at `i`. */
    bool (*spoil)(struct task *t, unsigned i);

    /* SQL. On a connection of its own: runs the statements and gives the first column of the first
     * row of the last, as a number (0 for none or NULL). Returns false, with a text, on an error.
     */
    bool (*query)(const char *url, const char *sql, int64_t *ret, struct err *err);
    /* A transaction of its own that runs the statements and stays open. Aborts on an error. */
    void *(*hold)(const char *url, const char *sql);
    /* One more statement; returns false when the database refuses it. */
    bool (*run_held)(void *held, const char *sql);
    void (*release)(void *held, bool commit);
    /* A trigger that refuses rows, and its end: formats of event, table and condition on NEW. */
    const char *refuse;
    const char *allow;
    const char *old_snapshot; /* for hold(): reads, and goes on seeing what it saw then */
    const char *lock_tasks;   /* a statement that keeps others from writing tasks */
    const char *now_sql;      /* an expression: now, in a column of the tables */
    const char *seconds_ago;  /* an expression with one %d */

    /* Server. Abort when it cannot be done. */
    void (*stop)(const struct backend *b, bool crash);
    void (*start)(const struct backend *b);
    /* As its superuser; the second gives the first column of the first row, as a number. */
    void (*run_on_server)(const struct backend *b, const char *sql);
    int64_t (*ask_server)(const struct backend *b, const char *sql);
    const char *n_waiting;   /* queries: sessions that wait for a lock */
    const char *n_deadlocks; /* that the server has met so far */
    void (*disconnect)(const struct backend *b, const char *url); /* all sessions of the database */
    void (*set_read_only)(const struct backend *b, const char *url, bool on);
};

struct world;

struct test_case {
    const char *name;
    void (*run)(struct world *w);
    unsigned needs;
};

struct case_list {
    const struct test_case *cases;
    size_t n;
};

#define CASE_LIST(array)                                                                           \
    {                                                                                              \
        (array), sizeof(array) / sizeof((array)[0])                                                \
    }

extern const struct case_list submit_cases;
extern const struct case_list repeat_cases;
extern const struct case_list claim_cases;
extern const struct case_list finish_cases;
extern const struct case_list rescue_cases;
extern const struct case_list cancel_cases;
extern const struct case_list scan_cases;
extern const struct case_list task_call_cases;
extern const struct case_list lease_cases;
extern const struct case_list list_cases;
extern const struct case_list service_cases;
extern const struct case_list instance_cases;
extern const struct case_list alert_cases;
extern const struct case_list schema_cases;
extern const struct case_list race_cases;
extern const struct case_list duel_cases;
extern const struct case_list refusal_cases;
extern const struct case_list lock_cases;
extern const struct case_list line_cases;
extern const struct case_list bulk_cases;
extern const struct case_list upkeep_cases;
extern const struct case_list churn_cases;
extern const struct case_list sqlsubmit_cases;
extern const struct case_list store_cases;
extern const struct case_list outage_cases;
extern const struct case_list postgres_cases;
extern const struct case_list sqlite_cases;
extern const struct case_list mysql_cases;

/* Runs all of the backend's that match the pattern (NULL: all) and prints TAP. Returns the number
 * of failures, for exit(). */
int conformance_run(const struct backend *b, const char *pattern);

#endif
