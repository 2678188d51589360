/* SPDX-License-Identifier: Apache-2.0 */
/* Which addresses a task's request may not go to. */
#ifndef JF_DISPATCH_ADDRESS_H
#define JF_DISPATCH_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/str.h"

struct sockaddr;

/* Every address in its 16-byte form; an IPv4 one is ::ffff:a.b.c.d. */
struct address {
    uint8_t ip[16];
    uint16_t port;
};

struct address_rules {
    struct address *forbidden; /* owned */
    size_t n_forbidden;
};

/* `forbidden` are own listeners ("127.0.0.1:8080", "[::]:8080"); one on all addresses stands for
 * each address of this machine. Errors: ERR_INVALID (an entry is no address with a port),
 * ERR_NOMEM. */
MUST_CHECK int address_rules_init(struct address_rules *rules, const char *const *forbidden,
                                  size_t n_forbidden, struct err *err);
void address_rules_fini(struct address_rules *rules);

/* Why a connection to this address is refused, or NULL when it is allowed. What is neither IPv4 nor
 * IPv6 is refused. */
const char *address_refusal(const struct address_rules *rules, const struct sockaddr *sa);

/* The same for a literal host ("127.0.0.1", "::1", without brackets). NULL for a name. */
const char *address_refusal_host(const struct address_rules *rules, const char *host,
                                 uint16_t port);

#endif
