/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

size_t message_length(const char *data, size_t len, size_t *ret_head)
{
    static const char length_name[] = "Content-Length:";
    static const char coding_name[] = "Transfer-Encoding:";
    const char *end = data ? memmem(data, len, "\r\n\r\n", 4) : NULL;
    size_t body = 0;

    if (!end)
        return 0;
    for (const char *line = memchr(data, '\n', len); line && line < end;
         line = memchr(line + 1, '\n', (size_t)(end + 4 - line) - 1)) {
        if (!strncasecmp(line + 1, length_name, sizeof(length_name) - 1)) {
            body = strtoul(line + sizeof(length_name), NULL, 10);
        } else if (!strncasecmp(line + 1, coding_name, sizeof(coding_name) - 1)) {
            (void)fprintf(stderr, "bench: a body in chunks cannot be read here\n");
            exit(1);
        }
    }
    *ret_head = (size_t)(end - data) + 4;
    return *ret_head + body;
}
