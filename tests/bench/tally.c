/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/tally.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/timefmt.h"

void tally_init(struct tally *t, size_t cap)
{
    *t = (struct tally){.cap = cap};
    t->late = calloc(cap ? cap : 1, sizeof(*t->late));
    if (!t->late) {
        (void)fprintf(stderr, "bench: no memory for %zu samples\n", cap);
        exit(1);
    }
}

void tally_fini(struct tally *t)
{
    free(t->late);
    t->late = NULL;
}

size_t tally_note(struct tally *t, struct str text)
{
    static const char mark[] = "\"executeTime\":\"";
    const char *end = text.p + text.len;
    uint64_t first = atomic_load_explicit(&t->n, memory_order_relaxed);
    uint64_t n = first;
    wall_ms now = clock_wall();
    const char *at;

    while ((at = memmem(text.p, (size_t)(end - text.p), mark, sizeof(mark) - 1))) {
        wall_ms due;

        text.p = at + sizeof(mark) - 1;
        if (n < t->cap && end - text.p > TIME_TEXT_LEN &&
            !time_parse((struct str){text.p, TIME_TEXT_LEN}, &due, NULL))
            t->late[n] = (int32_t)(now - due);
        n++;
    }
    if (!first && n)
        atomic_store_explicit(&t->first_us, clock_mono_us(), memory_order_relaxed);
    atomic_store_explicit(&t->n, n, memory_order_release);
    return (size_t)(n - first);
}

uint64_t tally_count(const struct tally *t)
{
    return atomic_load_explicit(&t->n, memory_order_acquire);
}

static int compare(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a;
    int32_t y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

/* The steps grow with the value: each millisecond up to 100, then three digits at most. */
static int32_t rounded(int32_t ms)
{
    int32_t step = 1;

    while (ms / step >= 100)
        step *= 10;
    return ms / step * step;
}

void tally_print(struct tally *t)
{
    uint64_t count = tally_count(t);
    size_t n = count < t->cap ? (size_t)count : t->cap;
    const char *before = "";

    assert(n);
    qsort(t->late, n, sizeof(*t->late), compare);
    (void)printf("\"p50_ms\":%d,\"p99_ms\":%d,\"p999_ms\":%d,\"max_ms\":%d,\"min_ms\":%d,"
                 "\"histogram\":[",
                 t->late[n / 2], t->late[n * 99 / 100], t->late[n * 999 / 1000], t->late[n - 1],
                 t->late[0]);
    for (size_t i = 0; i < n;) {
        int32_t value = rounded(t->late[i]);
        size_t same = 0;

        while (i + same < n && rounded(t->late[i + same]) == value)
            same++;
        (void)printf("%s[%d,%zu]", before, value, same);
        before = ",";
        i += same;
    }
    (void)printf("]");
}
