/* SPDX-License-Identifier: Apache-2.0 */
/* The lock beside an SQLite file that keeps other processes out. It belongs to the process: all of
 * its connections share it, and it goes with the last of them, or with the process. */
#ifndef JF_STORE_SQLITE_LOCK_H
#define JF_STORE_SQLITE_LOCK_H

#include "common/err.h"

struct sqlite_lock;

/* Takes the lock `path`.lock, or a share of this process's. From any thread.
 * Errors: ERR_UNAVAILABLE (another process has it, or the file cannot be made), ERR_INVALID (the
 * path is too long), ERR_NOMEM. */
MUST_CHECK int sqlite_lock_take(const char *path, struct sqlite_lock **ret, struct err *err);
void sqlite_lock_drop(struct sqlite_lock *l); /* NULL is accepted */

#endif
