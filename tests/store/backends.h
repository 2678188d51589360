/* SPDX-License-Identifier: Apache-2.0 */
/* The real databases of the suite. */
#ifndef JF_TESTS_BACKENDS_H
#define JF_TESTS_BACKENDS_H

#include "tests/store/conformance.h"

/* They abort when the backend cannot be set up, except: those with a server return NULL, with the
 * reason, when none is installed. */
struct backend *sqlite_backend_new(void);
void sqlite_backend_free(struct backend *b);

struct backend *postgres_backend_new(struct err *err);
void postgres_backend_free(struct backend *b);

struct backend *mysql_backend_new(struct err *err);
void mysql_backend_free(struct backend *b);

#endif
