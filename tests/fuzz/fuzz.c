/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct str fuzz_take_line(struct str *input)
{
    const char *end = input->len > 0 ? memchr(input->p, '\n', input->len) : NULL;
    struct str line = {input->p, end ? (size_t)(end - input->p) : input->len};
    size_t used = line.len + (end ? 1 : 0);
    input->p += used;
    input->len -= used;
    return line;
}

int32_t fuzz_take_number(struct str *s)
{
    int32_t v = 0;
    for (int i = 0; i < 9 && s->len > 0 && *s->p >= '0' && *s->p <= '9'; i++) {
        v = v * 10 + (*s->p - '0');
        s->p++;
        s->len--;
    }
    return v;
}

void fuzz_same(const char *what, struct str a, struct str b)
{
    if (str_eq(a, b))
        return;
    (void)fprintf(stderr, "%s differs:\n--- %zu bytes\n" STR_FMT "\n--- %zu bytes\n" STR_FMT "\n",
                  what, a.len, STR_ARG(a), b.len, STR_ARG(b));
    abort();
}

void fuzz_clean_text(const char *what, struct str s)
{
    if (utf8_valid(s) && !utf8_has_control(s))
        return;
    (void)fprintf(stderr, "%s is not clean: " STR_FMT "\n", what, STR_ARG(s));
    abort();
}
