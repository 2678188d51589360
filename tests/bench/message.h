/* SPDX-License-Identifier: Apache-2.0 */
/* Where an HTTP/1.1 message ends, as far as the bench's own peers send them: by Content-Length. */
#ifndef JF_BENCH_MESSAGE_H
#define JF_BENCH_MESSAGE_H

#include <stddef.h>

/* The length of the message that `data` begins with, which may be more than is there yet, and of
 * its head; 0 while the head is incomplete (`data` may be NULL). Aborts the program on a message in
 * chunks. */
size_t message_length(const char *data, size_t len, size_t *ret_head);

#endif
