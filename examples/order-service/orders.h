/* SPDX-License-Identifier: Apache-2.0 */
/* The orders, in SQLite. */
#ifndef EXAMPLE_ORDERS_H
#define EXAMPLE_ORDERS_H

#include <sqlite3.h>
#include <stdbool.h>

#define ORDER_ID_MAX 64

struct order {
    char id[ORDER_ID_MAX + 1];
    char status[16];  /* "unpaid", "paid" or "cancelled" */
    char timeout[32]; /* how long it may stay unpaid, as JobFlow reads it: "30m" */
    bool scheduled;   /* JobFlow has the task that cancels it */
};

/* Opens the file and creates the table. NULL: an error, which is printed. */
sqlite3 *orders_open(const char *file);

/* Adds an unpaid order unless the id is there already. */
bool orders_add(sqlite3 *db, const char *id, const char *timeout);
bool orders_find(sqlite3 *db, const char *id, struct order *ret);
bool orders_remove(sqlite3 *db, const char *id);
bool orders_set_scheduled(sqlite3 *db, const char *id);

/* The oldest unpaid order that JobFlow does not know of yet. */
bool orders_find_unscheduled(sqlite3 *db, struct order *ret);

/* From 'unpaid' to the status, and from nothing else: this condition is what makes both callers
 * safe to repeat and to race. *ret_changed is false when the order was not unpaid. */
bool orders_end(sqlite3 *db, const char *id, const char *status, bool *ret_changed);

#endif
