/* SPDX-License-Identifier: Apache-2.0 */
/* The suite on the simulation's database, so that what the simulation proves holds for the rest. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/fake_driver.h"
#include "tests/store/conformance.h"

static void create(const struct backend *b, char url[URL_SIZE])
{
    struct fake_db *db = fake_db_new(NULL);

    (void)b;
    _Static_assert(FAKE_URL_MAX <= URL_SIZE, "the URL fits");
    fake_db_url(db, url);
}

static void drop(const struct backend *b, const char *url)
{
    uintptr_t address = (uintptr_t)strtoull(strchr(url, ':') + 1, NULL, 16);

    (void)b;
    fake_db_free((struct fake_db *)address);
}

static const struct migration *migrations(const struct backend *b, size_t *ret_n)
{
    static const struct migration list[] = {{1, "init", ""}};

    (void)b;
    *ret_n = 1;
    return list;
}

static bool spoil(struct task *t, unsigned i)
{
    if (i == 0)
        t->biz_uuid = STR("bad\0key");
    else if (i == 1)
        t->payload = STR("\"\xff\"");
    return i < 2;
}

int main(int argc, char **argv)
{
    const struct backend fake = {
        .name = "fake",
        .driver = &fake_driver,
        .create = create,
        .drop = drop,
        .migrations = migrations,
        .spoil = spoil,
    };

    return conformance_run(&fake, argc > 1 ? argv[1] : NULL);
}
