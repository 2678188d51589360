/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/actors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MAX_BUSY 100000

void actor_start(struct world *w, struct actor *a, size_t index, void *(*run)(void *), void *ctx)
{
    *a = (struct actor){
        .w = w, .conn = world_connect(w), .ctx = ctx, .index = index, .rng = {index + 1}};
    assert_int_equal(pthread_create(&a->thread, NULL, run, a), 0);
}

void actors_join(struct actor *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(pthread_join(a[i].thread, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        if (a[i].rc)
            fail_msg("thread %zu: %s: %s", i, err_name(a[i].rc), a[i].err.text);
    }
}

bool actor_again(struct actor *a, int rc)
{
    if (rc != ERR_BUSY && rc != ERR_EXISTS && rc != ERR_TIMEOUT)
        return false;
    if (rc == ERR_TIMEOUT)
        nap(); /* some databases do not wait for another transaction's key */
    return a->n_busy++ < MAX_BUSY;
}

bool actor_expect(struct actor *a, int rc, int expected)
{
    if (rc && rc != expected && !a->rc)
        a->rc = rc;
    return rc == 0;
}
