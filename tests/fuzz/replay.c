/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a target over the files of its corpus: TAP, one case a file. An input that is a finding ends
 * the program, and its name is the last one begun. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "tests/fuzz/fuzz.h"

static void die(const char *path)
{
    perror(path);
    exit(1);
}

static int is_input(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Into memory of just its size, so that a read past the end is noticed. */
static struct str read_file(const char *path)
{
    FILE *f = fopen(path, "re");
    if (!f || fseek(f, 0, SEEK_END) != 0)
        die(path);
    long len = ftell(f);
    char *data = len < 0 ? NULL : malloc(len > 0 ? (size_t)len : 1);
    rewind(f);
    if (!data || fread(data, 1, (size_t)len, f) != (size_t)len)
        die(path);
    (void)fclose(f);
    return (struct str){data, (size_t)len};
}

int main(int argc, char **argv)
{
    struct dirent **entries;
    int n = argc == 2 ? scandir(argv[1], &entries, is_input, alphasort) : -1;
    if (n < 1) {
        (void)fprintf(stderr, "usage: %s FOLDER, with at least one input in it\n", argv[0]);
        return 1;
    }
    (void)printf("1..%d\n", n);
    for (int i = 0; i < n; i++) {
        struct buf path = BUF_INIT;
        buf_addf(&path, "%s/%s", argv[1], entries[i]->d_name);
        char *name = buf_steal(&path);
        if (!name)
            die(argv[1]);
        (void)printf("# %s\n", name);
        (void)fflush(stdout);
        struct str input = read_file(name);
        fuzz_one(input);
        (void)printf("ok %d - %s\n", i + 1, entries[i]->d_name);
        free((void *)input.p);
        free(name);
        free(entries[i]);
    }
    free(entries);
    return 0;
}
